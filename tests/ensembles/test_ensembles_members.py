"""Ensembles in training: what members do, what they tell one another, and that interruptions change nothing."""

from __future__ import annotations

import os
import random
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import Tensor
from torch.nn.functional import cross_entropy
from training_runs import assert_same_end, config, timeless

import steppe
from steppe._util import files
from steppe._util.digests import read_array, save_array
from steppe.core.draw import permutation
from steppe.ensembles import STRATEGIES, Ensemble, Trained, members_of, open_ensemble, sharp_sets, train_ensemble
from steppe.ensembles.members import _about
from steppe.training import Config, Stopped, loop, open_run, train
from steppe.training.model import model_of
from steppe.training.problem import data_of, task_of

PLAIN = "training_runs:plain"  # without BatchNorm and dropout


def trained(out: Path, how: str = "sequence", settings: dict[str, Any] | None = None, **changes: Any) -> Trained:
    """Three epochs of five steps; members tell one another scores after the first."""
    asked: dict[str, Any] = {"members": 3, "exchange_at": 1, "how": how} | (settings or {})
    if changes.get("method", "sam") == "sam":  # a radius with which every part of a batch has two rows, for BatchNorm
        changes = {"rho": 0.05} | changes
    return train_ensemble(config(out, **({"epochs": 3} | changes)), Ensemble(**asked))


def assert_same_members(a: Trained, b: Trained) -> None:
    for mine, theirs in zip(a.runs, b.runs, strict=True):
        assert_same_end(mine, theirs)


def scores(run: Any, epoch: int = 1) -> np.ndarray:
    return np.load(run.path / f"scores-{epoch}.npy")


def sharp(run: Any, epoch: int = 1) -> list[int]:
    return np.load(run.path / f"sharp-{epoch}.npy").tolist()


