"""Members moved together: their vectors against one member's, and whole runs against members by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ensembles_members import PLAIN, assert_same_members, in_memory, trained
from torch import Tensor, nn
from training_runs import config, timeless

import steppe
from steppe.chunk import Chunk
from steppe.ensembles import Ensemble, open_ensemble
from steppe.ensembles.memberwise import Places, Vectors
from steppe.ensembles.shareable import shareable
from steppe.ensembles.stacked import stacked
from steppe.measures.workers import Workers
from steppe.roles import Role
from steppe.training import files, open_run, train
from steppe.training.loop import Training
from steppe.training.problem import data_of, task_of
from steppe.vector import Space, Vector

SHAPES = [(3, 2), (4,), (1,)]
ALGEBRA: dict[str, Any] = {
    "norm": lambda a, b, number: a.norm(),
    "largest": lambda a, b, number: a.norm(float("inf")),
    "sum of sizes": lambda a, b, number: a.norm(1),
    "dot": lambda a, b, number: a.dot(b),
    "sum": lambda a, b, number: a + b,
    "difference": lambda a, b, number: a - b,
    "product": lambda a, b, number: a * b,
    "times a number each": lambda a, b, number: a * b.norm(),
    "in place, times a number each": lambda a, b, number: a.clone().mul_(b.norm()),
    "in place, times a number": lambda a, b, number: a.clone().mul_(number),
    "added": lambda a, b, number: a.clone().add_(b),
    "added, times a number": lambda a, b, number: a.clone().add_(b, number),
    "added, times a number each": lambda a, b, number: a.clone().add_(b, a.dot(b)),
    "signs": lambda a, b, number: a.clone().sign_(),
    "mapped": lambda a, b, number: a.map(torch.abs),
}


@pytest.fixture
def folder() -> Iterator[Path]:
    with in_memory() as found:
        yield Path(found)


@pytest.mark.parametrize("what", sorted(ALGEBRA))
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 10_000), number=st.floats(-2, 2, width=32))
def test_vectors_of_all_members_are_those_of_each(what: str, seed: int, number: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    places = Places([Chunk((i,), 0, Role(), None, torch.Size(s)) for i, s in enumerate(SHAPES)])
    a, b = (torch.randn(4, 11, generator=draws, dtype=torch.float64) for _ in range(2))
    found = ALGEBRA[what](Vectors(places, a), Vectors(places, b), number)
    for i in range(4):
        space = Space([torch.zeros(s, dtype=torch.float64) for s in SHAPES])
        mine, theirs = (space.vector([t[i].clone() for t in places.cut(v)]) for v in (a, b))
        one = ALGEBRA[what](mine, theirs, number)
        if isinstance(one, Vector):
            for x, y in zip(one.tensors, places.cut(found.rows), strict=True):
                torch.testing.assert_close(x, y[i])
        else:
            torch.testing.assert_close(one, found[i])


class Fixed(nn.Module):
    """A frozen weight and a buffer, other ones in every member."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.inner, self.outer = nn.Linear(inputs, 8), nn.Linear(8, outputs)
        self.inner.bias.requires_grad_(False)
        self.register_buffer("scale", 1 + torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(torch.tanh(self.inner(x.flatten(1)) * self.scale))


def fixed(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Fixed(torch.Size(shape).numel(), outputs)


KINDS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("sam+", {"member_radii": [0.01, 0.5, 2.0]}, {"method": "sam", "optimizer": "adam", "lr": 0.02}),
    ("deep+sam", {}, {"method": "gsam", "rho": 0.5}),
    ("deep+sam", {}, {"method": "asam", "rho": 2.0, "method_options": {"steps": 2, "decay_in_ascent": True}}),
    ("deep+sam", {}, {"method": "sam", "rho": 0.1, "method_options": {"p": float("inf")}, "weight_decay": 0.1}),
    ("deep+sam", {}, {"method": "sam", "model": "test_ensembles_together:fixed"}),
    ("sharpbalance", {"share": 0.04}, {"method": "sam", "rho": 0.5}),  # batches without a sharp row
    ("sharpbalance", {"share": 0.9}, {"method": "sam", "rho": 0.5, "optimizer": "adamw", "lr": 0.02}),  # all sharp
]


@pytest.mark.parametrize(("strategy", "ensemble", "base"), KINDS)
def test_members_moved_together_are_those_by_themselves(
    strategy: str,
    ensemble: dict[str, Any],
    base: dict[str, Any],
    folder: Path,
) -> None:
    """Whatever the method, the radii, the base optimizer, and the share of sharp rows in a batch."""
    base = {"model": PLAIN, "momentum": 0.9, "lr": 0.1} | base
    ways = {
        how: trained(folder / how, how, {"strategy": strategy} | ensemble, **base) for how in ("sequence", "stacked")
    }
    for one, other in zip(ways["sequence"].runs, ways["stacked"].runs, strict=True):
        mine, theirs = one.weights(), other.weights()
        for name in mine:
            assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=3e-5), name
        for a, b in zip(timeless(one.records), timeless(other.records), strict=True):
            assert a.keys() == b.keys()
            assert a["train_loss"] == pytest.approx(b["train_loss"], rel=1e-4)
            assert a["passes"] == b["passes"]


