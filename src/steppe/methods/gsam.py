"""GSAM, and a radius that follows the learning rate (Zhuang et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from torch.optim import Optimizer

from ..core.ball import Radius, ball
from ..core.fields import NonNegative
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register


@register("gsam", does="SAM that also lowers the gap between the two losses", passes="2", paper="Zhuang et al. 2022")
@dataclass(frozen=True)
class GSAM(Method):
    """SAM minus alpha times the part of g(w) that is orthogonal to g(w + d): Zhuang et al. 2022, Algorithm 1.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: Foret et al. 2021.
    alpha
        The weight of the orthogonal part. Default: the authors' released example.

    Examples
    --------
    >>> steppe.GSAM(rho=0.1, alpha=-0.2)
    Traceback (most recent call last):
    ValueError: alpha of GSAM takes a number, 0 or more, and finite, not -0.2

    """

    rho: Radius = 0.05
    alpha: NonNegative = 0.4
    pattern = always

    def plan(self, context: Context) -> Plan:
        here = (yield Probe()).grad
        there = (yield Probe(at=ball(self.rho).within(context).steepest_(here.clone(), context))).grad
        # computed from the difference, which is exactly 0 where the two gradients agree
        difference = here.add_(there, -1.0)
        along = difference.along(there)
        return there.mul_(1 + self.alpha * along).add_(difference, -self.alpha)


@dataclass
class RadiusFollowsLR:
    """A scheduler that maps the lr of every group from [lr_min, lr_max] linearly to rho in [rho_min, rho_max].

    Call `step()` after the learning-rate scheduler. Outside [lr_min, lr_max] the radius stays at the nearer end: an
    extrapolation below lr_min, as in a warm-up, would make it negative.

    Parameters
    ----------
    optimizer
        The optimizer whose groups have lr and rho.
    rho_max, rho_min
        The radii at lr_max and at lr_min.
    lr_max, lr_min
        The range of the learning rate.

    References
    ----------
    Zhuang et al. 2022, "Surrogate Gap Minimization Improves Sharpness-Aware Training", Algorithm 1.

    Examples
    --------
    >>> w = nn.Parameter(torch.ones(2))
    >>> opt = steppe.build("gsam", torch.optim.SGD([w], lr=0.1))
    >>> radius = steppe.RadiusFollowsLR(opt, rho_max=0.5, rho_min=0.25, lr_max=0.1)
    >>> opt.param_groups[0]["lr"] = 0.05
    >>> radius.step()
    >>> opt.param_groups[0]["rho"]
    0.375

    """

    optimizer: Optimizer
    rho_max: float
    rho_min: float
    lr_max: float
    lr_min: float = 0.0

    def __post_init__(self) -> None:
        if not (0 <= self.rho_min <= self.rho_max and 0 <= self.lr_min < self.lr_max):
            raise ValueError("RadiusFollowsLR needs 0 <= rho_min <= rho_max and 0 <= lr_min < lr_max")
        self.step()

    def step(self) -> None:
        """Sets the radius of every group."""
        for group in self.optimizer.param_groups:
            position = (float(group["lr"]) - self.lr_min) / (self.lr_max - self.lr_min)
            group["rho"] = self.rho_min + (self.rho_max - self.rho_min) * min(max(position, 0.0), 1.0)
