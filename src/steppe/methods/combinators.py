"""Methods made of methods."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor

from ..core.probe import Method, Plan, Reading, Site, pattern_of
from ..core.rows import Part, Rows, count, whole, within
from ..core.vector import Vector
from .sam import SAM, Plain


def within_rows(plan: Plan, rows: Rows, sync: bool = True, show: Callable[[Reading], object] = id) -> Plan:
    """`plan` on these rows as if they were the batch, and on this worker alone unless `sync`; shows its readings."""
    reading: Any = None
    while True:
        try:
            probe = plan.send(reading)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        reading = yield replace(probe, rows=within(rows, probe.rows), sync=probe.sync and sync)
        show(reading)
        if reading.batch is not None:
            reading.batch = count(rows, reading.batch)


def refuse_memory(method: Method, site: Site) -> None:
    """Workers that each follow a method with a memory would come to remember different things."""
    if method.slots and not site.alone:
        raise ValueError(
            f"{type(method).__name__} remembers {', '.join(method.slots)}, and every worker would remember its own: "
            "use it directly, so that its probes are averaged, or take a method without a memory"
        )


def on_own(method: Method, site: Site, rows: Rows = whole) -> Plan:
    """`method` on these rows of this worker, which waits for no other: others may have no such rows."""
    return within_rows(method.plan(cast(Site, _Alone(site))), rows, sync=False)


class _Alone:
    """A site without the other workers."""

    alone = True

    def __init__(self, site: Site):
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def average_(self, vector: Vector) -> Vector:
        return vector

    def mean(self, numbers: Tensor) -> Tensor:
        return numbers


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

    def pattern(self, step: int) -> Hashable:
        return pattern_of(self.method, step)

    def plan(self, site: Site) -> Plan:
        total, batch = None, [0]
        for i in range(self.parts):
            part = Part(i, self.parts)
            grad = yield from within_rows(self.method.plan(site), part, show=lambda r: batch.append(r.batch or 0))
            grad.mul_(_mean_rows(part.size(max(batch)), site))
            total = grad if total is None else total.add_(grad)
        assert total is not None
        return total.mul_(1 / _mean_rows(max(batch), site))


def _mean_rows(rows: int, site: Site) -> float | Tensor:
    """A number of rows, averaged over workers: their batches may differ in size, and the weight of a part must not."""
    if site.alone:
        return float(rows)
    return site.mean(torch.full((), rows, dtype=site.space.precision, device=site.space.device))


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

    def pattern(self, step: int) -> Hashable:
        return pattern_of(self.method, step)

    def plan(self, site: Site) -> Plan:
        refuse_memory(self.method, site)
        return site.average_((yield from on_own(self.method, site)))


@dataclass(frozen=True)
class Every:
    """`method` at every k-th step, from the first one on, and `otherwise` in between."""

    k: int
    method: Method = field(default_factory=SAM)
    otherwise: Method = field(default_factory=Plain)

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"Every(k, ...) needs k >= 1, not {self.k}")
        mine, other = self.method.options(), self.otherwise.options()
        for name in mine.keys() & other.keys():
            if mine[name] != other[name]:
                raise ValueError(
                    f"both methods of Every read the group option {name!r} and want {mine[name]} and {other[name]}: "
                    "give them the same value, or schedule it in the groups"
                )

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.method.slots, *self.otherwise.slots)))

    def options(self) -> Mapping[str, Any]:
        return {**self.otherwise.options(), **self.method.options()}

    def cost(self, step: int) -> int:
        return self._at(step).cost(step)

    def pattern(self, step: int) -> Hashable:
        chosen = self._at(step)
        inner = pattern_of(chosen, step)
        return None if inner is None else (chosen is self.method, inner)

    def plan(self, site: Site) -> Plan:
        return self._at(site.step).plan(site)

    def _at(self, step: int) -> Method:
        return self.otherwise if step % self.k else self.method
