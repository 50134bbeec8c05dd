"""Smoothness-adaptive step sizes: SA-SAM and SA-SGD (SA-SAM paper, Algorithm 1; Malitsky & Mishchenko 2020)."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.ball import Ball
from ..core.fields import NonNegative, Positive
from ..core.probe import Context, Method, Plan, Probe, Reading
from .registry import register


class Adaptive(Method, Protocol):
    """A method whose step size follows the local smoothness (SA-SAM paper, Algorithm 1)."""

    delta: NonNegative
    damping: Positive
    epsilon: NonNegative
    slots: tuple[str, ...] = ("previous",)

    def options(self) -> Mapping[str, Any]:
        return {"theta": inf}  # Algorithm 1, line 1: the second step takes the first branch

    def pattern(self, step: int) -> Hashable:
        return True

    def adapted(self, context: Context, here: Reading) -> Generator[Probe, Reading, Tensor]:
        """The step size min(|dw| / (damping |dg|), sqrt(1 + delta theta) lr), dg on the current batch."""
        lr = step_size(context)
        previous = context.recall("previous", missing=context.weights) if context.step else None
        context.remember("previous", context.weights.clone())
        if previous is None:
            return lr
        back = previous - context.weights
        moved = back.norm()
        there = yield Probe(at=back)
        change = (here.grad - there.grad).norm()
        theta = context.option("theta")
        if isinstance(theta, list):  # a group that was added since starts at infinity
            theta = min(theta)
        theta = torch.as_tensor(theta, dtype=lr.dtype, device=lr.device)
        ratio = moved / (self.damping * change)
        # Weights that did not move, or by so little that squares vanish, carry no information on the smoothness: a
        # ratio of 0 is rounding, and as a step size it would stop the run.
        smooth = torch.where((change > 0) & (ratio > 0), ratio, inf)
        growth = torch.where(lr > 0, (1 + self.delta * theta).sqrt() * lr, lr)  # a schedule may pass through 0
        now = torch.minimum(smooth, growth) + self.epsilon
        now = torch.where(torch.isinf(now), lr, now)  # neither a difference of gradients nor a history: keep lr
        context.settings.update(lr=now, theta=torch.where(lr > 0, now / lr, theta))
        return now


def step_size(context: Context) -> Tensor:
    """The learning rate of all parameter groups."""
    lr = context.option("lr")
    if isinstance(lr, list):
        raise ValueError(
            f"a smoothness-adaptive step has one size for all weights, and the groups have lr {sorted(set(lr))}: add a "
            "group with that of the first one, lr=opt.param_groups[0]['lr']"
        )
    return torch.as_tensor(lr, dtype=context.space.precision, device=context.space.device)


@register(
    "sa-sam",
    does="SAM that takes its step size from the local smoothness, and its radius from the step size",
    passes="3; first step 2",
    paper="Naganuma et al. 2024",
    run={"lr": 1e-3, "momentum": 0.0},  # Algorithm 1; Remark 1: a small first step, from the grid of section 3
    sets_lr=True,
)
@dataclass(frozen=True)
class SASAM(Adaptive):
    """SAM whose step size follows the local smoothness and whose radius is the square root of the step size.

    Parameters
    ----------
    delta
        The growth of the step size: at most by sqrt(1 + delta theta). Default: section 3, "Optimizers".
    damping
        The divisor of the smoothness estimate. Default: Algorithm 1, line 5; the released code has 1.
    epsilon
        Added to the step size; the released code has 1e-8.
    lagging_radius
        Whether the radius is the root of the previous step size, as in the released code.

    Notes
    -----
    Compute passes in float32: bf16 rounds away the difference of two gradients at close weights, and what is left makes
    the step size of deep networks shrink to zero.

    References
    ----------
    Naganuma et al. 2024, "Smoothness-Adaptive Sharpness-Aware Minimization for Finding Flatter Minima".

    Examples
    --------
    The step size grows from a small one, without momentum:

    >>> w = nn.Parameter(torch.ones(2))
    >>> opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=1e-3), steppe.SASAM())
    >>> for _ in range(3):  # on a bowl of curvature 1 it becomes 1 / 2
    ...     loss = opt.step(lambda pass_: pass_.backward(w.square().sum() / 2))
    >>> f"{float(opt.param_groups[0]['lr']):.2f}"
    '0.50'

    """

    delta: NonNegative = 0.02
    damping: Positive = 2.0
    epsilon: NonNegative = 0.0
    lagging_radius: bool = False

    def plan(self, context: Context) -> Plan:
        before = step_size(context)
        here = yield Probe()
        now = yield from self.adapted(context, here)
        rho = (before if self.lagging_radius else now).sqrt()
        context.settings["rho"] = rho
        return (yield Probe(at=Ball(rho).steepest_(here.grad, context))).grad


@register(
    "sa-sgd",
    does="the base optimizer with the step size of SA-SAM",
    passes="2; first step 1",
    paper="Naganuma et al. 2024",
    run={"lr": 1e-3, "momentum": 0.0},
    sets_lr=True,
)
@dataclass(frozen=True)
class SASGD(Adaptive):
    """The smoothness-adaptive step size without the ascent.

    Parameters
    ----------
    delta
        The growth of the step size: at most by sqrt(1 + delta theta). Default: section 3, "Optimizers".
    damping
        The divisor of the smoothness estimate. Default: Malitsky & Mishchenko 2020, Algorithm 1.
    epsilon
        Added to the step size.

    References
    ----------
    Naganuma et al. 2024, "Smoothness-Adaptive Sharpness-Aware Minimization for Finding Flatter Minima".

    Examples
    --------
    >>> steppe.SASGD()
    SASGD(delta=0.02, damping=2.0, epsilon=0.0)

    """

    delta: NonNegative = 0.02
    damping: Positive = 2.0
    epsilon: NonNegative = 0.0

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        yield from self.adapted(context, here)
        return here.grad
