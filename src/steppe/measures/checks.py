"""Checks that a loss is a function of the weights and a mean over rows; otherwise measures would be wrong."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.loss import _Loss
from torch.utils._pytree import tree_leaves

from ..core.arguments import described, refuse_class
from ..core.draw import seed_torch
from ..core.shards import distributed
from .batches import Batch, batch_weight, rows_of, take_rows, to_device
from .estimate import check_finite

if TYPE_CHECKING:
    from .objective import Objective


FEW = 16  # rows that are enough to show whether a loss is random
ROUNDED = {"float32": 0.0, "tf32": 1e-2, "bf16": 5e-2}  # relative tolerance for rounding


@dataclass(frozen=True)
class _Sample:
    """Some rows of a batch, the model's output for them, and their mean loss."""

    batch: Batch
    output: Any
    target: Any
    rows: int
    loss: float
    reduced: bool  # not one loss per row


def check_arguments(model: Any, loss_fn: Any) -> None:
    """Raise unless these are a model and a loss, each made of its class and in its place."""
    order = "check the order of the arguments"
    refuse_class("the model", model)
    refuse_class("loss_fn", loss_fn)
    if isinstance(model, _Loss):
        raise TypeError(f"the model is a loss, {type(model).__name__}: {order}")
    if not isinstance(model, nn.Module):
        raise TypeError(f"the model is a torch.nn.Module, not {described(model)}: {order}")
    if not callable(loss_fn):
        raise TypeError(f"loss_fn is a function of (output, target), not {described(loss_fn)}: {order}")


def check_objective(objective: Objective) -> None:
    """Raise if the loss of a batch is random, is not finite, or is not the weighted mean of its parts' losses."""
    counted = [i for i, weight in enumerate(objective.batch_weights) if weight]
    if not counted:  # other workers may hold batches of positive weight
        return
    sizes = objective.sizes
    which = next((i for i in counted if sizes[i] > 1), counted[0])  # with one row, a sum equals a mean
    few = min(FEW, sizes[which]) if objective.statistics == "running" else sizes[which]
    for n in dict.fromkeys((few, sizes[which])):
        one, two = (_evaluate_rows(objective, which, n, seed) for seed in (0, 1))
        if isfinite(one.loss):  # not e.g. where the targets of a few rows are all ignored
            break
    check_finite(one.loss)
    precision: float = max(torch.finfo(p.dtype).eps for p in objective.params.values()) ** 0.5
    if not abs(one.loss - two.loss) <= 0.1 * precision * max(abs(one.loss), abs(two.loss)):  # allows sums in any order
        raise ValueError(
            f"the loss is not a function of the weights: one batch gave {one.loss:.6g} and then {two.loss:.6g}. "
            "Dropout, random augmentation or noise is active although the model is in eval mode here: switch it off, "
            "or draw it once and pass the result as data."
        )
    if len(objective.batches) == 1 and objective.workers.count == 1:  # one batch: its loss is not averaged
        return
    if one.rows < sizes[which]:  # a few rows may not show that a loss ignores some
        one = _evaluate_rows(objective, which, sizes[which], 0)
        check_finite(one.loss)
    if one.rows > 1 and one.reduced:
        _check_reduction(objective, one, max(precision, ROUNDED[objective.precision]))


