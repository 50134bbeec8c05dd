"""Methods made of methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..probe import Method, Plan, Site
from ..rows import Part
from .sam import SAM, Plain


def amended(plan: Plan, **changes: Any) -> Plan:
    """`plan` with every probe changed the same way."""
    reading: Any = None
    while True:
        try:
            probe = plan.send(reading)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        reading = yield replace(probe, **changes)


@dataclass(frozen=True)
class PerPart:
    """m-sharpness in a batch: `method` on each part of it, averaged by rows (Foret et al. 2021, section 4.1)."""

    method: Method = field(default_factory=SAM)
    parts: int = 2
    slots = ()

    def __post_init__(self) -> None:
        if self.method.slots:
            raise ValueError(f"{type(self.method).__name__} remembers {self.method.slots}: parts would mix them up")

    def options(self) -> Mapping[str, Any]:
        return self.method.options()

    def cost(self, step: int) -> int:
        return self.parts * self.method.cost(step)

    def plan(self, site: Site) -> Plan:
        total, seen = None, 0
        for i in range(self.parts):
            counted = _Counted(amended(self.method.plan(site), rows=Part(i, self.parts)))
            grad = yield from counted.plan()
            grad.mul_(float(counted.rows))
            total, seen = grad if total is None else total.add_(grad), seen + counted.rows
        assert total is not None
        return total.mul_(1 / seen)


@dataclass
class _Counted:
    """A plan, and how many rows its last probe was taken on."""

    inner: Plan
    rows: int = 1

    def plan(self) -> Plan:
        reading: Any = None
        while True:
            try:
                probe = self.inner.send(reading)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
            reading = yield probe
            self.rows = reading.rows or 1


@dataclass(frozen=True)
class PerWorker:
    """m-sharpness over workers: each follows `method` on its own data, and the results are averaged."""

    method: Method = field(default_factory=SAM)

    @property
    def slots(self) -> tuple[str, ...]:
        return self.method.slots

    def options(self) -> Mapping[str, Any]:
        return self.method.options()

    def cost(self, step: int) -> int:
        return self.method.cost(step)

    def plan(self, site: Site) -> Plan:
        return site.average_((yield from amended(self.method.plan(site), sync=False)))


@dataclass(frozen=True)
class Every:
    """`method` at every k-th step, from the first one on, and `otherwise` in between."""

    k: int
    method: Method = field(default_factory=SAM)
    otherwise: Method = field(default_factory=Plain)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"Every(k, ...) needs k >= 1, not {self.k}")

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.method.slots, *self.otherwise.slots)))

    def options(self) -> Mapping[str, Any]:
        return {**self.otherwise.options(), **self.method.options()}

    def cost(self, step: int) -> int:
        return self._at(step).cost(step)

    def plan(self, site: Site) -> Plan:
        return self._at(site.step).plan(site)

    def _at(self, step: int) -> Method:
        return self.otherwise if step % self.k else self.method
