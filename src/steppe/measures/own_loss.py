"""Objectives of models that compute their own loss from a dictionary, and of losses that ignore some labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._util.names import unknown
from .batches import LABELS, Batch, Weight, to_device
from .objective import Objective

IGNORED = -100  # a label that losses leave out: `ignore_index` of torch's cross-entropy, and Transformers


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
        dictionary, or the second of a pair. If the loss does not depend on the first label of a row, as in causal
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
    return replace(made, weight=TokenCount(_first_label_counts(made))) if weight == "tokens" else made


def with_own_loss(model: nn.Module, batch: Batch) -> tuple[Any, Any]:
    """The loss that a model returns for a dictionary, `model(**batch).loss`, and no target: for `loss_fn=None`."""
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"without loss_fn the loss is model(**batch).loss, and this batch is a {type(batch).__name__}, not a "
            "dictionary: pass loss_fn"
        )
    output = model(**batch)
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(loss, Tensor):
        raise TypeError(
            f"without loss_fn the loss is model(**batch).loss, and the model returned a {type(output).__name__} "
            f"without one: give the batches {LABELS!r}, or pass loss_fn"
        )
    return loss, None


def own_loss(output: Any, target: Any) -> Tensor:
    """The loss of a model that computes it itself: the output of `with_own_loss`."""
    return output  # type: ignore[no-any-return]


@dataclass(frozen=True)
class TokenCount:
    """The number of labels in a batch that are not -100, with or without the first of each row."""

    first: bool

    def __call__(self, batch: Batch) -> Tensor:
        labels = labels_of(batch)
        return (labels if self.first or labels.ndim < 2 else labels[:, 1:]).ne(IGNORED).sum()


def labels_of(batch: Batch) -> Tensor:
    """The labels of a batch: its `labels`, or the second of a pair."""
    labels = batch.get(LABELS) if isinstance(batch, Mapping) else batch[1] if len(batch) == 2 else None
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"weight='tokens' counts labels, and a {type(batch).__name__} has no {LABELS!r}: pass a function"
        )
    return labels


def _first_label_counts(objective: Objective) -> bool:
    """Whether the loss depends on the first label of a row."""

    def loss(batch: Batch) -> float:
        batch = to_device(batch, objective.space.device)
        with torch.no_grad():
            losses = objective.evaluate(
                objective.weight_tensors(), lambda model: objective.loss_fn(*objective.forward(model, batch))
            )
        return float(losses.mean())

    for batch in objective.batches:
        labels = labels_of(batch)
        if labels.ndim < 2 or not bool((labels[:, 0] != IGNORED).any() and (labels[:, 1:] != IGNORED).any()):
            continue  # both ways of counting agree, or the loss has nothing left
        without = labels.clone()
        without[:, 0] = IGNORED
        changed = {**batch, LABELS: without} if isinstance(batch, Mapping) else (batch[0], without)
        return loss(batch) != loss(changed)
    return True