def test_runs_of_several_kinds_are_stacked_too(folder: Path) -> None:
    """As cells of a study are: those alike are moved together, the others keep methods, rates and batches apart."""
    kinds: list[dict[str, Any]] = [
        {"method": "sam", "batch_size": 10},
        {"method": "none", "lr": 0.2},
        {"method": "sam", "batch_size": 10, "rho": 0.5, "seed": 1},
        {"method": "none", "lr": 0.2, "seed": 3},
        {"method": "looksam", "batch_size": 25, "epochs": 3},
        {"method": "sam", "lr": 0.3, "batch_size": 50},
    ]
    configs = [config(folder / str(i), model=PLAIN, **kind) for i, kind in enumerate(kinds)]
    with stacked(Ensemble(), False) as reach:
        reach(configs, None)
    for i, asked in enumerate(configs):
        alone, other = train(replace(asked, out=str(folder / f"{i} alone"))).weights(), open_run(str(asked.out))
        assert other.finished
        for name, weights in other.weights().items():
            assert alone[name].numpy() == pytest.approx(weights.numpy(), abs=3e-5), (i, name)


class Crash(BaseException):
    pass


@pytest.mark.parametrize("base", [{"optimizer": "adamw", "lr": 0.01}, {"momentum": 0.9}])
def test_members_that_come_back_at_different_places_end_bitwise_the_same(
    base: dict[str, Any],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crash between two members' checkpoints leaves one an epoch ahead, and it waits for the other."""
    changes: dict[str, Any] = {"model": PLAIN, "method": "sam", "rho": 0.5} | base
    straight = trained(folder / "straight", "stacked", **changes)
    real = files.replace
    for members_done in (1, 2):
        out, written = folder / str(members_done), 0

        def deadly(path: Path, content: bytes, done: int = members_done) -> None:
            nonlocal written
            if path.name == "checkpoint.safetensors" and written >= 3 + done:
                raise Crash
            real(path, content)
            written += path.name == "checkpoint.safetensors"

        with monkeypatch.context() as patch:
            patch.setattr(files, "replace", deadly)
            with pytest.raises(Crash):
                trained(out, "stacked", **changes)
        places = {run.position.epoch for run in open_ensemble(out).runs}
        assert len(places) == 2, "the crash left no member ahead"
        assert_same_members(trained(out, "stacked", **changes), straight)


def test_a_member_whose_loss_is_not_finite_ends_alone(folder: Path) -> None:
    asked: dict[str, Any] = {"strategy": "sam+", "member_radii": [0.05, 3e38, 0.1]}
    with pytest.raises(FloatingPointError, match="member-1, epoch 1, step 0: a loss or gradient of step 0"):
        trained(folder, "stacked", asked, model=PLAIN, method="sam")
    assert [run.finished for run in open_ensemble(folder).runs] == [True, False, True]


def test_what_was_stacked_goes_on_in_sequence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The states of optimizers are where members by themselves look for them."""
    changes: dict[str, Any] = {"model": PLAIN, "method": "sam", "optimizer": "adamw", "lr": 0.01}
    asked: dict[str, Any] = {"strategy": "deep+sam"}
    straight = trained(folder / "straight", "sequence", asked, **changes)
    real, count = files.replace, 0

    def deadly(path: Path, content: bytes) -> None:
        nonlocal count
        count += path.name == "checkpoint.safetensors"
        if count > 6:
            raise Crash
        real(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(files, "replace", deadly)
        with pytest.raises(Crash):
            trained(folder / "both", "stacked", asked, **changes)
    assert all(run.position.epoch >= 1 for run in open_ensemble(folder / "both").runs)
    found = trained(folder / "both", "sequence", asked, **changes)
    for one, other in zip(straight.runs, found.runs, strict=True):
        mine, theirs = one.weights(), other.weights()
        for name in mine:
            assert mine[name].numpy() == pytest.approx(theirs[name].numpy(), abs=3e-5), name


@pytest.mark.parametrize("method", sorted(steppe.METHODS))
def test_methods_that_are_moved_together(method: str, tmp_path: Path) -> None:
    """Those whose numbers may be one a member; the others have only their models' work done together."""
    asked = config(tmp_path, method=method, model=PLAIN)
    splits = data_of(asked)
    training = Training(asked, tmp_path, splits, task_of(splits), Workers(), torch.device("cpu"))
    assert shareable(training) == (method in {"none", "sam", "asam", "gsam", "sharpbalance"})
