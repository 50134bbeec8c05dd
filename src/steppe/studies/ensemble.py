"""Evaluation of a cell that is an ensemble: its members are scored together, and each of them is measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .._util.measure_names import MeasureName
from .cell import CORRUPTED_ROWS, targets_of

if TYPE_CHECKING:
    from ..ensembles.members import Trained
    from ..ensembles.summary import Predictors
    from ..measures.estimate import Estimate

ROWS = ("train", "validation", "test", "corrupted")  # that a score may be on


def split_measures(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Measures of a model, and scores of an ensemble such as `der` or `der[rows=corrupted]`."""
    from ..ensembles.scores import SCORES

    scores = [name for name in names if MeasureName.of(name).base in SCORES]
    for name in scores:
        one = MeasureName.of(name)
        if one.radius or one.options.keys() - {"rows"} or one.options.get("rows", "test") not in ROWS:
            raise ValueError(f"measures: {name} is a score of ensembles, which takes rows only: {', '.join(ROWS)}")
    return [name for name in names if name not in scores], scores


@dataclass(frozen=True)
class Evaluated:
    """The numbers of an ensemble: targets with their errors, measures, and the errors of measures that failed.

    `sources` says where corrupted rows come from.
    """

    targets: Mapping[str, float]
    target_errors: Mapping[str, float]
    measures: Mapping[str, Estimate]
    failures: Mapping[str, str]
    sources: Mapping[str, str]


def evaluate(trained: Trained, measures: Sequence[str]) -> Evaluated:
    """Score a trained ensemble on all its rows; a measure of models is the mean over members."""
    from ..ensembles.scores import scored
    from ..ensembles.summary import Predictors, mean_of

    predictors = Predictors.of(trained)
    of_models, scores = split_measures(measures)
    by_rows = {rows: scored(*predictions) for rows, predictions in _predictions(predictors).items()}
    values: dict[str, Estimate] = {}
    failures: dict[str, str] = {}
    for name in scores:
        one = MeasureName.of(name)
        score, rows = one.base, one.options.get("rows", "test")
        if rows not in by_rows:
            failures[name] = f"the ensemble has no {rows} rows: give `{'corruptions' if rows == 'corrupted' else rows}`"
        elif score not in by_rows[rows]:
            failures[name] = f"{score} needs two members, and there is one"
        else:
            values[name] = by_rows[rows][score]
    members = predictors.measured(of_models)
    for name in {**members[0].estimates, **members[0].failures}:
        wrong = [results.failures[name] for results in members if name in results.failures]
        if wrong:
            failures[name] = wrong[0]
        else:
            values[name] = mean_of([results[name] for results in members])
    undefined = {name: e.note for name, e in values.items() if not isfinite(e.value)}  # such as a ratio to no error
    values = {name: e for name, e in values.items() if name not in undefined}
    source = predictors.corrupted_source
    sources = {f"{CORRUPTED_ROWS}{trained.config.data}": source} if source is not None else {}
    return Evaluated(*_targets(by_rows, predictors), values, failures | undefined, sources)


def _predictions(predictors: Predictors) -> dict[str, Any]:
    """Logits of the members and targets, by the name of the rows."""
    from ..ensembles.summary import together

    parts = {name: getattr(predictors.splits, name) for name in ("train", "test", "validation")}
    outputs = {name: predictors.predictions([rows]) for name, rows in parts.items() if rows is not None}
    corrupted = predictors.under_corruptions()
    outputs |= {f"corrupted@{severity}": predictions for severity, predictions in corrupted.items()}
    return outputs | ({"corrupted": together(corrupted.values())} if corrupted else {})


def _targets(
    by_rows: Mapping[str, Mapping[str, Estimate]], predictors: Predictors
) -> tuple[dict[str, float], dict[str, float]]:
    """Errors and losses of the ensemble."""
    corrupted = [rows for rows in by_rows if rows.startswith("corrupted")]  # all together, and by severity
    losses = {rows: scores["nll"].value for rows, scores in by_rows.items() if rows not in corrupted}
    wrong = {rows: 1 - by_rows[rows]["accuracy"].value for rows in losses}
    values, errors = targets_of(losses, wrong, {rows: len(getattr(predictors.splits, rows)) for rows in losses})
    for rows in corrupted:
        values[rows.replace("corrupted", "corrupted_error")] = 1 - by_rows[rows]["accuracy"].value
    return values, errors


def measured_along(names: Sequence[str]) -> list[str]:
    """The measures that members take while they train: not scores of the ensemble, nor those on corrupted rows.

    Corrupted rows are read once for the whole ensemble, at its end.
    """
    return [name for name in split_measures(names)[0] if MeasureName.of(name).options.get("rows") != "corrupted"]


def mean_records(members: Sequence[Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The members' records as one per epoch: the mean of every number that all of them have."""
    return [
        {
            name: _mean([r[name] for r in records])
            for name in records[0]
            if all(isinstance(r.get(name), int | float) for r in records)
        }
        for records in zip(*members, strict=True)
    ]


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if len({*values}) > 1 else values[0]  # numbers of epochs stay integers
