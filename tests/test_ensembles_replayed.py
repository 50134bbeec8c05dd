"""Passes of stacked members that are recorded and replayed move the members as passes that are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from again import Again
from test_ensembles_members import PLAIN, in_memory, trained
from torch import Tensor, nn
from training_runs import config, timeless

from steppe.ensembles import Ensemble, open_ensemble, pass_of_all, stacked
from steppe.ensembles.counts import Counts, counted
from steppe.ensembles.padding import padded
from steppe.ensembles.pass_of_all import PassOfAll, side_by_side
from steppe.ensembles.stacked import stacked as all_at_once
from steppe.ensembles.together import Together
from steppe.measures.workers import Workers
from steppe.replays import EAGER, Replays
from steppe.training import Run, open_run, train
from steppe.training.loop import Training
from steppe.training.losses import CrossEntropy, Loss, SquaredError
from steppe.training.problem import data_of, model_of, task_of
from steppe.training.sums import Sums

CUDA = torch.cuda.is_available()
PLACE: dict[str, Any] = {"device": "cuda", "capture": True} if CUDA else {"device": "cpu"}
HERE = "test_ensembles_replayed"
CONVOLUTIONS = f"{HERE}:convolutions"


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as found:
        yield Path(found)


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Replays]:
    """What records and replays the passes of all that is stacked from now on, one each time that members set out."""
    made: list[Replays] = []

    def replayed(trainings: Any) -> Together:
        made.append(Replays() if CUDA else Replays(Again()))
        return Together(trainings, made[-1])

    monkeypatch.setattr(stacked, "Together", replayed)
    return made


def assert_recorded(replays: list[Replays], times: int = 1) -> None:
    assert [r.why for r in replays] == [None] * times
    assert [len(r._recordings) for r in replays] == [1] * times


def convolutions(shape: tuple[int, ...], outputs: int) -> nn.Module:
    conv = nn.Conv2d(1, 3, (1, 2), padding=1)
    return nn.Sequential(nn.Unflatten(1, (1, 1, 2)), conv, nn.ReLU(), nn.Flatten(), nn.Linear(27, outputs))


class Cubed(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


def fragile(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A large radius blows it up, and not at once."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 8), Cubed(), nn.Linear(8, outputs))


def assert_alike(one: Run, other: Run, bitwise: bool = not CUDA) -> None:
    """Bitwise on the CPU; what is counted is added up in another order."""
    mine, theirs = one.weights(), other.weights()
    assert mine.keys() == theirs.keys()
    for name in mine:
        if bitwise:
            assert torch.equal(mine[name], theirs[name]), name
        else:
            assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=3e-5), name
    assert one.records
    for a, b in zip(timeless(one.records), timeless(other.records), strict=True):
        assert a.pop("train_loss") == pytest.approx(b.pop("train_loss"), rel=1e-12 if bitwise else 1e-4)
        assert a == b or not bitwise


KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain steps": ({"strategy": "deep"}, {"momentum": 0.9, "on_nonfinite": "late"}),
    "a radius each": (
        {"strategy": "sam+", "member_radii": [0.01, 0.5, 2.0]},
        {"method": "sam", "optimizer": "adamw", "lr": 0.02, "augment": ["mixup"]},
    ),
    "several ascents": ({"strategy": "deep+sam"}, {"method": "asam", "method_options": {"steps": 2}, "clip": 0.5}),
    "short parts": ({"strategy": "sharpbalance", "share": 0.2}, {"method": "sam", "rho": 0.5, "label_smoothing": 0.1}),
    "other precision": ({"strategy": "deep+sam"}, {"method": "gsam", "precision": "bf16"}),
    "buffers": ({"strategy": "deep+sam"}, {"method": "sam", "model": "test_ensembles_together:fixed"}),
    "grouped convolutions": ({"strategy": "deep+sam"}, {"method": "sam", "model": CONVOLUTIONS}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_replayed_members_are_those_that_are_not(kind: str, folder: Path, request: pytest.FixtureRequest) -> None:
    settings, changes = KINDS[kind]
    request.getfixturevalue("monkeypatch").setattr(pass_of_all, "side_by_side", lambda model: False)
    asked: dict[str, Any] = {"model": PLAIN, "lr": 0.1} | changes
    eager = trained(folder / "eager", "stacked", settings, **asked, device=PLACE["device"])
    replays = request.getfixturevalue("replays")
    found = trained(folder / "replayed", "stacked", settings, **asked, **PLACE)
    assert_recorded(replays, times=2 if settings["strategy"] == "sharpbalance" else 1)  # an exchange starts anew
    for one, other in zip(eager.runs, found.runs, strict=True):
        assert_alike(one, other)
    if "precision" in changes:  # which is that of the passes
        plain = trained(folder / "plain", "stacked", settings, **asked | {"precision": "float32"})
        assert not any(torch.equal(t, found.runs[0].weights()[k]) for k, t in plain.runs[0].weights().items())


def test_recorded_convolutions_go_beside_one_another(folder: Path, request: pytest.FixtureRequest) -> None:
    """Every member's by itself, not grouped: the same up to rounding, and counted with the pass too."""
    monkeypatch = request.getfixturevalue("monkeypatch")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    asked: dict[str, Any] = {"model": CONVOLUTIONS, "method": "sam", "rho": 0.5, "lr": 0.1}
    settings: dict[str, Any] = {"strategy": "sharpbalance", "share": 0.2, "members": 10 if CUDA else 3}
    eager = trained(folder / "eager", "stacked", settings, **asked, device=PLACE["device"])
    replays = request.getfixturevalue("replays")
    monkeypatch.setattr(PassOfAll, "_stacked", None)
    found = trained(folder / "replayed", "stacked", settings, **asked, **PLACE)
    assert_recorded(replays, times=2)
    for one, other in zip(eager.runs, found.runs, strict=True):
        assert_alike(one, other, bitwise=False)


