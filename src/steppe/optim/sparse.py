"""Sparse-SAM: perturb only some of the weights, by Fisher information or by a dynamic mask (Mi et al. 2022)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from ..ball import Ascent, ball
from ..probe import Plan, Probe, Reading, Site
from ..rows import Row
from ..vector import Vector

SLOTS = ("mask",)
ONE_EPOCH = 391  # steps, CIFAR-10 at batch 128: the universal-SAM paper's code renews the mask every epoch


@dataclass(frozen=True)
class FisherSparseSAM:
    """SSAM-F: SAM on the weights of largest squared single-sample gradients; the norm is of the whole gradient."""

    rho: float | Ascent = 0.1  # universal-SAM paper, section 4, CIFAR-10
    sparsity: float = 0.5  # universal-SAM paper, section 4
    samples: int = 16  # universal-SAM paper, section 4
    every: int = ONE_EPOCH
    slots = SLOTS

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 2 if step % self.every else 2 + self.samples

    def plan(self, site: Site) -> Plan:
        here = yield Probe()
        if site.step % self.every == 0:
            fisher = site.space.zeros()
            for i in range(self.samples):
                alone = (yield Probe(rows=Row(i), sync=False)).grad
                fisher.add_(alone.mul_(alone))
            site.memory["mask"] = _largest(site.average_(fisher), _kept(site, self.sparsity))
        return (yield Probe(at=_masked(here, self.rho, site))).grad


@dataclass(frozen=True)
class DynamicSparseSAM:
    """SSAM-D: a random mask that drops its flattest weights and grows others at random, less and less."""

    rho: float | Ascent = 0.1  # as SSAM-F
    sparsity: float = 0.5  # as SSAM-F
    drop: float = 0.5  # share of the mask renewed at the start, annealed by a cosine (Mi et al. 2022, Algorithm 3)
    every: int = ONE_EPOCH
    steps: int = 200 * ONE_EPOCH  # length of the annealing: Mi et al. 2022 train for 200 epochs
    slots = SLOTS

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 2

    def plan(self, site: Site) -> Plan:
        here = yield Probe()
        if site.step % self.every == 0:
            site.memory["mask"] = self._renewed(here.grad, site)
        return (yield Probe(at=_masked(here, self.rho, site))).grad

    def _renewed(self, grad: Vector, site: Site) -> Vector:
        kept, chance = _kept(site, self.sparsity), site.draw(0, grad).uniform(0.0, 1.0)
        if site.step == 0:
            return _largest(chance, kept)
        dropped = round(self.drop / 2 * (1 + cos(pi * min(site.step / self.steps, 1))) * kept)
        steep = grad.abs().map(lambda x: x.clamp(min=torch.finfo(x.dtype).tiny)).mul_(site.memory["mask"])
        stay = _largest(steep, kept - dropped)
        grown = _largest(chance.mul_(stay.map(lambda x: 1 - x)), dropped)
        return stay.add_(grown)


def _masked(here: Reading, rho: float | Ascent, site: Site) -> Vector:
    return ball(rho).within(site).steepest_(here.grad, site).mul_(site.memory["mask"])


def _kept(site: Site, sparsity: float) -> int:
    return round((1 - sparsity) * sum(p.numel() for p in site.space.params))


def _largest(scores: Vector, k: int) -> Vector:
    """1 at the k largest of the non-negative scores over all ranks, 0 elsewhere; ties with the k-th count too.

    Non-negative floats are ordered as their bits are, so the k-th largest is found bit by bit, exactly
    and without gathering anything.
    """
    if k <= 0:
        return scores.map(torch.zeros_like)
    space = scores.space
    wide = space.precision is torch.float64
    bits = [x.to(space.precision).view(torch.int64 if wide else torch.int32) for x in scores.chunks]
    kth = torch.zeros((), dtype=torch.int64, device=space.device)
    for b in reversed(range(63 if wide else 31)):
        candidate = kth + (1 << b)
        enough = space.total([(x >= candidate.to(x.device)).sum() for x in bits], torch.sum) >= k
        kth = torch.where(enough, candidate, kth)

    def chosen(x: Tensor, as_bits: Tensor) -> Tensor:
        return (as_bits >= kth.to(x.device)).to(x.dtype)

    return Vector(space, [chosen(x, y) for x, y in zip(scores.chunks, bits, strict=True)])
