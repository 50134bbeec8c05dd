"""Sparse-SAM: perturb some of the weights, chosen by Fisher information or by a dynamic mask (Mi et al. 2022)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import cos, pi

import torch
from torch import Tensor

from ..core.ball import Radius, ball
from ..core.draw import Draw
from ..core.fields import Count, Fraction
from ..core.probe import Context, Method, Plan, Probe, Reading
from ..core.rows import Row
from ..core.vector import Space, Vector
from .registry import register

SLOTS = ("mask",)
ONE_EPOCH = 391  # steps, CIFAR-10 at batch 128: the universal-SAM paper's code renews the mask every epoch


@register(
    "ssam-f",
    does="SAM that moves only the weights with the largest Fisher information",
    passes="2; every every steps 2 + samples",
    paper="Mi et al. 2022",
    in_run=lambda per_epoch, **_: {"every": per_epoch},  # a new mask every epoch, as in the papers' runs
)
@dataclass(frozen=True)
class FisherSparseSAM(Method):
    """SSAM-F: SAM on the weights of largest squared per-sample gradients; the norm is that of the whole gradient.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: universal-SAM paper, section 4, CIFAR-10.
    sparsity
        The fraction of weights that do not move. Default: universal-SAM paper, section 4.
    samples
        The number of samples whose gradients decide. Default: universal-SAM paper, section 4.
    every
        The number of steps between two masks. Default: one epoch of CIFAR-10 at batch size 128.

    References
    ----------
    Mi et al. 2022, "Make Sharpness-Aware Minimization Stronger: A Sparsified Perturbation Approach".

    Examples
    --------
    A step that renews the mask reads the gradients of 16 samples, the others do not:

    >>> steppe.METHODS["ssam-f"].usual_passes()
    '2; every 391 steps 18'

    """

    rho: Radius = 0.1
    sparsity: Fraction = 0.5
    samples: Count = 16
    every: Count = ONE_EPOCH
    slots = SLOTS

    def pattern(self, step: int) -> Hashable:
        return True if step % self.every else None  # the host decides on a new mask

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        mask = context.recall("mask")
        if mask is None or context.step % self.every == 0:
            # about 1 / norm, a factor without rounding: squares of small or large gradients would vanish or overflow
            norm = here.grad.norm()
            unit = torch.ldexp(torch.ones_like(norm), -torch.frexp(norm).exponent)
            fisher = context.space.zeros()
            for i in range(self.samples):
                alone = (yield Probe(rows=Row(i), sync=False)).grad.mul_(unit)
                fisher.add_(alone.mul_(alone))
            mask = _largest(context.average_(fisher), _kept(context, self.sparsity), context.draw(0, here.grad))
            context.remember("mask", mask)
        return (yield Probe(at=_masked(here, mask, self.rho, context))).grad


@register(
    "ssam-d",
    does="SAM that moves only the weights in a mask, which drops flat ones and grows others",
    passes="2",
    paper="Mi et al. 2022",
    in_run=lambda per_epoch, steps, **_: {"every": per_epoch, "steps": steps},  # the renewed share falls over the run
)
@dataclass(frozen=True)
class DynamicSparseSAM(Method):
    """SSAM-D: a random mask that drops its flattest weights and grows random others, at a rate that falls to 0.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: as SSAM-F.
    sparsity
        The fraction of weights that do not move. Default: as SSAM-F.
    drop
        The fraction of the mask that is renewed at first, annealed by a cosine (Mi et al. 2022, Algorithm 3).
    every
        The number of steps between two masks. Default: one epoch of CIFAR-10 at batch size 128.
    steps
        The length of the annealing. Default: Mi et al. 2022 train for 200 epochs.

    Examples
    --------
    >>> steppe.DynamicSparseSAM(sparsity=0.8, every=100, steps=1000).slots
    ('mask',)

    """

    rho: Radius = 0.1
    sparsity: Fraction = 0.5
    drop: Fraction = 0.5
    every: Count = ONE_EPOCH
    steps: Count = 200 * ONE_EPOCH
    slots = SLOTS

    def pattern(self, step: int) -> Hashable:
        return True if step % self.every else None  # the host decides on a new mask

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        mask = context.recall("mask") if context.step else None
        if mask is None or context.step % self.every == 0:
            mask = self._renewed(mask, here.grad, context)
            context.remember("mask", mask)
        return (yield Probe(at=_masked(here, mask, self.rho, context))).grad

    def _renewed(self, mask: Vector | None, grad: Vector, context: Context) -> Vector:
        kept = _kept(context, self.sparsity)
        chance, ties = context.draw(0, grad).uniform(0.0, 1.0), context.draw(1, grad)
        if mask is None:
            return _largest(chance, kept, ties)
        dropped = round(self.drop / 2 * (1 + cos(pi * min(context.step / self.steps, 1))) * kept)
        steep = grad.map(lambda x: x.abs().clamp(min=torch.finfo(x.dtype).tiny)).mul_(mask)
        stay = _largest(steep, kept - dropped, ties)
        grown = _largest(chance.mul_(stay.map(lambda x: 1 - x)), dropped, ties)
        return stay.add_(grown)


def _masked(here: Reading, mask: Vector, rho: Radius, context: Context) -> Vector:
    return ball(rho).within(context).steepest_(here.grad, context).mul_(mask)


def _kept(context: Context, sparsity: Fraction) -> int:
    return round((1 - sparsity) * sum(p.numel() for p in context.space.params))


def _largest(scores: Vector, k: Count, ties: Draw) -> Vector:
    """1 at the k largest of the non-negative scores over all ranks, 0 elsewhere; `ties` decides between equal ones."""
    space = scores.space
    if k <= 0:
        return scores.map(torch.zeros_like)
    order, tie_order = _bits(scores), _bits(ties.uniform(0.0, 1.0))
    everywhere = [torch.ones_like(x, dtype=torch.bool) for x in order]
    kth = _kth_largest(space, order, everywhere, k)
    equal = [x == kth.to(x.device) for x in order]
    above = [x > kth.to(x.device) for x in order]
    left = k - space.total([x.sum() for x in above], torch.sum)
    drawn = _kth_largest(space, tie_order, equal, left)
    chosen = [a | (e & (x >= drawn.to(x.device))) for a, e, x in zip(above, equal, tie_order, strict=True)]
    return Vector(space, [c.to(x.dtype) for c, x in zip(chosen, scores.chunks, strict=True)])


def _bits(v: Vector) -> list[Tensor]:
    """Integers in the order of the entries: non-negative floats have the order of their bits."""
    precision = v.space.precision
    return [x.to(precision).view(torch.int64 if precision is torch.float64 else torch.int32) for x in v.chunks]


def _kth_largest(space: Space, values: list[Tensor], among: list[Tensor], k: int | Tensor) -> Tensor:
    """The k-th largest integer where `among` is true, found bit by bit: exact, and without a gather over ranks."""
    kth = torch.zeros((), dtype=torch.int64, device=space.device)
    for b in reversed(range(8 * values[0].element_size() - 1)):
        candidate = kth + (1 << b)
        pairs = zip(values, among, strict=True)
        enough = space.total([((x >= candidate.to(x.device)) & m).sum() for x, m in pairs], torch.sum) >= k
        kth = torch.where(enough, candidate, kth)
    return kth
