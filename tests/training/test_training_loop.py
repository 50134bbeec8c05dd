"""What the loop computes, against loops written by hand and formulas of another kind."""

from __future__ import annotations

from dataclasses import replace
from math import cos, pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_measures import registered
from torch import Tensor, nn
from torch.nn import functional as f
from training_runs import assert_same_end, config, timeless
from training_stops import stopped

import steppe
from steppe._util.digests import unpacked_bits
from steppe.core.process_group import Workers
from steppe.data.feed import BatchStream
from steppe.optim.step import Pass
from steppe.training import Config, Run, loop, open_run, train
from steppe.training.batches import BatchSource
from steppe.training.model import model_of
from steppe.training.problem import data_of, task_of

STEPS = 10


def by_hand(settings: Config, step: Any, after: Any = lambda model, number: None) -> nn.Module:
    """Plain torch: SGD with a cosine, `step(model, opt, x, y)` leaves the gradient."""
    splits = data_of(settings)
    model = model_of(settings, tuple(splits.train.inputs.shape[1:]), 2)
    opt = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=0.9, weight_decay=5e-4)
    feed = BatchStream(splits.train, settings.batch_size, settings.seed)
    number = 0
    for epoch in range(settings.epochs):
        for x, y in feed.epoch(epoch):
            opt.param_groups[0]["lr"] = settings.lr * (1 + cos(pi * number / STEPS)) / 2
            opt.zero_grad()
            step(model, x, y)
            opt.step()
            number += 1
            after(model, number)
    return model


def plain_step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    f.cross_entropy(model(x), y).backward()


def sam_step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    params = list(model.parameters())
    up = torch.autograd.grad(f.cross_entropy(model(x), y), params)
    norm = torch.cat([g.flatten() for g in up]).norm()
    kept = [p.detach().clone() for p in params]
    with torch.no_grad():
        for p, g in zip(params, up, strict=True):
            p += 0.1 * g / norm
    plain_step(model, x, y)
    with torch.no_grad():
        for p, w in zip(params, kept, strict=True):
            p.copy_(w)


def clipped_step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    plain_step(model, x, y)
    nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def smoothed_step(model: nn.Module, x: Tensor, y: Tensor) -> None:
    shares = torch.full((len(y), 2), 0.1).scatter_(1, y[:, None], 0.9)  # 0.2 spread over two classes
    (-(shares * model(x).log_softmax(1)).sum(1)).mean().backward()


def assert_close(run: Run, model: nn.Module, **tolerance: float) -> None:
    torch.testing.assert_close(run.weights(), dict(model.state_dict()), **tolerance)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"method": "none"}, plain_step),
        ({"method": "sam", "rho": 0.1}, sam_step),
        ({"method": "none", "clip": 0.05}, clipped_step),
        ({"method": "none", "label_smoothing": 0.2}, smoothed_step),
    ],
    ids=lambda c: "-".join(c) if isinstance(c, dict) else "",
)
def test_a_run_is_the_loop_that_one_would_write(changes: dict[str, Any], step: Any, tmp_path: Path) -> None:
    settings = config(tmp_path, model="training_runs:plain", **changes)
    assert_close(train(settings), by_hand(settings, step))


def test_averages_are_those_of_the_weights_on_the_way(tmp_path: Path) -> None:
    settings = config(tmp_path, model="training_runs:plain", method="none", ema=0.8, swa=0.0)
    ema: dict[str, Tensor] = {}
    ends: list[dict[str, Tensor]] = []

    def follow(model: nn.Module, number: int) -> None:
        now = {k: w.double() for k, w in model.state_dict().items()}
        ema.update({k: 0.8 * ema[k] + 0.2 * w if ema else w for k, w in now.items()})
        if number % 5 == 0:
            ends.append({k: w.clone() for k, w in now.items()})

    by_hand(settings, plain_step, follow)
    run = train(settings)
    for k in ema:
        torch.testing.assert_close(run.weights("ema")[k].double(), ema[k])
        torch.testing.assert_close(run.weights("swa")[k].double(), (ends[0][k] + ends[1][k]) / 2)
    assert len(ends) == 2


