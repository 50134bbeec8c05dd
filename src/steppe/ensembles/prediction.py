"""What members say on the same rows, and what the ensemble makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset
from ..data.feed import batches
from ..training.evaluate import ROWS
from ..training.problem import Task

By = Literal["logits", "probabilities"]


@torch.no_grad()
def logits(models: Sequence[nn.Module], dataset: Dataset, task: Task) -> Tensor:
    """What every model says on every row: (members, rows, classes), on the CPU; models are in evaluation mode."""
    device = dataset.inputs.device
    said = []
    for model in models:
        was_training = model.training
        model.to(device).eval()
        said.append(torch.cat([model(x).float().cpu() for x, _ in batches(dataset, ROWS, task.standard)]))
        model.train(was_training)
    return torch.stack(said)


def predicted(logits: Tensor, by: By = "logits") -> Tensor:
    """The ensemble's log-probabilities: of the mean of the members' logits (Lu et al. 2024, section 2), or the
    logarithm of the mean of their probabilities (Lakshminarayanan et al. 2017).
    """
    if by == "logits":
        return logits.mean(0).log_softmax(-1)
    if by != "probabilities":
        raise ValueError(f'members are averaged by "logits" or by "probabilities", not by {by!r}')
    return logits.log_softmax(-1).logsumexp(0) - torch.tensor(len(logits), dtype=logits.dtype).log()
