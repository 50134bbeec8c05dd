"""Methods and their plans: a plan yields probes, receives losses and gradients, and returns a gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field
from inspect import isroutine
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import torch
from torch import Tensor

from .arguments import InitSignature, check_instance, check_not_an_optimizer_call, described
from .ball import ball
from .draw import Draw
from .fields import check_fields
from .metric import Surroundings
from .rows import Rows, whole
from .vector import Vector


@dataclass(frozen=True)
class Probe:
    """A request for the loss and gradient at displaced weights.

    Parameters
    ----------
    at
        The displacement, which the probe consumes; None for the weights themselves.
    rows
        The samples of the batch on which the loss is computed; all by default.
    sync
        Whether to average the gradient over workers.
    grad
        Whether to run a backward pass; without one the reading has losses alone.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)

    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> objective.read(steppe.Probe(grad=False)).loss
    tensor(1., dtype=torch.float64)

    """

    at: Vector | None = None
    rows: Rows = whole
    sync: bool = True
    grad: bool = True


class _NoGradient:
    """In the place of the gradient of a probe with grad=False: whatever reads it raises."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("the probe has grad=False, so its reading has losses and no gradient")


NO_GRADIENT: Any = _NoGradient()


@dataclass
class Reading:
    """The result of a probe. A plan may change its gradient in place.

    Attributes
    ----------
    grad
        The gradient, unless the probe has grad=False.
    losses
        One loss per sample, or None if the training loop passed a reduced loss.
    batch
        The number of samples in the batch, or None if the training loop selected none.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)

    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> reading = objective.read(steppe.Probe())
    >>> reading.grad.tensors
    [tensor([[1., 1.]])]

    """

    grad: Vector
    _loss: Tensor | None
    _mean: Callable[[Tensor], Tensor]  # over workers
    losses: Tensor | None = None
    batch: int | None = None
    _averaged: Tensor | None = field(default=None, repr=False)

    @property
    def loss(self) -> Tensor:
        """The mean loss, over workers too if the probe has sync=True."""
        if self._loss is None:
            raise RuntimeError("the method needs the value of the loss: return it from the closure")
        if self._averaged is None:
            self._averaged = self._mean(self._loss)
        return self._averaged


Plan = Generator[Probe, Reading, Vector]


class Context(Surroundings, Protocol):
    """What a plan can read: the weights, the options of the parameter groups, random draws and its own memory.

    Attributes
    ----------
    step
        The number of the step, from 0.
    settings
        Group options that the plan sets when the step is applied, such as lr.
    mask
        A bool tensor over the samples of the batch, or None if the caller passed none.
    alone
        Whether no other workers share the step.

    """

    step: int
    settings: dict[str, Any]
    mask: Tensor | None

    @property
    def alone(self) -> bool: ...
    def option(self, name: str) -> Any:
        """A group option: one value, or one per chunk if the groups differ."""
        ...

    def draw(self, sample: int, grad: Vector) -> Draw:
        """The source of random draw number `sample` of this step."""
        ...

    def key(self, sample: int) -> tuple[int, ...]:
        """The key of random draw number `sample` of this step."""
        ...

    def momentum(self) -> Vector | None:
        """The momentum of the base optimizer, or None before its first step."""
        ...

    def recall(self, slot: str, missing: Vector | None = None) -> Vector | None:
        """The vector that an earlier step kept in this slot; `missing` or 0 where a parameter is new since then."""
        ...

    def remember(self, slot: str, vector: Vector) -> None:
        """Keeps a vector for later steps, once this step is applied."""
        ...

    def move(self, vector: Vector) -> None:
        """Adds a vector to the weights once this step is applied, after the base optimizer and not through it."""
        ...

    def average_(self, vector: Vector) -> Vector:
        """Averages a vector over workers, in place."""
        ...

    def mean(self, numbers: Tensor) -> Tensor:
        """The mean of numbers over workers."""
        ...


class Method(Protocol):
    """Computes the gradient that the base optimizer applies.

    A method of your own is a frozen dataclass that inherits from this class and writes `plan`; `steppe.register` gives
    it a name. Its fields are checked against their annotations, such as `alpha: Annotated[float, Ge(0)]`. The defaults
    of the other members keep no vectors, read `rho` from the parameter groups if the method has a field of that name,
    and run every step eagerly.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Halved(steppe.Method):
    ...     def plan(self, context):
    ...         return (yield steppe.Probe()).grad / 2
    >>> w = nn.Parameter(torch.ones(2))
    >>> opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=1.0), Halved())
    >>> loss = opt.step(lambda pass_: pass_.backward(w.square().sum() / 2))
    >>> w.detach()
    tensor([0.5000, 0.5000])

    """

    if not TYPE_CHECKING:  # no part of the protocol
        __signature__ = InitSignature()

        def __new__(cls, *args, **options):
            check_not_an_optimizer_call(cls.__name__, args, options)
            return super().__new__(cls)

        def __post_init__(self):
            check_fields(self, tensors=True)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the vectors that the method keeps between steps; none by default."""
        return ()

    def options(self) -> Mapping[str, Any]:
        """Group options that the plan reads, with their defaults: the radius `rho` of the method, if it has one."""
        return {"rho": ball(self.rho).rho} if hasattr(self, "rho") else {}

    def pattern(self, step: int) -> Hashable:
        """A value that is equal for steps that run the same operations, so that one CUDA graph serves them all.

        None, the default, for a step that runs eagerly: one that decides something on the host, or of a plan of which
        nobody has said that its steps are alike. Called from the second step on.
        """
        return None

    @abstractmethod
    def plan(self, context: Context) -> Plan:
        """Yields probes, receives their readings, and returns the gradient for the base optimizer."""
        ...


def check_method(method: Any, what: str = "the method") -> Any:
    """Returns a method; raises for what is none, and says how to make one of it."""
    check_instance(what, method)
    if isroutine(method):
        raise TypeError(f"{what} is {described(method)}: call it, {method.__name__}(), to make one")
    if isinstance(method, str):
        raise TypeError(f"{what} is the string {method!r}: write steppe.method({method!r}, ...) for a name")
    if hasattr(method, "steepest_"):
        raise TypeError(f"{what} is a neighbourhood, {method!r}: write SAM({method!r})")
    missing = [name for name in ("plan", "options") if not callable(getattr(method, name, None))]
    if missing or not hasattr(method, "slots"):
        lacking = ", ".join(missing or ["slots"])
        raise TypeError(
            f"{what} is a steppe.Method such as steppe.SAM(rho=0.05), not {described(method)}: it has no {lacking}"
        )
    return method


InnerMethod = Annotated[Method, check_method]
"""The annotation of a field that holds a method."""


def always(self: Any, step: int) -> Hashable:
    """The pattern of a method whose steps all run the same operations from the second one on: `pattern = always`."""
    return True


def pattern_of(method: Method, step: int) -> Hashable:
    """The pattern of a step, or None for a method that defines none and does not inherit from `Method`."""
    return method.pattern(step) if hasattr(method, "pattern") else None


def follow(plan: Plan, answer: Callable[[Probe], Reading]) -> Vector:
    """Runs a plan, with `answer` as the result of each probe, and returns its gradient."""
    reading: Any = None
    while True:
        try:
            with torch.no_grad():
                probe = plan.send(reading)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        reading = answer(probe)
