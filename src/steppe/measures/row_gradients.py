"""Squared gradient norms of single rows with the gradients at hand: many rows at once, or one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from math import nan
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .batches import Batch, row, rows_of
from .elsewhere import twice_differentiable
from .ghost_layers import squares, wide
from .ghost_taps import first_line
from .steady import refuse_constant

if TYPE_CHECKING:
    from .objective import Objective

FAINT = 1e-24  # squares of gradients in single precision vanish below 1e-45, those of small entries sooner
HELD = {"cpu": 2**25}  # numbers in the gradients that vmap holds at once: 128 MiB in single precision
HELD_ELSEWHERE = 2**28


def by_vmap(objective: Objective, batch: Batch, chunk: int | None = None) -> Tensor:
    """The squared gradient norm of every row (down) in every moving parameter (across), from `chunk` rows at once."""
    leaves, spec = tree_flatten(batch)
    n = rows_of(batch)
    cut = [isinstance(x, Tensor) and x.ndim > 0 and len(x) == n for x in leaves]

    def of_row(places: list[Tensor], precise: bool, *alone: Any) -> Tensor:
        one = tree_unflatten([x.unsqueeze(0) if c else x for x, c in zip(alone, cut, strict=True)], spec)
        of_places = torch.func.grad_and_value(lambda p: objective.evaluate(p, _loss(objective, one)).mean())
        grads, loss = cast(Any, of_places(places))
        return torch.where(loss.isfinite(), _squares(grads, precise), nan)

    held = HELD.get(objective.space.device.type, HELD_ELSEWHERE)
    of_rows = torch.func.vmap(
        of_row,
        in_dims=(None, None, *(0 if c else None for c in cut)),
        randomness="different",  # a loss that depends on it is refused before
        chunk_size=min(n, chunk or max(1, held // objective.dimension)),
    )
    try:
        with (
            twice_differentiable(objective.model),
            warnings.catch_warnings(),
        ):  # attention's other backends have no rule for vmap
            warnings.filterwarnings("ignore", "There is a performance drop")  # where an operation goes row by row
            found = of_rows(objective.here(), False, *leaves)
            return (found if _in_range(found) else of_rows(objective.here(), True, *leaves)).detach()
    except Exception as error:
        raise ValueError(
            f'the model does not run under vmap: {first_line(error)}. Ask for way="rows", or leave the way open'
        ) from error


def row_by_row(objective: Objective, batch: Batch) -> Tensor:
    """The same from one row after the other, for models that vmap does not run."""
    places = [p.requires_grad_() for p in objective.here()]

    def of_row(one: Batch) -> Tensor:
        def task(model: nn.Module) -> Tensor:
            losses = _loss(objective, one)(model)
            refuse_constant(objective, losses)
            grads = torch.autograd.grad(losses.mean(), places, materialize_grads=True)
            found = _squares(grads)
            found = found if _in_range(found.unsqueeze(0)) else _squares(grads, precise=True)
            return torch.where(losses.mean().isfinite(), found, nan)

        return cast(Tensor, objective.evaluate(places, task))

    with torch.enable_grad():
        return torch.stack([of_row(row(batch, i)) for i in range(rows_of(batch))])


def _loss(objective: Objective, batch: Batch) -> Callable[[nn.Module], Tensor]:
    return lambda model: objective.loss_fn(*objective.forward(model, batch))


def _squares(grads: Sequence[Tensor], precise: bool = False) -> Tensor:
    """The squared norm of every tensor; precisely is several times slower."""
    dense = (wide(g.coalesce().values() if g.is_sparse else g).unsqueeze(0) for g in grads)
    return torch.stack(
        [squares(g.to(torch.promote_types(g.dtype, torch.float64)) if precise else g)[0].double() for g in dense]
    )


def _in_range(found: Tensor) -> bool:
    """Whether no row's squares have vanished or overflowed."""
    rows = found.sum(1)
    return bool(((rows > FAINT) & rows.isfinite()).all())
