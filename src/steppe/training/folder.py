"""The folder of a run, in which one process at a time trains: its lock, run.yaml, records, and the trained model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from html import escape
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout
from torch import Tensor, nn

from .._util import files
from .._util.digests import read_yaml
from .._util.files import FolderLocked, lock_folder
from .._util.names import unknown
from .._util.user_code import check_trusted
from ..core.fields import fits, words
from ..data.dataset import Dataset, Splits
from ..data.pixels import Standard
from ..measures.objective import Objective
from . import checkpoint
from .checkpoint import PREVIOUS, RECORDS, WEIGHTS, Record
from .config import Config, Weights
from .evaluate import objective_of
from .model import model_of
from .problem import CrossEntropy, SquaredError, Task, data_of
from .schedule import Position

RUN = "run.yaml"
NAME = "run"  # of its lock
LOCK, HOLDER = f"{NAME}.lock", f"{NAME}.holder"

# required entries of run.yaml beside the configuration
KEYS = {"data": str, "task": dict, "parameters": int, "steps": int, "starts": list[Any]}
TASK = {"shape": list[int], "outputs": int, "classes": list[Any], "mean": list[float], "std": list[float]}


def folder_of(config: Config, strategy: str | None = None) -> Path:
    """Return the folder of a run: `out`, or a name made from data, model, method (or strategy of members) and seed."""
    if config.out is not None:
        return Path(config.out)
    name = f"{config.data}-{config.model}-{strategy or config.method}-{config.seed}"
    return Path("runs") / re.sub(r"[^\w.,=+-]+", "_", name)


@contextmanager
def claimed(path: Path) -> Iterator[Callable[[], None]]:
    """Lock the folder for this process; raise `FolderLocked` with the name of the process that has it.

    Yields a function that raises if another folder has replaced this one. A block that fails before anything but the
    lock is in the folder leaves no folder behind.
    """
    existed = path.exists()
    path.mkdir(parents=True, exist_ok=True)
    ours = {LOCK, HOLDER, RUN, RECORDS, WEIGHTS, PREVIOUS}
    others = sorted(p.name for p in path.iterdir() if p.name not in ours and not p.name.endswith(files.TEMPORARY))
    if others and not (path / RUN).exists():
        raise FileExistsError(
            f"{path} is no run's folder: it has no {RUN}, but {', '.join(others[:3])}. Choose another"
        )
    try:
        with lock_folder(path, NAME) as check_folder:
            yield check_folder
    except FolderLocked as owner:
        raise FolderLocked(
            f"{path} is being trained in by {owner}: wait for it, stop it, or choose another folder with out"
        ) from None
    except BaseException:
        if not existed and is_empty(path):
            with suppress(OSError, Timeout), FileLock(path / LOCK, timeout=0):
                (path / LOCK).unlink()
                path.rmdir()
        raise


def is_empty(path: Path) -> bool:
    """Return whether a folder holds only a lock: a start that failed, was killed, or is in progress."""
    return path.is_dir() and {p.name for p in path.iterdir()} in ({LOCK}, {LOCK, HOLDER})


def read_run_yaml(path: Path) -> dict[str, Any] | None:
    """Read run.yaml, or return None if there is none."""
    return read_yaml(path / RUN, "a run", lambda content: content["config"].keys()) if (path / RUN).exists() else None


def plain(config: Config) -> dict[str, Any]:
    """Return a configuration in JSON's types, for files and comparisons."""

    def path_or_error(x: Any) -> str:
        if isinstance(x, os.PathLike):
            return str(os.fspath(x))
        raise TypeError(
            f"a configuration is written to a file, and {x!r} cannot be: use numbers, strings, lists and dicts"
        )

    values: dict[str, Any] = json.loads(json.dumps(asdict(config), default=path_or_error))
    return values


def config_in(path: Path, content: Mapping[str, Any]) -> Config:
    """Return the configuration in the content of run.yaml; raise ValueError if the file is incomplete."""
    names = {f.name for f in fields(Config)}
    unexpected = [k for k in content["config"] if k not in names]
    if unexpected:
        raise ValueError(f"{path / RUN}: {unknown('setting', unexpected[0], names)} Was it written by another steppe?")
    try:
        config = Config(**content["config"])
    except ValueError as error:
        raise ValueError(f"{path / RUN}: config: {error}") from error
    for place, kinds in (("", KEYS), ("task.", TASK)):
        mapping = content["task"] if place else content
        for key, kind in kinds.items():
            if key not in mapping or not fits(mapping[key], kind):
                value = f"is {mapping[key]!r}" if key in mapping else "is missing"
                raise ValueError(
                    f"{path / RUN} is incomplete: {place}{key} {value}, and has to be {words(kind)}. Restore the file, "
                    "or train in another folder"
                )
    return config


