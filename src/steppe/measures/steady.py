"""Refuses losses that are no function of the weights, or no mean over batches, before they become wrong numbers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..core.draw import seed_torch
from ..core.shards import distributed
from .batches import Batch, moved, part, rows_of, weight_of
from .estimate import refuse_not_finite

if TYPE_CHECKING:
    from .objective import Objective

FEW = 16  # rows that show as well as all of them whether a loss changes by itself
ROUNDED = {"float32": 0.0, "tf32": 1e-2, "bf16": 5e-2}  # how far rounding may move a loss, as a share of it


@dataclass(frozen=True)
class _Look:
    """Some rows of a batch, what the model makes of them, and the mean loss of that."""

    batch: Batch
    output: Any
    target: Any
    loss: float
    reduced: bool  # not one loss per row

    @property
    def rows(self) -> int:
        return rows_of(self.batch)


def refuse_unsteady(objective: Objective) -> None:
    """Raises if the loss of a batch changes with random numbers, is not finite, or does not average as batches do."""
    weighty = [i for i, weight in enumerate(objective.batch_weights) if weight]
    if not weighty:  # other workers may hold some that count
        return
    sizes = objective.sizes
    which = next((i for i in weighty if sizes[i] > 1), weighty[0])  # one row alone cannot tell a sum from a mean
    few = min(FEW, sizes[which]) if objective.statistics == "running" else sizes[which]
    one, two = (_look(objective, which, few, seed) for seed in (0, 1))
    if not isfinite(one.loss) and few < sizes[which]:  # such as of rows whose targets are all ignored
        one, two = (_look(objective, which, sizes[which], seed) for seed in (0, 1))
    refuse_not_finite(one.loss)
    precision: float = max(torch.finfo(p.dtype).eps for p in objective.params.values()) ** 0.5
    if not abs(one.loss - two.loss) <= 0.1 * precision * max(abs(one.loss), abs(two.loss)):  # sums in any order
        raise ValueError(
            f"the loss is not a function of the weights: one batch gave {one.loss:.6g} and then {two.loss:.6g}. "
            "Dropout, random augmentation or noise is active although the model is in eval mode here: switch it off, "
            "or draw it once and pass the result as data."
        )
    if len(objective.batches) == 1 and objective.workers.count == 1:  # nothing to weigh it against
        return
    if one.rows < sizes[which]:  # few rows may not show what a loss leaves out
        one = _look(objective, which, sizes[which], 0)
        refuse_not_finite(one.loss)
    if one.rows > 1 and one.reduced:
        _refuse_other_reductions(objective, one, max(precision, ROUNDED[objective.precision]))


def _refuse_other_reductions(objective: Objective, look: _Look, tolerance: float) -> None:
    """Raises if the loss of a batch is the sum of its halves', or if it is not their mean and no weight is given."""
    cuts = slice(0, look.rows // 2), slice(look.rows // 2, look.rows)
    losses = _parts(objective, look, cuts)
    if losses is None:
        return
    weights = [weight_of(part(look.batch, rows), objective.weight) for rows in cuts]
    weighing = [(weight, loss) for weight, loss in zip(weights, losses, strict=True) if weight]
    total = sum(weight for weight, _ in weighing) or 1.0
    apart = abs(look.loss - sum(weight * loss for weight, loss in weighing) / total)
    if apart <= tolerance * sum(weight * abs(loss) for weight, loss in weighing) / total:
        return
    one, two = losses
    found = f"{look.rows} rows gave {look.loss:.6g}, the two halves of them {one:.6g} and {two:.6g}"
    if one and two and abs(look.loss - one - two) <= tolerance * (abs(one) + abs(two)):
        raise ValueError(
            f"the loss is a sum over its rows: {found}. Measures would depend on how the data is cut into batches. "
            'Return the mean or one loss per row: reduction="mean" or reduction="none".'
        )
    if objective.weight is None:
        raise ValueError(
            f"the loss of a batch is not the mean of its parts' losses: {found}. If it averages over something else "
            "than rows, such as targets that are not ignored, pass what a batch counts: "
            "weight=lambda batch: (batch[1] != -100).sum(). If it is meant to depend on whole batches, as contrastive "
            "losses do, pass weight=1, and all of them count the same."
        )


def _look(objective: Objective, which: int, n: int, seed: int) -> _Look:
    """The loss of the first n rows of a batch, which is read anew: a lazy sequence may augment."""
    batch = moved(objective.batches[which], objective.space.device)
    if n < rows_of(batch):
        batch = part(batch, slice(0, n))

    def task(model: nn.Module) -> _Look:
        seed_torch(seed)
        np.random.seed(seed)
        random.seed(seed)
        output, target = objective.forward(model, batch)
        losses = objective.loss_fn(output, target)
        if not isinstance(losses, Tensor):
            refuse_constant(objective, losses)
        return _Look(batch, output, target, _mean(losses), reduced=not losses.ndim or len(losses) != n)

    with torch.no_grad():
        return objective.evaluate(objective.here(), task)  # type: ignore[no-any-return]


def _parts(objective: Objective, look: _Look, cuts: Sequence[slice]) -> list[float] | None:
    """The losses of some rows each, from parts of the output if it has rows, which needs no pass; None if they fail.

    Of the outputs, because a model may mix rows, as with batch statistics, where a part of the batch has other outputs.
    """
    outputs = tree_leaves(look.output)
    targets = [x for x in tree_leaves(look.target) if isinstance(x, Tensor) and x.ndim]
    have_rows = all(isinstance(x, Tensor) and x.ndim and len(x) == look.rows for x in [*outputs, *targets])
    if not have_rows and objective.statistics == "batch":
        return None

    def loss_of(model: nn.Module, rows: slice) -> float:
        if have_rows:
            return _mean(objective.loss_fn(*part((look.output, look.target), rows)))
        return _mean(objective.loss_fn(*objective.forward(model, part(look.batch, rows))))

    try:
        with torch.no_grad():
            return objective.evaluate(objective.here(), lambda model: [loss_of(model, rows) for rows in cuts])  # type: ignore[no-any-return]
    except Exception:  # not every model takes a part of a batch, and all of it has a loss
        return None


def _mean(losses: Tensor) -> float:
    return float(losses.detach().double().mean())


def refuse_constant(objective: Objective, losses: Any, grads: Any = None) -> None:
    """Raises if no parameter that moves takes part in the loss."""
    if not getattr(losses, "requires_grad", False) or (grads is not None and all(g is None for g in grads)):
        raise ValueError(
            "the loss does not depend on the parameters that move: its graph reaches none of "
            f"{', '.join(list(objective.params)[:3])} ... Compute it from the model that forward() is given, without "
            "no_grad, detach or item."
        )


def refuse_sharded(model: nn.Module, params: Iterable[Tensor]) -> None:
    """Raises if a parameter is in pieces on several workers."""
    old = any(type(m).__name__ == "FullyShardedDataParallel" for m in model.modules())
    if old or any(distributed(p) is not None for p in params):
        raise ValueError(
            f"the model is sharded (FSDP{1 if old else 2}), and its function at other weights cannot be asked for: "
            "load its full state dict into an unsharded copy and measure that, its batches shared out by group="
        )
