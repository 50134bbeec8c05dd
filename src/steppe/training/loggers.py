"""Loggers by name: CSV, TensorBoard, MLflow and W&B, those of other packages, and users' own.

A constructor checks what its logger needs, and `log_params` creates things. So a logger that cannot be built leaves
nothing behind in the stores of the others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from time import time
from typing import Any, Protocol, TypeVar

from filelock import FileLock

from .._util import files
from .._util.digests import digest
from .._util.extras import explained
from .._util.formats import csv_text
from .._util.registry import Registry
from .._util.user_code import imported
from .checkpoint import RECORDS, WEIGHTS, read_header
from .folder import RUN, Run

PROJECT = "steppe"  # of W&B, and experiment of MLflow, unless the environment names another


class Logger(Protocol):
    """Receives records beside metrics.jsonl.

    `log_metrics` is called after the checkpoint that contains the record is written, so that a resumed run logs no
    epoch twice. A logger may also have an attribute `last_step`, read after `log_params`: the step of the last record
    that it has, 0 for none. Each start of the run then hands over the records after it, for example those that a killed
    process could not log.

    Examples
    --------
    >>> class Printer:
    ...     def __init__(self, folder): ...
    ...     def log_params(self, params): ...
    ...     def log_metrics(self, step, metrics): print(step, metrics["test_accuracy"])
    ...     def close(self): ...
    >>> logger = Printer("runs/a")  # `train` builds it from loggers=["package.module:Printer"]
    >>> logger.log_metrics(10, {"test_accuracy": 0.75})
    10 0.75

    """

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Receive the configuration, once per start of the run."""
        ...

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Receive the numbers of one record."""
        ...

    def close(self) -> None:
        """Release resources: the run ends, finished or not."""
        ...


def numbers(record: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Return the finite numbers of a record; nested ones are named by their path, such as measures/trace/value."""
    flat: dict[str, float] = {}
    for key, value in record.items():
        if isinstance(value, Mapping):
            flat |= numbers(value, f"{prefix}{key}/")
        elif isinstance(value, list):
            flat |= numbers({str(i + 1): v for i, v in enumerate(value)}, f"{prefix}{key}/")
        elif isinstance(value, (int, float)) and isfinite(value):  # metrics.jsonl has null for others
            flat[prefix + key] = value
    return flat


def rows(record: Mapping[str, Any]) -> list[tuple[int, dict[str, float]]]:
    """Return the numbers of an epoch by step: those of its steps if there are any, and at its last step all others."""
    found = {
        int(one["step"]): numbers({k: v for k, v in one.items() if k != "step"}, "step/")
        for one in record.get("steps", [])
    }
    epoch = numbers({k: v for k, v in record.items() if k != "steps"})
    found[record["step"]] = found.get(record["step"], {}) | epoch
    return sorted(found.items())


@dataclass(frozen=True)
class Registered:
    """A logger by name.

    Parameters
    ----------
    make
        Makes one: of steppe's own loggers from the run, of others from its folder.
    does
        Where the records go, in a line.
    extra
        The extra of steppe that installs what it needs.
    place
        When it starts: those whose start is likely to fail first, so that they leave nothing behind in the others.

    """

    make: Callable[[Any], Logger]
    does: str
    extra: str = ""
    place: int = 0


LOGGERS: Registry[Registered] = Registry("logger", "steppe.loggers", (__name__,), lambda one: one.place)
Make = TypeVar("Make", bound=Callable[[Any], Logger])


def register_logger(name: str, does: str, **facts: Any) -> Callable[[Make], Make]:
    """A decorator that registers a class, or a function of a run's folder, as the logger of that name.

    A package that does so declares an entry point in the group `steppe.loggers`.

    Parameters
    ----------
    name, does
        The name in `loggers`, and where the records go, in a line.
    **facts
        For loggers of steppe itself.

    Examples
    --------
    >>> described = steppe.training.register_logger("csv", "metrics.csv in the run's folder")

    `described(make)` then adds what makes it.

    """

    def add(make: Make) -> Make:
        LOGGERS.add(name, Registered(make, does, **facts), make.__module__)
        return make

    return add


@register_logger("csv", "`metrics.csv` in the run's folder", place=2)
class CSV:
    """All records in metrics.csv, rewritten each time, so that a resumed run has every row once."""

    def __init__(self, run: Run):
        self._path = run.path / "metrics.csv"
        self._rows = [values for record in run.records for _, values in rows(record)]

    def log_params(self, params: Mapping[str, Any]) -> None:
        self._write()

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        self._rows.append(dict(metrics))
        if "epoch" in metrics:  # the last of its epoch
            self._write()

    def close(self) -> None:
        pass

    def _write(self) -> None:
        columns = list(dict.fromkeys(name for row in self._rows for name in row))
        files.replace(self._path, csv_text(columns, self._rows).encode())


