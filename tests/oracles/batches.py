"""Methods that look at parts of the batch, or at other data: Agnostic-SAM, SharpBalance, m-SAM."""

from collections.abc import Callable

import torch
from torch import Tensor

from .flat import Base, Landscape, Rule


def unit(g: Tensor) -> Tensor:
    return g / g.norm()


def agnostic_sam(
    rho_1: float, rho_2: float, parts: Callable[[Landscape, int], tuple[Landscape, Landscape]], simple: bool = False
) -> Rule:
    """Algorithm 1 of the Agnostic-SAM paper; `parts` gives B_t and B_v, `simple` skips theta_v."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        train, held = parts(land, t)
        w_v = w if simple else w + rho_2 * unit(held.grad(w))
        w_t = w + rho_1 * unit(train.grad(w)) - rho_2 * unit(held.grad(w_v))
        return train.grad(w_t)

    return rule


def sharpbalance(rho: float, mask: Callable[[int], Tensor]) -> Rule:
    """|normal| / |B| of the normal rows' gradient and |sharp| / |B| of SAM's on the sharp rows alone."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        sharp = [i for i, s in enumerate(mask(t).tolist()) if s]
        normal = [i for i in range(len(land)) if i not in sharp]
        total = torch.zeros_like(w)
        if normal:
            total += len(normal) / len(land) * land.rows(torch.tensor(normal)).grad(w)
        if sharp:
            rows = land.rows(torch.tensor(sharp))
            total += len(sharp) / len(land) * rows.grad(w + rho * unit(rows.grad(w)))
        return total

    return rule


def m_sam(rho: float, parts: int | tuple[int, ...]) -> Rule:
    """SAM on each part of the batch by itself, so many or cut at these rows; the mean over rows of what they give."""

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        total = torch.zeros_like(w)
        for index in torch.tensor_split(torch.arange(len(land)), parts):
            rows = land.rows(index)
            total += len(index) / len(land) * rows.grad(w + rho * unit(rows.grad(w)))
        return total

    return rule


def alternating(k: int, first: Rule, otherwise: Rule) -> Rule:
    """`first` at steps 0, k, 2k .., `otherwise` in between."""
    return lambda land, w, base, t: (otherwise if t % k else first)(land, w, base, t)
