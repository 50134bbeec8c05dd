"""Small runs for tests: two spirals, a network with everything that moves, and how two runs are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from steppe.training import Config, Run
from steppe.training.evaluate import TIMINGS


def small(shape: tuple[int, ...], outputs: int, width: int = 8) -> nn.Module:
    """Linear layers with BatchNorm, whose statistics move, and dropout, which draws."""
    inputs = torch.Size(shape).numel()
    return nn.Sequential(
        nn.Flatten(), Centred(), nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(width, width), nn.Tanh(), nn.Linear(width, outputs),
    )  # fmt: skip


def steady(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The same without a buffer that is replaced."""
    return nn.Sequential(*(m for m in small(shape, outputs) if not isinstance(m, Centred)))


class Centred(nn.Module):
    """A buffer that a forward pass replaces by another tensor, as users' own layers do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.centre = 0.9 * self.centre + 0.1 * x.detach().mean()
        return x - self.centre


def normalised(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """BatchNorm behind one linear layer: its statistics are a short formula."""
    return nn.Sequential(nn.Linear(torch.Size(shape).numel(), 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, outputs))


def plain(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Nothing but weights: a loop written by hand is a few lines."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 8), nn.Tanh(), nn.Linear(8, outputs))


def broken(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Weights that grow until nothing is finite."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), outputs), Grow())


class Grow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale *= 1e6
        return x * self.scale


def config(out: Path | str, **changes: Any) -> Config:
    """Five steps an epoch on a hundred rows."""
    settings: dict[str, Any] = {
        "data": "spirals",
        "model": "training_runs:small",
        "fraction": 0.1,
        "batch_size": 20,
        "epochs": 2,
        "device": "cpu",
        "checkpoint_every": 3600.0,
        "out": str(out),
    }
    return Config(**(settings | changes))


def timeless(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without what a clock said."""
    return [{k: v for k, v in r.items() if k not in TIMINGS} for r in records]


def assert_same_end(run: Run, other: Run) -> None:
    """Weights, averages and records of both are equal, bit for bit."""
    assert run.finished
    assert other.finished
    kinds = ["last", *(k for k in ("ema", "swa") if getattr(run.config, k) is not None)]
    for kind in kinds:
        mine, theirs = run.weights(kind), other.weights(kind)
        assert mine.keys() == theirs.keys()
        different = [k for k in mine if not torch.equal(mine[k], theirs[k])]
        assert not different, kind
    assert timeless(run.records) == timeless(other.records)
    assert [r["epoch"] for r in run.records] == list(range(1, len(run.records) + 1))


def moody(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network that answers some batches with infinity."""
    return nn.Sequential(Mood(), nn.Linear(torch.Size(shape).numel(), outputs))


class Mood(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (x[0, 0] > -0.4) if self.training else x
