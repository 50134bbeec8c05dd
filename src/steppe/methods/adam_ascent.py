"""SAM with an ascent by Adam, as `adv_optimizer` of optax's SAM makes it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.ball import Radius, ball
from ..core.fields import BelowOne
from ..core.probe import Context, Method, Plan, Probe, always
from ..core.vector import Vector, inverse
from .registry import register


@register("adam-ascent-sam", does="SAM with an ascent by Adam, whatever the base", passes="2", paper="optax 2023")
@dataclass(frozen=True)
class AdamAscentSAM(Method):
    """The gradient at w + rho u / |u|, u = m / sqrt(v): Adam's means of gradients at w and of their squares.

    The length of u does not matter, so bias corrections are left out; eps is 0. With beta1 = 0 the ascent is RMSprop's.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: Foret et al. 2021.
    beta1, beta2
        As in `torch.optim.Adam`, with its defaults.

    References
    ----------
    `optax.contrib.sam(optimizer, adv_optimizer)`, whose second argument is any optimizer.

    Examples
    --------
    >>> model = nn.Linear(2, 1)
    >>> opt = steppe.adam_ascent_sam(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.1, model=model)

    """

    rho: Radius = 0.05
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    slots = ("mean", "root")
    pattern = always

    def plan(self, context: Context) -> Plan:
        here = (yield Probe()).grad
        mean, root = context.recall("mean"), context.recall("root")
        new_mean, new_root = here * (1 - self.beta1), here.mul_((1 - self.beta2) ** 0.5).map(torch.abs)
        if mean is not None and root is not None:
            new_mean.add_(mean, self.beta1)
            # the root of v, without squares, which could overflow or vanish
            pairs = zip((root * self.beta2**0.5).chunks, new_root.chunks, strict=True)
            new_root = Vector(context.space, [torch.hypot(a, b) for a, b in pairs])
        context.remember("mean", new_mean)
        context.remember("root", new_root)
        up = ball(self.rho).within(context).steepest_(new_mean * new_root.map(inverse), context)
        return (yield Probe(at=up)).grad
