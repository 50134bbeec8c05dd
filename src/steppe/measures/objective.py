"""A loss on fixed data as a function of a displacement of the weights; the model itself is never changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, fields, replace
from fnmatch import fnmatch
from functools import cached_property
from time import perf_counter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._util.names import unknown
from ..core.draw import Draw
from ..core.modules import roles_of
from ..core.probe import NO_GRADIENT, Method, Probe, Reading, follow
from ..core.process_group import Workers
from ..core.rows import Rows, select, whole
from ..core.vector import Space, Vector, sums
from ..cuda.graphs import GraphCache
from .batches import (
    Batch,
    TokenCount,
    Weight,
    as_batches,
    batch_weight,
    first_label_counts,
    own_loss,
    rows_of,
    supervised,
    to_device,
    with_own_loss,
)  # fmt: skip
from .checks import check_arguments, check_not_sharded, check_objective
from .estimate import Cost
from .first_step import FirstStepContext
from .functional import loss_of_batch, unwrap
from .reductions import Reduction, find_reductions
from .session import Precision, R, Statistics, session


@dataclass(frozen=True)
class Objective:
    """The mean of `loss_fn(output, target)` over fixed batches, weighted so that it is that of all data at once.

    Parameters
    ----------
    model
        Any module. It is never changed.
    loss_fn
        `loss_fn(output, target)` returns the mean loss of a batch, or one loss per sample. Losses of torch may also be
        sums, ignore targets and weigh classes.
    batches
        Tensors (inputs, targets), a sequence of batches, or a DataLoader, which is read once.
    forward
        `forward(model, batch)` returns (output, target). The default takes batches (inputs, targets), and dictionaries
        whose `labels` are the targets and whose other entries are arguments of the model.
    weight
        The weight of a batch in the mean: a function of the batch, or one number for all. None takes what a loss of
        torch divides by (sums are added up), and the samples for any other loss, which has to be a mean over samples:
        this is checked on every batch. Batches of weight 0, such as those whose targets are all ignored, are left out.
    m
        Regroups the data into batches of m samples.
    only
        Names or patterns, such as "layer4.*", of the parameters that move.
    statistics
        Of normalisation layers: "running", or "batch" as in training.
    precision
        Of passes: "float32", "tf32" or autocast "bf16".
    group
        A process group; each worker holds its share of the batches (see `share`), and sums run over all workers.
    first, stride
        The numbers of the batches, on which random draws depend: first, first + stride, ...
    meter
        The work so far: rows by "losses", "gradients" and "products".
    replays
        Captured passes.
    trusted
        Skips the checks of the loss.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)
    >>> loss, gradient = objective.gradient()
    >>> loss, gradient.tensors
    (1.0, [tensor([[1., 1.]])])

    """

    model: nn.Module
    loss_fn: Callable[[Any, Any], Tensor]
    batches: Any
    _: KW_ONLY
    forward: Callable[[nn.Module, Batch], tuple[Any, Any]] = supervised
    weight: Weight | None = None
    m: int | None = None
    only: Sequence[str] | None = None
    statistics: Statistics = "running"
    precision: Precision = "float32"
    group: Any = None
    first: int = 0
    stride: int = 1
    meter: Counter[str] = field(default_factory=Counter, compare=False, repr=False)
    replays: GraphCache = field(default_factory=GraphCache, compare=False, repr=False)
    trusted: InitVar[bool] = False
    _checked: bool = field(default=False, init=False, compare=False, repr=False)
    # ways to per-row gradients, each with the key of the function for which it was checked
    checked_ways: dict[str, Hashable] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self, trusted: bool) -> None:
        check_arguments(self.model, self.loss_fn)
        only = [self.only] if isinstance(self.only, str) else self.only
        batches = as_batches(self.batches, self.m)
        vars(self).update(model=unwrap(self.model), batches=batches, only=only, _checked=trusted)
        if self.group is not None:
            vars(self).update(first=self.workers.rank, stride=self.workers.count)

    def __repr__(self) -> str:
        loss, n = getattr(self.loss_fn, "__name__", type(self.loss_fn).__name__), len(self.batches)
        return f"Objective({type(self.model).__name__}, {loss}, {sum(self.sizes)} samples, {n} batch{'es' * (n > 1)})"

    @property
    def workers(self) -> Workers:
        return Workers(self.group)

    @cached_property
    def params(self) -> Mapping[str, Tensor]:
        """The parameters that move, by name: those that require a gradient and are named by `only`."""
        chosen = trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        if self.only is not None:
            every = self.model.named_parameters(remove_duplicate=False)  # a shared parameter has several names
            selected = {id(p) for n, p in every if any(fnmatch(n, o) for o in self.only)}
            chosen = {n: p for n, p in trained.items() if id(p) in selected}
        if not chosen:
            some = ", ".join(list(trained)[:3]) or "none at all"
            raise ValueError(f"no trainable parameter matches {self.only}: the model has {some}")
        check_not_sharded(self.model, chosen.values())
        return chosen

    @cached_property
    def device(self) -> torch.device:
        """Where losses are added up."""
        return min((p.device for p in self.params.values()), key=str)

    @cached_property
    def space(self) -> Space:
        roles = roles_of(self.model, [])
        return Space(self.weight_tensors(), roles=[roles[id(p)] for p in self.params.values()])

    @property
    def weights(self) -> Vector:
        return self.space.weights()

    @cached_property
    def dimension(self) -> int:
        return sum(p.numel() for p in self.params.values())

    @cached_property
    def sizes(self) -> Sequence[int]:
        """The rows of every batch that this worker holds."""
        return [rows_of(b) for b in self.batches]

    @cached_property
    def rows(self) -> int:
        """The rows of all batches of all workers."""
        rows = int(self._sum_over_workers(sum(self.sizes)))
        if not rows:
            raise ValueError("data has no batches: there is nothing to measure on")
        return rows

    @cached_property
    def batch_weights(self) -> Sequence[float]:
        """The weight of every batch that this worker holds."""
        if self.weight is not None:
            return [batch_weight(b, self.weight) for b in self.batches]
        return self.sizes if self.reductions is None else [reduction.weight for reduction in self.reductions]

    @cached_property
    def reductions(self) -> Sequence[Reduction] | None:
        """What the loss of every batch sums or averages over; None for a single batch, and if it is not known."""
        if self.weight is not None or (len(self.batches) < 2 and self.group is None):
            return None
        found = self.workers.together(lambda: find_reductions(self))
        return None if self._sum_over_workers(found is None) else found  # all weigh batches alike

    @cached_property
    def shares(self) -> Sequence[float]:
        """The share of every batch that this worker holds in the mean over all workers' batches; 1 in a sum."""
        total = self._sum_over_workers(sum(self.batch_weights))
        if not total and self.rows:
            raise ValueError(
                "every batch has the weight 0 (by weight=, or because the loss ignores all of its targets): there is "
                "nothing to measure on"
            )
        if self.reductions and self.reductions[0].summed:
            return [1.0] * len(self.batches)
        return [weight / total for weight in self.batch_weights]

    def _sum_over_workers(self, number: float) -> float:
        if self.group is None:
            return float(number)
        return float(self.workers.all_reduce(torch.tensor(number, dtype=torch.float64)))

    def spent(self) -> Cost:
        """The work so far, of this objective and its parts; the difference of two is a cost."""
        rows = self.rows  # a sum over workers, also over those that have done nothing
        return Cost(**{work: n / rows for work, n in self.meter.items()}, seconds=perf_counter())

    @property
    def number(self) -> int:
        """The batch number that enters random draws beside the seed; 0 for workers that share an objective."""
        return 0 if self.group is not None else self.first

    def option(self, name: str) -> Any:
        """Raise for any `name`: an objective has no parameter groups, so the radius of a ball must be a number."""
        raise LookupError(f"an objective has no option {name!r}: give the ball its radius when you make it")

    def draw(self, *key: int, grad: Vector | None = None) -> Draw:
        """A source of random vectors, as a function of the numbers `*key` and, for laws that use it, of `grad`."""
        return Draw(self.space, key, self.weights, self.space.zeros() if grad is None else grad)

    def loss(self, at: Vector | None = None) -> float:
        """The mean loss at the weights displaced by `at`."""
        return float(self._mean(at, False)[0])

    def gradient(self, at: Vector | None = None) -> tuple[float, Vector]:
        """The mean loss and its gradient at the weights displaced by `at`."""
        loss, grad, _ = self._mean(at, True)
        return float(loss), grad  # type: ignore[return-value]

    def each(self) -> Iterator[tuple[int, Objective]]:
        """Every batch of this worker with a positive weight as an objective, with its number among all workers."""
        self.check()
        for i, batch in enumerate(self.batches):
            if not self.batch_weights[i]:
                continue
            number = self.first + i * self.stride
            alone = [to_device(batch, self.device)]
            part = replace(self, batches=alone, m=None, group=None, first=number, stride=1, trusted=True)
            vars(part).update(params=self.params, space=self.space, batch_weights=[self.batch_weights[i]])
            yield number, part

    def read(self, probe: Probe) -> Reading:
        """Evaluate a `probe`: the loss, and the gradient if requested, at displaced weights."""
        loss, grad, each = self._mean(probe.at, probe.grad, probe.rows)
        return Reading(
            NO_GRADIENT if grad is None else grad, loss, lambda x: x, torch.cat(each) if each else None, sum(self.sizes)
        )

    def _mean(self, at: Vector | None, graded: bool, rows: Rows = whole) -> tuple[Tensor, Vector | None, list[Tensor]]:
        """The mean loss, its gradient if `graded`, and the losses of rows if the loss has these."""
        if rows is not whole and len(self.batches) > 1:
            raise ValueError(f"a probe of some rows needs an objective of one batch, not {len(self.batches)}")
        with session(self.model, self.statistics):
            self.check()
            weights = self.weight_tensors()
            if at is not None:
                with torch.no_grad():
                    weights = sums(weights, at.tensors)
            total: Tensor | None = None
            grad: Vector | None = None
            each: list[Tensor] = []
            for i, share in enumerate(self.shares):
                if not share:
                    continue
                batch, size = to_device(self.batches[i], self.device), self.sizes[i]
                if rows is not whole:
                    batch, _ = select(rows, batch)
                    size = rows_of(batch)
                losses, *grads = loss_of_batch(self, weights, batch, graded)
                loss = losses.double()
                if losses.ndim:
                    each.append(losses.reshape(-1))
                    loss = loss.mean()
                loss = (loss if share == 1 else loss * share).to(self.device)
                total = loss if total is None else total + loss
                if graded:
                    part = self.space.vector(grads) if share == 1 else self.space.vector(grads) * share
                    grad = part if grad is None else grad.add_(part)
                self.meter["gradients" if graded else "losses"] += size
            if total is None:  # this worker holds no batch
                total = torch.zeros((), dtype=torch.float64, device=self.device)
            if self.group is not None:
                total = self.workers.all_reduce(total)
                if graded:
                    grad = self.workers.all_reduce_vector(grad if grad is not None else self.space.zeros())
        return total, grad, each

    def weight_tensors(self) -> list[Tensor]:
        """The moving parameters, detached; they share memory with the model."""
        return [p.detach() for p in self.params.values()]

    def evaluate(self, weights: Sequence[Tensor], task: Callable[[nn.Module], R]) -> R:
        """The result of `task`, called on the model with `weights` in place of the moving parameters."""
        with session(self.model, self.statistics) as opened:
            return opened.call(dict(zip(self.params, weights, strict=True)), task, self.precision)

    def check(self) -> None:
        """Raise, on all workers if on one, unless the loss is a function of the weights and a mean; runs once."""
        if self._checked:
            return
        vars(self)["_checked"] = True  # the checks evaluate the objective
        try:
            with session(self.model, self.statistics):
                together: Any = self.workers.together if self.group is not None else lambda task: task()
                together(lambda: (self.sizes, self.params))
                _ = self.reductions, self.rows  # sums over workers: all of them must compute these at the same time
                together(lambda: self.batch_weights)
                _ = self.shares
                together(lambda: check_objective(self))
        except BaseException:
            vars(self)["_checked"] = False
            raise

    def drive(self, method: Method, *, seed: int = 0, mask: Tensor | None = None, **options: Any) -> Vector:
        """The gradient of an optimizer's first step with a method at these weights.

        Parameters
        ----------
        method
            Such as `SAM(0.05)`.
        seed, mask
            As in `SharpnessAware` and its `step`.
        **options
            Group options in place of the method's own, such as rho.

        """
        context = FirstStepContext(self.space, seed, mask, {**method.options(), **options})
        return follow(method.plan(context), self.read)


