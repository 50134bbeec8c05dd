"""SAM and what differs from it by geometry: l_p balls, adaptive scales, ellipsoids, several ascent steps."""

from collections.abc import Callable
from math import inf

import torch
from torch import Tensor, nn

from .flat import Base, Landscape, Rule

Scale = Callable[[Tensor], Tensor]  # T(w), a flat vector


def dual(g: Tensor, p: float) -> Tensor:
    """The unit vector of the p-norm with the largest inner product with g (Foret et al. 2021, eq. 2)."""
    if p == inf:
        return g.sign()
    if p == 1:
        best = torch.zeros_like(g)
        top = int(g.abs().argmax())
        best[top] = g[top].sign()
        return best
    q = p / (p - 1)
    return g.sign() * g.abs() ** (q - 1) / (g.abs() ** q).sum() ** (1 / p)


def ones(w: Tensor) -> Tensor:
    return torch.ones_like(w)


def sam(
    rho: float, p: float = 2.0, steps: int = 1, scale: Scale = ones, normalized: bool = True, decay: float = 0.0
) -> Rule:
    """Climbs `steps` times by rho / steps in the metric of the starting point; `decay` w is part of what is climbed."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        d, scales = torch.zeros_like(w), scale(w)
        for _ in range(steps):
            g = land.grad(w + d) + decay * (w + d)
            d = d + rho / steps * scales * (dual(scales * g, p) if normalized else scales * g)
        return land.grad(w + d)

    return rule


def ellipsoid(radii: Tensor) -> Rule:
    """d = rho^2 g / sqrt(sum rho^2 g^2), with one radius an entry: steepest in {sum d^2 / rho^2 <= 1}."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        g = land.grad(w)
        return land.grad(w + radii**2 * g / (radii**2 * g**2).sum().sqrt())

    return rule


def elementwise(model: nn.Module, eta: float, everywhere: bool = False) -> Scale:
    """|w| + eta on parameters with "weight" in their names, 1 on the others."""
    weighs = torch.cat(
        [torch.full((p.numel(),), everywhere or "weight" in name) for name, p in model.named_parameters()]
    )
    return lambda w: torch.where(weighs, w.abs() + eta, torch.ones_like(w))


def filterwise(model: nn.Module, eta: float, everywhere: bool = False) -> Scale:
    """||filter|| + eta on convolution filters, |w| + eta on other weights, 1 on what is not a weight."""

    def scale(w: Tensor) -> Tensor:
        scales, start = [], 0
        for name, p in model.named_parameters():
            here = w[start : start + p.numel()].view(p.shape)
            start += p.numel()
            if not everywhere and "weight" not in name:
                scales.append(torch.ones(p.numel(), dtype=w.dtype))
            elif p.ndim == 4:
                scales += [(f.norm() + eta).expand(f.numel()) for f in here]
            else:
                scales.append(here.abs().flatten() + eta)
        return torch.cat(scales)

    return scale


def norm_layers(model: nn.Module) -> Scale:
    """1 on the parameters of normalisation layers, 0 elsewhere."""
    ours = {
        id(p)
        for m in model.modules()
        if isinstance(m, nn.LayerNorm | nn.BatchNorm2d)
        for p in m.parameters(recurse=False)
    }
    mask = torch.cat([torch.full((p.numel(),), float(id(p) in ours)).double() for p in model.parameters()])
    return lambda w: mask
