"""Methods that run other methods."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ..core.fields import Count, NonNegative, check_fields
from ..core.probe import Context, InnerMethod, Method, Plan, Reading, pattern_of
from ..core.rows import Part, Rows, count, whole, within
from ..core.vector import Vector
from .registry import register
from .sam import SAM, Plain


def within_rows(plan: Plan, rows: Rows, sync: bool = True, show: Callable[[Reading], object] = id) -> Plan:
    """Runs `plan` with these rows as its batch, on this worker alone unless `sync`; calls `show` on its readings."""
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


def check_no_slots(method: Method, context: Context) -> None:
    """Raises if several workers would each keep vectors of their own between steps."""
    if method.slots and not context.alone:
        raise ValueError(
            f"{type(method).__name__} keeps {', '.join(method.slots)} between steps, and the workers would keep "
            "different values: use it directly, so that its probes are averaged, or use a method without slots"
        )


def on_own(method: Method, context: Context, rows: Rows = whole) -> Plan:
    """Runs `method` on these rows of this worker alone: other workers may have no such rows."""
    return within_rows(method.plan(cast(Context, _OfPart(context, apart=True))), rows, sync=False)


class _OfPart:
    """The context of a method whose gradient is averaged with others: of parts of a batch, or `apart` of workers."""

    def __init__(self, context: Context, apart: bool = False):
        self._site, self._apart, self.alone = context, apart, apart or context.alone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._site, name)

    def average_(self, vector: Vector) -> Vector:
        return vector if self._apart else self._site.average_(vector)

    def mean(self, numbers: Tensor) -> Tensor:
        return numbers if self._apart else self._site.mean(numbers)

    def move(self, vector: Vector) -> None:
        raise ValueError(
            "the method moves the weights besides its gradient, as WSAM(decouple=True) does, and gradients of parts of "
            "a batch are averaged here: use WSAM(decouple=False), or the method directly"
        )


class Wrapper(Method, Protocol):
    """A method that runs another one, whose slots, options and pattern are its own by default."""

    method: InnerMethod

    @property
    def slots(self) -> tuple[str, ...]:
        return self.method.slots

    def options(self) -> Mapping[str, Any]:
        return self.method.options()

    def pattern(self, step: int) -> Hashable:
        return pattern_of(self.method, step)


@dataclass(frozen=True)
class PerPart(Wrapper):
    """m-sharpness in a batch: `method` on each part of it, averaged by samples (Foret et al. 2021, section 4.1).

    Parameters
    ----------
    method
        A method without slots.
    parts
        The number of parts, whose sizes differ by at most one sample.

    Examples
    --------
    >>> steppe.PerPart(steppe.SAM(0.05), parts=4).options()
    {'rho': 0.05}

    """

    method: InnerMethod = field(default_factory=SAM)
    parts: Count = 2

    def __post_init__(self) -> None:
        check_fields(self, tensors=True)
        if self.method.slots:
            raise ValueError(
                f"{type(self.method).__name__} keeps {', '.join(self.method.slots)} between steps, and the parts would "
                "overwrite each other's: use a method without slots"
            )

    def plan(self, context: Context) -> Plan:
        total, batch = None, [0]
        for i in range(self.parts):
            part = Part(i, self.parts)
            plan = self.method.plan(cast(Context, _OfPart(context)))
            grad = yield from within_rows(plan, part, show=lambda r: batch.append(r.batch or 0))
            grad.mul_(_mean_rows(part.size(max(batch)), context))
            total = grad if total is None else total.add_(grad)
        assert total is not None
        return total.mul_(1 / _mean_rows(max(batch), context))


def _mean_rows(rows: int, context: Context) -> float | Tensor:
    """A number of rows, averaged over workers, so that parts have equal weights where batch sizes differ."""
    if context.alone:
        return float(rows)
    return context.mean(torch.full((), rows, dtype=context.space.precision, device=context.space.device))


@dataclass(frozen=True)
class PerWorker(Wrapper):
    """m-sharpness over workers: each runs `method` on its own data, and the results are averaged.

    Parameters
    ----------
    method
        A method; without slots if there are several workers.

    References
    ----------
    Foret et al. 2021, section 4.1.

    Examples
    --------
    >>> steppe.PerWorker(steppe.SAM(0.05)).options()
    {'rho': 0.05}

    """

    method: InnerMethod = field(default_factory=SAM)

    def plan(self, context: Context) -> Plan:
        check_no_slots(self.method, context)
        return context.average_((yield from on_own(self.method, context)))


@dataclass(frozen=True)
class Every(Method):
    """`method` at steps 0, k, 2k ..., and `otherwise` in between.

    Parameters
    ----------
    k
        The period.
    method, otherwise
        The two methods. A group option that both read has one default.

    Examples
    --------
    SAM in every second step:

    >>> w = nn.Parameter(torch.ones(2))
    >>> opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), steppe.Every(2, steppe.SAM(0.05)))
    >>> for _ in range(4):
    ...     loss = opt.step(lambda pass_: pass_.backward(w.square().sum()))
    ...     print(opt.passes_run)
    2
    1
    2
    1

    """

    k: Count
    method: InnerMethod = field(default_factory=SAM)
    otherwise: InnerMethod = field(default_factory=Plain)

    def __post_init__(self) -> None:
        check_fields(self, tensors=True)
        mine, other = self.method.options(), self.otherwise.options()
        for name in mine.keys() & other.keys():
            if mine[name] != other[name]:
                raise ValueError(
                    f"both methods of Every read the group option {name!r}, with the values {mine[name]} and "
                    f"{other[name]}: give them the same value, or schedule it in the groups"
                )

    @property
    def slots(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.method.slots, *self.otherwise.slots)))

    def options(self) -> Mapping[str, Any]:
        return {**self.otherwise.options(), **self.method.options()}

    def pattern(self, step: int) -> Hashable:
        current = self._at(step)
        inner = pattern_of(current, step)
        return None if inner is None else (current is self.method, inner)

    def plan(self, context: Context) -> Plan:
        return self._at(context.step).plan(context)

    def _at(self, step: int) -> Method:
        return self.otherwise if step % self.k else self.method


@register(
    "m-sam",
    does="SAM on each part of the batch, or on each worker",
    passes="2 if over_workers else 2 * parts",
    paper="Foret et al. 2021",
)
def _m_sam(rho: NonNegative = 0.05, parts: Count = 2, over_workers: bool = False) -> Method:
    """SAM on each part of a batch.

    Parameters
    ----------
    rho
        The radius. Default: Foret et al. 2021, section 3.1.
    parts
        The number of parts, whose sizes differ by at most one sample.
    over_workers
        Whether the parts are the batches of the workers.

    """
    return PerWorker(SAM(rho)) if over_workers else PerPart(SAM(rho), parts)
