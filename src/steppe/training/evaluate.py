"""Loss and accuracy of a model on rows that it is not trained on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.process_group import Workers
from ..data.dataset import Dataset
from ..data.feed import batches
from .config import Config
from .problem import Task
from .sums import Sums

ROWS = 1024  # a batch: large enough to keep a GPU busy


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """A model in evaluation mode, and back in training mode afterwards."""
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train()


def autocast(config: Config, device: torch.device) -> Any:
    """The precision of forward passes."""
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16")


def evaluated(model: nn.Module, dataset: Dataset, task: Task, config: Config, workers: Workers) -> dict[str, float]:
    """The mean loss, and the share of right answers where targets are classes; workers share the rows."""
    device = dataset.inputs.device
    sums = Sums(device)
    mine = batches(dataset, ROWS, task.standard, workers.rank, workers.count)
    with evaluating(model):
        for _ in range(-(-len(dataset) // (ROWS * workers.count))):
            # a sharded model runs on all workers at once: one that has no rows left runs along on a row that counts not
            batch = next(mine, None)
            x, y = batch or (task.standard(dataset.inputs[:1]), dataset.targets[:1])
            with autocast(config, device):
                output = model(x)
            sums.add(task.loss(output, y), output, y, task.loss, weight=float(batch is not None))
    return sums.read(workers)


def under_corruptions(model: nn.Module, test: Dataset, task: Task, config: Config, workers: Workers) -> dict[str, Any]:
    """Accuracy by corruption, one number a severity, and their mean."""
    from ..data import corruptions

    if not config.corruptions:
        return {}
    names: Iterable[str] = corruptions.NAMES if "all" in config.corruptions else config.corruptions
    cache = Path(config.data_root) / "corrupted"
    found: dict[str, list[float]] = {}
    host = test.to("cpu")
    for name in names:
        for severity in config.severities:
            damaged = corruptions.corrupted(host, name, severity, cache=cache).to(test.inputs.device)
            found.setdefault(name, []).append(evaluated(model, damaged, task, config, workers)["accuracy"])
    every = [a for row in found.values() for a in row]
    return {"corrupted_accuracy": sum(every) / len(every), "corrupted": found}
