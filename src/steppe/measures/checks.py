"""Checks that a loss is a function of the weights and a mean over rows; otherwise measures would be wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
from .reductions import Reduction, evaluated

if TYPE_CHECKING:
    from .objective import Objective


FEW = 16  # rows that are enough to show whether a loss is random
ROUNDED = {"float32": 0.0, "tf32": 1e-2, "bf16": 5e-2}  # relative tolerance for rounding


@dataclass(frozen=True)
class _Sample:
    """Some rows of a batch, the model's output for them, their mean loss, and its reduction, if known."""

    batch: Batch
    output: Any
    target: Any
    rows: int
    loss: float
    reduced: bool  # not one loss per row
    reduction: Reduction | None


def check_arguments(model: Any, loss_fn: Any) -> None:
    """Raise unless these are a model and a loss, each made of its class and in its place."""
    kinds = (type, _Loss)
    if (
        isinstance(model, nn.Module)
        and callable(loss_fn)
        and not isinstance(model, kinds)
        and not isinstance(loss_fn, type)
    ):
        return
    order = "check the order of the arguments"
    check_instance("the model", model)
    check_instance("loss_fn", loss_fn)
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
    for n in dict.fromkeys((few, sizes[which])):
        one, two = (_evaluate_rows(objective, which, n, seed=seed) for seed in (0, 1))
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
    if len(objective.batches) == 1 and objective.group is None:  # one batch: its loss is not averaged
        return
    if one.rows < sizes[which]:  # a few rows may not show that a loss ignores some
        one = _evaluate_rows(objective, which, sizes[which])
        check_finite(one.loss)
    tolerance = max(precision, ROUNDED[objective.precision])
    _check_halves(objective, one, tolerance)
    if objective.weight is None and objective.reductions is None:
        for i in counted:
            if i != which:
                other, weights = _evaluate_rows(objective, i, sizes[i]), objective.weight_tensors()
                first = one
                if abs(other.loss - one.loss) <= tolerance * abs(one.loss):  # e.g. where the last layer is zero
                    weights = _nearby(objective)
                    first, other = (_evaluate_rows(objective, j, sizes[j], weights) for j in (which, i))
                _check_together(objective, first, other, i, weights, tolerance)


def _nearby(objective: Objective) -> list[Tensor]:
    """Other weights, at which batches have other losses."""
    noise = objective.draw(0).normal()
    size = float(objective.weights.norm()) / objective.dimension**0.5 or 1.0
    return sums(objective.weight_tensors(), noise.mul_(0.1 * size).tensors)