def _check_reduction(objective: Objective, sample: _Sample, tolerance: float) -> None:
    """Raise if the loss of a batch is the sum of its halves' losses, or not their mean while `weight` is None."""
    cuts = slice(0, sample.rows // 2), slice(sample.rows // 2, sample.rows)
    losses = _losses_of_parts(objective, sample, cuts)
    if losses is None:
        return
    weights = [batch_weight(take_rows(sample.batch, rows), objective.weight) for rows in cuts]
    pairs = [(weight, loss) for weight, loss in zip(weights, losses, strict=True) if weight]
    total = sum(weight for weight, _ in pairs) or 1.0
    difference = abs(sample.loss - sum(weight * loss for weight, loss in pairs) / total)
    if difference <= tolerance * sum(weight * abs(loss) for weight, loss in pairs) / total:
        return
    one, two = losses
    values = f"{sample.rows} rows gave {sample.loss:.6g}, the two halves of them {one:.6g} and {two:.6g}"
    if one and two and abs(sample.loss - one - two) <= tolerance * (abs(one) + abs(two)):
        raise ValueError(
            f"the loss is a sum over its rows: {values}. Measures would depend on how the data is cut into batches. "
            'Return the mean or one loss per row: reduction="mean" or reduction="none".'
        )
    if objective.weight is None:
        raise ValueError(
            f"the loss of a batch is not the mean of its parts' losses: {values}. If it averages over something else "
            "than rows, such as targets that are not ignored, pass the weight of a batch: "
            "weight=lambda batch: (batch[1] != -100).sum(), or weight='tokens' of steppe.objective and steppe.measure. "
            "If it is meant to depend on whole batches, as contrastive losses do, pass weight=1, and all of them count "
            "the same."
        )


def _evaluate_rows(objective: Objective, which: int, n: int, seed: int) -> _Sample:
    """Evaluate the first n rows of a batch, read again from the data: a lazy sequence may augment."""
    batch = to_device(objective.batches[which], objective.space.device)
    if n < rows_of(batch):
        batch = take_rows(batch, slice(0, n))

    def task(model: nn.Module) -> _Sample:
        seed_torch(seed)
        np.random.seed(seed)
        random.seed(seed)
        output, target = objective.forward(model, batch)
        losses = objective.loss_fn(output, target)
        if not isinstance(losses, Tensor):
            check_depends_on_parameters(objective, losses)
        return _Sample(batch, output, target, rows_of(batch), _mean(losses), not losses.ndim or len(losses) != n)

    with torch.no_grad():
        return objective.evaluate(objective.weight_tensors(), task)


def _losses_of_parts(objective: Objective, sample: _Sample, cuts: Sequence[slice]) -> list[float] | None:
    """The loss of each part of the rows, or None if it cannot be computed.

    Parts of the output are preferred: they need no pass, and a model that mixes rows (batch statistics) has other
    outputs for a part of the batch.
    """
    outputs = tree_leaves(sample.output)
    targets = [x for x in tree_leaves(sample.target) if isinstance(x, Tensor) and x.ndim]
    have_rows = all(isinstance(x, Tensor) and x.ndim and len(x) == sample.rows for x in [*outputs, *targets])
    if not have_rows and objective.statistics == "batch":
        return None

    def loss_of(model: nn.Module, rows: slice) -> float:
        if have_rows:
            return _mean(objective.loss_fn(*take_rows((sample.output, sample.target), rows)))
        return _mean(objective.loss_fn(*objective.forward(model, take_rows(sample.batch, rows))))

    try:
        with torch.no_grad():
            return objective.evaluate(objective.weight_tensors(), lambda model: [loss_of(model, rows) for rows in cuts])
    except Exception:  # not every model accepts a part of a batch
        return None


def _mean(losses: Tensor) -> float:
    return float(losses.detach().double().mean())


def check_depends_on_parameters(objective: Objective, losses: Any, grads: Any = None) -> None:
    """Raise if the loss does not depend on any moving parameter."""
    if not getattr(losses, "requires_grad", False) or (grads is not None and all(g is None for g in grads)):
        raise ValueError(
            "the loss does not depend on the parameters that move: its graph reaches none of "
            f"{', '.join(list(objective.params)[:3])} ... Compute it from the model that forward() receives, without "
            "no_grad, detach or item."
        )


def check_not_sharded(model: nn.Module, params: Iterable[Tensor]) -> None:
    """Raise if a parameter is sharded over workers."""
    fsdp1 = any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())
    if fsdp1 or any(distributed(p) is not None for p in params):
        raise ValueError(
            f"the model is sharded (FSDP{1 if fsdp1 else 2}) and cannot be evaluated at other weights: load its full "
            "state dict into an unsharded copy and measure that, with the batches divided over workers by group="
        )
