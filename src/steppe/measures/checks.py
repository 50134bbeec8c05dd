"""Checks that a loss is a function of the weights and a mean over rows; otherwise measures would be wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.utils._pytree import tree_leaves

from ..core.arguments import check_instance, described
from ..core.draw import seed_torch
from ..core.shards import distributed
from ..core.vector import sums
from .batches import Batch, batch_weight, joined, rows_of, take_rows, to_device
from .estimate import check_finite
from .reductions import Reduction, Watch, evaluated

if TYPE_CHECKING:
    from .objective import Objective


FEW = 16  # rows that are enough to show whether a loss is random
ROUNDED = {"float32": 0.0, "tf32": 1e-2, "bf16": 5e-2}  # relative tolerance for rounding


@dataclass(frozen=True)
class _Sample:
    """Some rows of a batch, the model's output for them, and their losses."""

    batch: Batch
    output: Any
    target: Any
    rows: int
    loss: float  # the mean of them
    losses: Tensor  # one per row, or reduced to one number
    watch: Watch

    @cached_property
    def reduction(self) -> Reduction | None:
        """How the loss became one number, if that is known."""
        return self.watch.reduction(self.losses)

    @property
    def has_rows(self) -> bool:
        """Whether output and target have one entry per row, of which some can be taken."""
        targets = [x for x in tree_leaves(self.target) if isinstance(x, Tensor) and x.ndim]
        every = [*tree_leaves(self.output), *targets]
        return all(isinstance(x, Tensor) and x.ndim and len(x) == self.rows for x in every)


def check_arguments(model: Any, loss_fn: Any) -> None:
    """Raise unless these are a model and a loss, each made of its class and in its place."""
    order = "check the order of the arguments"
    for what, x in (("the model", model), ("loss_fn", loss_fn)):
        if isinstance(x, type):
            check_instance(what, x)
    if isinstance(model, _Loss):
        raise TypeError(f"the model is a loss, {type(model).__name__}: {order}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a torch.nn.Module, not {described(model)}: {order}")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn is a function of (output, target), not {described(loss_fn)}: {order}")


def check_objective(objective: Objective) -> None:
    """Raise if the loss of a batch is random, is not finite, or is not the weighted mean of its parts' losses.

    Whether a loss that torch does not know is a mean over rows is checked on every batch.
    """
    counted = [i for i, weight in enumerate(objective.batch_weights) if weight]
    if not counted:  # other workers may hold batches of positive weight
        return
    sizes = objective.sizes
    which = next((i for i in counted if sizes[i] > 1), counted[0])  # one row says less
    few = min(FEW, sizes[which]) if objective.statistics == "running" else sizes[which]
    checker = _Checker(objective)
    for n in dict.fromkeys((few, sizes[which])):
        one, two = (checker.first_rows(which, n, seed=seed) for seed in (0, 1))
        if isfinite(one.loss):  # not e.g. where the targets of a few rows are all ignored
            break
    check_finite(one.loss)
    # allows sums in any order
    if not abs(one.loss - two.loss) <= 0.1 * checker.precision * max(abs(one.loss), abs(two.loss)):
        raise ValueError(
            f"the loss is not a function of the weights: one batch gave {one.loss:.6g}, then {two.loss:.6g}. The "
            "model is in eval mode, so something else is random (augmentation, noise): switch it off, or draw it once."
        )
    if len(objective.batches) == 1 and objective.group is None:  # one batch: its loss is not averaged
        return
    if one.rows < sizes[which]:  # a few rows may not show that a loss ignores some
        one = checker.first_rows(which, sizes[which])
        check_finite(one.loss)
    checker.check_halves(one)
    if objective.weight is None and objective.reductions is None:
        for i in counted:
            if i != which:
                checker.check_together(one, which, i)


