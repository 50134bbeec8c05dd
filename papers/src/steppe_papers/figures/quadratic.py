"""SAM on f(w) = (w - w*)^T M (w - w*) / 2 in closed form, and the maximum of a quadratic in a ball.

As in Lu et al. 2024, appendix C, the ascent is not normalised: w <- w - eta grad f(w + rho grad f(w)). Arrays hold
coordinates in the eigenbasis of M in their last dimension, after any batch dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .wishart import contraction

Array = NDArray[np.float64]


def unrolled(curvature: Array, start: Array, teacher: Array, eta: float, rho: float, steps: int) -> Array:
    """The weights after some steps, Theorem 3 with its sum evaluated: w_k = w* + B^k (w_0 - w*).

    B = I - eta M - eta rho M^2.

    Parameters
    ----------
    curvature
        The eigenvalues of M.
    start, teacher
        The initial weights w_0 and the minimum w*.
    eta, rho
        The step size and the radius, which multiplies the gradient.
    steps
        The number of steps k.

    Examples
    --------
    >>> one = torch.ones(1).double().numpy()
    >>> figures.unrolled(one, start=one, teacher=0 * one, eta=0.25, rho=1.0, steps=2)  # B = 1 - 0.25 - 0.25
    array([0.25])

    """
    weights: Array = teacher + contraction(curvature, eta, rho) ** steps * (start - teacher)
    return weights


def unrolled_sum(curvature: Array, start: Array, teacher: Array, eta: float, rho: float, steps: int) -> Array:
    """Theorem 3 as printed: w_{k+1} = eta sum_{i=0..k} B^i (M + rho M^2) w* + B^{k+1} w_0."""
    b = contraction(curvature, eta, rho)
    powers = sum((b**i for i in range(steps)), np.zeros_like(b))
    weights: Array = eta * powers * (curvature + rho * curvature**2) * teacher + b**steps * start
    return weights


@dataclass(frozen=True)
class BallMaximum:
    """The maximum of a quadratic in a ball: its value relative to the centre, its point and its Lagrange multiplier.

    Attributes
    ----------
    value
        The maximum, relative to the value at the centre.
    point
        Where it is, relative to the centre.
    multiplier
        The Lagrange multiplier mu.

    Examples
    --------
    `ball_maximum` returns one:

    >>> curvature, gradient = torch.tensor([[1.0, 3.0], [0.0, 0.0]]).double().numpy()
    >>> top = figures.ball_maximum(curvature, gradient, radius=2.0)  # along the top eigenvector
    >>> float(top.value), top.point, float(top.multiplier)
    (6.0, array([0., 2.]), 3.0)

    """

    value: Array
    point: Array
    multiplier: Array


def ball_maximum(curvature: Array, gradient: Array, radius: float, iterations: int = 100) -> BallMaximum:
    """The maximum of e^T M e / 2 + g^T e over ||e|| <= radius, for M >= 0: exact up to rounding.

    e = (mu I - M)^{-1} g with mu >= lambda_max such that ||e|| = radius, and the value is the minimum over such mu of
    (mu radius^2 + g^T (mu I - M)^{-1} g) / 2: the trust-region problem has no duality gap (More and Sorensen 1983). If
    g is orthogonal to the top eigenvector, mu may be lambda_max; e then gets the missing length along that vector.
    Newton's method on 1 / ||e|| approaches the root from below. It starts where the largest coordinate has the length
    of the radius.

    Parameters
    ----------
    curvature, gradient
        The eigenvalues of M and the gradient g at the centre.
    radius
        The radius of the ball.
    iterations
        The largest number of Newton steps.

    Examples
    --------
    >>> curvature, gradient = torch.tensor([[1.0, 1.0], [3.0, 4.0]]).double().numpy()
    >>> top = figures.ball_maximum(curvature, gradient, radius=0.5)
    >>> float(top.value), top.point  # 0.5 * 5 + 0.5^2 / 2
    (2.625, array([0.3, 0.4]))

    """
    curvature, gradient = np.broadcast_arrays(curvature, gradient)
    top = curvature.max(-1, keepdims=True)
    below = top - curvature  # >= 0
    square = gradient**2
    is_top = below == 0
    excess = np.maximum(abs(gradient) / radius - below, 0).max(-1, keepdims=True)  # mu - lambda_max, from below
    for _ in range(iterations):
        shifted = below + excess
        with np.errstate(divide="ignore", invalid="ignore"):
            length = np.sqrt(_ratio(square, shifted**2).sum(-1, keepdims=True))
            slope = _ratio(square, shifted**3).sum(-1, keepdims=True)
            step = (length / radius - 1) * length**2 / slope
        moved = np.where(np.isfinite(step) & (step > 0), excess + step, excess)
        if np.array_equal(moved, excess):
            break
        excess = moved
    point = _ratio(gradient, below + excess)
    missing = np.sqrt(np.maximum(radius**2 - (point**2).sum(-1, keepdims=True), 0))
    first = is_top & (np.cumsum(is_top, -1) == 1)
    hard = excess == 0
    point = np.where(hard & first, missing, point)
    value = ((top + excess)[..., 0] * radius**2 + _ratio(square, below + excess).sum(-1)) / 2
    return BallMaximum(value, point, (top + excess)[..., 0])


def ascent(curvature: Array, gradient: Array, radius: float, step: float = 0.01, steps: int = 50) -> Array:
    """The values after each step of projected ascent from the centre, e <- project(e + step (M e + g)), steps first.

    They are lower bounds of the maximum in the ball.

    Parameters
    ----------
    curvature, gradient
        The eigenvalues of M and the gradient g at the centre.
    radius
        The radius of the ball.
    step, steps
        The step size and the number of steps. Defaults: appendix C.3.

    Examples
    --------
    >>> curvature, gradient = torch.tensor([[0.0], [1.0]]).double().numpy()
    >>> figures.ascent(curvature, gradient, radius=1.0, step=0.5, steps=3)
    array([0.5, 1. , 1. ])

    """
    curvature, gradient = np.broadcast_arrays(curvature, gradient)
    e, values = np.zeros_like(gradient), []
    for _ in range(steps):
        e = e + step * (curvature * e + gradient)
        e = e * np.minimum(1, radius / np.maximum(np.linalg.norm(e, axis=-1, keepdims=True), 1e-300))
        values.append((curvature * e * e / 2 + gradient * e).sum(-1))
    return np.stack(values)


def _ratio(a: Any, b: Any) -> Array:
    """A / b, and 0 where b is 0: then a is 0 too."""
    quotient: Array = np.divide(a, b, out=np.zeros(np.broadcast_shapes(np.shape(a), np.shape(b))), where=b != 0)
    return quotient
