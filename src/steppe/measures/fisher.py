"""The squared gradient norm of every row, and its mean over rows: the trace of the empirical Fisher matrix.

Lu et al. (SharpBalance, 2024) choose rows by these norms.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, nan
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from .batches import Batch, row, rows_of, to_device
from .checks import raise_constant
from .estimate import Estimate, Measure, weighted
from .functional import function_key, twice_differentiable
from .ghost import first_line, ghost_squares
from .ghost_layers import squares, wide
from .reductions import row_weights
from .registration import register
from .session import session

if TYPE_CHECKING:
    from .objective import Objective

Way = Literal["ghost", "vmap", "rows"]

FAINT = 1e-24  # below this, squares of small entries may have underflowed in single precision
HELD = 2**25, 2**28  # numbers in the gradients that vmap holds at once, on a CPU (128 MiB) and elsewhere


def fisher_traces(objective: Objective, way: Way | None = None, *, chunk: int | None = None) -> Tensor:
    """The squared gradient norm of every sample, by which SharpBalance chooses samples (Lu et al. 2024).

    Parameters
    ----------
    objective
        The loss and the data. Sample j counts with the loss l_j that it has as a batch of one.
    way
        "ghost" computes the norms from layer inputs in one backward pass and holds no row's gradient; "vmap" takes the
        gradients of `chunk` rows at once; "rows" takes one after the other and works for any model. None takes the
        first of them that the model supports and that gives one row the gradient that it has by itself.
    chunk
        Rows per call of vmap; None chooses by memory.

    Returns
    -------
    Tensor
        ||grad l_j||^2 in the order of the batches, on the CPU in float64. Rows that the objective's `weight` counts as
        0 have trace 0. With a process group, every worker gets the rows of its own batches.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> steppe.measures.fisher_traces(objective)  # the gradients are (2, 0) and (0, 8)
    tensor([ 4., 64.], dtype=torch.float64)

    """
    with session(objective.model, objective.statistics):
        return torch.cat([torch.zeros(0, dtype=torch.float64), *(x for _, x, _ in _by_batch(objective, way, chunk))])


@register(
    "fisher_trace", kind="unbiased", cost="1 gradient", label="Fisher trace",
    does="the mean squared norm of per-sample gradients",
)  # fmt: skip
@dataclass(frozen=True)
class FisherTrace(Measure):
    """The mean of ||grad l_j||^2 over samples: the trace of the empirical Fisher matrix, with its error over samples.

    Samples are weighted by the objective's `weight` of each as a batch of one; those of weight 0 are left out.

    Parameters
    ----------
    way, chunk
        As in `fisher_traces`.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> float(steppe.measures.FisherTrace().estimate(objective))  # the mean of 2 ** 2 and 2 ** 2
    4.0

    """

    way: Way | None = None
    chunk: int | None = None

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        batches = _by_batch(objective, self.way, self.chunk)
        yield from mean_over_rows(objective, ((f"by {way}", traces, weights) for way, traces, weights in batches))


def mean_over_rows(objective: Objective, batches: Iterator[tuple[str, Tensor, Tensor]]) -> Iterator[Estimate]:
    """The mean of a number over the rows of all workers, with its error over rows, after every batch.

    `batches` yields, per batch of this worker, a note, the number of every row, and the rows' weights; rows of weight 0
    are left out.
    """
    workers = objective.workers
    # a worker may hold one batch more than others, and all of them must take part in every all_gather
    rounds = max(int(most) for _, (most,) in workers.all_gather([(workers.rank, [len(objective.batches)])]))
    gathered: list[tuple[int, list[float]]] = []
    note = ""
    for i in range(rounds):
        batch = next(batches, None)
        mine = []
        if batch is not None:
            note, *columns = batch
            mine = [(objective.first + i * objective.stride, torch.stack(columns, 1).reshape(-1).tolist())]
        gathered += workers.all_gather(mine)
        rows = torch.tensor([x for _, pairs in sorted(gathered) for x in pairs], dtype=torch.float64).view(-1, 2)
        if rows[:, 1].any():
            yield weighted(rows[:, 0], rows[:, 1], "unbiased", note=note)


def _by_batch(objective: Objective, way: Way | None, chunk: int | None) -> Iterator[tuple[Way, Tensor, Tensor]]:
    """Per batch: the way that was used, the traces, and the rows' weights."""
    if way is not None and way not in _WAYS:
        raise ValueError(f"way is {way!r}: per-row gradients are computed by {', '.join(_WAYS)}, or None")
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk is a number of rows, at least 1, not {chunk}")
    modules = list(objective.model.modules())
    check_no_batch_statistics(objective, modules)
    objective.check()
    ways: list[Way] = [way] if way is not None else list(_WAYS)
    # attributes of the layers are part of the key: one may decide how rows are used
    function = (function_key(objective, modules), *(tuple(map(id, vars(m).values())) for m in modules))
    for batch, size in zip(objective.batches, objective.sizes, strict=True):
        weights = row_weights(objective, batch, size)[0]
        if not weights.any():
            yield ways[0], weights, weights
            continue
        local = to_device(batch, objective.device)
        while True:
            try:
                norms = _WAYS[ways[0]](objective, local, chunk)
                _check_rows_independent(objective, local, norms, ways[0], function)
                break
            except Exception:  # an error of the model itself is raised by the last way too
                if len(ways) == 1:
                    raise
                del ways[0]
        objective.meter["gradients"] += size
        yield ways[0], torch.where(weights > 0, norms.sum(1).cpu(), 0.0), weights


