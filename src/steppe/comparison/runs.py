"""Trials as runs of `steppe train`: their configurations, what is checked before the first, and where they run."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import TYPE_CHECKING, Any

from .._util.names import unknown
from ..core.laws import Choice, Law, LogUniform
from ..training.config import FREE
from .design import EPOCHS, Design, Trial
from .halving import rung_of
from .store import Done

if TYPE_CHECKING:
    from ..data.dataset import Splits
    from ..studies.engines.engine import Engine
    from ..training.stopping import StopRequest
    from .functions import Execute

RUNS = "runs"  # the folder of runs in that of a comparison
POINTS = 12  # of a learning curve
VALIDATION = 0.1  # of the training rows, where the data have no validation rows
PROBED = 10  # steps of each method before the start
OF_MACHINE = (*FREE, "device", "threads", "capture", "compile", "channels_last")
"""Settings of a run that say where its data lie and how it computes: they are no part of the question."""
RESERVED = {
    "data": "all trials have the data that `data` beside `base` names",
    "data_root": "give `data_root` beside `base`",
    "seed": "every trial has a seed of its own, and `seed` of the comparison determines them",
    "out": "runs lie in the folder of the comparison",
    "method": "name the methods in `methods`",
    "steps": "a comparison divides epochs by the passes of a method: give `epochs`",
    "measures": "give `measures` of the comparison itself",
    "measure_every": "measures of a comparison are of the last weights",
    "loggers": "a comparison has its own record",
    "log_every": "a comparison records epochs",
    "evaluate_every": "a comparison evaluates about a dozen times per run",
}
"""Settings of a run that a comparison sets itself, and why."""


def usual_space(optimizer: str) -> dict[str, Law]:
    """Return the laws of shared settings for a base optimizer, centred on no method's default."""
    if optimizer == "sgd":
        return {"lr": LogUniform(1e-3, 1e0), "weight_decay": LogUniform(1e-5, 1e-2), EPOCHS: Choice(30)}
    decay = LogUniform(1e-3, 1e0) if optimizer == "adamw" else LogUniform(1e-5, 1e-2)
    return {"lr": LogUniform(1e-5, 1e-2), "weight_decay": decay, EPOCHS: Choice(30)}


def checked_settings(task: Mapping[str, Any], space: Mapping[str, Law]) -> dict[str, Any]:
    """Return the fixed settings of runs; raise ValueError for unknown ones, and those that a comparison sets."""
    from ..studies.grid import OF_ENSEMBLES, setting, types

    names = [n for n in types() if n not in OF_ENSEMBLES and n not in RESERVED]
    for name in [*task, *space]:
        if name in RESERVED:
            raise ValueError(f"{name} cannot be given here: {RESERVED[name]}")
        if name.partition(".")[0] not in names:
            raise ValueError(unknown("setting", name, names))
    for name, law in space.items():
        for value in law.values if isinstance(law, Choice) else (law.at(0.0), law.at(1.0)):
            setting(name, value, "the space")
    return {name: setting(name, value, "base") for name, value in task.items()}


def settings_of(task: Mapping[str, Any], trial: Trial) -> dict[str, Any]:
    """Return all settings of a trial's run, in plain values."""
    from ..studies.grid import complete, resolved

    options = {**task.get("method_options", {}), **{k: v for k, v in trial.options.items() if k != "rho"}}
    values = {**task, **{k: v for k, v in trial.settings.items() if k != EPOCHS}, "method": trial.method}
    values |= {"method_options": options, EPOCHS: trial.epochs, "seed": trial.seed}
    values |= {"rho": trial.options["rho"]} if "rho" in trial.options else {}
    values["evaluate_every"] = _every(trial)
    return complete(resolved(values), f"trial {trial.index} of {trial.method}")[0]


def check_runs(design: Design, where: Mapping[str, Any]) -> Splits:
    """Return the rows of a comparison; raise ValueError, before anything is trained, for what no trial can use."""
    from ..training.config import Config, check_config
    from ..training.problem import data_of

    config = Config()
    for method in design.methods:
        config = Config(**settings_of({**design.task, **where}, middle(design, method)))
        check_config(config)
    splits, data = data_of(config), design.task["data"]
    for name in ("train", "test"):
        part = getattr(splits, name)
        if not part.classes:
            raise ValueError(
                f"{data} has numbers as targets, and a comparison counts rows that are classified correctly: "
                "give data with classes"
            )
        if len(part.targets.unique()) < 2:
            rows = "training" if name == "train" else "test"
            raise ValueError(f"{data}: all {len(part)} {rows} rows are of one class: there is nothing to learn")
    if splits.validation is None or len(splits.validation) < 2:
        raise ValueError(
            f"{data}: there are no validation rows, and validation selects among trials: give validation={VALIDATION}, "
            "a fraction of the training rows that is set aside"
        )
    return splits


def middle(design: Design, method: str) -> Trial:
    """Return a trial at the middle of the space."""
    trial = design.trial(method, 0)
    settings = {name: law.at(0.5) for name, law in design.space.items()}
    options = {name: law.at(0.5) for name, law in design.own.get(method, {}).items()}
    return replace(trial, settings=settings, options=options, cost=design.cost(method, options))