def task_in(content: Mapping[str, Any]) -> Task:
    """Return the task in the content of run.yaml, without reading its data."""
    task = content["task"]
    standard = Standard(tuple(task["mean"]), tuple(task["std"]))
    loss = CrossEntropy() if task["classes"] else SquaredError()
    return Task(tuple(task["shape"]), task["outputs"], standard, loss, tuple(task.get("fields", ())))


def changes(then: Mapping[str, Any], now: Mapping[str, Any], free: Container[str] = ()) -> str:
    """Return which settings differ and how, in words, without those in `free`; empty if none do."""
    different = [k for k in now if k not in free and then.get(k) != now[k]]
    return "; ".join(f"{k} was {then.get(k)!r} and is now {now[k]!r}" for k in different)


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

    def __repr__(self) -> str:
        """One line, for interactive use."""
        config, done = self.config, "finished" if self.finished else f"{len(self.records)} records so far"
        return f"Run({self.path}: {config.method} on {config.data} with {config.model}, {done})"

    def _repr_html_(self) -> str:
        """The numbers of the last record, for notebooks."""
        numbers = [(k, v) for k, v in (self.records or [{}])[-1].items() if isinstance(v, int | float)]
        rows = "".join(f"<tr><td>{escape(k)}</td><td>{v:.6g}</td></tr>" for k, v in numbers)
        return f"<p>{escape(repr(self))}</p><table>{rows}</table>"

    @property
    def result(self) -> Record:
        """The last record."""
        if not self.records:
            raise ValueError(f"{self.path} has no record yet: its first epoch is not complete. Train it further")
        return self.records[-1]

    def weights(self, which: Weights = "last") -> dict[str, Tensor]:
        """The model's state dict: the last weights, or an average along the run."""
        if which == "last" and (self.path / WEIGHTS).exists():
            return checkpoint.read_weights(self.path)
        done = checkpoint.read_header(self.path)
        if done is None:
            raise FileNotFoundError(f"{self.path} has no checkpoint yet: train it further")
        if not done.state:  # a finished run without averages
            raise ValueError(f"{self.path}: {unknown('kind of weights', which, ['last'])}")
        try:
            state = checkpoint.read_state(self.path, done)
        except FileNotFoundError:  # a running process may have committed and deleted it meanwhile
            again = checkpoint.read_header(self.path)
            if again is None or again == done:
                raise
            state = checkpoint.read_state(self.path, again)
        averages = {k: v for k, v in state["averages"].items() if v["n"]}
        if which not in averages:
            raise ValueError(f"{self.path}: {unknown('kind of weights', which, ['last', *averages])}")
        tensors: dict[str, Tensor] = averages[which]["tensors"]
        return tensors

    def check_trusted(self) -> None:
        """Raise ValueError if the model is code outside steppe that only run.yaml names."""
        check_trusted(self.path / RUN, self.config.model, self.named, self.trust)

    def model(self, which: Weights = "last") -> nn.Module:
        """The model with trained weights, on the CPU and in evaluation mode."""
        self.check_trusted()
        model = model_of(self.config, self.task.shape, self.task.outputs)
        model.load_state_dict(self.weights(which))
        return model.eval()

    def data(self) -> Splits:
        """The rows as in training: subsets, label noise and parts set aside included."""
        return data_of(self.config)

    def objective(
        self,
        which: Weights = "last",
        part: Literal["train", "test", "validation", "held_out"] = "train",
        rows: int | None = None,
        model: nn.Module | None = None,
    ) -> Objective:
        """The training loss as an objective for measures, without augmentation and label smoothing.

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
    done = checkpoint.read_header(path)
    epochs = checkpoint.read_records(path, done.records) if done is not None else []
    position = done.position if done is not None else Position()
    finished = done is not None and done.finished
    return Run(path, config_in(path, content), epochs, position, finished, task_in(content), content, model, trust)
