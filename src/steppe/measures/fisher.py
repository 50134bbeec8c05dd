"""How much every row pulls at the weights: the squared norm of its own gradient, and its mean over rows.

The mean is the trace of the empirical Fisher matrix. Lu et al. (SharpBalance, 2024) choose rows by it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from .batches import Batch, moved, row, weight_of
from .elsewhere import undisturbed
from .estimate import Estimate, Measure, weighted
from .ghost import ghost_squares
from .passes import function_of
from .row_gradients import by_vmap, row_by_row

if TYPE_CHECKING:
    from .objective import Objective

Way = Literal["ghost", "vmap", "rows"]


def fisher_traces(objective: Objective, way: Way | None = None, *, chunk: int | None = None) -> Tensor:
    """||grad l_j||^2 of every row j in the order of the batches, where l_j is the loss of row j as a batch of one.

    `way` is how: "ghost" watches layers in one backward pass and holds no row's gradient; "vmap" takes gradients of
    `chunk` rows at once; "rows" one after the other, which works for any model. None takes the first of them that
    the model allows and that gives one row its gradient. With a group, every worker gets the rows of its own batches.
    Rows that the objective's `weight` counts as 0 have trace 0.
    """
    with undisturbed(objective.model, objective.statistics):
        return torch.cat([torch.zeros(0, dtype=torch.float64), *(x for _, x, _ in _by_batch(objective, way, chunk))])


@dataclass(frozen=True)
class FisherTrace(Measure):
    """The mean of ||grad l_j||^2 over rows: the trace of the empirical Fisher matrix, with its error over rows.

    Rows count as the objective's `weight` counts them as batches of one, those of weight 0 not at all.
    """

    way: Way | None = None
    chunk: int | None = None

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        start = objective.spent()
        workers, mine = objective.workers, _by_batch(objective, self.way, self.chunk)
        # workers may hold one batch more than others, and all of them have to take part in every gathering
        rounds = max(int(most) for _, (most,) in workers.gathered([(workers.rank, [len(objective.batches)])]))
        found: list[tuple[int, list[float]]] = []
        note = ""
        for i in range(rounds):
            batch = next(mine, None)
            if batch is not None:
                note = f"by {batch[0]}"
            number = objective.first + i * objective.stride
            pairs = torch.stack(batch[1:], 1).reshape(-1).tolist() if batch is not None else []
            found += workers.gathered([(number, pairs)] if batch is not None else [])
            rows = torch.tensor([x for _, pairs in sorted(found) for x in pairs], dtype=torch.float64).view(-1, 2)
            if rows[:, 1].any():
                yield weighted(rows[:, 0], rows[:, 1], "unbiased", cost=objective.spent() - start, note=note)


def _by_batch(objective: Objective, way: Way | None, chunk: int | None) -> Iterator[tuple[Way, Tensor, Tensor]]:
    """The way that traces were found, settled by the first batch if it can be, the traces and the rows' weights."""
    if way is not None and way not in _WAYS:
        raise ValueError(f"there is no way {way!r} to per-row gradients: take one of {', '.join(_WAYS)}, or None")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is a number of rows, at least 1, not {chunk}")
    modules = list(objective.model.modules())
    _refuse_batch_statistics(objective, modules)
    objective.check()
    ways: list[Way] = [way] if way is not None else list(_WAYS)
    # also the attributes of its layers, of which one may say how rows are used
    function = (function_of(objective, modules), *(tuple(map(id, vars(m).values())) for m in modules))
    for batch, size in zip(objective.batches, objective.sizes, strict=True):
        weights = torch.ones(size, dtype=torch.float64)
        if objective.weight is not None:
            weights = weights.new_tensor([weight_of(row(batch, i), objective.weight) for i in range(size)])
        if not weights.any():
            yield ways[0], weights, weights
            continue
        found: Tensor | None = None
        while found is None:
            try:
                found = _found(objective, moved(batch, objective.space.device), ways[0], chunk, function)
            except Exception:  # what is wrong with the model itself, the last way will say
                if len(ways) == 1:
                    raise
                del ways[0]
        objective.meter.gradients += size
        yield ways[0], torch.where(weights > 0, found.sum(1).cpu(), 0.0), weights


def _found(objective: Objective, batch: Batch, way: Way, chunk: int | None, function: Hashable) -> Tensor:
    found = _WAYS[way](objective, batch, chunk)
    # whether rows are mixed is no matter of weights or of rows: what was seen once holds while the function stays
    known = way == "rows" or objective.ways_of_rows.get(way) == function
    if not known and _refuse_mixed_rows(objective, batch, found, way):
        objective.ways_of_rows[way] = function
    return found


def _refuse_mixed_rows(objective: Objective, batch: Batch, found: Tensor, way: Way) -> bool:
    """Raises if the row with the largest gradient has another one alone than in its batch; False if none tells."""
    largest = int(found.sum(1).nan_to_num().argmax())
    among, alone = found[largest].sqrt(), row_by_row(objective, row(batch, largest))[0].sqrt()
    # wide enough for the shortened products that GPUs compute with by default
    precision = max(torch.finfo(p.dtype).eps for p in objective.params.values()) ** 0.25
    off = (among - alone).abs() > precision * alone.square().sum().sqrt()
    if bool(off.any()):
        name = next(name for name, wrong in zip(objective.params, off, strict=True) if wrong)
        raise ValueError(
            f"{way} gives row {largest} another gradient of {name} than the row has by itself: the model mixes rows or "
            'has them in another dimension than the first. Ask for way="rows", or leave the way open'
        )
    size = float(alone.square().sum())
    return len(found) > 1 and 0 < size < inf  # a row by itself is mixed with no other


def _refuse_batch_statistics(objective: Objective, modules: Sequence[nn.Module]) -> None:
    """Raises if a row's loss depends on the rows beside it through BatchNorm."""
    for module in modules:
        if "running_mean" not in module._buffers or isinstance(module, nn.modules.instancenorm._InstanceNorm):
            continue
        if objective.statistics == "batch" or module._buffers["running_mean"] is None:
            name = next(name for name, m in objective.model.named_modules() if m is module)
            raise ValueError(
                f"a row has no loss of its own: {name or 'the model'} ({type(module).__name__}) normalises with the "
                'batch\'s statistics. Measure with statistics="running", on a model that tracks them'
            )


_WAYS: dict[Way, Callable[[Objective, Batch, int | None], Tensor]] = {
    "ghost": lambda objective, batch, chunk: ghost_squares(objective, batch),
    "vmap": by_vmap,
    "rows": lambda objective, batch, chunk: row_by_row(objective, batch),
}