class _Checker:
    """Compares the losses of batches, of their parts, and of several as one."""

    def __init__(self, objective: Objective) -> None:
        self.objective = objective
        self.precision: float = max(torch.finfo(p.dtype).eps for p in objective.params.values()) ** 0.5
        self.tolerance = max(self.precision, ROUNDED.get(objective.precision, 0.0))
        self.weights = objective.weight_tensors()  # at which losses are computed

    def first_rows(self, which: int, n: int, seed: int = 0) -> _Sample:
        """Evaluate the first n rows of a batch, read again from the data: a lazy sequence may augment."""
        batch = to_device(self.objective.batches[which], self.objective.device)
        if n < self.objective.sizes[which]:
            batch = take_rows(batch, slice(0, n))
        seed_torch(seed)
        np.random.seed(seed)
        random.seed(seed)
        with torch.no_grad():
            return self.objective.evaluate(self.weights, lambda model: self.sample(model, batch))

    def sample(self, model: nn.Module, batch: Batch, outputs: tuple[Any, Any] | None = None) -> _Sample:
        output, target, losses, watch = evaluated(self.objective, model, batch, outputs)
        if not isinstance(losses, Tensor):
            raise_constant(self.objective)
        loss = float(losses.detach().double().mean())
        return _Sample(batch, output, target, rows_of(batch), loss, losses, watch)

    def evaluate(self, samples: Sequence[_Sample], makers: Sequence[Callable[..., Any]]) -> list[_Sample] | None:
        """What functions make of samples' rows, evaluated; None if not every model or loss accepts that.

        The functions make outputs, if these have rows: they need no pass, and a model that mixes rows (batch
        statistics) has other outputs for other batches.
        """
        with_rows = all(s.has_rows for s in samples)
        if not with_rows and self.objective.statistics == "batch":
            return None

        def task(model: nn.Module) -> list[_Sample]:
            batches = [make(*(s.batch for s in samples)) for make in makers]
            outputs = [make(*((s.output, s.target) for s in samples)) if with_rows else None for make in makers]
            return [self.sample(model, *pair) for pair in zip(batches, outputs, strict=True)]

        try:
            with torch.no_grad():
                found = self.objective.evaluate(self.weights, task)
            _ = [sample.reduction for sample in found]  # raises where a part has none
            return found
        except Exception:
            return None

    def check_halves(self, sample: _Sample) -> bool:
        """Compare the loss of a batch with those of its halves; False if these have none."""
        cuts = slice(0, sample.rows // 2), slice(sample.rows // 2, sample.rows)
        makers = [lambda whole, rows=rows: take_rows(whole, rows) for rows in cuts]
        halves = self.evaluate([sample], makers) if sample.rows > 1 else None
        if halves is not None:
            self.check_mean(sample.loss, halves, f"{sample.rows} rows gave {sample.loss:.6g}, the two halves of them")
        return halves is not None

    def check_together(self, first: _Sample, which: int, i: int) -> None:
        """Compare the loss of two batches as one with their mean; if they do not join, that of one with its halves.

        Both may be means over rows and yet weigh differently, e.g. where rows are sorted by class.
        """
        o = self.objective
        self.weights = o.weight_tensors()
        other = self.first_rows(i, o.sizes[i])
        if abs(other.loss - first.loss) <= self.tolerance * abs(first.loss):  # e.g. where the last layer is zero
            # at other weights batches have other losses
            size = float(o.weights.norm()) / o.dimension**0.5 or 1.0
            self.weights = sums(self.weights, o.draw(0).normal().mul_(0.1 * size).tensors)
            first, other = (self.first_rows(j, o.sizes[j]) for j in (which, i))
        joint = self.evaluate([first, other], [joined])
        if joint is not None:
            (both,) = joint
            check_finite(both.loss, f"of batch {i} and another one at the weights themselves")
            words = f"{first.rows + other.rows} rows of two batches gave {both.loss:.6g}, each of them"
            self.check_mean(both.loss, (first, other), words)
        elif not self.check_halves(other) and other.losses.shape[:1] != (other.rows,):
            raise ValueError(
                f"batch {i} can be neither joined nor cut, to test whether the loss is a mean over rows: pass the "
                "weight of a batch, such as weight=lambda batch: len(batch[0]), or return one loss per row."
            )

    def check_mean(self, loss: float, parts: Sequence[_Sample], words: str) -> None:
        """Raise if a loss is the sum of its parts' losses, or not their mean while `weight` is None."""
        weight, reductions = self.objective.weight, [part.reduction for part in parts]
        if weight is None and all(r is not None and r.summed for r in reductions):
            expected, size = sum(part.loss for part in parts), sum(abs(part.loss) for part in parts)
        else:
            weights = [
                batch_weight(part.batch, weight) if weight is not None or r is None else r.weight
                for part, r in zip(parts, reductions, strict=True)
            ]
            pairs = [(w, part.loss) for w, part in zip(weights, parts, strict=True) if w]
            total = sum(weights) or 1.0
            expected = sum(w * loss for w, loss in pairs) / total
            size = sum(w * abs(loss) for w, loss in pairs) / total
        if abs(loss - expected) <= self.tolerance * size:
            return
        one, two = (part.loss for part in parts)
        values = f"{words} {one:.6g} and {two:.6g}"
        if one and two and abs(loss - one - two) <= self.tolerance * (abs(one) + abs(two)):
            raise ValueError(
                f"the loss is a sum over its rows: {values}. Measures would depend on how the data is cut into "
                'batches. Return the mean or one loss per row: reduction="mean" or reduction="none".'
            )
        if weight is None:
            raise ValueError(
                f"the loss of a batch is not the mean of its parts' losses: {values}. Pass what it averages over, "
                "weight='tokens' or weight=lambda batch: (batch[1] != -100).sum(), or weight=1 if it needs whole "
                "batches."
            )


def raise_constant(objective: Objective) -> NoReturn:
    """Raise that the loss does not depend on any moving parameter."""
    raise ValueError(
        "the loss does not depend on the parameters that move: its graph reaches none of "
        f"{', '.join(list(objective.params)[:3])} ... Compute it from the model that forward() receives, without "
        "no_grad, detach or item."
    )


def check_not_sharded(model: nn.Module, params: Iterable[Tensor]) -> None:
    """Raise if a parameter is sharded over workers."""
    fsdp1 = any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())
    if fsdp1 or [p for p in params if distributed(p) is not None]:
        raise ValueError(
            f"the model is sharded (FSDP{1 if fsdp1 else 2}) and cannot be evaluated at other weights: load its full "
            "state dict into an unsharded copy and measure that, with the batches divided over workers by group="
        )