@register_logger("tensorboard", "event files under `tensorboard/`", extra="tensorboard", place=2)
class TensorBoard:
    """Event files under tensorboard/, rewritten at each start from the records so far."""

    last_step = 0

    def __init__(self, run: Run):
        with explained():
            from torch.utils.tensorboard import SummaryWriter
            from torch.utils.tensorboard.summary import hparams
        self._folder, self._open = run.path / "tensorboard", SummaryWriter
        self._writer: Any = None
        self._session: Any = hparams
        files.check_no_link(self._folder)

    def log_params(self, params: Mapping[str, Any]) -> None:
        for old in self._folder.glob("events.out.tfevents.*"):
            files.remove(old)
        self._writer = self._open(str(self._folder))
        self._writer.add_text("config", f"```\n{json.dumps(params, indent=2)}\n```")
        # a session of the HParams tab; without the summary of an experiment the tab lists all scalars of all runs
        plain = {k: v if isinstance(v, bool | int | float | str) else json.dumps(v) for k, v in params.items()}
        _, begin, self._end = self._session(plain, {})
        self._writer.file_writer.add_summary(begin)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        if self._writer is not None:
            if finished(self._folder.parent):
                self._writer.file_writer.add_summary(self._end)
            self._writer.close()


@register_logger(
    "mlflow",
    "one store for all runs: `mlflow.db` here, or the server of `MLFLOW_TRACKING_URI`",
    extra="mlflow",
    place=1,
)
class MLflow:
    """One run of MLflow in the store that MLflow itself would use; nested in the run of the caller, if one is active.

    It finds its run by a tag, and logs what that run does not have yet.
    """

    last_step = 0  # hand over all records: `log_metrics` leaves out those that the store has
    TAG = "steppe.run"

    def __init__(self, run: Run):
        if "MLFLOW_TRACKING_URI" not in os.environ:  # nothing leaves the machine unless the user names a server
            os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with explained():
            import mlflow
            from mlflow.tracking.context.registry import resolve_tags
        self._folder, self._identity = run.path, identity(run)
        self._run: str | None = None
        parent, tags, uri = mlflow.active_run(), {self.TAG: self._identity}, mlflow.get_tracking_uri()
        file = Path(uri.removeprefix("sqlite:///")) if uri.startswith("sqlite:///") else None
        # two processes that create a file of SQLite at once fail in MLflow's own migrations
        with FileLock(f"{file}.lock") if file else nullcontext():
            self._client: Any = mlflow.MlflowClient()
            # raises if the server cannot be reached
            self._experiment = self._by_name(self._client, file) if parent is None else str(parent.info.experiment_id)
        if parent is not None:
            tags["mlflow.parentRunId"] = parent.info.run_id
        self._tags = resolve_tags(tags)  # with the user, the command and the commit

    def log_params(self, params: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        client = self._client
        earlier = client.search_runs([self._experiment], f"tags.`{self.TAG}` = '{self._identity}'")
        new_run = {"tags": self._tags, "run_name": self._folder.name}
        run = earlier[0] if earlier else client.create_run(self._experiment, **new_run)
        self._run = key = run.info.run_id
        self._complete = run.info.status == "FINISHED"  # and has its artifacts
        client.update_run(key, status="RUNNING")
        self._logged = {(name, m.step) for name in run.data.metrics for m in client.get_metric_history(key, name)}
        values = {k: v if isinstance(v, str) else json.dumps(v) for k, v in params.items()}
        new = {k: v for k, v in values.items() if k not in run.data.params}
        client.log_batch(key, params=[Param(k, v) for k, v in new.items()])
        for name, value in values.items() - new.items() - run.data.params.items():  # of MLflow, parameters never change
            client.set_tag(key, f"steppe.{name}", value)

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time())
        named = {re.sub(r"[^\w.\- :/]", ":", name): value for name, value in metrics.items()}  # MLflow allows no others
        new = [Metric(k, v, now, step) for k, v in named.items() if (k, step) not in self._logged]
        for start in range(0, len(new), 1000):  # MLflow takes no more at once
            self._client.log_batch(self._run, metrics=new[start : start + 1000])
        self._logged |= {(m.key, step) for m in new}
        self._complete &= not new

    def close(self) -> None:
        if self._run is not None:
            done = finished(self._folder)
            for name in () if self._complete else (RUN, RECORDS, *([WEIGHTS] if done else [])):
                if (self._folder / name).exists():
                    self._client.log_artifact(self._run, str(self._folder / name))
            self._client.set_terminated(self._run, "FINISHED" if done else "KILLED")

    @staticmethod
    def _by_name(client: Any, file: Path | None) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            # MLflow would put artifacts below the working folder, wherever its file is
            beside = file and str(file.absolute().parent / "mlruns" / name)
            try:
                return str(client.create_experiment(name, artifact_location=beside))
            except Exception:  # another process may have created it meanwhile
                experiment = client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return str(experiment.experiment_id)


