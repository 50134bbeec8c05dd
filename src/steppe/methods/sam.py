"""SAM, and the methods that differ from it in geometry alone: l_p-SAM, ASAM, SAM-ON, un-normalised and K-step SAM."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.ball import Ascent, Ball, GradientStep, Norm, Radius, ball
from ..core.fields import Count, NonNegative
from ..core.metric import Elementwise, Filterwise, Metric, NormLayersOnly
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register


@register("none", does="the base optimizer alone", passes="1")
@dataclass(frozen=True)
class Plain(Method):
    """The gradient at the weights, as the base optimizer alone uses it.

    Examples
    --------
    >>> steppe.Plain().options()
    {}

    """

    pattern = always

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

    rho: Radius = 0.05
    steps: Count = 1
    decay_in_ascent: bool = False
    pattern = always

    def plan(self, context: Context) -> Plan:
        ascent, top = ball(self.rho).within(context, 1 / self.steps), None
        for _ in range(self.steps):
            grad = (yield Probe(at=None if top is None else top.clone())).grad
            if self.decay_in_ascent:
                here = context.weights if top is None else context.weights + top
                grad.add_(here * context.option("weight_decay"))
            up = ascent.steepest_(grad, context)
            top = up if top is None else top.add_(up)
        return (yield Probe(at=top)).grad


def _ascent(rho: float, metric: Metric | None, p: float, normalized: bool) -> Ascent:
    if not normalized and p != 2:
        raise ValueError(f"normalized=False makes a plain gradient step, which has no p-norm: leave out p = {p:g}")
    return Ball(rho, metric, p) if normalized else GradientStep(rho, metric)


@register(
    "sam",
    does="the gradient at the top of a ball around the weights",
    passes="1 + steps",
    paper="Foret et al. 2021",
)
def _sam(
    rho: NonNegative = 0.05, p: Norm = 2.0, steps: Count = 1, normalized: bool = True, decay_in_ascent: bool = False
) -> Method:
    """SAM in a ball of any p-norm.

    Parameters
    ----------
    rho
        The radius. Default: Foret et al. 2021, section 3.1.
    p
        The norm of the ball, 1 to inf.
    steps
        The number of ascent steps, each of rho / steps (Andriushchenko & Flammarion 2022, appendix).
    normalized
        Whether the ascent has length rho; if not, it is rho times the gradient (Andriushchenko & Flammarion 2022).
    decay_in_ascent
        Whether the ascent includes weight decay in the loss, as the code of Foret et al. does.

    """
    return SAM(_ascent(rho, None, p, normalized), steps, decay_in_ascent)


@register(
    "asam",
    does="SAM in a ball that scales with each weight or filter",
    passes="1 + steps",
    paper="Kwon et al. 2021",
)
def ASAM(
    rho: NonNegative = 0.5,
    eta: NonNegative = 0.01,
    p: Norm = 2.0,
    steps: Count = 1,
    normalized: bool = True,
    decay_in_ascent: bool = False,
    everywhere: bool = False,
    filterwise: bool = False,
) -> SAM:
    """ASAM: SAM in a ball that scales with each weight, or with each filter (Kwon et al. 2021).

    Parameters
    ----------
    rho
        The radius. Default: Kwon et al. 2021, CIFAR-10.
    eta
        Added to the scale of each weight. Default: Kwon et al. 2021, section 5.
    p
        The norm of the ball, 1 to inf.
    steps
        The number of ascent steps, each of rho / steps (Andriushchenko & Flammarion 2022, appendix).
    normalized
        Whether the ascent has length rho; if not, it is rho times the gradient (Andriushchenko & Flammarion 2022).
    decay_in_ascent
        Whether the ascent includes weight decay in the loss, as the code of Foret et al. does.
    everywhere
        Whether to scale biases too, as the universal-SAM paper does.
    filterwise
        Whether to scale with the norm of each filter (Kwon et al. 2021, eq. 5).

    Examples
    --------
    >>> steppe.ASAM(rho=1.0) == steppe.SAM(steppe.Ball(1.0, steppe.Elementwise(eta=0.01)))
    True

    """
    metric = Filterwise(eta, everywhere) if filterwise else Elementwise(eta, everywhere)
    return SAM(_ascent(rho, metric, p, normalized), steps, decay_in_ascent)


@register("sam-on", does="SAM that moves normalisation layers only", passes="1 + steps", paper="Mueller et al. 2023")
def SAMON(rho: NonNegative = 0.5, p: Norm = 2.0, steps: Count = 1) -> SAM:
    """SAM-ON: SAM that moves normalization layers only (Mueller et al. 2023).

    Parameters
    ----------
    rho
        The radius. Default: Mueller et al. 2023, CIFAR ResNets.
    p
        The norm of the ball, 1 to inf.
    steps
        The number of ascent steps, each of rho / steps (Andriushchenko & Flammarion 2022, appendix).

    Examples
    --------
    >>> steppe.SAMON() == steppe.SAM(steppe.Ball(0.5, steppe.NormLayersOnly()))
    True

    """
    return SAM(Ball(rho, NormLayersOnly(), p), steps)
