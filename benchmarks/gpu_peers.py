"""Peers of the GPU benchmarks, reimplemented from their procedures: the GPU machine cannot install packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Batch = tuple[Tensor, Tensor]
Product = Callable[[Sequence[Tensor]], list[Tensor]]


class Bare:
    """SAM in a few foreach calls, without handling of running statistics, random numbers or non-finite values."""

    def __init__(self, params, base, rho=0.05):
        self.params, self.base, self.rho = list(params), base, rho

    def step(self, loss):
        self.base.zero_grad()
        loss().backward()
        with torch.no_grad():
            grads = [p.grad for p in self.params]
            norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads)))
            ascent = torch._foreach_mul(grads, self.rho / (norm + 1e-12))
            saved = torch._foreach_mul(self.params, 1)
            torch._foreach_add_(self.params, ascent)
        self.base.zero_grad()
        loss().backward()
        with torch.no_grad():
            torch._foreach_copy_(self.params, saved)
        self.base.step()


class Loop:
    """SAM as in its most copied implementation: one operation per parameter, weights cloned and restored."""

    def __init__(self, params, base: torch.optim.Optimizer, rho: float = 0.05):
        self.params, self.base, self.rho, self.saved = list(params), base, rho, {}

    def step(self, loss: Callable[[], Tensor]) -> None:
        loss().backward()
        self._ascend()
        loss().backward()
        self._restore_and_step()

    @torch.no_grad()
    def _ascend(self) -> None:
        norms = torch.stack([p.grad.norm(p=2) for p in self.params if p.grad is not None])
        scale = self.rho / (torch.norm(norms, p=2) + 1e-12)
        for p in self.params:
            if p.grad is not None:
                self.saved[p] = p.data.clone()
                p.add_(p.grad * scale.to(p))
        self.base.zero_grad()

    @torch.no_grad()
    def _restore_and_step(self) -> None:
        for p in self.params:
            if p.grad is not None:
                p.data = self.saved[p]
        self.base.step()
        self.base.zero_grad()


# -- PyHessian 0.1: power iteration from a random vector, Hutchinson's estimator with random signs ---------------------


def graph(model: nn.Module, batch: Batch) -> tuple[list[Tensor], Sequence[Tensor]]:
    """The parameters, and the gradient of a batch with its graph."""
    params = list(model.parameters())
    return params, torch.autograd.grad(cross_entropy(model(batch[0]), batch[1]), params, create_graph=True)


def kept_graphs(model: nn.Module, batches: Sequence[Batch]) -> Product:
    """Hessian-vector products of the mean loss, with graphs that are built once: PyHessian with one batch."""
    graphs = [graph(model, batch) for batch in batches]

    def product(v: Sequence[Tensor]) -> list[Tensor]:
        return _mean([torch.autograd.grad(g, params, v, retain_graph=True) for params, g in graphs])

    return product


def rebuilt_graphs(model: nn.Module, batches: Sequence[Batch]) -> Product:
    """The same, with every batch's graph rebuilt for every product: PyHessian with a data loader."""

    def product(v: Sequence[Tensor]) -> list[Tensor]:
        parts = []
        for batch in batches:
            params, g = graph(model, batch)
            parts.append(torch.autograd.grad(g, params, v))
        return _mean(parts)

    return product


def pyhessian(model: nn.Module, batches: Sequence[Batch]) -> Product:
    return kept_graphs(model, batches) if len(batches) == 1 else rebuilt_graphs(model, batches)


def power_iteration(model: nn.Module, product: Product) -> Iterator[float]:
    """Its estimates of the eigenvalue of largest magnitude, one per product."""
    v = _unit([torch.randn_like(p) for p in model.parameters()])
    while True:
        image = product(v)
        yield float(_dot(image, v))
        v = _unit(image)


def hutchinson(model: nn.Module, product: Product) -> Iterator[float]:
    """Its draws of the trace, one per product."""
    while True:
        z = [torch.randint_like(p, 2).mul_(2).sub_(1) for p in model.parameters()]
        yield float(_dot(product(z), z))


def stopped(values: Sequence[float], tol: float) -> int | None:
    """The number of estimates after which its rule stops: the last relative change is below `tol`."""
    for i in range(1, len(values)):
        if abs(values[i] - values[i - 1]) / (abs(values[i - 1]) + 1e-6) < tol:
            return i + 1
    return None


def _mean(parts: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """The mean over batches, which all have one size."""
    return [sum(ts) / len(parts) for ts in zip(*parts, strict=True)]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return sum((x * y).sum() for x, y in zip(a, b, strict=True))


def _unit(v: Sequence[Tensor]) -> list[Tensor]:
    length = _dot(v, v).sqrt() + 1e-6
    return [t / length for t in v]