def by_hand(member: Config, others: list[np.ndarray], at: int, share: float) -> tuple[dict[str, Tensor], np.ndarray]:
    """A member's weights at the end and its scores after `at` epochs, with plain autograd: SGD without momentum."""
    splits = data_of(member)
    task = task_of(splits)
    x, y = task.standard(splits.train.inputs), splits.train.targets
    model = model_of(member, task.shape, task.outputs)
    params, n, lr, rho = list(model.parameters()), len(y), member.lr, member.rho or 0.0

    def gradient(rows: Tensor) -> list[Tensor]:
        return list(torch.autograd.grad(cross_entropy(model(x[rows]), y[rows]), params))

    def sam(rows: Tensor) -> list[Tensor]:
        here = gradient(rows)
        length = torch.stack([g.norm() for g in here]).norm()
        before = [p.detach().clone() for p in params]
        with torch.no_grad():
            for p, g in zip(params, here, strict=True):
                p += rho * g / length
        there = gradient(rows)
        with torch.no_grad():
            for p, b in zip(params, before, strict=True):
                p.copy_(b)
        return there

    told = np.zeros(0)
    chosen = torch.ones(n, dtype=torch.bool)
    for epoch in range(member.epochs):
        if epoch == at:
            told = np.array([sum(float(g.square().sum()) for g in gradient(torch.tensor([j]))) for j in range(n)])
            best = {j for one in others for j in sorted(range(n), key=lambda j: -one[j])[: int(share * n)]}
            chosen = torch.tensor([j in best for j in range(n)])
        order = permutation(n, member.seed, 0, epoch)
        for k in range(n // member.batch_size):
            batch = order[k * member.batch_size : (k + 1) * member.batch_size]
            steep, flat = batch[chosen[batch]], batch[~chosen[batch]]
            parts = [(len(rows) / len(batch), way(rows)) for rows, way in ((steep, sam), (flat, gradient)) if len(rows)]
            with torch.no_grad():
                for i, p in enumerate(params):
                    p -= lr * sum(weight * grads[i] for weight, grads in parts)
    return {k: t.detach() for k, t in model.state_dict().items()}, told


def test_sharpbalance_by_hand(folder: Path) -> None:
    """SAM on all rows, then Fisher traces, then SAM on what is sharpest for the others and plain steps on the rest."""
    simple: dict[str, Any] = {"model": PLAIN, "schedule": "constant", "momentum": 0.0, "weight_decay": 0.0}
    found = trained(folder, settings={"share": 0.3}, method="sam", rho=0.3, lr=0.5, **simple)
    told = [scores(run) for run in found.runs]
    for i, run in enumerate(found.runs):
        weights, mine = by_hand(run.config, [t for j, t in enumerate(told) if j != i], 1, 0.3)
        assert told[i] == pytest.approx(mine, rel=1e-4)
        for name, t in run.weights().items():
            assert t.numpy() == pytest.approx(weights[name].numpy(), abs=2e-5), name
        assert 30 <= len(sharp(run)) <= 60


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as found:
        yield Path(found)


def in_memory() -> Any:
    """In memory where that is possible: these tests wait for a disk thousands of times."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None)


@pytest.fixture(scope="module")
def whole() -> Iterator[Trained]:
    with in_memory() as found:
        yield trained(Path(found), settings={"exchange_every": 1}, method="sam", momentum=0.9)


def test_members_are_runs_with_seeds_of_their_own_and_the_same_rows(whole: Trained) -> None:
    assert [run.config.seed for run in whole.runs] == [0, 1, 2]
    assert len({run.about["data"] for run in whole.runs}) == 1
    assert all(len(run.records) == 3 for run in whole.runs)
    first, second = (run.weights() for run in whole.runs[:2])
    assert not all(torch.equal(first[k], second[k]) for k in first)


def test_sharp_rows_come_from_the_scores_of_the_others(whole: Trained) -> None:
    for epoch in (1, 2):
        told = np.stack([scores(run, epoch) for run in whole.runs])
        assert (told > 0).all()
        for run, flags in zip(whole.runs, sharp_sets(told), strict=True):
            assert sharp(run, epoch) == np.flatnonzero(flags).tolist()
    assert sharp(whole.runs[0], 1) != sharp(whole.runs[0], 2)
    assert not (whole.runs[0].path / "scores-3.npy").exists()


def test_the_first_epochs_are_those_of_the_method_bitwise(whole: Trained, folder: Path) -> None:
    """And the later ones are not."""
    for run in whole.runs:
        alone = train(replace(run.config, sharp_rows=None, out=str(folder / run.path.name)))
        mine, theirs = timeless(run.records), timeless(alone.records)
        assert mine[0] == theirs[0]
        assert mine[2] != theirs[2]


def test_scores_are_of_unchanged_rows_in_evaluation_mode(folder: Path) -> None:
    """Dropout, BatchNorm's statistics, crops and label smoothing have no part in them; wrong labels have."""
    changes: dict[str, Any] = {"data": "digits", "model": "test_ensembles_members:convolution", "augment": ["crop"]}
    changes |= {"label_noise": 0.2, "label_smoothing": 0.1, "lr": 0.05, "fraction": 0.04, "batch_size": 12}
    found = trained(folder, settings={"members": 2}, **changes, epochs=2)
    run = found.runs[1]
    stopped = train(replace(run.config, out=str(folder / "stopped")), until=1)
    assert stopped.position.epoch == 1
    model, rows = stopped.model(), stopped.data().train
    x, y = stopped.task.standard(rows.inputs), rows.targets
    assert int((y != data_of(replace(run.config, label_noise=0.0)).train.targets).sum()) > 3
    for j, score in enumerate(scores(run)):
        grads = torch.autograd.grad(cross_entropy(model(x[j : j + 1]), y[j : j + 1]), list(model.parameters()))
        assert score == pytest.approx(sum(float(g.square().sum()) for g in grads), rel=1e-3)


def convolution(shape: tuple[int, ...], outputs: int) -> torch.nn.Module:
    nn = torch.nn
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(144, outputs)
    )


class Crash(BaseException):
    pass


