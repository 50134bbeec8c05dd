"""Relatives of SAM: Sparse-SAM, GSAM, LookSAM, R-SAM, ESAM and momentum-SAM."""

from collections.abc import Callable
from math import ceil, cos, pi

import torch
from torch import Tensor, nn

from .flat import Base, Landscape, Rule


def unit(g: Tensor) -> Tensor:
    return g / g.norm()


class FisherSparse:
    """SSAM-F: SAM's perturbation, kept where the summed squared single-sample gradients are largest."""

    def __init__(self, rho: float, sparsity: float, samples: int, every: int):
        self.rho, self.sparsity, self.samples, self.every = rho, sparsity, samples, every
        self.masks: list[Tensor] = []

    def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        if t % self.every == 0:
            fisher = torch.zeros_like(w)
            for i in range(self.samples):
                fisher += land.rows(torch.tensor([i])).grad(w) ** 2
            self.mask = torch.zeros_like(w)
            self.mask[torch.argsort(fisher, descending=True)[: round((1 - self.sparsity) * len(w))]] = 1
        self.masks.append(self.mask)
        return land.grad(w + self.rho * unit(land.grad(w)) * self.mask)


class DynamicSparse:
    """SSAM-D: at each renewal drop the flattest of the active weights and grow as many at random."""

    def __init__(
        self, rho: float, sparsity: float, drop: float, every: int, steps: int, chances: Callable[[int], Tensor]
    ):
        self.rho, self.sparsity, self.drop = rho, sparsity, drop
        self.every, self.steps, self.chances = every, steps, chances
        self.active: set[int] = set()
        self.dropped: list[int] = []

    def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        g = land.grad(w)
        if t % self.every == 0:
            self.renew(g, t)
        mask = torch.tensor([float(i in self.active) for i in range(len(w))], dtype=w.dtype)
        return land.grad(w + self.rho * unit(g) * mask)

    def renew(self, g: Tensor, t: int) -> None:
        kept, luck = round((1 - self.sparsity) * len(g)), self.chances(t)
        missing = kept
        if t > 0:
            missing = round(self.drop * (1 + cos(pi * min(t, self.steps) / self.steps)) / 2 * kept)
            flattest = sorted(self.active, key=lambda i: abs(float(g[i])))[:missing]
            self.active = self.active - set(flattest)
            self.dropped.append(missing)
        outside = [i for i in range(len(g)) if i not in self.active]
        self.active |= set(sorted(outside, key=lambda i: float(luck[i]), reverse=True)[:missing])


def gsam(rho: float, alpha: float) -> Rule:
    """Algorithm 1 of Zhuang et al. 2022: g_p - alpha times the part of g that is orthogonal to g_p."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        g = land.grad(w)
        g_p = land.grad(w + rho * unit(g))
        orthogonal = g - (g @ unit(g_p)) * unit(g_p)
        return g_p - alpha * orthogonal

    return rule


class Look:
    """LookSAM: g_v = g_s - |g_s| cos(theta) g / |g| from every k-th step serves the steps in between."""

    def __init__(self, rho: float, k: int, alpha: float):
        self.rho, self.k, self.alpha = rho, k, alpha

    def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        g = land.grad(w)
        if t % self.k:
            return g + self.alpha * g.norm() * unit(self.g_v)
        g_s = land.grad(w + self.rho * unit(g))
        cosine = unit(g_s) @ unit(g)
        self.g_v = g_s - g_s.norm() * cosine * unit(g)
        return g_s


def r_sam(rho: float, sigma: float, smoothing: float, model: nn.Module, noise: Callable[[int], Tensor]) -> Rule:
    """Noise z of scale sigma |filter|, then the ascent along z + smoothing g(w + z), from w."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        scales, start = [], 0
        for p in model.parameters():
            here = w[start : start + p.numel()].view(p.shape)
            start += p.numel()
            scales += [row.norm().expand(row.numel()) for row in here] if p.ndim > 1 else [here.abs()]
        z = sigma * torch.cat(scales) * noise(t)
        return land.grad(w + rho * unit(z + smoothing * land.grad(w + z)))

    return rule


def esam(rho: float, beta: float, gamma: float, model: nn.Module, chances: Callable[[int], list[float]]) -> Rule:
    """Each tensor moves with chance beta, 1 / beta as far; then the gamma share of rows whose loss rose most."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        moving = torch.cat(
            [torch.full((p.numel(),), c < beta) for p, c in zip(model.parameters(), chances(t), strict=True)]
        )
        d = rho / beta * unit(land.grad(w)) * moving
        rose = (land.each(w + d) - land.each(w)).tolist()
        worst = sorted(range(len(land)), key=lambda i: rose[i], reverse=True)[: ceil(gamma * len(land))]
        return land.rows(torch.tensor(worst)).grad(w + d)

    return rule


def momentum_sam(rho: float) -> Rule:
    """The gradient at w - rho m / |m|; at w before there is a momentum."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        return land.grad(w if base.momentum is None else w - rho * unit(base.momentum))

    return rule