@dataclass(frozen=True)
class Probe:
    """Seconds on this machine: of a run before its first step, of an epoch by method, and of an evaluation."""

    begin: float
    epoch: Mapping[str, float]
    evaluation: float
    slowdown: float = 1.0  # by the runs beside it

    def seconds(self, trial: Trial) -> float:
        """Return about how long a trial takes."""
        evaluations = min(trial.epochs, POINTS) * self.evaluation
        return self.begin + self.slowdown * (trial.epochs * self.epoch[trial.method] + evaluations)


def probe(design: Design, where: Mapping[str, Any], slowdown: float) -> Probe:
    """Train a few steps of every method in a folder that is removed, and time them."""
    from ..studies.grid import split
    from ..training import train

    epoch, begin, evaluation = {}, 0.0, 0.0
    with TemporaryDirectory(prefix="steppe-compare-") as folder:
        # the first run imports, and is not counted
        for number, (method, steps) in enumerate([(design.reference, 2), *((m, PROBED) for m in design.methods)]):
            values = settings_of({**design.task, **where}, middle(design, method)) | {"on_nonfinite": "skip"}
            config = split(values)[0]
            start = perf_counter()
            run = train(replace(config, steps=steps, out=f"{folder}/{number}"), progress=False)
            wall, last = perf_counter() - start, run.records[-1]
            stepping, evaluation = sum(r["seconds"] for r in run.records), last["evaluation_seconds"]
            epoch[method] = stepping / run.about["steps"] * run.about["steps_per_epoch"]
            begin = max(wall - stepping - evaluation * len(run.records), 0.0)
    return Probe(begin, epoch, evaluation, slowdown)


class TrialFailed(RuntimeError):
    """A trial ended with an error that is no failure of its settings; trials before it are kept."""


def by_engine(
    task: Mapping[str, Any], engine: Engine, folder: Path, stop: StopRequest, measures: Sequence[str] = ()
) -> Execute:
    """Return an executor that trains trials as runs, on an engine of studies."""
    from ..studies.cell import Cell, Task, key_of

    def execute(trials: Sequence[Trial]) -> Generator[tuple[Trial, Done]]:
        tasks, by_key = [], {}
        for trial in trials:
            values = settings_of(task, trial)
            name = f"trial {trial.index} of {trial.method}"
            cell = Cell(key_of(values), name, values, {})
            rung = None if trial.limit == inf else (_rung(trial), trial.limit)
            tasks.append(Task(cell, str(folder / RUNS / cell.key), list(measures), ("test_error",), rung=rung))
            by_key[cell.key] = trial, tasks[-1]
        for outcome in engine.outcomes(tasks, stop):
            trial, of = by_key[outcome.key]
            if outcome.state == "stopped":
                return
            if outcome.state == "failed" and not outcome.error.startswith("FloatingPointError"):
                raise TrialFailed(
                    f"{of.cell.name} failed: {outcome.error}. The trials before it are kept; the same command resumes"
                )
            yield trial, _done(outcome, trial)
            if trial.kind != "fresh":  # weights are large, and those of the recommended configuration stay
                with suppress(OSError):  # of another machine
                    rmtree(of.folder)
                    Path(f"{of.folder}.lock").unlink(missing_ok=True)

    return execute


def _every(trial: Trial) -> int:
    """Epochs between evaluations."""
    return max(1, trial.epochs // POINTS)


def _rung(trial: Trial) -> int:
    """The epoch at which halving compares trials."""
    return rung_of(trial.epochs, _every(trial))


def _done(outcome: Any, trial: Trial) -> Done:
    if outcome.state == "failed":
        correct = outcome.correct
        return Done(correct.get("validation", ""), correct.get("test", ""), failed="the loss is not finite")
    if "validation" not in outcome.correct:  # of a cluster, whose rows nobody has seen before
        raise TrialFailed(
            f"the data have no validation rows, and validation selects among trials: --base validation={VALIDATION} "
            "sets a fraction of the training rows aside"
        )
    meta = outcome.meta
    per_epoch, curve, rung, passes, seconds = meta["steps"] / trial.epochs, [], None, 0.0, 0.0
    for record in outcome.curves:
        passes, seconds = passes + record["passes"], seconds + record["seconds"]
        if "validation_accuracy" in record:
            point = {"passes": round(passes / per_epoch, 3), "seconds": round(seconds, 3)}
            curve.append({**point, "validation_error": round(1 - record["validation_accuracy"], 6)})
            rung = 1 - record["validation_accuracy"] if record["epoch"] == _rung(trial) else rung
    values = {name: e["value"] for name, e in outcome.measures.items()}
    # of a run that was killed, `meta` has the seconds of the last start
    return Done(
        outcome.correct["validation"], outcome.correct["test"], "", round(max(meta["seconds"], seconds), 3),
        meta["passes"] / outcome.curves[-1]["step"], curve, rung, len(outcome.curves) < trial.epochs, values,
    )  # fmt: skip