def _check_rows_independent(objective: Objective, batch: Batch, norms: Tensor, way: Way, function: Hashable) -> None:
    """Raise if the row with the largest gradient has another one by itself.

    Whether a model mixes rows does not depend on weights or data: one check per function is enough.
    """
    if way == "rows" or objective.checked_ways.get(way) == function:
        return
    largest = int(norms.sum(1).nan_to_num().argmax())
    among, alone = norms[largest].sqrt(), row_by_row(objective, row(batch, largest))[0].sqrt()
    # wide enough for TF32, which GPUs may compute with
    precision = max(torch.finfo(p.dtype).eps for p in objective.params.values()) ** 0.25
    off = (among - alone).abs() > precision * alone.square().sum().sqrt()
    if bool(off.any()):
        name = next(name for name, wrong in zip(objective.params, off, strict=True) if wrong)
        raise ValueError(
            f"{way} gives row {largest} another gradient of {name} than it has by itself: the model mixes rows or "
            'has them in another dimension than the first. Pass way="rows" or way=None'
        )
    if len(norms) > 1 and 0 < float(alone.square().sum()) < inf:  # else this batch shows nothing
        objective.checked_ways[way] = function


def check_no_batch_statistics(objective: Objective, modules: Sequence[nn.Module]) -> None:
    """Raise if a row's loss depends on the other rows through BatchNorm."""
    for module in modules:
        if "running_mean" not in module._buffers or isinstance(module, nn.modules.instancenorm._InstanceNorm):
            continue
        if objective.statistics == "batch" or module._buffers["running_mean"] is None:
            name = next(name for name, m in objective.model.named_modules() if m is module)
            raise ValueError(
                f"a row has no loss of its own: {name or 'the model'} ({type(module).__name__}) normalises with the "
                'batch\'s statistics. Measure with statistics="running", on a model that tracks them'
            )


def by_vmap(objective: Objective, batch: Batch, chunk: int | None = None) -> Tensor:
    """The squared gradient norm of every row (down) in every moving parameter (across), from `chunk` rows at once."""
    leaves, spec = tree_flatten(batch)
    n = rows_of(batch)
    cut = [isinstance(x, Tensor) and x.ndim > 0 and len(x) == n for x in leaves]

    def of_row(weights: list[Tensor], precise: bool, *one: Any) -> Tensor:
        single = tree_unflatten([x.unsqueeze(0) if c else x for x, c in zip(one, cut, strict=True)], spec)
        of_weights = torch.func.grad_and_value(lambda w: objective.evaluate(w, _loss(objective, single)).mean())
        grads, loss = cast(Any, of_weights(weights))
        return torch.where(loss.isfinite(), _squares(grads, precise), nan)

    held = HELD[objective.device.type != "cpu"]
    of_rows = torch.func.vmap(
        of_row,
        in_dims=(None, None, *(0 if c else None for c in cut)),
        randomness="different",  # losses that depend on it were rejected before
        chunk_size=min(n, chunk or max(1, held // objective.dimension)),
    )
    try:
        # the math backend of attention is the one with a vmap rule
        with twice_differentiable(objective.model), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "There is a performance drop")  # for operations without a vmap rule
            norms = of_rows(objective.weight_tensors(), False, *leaves)
            return (norms if _in_range(norms) else of_rows(objective.weight_tensors(), True, *leaves)).detach()
    except Exception as error:
        raise ValueError(
            f'the model does not run under vmap: {first_line(error)}. Pass way="rows" or way=None'
        ) from error


def row_by_row(objective: Objective, batch: Batch) -> Tensor:
    """The same, one row at a time, for models that do not run under vmap."""
    weights = [p.requires_grad_() for p in objective.weight_tensors()]

    def of_row(single: Batch) -> Tensor:
        def task(model: nn.Module) -> Tensor:
            losses = _loss(objective, single)(model)
            if not getattr(losses, "requires_grad", False):
                raise_constant(objective)
            grads = torch.autograd.grad(losses.mean(), weights, materialize_grads=True)
            norms = _squares(grads)
            norms = norms if _in_range(norms.unsqueeze(0)) else _squares(grads, precise=True)
            return torch.where(losses.mean().isfinite(), norms, nan)

        return objective.evaluate(weights, task)

    with torch.enable_grad():
        return torch.stack([of_row(row(batch, i)) for i in range(rows_of(batch))])


def _loss(objective: Objective, batch: Batch) -> Callable[[nn.Module], Tensor]:
    return lambda model: objective.loss_fn(*objective.forward(model, batch))


def _squares(grads: Sequence[Tensor], precise: bool = False) -> Tensor:
    """The squared norm of every tensor; `precise` computes in float64 and is several times slower."""
    dense = (wide(g.coalesce().values() if g.is_sparse else g).reshape(1, -1) for g in grads)
    return torch.stack(
        [squares(g.to(torch.promote_types(g.dtype, torch.float64)) if precise else g)[0].double() for g in dense]
    )


def _in_range(norms: Tensor) -> bool:
    """Whether no row's squares have underflowed or overflowed."""
    rows = norms.sum(1)
    return bool(((rows > FAINT) & rows.isfinite()).all())


_WAYS: dict[Way, Callable[[Objective, Batch, int | None], Tensor]] = {
    "ghost": lambda objective, batch, chunk: ghost_squares(objective, batch),
    "vmap": by_vmap,
    "rows": lambda objective, batch, chunk: row_by_row(objective, batch),
}