@pytest.mark.parametrize("model", [PLAIN, CONVOLUTIONS])
def test_models_with_convolutions_are_told_from_others(model: str, tmp_path: Path) -> None:
    asked = config(tmp_path, model=model)
    splits = data_of(asked)
    task = task_of(splits)
    assert side_by_side(model_of(asked, task.shape, task.outputs)) == (model == CONVOLUTIONS)


def test_a_member_that_fails_leaves_the_others_alone(folder: Path, request: pytest.FixtureRequest) -> None:
    """It does so when passes are replayed already, at the step at which it would without."""
    asked: dict[str, Any] = {"strategy": "sam+", "member_radii": [0.05, 5.0, 0.1]}
    changes: dict[str, Any] = {"model": f"{HERE}:fragile", "method": "sam", "lr": 0.1, "schedule": "constant"}
    troubles = []
    for name, place in {"eager": {"device": PLACE["device"]}, "replayed": PLACE}.items():
        if name == "replayed":
            replays = request.getfixturevalue("replays")
        with pytest.raises(
            FloatingPointError, match=r"member-1, epoch \d, step \d: a loss or gradient of step"
        ) as error:
            trained(folder / name, "stacked", asked, **changes, **place)
        troubles.append(str(error.value).replace(str(folder / name), ""))
    assert troubles[0] == troubles[1]
    assert "gradient of step 0 " not in troubles[0]
    assert_recorded(replays)
    eager, found = (open_ensemble(folder / name).runs for name in ("eager", "replayed"))
    assert [run.finished for run in found] == [True, False, True]
    for i in (0, 2):
        assert_alike(eager[i], found[i])


