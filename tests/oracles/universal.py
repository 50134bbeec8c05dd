"""The (phi, psi, mu) class: autograd of the trained objective itself, and Algorithms 2 and 3 by hand."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .flat import Base, Landscape, Rule

Directions = Callable[[int], Sequence[Sequence[Tensor]]]  # at a step: for every sample, one direction a law


def objective(
    phi: Callable[[Tensor], Tensor],
    psi: Callable[[Tensor], Tensor],
    directions: Directions,
    rho: float,
    strength: float = 1.0,
) -> Rule:
    """grad of L(w) + strength rho^2 phi(mean_i psi_1(u_i1), ..), with u = (L(w + rho v) - L(w)) / rho^2."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        x = w.detach().clone().requires_grad_()
        here = land.loss(x)
        samples = directions(t)
        sums: list[Tensor] = []
        m = torch.atleast_1d(psi(torch.zeros((), dtype=w.dtype))).numel()
        for component in range(m):
            total = torch.zeros((), dtype=w.dtype)
            for sample in samples:
                v = sample[component if len(sample) > 1 else 0]
                u = (land.loss(x + rho * v) - here) / rho**2
                total = total + torch.atleast_1d(psi(u))[component]
            sums.append(total / len(samples))
        means = torch.stack(sums) if m > 1 else sums[0]
        return torch.autograd.grad(here + strength * rho**2 * phi(means), x)[0]

    return rule


def algorithm_2(
    partial_phi: Sequence[Callable[[Sequence[Tensor]], Tensor]],
    psi: Sequence[Callable[[Tensor], Tensor]],
    psi_slope: Sequence[Callable[[Tensor], Tensor]],
    directions: Directions,
    rho: float,
    strength: float = 1.0,
) -> Rule:
    """Algorithm 2 with derivatives given by hand; strength multiplies what it adds to the gradient."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        here, g = land.loss(w), land.grad(w)
        samples = directions(t)
        n, components = len(samples), range(len(psi))
        u = [[(land.loss(w + rho * s[k]) - here) / rho**2 for k in components] for s in samples]
        means = [sum(psi[k](u[i][k]) for i in range(n)) / n for k in components]
        total = g.clone()
        for k in components:
            inner = sum(psi_slope[k](u[i][k]) * (land.grad(w + rho * samples[i][k]) - g) for i in range(n)) / n
            total += strength * partial_phi[k](means) * inner
        return total

    return rule


def algorithm_3(directions: Directions, rho: float, strength: float = 1.0) -> Rule:
    """Frob-SAM as printed, sums and all, what it adds multiplied by strength."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        points = [w + rho * v for (v,) in directions(t)]
        n = len(points)
        losses, grads = [land.loss(x) for x in points], [land.grad(x) for x in points]
        products = sum(loss * grad for loss, grad in zip(losses, grads, strict=True)) / ((n - 1) * rho**2)
        means = sum(losses) / ((n - 1) * rho) * sum(grads) / (n * rho)
        return land.grad(w) + strength * (4 * products - 4 * means)

    return rule


def det_sam_of_one_sample(directions: Directions, rho: float, strength: float) -> Rule:
    """phi(t) = t^-2 and psi(t) = exp(-t) leave the factor 2 exp(2u) before the difference of gradients."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        ((v,),) = directions(t)
        u = (land.loss(w + rho * v) - land.loss(w)) / rho**2
        g = land.grad(w)
        return g + strength * 2 * torch.exp(2 * u) * (land.grad(w + rho * v) - g)

    return rule