def test_an_even_average_of_every_step_counts_those_after_its_start(tmp_path: Path) -> None:
    settings = config(tmp_path, model="training_runs:plain", method="none", swa=0.45, swa_every="step")
    late: list[dict[str, Tensor]] = []

    def follow(model: nn.Module, number: int) -> None:
        if number > 4.5:  # of ten
            late.append({k: w.double() for k, w in model.state_dict().items()})

    by_hand(settings, plain_step, follow)
    run = train(settings)
    assert len(late) == 6
    for k in late[0]:
        torch.testing.assert_close(run.weights("swa")[k].double(), torch.stack([w[k] for w in late]).mean(0))


def test_swa_begins_at_its_setting(tmp_path: Path) -> None:
    run = train(config(tmp_path, epochs=4, swa=0.5))
    assert ["swa_test_accuracy" in r for r in run.records] == [False, False, True, True]


def test_batch_norm_statistics_of_an_even_average_are_its_own(tmp_path: Path) -> None:
    """Estimated on the training rows: the mean over batches of what the averaged first layer gives."""
    run = train(config(tmp_path, swa=0.0, model="training_runs:normalised"))
    weights, data = run.weights("swa"), run.data()
    outputs = (data.train.inputs @ weights["0.weight"].T + weights["0.bias"]).split(run.config.batch_size)
    torch.testing.assert_close(weights["1.running_mean"], torch.stack([o.mean(0) for o in outputs]).mean(0))
    torch.testing.assert_close(weights["1.running_var"], torch.stack([o.var(0) for o in outputs]).mean(0))
    assert not torch.equal(weights["1.running_mean"], run.weights()["1.running_mean"])


def test_averages_and_their_evaluation_do_not_touch_the_run(tmp_path: Path) -> None:
    with_averages, without = train(config(tmp_path / "a", ema=0.9, swa=0.0)), train(config(tmp_path / "b"))
    torch.testing.assert_close(with_averages.weights(), without.weights(), rtol=0, atol=0)
    for a, b in zip(timeless(with_averages.records), timeless(without.records), strict=True):
        assert {k: a[k] for k in b} == b


def test_records_say_what_the_model_does(tmp_path: Path) -> None:
    run = train(config(tmp_path, method="none", validation=0.2, batch_size=16, ema=0.5, label_smoothing=0.1))
    data, last = run.data(), run.result
    assert len(data.validation or []) == 20
    for which, prefix in (("last", ""), ("ema", "ema_")):
        for part, rows in (("test", data.test), ("validation", data.validation)):
            assert rows is not None
            with torch.no_grad():
                logits = run.model(which)(rows.inputs).double()  # type: ignore[arg-type]
            loss = (logits.logsumexp(1) - logits.gather(1, rows.targets[:, None]).squeeze(1)).mean()
            right = sum(int(a) == int(b) for a, b in zip(logits.argmax(1), rows.targets, strict=True))
            assert last[f"{prefix}{part}_loss"] == pytest.approx(float(loss), rel=1e-5)  # without smoothing
            assert last[f"{prefix}{part}_accuracy"] == right / len(rows)
            correct = unpacked_bits(last[f"{prefix}{part}_correct"])
            assert correct.tolist() == (logits.argmax(1) == rows.targets).tolist()
    assert not any(name.endswith("_correct") for name in run.records[0])  # at the end only
    assert last["epoch"] == 2
    assert last["step"] == STEPS
    assert last["lr"] == pytest.approx(0.1 * (1 + cos(pi * 0.9)) / 2)
    assert last["images_per_second"] == pytest.approx(80 / last["seconds"])


def test_training_loss_and_accuracy_are_of_the_weights_before_each_step(tmp_path: Path) -> None:
    settings = config(tmp_path, model="training_runs:plain", method="sam", rho=0.1)
    losses: list[float] = []
    right: list[float] = []

    def step(model: nn.Module, x: Tensor, y: Tensor) -> None:
        with torch.no_grad():
            losses.append(float(f.cross_entropy(model(x), y)))
            right.append(float((model(x).argmax(1) == y).float().mean()))
        sam_step(model, x, y)

    by_hand(settings, step)
    found = train(settings).records
    assert [r["train_loss"] for r in found] == pytest.approx([sum(losses[:5]) / 5, sum(losses[5:]) / 5], rel=1e-5)
    assert [r["train_accuracy"] for r in found] == pytest.approx([sum(right[:5]) / 5, sum(right[5:]) / 5])


