"""bSAM: SAM that estimates the precision of a Gaussian posterior over the weights (Möllenhoff & Khan 2023)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.ball import GradientStep
from ..core.fields import BelowOne, Count, NonNegative, Positive
from ..core.probe import Context, Method, Plan, Probe, always
from .registry import register


@register(
    "bsam",
    does="SAM under a Gaussian posterior, whose precision divides the ascent and the step",
    passes="2",
    paper="Möllenhoff & Khan 2023",
    run={"lr": 0.5, "momentum": 0.0},  # the released script
    in_run=lambda per_epoch, batch_size, **_: {"num_data": per_epoch * batch_size},
)
@dataclass(frozen=True)
class BSAM(Method):
    """The mean of g(w + rho g / s) + decay w over its precision s, g the gradient at w + noise of variance 1 / (N s).

    Its base is `torch.optim.SGD` without momentum and weight decay, which this method has itself: decay is
    prior / num_data. The posterior has its mean at the weights and the variance 1 / (N s); s is `steppe.precision` in
    the state of the optimizer.

    Parameters
    ----------
    rho
        The step size of the ascent. Default: the released script, CIFAR-10.
    num_data
        The number of training samples, N; the released script counts augmented ones 4 times. Default: CIFAR-10;
        `steppe train` counts its samples once.
    prior
        The precision of the prior. Default: the released script, CIFAR-10.
    beta1, beta2
        The decay of the mean of gradients, and of the precision. Defaults: the released script.
    damping
        Added to the precision: gamma in the paper. Default: the released script.

    References
    ----------
    Möllenhoff & Khan 2023, "SAM as an Optimal Relaxation of Bayes", ICLR, Algorithm 1.

    Examples
    --------
    >>> w = nn.Parameter(torch.ones(2))
    >>> opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.5), steppe.BSAM(num_data=100))
    >>> loss = opt.step(lambda pass_: pass_.backward(w.square().sum() / 2))
    >>> variance = 1 / (100 * opt.state[w]["steppe.precision"])

    """

    rho: NonNegative = 0.01
    num_data: Count = 50_000
    prior: NonNegative = 10.0
    beta1: BelowOne = 0.9
    beta2: BelowOne = 0.999
    damping: Positive = 0.1
    slots = ("precision", "mean")
    pattern = always

    def plan(self, context: Context) -> Plan:
        decay, ones = self.prior / self.num_data, context.weights.map(torch.ones_like)
        precision, mean = context.recall("precision", missing=ones) or ones, context.recall("mean")
        noise = context.draw(0, context.weights).normal().mul_(precision.map(lambda s: (s * self.num_data).rsqrt()))
        noisy = (yield Probe(at=noise)).grad
        up = GradientStep(self.rho).within(context).steepest_(noisy * precision.map(torch.reciprocal), context)
        there = (yield Probe(at=up)).grad.add_(context.weights, decay).mul_(1 - self.beta1)
        mean = there if mean is None else there.add_(mean, self.beta1)
        curvature = noisy.map(torch.abs).mul_(precision.map(torch.sqrt)).map(lambda x: x + (decay + self.damping))
        precision = (precision * self.beta2).add_(curvature, 1 - self.beta2)
        context.remember("precision", precision)
        context.remember("mean", mean)
        return mean * precision.map(torch.reciprocal)
