"""Computing a cell: train its run or ensemble, or read its checkpoint; evaluate it; and measure what is missing."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from math import isfinite, sqrt
from pathlib import Path
from statistics import fmean
from time import monotonic, perf_counter, sleep
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from .. import __version__
from .._util.digests import packed_bits
from .._util.files import FolderLocked, is_locked
from .._util.measure_names import MeasureName
from ..data.registry import loaded_once
from ..training.config import Config
from .cell import CORRUPTED_ROWS, WEIGHTS_OF, Disagreement, Outcome, Task
from .pictures import draw
from .plan import split_measures

if TYPE_CHECKING:
    from torch import nn

    from ..data.dataset import Splits
    from ..ensembles.strategies import Ensemble
    from ..ensembles.summary import Predictors
    from ..measures.estimate import Estimate
    from ..measures.objective import Objective
    from ..training.folder import Run
    from ..training.problem import Task as Problem

PATIENCE = 60.0  # seconds for a worker whose driver ended to release a run's folder
PAUSE = 0.1  # seconds between two looks

Numbers = dict[str, float]


@dataclass(frozen=True)
class Trained:
    """A trained model with its data, both on its device; the records of its epochs, numbers about it, and its start."""

    model: nn.Module
    splits: Splits
    problem: Problem
    config: Config
    records: list[dict[str, Any]]
    meta: Numbers
    start: Mapping[str, str] = field(default_factory=dict)

    def objective(self) -> Objective:
        """The loss that a study measures."""
        from ..training.evaluate import objective_of

        return objective_of(self.model, self.problem, self.splits.train, self.config.measure_rows)


def work(task: Task) -> Outcome:
    """Compute a task. Errors become part of the outcome, so that all engines report them alike."""
    from ..training.distributed import threads
    from ..training.stopping import Stopped

    try:
        config, ensemble = task.cell.parts
        with loaded_once(), threads(config.threads):  # one reading of the data for training and evaluation
            try:
                return _run(task, config) if ensemble is None else _ensemble(task, config, ensemble)
            except FloatingPointError as error:
                message = f"FloatingPointError: {error}"
                return Outcome(task.cell.key, "failed", error=message, correct=_of_a_constant(config))
    except Stopped as stop:
        return Outcome(task.cell.key, "stopped", error=str(stop))
    except Disagreement as error:
        return Outcome(task.cell.key, "failed", error=str(error), ends=True)
    except Exception as error:
        from torch import OutOfMemoryError

        message = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        # a folder is locked while a worker that a cut network took from its driver still trains there
        transient = isinstance(error, (OSError, MemoryError, OutOfMemoryError, FolderLocked))
        transient &= not isinstance(error, FileNotFoundError)  # a retry does not find it either
        return Outcome(task.cell.key, "failed", error=message, transient=transient)


def _of_a_constant(config: Config) -> dict[str, str]:
    """Which rows the most frequent training class is right for: what is left of a run that diverged."""
    from ..training.problem import data_of

    splits = data_of(config)
    if not splits.train.classes:
        return {}
    usual = splits.train.targets.mode().values
    parts = {"test": splits.test, "validation": splits.validation}
    return {name: packed_bits(part.targets == usual) for name, part in parts.items() if part is not None}


def _run(task: Task, config: Config) -> Outcome:
    """Train or read one model, evaluate and measure it, and compute the pictures of the task."""
    from ..measures.registry import resolve_measures
    from ..measures.run import STOPPED, measure_objective
    from ..training.evaluate import on_data

    start = perf_counter()
    trained = _trained(task, config)
    targets: Numbers = {}
    errors: Numbers = {}
    correct: dict[str, str] = {}
    versions = {**_versions(config.device), **trained.start}
    if task.targets:
        targets, errors, source, correct = _targets(trained)
        versions |= {f"{CORRUPTED_ROWS}{config.data}": source} if source else {}
        for name, (error, rows) in _shifted_errors(trained, task.ood).items():
            targets[name], errors[name] = error, sqrt(error * (1 - error) / rows)
    task.cell.check_known(targets)
    objective = trained.objective()
    of_models, scores = split_measures(task.measures)
    on = on_data(trained.model, trained.problem, trained.splits, config)
    results = measure_objective(objective, resolve_measures(of_models), config.seed, progress=False, on=on)
    if not all(e.complete for e in results.values()) or STOPPED in results.failures.values():
        return Outcome(task.cell.key, "stopped", error="stopped while it was measured")
    try:
        members = [_trained(one, one.cell.parts[0]) for one in task.members]
        pictures, failures = draw(task, objective, members) if task.pictures else ({}, {})
    except KeyboardInterrupt:
        return Outcome(task.cell.key, "stopped", error="stopped while it was drawn")
    failures |= {name: f"{name} is a score of ensembles, and this is one model" for name in scores}
    return Outcome(
        task.cell.key,
        "done",
        {k: v for k, v in targets.items() if isfinite(v)},
        errors,
        {name: asdict(e) for name, e in results.estimates.items()},
        {**failures, **results.failures},
        trained.meta | {"seconds": perf_counter() - start},
        [_curve(record) for record in trained.records],
        versions,
        pictures=pictures,
        correct=correct,
    )


def _trained(task: Task, config: Config) -> Trained:
    """The model of a cell on its device: of a checkpoint, or of a run that is trained or resumed."""
    from ..training.distributed import device_of
    from ..training.problem import moved

    model, splits, *rest = _of_checkpoint(task, config) if task.cell.checkpoint else _of_run(task, config)
    device = device_of(config.device)
    return Trained(model.to(device).eval(), moved(splits, device), rest[0], config, *rest[1:])


def _of_run(task: Task, config: Config) -> tuple[Any, ...]:
    """Train the run of a cell, or resume it: model, data, problem, records, meta and start."""
    from ..training import train
    from ..training.folder import NAME, read_run_yaml

    folder = Path(task.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    end = monotonic() + PATIENCE
    while is_locked(folder, NAME) and monotonic() < end:
        sleep(PAUSE)
    along: dict[str, Any] = {"measures": list(task.along), "measure_every": task.measure_every}
    if (started := read_run_yaml(folder)) is not None:  # records of its epochs cannot be added any more
        along = {name: started["config"][name] for name in along}
    settings = replace(config, out=str(folder), **along)
    if task.rung is not None:
        run = train(settings, progress=False, lean=True, until=task.rung[0])
        at = next((r for r in run.records if r["epoch"] == task.rung[0]), run.result)
        if 1 - at["validation_accuracy"] > task.rung[1]:
            return run.model(), run.data(), run.task, run.records, _meta(run), _start(run)
    run = train(settings, progress=False, lean=True)
    return run.model(), run.data(), run.task, run.records, _meta(run), _start(run)


def _of_checkpoint(task: Task, config: Config) -> tuple[Any, ...]:
    """Read a checkpoint of the pool: model, data, problem, records and meta."""
    from .._util.checkpoints import load_into, read_checkpoint
    from ..training import open_run
    from ..training.model import model_of
    from ..training.problem import data_of, standard_of, task_of

    path = Path(str(task.cell.checkpoint))
    if path.is_dir():
        run = open_run(path, config.model)  # `check_trust` has allowed the name
        return run.model(), data_of(config), run.task, run.records, {"parameters": float(run.about["parameters"])}
    splits = data_of(config)
    problem = task_of(splits, standard_of(str(task.cell.normalise), config, splits))
    model = model_of(config, problem.shape, problem.outputs)
    load_into(model, read_checkpoint(path), path)
    return model, splits, problem, [], {"parameters": float(sum(p.numel() for p in model.parameters()))}


def _meta(run: Run) -> Numbers:
    """Size and cost of a trained run."""
    seconds = sum(record.get("seconds") or 0.0 for record in run.records)  # of steps: without evaluation and measures
    meta = {"parameters": float(run.about["parameters"]), "steps": float(run.about["steps"])}
    return meta | {"passes": float(sum(r["passes"] for r in run.records)), "training_seconds": seconds}


def _start(run: Run) -> dict[str, str]:
    """The digest of the weights that a run started from, for its record: its key needs them where they are not."""
    init = run.about.get("init")
    return {} if init is None else {f"{WEIGHTS_OF}{run.config.init}": init["digest"]}


def _targets(trained: Trained) -> tuple[Numbers, Numbers, str | None, dict[str, str]]:
    """Errors and losses of the final weights without augmentation, and their standard errors where they have one.

    Also returns where corrupted rows come from, if there are any, and which rows are classified correctly.
    """
    from ..core.process_group import Workers
    from ..training.evaluate import evaluated, under_corruptions

    model, splits, problem, config = trained.model, trained.splits, trained.problem, trained.config
    parts = {"train": splits.train, "test": splits.test, "validation": splits.validation}
    sets = {part: rows for part, rows in parts.items() if rows is not None}
    scores = {
        part: evaluated(model, rows, problem, config, Workers(), rows=part != "train") for part, rows in sets.items()
    }
    losses = {part: each["loss"] for part, each in scores.items()}
    wrong = {part: 1 - each["accuracy"] for part, each in scores.items() if "accuracy" in each}
    values, errors = _errors_and_gaps(losses, wrong, {part: len(rows) for part, rows in sets.items()})
    source = None
    if config.corruptions:
        last = trained.records[-1] if trained.records else {}
        damaged = last if "corrupted" in last else under_corruptions(model, splits.test, problem, config, Workers())
        source = str(damaged["corrupted_source"])
        values["corrupted_error"] = 1 - damaged["corrupted_accuracy"]
        for severity, shares in zip(config.severities, zip(*damaged["corrupted"].values(), strict=True), strict=True):
            values[f"corrupted_error@{severity}"] = 1 - fmean(shares)
    model.eval()
    return values, errors, source, {part: each["correct"] for part, each in scores.items() if "correct" in each}


def _errors_and_gaps(
    losses: Mapping[str, float], wrong: Mapping[str, float], rows: Mapping[str, int]
) -> tuple[Numbers, Numbers]:
    """Targets and their standard errors from losses, shares of wrong answers and numbers of rows, by kind of rows."""
    values = {f"{part}_loss": loss for part, loss in losses.items()}
    values |= {f"{part}_error": share for part, share in wrong.items()}
    # binomial: new rows would give another error; the training rows are fixed
    errors = {f"{part}_error": sqrt(w * (1 - w) / rows[part]) for part, w in wrong.items() if part != "train"}
    if wrong:
        values["gap"], errors["gap"] = wrong["test"] - wrong["train"], errors["test_error"]
    values["loss_gap"] = losses["test"] - losses["train"]
    return values, errors


def _shifted_errors(trained: Trained, ood: Mapping[str, str]) -> dict[str, tuple[float, int]]:
    """Errors on test sets under another distribution, each with its number of rows."""
    from ..data import shifted
    from ..ensembles.summary import logits

    train, errors = trained.splits.train, {}
    for name, place in ood.items():
        tests = shifted.read(place, train)
        outputs = logits([trained.model], tests.rows.to(train.inputs.device), trained.problem)[0]
        errors[f"{name}_error"] = tests.error(outputs), len(tests.rows)
    return errors


def _curve(record: Mapping[str, Any]) -> dict[str, Any]:
    """The record of an epoch with its measures' values beside its other numbers, as curves are read."""
    measures: Mapping[str, Any] = record.get("measures", {})
    numbers = {name: value for name, value in record.items() if not name.endswith("_correct")}  # the outcome has them
    return {name: m["value"] for name, m in measures.items() if "value" in m} | numbers


