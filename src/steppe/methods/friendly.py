"""Friendly-SAM: the ascent along what a batch adds to the mean gradient (Li et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ball import Radius, ball
from ..core.fields import Fraction, NonNegative
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register


@register(
    "friendly-sam",
    does="SAM that leaves the mean gradient of the last steps out of its ascent",
    passes="2",
    paper="Li et al. 2024 (CVPR)",
)
@dataclass(frozen=True)
class FriendlySAM(Method):
    """The gradient at w + rho d / |d|, d = g - sigma m, and m the mean gradient of the steps before.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: the authors' released code.
    sigma
        How much of the mean is subtracted. Default: the authors' released code, and their experiments.
    decay
        The mean is decay m + (1 - decay) g, and at first g: lambda in the paper. Default: the authors' released code.

    References
    ----------
    Li et al. 2024, "Friendly Sharpness-Aware Minimization", CVPR. Its d subtracts the mean with g in it, which has
    the same direction if sigma is 1.

    Examples
    --------
    >>> steppe.FriendlySAM(rho=0.1).slots
    ('mean',)

    """

    rho: Radius = 0.05
    sigma: NonNegative = 1.0
    decay: Fraction = 0.9
    slots = ("mean",)
    pattern = always

    def plan(self, context: Context) -> Plan:
        noise = (yield Probe()).grad
        mean = context.recall("mean")
        if mean is None:
            context.remember("mean", noise.clone())
        else:
            context.remember("mean", (mean * self.decay).add_(noise, 1 - self.decay))
            noise.add_(mean, -self.sigma)
        return (yield Probe(at=ball(self.rho).within(context).steepest_(noise, context))).grad
