"""Selection: the best configuration of each method on validation rows, which a study with `select` trains again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan, nan, sqrt
from statistics import fmean, stdev
from typing import Any

from .cell import Cell, cells, cells_of, contender_settings, varied_settings
from .grid import differing, shown
from .plan import Study
from .points import Point, fresh_seeds
from .statistics.design import ALL_SEEDS, OWN
from .table import Table


@dataclass(frozen=True)
class Choice:
    """The winner of one combination of `select.per`.

    Attributes
    ----------
    group : mapping of str to value
        The combination.
    trials : int
        Configurations that it was chosen from; `failed` of them have a run without a number, and cannot win.
    cell : Cell or None
        A run of the winner; None while runs are missing, or if every configuration failed.
    score, error : float
        The winner's mean over seeds and its standard error.
    seeds : int
        Runs of the winner.
    ties : int
        Other configurations with the same mean; the first in the file's order wins.
    varied : sequence of str
        The settings that the configurations differ in.

    """

    group: Mapping[str, Any]
    trials: int
    failed: int = 0
    cell: Cell | None = None
    score: float = nan
    error: float = nan
    seeds: int = 0
    ties: int = 0
    varied: Sequence[str] = ()


def planned_cells(study: Study, table: Table) -> list[Cell]:
    """The cells of a study as far as they are known: with `select`, those of the final runs once there are winners."""
    return _with_final(study, choices(study, table))


def previewed_cells(study: Study, table: Table | None = None) -> list[Cell]:
    """The cells of a study with some configuration in the place of each winner not known yet: as many, and as valid."""
    known = choices(study, Table([]) if table is None else table)
    groups = _groups(study, cells(study)) if known else []
    some = [Choice(group, 0, cell=members[0]) for group, members in groups]
    return _with_final(study, [a if a.cell or a.failed else b for a, b in zip(known, some, strict=True)])


def _with_final(study: Study, chosen: Sequence[Choice]) -> list[Cell]:
    """The grid's cells and the final ones, each once."""
    final = {c.key: c for c in final_cells(study, chosen)}
    return [*(c for c in cells(study) if c.key not in final), *final.values()]


def choices(study: Study, table: Table) -> list[Choice]:
    """The winner of every combination whose runs have all ended; empty without `select`."""
    if study.select is None:
        return []
    runs = {run.key: run for run in table.runs}
    winners = []
    for group, members in _groups(study, cells(study)):
        by_configuration: dict[str, list[Cell]] = {}
        for cell in members:
            settings = {name: value for name, value in cell.config.items() if name not in ALL_SEEDS}
            by_configuration.setdefault(json.dumps(settings, sort_keys=True), []).append(cell)
        trials = len(by_configuration)
        if not all(c.key in runs and runs[c.key].state in ("done", "failed") for c in members):
            winners.append(Choice(group, trials))
            continue
        scored: list[tuple[list[float], Cell]] = []
        for of_one in by_configuration.values():
            scores = [runs[c.key].targets.get(study.select.by, nan) for c in of_one]
            if not any(map(isnan, scores)):
                scored.append((scores, of_one[0]))
        failed = trials - len(scored)
        if not scored:
            winners.append(Choice(group, trials, failed))
            continue
        scores, winner = min(scored, key=lambda pair: fmean(pair[0]))  # the first of equal ones
        ties = sum(fmean(other) == fmean(scores) for other, _ in scored) - 1
        error = stdev(scores) / sqrt(len(scores)) if len(scores) > 1 else nan
        best = winner, fmean(scores), error, len(scores), ties, _varied(study, members)
        winners.append(Choice(group, trials, failed, *best))
    return winners


def final_cells(study: Study, chosen: Sequence[Choice]) -> list[Cell]:
    """The final runs of the winners."""
    if study.select is None:
        return []
    contender, seed = contender_settings(study, study.compare), study.base.get("seed", 0)
    runs, contenders = [], []
    for choice in chosen:
        if choice.cell is not None:
            where = {name: value for name, value in choice.group.items() if name not in contender}
            for point, labels in study.select.runs.labelled():
                # other seeds than those of the sweep, shared by the contenders
                for seeds in fresh_seeds(study.select.runs.fresh, f"{seed} final {json.dumps([where, point])}"):
                    settings = {**choice.cell.config, **study.select.base, **point, **seeds}
                    runs.append(Point(settings, {**choice.cell.labels, **labels}))
                    contenders.append(" ".join(shown(v) for name, v in choice.group.items() if name in contender))
    return cells_of(study, runs, contenders, "final")


def tuned_settings(study: Study) -> list[str]:
    """The settings that belong to each contender of a comparison: those in its entry, and those selected for it."""
    groups = _groups(study, cells(study)) if study.select is not None else []
    selected = (name for _, members in groups for name in _varied(study, members))
    own, compared = contender_settings(study, study.compare), OWN if study.compare == "method" else (study.compare,)
    beside = (name for name in study.grid.settings if name in own and name.partition(".")[0] not in compared)
    return list(dict.fromkeys([*selected, *beside]))


def selection_words(study: Study, chosen: Sequence[Choice]) -> list[str]:
    """Trials per combination, and the winners, in sentences."""
    if study.select is None or not chosen:
        return []
    names = [" ".join(shown(v) for v in choice.group.values()) for choice in chosen]
    equal = len({choice.trials for choice in chosen}) == 1
    counts = (f"{name} {choice.trials}" for name, choice in zip(names, chosen, strict=True))
    each = f"{chosen[0].trials} each" if equal else ", ".join(counts)
    words = [f"Trials, selected by mean {study.select.by}: {each}."]
    words += [] if equal else ["The numbers of trials differ: the methods had different tuning budgets."]
    for name, choice in zip(names, chosen, strict=True):
        if choice.cell is None:
            words += [f"{name}: every configuration has a run without a number."] if choice.failed else []
            continue
        own = ", ".join(f"{k}={shown(v)}" for k in choice.varied if (v := choice.cell.value(k)) not in (None, {}, []))
        error = "" if isnan(choice.error) else f" ± {choice.error:.2g}"
        more = f"; {choice.failed} configurations failed" if choice.failed else ""
        more += f"; {choice.ties} more tie" if choice.ties else ""
        words.append(f"{name}: {own or 'the only configuration'} ({choice.score:.4g}{error}, n = {choice.seeds}{more})")
    return words


def _varied(study: Study, members: Sequence[Cell]) -> list[str]:
    """The settings in which the configurations of one combination differ."""
    return differing([n for n in varied_settings(study) if n not in ALL_SEEDS], [c.config for c in members])


def _groups(study: Study, swept: Sequence[Cell]) -> list[tuple[dict[str, Any], list[Cell]]]:
    per = study.select.per if study.select is not None else ()
    groups: dict[str, tuple[dict[str, Any], list[Cell]]] = {}
    for cell in swept:
        values = {name: cell.value(name) for name in per}
        groups.setdefault(json.dumps(values, sort_keys=True), (values, []))[1].append(cell)
    return list(groups.values())
