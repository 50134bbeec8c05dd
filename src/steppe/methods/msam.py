"""Momentum-SAM: a perturbation along the momentum of the base optimizer, in a single pass (Becker et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ball import Radius, ball
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register


@register(
    "msam",
    does="the gradient at a point ahead, in the direction of the momentum",
    passes="1",
    paper="Becker et al. 2024",
    needs_momentum=True,
)
@dataclass(frozen=True)
class MomentumSAM(Method):
    """The gradient at w - rho m / |m|, m the momentum buffer: ahead in the direction of the last step.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: Becker et al. 2024, released default.

    Examples
    --------
    >>> w = nn.Parameter(torch.ones(2))
    >>> opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1, momentum=0.9), steppe.MomentumSAM(rho=0.3))
    >>> opt.param_groups[0]["rho"]
    0.3

    """

    rho: Radius = 0.3
    pattern = always

    def plan(self, context: Context) -> Plan:
        momentum = context.momentum()
        if momentum is None:
            if context.step:
                raise ValueError(
                    "momentum-SAM perturbs along the base optimizer's momentum, and it keeps none: set it > 0"
                )
            return (yield Probe()).grad
        ahead = momentum.clone().mul_(-1.0)
        return (yield Probe(at=ball(self.rho).within(context).steepest_(ahead, context))).grad
