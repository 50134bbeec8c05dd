"""SharpBalance's mixed step: normal rows plain, sharpness-aware rows by SAM (SharpBalance paper, section 4.3)."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.probe import Method, Plan, Probe, Site
from ..core.rows import Chosen, positions
from .combinators import on_own, refuse_memory
from .sam import SAM


@dataclass(frozen=True)
class SharpBalance:
    """(|normal| g_normal(w) + |sharp| g_SAM on the sharp rows) / |B|, from a mask: `opt.step(closure, mask=sharp)`."""

    method: Method = field(default_factory=lambda: SAM(0.2))  # released scripts: rho 0.2

    @property
    def slots(self) -> tuple[str, ...]:
        return self.method.slots

    def options(self) -> Mapping[str, Any]:
        return self.method.options()

    def cost(self, step: int) -> int:
        return 1 + self.method.cost(step)

    def pattern(self, step: int) -> Hashable:
        return None  # every batch has another number of sharp rows

    def plan(self, site: Site) -> Plan:
        if site.mask is None or not len(site.mask):
            raise ValueError(
                "SharpBalance needs to know which rows of the batch are sharpness-aware: "
                "opt.step(closure, mask=sharp) or opt.passes(mask=sharp), sharp a bool tensor over the rows."
            )
        refuse_memory(self.method, site)
        n, sharp, normal = len(site.mask), positions(site.mask, True), positions(site.mask, False)
        # workers have different shares of sharp rows: each sums up its own batch, then they average
        if not len(sharp):
            return site.average_((yield Probe(rows=AllOf(n), sync=False)).grad)
        if not len(normal):
            return site.average_((yield from on_own(self.method, site, AllOf(n))))
        plain = (yield Probe(rows=Chosen(normal, n), sync=False)).grad
        steep = yield from on_own(self.method, site, Chosen(sharp, n))
        return site.average_(steep.add_(plain, len(normal) / len(sharp)).mul_(len(sharp) / n))


@dataclass(frozen=True)
class AllOf:
    """Every row of a batch of `of` rows, without a copy of them."""

    of: int

    def index(self, n: int) -> slice:
        if n != self.of:
            raise ValueError(f"rows were chosen for a batch of {self.of}, but this batch has {n} rows")
        return slice(None)


@dataclass(frozen=True)
class OnSomeRows:
    """A method where no rows are marked, and where some are, SharpBalance's step: the method on those, the rest plain.

    Before the members of an ensemble have told one another anything no rows are marked, and steps cost what they cost.
    """

    method: Method

    @property
    def slots(self) -> tuple[str, ...]:
        return self.method.slots

    def options(self) -> Mapping[str, Any]:
        return self.method.options()

    def cost(self, step: int) -> int:
        return SharpBalance(self.method).cost(step)

    def pattern(self, step: int) -> Hashable:
        return self.method.pattern(step)  # where no rows are marked

    def plan(self, site: Site) -> Plan:
        return self.method.plan(site) if site.mask is None else SharpBalance(self.method).plan(site)
