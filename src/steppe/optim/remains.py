"""What the last step left in `p.grad`, so that gradients which somebody accumulated there are not lost in silence."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

_grad = attrgetter("grad")
MARK = "_left_at_version"  # on a gradient: how often it had been written to when a step ended


def note_remains(base: Optimizer) -> None:
    """Marks what stands in `p.grad` as the remains of a step: a closure may overwrite it."""
    grad: Any
    for grad in _gradients(base):
        grad._left_at_version = grad._version


def refuse_accumulated(base: Optimizer) -> None:
    """Raises if `p.grad` holds anything that no step left there."""
    grads = _gradients(base)
    if all(getattr(g, MARK, None) == g._version for g in grads):
        return
    if any(bool(torch.count_nonzero(g.coalesce().values() if g.is_sparse else g)) for g in grads):
        raise RuntimeError(
            "p.grad holds gradients that the last step did not leave there, and step(closure) would lose them: a "
            "sharpness-aware step runs every micro-batch in every pass. To accumulate, write\n"
            "    for turn in opt.passes():\n        for x, y in micro_batches:\n"
            "            turn.backward(loss_fn(model(x), y) / len(micro_batches))\n    opt.step()\n"
            "or call opt.zero_grad() first, if they are not wanted."
        )


def _gradients(base: Optimizer) -> list[Tensor]:
    params = [p for group in base.param_groups for p in group["params"]]
    return [g for p, g in zip(params, map(_grad, params), strict=True) if g is not None and p.requires_grad]
