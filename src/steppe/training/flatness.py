"""Measures of flatness of a model in training, on the rows that it is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..core.draw import permutation
from ..core.process_group import Workers
from ..data.dataset import Dataset
from ..measures.batches import share
from ..measures.objective import Objective
from ..measures.registry import resolve_measures
from ..measures.run import measure_objective
from .problem import Task

STOPPED = "not measured: stopped"  # what `measured` says of measures after a Ctrl-C
M = 256  # rows a batch, of which m-sharpness is a function (A modern look, section 3)


def objective_of(
    model: nn.Module, task: Task, dataset: Dataset, rows: int | None, workers: Workers | None = None
) -> Objective:
    """The loss without label smoothing on rows without augmentation; always the same ones, whatever the seed."""
    if rows is not None and rows < len(dataset):
        # files may be sorted by class, so the first rows would not do
        dataset = dataset.rows(permutation(len(dataset), 0)[:rows].sort().values.to(dataset.inputs.device))
    data = (task.standard(dataset.inputs), dataset.targets)
    group = workers.group if workers is not None else None
    batches: Any = data if group is None else share(data, group, M)
    return Objective(model, task.loss, batches, m=M if group is None else None, group=group)


def flatness(objective: Objective, measures: Sequence[str], seed: int) -> dict[str, Any]:
    """Numbers with their errors, and why others are missing, as a record keeps them."""
    found = measure_objective(objective, resolve_measures(measures), seed, progress=False)
    if not all(e.complete for e in found.values()) or STOPPED in found.failures.values():
        raise KeyboardInterrupt  # a record of half a measurement would not be the one of an undisturbed run
    rows: dict[str, Any] = {}
    for name, e in found.estimates.items():
        rows[name] = {"value": e.value, "stderr": e.stderr, "n": e.n, "kind": e.kind}
        rows[name] |= {"note": e.note} if e.note else {}
    return rows | {name: {"failed": why} for name, why in found.failures.items()}
