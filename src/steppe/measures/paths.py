"""Distances between checkpoints, and the loss on the line between them."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

from .._util.checkpoints import State, matched
from .._util.notebooks import picture
from .._util.terminal import Tick
from ..core.vector import Space, Vector
from .batches import Batch
from .directions import FILTERS, Normalised, weights_from_state
from .estimate import Estimate, NotFinite
from .landscape import Array, Slice, empty_slice, evaluate_slice
from .objective import Objective

Buffers = Literal["interpolated", "own"]  # running statistics: interpolated like the weights, or the model's own


@dataclass(frozen=True)
class Distance:
    """The distance from a to b.

    Parameters
    ----------
    l2
        The Euclidean distance.
    relative
        Divided by the norm of a.
    normalised
        The root mean square over filters of the distance relative to the length of a's filter.
    cosine
        Of the angle between a - origin and b - origin, for an origin such as the initial weights.

    """

    l2: float
    relative: float
    normalised: float
    cosine: float | None = None


def distance(
    place: Objective | Space,
    a: State | Vector,
    b: State | Vector,
    origin: State | Vector | None = None,
    scaling: Normalised = FILTERS,
) -> Distance:
    """The distance between two checkpoints over the parameters that move.

    Parameters
    ----------
    place
        The objective that names the parameters; a space is enough for vectors.
    a, b, origin
        State dicts, or vectors of the space. With an `origin`, the cosine is computed.
    scaling
        What the normalised distance is relative to.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> a, b = {"weight": torch.tensor([[3.0, 4.0]])}, {"weight": torch.zeros(1, 2)}
    >>> steppe.measures.distance(objective, a, b)
    Distance(l2=5.0, relative=1.0, normalised=1.0, cosine=None)

    """
    start, end = _point(place, a), _point(place, b)
    move = end - start
    length, size = float(move.norm()), float(start.norm())
    cosine = None
    if origin is not None:
        to_start, to_end = (x - _point(place, origin) for x in (start, end))
        lengths = float(to_start.norm()) * float(to_end.norm())
        cosine = float(to_start.dot(to_end)) / lengths if lengths else nan
    share = length / size if size else (0.0 if length == 0 else float("inf"))
    return Distance(length, share, scaling.distance(move, start), cosine)


def _point(place: Objective | Space, where: State | Vector) -> Vector:
    if isinstance(where, Vector):
        return where
    if isinstance(place, Space):
        raise TypeError("a space has no parameter names: give vectors, or an objective that names the parameters")
    return weights_from_state(place, where)


@dataclass(frozen=True, eq=False)
class Path:
    """Losses on the straight line from the model's weights, at t = 0, to another checkpoint's, at t = 1.

    Parameters
    ----------
    along
        The losses over t, with what was interpolated in its notes; `path` makes it.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> _ = [nn.init.ones_(p) for p in model.parameters()]
    >>> data = torch.ones(1, 1), torch.ones(1, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> other = {name: -weight for name, weight in model.state_dict().items()}
    >>> print(steppe.measures.path(objective, other).barrier())  # of ((1 - 2 t) ** 2 - 1) ** 2
    1 (lower bound): at t = 0.5, the highest of 21 points

    """

    along: Slice

    _repr_mimebundle_ = picture

    def __repr__(self) -> str:
        return repr(self.along).replace("Slice", "Path", 1)

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
        """Names of tensors that differ between the checkpoints and stay the model's: frozen or not selected."""
        return tuple(self.along.notes["kept"])

    def excess(self) -> Array:
        """The losses minus the line between the losses at the two ends."""
        if not self.along.filled[[0, -1]].all():
            raise ValueError("the path was stopped before both of its ends were measured: resume it")
        above: Array = self.losses - ((1 - self.t) * self.losses[0] + self.t * self.losses[-1])
        return above

    def barrier(self) -> Estimate:
        """The greatest excess (Entezari et al. 2022): a lower bound, because the maximum may lie between points.

        Frankle et al. (2020) subtract the mean of the two ends instead of the line; both agree if the ends do.
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

    def plot(self) -> Any:
        """A plotly figure of the losses and their barrier, as `figure` draws it."""
        from .plotting import figure

        return figure(self)

    def to_json(self) -> str:
        return self.along.to_json()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a NumPy .npz file atomically."""
        self.along.save(path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Path:
        """Read a file of `save`; nothing in it is executed."""
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
    """The loss at w + t (w' - w) for t from 0 to 1, where w' are the weights of another state dict.

    Parameters
    ----------
    objective
        The loss, the data and the model with the weights w.
    other
        A state dict. Both ends have exactly the weights of their checkpoints.
    points
        Equally spaced values of t.
    buffers
        "interpolated" or the model's "own" floating-point buffers; integer buffers stay the model's. Interpolated
        BatchNorm statistics are not those of the network in between: statistics="batch" takes them from the data.
    name
        A description of the other checkpoint for captions.
    tick, resume
        As in `slice_1d`.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> _ = [nn.init.ones_(p) for p in model.parameters()]
    >>> data = torch.ones(1, 1), torch.ones(1, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> other = {name: -weight for name, weight in model.state_dict().items()}
    >>> steppe.measures.path(objective, other, points=3).losses.tolist()  # ((1 - 2 t) ** 2 - 1) ** 2
    [0.0, 1.0, 0.0]

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
    ends = [(0,), (points - 1,)]  # first: an incomplete path can be compared with its ends
    earlier = resume.along if resume is not None else None
    return Path(evaluate_slice(objective, empty, lambda at: line.loss(at[0]), first=ends, tick=tick, resume=earlier))


class _Line:
    """An objective whose weights, and buffers on request, are interpolated towards another state."""

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
        vars(self.objective)["shares"] = objective.shares
        # these replace its parameters: unlike w + displacement they equal the other checkpoint's bit for bit
        vars(self.objective)["params"] = {n: self.here[n] for n in objective.params}

    def loss(self, t: float) -> float:
        for name, x in self.here.items():
            if t in (0, 1):  # exact, also where the difference of the two would overflow
                x.copy_(self.end[name] if t else self.start[name])
            else:
                torch.lerp(self.start[name], self.end[name], t, out=x)
        return self.objective.loss()

    def _forward(self, model: nn.Module, batch: Batch) -> tuple[Any, Any]:
        """Overwrites the buffers of the model, which are copies during a functional call."""
        for name, buffer in model.named_buffers():
            if name in self.moved:
                buffer.copy_(self.here[name])
        return self.forward(model, batch)
