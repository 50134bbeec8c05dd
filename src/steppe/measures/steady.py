"""Refuses losses that are no function of the weights, before they become wrong numbers."""

from __future__ import annotations

import random
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..draw import seed_torch
from .batches import moved, part, rows_of
from .estimate import NotFinite

if TYPE_CHECKING:
    from .objective import Objective

FEW = 16  # rows that show as well as all of them whether a loss changes by itself


def refuse_unsteady(objective: Objective) -> None:
    """Raises if some rows evaluated twice, with other random numbers, give two losses."""
    found = []
    for seed in (0, 1):
        batch = objective.batches[0]  # anew: a lazy sequence may augment
        if rows_of(batch) > FEW and objective.statistics == "running":
            batch = part(batch, slice(0, FEW))
        batch = moved(batch, objective.space.device)

        def task(model: nn.Module, seed: int = seed, batch: Any = batch) -> float:
            seed_torch(seed)
            np.random.seed(seed)
            random.seed(seed)
            losses = objective.loss_fn(*objective.forward(model, batch))
            return float(losses.double().mean()) if isinstance(losses, Tensor) else refuse_constant(objective, losses)

        with torch.no_grad():
            found.append(objective.evaluate(objective.here(), task))
    one, two = found
    if not isfinite(one):
        raise NotFinite(f"the loss at the weights themselves is {one}: there is nothing to compare with around them")
    precision = max(torch.finfo(p.dtype).eps for p in objective.params.values())
    if not abs(one - two) <= 0.1 * precision**0.5 * max(abs(one), abs(two)):  # kernels may add up in any order
        raise ValueError(
            f"the loss is not a function of the weights: one batch gave {one:.6g} and then {two:.6g}. Dropout, random "
            "augmentation or noise is active although the model is in eval mode here: switch it off, or draw it once "
            "and pass the result as data."
        )


def refuse_constant(objective: Objective, losses: Any, grads: Any = None) -> None:
    """Raises if no parameter that moves takes part in the loss."""
    if not getattr(losses, "requires_grad", False) or (grads is not None and all(g is None for g in grads)):
        raise ValueError(
            "the loss does not depend on the parameters that move: its graph reaches none of "
            f"{', '.join(list(objective.params)[:3])} ... Compute it from the model that forward() is given, without "
            "no_grad, detach or item."
        )
