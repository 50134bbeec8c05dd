"""Methods and their plans: a plan yields probes, receives losses and gradients, and returns a gradient."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Generator, Hashable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from .arguments import InitSignature, check_not_an_optimizer_call
from .ball import ball
from .draw import Draw
from .modules import Role
from .rows import Rows, whole
from .vector import Space, Vector


@dataclass(frozen=True)
class Probe:
    """A request for the loss and gradient at displaced weights.

    Parameters
    ----------
    at
        The displacement, which the probe consumes; None for the weights themselves.
    rows
        The rows of the batch on which the loss is computed; all by default.
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


@dataclass
class Reading:
    """The result of a probe. A plan may change its gradient in place.

    Attributes
    ----------
    losses
        One loss per row, or None if the training loop passed a reduced loss.
    batch
        The number of rows in the batch, or None if the training loop selected no rows.

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

    _grad: Vector | None
    _loss: Tensor | None
    _mean: Callable[[Tensor], Tensor]  # over workers
    losses: Tensor | None = None
    batch: int | None = None
    _averaged: Tensor | None = field(default=None, repr=False)

    @property
    def grad(self) -> Vector:
        """The gradient; raises for a probe with grad=False."""
        if self._grad is None:
            raise RuntimeError("the probe has grad=False, so its reading has losses and no gradient")
        return self._grad

    @property
    def loss(self) -> Tensor:
        """The mean loss, over workers too if the probe has sync=True."""
        if self._loss is None:
            raise RuntimeError("the method needs the value of the loss: return it from the closure")
        if self._averaged is None:
            self._averaged = self._mean(self._loss)
        return self._averaged


Plan = Generator[Probe, Reading, Vector]

ROWS = 1024  # of the batch on which passes are counted


class Context(Protocol):
    """What a plan can read: the weights, the options of the parameter groups, random draws and its own memory.

    Attributes
    ----------
    step
        The number of the step, from 0.
    settings
        Group options that the plan sets when the step is applied, such as lr.
    mask
        A bool tensor over the rows of the batch, or None if the caller passed none.
    alone
        Whether no other workers share the step.

    """

    step: int
    settings: dict[str, Any]
    mask: Tensor | None

    @property
    def alone(self) -> bool: ...
    @property
    def space(self) -> Space: ...
    @property
    def weights(self) -> Vector: ...
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

    def average_(self, vector: Vector) -> Vector:
        """Averages a vector over workers, in place."""
        ...

    def mean(self, numbers: Tensor) -> Tensor:
        """The mean of numbers over workers."""
        ...


class Method(Protocol):
    """Computes the gradient that the base optimizer applies.

    A method of your own is a frozen dataclass that inherits from this class and writes `plan`. The defaults of the
    other members keep no vectors, read `rho` from the parameter groups if the method has a field of that name, count
    the passes of a step by running the plan on a problem with one weight, and capture all steps as one CUDA graph if
    the plan does not read `context.step`.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Halved(steppe.Method):
    ...     def plan(self, context):
    ...         return (yield steppe.Probe()).grad / 2
    >>> Halved().cost(0)
    1

    """

    if not TYPE_CHECKING:  # no part of the protocol
        __signature__ = InitSignature()

        def __new__(cls, *args, **options):
            check_not_an_optimizer_call(cls.__name__, args, options)
            return super().__new__(cls)

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the vectors that the method keeps between steps; none by default."""
        return ()

    def options(self) -> Mapping[str, Any]:
        """Group options that the plan reads, with their defaults: the radius `rho` of the method, if it has one."""
        return {"rho": ball(self.rho).rho} if hasattr(self, "rho") else {}

    def cost(self, step: int) -> int:
        """The number of passes of a step, on a batch with rows of every kind; counted by default."""
        pattern = self.pattern(step) if step else None
        if pattern is None:
            return rehearse(self, step).passes
        counts: dict[Hashable, int] = vars(self).setdefault("_passes", {})  # not a field: equality ignores it
        if pattern not in counts:
            counts[pattern] = rehearse(self, step).passes
        return counts[pattern]

    def pattern(self, step: int) -> Hashable:
        """A value that is equal for steps that run the same operations, so that one CUDA graph serves them all.

        None for a step that runs eagerly. By default all steps are alike, or run eagerly if the plan reads
        `context.step`. Override it for a plan that does, and for one that decides something on the host. Called from
        the second step on.
        """
        if "_reads_step" not in vars(self):
            try:
                vars(self)["_reads_step"] = rehearse(self, step).reads_step
            except NotImplementedError:
                vars(self)["_reads_step"] = True  # unknown
        return None if vars(self)["_reads_step"] else True

    @abstractmethod
    def plan(self, context: Context) -> Plan:
        """Yields probes, receives their readings, and returns the gradient for the base optimizer."""
        ...


def pattern_of(method: Method, step: int) -> Hashable:
    """The pattern of a step, or None for a method that defines none and does not inherit from `Method`."""
    return method.pattern(step) if hasattr(method, "pattern") else None


def rehearse(method: Method, step: int) -> _OneWeight:
    """Runs the plan of a step on a problem with one weight, in a Euclidean ball, and returns what it did there."""
    rehearsed: Any = method
    if is_dataclass(method):  # geometry may need the shapes of the model, and does not change the number of probes
        values = {f.name: getattr(method, f.name) for f in fields(method)}
        radii = {name: value.rho for name, value in values.items() if hasattr(value, "steepest_")}
        rehearsed = replace(rehearsed, **radii) if radii else rehearsed
    context = _OneWeight(method.options(), step)
    try:
        follow(rehearsed.plan(context), context.read)
    except Exception as error:
        name = type(method).__name__
        raise NotImplementedError(
            f"counting the passes of {name} by running its plan on one weight failed: {error}. Define "
            f"{name}.cost(self, step), which returns the number of passes of a step"
        ) from error
    return context


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


class _OneWeight:
    """A context with a single weight and without workers, which notes what a plan does."""

    alone = True

    def __init__(self, options: Mapping[str, Any], step: int):
        self.passes, self.reads_step, self.settings = 0, False, dict[str, Any]()
        self.mask = torch.arange(ROWS, device="cpu") % 2 == 0
        self.space = Space([torch.ones(1, device="cpu")], roles=[Role(weight=True, norm=True)])
        self._options, self._step = {"lr": 0.1, "weight_decay": 0.0, **options}, step

    def read(self, probe: Probe) -> Reading:
        self.passes += 1
        losses = torch.ones(ROWS, device="cpu")
        return Reading(self.weights.clone(), losses.mean(), lambda x: x, losses, ROWS)

    @property
    def step(self) -> int:
        self.reads_step = True
        return self._step

    @property
    def weights(self) -> Vector:
        return self.space.weights()

    def option(self, name: str) -> Any:
        return self._options[name]

    def key(self, sample: int) -> tuple[int, ...]:
        return (0, self._step, sample)

    def draw(self, sample: int, grad: Vector) -> Draw:
        return Draw(self.space, self.key(sample), self.weights, grad)

    def momentum(self) -> Vector | None:
        return self.weights if self._step else None

    def recall(self, slot: str, missing: Vector | None = None) -> Vector | None:
        return self.weights if self._step else None

    def remember(self, slot: str, vector: Vector) -> None:
        pass

    def average_(self, vector: Vector) -> Vector:
        return vector

    def mean(self, numbers: Tensor) -> Tensor:
        return numbers
