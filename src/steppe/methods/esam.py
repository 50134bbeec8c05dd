"""ESAM: perturb some tensors, descend on the rows that got worse (Du et al. 2022)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import torch

from ..core.ball import Ascent, ball
from ..core.draw import seed_of
from ..core.probe import Plan, Probe, Reading, Site
from ..core.rows import Chosen, Rows, whole
from ..core.vector import Vector, zero_


@dataclass(frozen=True)
class ESAM:
    """SAM that moves each tensor with chance beta, by 1 / beta as far, and keeps the gamma share of rows hit hardest.

    With gamma < 1 it needs one loss a row: `turn.backward(losses)` with reduction="none".
    """

    rho: float | Ascent = 0.05  # Foret et al. 2021
    beta: float = 0.6  # Du et al. 2022, released script
    gamma: float = 0.5  # Du et al. 2022, released script
    slots = ()

    def __post_init__(self) -> None:
        if not (0 < self.beta <= 1 and 0 < self.gamma <= 1):
            raise ValueError(f"ESAM needs beta and gamma in (0, 1], not {self.beta} and {self.gamma}")

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 2 if self.gamma == 1 else 3  # the third is a forward pass alone

    def pattern(self, step: int) -> Hashable:
        return None  # which tensors move is decided on the host

    def plan(self, site: Site) -> Plan:
        here = yield Probe()
        d = self._thinned(ball(self.rho).within(site).steepest_(here.grad, site), site)
        rows: Rows = whole
        if self.gamma < 1:
            there = yield Probe(at=d.clone(), grad=False)
            rows = self._hit_hardest(here, there)
        return (yield Probe(at=d, rows=rows)).grad

    def _thinned(self, d: Vector, site: Site) -> Vector:
        chance = torch.rand(len(d.space.params), generator=torch.Generator().manual_seed(seed_of(*site.key(0))))
        d.mul_(1 / self.beta)
        zero_([t for t, c in zip(d.tensors, chance.tolist(), strict=True) if c >= self.beta])
        return d

    def _hit_hardest(self, here: Reading, there: Reading) -> Rows:
        if here.losses is None or there.losses is None:
            raise RuntimeError(
                "ESAM picks rows by their own losses: compute them unreduced (reduction='none') and hand them to "
                "turn.backward(losses), or set gamma=1."
            )
        n = len(here.losses)
        return Chosen(torch.topk(there.losses - here.losses, ceil(self.gamma * n)).indices, n)
