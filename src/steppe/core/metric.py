"""Scales of a ball: how far each weight may move relative to the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor

from .arguments import check_instance, described
from .fields import NonNegative, check_fields
from .shards import completed
from .vector import Chunk, Space, Vector, magnitudes


class Surroundings(Protocol):
    """The values that a ball reads at its centre."""

    @property
    def space(self) -> Space: ...
    @property
    def weights(self) -> Vector: ...
    def option(self, name: str) -> Any: ...


class Metric(Protocol):
    """The scale T(w) of a ball: a vector, or one number per chunk; a weight of scale 0 does not move."""

    def __call__(self, context: Surroundings) -> Vector | Sequence[float]: ...


def check_metric(metric: Any, what: str = "the metric") -> Any:
    """Returns a metric or None; raises for anything else."""
    check_instance(what, metric)
    if metric is not None and not callable(metric):
        raise TypeError(f"{what} is a value such as Elementwise(), or None, not {described(metric)}")
    return metric


MetricOrNone = Annotated[Metric | None, check_metric]


@dataclass(frozen=True)
class Elementwise:
    """T = |w| + eta on tensors named weight and 1 on the others, as in the code of ASAM (Kwon et al. 2021).

    Parameters
    ----------
    eta
        Added to every scale. Default: Kwon et al. 2021, section 5.
    everywhere
        Whether to use |w| + eta on biases too, as the universal-SAM paper does.

    Examples
    --------
    >>> steppe.Ball(0.5, steppe.Elementwise())  # the ball of ASAM
    Ball(rho=0.5, metric=Elementwise(eta=0.01, everywhere=False), p=2.0)

    """

    eta: NonNegative = 0.01
    everywhere: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, context: Surroundings) -> Vector:
        unscaled, weights = _unscaled(context, self), context.weights.chunks
        ones = iter(_ones_like([w for w, s in zip(weights, unscaled, strict=True) if s]))
        rest = iter(magnitudes([w for w, s in zip(weights, unscaled, strict=True) if not s], self.eta))
        return Vector(context.space, [next(ones if s else rest) for s in unscaled])


@dataclass(frozen=True)
class Filterwise:
    """T = ||w_filter|| + eta on convolution filters, |w| + eta on other weights (Kwon et al. 2021, eq. 5).

    Parameters
    ----------
    eta
        Added to every scale. Default: Kwon et al. 2021, section 5.
    everywhere
        Whether to scale biases too.
    rows
        Whether to treat the rows of matrices as filters.

    Examples
    --------
    >>> steppe.Ball(0.5, steppe.Filterwise(rows=True))
    Ball(rho=0.5, metric=Filterwise(eta=0.01, everywhere=False, rows=True), p=2.0)

    """

    eta: NonNegative = 0.01
    everywhere: bool = False
    rows: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, context: Surroundings) -> Vector:
        chunks = zip(_unscaled(context, self), context.space.chunks, context.weights.chunks, strict=True)
        return Vector(context.space, [torch.ones_like(w) if s else self._scale(c, w) for s, c, w in chunks])

    def _scale(self, chunk: Chunk, w: Tensor) -> Tensor:
        ndim = len(chunk.shape)
        if ndim < (2 if self.rows else 3):
            return w.abs().add_(self.eta)
        inside = tuple(range(w.ndim - ndim + 1, w.ndim))
        wide = torch.promote_types(w.dtype, torch.float32)
        norms = torch.linalg.vector_norm(w, dim=inside, keepdim=True, dtype=wide)
        norms = completed(norms.square(), chunk.sharding, first_dim=1).sqrt()  # a filter may be sharded over ranks
        return norms.add(self.eta).to(w.dtype).expand_as(w)


@dataclass(frozen=True)
class NormLayersOnly:
    """T = 1 on normalisation layers and 0 elsewhere: SAM-ON (Mueller et al. 2023).

    Examples
    --------
    >>> steppe.Ball(0.5, steppe.NormLayersOnly())  # the ball of SAM-ON
    Ball(rho=0.5, metric=NormLayersOnly(), p=2.0)

    """

    def __call__(self, context: Surroundings) -> Sequence[float]:
        _need_names(context.space, self, "norm", "rho=0 in the other parameter groups")
        return [1.0 if c.role.norm else 0.0 for c in context.space.chunks]


@dataclass(frozen=True, eq=False)
class CustomScales:
    """T = a vector of your own.

    Parameters
    ----------
    scales
        One tensor per parameter; a weight of scale 0 does not move.

    """

    scales: Sequence[Tensor]

    def __call__(self, context: Surroundings) -> Vector:
        places = context.space.locals()
        if [x.shape for x in self.scales] != [w.shape for w in places]:
            raise ValueError(
                f"CustomScales needs one tensor per parameter, of its shape: there are {len(places)} parameters and "
                f"{len(self.scales)} tensors"
            )
        return context.space.vector([x.detach().to(w) for x, w in zip(self.scales, places, strict=True)]).clone()


def _unscaled(context: Surroundings, metric: Elementwise | Filterwise) -> list[bool]:
    """For each chunk, whether its scale is 1 whatever its weights are."""
    if metric.everywhere:
        return [False] * len(context.space.chunks)
    _need_names(context.space, metric, "weight", f"{type(metric).__name__}(everywhere=True)")
    return [not c.role.weight for c in context.space.chunks]


def _ones_like(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Ones in the shapes of these tensors, from one allocation where dtypes and devices agree."""
    if len({(t.dtype, t.device) for t in tensors}) != 1:
        return [torch.ones_like(t) for t in tensors]
    flat = tensors[0].new_ones(sum(t.numel() for t in tensors))
    return [
        part.view(t.shape) for part, t in zip(flat.split_with_sizes([t.numel() for t in tensors]), tensors, strict=True)
    ]


def _need_names(space: Space, metric: object, what: str, otherwise: str) -> None:
    if any(getattr(c.role, what) is None for c in space.chunks):
        raise ValueError(
            f"{type(metric).__name__} finds {what} parameters by name, and these parameters have no names: pass "
            f"model= to SharpnessAware, build the base optimizer from model.named_parameters(), or use {otherwise}."
        )
