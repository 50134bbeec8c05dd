"""Smoothness-adaptive step sizes: SA-SAM and SA-SGD (SA-SAM paper, Algorithm 1; Malitsky & Mishchenko 2020)."""

from __future__ import annotations

from collections.abc import Generator, Hashable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
from torch import Tensor

from ..core.ball import Ball
from ..core.probe import Plan, Probe, Reading, Site

SLOTS = ("previous",)
OPTIONS = {"theta": inf}  # Algorithm 1, line 1: the second step takes the first branch


@dataclass(frozen=True)
class SASAM:
    """SAM whose step size follows the local smoothness and whose radius is the root of the step size."""

    delta: float = 0.02  # section 3, "Optimizers"
    damping: float = 2.0  # Algorithm 1, line 5; the released code has 1
    epsilon: float = 0.0  # added to the step size; the released code has 1e-8
    lagging_radius: bool = False  # True: the root of the step size before this step's update, as released
    slots = SLOTS

    def options(self) -> Mapping[str, Any]:
        return OPTIONS

    def cost(self, step: int) -> int:
        return 3 if step else 2

    def pattern(self, step: int) -> Hashable:
        return step > 0

    def plan(self, site: Site) -> Plan:
        before = _step_size(site)
        here = yield Probe()
        now = yield from _adapted(site, here, self.delta, self.damping, self.epsilon)
        rho = (before if self.lagging_radius else now).sqrt()
        site.settings["rho"] = rho
        return (yield Probe(at=Ball(rho).steepest_(here.grad, site))).grad


@dataclass(frozen=True)
class SASGD:
    """The smoothness-adaptive step size without the ascent."""

    delta: float = 0.02  # section 3, "Optimizers"
    damping: float = 2.0  # Malitsky & Mishchenko 2020, Algorithm 1
    epsilon: float = 0.0
    slots = SLOTS

    def options(self) -> Mapping[str, Any]:
        return OPTIONS

    def cost(self, step: int) -> int:
        return 2 if step else 1

    def pattern(self, step: int) -> Hashable:
        return step > 0

    def plan(self, site: Site) -> Plan:
        here = yield Probe()
        yield from _adapted(site, here, self.delta, self.damping, self.epsilon)
        return here.grad


def _step_size(site: Site) -> Tensor:
    lr = site.option("lr")
    if isinstance(lr, list):
        raise ValueError(
            f"a smoothness-adaptive step has one size for all weights: the groups have lr {sorted(set(lr))}"
        )
    return torch.as_tensor(lr, dtype=site.space.precision, device=site.space.device)


def _adapted(
    site: Site, here: Reading, delta: float, damping: float, epsilon: float
) -> Generator[Probe, Reading, Tensor]:
    """The step size min(|dw| / (damping |dg|), sqrt(1 + delta theta) lr), dg on the current batch."""
    lr = _step_size(site)
    previous = site.recall("previous", missing=site.weights) if site.step else None
    site.remember("previous", site.weights.clone())
    if previous is None:
        return lr
    back = previous - site.weights
    moved = back.norm()
    there = yield Probe(at=back)
    turned = (here.grad - there.grad).norm()
    theta = torch.as_tensor(site.option("theta"), dtype=lr.dtype, device=lr.device)
    ratio = moved / (damping * turned)
    # Weights that stood still, or moved by less than a square can hold, say nothing of the slope around them: a ratio
    # of 0 is rounding, and as a step size it would end the run where it is.
    smooth = torch.where((turned > 0) & (ratio > 0), ratio, inf)
    growth = torch.where(lr > 0, (1 + delta * theta).sqrt() * lr, lr)  # a schedule may pass through 0
    now = torch.minimum(smooth, growth) + epsilon
    now = torch.where(torch.isinf(now), lr, now)  # no slope and no history: nothing to adapt to
    site.settings.update(lr=now, theta=torch.where(lr > 0, now / lr, theta))
    return now
