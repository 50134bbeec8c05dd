"""A run on disk: its configuration, its records, and its model with the trained weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from .._util.names import unknown
from .._util.user_code import refuse_untrusted
from ..data.dataset import Dataset, Splits
from ..measures.objective import Objective
from . import checkpoint, records
from .config import Config
from .evaluate import objective_of
from .folder import RUN, config_in, read_run_yaml, task_in
from .problem import Task, data_of, model_of
from .records import Record
from .schedule import Position

Weights = Literal["last", "ema", "swa"]


@dataclass(frozen=True)
class Run:
    """The content of a run's folder as of its last checkpoint.

    Attributes
    ----------
    path
        The folder.
    config
        The configuration in run.yaml.
    records
        One per epoch: losses, accuracies, measures, timings.
    position
        Number of completed epochs, and of steps in the current one.
    finished
        Whether all epochs are trained.
    task
        Shape of the inputs, number of outputs, standardisation and loss.
    about
        All of run.yaml.
    named
        The model that the caller of `open_run` names.
    trust
        Whether run.yaml may name any code as its model.

    Examples
    --------
    `train` and `open_run` return one:

    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = steppe.training.train(steppe.training.Config(**small, out=folder))
    ...     weights = run.weights()
    >>> run.config.method, len(run.records), weights["head.weight"].shape
    ('sam', 1, torch.Size([2, 4]))

    """

    path: Path
    config: Config
    records: list[Record]
    position: Position
    finished: bool
    task: Task
    about: dict[str, Any]
    named: str | None = None
    trust: bool = False

    @property
    def result(self) -> Record:
        """The last record."""
        if not self.records:
            raise ValueError(f"{self.path} has no record yet: its first epoch is not complete. Train it further")
        return self.records[-1]

    def weights(self, which: Weights = "last") -> dict[str, Tensor]:
        """Return the model's state dict: the last weights, or an average along the run."""
        done = checkpoint.committed(self.path)
        if done is None:
            raise FileNotFoundError(f"{self.path} has no checkpoint yet: train it further")
        if which == "last":
            return checkpoint.weights_in(self.path)
        try:
            state = checkpoint.state_in(self.path, done)
        except FileNotFoundError:  # a running process may have committed and deleted it meanwhile
            again = checkpoint.committed(self.path)
            if again is None or again == done:
                raise
            state = checkpoint.state_in(self.path, again)
        averages = {k: v for k, v in state["averages"].items() if v["n"]}
        if which not in averages:
            raise ValueError(f"{self.path}: {unknown('kind of weights', which, ['last', *averages])}")
        tensors: dict[str, Tensor] = averages[which]["tensors"]
        return tensors

    def refuse_untrusted(self) -> None:
        """Raise ValueError if the model is code outside steppe that only run.yaml names."""
        refuse_untrusted(self.path / RUN, self.config.model, self.named, self.trust)

    def model(self, which: Weights = "last") -> nn.Module:
        """Return the model with trained weights, on the CPU and in evaluation mode."""
        self.refuse_untrusted()
        model = model_of(self.config, self.task.shape, self.task.outputs)
        model.load_state_dict(self.weights(which))
        return model.eval()

    def data(self) -> Splits:
        """Return the rows as in training: subsets, label noise and parts set aside included."""
        return data_of(self.config)

    def objective(
        self,
        which: Weights = "last",
        part: Literal["train", "test", "validation", "held_out"] = "train",
        rows: int | None = None,
        model: nn.Module | None = None,
    ) -> Objective:
        """Return the training loss as an objective for measures, without augmentation and label smoothing.

        Parameters
        ----------
        which
            The weights to use.
        part
            The rows to use.
        rows
            How many of them; defaults to `config.measure_rows`.
        model
            Another model to use instead of the run's.

        """
        dataset: Dataset | None = getattr(self.data(), part)
        if dataset is None:
            raise ValueError(f"{self.path} was trained without {part} rows")
        rows = self.config.measure_rows if rows is None else rows
        return objective_of(model or self.model(which), self.task, dataset, rows)


def open_run(path: Path | str, model: str | None = None, trust: bool = False) -> Run:
    """Open the run in a folder, finished or not, also while it is being trained.

    Parameters
    ----------
    path
        The folder.
    model
        The `package.module:factory` that you know the run's model to be. Without it, and without `trust`, only
        models of steppe are built: `Run.model` and `Run.objective` raise for others, and no code is imported.
    trust
        Build the model whatever `run.yaml` names. That runs code of whoever made the folder.

    Examples
    --------
    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = steppe.training.train(steppe.training.Config(**small, out=folder))
    ...     loss = steppe.training.open_run(folder).objective(part="test", rows=1000).loss()
    >>> abs(loss - run.result["test_loss"]) < 1e-5
    True

    """
    path = Path(path)
    content = read_run_yaml(path)
    if content is None:
        raise FileNotFoundError(f"{path} is no run's folder: it has no {RUN}. `steppe train --out {path}` makes one")
    done = checkpoint.committed(path)
    epochs = records.read(path, done.records) if done is not None else []
    position = done.position if done is not None else Position()
    finished = done is not None and done.finished
    return Run(path, config_in(path, content), epochs, position, finished, task_in(content), content, model, trust)
