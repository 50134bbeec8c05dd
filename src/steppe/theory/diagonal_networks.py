"""Diagonal linear networks in closed form: the Hessian, its trace and largest eigenvalue, standard and adaptive.

A modern look, section 5.2 and appendix A.2, with L(w) = ||X (u * v) - y||^2 (eq. 6), which has no 1/2: all second
derivatives are twice those printed. Functions take a stack of networks as well as one: u and v are (..., d).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Sharpness(NamedTuple):
    """tr(D H D) and lambda_max(D H D): sharpness of a small radius is rho^2 / 2 times these, average and worst."""

    trace: Tensor
    top: Tensor


def loss(x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """||X (u * v) - y||^2 for every network: neither a mean nor a half."""
    return ((u * v) @ x.T - y).square().sum(-1)


def gradients(x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """2 v * X'r and 2 u * X'r, r = X (u * v) - y."""
    pull = 2 * ((u * v) @ x.T - y) @ x
    return v * pull, u * pull


def hessian(x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """2 [[V X'X V, V X'X U + diag(X'r)], [., U X'X U]]: eq. 7 twice over, its lower left block transposed."""
    gram, pull = x.T @ x, ((u * v) @ x.T - y) @ x

    def block(a: Tensor, b: Tensor) -> Tensor:
        return a.unsqueeze(-1) * gram * b.unsqueeze(-2)

    corner = block(v, u) + torch.diag_embed(pull)
    upper = torch.cat([block(v, v), corner], -1)
    lower = torch.cat([corner.mT, block(u, u)], -1)
    return 2 * torch.cat([upper, lower], -2)


def balancing(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The scales sqrt(|u| / |v|) of u and sqrt(|v| / |u|) of v, under which sharpness sees the predictor alone.

    Section 5.2 prints the two the other way round; its own sums need them this way.
    """
    ratio = (u.abs() / v.abs()).sqrt()
    return ratio, 1 / ratio


def printed(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The scales as section 5.2 prints them, under which sharpness is not a function of the predictor."""
    first, second = balancing(u, v)
    return second, first


def magnitudes(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scales |w|: elementwise adaptive sharpness."""
    return u.abs(), v.abs()


def ones(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Scales 1: standard sharpness."""
    return torch.ones_like(u), torch.ones_like(v)


def whitened(u: Tensor, v: Tensor, scales: tuple[Tensor, Tensor]) -> Sharpness:
    """At a global minimum with X'X = I: sum and maximum over i of 2 (c_u^2 v^2 + c_v^2 u^2).

    Balanced scales make them 4 ||beta||_1 and 4 ||beta||_inf, magnitudes 4 ||beta||_2^2 and 4 ||beta||_inf^2.
    X'X = I needs at least as many rows as columns: then beta = X'y is the same at every minimum, and all of them
    generalise alike.
    """
    own = 2 * ((scales[0] * v).square() + (scales[1] * u).square())
    return Sharpness(own.sum(-1), own.amax(-1))


def rescaled(x: Tensor, y: Tensor, u: Tensor, v: Tensor, scales: tuple[Tensor, Tensor]) -> Sharpness:
    """The same for any data and any weights, from the Hessian itself.

    The trace needs only the squared norms of the columns of X, so unit columns are enough for 4 ||beta||_1.
    """
    c = torch.cat(scales, -1)
    matrix = c.unsqueeze(-1) * hessian(x, y, u, v) * c.unsqueeze(-2)
    return Sharpness(matrix.diagonal(dim1=-2, dim2=-1).sum(-1), torch.linalg.eigvalsh(matrix)[..., -1])