def _versions(device: str | None) -> dict[str, str]:
    """The software, the machine and the day of an outcome."""
    import numpy
    import torch

    from ..training.distributed import device_of

    on = device_of(device)
    processor = torch.cuda.get_device_name(on) if on.type == "cuda" else platform.machine()
    return {
        "device": processor, "date": datetime.now(UTC).date().isoformat(),
        "steppe": __version__, "torch": str(torch.__version__), "numpy": numpy.__version__,
        "python": platform.python_version(), "system": platform.platform(),
    }  # fmt: skip


def _ensemble(task: Task, config: Config, ensemble: Ensemble) -> Outcome:
    """Train the members of an ensemble, or resume them; score them together, and measure each of them."""
    from ..ensembles.members import begun, exchange_seconds
    from ..ensembles.scores import predicted, scored
    from ..ensembles.summary import Predictors
    from ..ensembles.train import train_ensemble

    start, folder = perf_counter(), Path(task.folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # corrupted rows are read once for the whole ensemble, at its end
    of_models = split_measures(task.along)[0]
    measured = [name for name in of_models if MeasureName.of(name).options.get("rows") != "corrupted"]
    with FileLock(f"{folder}.lock", timeout=PATIENCE):
        along: dict[str, Any] = {"measures": measured, "measure_every": task.measure_every}
        if (before := begun(folder)) is not None:  # records of its epochs cannot be added any more
            along = {name: getattr(before, name) for name in along}
        trained = train_ensemble(replace(config, out=str(folder), **along), ensemble, progress=False)
    try:
        predictors = Predictors.of(trained)
        predictions = _predictions(predictors)
        by_rows = {rows: scored(*each) for rows, each in predictions.items()}
        measures, failures = _ensemble_measures(by_rows, predictors, task.measures)
    except KeyboardInterrupt:
        return Outcome(task.cell.key, "stopped", error="stopped while it was measured")
    targets, errors = _ensemble_targets(by_rows, predictors)
    metas = [_meta(run) for run in trained.runs]
    meta = {name: sum(each[name] for each in metas) for name in metas[0]}
    if (scores := exchange_seconds(trained)) is not None:
        meta |= {"exchange_seconds": scores, "training_seconds": meta["training_seconds"] + scores}
    versions = _versions(config.device) | _start(trained.runs[0])
    if (source := predictors.corrupted_source) is not None:
        versions[f"{CORRUPTED_ROWS}{config.data}"] = source
    return Outcome(
        task.cell.key,
        "done",
        {k: v for k, v in targets.items() if isfinite(v)},
        errors,
        {name: asdict(e) for name, e in measures.items()},
        failures,
        meta | {"seconds": perf_counter() - start},
        _mean_records([[_curve(record) for record in run.records] for run in trained.runs]),
        versions,
        correct={
            rows: packed_bits(predicted(logits).argmax(-1) == classes)
            for rows, (logits, classes) in predictions.items()
            if rows in ("test", "validation")
        },
    )


def _predictions(predictors: Predictors) -> dict[str, Any]:
    """Logits of the members and targets, by the name of the rows."""
    from ..ensembles.summary import together

    parts = {name: getattr(predictors.splits, name) for name in ("train", "test", "validation")}
    outputs = {name: predictors.predictions([rows]) for name, rows in parts.items() if rows is not None}
    corrupted = predictors.under_corruptions()
    outputs |= {f"corrupted@{severity}": predictions for severity, predictions in corrupted.items()}
    return outputs | ({"corrupted": together(corrupted.values())} if corrupted else {})


def _ensemble_targets(by_rows: Mapping[str, Mapping[str, Estimate]], predictors: Predictors) -> tuple[Numbers, Numbers]:
    """Errors and losses of the ensemble."""
    corrupted = [rows for rows in by_rows if rows.startswith("corrupted")]  # all together, and by severity
    losses = {rows: scores["nll"].value for rows, scores in by_rows.items() if rows not in corrupted}
    wrong = {rows: 1 - by_rows[rows]["accuracy"].value for rows in losses}
    values, errors = _errors_and_gaps(losses, wrong, {rows: len(getattr(predictors.splits, rows)) for rows in losses})
    for rows in corrupted:
        values[rows.replace("corrupted", "corrupted_error")] = 1 - by_rows[rows]["accuracy"].value
    return values, errors


def _ensemble_measures(
    by_rows: Mapping[str, Mapping[str, Estimate]], predictors: Predictors, measures: Sequence[str]
) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Scores of the ensemble, means over members of measures of models, and why others have no value."""
    from ..ensembles.summary import mean_of

    of_models, scores = split_measures(measures)
    values: dict[str, Estimate] = {}
    failures: dict[str, str] = {}
    for name in scores:
        one = MeasureName.of(name)
        rows = one.options.get("rows", "test")
        if rows not in by_rows:
            failures[name] = f"the ensemble has no {rows} rows: give `{'corruptions' if rows == 'corrupted' else rows}`"
        elif one.base not in by_rows[rows]:
            failures[name] = f"{one.base} needs two members, and there is one"
        else:
            values[name] = by_rows[rows][one.base]
    members = predictors.measured(of_models)
    for name in {**members[0].estimates, **members[0].failures}:
        wrong = [results.failures[name] for results in members if name in results.failures]
        if wrong:
            failures[name] = wrong[0]
        else:
            values[name] = mean_of([results[name] for results in members])
    undefined = {name: e.note for name, e in values.items() if not isfinite(e.value)}  # such as a ratio to no error
    return {name: e for name, e in values.items() if name not in undefined}, failures | undefined


def _mean_records(members: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The members' records as one per epoch: the mean of every number that all of them have."""
    means = []
    for records in zip(*members, strict=True):
        columns = {name: [record.get(name) for record in records] for name in records[0]}
        numbers = {name: v for name, v in columns.items() if all(isinstance(x, int | float) for x in v)}
        # numbers of epochs stay integers
        means.append({name: fmean(v) if len({*v}) > 1 else v[0] for name, v in numbers.items()})
    return means
