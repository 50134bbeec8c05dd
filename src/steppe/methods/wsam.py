"""WSAM: the sharpness as a regularisation term with a weight of its own (Yue et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ball import Radius, ball
from ..core.fields import BelowOne
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register


@register(
    "wsam",
    does="SAM with a weight on the sharpness, which is applied beside the base optimizer",
    passes="2",
    paper="Yue et al. 2023",
)
@dataclass(frozen=True)
class WSAM(Method):
    """The gradient of L(w) + gamma / (1 - gamma) (L(w + d) - L(w)), d the top of a ball.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: Foret et al. 2021.
    gamma
        The share of the sharpness; 1 / 2 is SAM. Default: the authors' released code.
    decouple
        Whether the base optimizer, its momentum and clipping see the gradient of L alone, and that of the sharpness is
        subtracted from the weights afterwards, times lr; if not, the base optimizer steps on the sum.

    References
    ----------
    Yue et al. 2023, "Sharpness-Aware Minimization Revisited: Weighted Sharpness as a Regularization Term", KDD.

    Examples
    --------
    >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), steppe.WSAM(rho=0.5, gamma=0.5))
    >>> loss = opt.step(lambda pass_: pass_.backward(w.square().sum() / 2))
    >>> w.detach()  # w - 0.1 (w + 0.5 w / |w|)
    tensor([2.6700, 3.5600])

    """

    rho: Radius = 0.05
    gamma: BelowOne = 0.9
    decouple: bool = True
    pattern = always

    def plan(self, context: Context) -> Plan:
        here = (yield Probe()).grad
        there = (yield Probe(at=ball(self.rho).within(context).steepest_(here.clone(), context))).grad
        sharpness = there.add_(here, -1.0).mul_(self.gamma / (1 - self.gamma))
        if not self.decouple:
            return here.add_(sharpness)
        context.move(sharpness.mul_(context.option("lr")).mul_(-1.0))
        return here
