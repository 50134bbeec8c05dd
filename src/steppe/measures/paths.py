"""How far two checkpoints are apart, and whether the loss rises between them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from .._util.checkpoints import State, matched
from .._util.progress import Tick
from ..core.vector import Space, Vector
from .batches import Batch
from .directions import FILTERS, Normalised, weights_from_state
from .estimate import Estimate, NotFinite
from .landscape import Array, Slice, empty_slice, evaluate_slice
from .objective import Objective

Buffers = Literal["interpolated", "own"]  # BatchNorm's statistics move along with the weights, or stay the model's


@dataclass(frozen=True)
class Distance:
    """How far b is from a."""

    l2: float
    relative: float  # l2 over the norm of a
    normalised: float  # in lengths of a's filters: the root mean square over them
    cosine: float | None = None  # between the ways from an origin, such as the initial weights, to a and to b


def distance(
    place: Objective | Space,
    a: State | Vector,
    b: State | Vector,
    origin: State | Vector | None = None,
    scaling: Normalised = FILTERS,
) -> Distance:
    """The distance between two checkpoints, state dicts or points of the space, over the weights that move."""
    start, end = _point(place, a), _point(place, b)
    move = end - start
    length, size = float(move.norm()), float(start.norm())
    cosine = None
    if origin is not None:
        here, there = (x - _point(place, origin) for x in (start, end))
        lengths = float(here.norm()) * float(there.norm())
        cosine = float(here.dot(there)) / lengths if lengths else nan
    share = length / size if size else (0.0 if length == 0 else float("inf"))
    return Distance(length, share, scaling.distance(move, start), cosine)


def _point(place: Objective | Space, where: State | Vector) -> Vector:
    if isinstance(where, Vector):
        return where
    if isinstance(place, Space):
        raise TypeError("a space knows no names: give vectors of it, or an objective to find a state dict's weights by")
    return weights_from_state(place, where)


@dataclass(frozen=True, eq=False)
class Path:
    """Losses on the straight line from the model's weights, at t = 0, to another checkpoint's, at t = 1."""

    along: Slice

    @property
    def t(self) -> Array:
        return self.along.axes[0]

    @property
    def losses(self) -> Array:
        return self.along.losses

    @property
    def complete(self) -> bool:
        return self.along.complete

    @property
    def buffers(self) -> str:
        return str(self.along.notes["buffers"])

    @property
    def kept(self) -> tuple[str, ...]:
        """Tensors in which the checkpoints differ and which stayed the model's: frozen, or not asked for."""
        return tuple(self.along.notes["kept"])

    def excess(self) -> Array:
        """How far each loss is above the straight line between the losses at the two ends."""
        if not self.along.filled[[0, -1]].all():
            raise ValueError("the path was stopped before both of its ends were measured: resume it")
        above: Array = self.losses - ((1 - self.t) * self.losses[0] + self.t * self.losses[-1])
        return above

    def barrier(self) -> Estimate:
        """The greatest excess (Entezari et al. 2022): a lower bound, because the top may lie between the points.

        Frankle et al. (2020) put the mean of the two ends in place of the line; the two agree where the ends do.
        """
        if self.along.nonfinite:
            places = [f"{t:.4g}" for t in self.t[self.along.filled & ~np.isfinite(self.losses)]]
            raise NotFinite(f"the loss is infinite or not a number at t = {', '.join(places[:5])}: it has no height")
        height, n = float(np.nanmax(self.excess())), int(self.along.filled.sum())
        note = f"at t = {self.top:.4g}, the highest of {n} points"
        return Estimate(height, nan, 1, "lower bound", self.along.cost, note, self.complete)

    @property
    def top(self) -> float:
        """The t at which the excess is greatest."""
        return float(self.t[int(np.nanargmax(self.excess()))])

    def to_json(self) -> str:
        return self.along.to_json()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a NumPy .npz file, whole or not at all."""
        self.along.save(path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Path:
        """Reads what save() wrote; nothing in the file is run."""
        along = Slice.load(path)
        if "buffers" not in along.notes:
            raise ValueError(f"{os.fspath(path)} holds a slice and no path between checkpoints: Slice.load() reads it")
        return Path(along)


def path(
    objective: Objective,
    other: State,
    points: int = 21,
    *,
    buffers: Buffers = "interpolated",
    name: str = "another checkpoint",
    tick: Tick | None = None,
    resume: Path | None = None,
) -> Path:
    """The loss at w + t (w' - w) for t from 0 to 1, w' being the weights in another state dict, and both ends exact.

    Interpolated statistics of BatchNorm are not those that the net in between would have; an objective with
    statistics="batch" takes them from the data instead. Integer buffers stay the model's.
    """
    if points < 2:
        raise ValueError(f"a path has two ends, so 2 or more points, not {points}")
    if buffers not in ("interpolated", "own"):
        raise ValueError(f'buffers are "interpolated" or the model\'s "own", not {buffers!r}')
    if resume is not None and resume.buffers != buffers:
        raise ValueError(f"the path to resume has {resume.buffers} buffers, not {buffers}")
    line = _Line(objective, matched(objective.model, other), buffers)
    empty = empty_slice([[i / (points - 1) for i in range(points)]], [f"towards {name}"], [line.length], [None])
    empty = replace(empty, notes={"buffers": buffers, "kept": list(line.kept)})
    ends = [(0,), (points - 1,)]  # first, so that whoever stops early has something to compare with
    earlier = resume.along if resume is not None else None
    return Path(evaluate_slice(objective, empty, lambda at: line.loss(at[0]), first=ends, tick=tick, resume=earlier))


class _Line:
    """An objective whose weights, and buffers if asked, are anywhere on the line to another state."""

    def __init__(self, objective: Objective, other: State, buffers: Buffers):
        model = objective.model
        floating = {n: b for n, b in model.named_buffers() if n in other and b.is_floating_point()}
        self.moved = set(floating if buffers == "interpolated" else ())
        moving = {**objective.params, **{n: floating[n] for n in self.moved}}
        self.start = {n: t.detach() for n, t in moving.items()}
        self.end = {n: other[n].detach().to(t) for n, t in moving.items()}
        self.here = {n: t.clone() for n, t in self.start.items()}
        own = {**dict(model.named_parameters()), **floating}
        self.kept = [n for n, t in own.items() if n not in moving and not torch.equal(t.detach(), other[n].to(t))]
        end = objective.space.vector([self.end[n] for n in objective.params])
        self.length = float((end - objective.weights).norm())
        self.forward = objective.forward
        objective.check()
        self.objective = replace(objective, forward=self._forward, m=None, trusted=True)
        # the weights that it takes for its own: unlike w + displacement they are the other checkpoint's, bit for bit
        vars(self.objective)["params"] = {n: self.here[n] for n in objective.params}

    def loss(self, t: float) -> float:
        for name, x in self.here.items():
            if t in (0, 1):  # also where the difference of the two would overflow
                x.copy_(self.end[name] if t else self.start[name])
            else:
                torch.lerp(self.start[name], self.end[name], t, out=x)
        return self.objective.loss()

    def _forward(self, model: nn.Module, batch: Batch) -> tuple[Any, Any]:
        """Runs on a model whose buffers are copies, because any forward pass may write into them."""
        for name, buffer in model.named_buffers():
            if name in self.moved:
                buffer.copy_(self.here[name])
        return self.forward(model, batch)
