"""SAM on f(w) = (w - w*)^T M (w - w*) / 2 in closed form, coordinate by coordinate in the eigenbasis of M.

As in Lu et al. 2024, appendix C, the ascent is not normalised: w <- w - eta grad f(w + rho grad f(w)). Arrays have the
coordinates last, and any batch before them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .wishart import contraction

Array = NDArray[np.float64]


def unrolled(curvature: Array, start: Array, teacher: Array, eta: float, rho: float, steps: int) -> Array:
    """Theorem 3, summed: w_k = w* + B^k (w_0 - w*), with B = I - eta M - eta rho M^2."""
    end: Array = teacher + contraction(curvature, eta, rho) ** steps * (start - teacher)
    return end


def unrolled_sum(curvature: Array, start: Array, teacher: Array, eta: float, rho: float, steps: int) -> Array:
    """Theorem 3 as printed: w_{k+1} = eta sum_{i=0..k} B^i (M + rho M^2) w* + B^{k+1} w_0."""
    b = contraction(curvature, eta, rho)
    powers = sum((b**i for i in range(steps)), np.zeros_like(b))
    made: Array = eta * powers * (curvature + rho * curvature**2) * teacher + b**steps * start
    return made


@dataclass(frozen=True)
class Summit:
    """The highest point of a quadratic in a ball: its height over the centre, its place, and the ball's multiplier."""

    height: Array
    at: Array
    multiplier: Array


def summit(curvature: Array, gradient: Array, radius: float, rounds: int = 100) -> Summit:
    """The greatest of e^T M e / 2 + g^T e over ||e|| <= radius, for M >= 0: exactly, up to rounding.

    e = (mu I - M)^{-1} g with mu >= lambda_max such that ||e|| = radius, and the height is min over such mu of
    (mu radius^2 + g^T (mu I - M)^{-1} g) / 2: the trust-region problem has no duality gap (More and Sorensen 1983).
    Where g has no part along the top eigenvector it may be that mu = lambda_max, and e is filled up along that vector.
    Newton's steps on 1 / ||e|| go up to the root from the left of it, from where the longest coordinate is the radius.
    """
    curvature, gradient = np.broadcast_arrays(curvature, gradient)
    top = curvature.max(-1, keepdims=True)
    below = top - curvature  # >= 0
    square = gradient**2
    is_top = below == 0
    excess = np.maximum(abs(gradient) / radius - below, 0).max(-1, keepdims=True)  # mu - lambda_max, from below
    for _ in range(rounds):
        shifted = below + excess
        with np.errstate(divide="ignore", invalid="ignore"):
            length = np.sqrt(_ratio(square, shifted**2).sum(-1, keepdims=True))
            slope = _ratio(square, shifted**3).sum(-1, keepdims=True)
            step = (length / radius - 1) * length**2 / slope
        moved = np.where(np.isfinite(step) & (step > 0), excess + step, excess)
        if np.array_equal(moved, excess):
            break
        excess = moved
    at = _ratio(gradient, below + excess)
    missing = np.sqrt(np.maximum(radius**2 - (at**2).sum(-1, keepdims=True), 0))
    first = is_top & (np.cumsum(is_top, -1) == 1)
    hard = excess == 0
    at = np.where(hard & first, missing, at)
    height = ((top + excess)[..., 0] * radius**2 + _ratio(square, below + excess).sum(-1)) / 2
    return Summit(height, at, (top + excess)[..., 0])


def ascent(curvature: Array, gradient: Array, radius: float, step: float = 0.01, steps: int = 50) -> Array:
    """Heights along projected ascent from the centre, e <- project(e + step (M e + g)): one a step, steps first.

    The step and the number of steps are those of appendix C.3. What it finds is below the summit.
    """
    curvature, gradient = np.broadcast_arrays(curvature, gradient)
    e, heights = np.zeros_like(gradient), []
    for _ in range(steps):
        e = e + step * (curvature * e + gradient)
        e = e * np.minimum(1, radius / np.maximum(np.linalg.norm(e, axis=-1, keepdims=True), 1e-300))
        heights.append((curvature * e * e / 2 + gradient * e).sum(-1))
    return np.stack(heights)


def _ratio(a: Any, b: Any) -> Array:
    """A quotient, and 0 where both are 0: along such coordinates there is nothing to gain."""
    made: Array = np.divide(a, b, out=np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b))), where=b != 0)
    return made
