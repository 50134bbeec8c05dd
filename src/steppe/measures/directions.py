"""Directions for loss slices: random ones in the scale of the weights, towards a checkpoint, or any vector."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar, Literal

import torch
from torch import Tensor

from .._util.checkpoints import State, matched
from ..core.vector import Chunk, Vector
from .curvature.operator import Curvature
from .curvature.spectrum import Sweep
from .objective import Objective


def weights_from_state(objective: Objective, state: State) -> Vector:
    """The weights of a state dict as a point in the objective's space."""
    tensors = matched(objective.model, state)
    return objective.space.vector([tensors[name].detach().to(p) for name, p in objective.params.items()])


@dataclass(frozen=True)
class Normalised:
    """Every filter, or every layer, of the direction as long as the weights' own (Li et al. 2018, section 4).

    At coordinate 1 every filter has moved by its own length, whatever the scale of its layer.

    Parameters
    ----------
    each
        "filter": the weights of one output unit, a slice of a parameter's first dimension; or "layer".
    one_dim
        "zero" keeps biases and norm layers, as in the paper; "whole" treats each of them as one filter.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> direction = steppe.measures.random_direction(objective, scaling=steppe.measures.LAYERS)
    >>> round(float(direction.vector.norm()), 4), round(float(objective.weights.norm()), 4)
    (1.4142, 1.4142)

    """

    each: Literal["filter", "layer"] = "filter"
    one_dim: Literal["zero", "whole"] = "zero"

    @property
    def name(self) -> str:
        return f"{self.each}-normalised" + (" with biases" if self.one_dim == "whole" else "")

    def __call__(self, direction: Vector, weights: Vector) -> Vector:
        chunks = []
        for chunk, d, w in zip(direction.space.chunks, direction.chunks, weights.chunks, strict=True):
            if len(chunk.shape) < 2 and self.one_dim == "zero":
                chunks.append(torch.zeros_like(d))
            else:
                length = self.lengths(chunk, d)
                factor = torch.where(length > 0, self.lengths(chunk, w) / length, 0.0)
                chunks.append((d * factor).to(d.dtype))
        return Vector(direction.space, chunks)

    def lengths(self, chunk: Chunk, x: Tensor) -> Tensor:
        """The Euclidean norm of every filter or layer in a chunk, in a shape that broadcasts over the chunk."""
        wide = torch.promote_types(x.dtype, torch.float32)
        ndim = len(chunk.shape)
        if ndim == 0:
            return x.abs().to(wide)
        inside = range(x.ndim - ndim + (self.each == "filter" and ndim > 1), x.ndim)
        norms: Tensor = torch.linalg.vector_norm(x, dim=tuple(inside), keepdim=True, dtype=wide)
        return norms

    def distance(self, move: Vector, weights: Vector) -> float:
        """The root mean square, over filters or layers, of the displacement's length relative to the weights'.

        A normalised direction has length 1; a filter of zero weights has an infinite relative length.
        """
        squares = [torch.zeros(0, dtype=torch.float64)]
        for chunk, d, w in zip(move.space.chunks, move.chunks, weights.chunks, strict=True):
            if len(chunk.shape) > 1 or self.one_dim == "whole":
                moved, length = (self.lengths(chunk, x).double().flatten().cpu() for x in (d, w))
                squares.append(torch.where(moved == 0, 0.0, (moved / length).square()))
        ratios = torch.cat(squares)
        return float(ratios.mean().sqrt()) if len(ratios) else 0.0


@dataclass(frozen=True)
class Unscaled:
    """The direction as it is.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> steppe.measures.random_direction(objective, scaling=steppe.measures.UNSCALED).name
    'random direction 0 of seed 0, not normalised'

    """

    name: ClassVar[str] = "not normalised"

    def __call__(self, direction: Vector, weights: Vector) -> Vector:
        return direction


Scaling = Normalised | Unscaled
FILTERS, LAYERS, UNSCALED = Normalised("filter"), Normalised("layer"), Unscaled()


@dataclass(frozen=True)
class Direction:
    """A vector to move the weights along, e.g. `Direction(v, "top eigenvector")`.

    Parameters
    ----------
    vector
        A vector of the objective's space.
    name
        A description for captions.
    seed
        Of a random direction.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> ray = steppe.measures.Direction(objective.weights, "the weights")
    >>> steppe.measures.slice_1d(objective, ray, points=3).losses.tolist()  # at 0, w and 2 w
    [0.0, 2.5, 10.0]

    """

    vector: Vector
    name: str = "given direction"
    seed: int | None = None