def objective(
    model: nn.Module,
    data: Any,
    loss_fn: Callable[[Any, Any], Tensor] | None = None,
    *,
    weight: Weight | Literal["tokens"] | None = None,
    **options: Any,
) -> Objective:
    """An objective of data in any form, by default of the model's own loss, as the models of Transformers have one.

    Parameters
    ----------
    model
        Any module.
    data
        As `batches` of `Objective`: also a dictionary, a list of dictionaries, or a DataLoader of them.
    loss_fn
        As in `Objective`. None: batches are dictionaries, and the loss is `model(**batch).loss`.
    weight
        As in `Objective`; "tokens" counts labels that are not -100, for losses that ignore these: `labels` of a
        dictionary, or the second of a pair. If the loss does not depend on the first label of a sequence, as in causal
        language models, that one does not count.
    **options
        Other arguments of `Objective`.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)

    >>> steppe.objective(model, data, nn.functional.mse_loss).loss()
    1.0

    """
    known = [f.name for f in fields(Objective) if f.init][3:]
    for name in options:
        if name not in known:
            raise TypeError(unknown("argument of Objective", name, known))
    if loss_fn is None:
        options = {"forward": with_own_loss} | options
    number = None if weight == "tokens" else weight
    made = Objective(model, own_loss if loss_fn is None else loss_fn, data, weight=number, **options)
    if weight != "tokens":
        return made

    def loss(batch: Batch) -> float:
        return replace(made, batches=[batch], m=None, group=None, trusted=True).loss()

    return replace(made, weight=TokenCount(first_label_counts(made.batches, loss)))
