"""What a loss of torch's sums or averages over, which is what a batch weighs in the mean over all data."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.modules.loss import _Loss
from torch.overrides import TorchFunctionMode

from .batches import Batch, batch_weight, row, rows_of, supervised, to_device, usable_weight

if TYPE_CHECKING:
    from .objective import Objective

BY_CLASS = (functional.cross_entropy, functional.nll_loss)  # these divide by weights of classes, and ignore targets
OTHERS = ("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
LOSSES = (*BY_CLASS, *(f for name, f in vars(functional).items() if name.endswith("_loss") or name in OTHERS))
# their means with a weight per element divide by different things in different versions of torch
UNEVEN = (functional.huber_loss, functional.l1_loss, functional.mse_loss)


@dataclass(frozen=True)
class Reduction:
    """How a loss becomes one number: the sum of its elements, or their mean with these weights."""

    elements: Tensor
    summed: bool = False

    @property
    def weight(self) -> float:
        """What batches weigh in the mean over all data; sums over batches are added up."""
        return 1.0 if self.summed else usable_weight(self.elements.double().sum(), "the divisor of the loss")


class Watch(TorchFunctionMode):
    """Notes the calls of torch's losses inside the block."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Tensor, int, Callable[..., Tensor], Any, Any]] = []  # results, losses, arguments

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if any(func is loss for loss in LOSSES):
            self.calls.append((result, _version(result), func, args, kwargs or {}))
        return result

    def reduction(self, losses: Any) -> Reduction | None:
        """The reduction of a result of these calls; None if it is none of them, or not known to be a mean or sum."""
        for result, version, loss, args, kwargs in self.calls:
            if result is not losses or _version(result) != version:  # as after `loss += penalty`
                continue
            bound = _signature(loss).bind(*args, **kwargs)
            bound.apply_defaults()
            given = bound.arguments
            how, weight = given["reduction"], given.get("weight")
            target: Any = given.get("target")
            deprecated = given.get("size_average") is not None or given.get("reduce") is not None
            if deprecated or (loss in UNEVEN and weight is not None):
                return None
            if how == "sum":
                return Reduction(torch.ones(1), summed=True)
            if how == "batchmean":
                return Reduction(torch.ones(len(given["input"])))
            if how != "mean" or loss not in BY_CLASS or target.is_floating_point():
                given["reduction"] = "none"
                with torch.no_grad():
                    return Reduction(torch.ones_like(loss(*bound.args, **bound.kwargs)))
            # the weight of every target: that of its class, 0 if it is ignored
            kept = target != given["ignore_index"]
            weights = kept.double() if weight is None else weight.double()[target.where(kept, 0)] * kept
            if given.get("label_smoothing") and bool(kept.any()) and not bool(weights.any()):
                raise ValueError(
                    "label smoothing divides by the weights of the targets' classes, and all targets of a batch weigh "
                    "0: make batches larger, or give no class the weight 0"
                )
            return Reduction(weights)
        return None


_signature = cache(signature)


def _version(x: Tensor) -> int:
    """How often a tensor was written into."""
    return 0 if x.is_inference() else x._version


def evaluated(
    objective: Objective, model: Any, batch: Batch, outputs: tuple[Any, Any] | None = None
) -> tuple[Any, Any, Any, Watch]:
    """The output, target and loss of a batch, and what tells the reduction of the loss, if it is one of torch's.

    `outputs` are output and target, if they are known.
    """
    watch, own = Watch(), objective.forward is not supervised  # such a function may compute the loss itself
    with watch if own else nullcontext():
        output, target = outputs or objective.forward(model, batch)
        with nullcontext() if own else watch:
            losses = objective.loss_fn(output, target)
    return output, target, losses, watch


def find_reductions(objective: Objective) -> list[Reduction] | None:
    """The reduction of every batch; None unless the loss is one of torch's, or a model's own that is.

    Takes a forward pass per batch, unless `loss_fn` is a loss of torch's itself: then targets are enough.
    """
    found: list[Reduction] = []
    like: Tensor | None = None
    for batch in objective.batches:
        local = to_device(batch, objective.device)
        reduction = _of_target(objective, local, like)
        if reduction is None:
            reduction, like = _of_pass(objective, local)
        if reduction is None or reduction.summed != (found or [reduction])[0].summed:
            return None
        found.append(reduction)
    return found


def _of_pass(objective: Objective, batch: Batch) -> tuple[Reduction | None, Tensor | None]:
    """The reduction on a batch, and the output, if `_of_target` can use it for others."""
    # a loss of torch's with fixed options, of a target that is in the batch, depends on no other output's values
    loss_fn: Any = objective.loss_fn
    inner = loss_fn.func if isinstance(loss_fn, partial) else loss_fn
    module = isinstance(inner, _Loss) and type(inner).__module__ == _Loss.__module__
    usable = objective.forward is supervised and (module or any(inner is loss for loss in LOSSES))
    with torch.no_grad():
        output, _, losses, watch = objective.evaluate(
            objective.weight_tensors(), lambda model: evaluated(objective, model, batch)
        )
        reduction = watch.reduction(losses)
    return reduction, output if usable and isinstance(output, Tensor) and output.ndim else None


def _of_target(objective: Objective, batch: Batch, like: Tensor | None) -> Reduction | None:
    """The reduction of a loss of torch's on a batch, from its targets and an output of another batch."""
    if like is None:
        return None
    stand_in = like[:1].expand(rows_of(batch), *like.shape[1:])
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")  # e.g. of shapes that do not belong together
            _, _, losses, watch = evaluated(objective, lambda *args, **kwargs: stand_in, batch)
            return watch.reduction(losses)
    except Exception:  # e.g. of outputs of another length
        return None


def row_weights(objective: Objective, batch: Batch, size: int) -> tuple[Tensor, Tensor]:
    """What every row weighs in the mean over rows, and its loss's gradient over that of the batch's loss.

    A row alone has the loss l_i. The loss of the batch is sum w_i l_i / sum w_i, or a sum.
    """
    weights = torch.ones(size, dtype=torch.float64)
    if objective.weight is not None:
        each = [batch_weight(row(batch, i), objective.weight) for i in range(size)]
        weights = torch.tensor(each, dtype=torch.float64)
    else:
        local = to_device(batch, objective.device)
        first, like = _of_pass(objective, row(local, 0))
        if first is not None and first.summed:
            return weights, weights
        if first is not None:
            elements = _of_batch(objective, local, like).elements
            weights *= elements.numel() / size
            if not bool((elements == 1).all()):
                each = [_of_batch(objective, row(local, i), like).weight for i in range(size)]
                weights = torch.tensor(each, dtype=torch.float64)
    factors = torch.where(weights > 0, weights.sum() / weights, 0.0)
    return weights, factors


def _of_batch(objective: Objective, batch: Batch, like: Tensor | None) -> Reduction:
    found = _of_target(objective, batch, like) or _of_pass(objective, batch)[0]
    return found or Reduction(torch.ones(rows_of(batch)))
