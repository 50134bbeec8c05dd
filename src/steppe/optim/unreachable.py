"""Batch normalisation that nobody handed us, seen in the graph of a loss."""

from __future__ import annotations

import warnings

from torch import Tensor


def warn_of_unreachable_statistics(loss: Tensor) -> None:
    """Says so if a loss went through batch normalisation in training mode that nobody handed us."""
    todo, seen = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "BatchNorm" in node.name() and getattr(node, "_saved_training", True):
            warnings.warn(
                "the model has batch normalisation, and its running statistics will move at perturbed weights too: "
                "pass the model, SharpnessAware(..., model=model), and they move once a step, at the weights.",
                stacklevel=5,
            )
            return
        todo += [n for n, _ in node.next_functions]
