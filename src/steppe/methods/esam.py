"""ESAM: perturb some tensors, descend on the rows whose loss increases most (Du et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Annotated

import torch

from ..core.ball import Radius, ball
from ..core.draw import seed_of
from ..core.fields import Gt, Le
from ..core.probe import Context, Method, Plan, Probe, Reading
from ..core.rows import RowIndex, Rows, whole
from ..core.vector import Vector, zero_
from .registry import register


@register(
    "esam",
    does="SAM that moves random tensors, and descends on the samples whose loss rises most",
    passes="3 if gamma < 1 else 2",
    paper="Du et al. 2022",
)
@dataclass(frozen=True)
class ESAM(Method):
    """SAM that moves each tensor with probability beta, 1 / beta as far, and descends on part of the samples.

    Parameters
    ----------
    rho
        The radius, or the neighbourhood to climb in. Default: Foret et al. 2021.
    beta
        The probability that a tensor moves. Default: Du et al. 2022, released script.
    gamma
        The fraction of samples whose loss rises most, on which it descends. Default: Du et al. 2022, released script.
        Below 1 it needs one loss per sample, `pass_.backward(losses)` with reduction="none", and one more forward pass.

    Examples
    --------
    >>> steppe.METHODS["esam"].passes
    '3 if gamma < 1 else 2'

    """

    rho: Radius = 0.05
    beta: Annotated[float, Gt(0), Le(1)] = 0.6
    gamma: Annotated[float, Gt(0), Le(1)] = 0.5
    # without a pattern: the host decides which tensors move

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        d = self._thinned(ball(self.rho).within(context).steepest_(here.grad, context), context)
        rows: Rows = whole
        if self.gamma < 1:
            there = yield Probe(at=d.clone(), grad=False)
            rows = self._largest_increases(here, there)
        return (yield Probe(at=d, rows=rows)).grad

    def _thinned(self, d: Vector, context: Context) -> Vector:
        generator = torch.Generator("cpu").manual_seed(seed_of(*context.key(0)))
        chance = torch.rand(len(d.space.params), generator=generator, device="cpu")
        d.mul_(1 / self.beta)
        zero_([t for t, c in zip(d.tensors, chance.tolist(), strict=True) if c >= self.beta])
        return d

    def _largest_increases(self, here: Reading, there: Reading) -> Rows:
        if here.losses is None or there.losses is None:
            raise RuntimeError(
                "ESAM picks rows by their own losses: compute them unreduced (reduction='none') and call "
                "pass_.backward(losses), or set gamma=1."
            )
        n = len(here.losses)
        return RowIndex(torch.topk(there.losses - here.losses, ceil(self.gamma * n)).indices, n)