@pytest.mark.parametrize("method", ["m-sam", "sharpbalance", "agnostic-sam", "ssam-f", "msam", "esam", "sa-sam"])
def test_every_row_is_counted_once(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also by methods that look at parts of a batch, at single rows, or never at the weights themselves."""
    counted: list[float] = []
    ended = loop.Training._end_epoch

    def look(self: loop.Training) -> None:
        counted.append(float(self.state.sums.totals[2]))
        ended(self)

    monkeypatch.setattr(loop.Training, "_end_epoch", look)
    run = train(config(tmp_path, method=method, model="training_runs:plain"))
    assert counted == [100.0, 100.0]
    options = {"every": 5} if method == "ssam-f" else {}
    passes = sum(steppe.METHODS[method].passes_at(step, **options) for step in range(STEPS))
    assert sum(r["passes"] for r in run.records) == passes


def test_a_method_that_sets_the_learning_rate_is_left_alone(tmp_path: Path) -> None:
    settings = config(tmp_path, method="sa-sgd", model="training_runs:plain", weight_decay=0.0, lr=0.1)
    run = train(settings)
    model = model_of(settings, (2,), 2)
    opt = steppe.build("sa-sgd", torch.optim.SGD(model.parameters(), lr=0.1))
    feed = BatchStream(data_of(settings).train, 20, 0)
    for epoch in range(2):
        for x, y in feed.epoch(epoch):
            for pass_ in opt.passes():
                pass_.backward(f.cross_entropy(model(x), y))
            opt.step()
    assert run.result["lr"] == pytest.approx(opt.param_groups[0]["lr"], rel=1e-5)
    assert_close(run, model)


@pytest.mark.parametrize("method", ["sa-sam", "sa-sgd"])
def test_step_sizes_from_differences_of_gradients_need_float32(method: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set precision to float32"):
        config(tmp_path, method=method, precision="bf16")


def test_numbers_as_targets(tmp_path: Path) -> None:
    run = train(config(tmp_path, data="teacher-student", lr=0.01))
    test = run.data().test
    with torch.no_grad():
        error = (run.model()(test.inputs).flatten() - test.targets.flatten()).square().mean()
    assert run.result["test_loss"] == pytest.approx(float(error), rel=1e-5)
    assert not [k for k in run.result if "accuracy" in k]
    with pytest.raises(ValueError, match="label_smoothing"):
        train(config(tmp_path / "b", data="teacher-student", label_smoothing=0.1))


def test_bf16_is_of_the_passes_and_not_of_the_weights(tmp_path: Path) -> None:
    seen: set[torch.dtype] = set()
    made = model_of

    def watched(*args: Any) -> nn.Module:
        model = made(*args)
        model.register_forward_hook(lambda m, x, out: seen.add(out.dtype))
        return model

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "model_of", watched)
        run = train(config(tmp_path, precision="bf16"))
    assert seen == {torch.bfloat16}
    assert {w.dtype for w in run.weights().values()} == {torch.float32, torch.int64}
    exact = train(config(tmp_path / "b"))
    assert run.result["test_loss"] == pytest.approx(exact.result["test_loss"], rel=0.05)
    assert run.result["test_loss"] != exact.result["test_loss"]


def test_a_number_of_steps_instead_of_epochs(tmp_path: Path) -> None:
    run = train(config(tmp_path, steps=7, epochs=1))
    assert [(r["epoch"], r["step"], r["passes"]) for r in run.records] == [(1, 5, 10), (2, 7, 4)]


def test_evaluations_come_every_so_often_and_at_the_end(tmp_path: Path) -> None:
    run = train(config(tmp_path, epochs=5, evaluate_every=2))
    assert ["test_loss" in r for r in run.records] == [False, True, False, True, True]


# What methods are fed


def supply(settings: Config, rank: int = 0, world: int = 1) -> BatchSource:
    splits = data_of(settings)

    class Two:
        pass

    workers: Any = Workers()
    if world > 1:
        workers = Two()
        workers.rank, workers.count = rank, world
    return BatchSource.of(settings, splits, task_of(splits), workers)


def keys(x: Tensor) -> list[bytes]:
    return [row.numpy().tobytes() for row in x]


def test_held_out_rows_are_in_no_batch_and_come_in_turn(tmp_path: Path) -> None:
    settings = config(tmp_path, held_out=0.35, method="agnostic-sam", batch_size=15)
    data, fed = data_of(settings), supply(settings)
    assert data.held_out is not None
    held = [b.held_out for b in fed.epoch(0, 0)] + [b.held_out for b in fed.epoch(1, 0)]
    taken = [keys(h[0]) for h in held if h is not None]
    assert {k for t in taken for k in t} == set(keys(data.held_out.inputs))
    assert len({k for t in taken[:2] for k in t}) == 30  # an epoch of two batches deals out every row once
    assert taken[:4] != taken[4:]  # the next epoch of four steps goes on where this one ended
    trained = {k for b in fed.epoch(0, 0) for k in keys(b.rows[0])}
    assert not trained & set(keys(data.held_out.inputs))
    later = next(b.held_out for b in fed.epoch(1, 2))
    assert later is not None
    assert keys(later[0]) == taken[len(fed.feed) + 2]


def test_a_method_that_needs_held_out_rows_raises_without_them(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="set held_out"):
        train(config(tmp_path, method="agnostic-sam", method_options={"share": None}))


def test_held_out_rows_are_what_agnostic_sam_descends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With rows set aside the batch is not split, unless somebody asks for it."""
    passes: list[tuple[bool, int]] = []
    rows = Pass.rows

    def noted(self: Pass, *tensors: Tensor) -> Any:
        found = rows(self, *tensors)
        passes.append((self.held_out, len(found[0])))
        return found

    monkeypatch.setattr(Pass, "rows", noted)
    settings = config(tmp_path / "a", held_out=0.3, method="agnostic-sam", batch_size=14, steps=1)
    train(settings)
    assert passes == [(False, 14), (True, 14), (True, 14), (False, 14)]
    passes.clear()
    train(replace(settings, out=str(tmp_path / "b"), method_options={"share": 0.5}))
    assert passes == [(False, 7)] * 4


@pytest.mark.parametrize("world", [1, 2])
def test_a_mask_follows_its_rows(world: int, tmp_path: Path) -> None:
    chosen = np.arange(0, 100, 3)
    np.save(tmp_path / "rows.npy", chosen)
    settings = config(tmp_path, method="sharpbalance", sharp_rows=str(tmp_path / "rows.npy"))
    train_rows = data_of(settings).train.inputs
    sharp = {k for i, k in enumerate(keys(train_rows)) if i % 3 == 0}
    seen = 0
    for rank in range(world):
        for epoch in range(2):
            for batch in supply(settings, rank, world).epoch(epoch, start=1):
                assert batch.sharp is not None
                assert [k in sharp for k in keys(batch.rows[0])] == batch.sharp.tolist()
                seen += int(batch.sharp.sum())
    assert 0 < seen < 2 * 4 * 20


def test_sharp_rows_are_half_of_them_by_themselves(tmp_path: Path) -> None:
    flags = torch.cat([b.sharp for b in supply(config(tmp_path, method="sharpbalance")).epoch(0, 0)])  # type: ignore[misc]
    assert int(flags.sum()) == 50


@pytest.mark.parametrize("rows", [np.array([0, 100]), np.array([0.5]), np.array([[1]]), np.array([], dtype=np.int64)])
def test_sharp_rows_that_do_not_exist(rows: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows)
    with pytest.raises(ValueError, match="from 0 to 99 is wanted"):
        supply(config(tmp_path, method="sharpbalance", sharp_rows=str(tmp_path / "rows.npy")))


def test_wrong_labels_are_the_training_rows_alone(tmp_path: Path) -> None:
    settings = config(tmp_path, label_noise=0.3)
    clean, noisy = data_of(replace(settings, label_noise=0.0)), data_of(settings)
    assert int((clean.train.targets != noisy.train.targets).sum()) == 30
    assert torch.equal(clean.test.targets, noisy.test.targets)


# Measures, corruptions, failures


def test_measures_are_those_of_the_model_at_that_time(tmp_path: Path) -> None:
    names = ["loss", "lambda_max", "worst_l2@0.1"]
    run = train(config(tmp_path, epochs=3, measures=names, measure_every=2, measure_rows=50))
    assert ["measures" in r for r in run.records] == [False, True, True]
    found = steppe.measures.run.measure_objective(
        run.objective(), steppe.measures.registry.resolve_measures(names), progress=False
    )
    for name in names:
        kept = run.result["measures"][name]
        assert kept["value"] == pytest.approx(found[name].value, rel=1e-4)
        assert kept.keys() >= {"value", "stderr", "n", "kind"}
    x, y = run.objective().batches[0]
    assert len(x) == 50
    loss = f.cross_entropy(run.model()(x), y)
    assert run.result["measures"]["loss"]["value"] == pytest.approx(float(loss.detach()), rel=1e-5)


def test_measuring_does_not_touch_the_run(tmp_path: Path) -> None:
    with_measures = train(config(tmp_path / "a", measures=["trace"], measure_every=1, measure_rows=32))
    without = train(config(tmp_path / "b"))
    cleared = [{k: v for k, v in r.items() if k != "measures"} for r in timeless(with_measures.records)]
    assert cleared == timeless(without.records)
    torch.testing.assert_close(with_measures.weights(), without.weights(), rtol=0, atol=0)


def test_a_measure_that_fails_is_in_the_record_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hopeless:
        def running(self, objective: Any, seed: int) -> Any:
            raise ArithmeticError("there is no such number")

    registered(monkeypatch, "hopeless", Hopeless())
    run = train(config(tmp_path, measures=["hopeless", "loss"], measure_rows=32))
    assert run.result["measures"]["hopeless"] == {"failed": "there is no such number"}
    assert run.result["measures"]["loss"]["value"] > 0


def test_half_a_measurement_is_in_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second Ctrl-C stops measures in the middle, and the run before them."""

    class Interrupted:
        def running(self, objective: Any, seed: int) -> Any:
            raise KeyboardInterrupt

    registered(monkeypatch, "slow", Interrupted())
    with pytest.raises(KeyboardInterrupt):
        train(config(tmp_path, measures=["slow"], measure_every=1))
    assert open_run(tmp_path).records == []


def test_corrupted_test_rows(tmp_path: Path) -> None:
    from steppe.data.corruptions import corrupted

    settings = config(
        tmp_path / "run", data="digits", corruptions=["brightness", "gaussian_noise"], severities=[1, 5],
        data_root=str(tmp_path), epochs=1, fraction=0.2,
    )  # fmt: skip
    run = train(settings)
    found = run.result["corrupted"]
    assert {k: len(v) for k, v in found.items()} == {"brightness": 2, "gaussian_noise": 2}
    assert run.result["corrupted_source"] == "remade"
    assert run.result["corrupted_accuracy"] == pytest.approx(np.mean([*found["brightness"], *found["gaussian_noise"]]))
    rows = corrupted(run.data().test, "gaussian_noise", 5)
    with torch.no_grad():
        right = run.model()(run.task.standard(rows.inputs)).argmax(1) == rows.targets
    assert found["gaussian_noise"][1] == pytest.approx(float(right.float().mean()))


@pytest.mark.parametrize("when", ["raise", "late"])
def test_a_run_that_is_no_longer_finite_ends_and_keeps_what_it_has(when: str, tmp_path: Path) -> None:
    settings = config(tmp_path, model="training_runs:broken", on_nonfinite=when, epochs=5, checkpoint_every=0.0)
    for _ in range(2):  # a second start comes to the same end
        with pytest.raises(FloatingPointError, match=r"not finite.*same command would fail again"):
            train(settings)
    run = open_run(tmp_path)
    assert 0 < run.position.step + 5 * run.position.epoch < 25
    assert all(w.isfinite().all() for w in run.weights().values())
    assert len(run.records) == run.position.epoch


def test_steps_that_are_not_finite_can_be_skipped(tmp_path: Path) -> None:
    """A skipped step is counted as such, and nothing of it is in the sums, the weights or their averages."""
    settings = config(tmp_path / "a", model="training_runs:moody", on_nonfinite="skip", ema=0.5, epochs=4)
    run = train(settings)
    assert 0 < sum(r["skipped"] for r in run.records) < 20
    assert all(w.isfinite().all() for which in ("last", "ema") for w in run.weights(which).values())  # type: ignore[arg-type]
    assert all(0 < r["train_loss"] < 10 for r in run.records)
    settings = replace(settings, out=str(tmp_path / "b"))
    for step in range(1, 20, 3):
        stopped(settings, step)
    assert_same_end(train(settings), run)


def test_weights_by_a_name_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no kind of weights 'ema'"):
        train(config(tmp_path, epochs=1)).model("ema")


def test_a_folder_is_named_after_what_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(replace(config(""), out=None, epochs=1))
    assert run.path == Path("runs/spirals-training_runs_small-sam-0")
    assert open_run(run.path).finished
