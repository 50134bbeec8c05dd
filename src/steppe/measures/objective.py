"""A loss on fixed data as a function of a displacement of the weights; the model itself is never touched."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, InitVar, dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..core.draw import Draw
from ..core.modules import roles_of
from ..core.probe import Method, Probe, Reading, follow
from ..core.rows import select, whole
from ..core.vector import Space, Vector, sums
from ..cuda.graphed_calls import Replays
from .batches import Batch, Weight, batches_of, moved, rows_of, supervised, weight_of
from .elsewhere import Statistics, bare, elsewhere
from .estimate import Cost, Meter
from .first_step import FirstStep
from .passes import one_pass
from .precision import Precision
from .steady import refuse_sharded, refuse_unsteady
from .workers import Workers


@dataclass(frozen=True)
class Objective:
    """The mean of `loss_fn(output, target)` over fixed batches, weighted by their rows or by `weight`.

    Parameters
    ----------
    model, loss_fn, batches, forward
        The model is never changed. `loss_fn(output, target)` is the mean loss of a batch, or one loss per row. Data is
        tensors (inputs, targets), a sequence of batches, or a DataLoader, which is read once. `forward(model, batch)`
        returns output and target.
    weight
        What a batch counts, a function of the batch or one number for all. None counts rows, which is right where
        `loss_fn` averages over rows. Where it averages over something else, count that: for `ignore_index`,
        `weight=lambda batch: (batch[1] != -100).sum()`. Batches of weight 0 are left out.
    m, only
        Cuts the data anew into batches of m rows. Names or patterns, such as "layer4.*", of the parameters that move.
    statistics, precision
        Of normalisation layers: "running", or "batch" as in training; of passes: "float32", "tf32" or autocast "bf16".
    group
        A process group; each worker holds its share of the batches (see `share`), and sums are taken over all of them.
    first, stride, meter, replays, trusted
        The numbers of the batches, on which draws depend; the work so far; recorded passes; whether checks are skipped.

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
    meter: Meter = field(default_factory=Meter, compare=False, repr=False)
    replays: Replays = field(default_factory=Replays, compare=False, repr=False)
    trusted: InitVar[bool] = False
    _steady: bool = field(default=False, init=False, compare=False, repr=False)
    # ways to single rows' gradients, and the function of which they were found right
    ways_of_rows: dict[str, Hashable] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __post_init__(self, trusted: bool) -> None:
        object.__setattr__(self, "_steady", trusted)
        if isinstance(self.only, str):
            object.__setattr__(self, "only", [self.only])
        object.__setattr__(self, "model", bare(self.model))
        object.__setattr__(self, "batches", batches_of(self.batches, self.m))
        if self.group is not None:
            object.__setattr__(self, "first", self.workers.rank)
            object.__setattr__(self, "stride", self.workers.count)

    @property
    def workers(self) -> Workers:
        return Workers(self.group)

    @cached_property
    def params(self) -> Mapping[str, Tensor]:
        """The parameters that move, by name: those that require a gradient and are named by `only`."""
        every = self.model.named_parameters(remove_duplicate=False)  # a shared one answers to each of its names
        asked = {id(p) for n, p in every if self.only is None or any(fnmatch(n, o) for o in self.only)}
        trained = {n: p for n, p in self.model.named_parameters() if p.requires_grad}
        chosen = {n: p for n, p in trained.items() if id(p) in asked}
        if not chosen:
            some = ", ".join(list(trained)[:3]) or "none at all"
            raise ValueError(f"no trainable parameter matches {self.only}: the model has {some}")
        refuse_sharded(self.model, chosen.values())
        return chosen

    @cached_property
    def space(self) -> Space:
        roles = roles_of(self.model, [])
        return Space(self.here(), roles=[roles[id(p)] for p in self.params.values()])

    @property
    def weights(self) -> Vector:
        return self.space.weights()

    @property
    def dimension(self) -> int:
        return sum(p.numel() for p in self.params.values())

    @cached_property
    def sizes(self) -> Sequence[int]:
        """The rows of every batch that this worker holds."""
        return [rows_of(b) for b in self.batches]

    @cached_property
    def rows(self) -> int:
        """The rows of all batches of all workers."""
        rows = int(self.workers.total(torch.tensor(float(sum(self.sizes)), dtype=torch.float64)))
        if not rows:
            raise ValueError("there is nothing to measure on: data has no batches")
        return rows

    @cached_property
    def batch_weights(self) -> Sequence[float]:
        """What every batch that this worker holds counts."""
        return self.sizes if self.weight is None else [weight_of(b, self.weight) for b in self.batches]

    @cached_property
    def shares(self) -> Sequence[float]:
        """The share of every batch that this worker holds in the mean over all workers' batches."""
        total = float(self.workers.total(torch.tensor(sum(self.batch_weights), dtype=torch.float64)))
        if not total and self.rows:
            raise ValueError("there is nothing to measure on: weight= is 0 for every batch")
        return [weight / total for weight in self.batch_weights]

    def spent(self) -> Cost:
        """What was worked so far, here and on parts of this objective; the difference of two is a cost."""
        return self.meter.passes(self.rows)

    @property
    def number(self) -> int:
        """What draws depend on beside the seed: the number of a single batch, the same for workers that share one."""
        return 0 if self.group is not None else self.first

    def option(self, name: str) -> Any:
        """An objective has no parameter groups: a ball around its weights has the radius it was made with."""
        raise LookupError(f"an objective has no option {name!r}: give the ball its radius when you make it")

    def draw(self, *key: int) -> Draw:
        """A source of random vectors that is a function of the key."""
        return Draw(self.space, key, self.weights, self.space.zeros())

    def loss(self, at: Vector | None = None) -> float:
        """The mean loss at the weights displaced by `at`."""
        return float(self.read(Probe(at, grad=False)).loss)

    def gradient(self, at: Vector | None = None) -> tuple[float, Vector]:
        """The mean loss and its gradient at the weights displaced by `at`."""
        reading = self.read(Probe(at))
        return float(reading.loss), reading.grad

    def each(self) -> Iterator[tuple[int, Objective]]:
        """Every batch of this worker that counts as an objective of its own, with its number among all workers'."""
        self.check()
        for i, batch in enumerate(self.batches):
            if not self.batch_weights[i]:
                continue
            number = self.first + i * self.stride
            alone = [moved(batch, self.space.device)]
            yield number, replace(self, batches=alone, m=None, group=None, first=number, stride=1, trusted=True)

    def read(self, probe: Probe) -> Reading:
        """Answers a probe by evaluating the model's function at other weights."""
        self.check()
        with torch.no_grad():
            places = sums(self.here(), probe.at.tensors) if probe.at is not None else self.here()
        total = torch.zeros((), dtype=torch.float64, device=self.space.device)
        grad: Vector | None = None
        each: list[Tensor] = []
        for batch, share in zip(self.batches, self.shares, strict=True):
            if not share:
                continue
            losses, grads, rows = self._pass(places, batch, probe)
            total += losses.double().mean().to(total.device) * share
            each += [losses.reshape(-1)] if losses.ndim else []
            if probe.grad:
                part = self.space.vector(grads) if share == 1 else self.space.vector(grads) * share
                grad = part if grad is None else grad.add_(part)
            self.meter.losses += (not probe.grad) * rows
            self.meter.gradients += probe.grad * rows
        if probe.grad:
            grad = self.workers.summed(grad if grad is not None else self.space.zeros())
        row_losses = torch.cat(each) if each else None
        return Reading(grad, self.workers.total(total), lambda x: x, row_losses, sum(self.sizes))

    def here(self) -> list[Tensor]:
        """The weights themselves, sharing their memory and none of their history."""
        return [p.detach() for p in self.params.values()]

    def _pass(self, places: Sequence[Tensor], batch: Batch, probe: Probe) -> tuple[Tensor, list[Tensor], int]:
        batch = moved(batch, self.space.device)
        if probe.rows is not whole:
            if len(self.batches) > 1:
                raise ValueError(f"a probe of some rows needs an objective of one batch, not {len(self.batches)}")
            batch, _ = select(probe.rows, batch)
        return *one_pass(self, places, batch, gradient=probe.grad), rows_of(batch)

    def evaluate(self, places: Sequence[Tensor], task: Callable[[nn.Module], Any]) -> Any:
        """`task(model)` with these weights in place of the model's own."""
        return elsewhere(self.model, dict(zip(self.params, places, strict=True)), task, self.statistics, self.precision)

    def check(self) -> None:
        """Refuses a loss that is not a function of the weights, or no mean, once, on all workers if on one."""
        if self._steady:
            return
        object.__setattr__(self, "_steady", True)
        trouble: Exception | None = None
        try:
            try:
                _ = self.sizes, self.batch_weights, self.space
                if len(self.batches):
                    refuse_unsteady(self)
            except Exception as found:
                trouble = found
            self.workers.share_trouble(trouble)
            _ = self.rows, self.shares  # sums over workers, which all of them must take at the same time
        except BaseException:
            object.__setattr__(self, "_steady", False)
            raise

    def drive(self, method: Method, *, seed: int = 0, mask: Tensor | None = None, **options: Any) -> Vector:
        """The gradient that an optimizer's first step with this method would take here."""
        return follow(method.plan(FirstStep(self, seed, mask, {**method.options(), **options})), self.read)