@register_logger("wandb", "an offline run under `wandb/`; `WANDB_MODE=online` for W&B's server", extra="wandb", place=1)
class WandB:
    """One run of W&B under wandb/: offline and rewritten at each start, unless WANDB_MODE is set."""

    def __init__(self, run: Run):
        if "WANDB_MODE" not in os.environ:  # else offline runs send statistics of their own
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        with explained():
            import wandb
        self._wandb: Any = wandb
        self._folder, self._identity = run.path, identity(run)
        self._run: Any = None
        files.check_no_link(run.path / "wandb")

    @property
    def last_step(self) -> int:
        return int(self._run.step) - 1  # a resumed run of a server begins after its last step, a new one at 0

    def log_params(self, params: Mapping[str, Any]) -> None:
        mode, place = os.environ.get("WANDB_MODE", "offline"), self._folder / "wandb"
        existed = place.exists()
        if mode == "offline":
            for old in place.glob(f"offline-run-*-{self._identity}"):
                shutil.rmtree(old)
        try:
            self._run = self._wandb.init(
                mode=mode,
                dir=str(self._folder),
                project=os.environ.get("WANDB_PROJECT", PROJECT),
                id=self._identity,
                name=self._folder.name,
                resume="allow" if mode == "online" else None,
                config=dict(params),
                reinit="create_new",  # beside a run of the caller's
                settings=self._wandb.Settings(silent=mode != "online", console="off"),
            )
        except BaseException:
            if not existed:
                shutil.rmtree(place, ignore_errors=True)
            raise

    def log_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        if step <= self.last_step:
            return
        values: dict[str, Any] = dict(metrics)
        if measured := [name[9:-6] for name in metrics if name.startswith("measures/") and name.endswith("/value")]:
            columns = ("value", "stderr", "n")
            table = [[name, *(metrics.get(f"measures/{name}/{c}") for c in columns)] for name in measured]
            values["measures_table"] = self._wandb.Table(["measure", *columns], table)
        self._run.log(values, step=step, commit=True)

    def close(self) -> None:
        if self._run is None:
            return
        if done := finished(self._folder):
            artifact = self._wandb.Artifact(f"run-{self._identity}", "model")
            for name in (RUN, RECORDS, WEIGHTS):
                artifact.add_file(str(self._folder / name), policy="immutable")  # no copy
            self._run.log_artifact(artifact)
        self._run.finish(exit_code=0 if done else 1)


def in_order(names: Iterable[str]) -> list[str]:
    """Return names of loggers, each once, in the order in which they start: those of others first."""
    return sorted(dict.fromkeys(names), key=lambda name: LOGGERS[name].place if name in LOGGERS else 0)


def build_logger(name: str, run: Run) -> Logger:
    """Build one of LOGGERS, or call the user's `package.module:factory` with the folder."""
    make: Callable[[Any], Logger] = LOGGERS[name].make if name in LOGGERS else imported(name, "logger")
    if make.__module__ == __name__:
        return make(run)
    try:
        made = make(run.path)
    except Exception as error:
        raise RuntimeError(f"the logger {name} raised {type(error).__name__} when it was built: {error}") from error
    for method in ("log_params", "log_metrics", "close"):
        if not callable(getattr(made, method, None)):
            raise ValueError(
                f"{name} returned {type(made).__name__}, which has no method {method}: a logger has log_params, "
                "log_metrics and close"
            )
    return made


def start(logger: Logger, run: Run, params: Mapping[str, Any]) -> None:
    """Start a logger, and hand over the records that it does not have."""
    logger.log_params(params)
    last: Any = getattr(logger, "last_step", None)
    for record in run.records if last is not None else []:
        for step, values in rows(record):
            if step > last:
                logger.log_metrics(step, values)


def finished(folder: Path) -> bool:
    """Return whether the last checkpoint in a folder is that of a finished run."""
    done = read_header(folder)
    return done is not None and done.finished


def identity(run: Run) -> str:
    """Return a name for the run that no other has and that no later start changes: a digest of its first start."""
    return digest([json.dumps(run.about["starts"][0], sort_keys=True)])
