"""Neighbourhoods of the weights, in which SAM climbs and sharpness is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Annotated, Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from .arguments import check_instance, check_nonnegative, described
from .fields import WORDS, Ge, Inf, check_fields
from .metric import MetricOrNone, Surroundings
from .vector import Vector, inverse


@runtime_checkable
class Ascent(Protocol):
    """A rule for the ascent step, given the gradient."""

    @property
    def rho(self) -> Any: ...
    def within(self, context: Surroundings, times: float = 1.0) -> Ascent:
        """The same rule with the radius of the parameter groups, times a factor."""
        ...

    def steepest_(self, grad: Vector, context: Surroundings) -> Vector:
        """The ascent step, built in the memory of the gradient."""
        ...


WORDS[Ascent] = "a neighbourhood such as Ball(0.1)"
Radius = Annotated[float | Ascent, Ge(0)]
"""The annotation of a radius: a number, or the neighbourhood to climb in."""
Norm = Annotated[float, Ge(1), Inf]


Radii = Annotated[Any, check_nonnegative]
"""The annotation of a radius that may also be a tensor, or differ by chunk."""


@dataclass(frozen=True)
class Ball:
    """The set {d : ||d / (rho T)||_p <= 1}; radii that differ by parameter group make one ellipsoid.

    Parameters
    ----------
    rho
        The radius: a number, a 0-dim tensor, or one number per chunk. Default: Foret et al. 2021, section 3.1.
    metric
        The scale T of each weight, such as `Elementwise()`; None for T = 1.
    p
        The norm, 1 to inf.

    Examples
    --------
    >>> steppe.SAM(steppe.Ball(0.01, p=float("inf")))  # SAM in a box
    SAM(rho=Ball(rho=0.01, metric=None, p=inf), steps=1, decay_in_ascent=False)

    """

    rho: Radii = 0.05
    metric: MetricOrNone = None
    p: Norm = 2.0

    def __post_init__(self) -> None:
        if not (type(self.rho) is float and 0 <= self.rho < inf and self.metric is None and self.p == 2.0):
            check_fields(self, tensors=True)  # rarely: every step makes a ball

    def within(self, context: Surroundings, times: float = 1.0) -> Ball:
        """The same ball with the current radius of the parameter groups, times a factor."""
        rho = context.option("rho")
        return self if rho is self.rho and times == 1 else replace(self, rho=_scaled(rho, times))

    def steepest(self, grad: Vector, context: Surroundings) -> Vector:
        """The d in this ball with the largest <grad, d>, by the dual-norm formula."""
        return self.steepest_(grad.clone(), context)

    def steepest_(self, grad: Vector, context: Surroundings) -> Vector:
        """`steepest`, built in the memory of the gradient."""
        if self.metric is None and self.p == 2 and not isinstance(self.rho, Sequence):
            return grad.mul_(inverse(grad.norm()).mul_(self.rho))
        factors = self.scales(context)
        stretch_(grad, factors)
        if self.p == inf:
            grad.sign_()
        elif self.p == 2:
            grad.mul_(inverse(grad.norm()))
        else:
            peak = grad.norm(inf)
            if self.p == 1:  # the largest entries share the radius
                grad = _rewrite(grad, lambda x: x.sign() * (x.abs() == peak.to(x)))
            else:
                power = 1 / (self.p - 1)  # q - 1, for 1/p + 1/q = 1
                grad = _rewrite(grad.mul_(inverse(peak)), lambda x: x.sign() * x.abs().pow(power))
            grad.mul_(inverse(grad.norm(self.p)))
        return stretch_(grad, factors)

    def project(self, d: Vector, context: Surroundings) -> Vector:
        """The point of this ball nearest to d in gamma = d / (rho T); for p not in {1, 2, inf}, d scaled to fit."""
        factors = self.scales(context)
        gamma = d.clone()
        stretch_(gamma, [_reciprocal(f) for f in factors])
        if self.p == inf:
            gamma = gamma.map(lambda x: x.clamp(-1, 1))
        elif self.p == 1:
            gamma = _onto_simplex(gamma)
        else:
            gamma.mul_(inverse(gamma.norm(self.p)).clamp(max=1))
        return stretch_(gamma, factors)

    def scales(self, context: Surroundings) -> list[Any]:
        """The factors of rho T, which maps the unit ball of gamma onto this one: d = rho T gamma."""
        return [self.rho] if self.metric is None else [self.metric(context), self.rho]

    @property
    def unit(self) -> Ball:
        """The ball of gamma: Euclidean, of radius 1, with the same norm."""
        return Ball(1.0, None, self.p)


@dataclass(frozen=True)
class GradientStep:
    """Un-normalised ascent, d = rho T^2 g: a plain gradient step up (Andriushchenko & Flammarion 2022, eq. 3).

    Parameters
    ----------
    rho
        The step size of the ascent: a number, a 0-dim tensor, or one number per chunk.
    metric
        The scale T of each weight; None for T = 1.

    """

    rho: Radii = 0.05
    metric: MetricOrNone = None

    def __post_init__(self) -> None:
        check_fields(self, tensors=True)

    def within(self, context: Surroundings, times: float = 1.0) -> GradientStep:
        """The same slope with the current radius of the parameter groups, times a factor."""
        return replace(self, rho=_scaled(context.option("rho"), times))

    def steepest_(self, grad: Vector, context: Surroundings) -> Vector:
        """The ascent step, built in the memory of the gradient."""
        if self.metric is not None:
            t = self.metric(context)
            grad.mul_(t).mul_(t)
        return grad.mul_(self.rho)


def ball(radius: Any) -> Ascent:
    """`radius` itself if it is a neighbourhood, else the Euclidean ball of that radius."""
    return radius if hasattr(radius, "steepest_") else Ball(radius)


def check_ball(ball: Any, what: str = "the ball") -> Any:
    """Returns a ball; raises for a neighbourhood of a measure that is none, such as a radius alone."""
    check_instance(what, ball)
    if not isinstance(ball, Ball):
        raise TypeError(f"{what} is a neighbourhood such as Ball(0.1), not {described(ball)}")
    return ball


def stretch_(v: Vector, factors: Sequence[Any]) -> Vector:
    """Multiplies a vector by every factor, in place."""
    for f in factors:
        if not (isinstance(f, (int, float)) and f == 1):  # a tensor is not read, which would synchronize
            v.mul_(f)
    return v


def _scaled(rho: Any, times: float) -> Any:
    return [r * times for r in rho] if isinstance(rho, Sequence) else rho * times


def _reciprocal(f: Any) -> Any:
    """1 / f, and 0 where f = 0: a weight that cannot move has gamma = 0."""
    if isinstance(f, Vector):
        return f.map(inverse)
    if isinstance(f, Tensor):
        return inverse(f)
    return [1 / x if x else 0.0 for x in f] if isinstance(f, Sequence) else (1 / f if f else 0.0)


def _rewrite(v: Vector, f: Any) -> Vector:
    new = v.map(f)
    v.release()
    return new


def _onto_simplex(gamma: Vector) -> Vector:
    """Euclidean projection onto the unit l1 ball: the soft threshold, by bisection to the last bit."""
    low, high = torch.zeros_like(gamma.norm(1)), gamma.norm(inf)
    outside = gamma.norm(1) > 1

    def shrunk(t: Tensor) -> Vector:
        return gamma.map(lambda x: x.sign() * (x.abs() - t.to(x)).clamp(min=0))

    for _ in range(100):
        middle = (low + high) / 2
        too_long = shrunk(middle).norm(1) > 1
        low, high = torch.where(too_long, middle, low), torch.where(too_long, high, middle)
    return shrunk(torch.where(outside, high, torch.zeros_like(high)))
