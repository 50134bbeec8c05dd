"""Agnostic-SAM: up on the training rows, down on the held-out ones (Agnostic-SAM paper, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.ball import Ascent, ball
from ..core.probe import Plan, Probe, Site
from ..core.rows import Rows, Split, held_out, whole


@dataclass(frozen=True)
class AgnosticSAM:
    """The gradient on B_t at w + rho g_t(w) / |.| - held_out_rho g_v(w_v) / |.|, w_v up from w on B_v.

    With `share` each batch is split anew into B_t and B_v; with share=None the batch is B_t, and B_v is
    the caller's held-out data (`opt.step(closure, held_out=...)`, or `turn.held_out` in a loop).
    """

    rho: float | Ascent = 0.1  # section 4.1, CIFAR-10
    held_out_rho: float | Ascent = 0.05  # section 4.1: rho_1 = 2 rho_2 everywhere
    share: float | None = 0.7  # section 3.3: |B_t| = 0.7 |B|
    simple: bool = False  # True: w_v = w, the "simpler" version of section 5.1
    slots = ()

    def options(self) -> Mapping[str, Any]:
        return {"rho": ball(self.rho).rho}

    def cost(self, step: int) -> int:
        return 3 if self.simple else 4

    def pattern(self, step: int) -> Hashable:
        return True

    def plan(self, site: Site) -> Plan:
        train, rest = self._rows(site)
        down = ball(self.held_out_rho)
        # B_t comes first, so that running statistics see the larger part
        here = yield Probe(rows=train)
        top = ball(self.rho).within(site).steepest_(here.grad, site)
        held = yield Probe(rows=rest)
        if not self.simple:
            held = yield Probe(at=down.steepest_(held.grad, site), rows=rest)
        top.add_(down.steepest_(held.grad, site), -1.0)
        return (yield Probe(at=top, rows=train)).grad

    def _rows(self, site: Site) -> tuple[Rows, Rows]:
        if self.share is None:
            return whole, held_out
        return Split(self.share, site.key(0)), Split(self.share, site.key(0), rest=True)
