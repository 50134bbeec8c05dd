"""SAMPa: an ascent along the gradient of the step before, so that both passes could run at once (Xie et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ball import Radius, ball
from ..core.fields import Fraction
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register


@register(
    "sampa",
    does="SAM that ascends along a gradient that the previous step took ahead of itself",
    passes="2; first step 3",
    paper="Xie et al. 2024",
)
@dataclass(frozen=True)
class SAMPa(Method):
    """(1 - ahead) g(w + rho h / |h|) + ahead g(w - lr h), and h is that second gradient of the step before.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: the authors' released code.
    ahead
        The weight of the second gradient: lambda in the paper. Default: the authors' released code.

    References
    ----------
    Xie, Pethick & Cevher 2024, "SAMPa: Sharpness-aware Minimization Parallelized", NeurIPS. Their code adds
    momentum and weight decay of SGD to h in the second point, and runs the two passes on two devices.

    Examples
    --------
    >>> steppe.METHODS["sampa"].passes_at(0), steppe.METHODS["sampa"].passes_at(1)
    (3, 2)

    """

    rho: Radius = 0.1
    ahead: Fraction = 0.2
    slots = ("ahead",)
    pattern = always

    def plan(self, context: Context) -> Plan:
        before = context.recall("ahead")
        if before is None:
            before = (yield Probe()).grad
        top = (yield Probe(at=ball(self.rho).within(context).steepest_(before.clone(), context))).grad
        ahead = (yield Probe(at=before.clone().mul_(context.option("lr")).mul_(-1.0))).grad
        context.remember("ahead", ahead.clone())
        return top.mul_(1 - self.ahead).add_(ahead, self.ahead)
