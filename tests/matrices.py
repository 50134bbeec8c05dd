"""Operators that are matrices, so that thousands of products cost nothing: known spectra, and a trained network's."""

from __future__ import annotations

from functools import cache

import torch
from oracles import curvature
from problems import flat_weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe.core.basis import flat, unflat
from steppe.core.vector import Space, Vector

F64 = torch.float64


class Matrix:
    """A symmetric matrix as an operator on vectors cut into `parts` tensors, which counts its products."""

    def __init__(self, matrix: Tensor, gradient: Tensor | None = None, parts: int = 1):
        self.matrix, self.made = matrix, 0
        self.slope = torch.zeros(len(matrix), dtype=matrix.dtype) if gradient is None else gradient
        self.space = Space(list(torch.zeros(len(matrix), dtype=matrix.dtype).tensor_split(parts)))

    @property
    def dimension(self) -> int:
        return len(self.matrix)

    def gradient(self) -> Vector:
        return unflat(self.space, self.slope.clone())

    def product(self, v: Vector) -> Vector:
        self.made += 1
        return unflat(self.space, self.matrix @ flat(v))

    def products(self, vectors: list[Vector]) -> list[Vector]:
        return [self.product(v) for v in vectors]


def rotation(d: int, seed: int = 0) -> Tensor:
    """A random orthogonal matrix."""
    return torch.linalg.qr(torch.randn(d, d, dtype=F64, generator=torch.Generator().manual_seed(seed))).Q


def with_spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """A symmetric matrix with these eigenvalues in random directions."""
    q = rotation(len(values), seed)
    return q @ torch.diag(values.to(F64)) @ q.T


Network = tuple[nn.Module, Tensor, Tensor]  # with all its inputs and targets


@cache
def tiny_network() -> Network:
    """Of 67 weights, trained for a while."""
    x = torch.randn(60, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] * x[:, 1] > 0).long() + (x[:, 2] > 0.7).long()
    return _trained([4, 8, 3], nn.Tanh(), x, y, 150), x, y


@cache
def digits_network() -> Network:
    """Of 354 weights, trained on images of digits."""
    from sklearn.datasets import load_digits

    images = load_digits()
    x, y = torch.tensor(images.data[:300, ::2] / 16, dtype=F64), torch.tensor(images.target[:300])
    return _trained([32, 8, 10], nn.ReLU(), x, y, 120), x, y


@cache
def trained() -> tuple[Tensor, Tensor]:
    """The Hessian and the gradient of the tiny network: a few outliers, a crowd around 0, negative ones too."""
    return _curvature(tiny_network())


@cache
def digits() -> tuple[Tensor, Tensor]:
    """The Hessian and the gradient of the network on digits: nine eigenvalues stand out of a crowd."""
    return _curvature(digits_network())


def _trained(widths: list[int], bend: nn.Module, x: Tensor, y: Tensor, steps: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(*widths[:2]), bend, nn.Linear(*widths[1:])).double()
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    optimizer.zero_grad()
    return model.eval()


def _curvature(network: Network) -> tuple[Tensor, Tensor]:
    model, x, y = network
    f, w = curvature.mean_loss(model, cross_entropy, [(x, y)]), flat_weights(model)
    return curvature.hessian_row_by_row(f, w), curvature.gradient(f, w)