def test_members_that_are_done_or_ahead_stay_where_they_are(folder: Path, request: pytest.FixtureRequest) -> None:
    """One has finished, one is an epoch ahead of the third."""
    ends = []
    for name in ("eager", "replayed"):
        base = config(folder, model=PLAIN, method="sam", optimizer="adam", lr=0.02, epochs=3, device=PLACE["device"])
        configs = [replace(base, seed=i, out=str(folder / name / str(i))) for i in range(3)]
        train(configs[0])
        train(configs[1], until=1)
        done = open_run(str(configs[0].out)).weights()
        if name == "replayed":
            replays = request.getfixturevalue("replays")
        with all_at_once(Ensemble(), False) as reach:
            reach(configs, None)
        runs = [open_run(str(c.out)) for c in configs]
        assert all(run.finished for run in runs)
        assert all(torch.equal(done[k], t) for k, t in runs[0].weights().items())
        ends.append(runs)
    assert_recorded(replays)
    for one, other in zip(*ends, strict=True):
        assert_alike(one, other)


class Unwilling:
    """Records nothing."""

    def rehearsing(self) -> Any:
        raise RuntimeError("no such graph")


def test_passes_that_cannot_be_recorded_are_taken_all_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    eager = trained(folder / "eager", "stacked", {"strategy": "deep"}, model=PLAIN)
    refused: Any = Unwilling()
    monkeypatch.setattr(stacked, "Together", partial(Together, replays=Replays(refused)))
    with pytest.warns(UserWarning, match="passes of stacked members are not recorded: no such graph"):
        found = trained(folder / "found", "stacked", {"strategy": "deep"}, model=PLAIN)
    for one, other in zip(eager.runs, found.runs, strict=True):
        for name, t in one.weights().items():
            assert torch.equal(t, other.weights()[name])


@pytest.mark.parametrize(
    ("loss", "shares"), [(CrossEntropy(0.1), False), (CrossEntropy(), True), (SquaredError(), True)]
)
def test_what_is_counted_for_all_is_what_each_would_count(loss: Loss, shares: bool) -> None:
    """Rows that only fill count nothing, whatever their losses are."""
    torch.manual_seed(0)
    sizes = [5, 2, 4]
    outputs = [torch.randn(n, 3) for n in sizes]
    targets = [torch.rand(n, 3) if shares else torch.randint(0, 3, (n,)) for n in sizes]
    output, y, weights, _ = padded(list(zip(outputs, targets, strict=True)), 5)
    losses = loss(output.flatten(0, 1), y.flatten(0, 1)).view(3, 5)
    losses[1, 2:] = float("inf")
    found = counted(output, losses, y, weights, loss)
    for i in range(3):
        alone, member = (Sums(torch.device("cpu")) for _ in range(2))
        counts = Counts(member)
        for last in (found[i], None):  # as told, and by itself
            counts.last = last
            alone.add(loss(outputs[i], targets[i]), outputs[i], targets[i], loss, 0.5)
            counts.add(loss(outputs[i], targets[i]), outputs[i], targets[i], loss, 0.5)
        torch.testing.assert_close(member.totals, alone.totals, rtol=1e-12, atol=0, equal_nan=True)
        assert counts.read() == pytest.approx(alone.read(), rel=1e-12)


@pytest.mark.parametrize("capture", [False, True])
def test_passes_are_recorded_on_a_gpu_where_a_configuration_says_so(capture: bool, tmp_path: Path) -> None:
    asked = config(tmp_path, model=PLAIN, capture=capture, device=PLACE["device"])
    splits = data_of(asked)
    training = Training(asked, tmp_path, splits, task_of(splits), Workers(), torch.device(PLACE["device"]))
    assert (Together([training]).replays is not None) == (CUDA and capture)


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["plain steps", "a radius each", "short parts"])
def test_no_stacked_step_waits_for_the_gpu(kind: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once passes are recorded, and where what is not finite is looked for late."""
    settings, changes = KINDS[kind]
    real, calls = Together.answer, Counter[int]()

    def quiet(together: Together, members: Any, asked: Any) -> Any:
        calls[id(together)] += 1
        torch.cuda.set_sync_debug_mode("error" if calls[id(together)] > EAGER + 1 else "default")
        try:
            return real(together, members, asked)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(Together, "answer", quiet)
    trained(folder, "stacked", settings, **{"model": PLAIN, "lr": 0.1} | changes | PLACE | {"on_nonfinite": "late"})
    assert max(calls.values()) > EAGER + 1