def _check_halves(
    objective: Objective, sample: _Sample, tolerance: float, weights: Sequence[Tensor] | None = None
) -> bool:
    """Compare the loss of a batch with those of its halves; False if these have none."""
    cuts = slice(0, sample.rows // 2), slice(sample.rows // 2, sample.rows)
    halves = _parts(objective, sample, cuts, weights) if sample.rows > 1 else None
    if halves is None:
        return False
    words = f"{sample.rows} rows gave {sample.loss:.6g}, the two halves of them"
    _check_mean(objective, sample.loss, halves, words, tolerance)
    return True


def _check_together(
    objective: Objective, first: _Sample, other: _Sample, i: int, weights: Sequence[Tensor], tolerance: float
) -> None:
    """Compare the loss of two batches as one with the mean of both; if they do not join, that of one with its halves.

    Both may be means over rows and yet weigh differently, e.g. where rows are sorted by class.
    """
    both = _joined(objective, first, other, weights)
    if both is None:
        if not _check_halves(objective, other, tolerance, weights) and other.reduced:
            raise ValueError(
                f"batch {i} cannot be joined with another or cut, so whether the loss is a mean over rows cannot be "
                "tested: pass the weight of a batch, such as weight=lambda batch: len(batch[0]), or return one loss "
                "per row."
            )
        return
    check_finite(both.loss, f"of batch {i} and another one at the weights themselves")
    words = f"{first.rows + other.rows} rows of two batches gave {both.loss:.6g}, each of them"
    _check_mean(objective, both.loss, (first, other), words, tolerance)


def _check_mean(objective: Objective, loss: float, parts: Sequence[_Sample], words: str, tolerance: float) -> None:
    """Raise if a loss is the sum of its parts' losses, or not their mean while `weight` is None."""
    if objective.weight is None and all(part.reduction is not None and part.reduction.summed for part in parts):
        expected, size = sum(part.loss for part in parts), sum(abs(part.loss) for part in parts)
    else:
        weighted = [(_weight(objective, part), part.loss) for part in parts]
        pairs = [(weight, loss) for weight, loss in weighted if weight]
        total = sum(weight for weight, _ in pairs) or 1.0
        expected = sum(weight * loss for weight, loss in pairs) / total
        size = sum(weight * abs(loss) for weight, loss in pairs) / total
    if abs(loss - expected) <= tolerance * size:
        return
    one, two = (part.loss for part in parts)
    values = f"{words} {one:.6g} and {two:.6g}"
    if one and two and abs(loss - one - two) <= tolerance * (abs(one) + abs(two)):
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


def _weight(objective: Objective, part: _Sample) -> float:
    if objective.weight is None and part.reduction is not None:
        return part.reduction.weight
    return batch_weight(part.batch, objective.weight)


def _evaluate_rows(
    objective: Objective, which: int, n: int, weights: Sequence[Tensor] | None = None, seed: int = 0
) -> _Sample:
    """Evaluate the first n rows of a batch, read again from the data: a lazy sequence may augment."""
    batch = to_device(objective.batches[which], objective.device)
    if n < rows_of(batch):
        batch = take_rows(batch, slice(0, n))
    seed_torch(seed)
    np.random.seed(seed)
    random.seed(seed)
    with torch.no_grad():
        at = objective.weight_tensors() if weights is None else weights
        return objective.evaluate(at, lambda model: _sample(objective, model, batch))


def _sample(objective: Objective, model: nn.Module, batch: Batch, outputs: tuple[Any, Any] | None = None) -> _Sample:
    output, target, losses, reduction = evaluated(objective, model, batch, outputs)
    if not isinstance(losses, Tensor):
        raise_constant(objective)
    n = rows_of(batch)
    reduced = not losses.ndim or len(losses) != n
    return _Sample(batch, output, target, n, float(losses.detach().double().mean()), reduced, reduction)


def _parts(
    objective: Objective, sample: _Sample, cuts: Sequence[slice], weights: Sequence[Tensor] | None
) -> list[_Sample] | None:
    """Parts of the rows of a batch with their losses, or None if these cannot be computed."""
    made = [lambda whole, rows=rows: take_rows(whole, rows) for rows in cuts]
    return _of_outputs(objective, (sample,), made, weights)


def _joined(objective: Objective, one: _Sample, two: _Sample, weights: Sequence[Tensor]) -> _Sample | None:
    """Two batches as one with its loss, or None if it cannot be computed."""
    both = _of_outputs(objective, (one, two), [joined], weights)
    return None if both is None else both[0]


def _of_outputs(
    objective: Objective,
    samples: Sequence[_Sample],
    made: Sequence[Callable[..., Any]],
    weights: Sequence[Tensor] | None,
) -> list[_Sample] | None:
    """What functions make of samples' rows, evaluated; None if not every model or loss accepts that.

    The functions make outputs, if these have rows: they need no pass, and a model that mixes rows (batch statistics)
    has other outputs for other batches.
    """
    with_rows = all(map(_has_rows, samples))
    if not with_rows and objective.statistics == "batch":
        return None

    def task(model: nn.Module) -> list[_Sample]:
        batches = [make(*(s.batch for s in samples)) for make in made]
        outputs = [make(*((s.output, s.target) for s in samples)) if with_rows else None for make in made]
        return [_sample(objective, model, *pair) for pair in zip(batches, outputs, strict=True)]

    try:
        with torch.no_grad():
            return objective.evaluate(objective.weight_tensors() if weights is None else weights, task)
    except Exception:
        return None


def _has_rows(sample: _Sample) -> bool:
    """Whether output and target have one entry per row, of which some can be taken."""
    targets = [x for x in tree_leaves(sample.target) if isinstance(x, Tensor) and x.ndim]
    every = [*tree_leaves(sample.output), *targets]
    return all(isinstance(x, Tensor) and x.ndim and len(x) == sample.rows for x in every)


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