def test_a_crash_at_every_write_changes_nothing(whole: Trained, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The 2k-th start dies at its k-th file: ensemble.yaml, run.yaml, checkpoints, scores, sharp rows."""
    real, died, calls = files.replace, set(), 0

    def deadly(path: Path, content: bytes) -> None:
        nonlocal calls
        calls -= not path.name.endswith(".holder")  # a lock's, which every start writes
        if not calls:
            died.add(path.name)
            raise Crash
        real(path, content)

    monkeypatch.setattr(files, "replace", deadly)
    for start in range(1, 200):
        calls = (start + 1) // 2
        try:
            found = trained(folder, settings={"exchange_every": 1}, method="sam", momentum=0.9)
            break
        except Crash:
            pass
    assert start > 12
    assert {"ensemble.yaml", "run.yaml", "checkpoint.safetensors", "scores-1.npy", "sharp-1.npy", "sharp-2.npy"} <= died
    assert_same_members(found, whole)


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_the_same_call_goes_on(sent: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    straight = trained(folder / "straight", model=PLAIN)
    taken = loop.Training._begin_step

    def with_signal(self: loop.Training) -> int:
        if self.timeline.taken(self.position) == 7 and self.config.seed == 1:
            os.kill(os.getpid(), sent)
        return taken(self)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Training, "_begin_step", with_signal)
        with pytest.raises(Stopped):
            trained(folder / "stopped", model=PLAIN)
    halfway = open_ensemble(folder / "stopped")
    assert not any(run.finished for run in halfway.runs[1:])
    assert halfway.runs[1].position.step == 3
    assert_same_members(trained(folder / "stopped", model=PLAIN), straight)


def test_ways_that_there_are_not() -> None:
    with pytest.raises(ValueError, match=r"how is 'sequenc', and has to be one of sequence, processes"):
        Ensemble(how="sequenc")  # type: ignore[arg-type]


def test_strategies(folder: Path) -> None:
    """What every strategy changes, and nothing else."""
    base = config(folder, method="asam", rho=0.3, epochs=10, seed=7, label_noise=0.1)
    made = {name: members_of(base, Ensemble(strategy=name)) for name in STRATEGIES}
    same = {"data_seed": 7, "corruptions": []}
    for name, members in made.items():
        assert [m.seed for m in members] == [7000, 7001, 7002]
        assert [Path(str(m.out)).name for m in members] == ["member-0", "member-1", "member-2"]
        for i, m in enumerate(members):
            changes: dict[str, dict[str, Any]] = {
                "deep": {"method": "none", "rho": None},
                "deep+sam": {},
                "sam+": {"rho": [0.05, 0.1, 0.2][i]},
                "sharpbalance": {"sharp_rows": "exchanged@5"},
                "eoa": {"method": "none", "rho": None, "swa": 0.75, "swa_every": "step"},
            }
            assert m == replace(base, seed=m.seed, out=m.out, **same, **changes[name])
    assert len({str(data_of(m).train.targets.tolist()) for m in made["deep"]}) == 1
    again = members_of(base, Ensemble(exchange_at=3, exchange_every=2))
    assert again[0].sharp_rows == "exchanged@3+2"


def test_averages_predict_in_an_ensemble_of_averages(folder: Path) -> None:
    found = trained(folder / "a", settings={"strategy": "eoa"}, epochs=4)
    assert found.weights == "swa"
    assert all(run.records[-1]["swa_test_accuracy"] is not None for run in found.runs)
    assert trained(folder / "b", settings={"strategy": "eoa"}, epochs=2, ema=0.9).weights == "ema"


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", sorted(set(steppe.METHODS) - {"none"}))
def test_any_method_takes_the_place_of_sam(method: str, folder: Path) -> None:
    changes: dict[str, Any] = {"method": method, "model": PLAIN, "epochs": 2, "lr": 0.05, "batch_size": 50}
    if method == "frob-sam":
        changes["method_options"] = {"n": 2}
    if method == "wsam":  # decoupled, it moves weights besides its gradient, and parts of a batch are averaged
        changes["method_options"] = {"decouple": False}
    found = trained(folder, settings={"members": 2, "share": 0.7}, **changes)
    assert all(run.finished for run in found.runs)
    assert len(sharp(found.runs[0])) == 70


@pytest.mark.parametrize(
    ("settings", "changes", "said"),
    [
        ({"strategy": "sharpbalnce"}, {}, "Did you mean 'sharpbalance'"),
        ({"members": 1}, {}, "2 members or more"),
        ({"exchange_at": 3}, {}, "after epoch 3, and the run has 3"),
        ({}, {"method": "none"}, "needs a method"),
        ({"strategy": "sam+", "members": 2}, {}, "2 members and 3 member_radii"),
        ({"share": 0.0}, {}, "more than 0"),
        ({"members": 0}, {}, "1 or more"),
        ({"strategy": "deep"}, {"data": "quadratic"}, "there is no data set"),
    ],
)
def test_what_is_refused_before_anything_is_made(settings: Any, changes: Any, said: str, folder: Path) -> None:
    with pytest.raises(ValueError, match=said):
        trained(folder / "none", settings=settings, **changes)
    assert not (folder / "none").exists()


def test_other_settings_are_refused_in_the_same_folder(whole: Trained) -> None:
    """Those of the selection too, which no member's configuration has."""
    again: dict[str, Any] = {"exchange_every": 1}
    with pytest.raises(ValueError, match=r"share was 0\.5 and is now 0\.4"):
        trained(whole.path, settings=again | {"share": 0.4}, method="sam", momentum=0.9)
    with pytest.raises(ValueError, match=r"lr was 0\.1 and is now 0\.2"):
        trained(whole.path, settings=again, method="sam", momentum=0.9, lr=0.2)
    said = yaml.safe_load((whole.path / "ensemble.yaml").read_text())
    assert said["ensemble"]["strategy"] == "sharpbalance"
    assert_same_members(open_ensemble(whole.path), whole)


def test_a_member_by_itself_does_not_go_beyond_an_exchange(folder: Path) -> None:
    alone = members_of(config(folder, epochs=3), Ensemble(exchange_at=1))[0]
    with pytest.raises(FileNotFoundError, match=r"sharp-1\.npy does not exist: from epoch 2 on"):
        train(alone)
    assert open_run(str(alone.out)).position.epoch == 1


def test_scores_that_were_lost_are_asked_for(folder: Path) -> None:
    trained(folder, settings={"exchange_at": 1}, epochs=2)
    for name in ("scores-1.npy", "sharp-1.npy"):
        (folder / "member-1" / name).unlink()
    with pytest.raises(FileNotFoundError, match=r"scores-1\.npy is missing, and the run is at"):
        trained(folder, settings={"exchange_at": 1}, epochs=2)


def test_no_ensemble_here(folder: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no ensemble's folder"):
        open_ensemble(folder)
    (folder / "ensemble.yaml").write_text("ensemble: {member: 3}\nconfig: {}\n")
    with pytest.raises(ValueError, match="Did you mean 'members'"):
        open_ensemble(folder)


@pytest.mark.parametrize("name", ["member-0/scores-1.npy", "member-1/sharp-1.npy", "ensemble.yaml"])
def test_a_flipped_bit_in_what_members_tell_one_another_is_refused_by_name(
    name: str, whole: Trained, folder: Path
) -> None:
    draws, content = random.Random(name), (whole.path / name).read_bytes()
    path = folder / name
    path.parent.mkdir(exist_ok=True)

    def read(file: Path) -> Any:
        if file.suffix == ".yaml":
            return _about(file.parent)
        return read_array(file).tolist()

    refused, expected = 0, read(whole.path / name)
    for _ in range(200):
        at, bit = draws.randrange(len(content)), draws.randrange(8)
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
        trouble, found = None, None
        try:
            found = read(path)
        except ValueError as error:
            trouble, refused = error, refused + 1
        if trouble is not None:
            assert path.name in str(trouble), f"bit {bit} of byte {at}: {trouble}"
        else:
            assert found == expected
    assert refused > 100
    for at in range(len(content) - 33, len(content)) if path.suffix == ".npy" else ():  # the digest and its mark
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(ValueError, match=rf"{path.name} is damaged"):
            read_array(path)
    assert len(np.load(whole.path / "member-1/sharp-1.npy"))  # a plain file for other tools


def test_numbers_of_users_need_no_digest(tmp_path: Path) -> None:
    """As `sharp_rows` of a single run takes them."""
    path = tmp_path / "rows.npy"
    np.save(path, np.arange(50))
    assert read_array(path, others=True).tolist() == list(range(50))
    with pytest.raises(ValueError, match=r"rows\.npy is damaged"):
        read_array(path)
    save_array(path, np.arange(50))
    assert read_array(path, others=True).tolist() == list(range(50))
    content = bytearray(path.read_bytes())
    content[-33] ^= 1  # the mark before the digest
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"rows\.npy is damaged"):
        read_array(path, others=True)
