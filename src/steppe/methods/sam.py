"""SAM, and the methods that differ from it in geometry alone: l_p-SAM, ASAM, SAM-ON, un-normalised and K-step SAM."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ball import Ascent, ball
from ..core.probe import Context, Method, Plan, Probe
from ..core.vector import Vector
from .options import check_fields


@dataclass(frozen=True)
class Plain(Method):
    """The gradient at the weights, as the base optimizer alone uses it.

    Examples
    --------
    >>> steppe.Plain().cost(0)
    1

    """

    def plan(self, context: Context) -> Plan:
        return (yield Probe()).grad


@dataclass(frozen=True)
class SAM(Method):
    """The gradient at the top of a ball around the weights (Foret et al. 2021); the ball makes it ASAM or SAM-ON.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in such as `Ball(0.5, Elementwise())` for ASAM. Default: Foret et al.
        2021, section 3.1.
    steps
        The number of ascent steps, each of rho / steps (Andriushchenko & Flammarion 2022, appendix).
    decay_in_ascent
        Whether the ascent includes weight decay in the loss, as the code of Foret et al. does.

    Examples
    --------
    The gradient at the top of a ball of radius 0.5, and ASAM:

    >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), steppe.SAM(rho=0.5))
    >>> for pass_ in opt.passes():
    ...     pass_.backward(w.square().sum() / 2)
    >>> w.grad
    tensor([3.3000, 4.4000])
    >>> asam = steppe.SAM(steppe.Ball(0.5, steppe.Elementwise(eta=0.01)))

    """

    rho: float | Ascent = 0.05
    steps: int = 1
    decay_in_ascent: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        ascent = ball(self.rho).within(context, 1 / self.steps)
        top = ascent.steepest_(self._ascent_gradient(here.grad, None, context), context)
        for _ in range(self.steps - 1):
            there = yield Probe(at=top.clone())
            top.add_(ascent.steepest_(self._ascent_gradient(there.grad, top, context), context))
        return (yield Probe(at=top)).grad

    def _ascent_gradient(self, grad: Vector, away: Vector | None, context: Context) -> Vector:
        """The gradient of the loss that the ascent increases, at the weights plus `away`."""
        if self.decay_in_ascent:
            decay = context.option("weight_decay")
            grad.add_((context.weights if away is None else context.weights + away) * decay)
        return grad
