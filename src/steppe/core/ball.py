"""Neighbourhoods of the weights: where SAM climbs and where sharpness is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, nan
from typing import Any, Protocol

import torch
from torch import Tensor

from .metric import Metric, Surroundings
from .vector import Vector


class Ascent(Protocol):
    """How far up to go, given the gradient here."""

    @property
    def rho(self) -> Any: ...
    def within(self, site: Surroundings, times: float = 1.0) -> Ascent: ...
    def steepest_(self, grad: Vector, site: Surroundings) -> Vector: ...


@dataclass(frozen=True)
class Ball:
    """The set {d : ||d / (rho T)||_p <= 1}; radii that differ by parameter group make one ellipsoid."""

    rho: Any = 0.05  # a number or 0-dim tensor, or one number a chunk (Foret et al. 2021, section 3.1)
    metric: Metric | None = None  # None: Euclidean, T = 1
    p: float = 2.0

    def __post_init__(self) -> None:
        refuse_negative(self.rho)
        if not self.p >= 1:
            raise ValueError(f"the p-norm is a norm for p in [1, inf], not p = {self.p}")

    def within(self, site: Surroundings, times: float = 1.0) -> Ball:
        """The same ball with the radius that the parameter groups ask for now, times a factor."""
        return replace(self, rho=_scaled(site.option("rho"), times))

    def steepest(self, grad: Vector, site: Surroundings) -> Vector:
        """The d in this ball with the largest <grad, d>, by the dual-norm formula."""
        return self.steepest_(grad.clone(), site)

    def steepest_(self, grad: Vector, site: Surroundings) -> Vector:
        """`steepest`, built in the gradient's own memory."""
        if self.metric is None and self.p == 2 and not isinstance(self.rho, Sequence):
            return grad.mul_(inverse(grad.norm()).mul_(self.rho))
        factors = self.scales(site)
        stretch_(grad, factors)
        if self.p == inf:
            grad.sign_()
        elif self.p == 2:
            grad.mul_(inverse(grad.norm()))
        else:
            peak = grad.norm(inf)
            if self.p == 1:  # all that is largest shares the radius
                grad = _rewrite(grad, lambda x: x.sign() * (x.abs() == peak.to(x)))
            else:
                power = 1 / (self.p - 1)  # q - 1, for 1/p + 1/q = 1
                grad = _rewrite(grad.mul_(inverse(peak)), lambda x: x.sign() * x.abs().pow(power))
            grad.mul_(inverse(grad.norm(self.p)))
        return stretch_(grad, factors)

    def project(self, d: Vector, site: Surroundings) -> Vector:
        """The point of this ball nearest to d in gamma = d / (rho T); for p not in {1, 2, inf}, d shortened to fit."""
        factors = self.scales(site)
        gamma = d.clone()
        stretch_(gamma, [_reciprocal(f) for f in factors])
        if self.p == inf:
            gamma = gamma.map(lambda x: x.clamp(-1, 1))
        elif self.p == 1:
            gamma = _onto_simplex(gamma)
        else:
            gamma.mul_(inverse(gamma.norm(self.p)).clamp(max=1))
        return stretch_(gamma, factors)

    def scales(self, site: Surroundings) -> list[Any]:
        """Factors whose product rho T maps the unit ball of gamma onto this one: d = rho T gamma."""
        return [self.rho] if self.metric is None else [self.metric(site), self.rho]

    @property
    def unit(self) -> Ball:
        """The ball of gamma: Euclidean, of radius 1, with the same norm."""
        return Ball(1.0, None, self.p)


@dataclass(frozen=True)
class Slope:
    """Un-normalised ascent, d = rho T^2 g: a plain gradient step up (Andriushchenko & Flammarion 2022, eq. 3)."""

    rho: Any = 0.05
    metric: Metric | None = None

    def __post_init__(self) -> None:
        refuse_negative(self.rho)

    def within(self, site: Surroundings, times: float = 1.0) -> Slope:
        return replace(self, rho=_scaled(site.option("rho"), times))

    def steepest_(self, grad: Vector, site: Surroundings) -> Vector:
        if self.metric is not None:
            t = self.metric(site)
            grad.mul_(t).mul_(t)
        return grad.mul_(self.rho)


def ball(radius: Any) -> Ascent:
    """`radius` itself if it is a neighbourhood already, else the Euclidean ball of that radius."""
    return radius if hasattr(radius, "steepest_") else Ball(radius)


def refuse_negative(rho: Any) -> None:
    """A radius, or one a chunk, is at least 0; tensors are not looked at, which would wait for the device."""
    for r in rho if isinstance(rho, Sequence) else [rho]:
        if not isinstance(r, Tensor) and not r >= 0:
            raise ValueError(f"a radius is rho >= 0, not {r}")


def inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 where that is not finite: a zero gradient moves nothing."""
    return x.reciprocal().nan_to_num_(nan=nan, posinf=0.0, neginf=0.0)


def stretch_(v: Vector, factors: Sequence[Any]) -> Vector:
    """Multiplies a vector by every factor."""
    for f in factors:
        if not _is_one(f):
            v.mul_(f)
    return v


def _is_one(factor: Any) -> bool:
    """Whether a factor is the number 1 for sure; tensors are not looked at, which would wait for the device."""
    return isinstance(factor, (int, float)) and factor == 1


def _scaled(rho: Any, times: float) -> Any:
    return [r * times for r in rho] if isinstance(rho, Sequence) else rho * times


def _reciprocal(f: Any) -> Any:
    """1 / f, and 0 where f = 0: a pinned weight has gamma = 0."""
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