def random_direction(objective: Objective, seed: int = 0, number: int = 0, scaling: Scaling = FILTERS) -> Direction:
    """A Gaussian direction, by default filter-normalised (Li et al. 2018).

    Parameters
    ----------
    objective
        The loss and the data.
    seed, number
        The direction is a function of both; those of other numbers are independent of it.
    scaling
        `FILTERS`, `LAYERS` or `UNSCALED`: its length relative to the weights.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> direction = steppe.measures.random_direction(objective, seed=3)
    >>> round(float(direction.vector.norm()), 4)  # as long as the weights of the only filter
    1.4142
    >>> direction.name
    'random direction 0 of seed 3, filter-normalised'

    """
    drawn = scaling(objective.draw(seed, number).normal(), objective.weights)
    return Direction(drawn, f"random direction {number} of seed {seed}, {scaling.name}", seed)


def random_plane(objective: Objective, seed: int = 0, scaling: Scaling = FILTERS) -> tuple[Direction, Direction]:
    """Two independent directions of `random_direction`: nearly orthogonal in many dimensions.

    Parameters
    ----------
    objective, seed, scaling
        As in `random_direction`.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> a, b = steppe.measures.random_plane(objective)
    >>> plane = steppe.measures.slice_2d(objective, a, b, points=3)
    >>> plane.losses.shape, float(plane.losses[1, 1])  # the weights are in the middle
    ((3, 3), 2.5)

    """
    return random_direction(objective, seed, 0, scaling), random_direction(objective, seed, 1, scaling)


def eigenvectors(objective: Objective, k: int = 2, seed: int = 0, rtol: float = 1e-3) -> list[Direction]:
    """Unit eigenvectors of the k largest eigenvalues of the Hessian.

    Parameters
    ----------
    objective
        The loss and the data.
    k
        How many.
    seed, rtol
        Of the Lanczos process: its start vector, and the relative residual at which it stops.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> [direction.name for direction in steppe.measures.eigenvectors(objective)]
    ['eigenvector 1 (eigenvalue 4)', 'eigenvector 2 (eigenvalue 1)']

    """
    pairs = Sweep(Curvature(objective), seed).pairs(k, "top", rtol)
    return [Direction(p.vector, f"eigenvector {i} (eigenvalue {p.value:.4g})", seed) for i, p in enumerate(pairs, 1)]


def towards(
    objective: Objective, state: State, name: str = "another checkpoint", scaling: Scaling = UNSCALED
) -> Direction:
    """The direction from the model's weights to a checkpoint's, which lies at coordinate 1 unless it is scaled.

    Parameters
    ----------
    objective
        The loss, the data and the model.
    state
        A state dict.
    name
        A description of the checkpoint for captions.
    scaling
        As in `random_direction`.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> origin = steppe.measures.towards(objective, {"weight": torch.zeros(1, 2)}, "the origin")
    >>> steppe.measures.slice_1d(objective, origin, points=3).losses.tolist()  # at 2 w, w and 0
    [10.0, 2.5, 0.0]

    """
    move = scaling(weights_from_state(objective, state) - objective.weights, objective.weights)
    return Direction(move, f"towards {name}" + ("" if scaling is UNSCALED else f", {scaling.name}"))


def checked_vector(objective: Objective, direction: Direction) -> Vector:
    """The vector of a direction in the objective's space; raises if it does not fit or has no finite length."""
    tensors, weights = direction.vector.tensors, list(objective.params.values())
    if [t.shape for t in tensors] != [p.shape for p in weights]:
        raise ValueError(f"{direction.name} has {len(tensors)} tensors and does not fit the {len(weights)} that move")
    vector = objective.space.vector([t.detach().to(p) for t, p in zip(tensors, weights, strict=True)])
    length = float(vector.norm())
    if not isfinite(length) or length == 0:
        raise ValueError(
            f"{direction.name} has length {length}, which has to be finite and positive. (Scaling by filters or "
            'layers sets biases and norm layers to zero unless one_dim="whole".)'
        )
    return vector
