"""Subjects of a measurement: the model of a run on its data, or a checkpoint with a model named by flags."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from .._util.checkpoints import load_into, read_checkpoint
from ..core.fields import Count, check_fields
from ..data.registry import CHOICES, declared
from ..training.config import Config, check_config
from .options import flag_of
from .output import UsageError, usage_errors

if TYPE_CHECKING:
    from torch import nn

    from ..data.dataset import Splits
    from ..measures.combinators import OnData
    from ..measures.objective import Objective
    from ..training.folder import Run
    from ..training.problem import Task


@dataclass(frozen=True)
class On:
    """The rows of the loss, and the model of a checkpoint."""

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "models and data of checkpoints, which do not record them": (
            "model", "model_options", "data", "data_root", "normalise", "trust",
        ),
    }  # fmt: skip
    split: Literal["train", "test"] = "train"
    """rows on which to compute the loss, without augmentation"""
    rows: Count = 1024
    """number of rows, a fixed random subset of them"""
    batch: Count = 256  # A modern look, section 4: m = 256
    """rows per batch; the m of m-sharpness. `rows`, `count`, `m` and `precision` of a measure override these flags"""
    seed: int = 0
    """seed of random directions and draws"""
    precision: Literal["float32", "tf32", "bf16"] = "float32"
    """precision of the passes; tf32 and bf16 round more"""
    device: str | None = field(default=None, metadata={"metavar": "DEVICE"})
    """defaults to a GPU if there is one"""
    weights: Literal["last", "ema", "swa"] = "last"
    """a run's last weights, or an average over its steps"""
    model: str | None = field(default=None, metadata={"metavar": "MODEL"})
    """the model of a checkpoint, by name or `package.module:factory`; a run records its own, and code outside steppe is
    imported only if it is named here too"""
    model_options: dict[str, Any] = field(default_factory=dict)
    """options of that model"""
    data: str | None = field(default=None, metadata={"metavar": "DATA"})
    """the data set of a checkpoint, or another one for runs"""
    data_root: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    """the folder that holds data sets; defaults to the run's own, or data"""
    normalise: str | None = field(default=None, metadata={"metavar": "HOW"})
    """how a checkpoint's inputs were normalised in training: by a data set's training rows, by MEANS/STDS of the
    channels for pixels from 0 to 1, or none; a run records its own"""
    trust: bool = False
    """import any code that folders of runs name as their model"""

    def __post_init__(self) -> None:
        check_fields(self, "")


@dataclass(frozen=True)
class Subject:
    """A trained model with its data and its loss."""

    model: nn.Module
    splits: Splits
    task: Task
    config: Config

    def objective(self, on: On, data: OnData | None = None) -> Objective:
        """Return the loss on some rows as a function of the weights; `data` overrides the flags."""
        from ..measures.combinators import OnData
        from ..measures.sharpness import Loss
        from ..training.distributed import device_of
        from ..training.evaluate import measured_rows, objective_of
        from ..training.problem import moved

        device, data = device_of(on.device), data or OnData(Loss())
        rows = measured_rows(moved(self.splits, device), self.config, data.rows or on.split, data.count or on.rows)
        m, precision = data.m or on.batch, data.precision or on.precision
        return objective_of(self.model.to(device), self.task, rows, None, m=m, precision=precision)


@dataclass(frozen=True)
class Found:
    """What a name stands for, before anything that takes time: a run, or a file of weights."""

    path: Path
    config: Config  # of the run, or made from the flags
    run: Run | None

    def subject(self, on: On) -> Subject:
        """Load the model with its weights, and the data."""
        from ..training.model import model_of
        from ..training.problem import data_of, standard_of, task_of

        config, run = self.config, self.run
        state = read_checkpoint(self.path) if run is None else {}
        splits = data_of(config)
        standard = None if on.normalise is None else standard_of(on.normalise, config, splits)
        if run is not None:
            if standard not in (None, run.task.standard):
                raise ValueError(
                    f"{self.path} is a run that was trained with {run.task.standard}, and --normalise {on.normalise} "
                    f"is {standard}: leave it out for runs, which record their own"
                )
            return Subject(run.model(on.weights), splits, run.task, config)
        task = task_of(splits, standard)
        model = model_of(config, task.shape, task.outputs)
        load_into(model, state, self.path)
        return Subject(model, splits, task, config)


def find(where: str, on: On) -> Found:
    """Find a run or a checkpoint; raise if it is not there, or if the flags do not say what a checkpoint does not."""
    path = Path(where)
    if path.is_dir():
        from ..training.folder import open_run

        changes = {k: v for k in ("data", "data_root") if (v := getattr(on, k)) is not None}
        run = open_run(path, on.model, on.trust)
        run.check_trusted()
        return Found(path, replace(run.config, **changes) if changes else run.config, run)
    if not path.exists():
        raise FileNotFoundError(f"there is no run or checkpoint {where!r}")
    missing = [f"--{name}" for name in ("model", "data", "normalise") if getattr(on, name) is None]
    if on.model is None or on.data is None or on.normalise is None:
        choices = f". --normalise takes {CHOICES}" if on.normalise is None else ""
        raise UsageError(
            f"{where} is a checkpoint, which does not record its model or data: give {' and '.join(missing)}{choices}"
        )
    root: dict[str, Any] = {} if on.data_root is None else {"data_root": on.data_root}
    config = Config(data=on.data, model=on.model, model_options=on.model_options, **root)
    with usage_errors():
        check_config(config, flag_of)
        declared(on.normalise)
    return Found(path, config, None)
