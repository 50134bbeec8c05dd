"""Measures and the settings of runs: comparisons of runs that differ in one setting only, and what measures follow.

- `granulated`: tau setting by setting, all other settings fixed (Jiang et al. 2020). A measure that only follows, say,
  the depth of networks can have a high tau over a whole pool; here each setting counts the same.
- `environments`: the sign error per change of one setting (Dziugaite et al. 2020). A good average can hide a change for
  which a measure always fails. The sign error is how often the measure orders two runs against their targets.
- `effects`: the correlation of measures with the settings themselves (Andriushchenko et al. 2023, Figure 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..table import Column, Table
from .design import first_seen
from .kendall import Floats, Ints, pairs, ranks

# pairs that an environment needs: with fewer than five coins, all fall wrong in one environment of sixteen
FEWEST = 5
MAX_ALIKE = 16  # runs with equal settings that are compared: 256 pairs per change of a setting

Settings = Mapping[str, Sequence[Any] | NDArray[Any]]


@dataclass(frozen=True)
class Granulated:
    """The granulated coefficient: its value Psi is the mean of `psi` over settings.

    `contexts` and `pairs` count, per setting, the combinations of the other settings and the pairs that were compared;
    `missing` counts runs without both values.
    """

    value: float
    psi: Mapping[str, float]
    contexts: Mapping[str, int]
    pairs: Mapping[str, int]
    missing: int

    def __str__(self) -> str:
        each = ", ".join(f"{name} {psi:+.2f} ({self.pairs[name]} pairs)" for name, psi in self.psi.items())
        return f"{self.value:+.2f} ({each or 'no setting varies'})"


@dataclass(frozen=True)
class Environment:
    """One change of one setting, from `values[0]` to `values[1]`: the sign error and the number of pairs."""

    setting: str
    values: tuple[Any, Any]
    sign_error: float
    pairs: int

    def __str__(self) -> str:
        a, b = self.values
        return f"{self.setting} {a!r} to {b!r}: sign error {self.sign_error:.2f} over {self.pairs} pairs"


@dataclass(frozen=True)
class Environments:
    """Sign errors per environment, the worst first.

    `too_few` counts environments with too few pairs, `unresolved` the pairs whose targets do not differ clearly, and
    `missing` the runs without both values.
    """

    found: list[Environment]
    too_few: int
    unresolved: int
    missing: int

    @property
    def worst(self) -> float:
        """The largest sign error, the paper's robust sign error; nan without environments."""
        return self.found[0].sign_error if self.found else nan

    @property
    def mean(self) -> float:
        """The mean sign error, which hides failures; nan without environments."""
        return float(np.mean([e.sign_error for e in self.found])) if self.found else nan

    def __str__(self) -> str:
        if not self.found:
            return "no environment: no two runs differ in one setting only, or too few do"
        return f"worst of {len(self.found)} environments: {self.found[0]}; the mean is {self.mean:.2f}"


@dataclass(frozen=True)
class Effect:
    """How a measure follows one setting; descriptive, without a verdict.

    `share` is the part of the variance of the measure's ranks between the setting's values (Kruskal and Wallis 1952),
    and `ceiling` the largest share that this design allows: values of a setting that separate the measure perfectly
    reach it. For settings that are numbers, `tau` and `within` are over all pairs and within groups, and `tau_ceiling`
    is the largest tau: pairs with equal settings count zero. Shares of the ceiling are what a reader expects.
    """

    measure: str
    setting: str
    values: int
    n: int
    share: float
    ceiling: float
    tau: float = nan
    tau_ceiling: float = nan
    within: float = nan


def granulated(x: ArrayLike, y: ArrayLike, settings: Settings) -> Granulated:
    """Compute Psi of a measure against a target.

    Parameters
    ----------
    x, y : array_like
        The measure and the target, one value per run.
    settings : mapping of str to sequence
        One value per run for each setting. Leave out the seed: runs that differ by the seed alone are then compared
        across the setting's values and not with one another.

    Returns
    -------
    Granulated
        psi of a setting is the mean of tau-a over all combinations of the other settings, over pairs that differ in
        the setting. A setting without such a pair has psi nan and is left out of the mean.

    """
    a, b, known, axes = _complete_runs(x, y, settings)
    psi, contexts, counts = {}, {}, {}
    for axis, name in enumerate(settings):
        context = contexts_of(axes, axis)
        i, j = neighbours(context, axes[axis])
        score = np.bincount(context[i], np.sign(a[i] - a[j]) * np.sign(b[i] - b[j]))
        count = np.bincount(context[i])
        used = count > 0
        psi[name] = float((score[used] / count[used]).mean()) if used.any() else nan
        contexts[name], counts[name] = int(used.sum()), int(count.sum())
    defined = [v for v in psi.values() if not np.isnan(v)]
    return Granulated(float(np.mean(defined)) if defined else nan, psi, contexts, counts, int((~known).sum()))


def environments(
    x: ArrayLike, y: ArrayLike, settings: Settings, *, resolution: float | ArrayLike = 0.0, fewest: int = FEWEST
) -> Environments:
    """Compute the sign errors of a measure against a target.

    Parameters
    ----------
    x, y : array_like
        The measure and the target, one value per run.
    settings : mapping of str to sequence
        One value per run for each setting.
    resolution : float or array_like
        Pairs whose targets differ by no more than this are left out and counted, as in the paper. An array gives a
        standard error per run; a pair then has to differ by twice the combined error.
    fewest : int
        Pairs that an environment needs.

    Returns
    -------
    Environments
        A tie of the measure counts as half an error. Of more than 16 runs with equal settings, 16 are picked at random.

    """
    a, b, known, axes = _complete_runs(x, y, settings)
    noise = np.asarray(resolution, dtype=np.float64)
    noise = noise if noise.ndim == 0 else np.nan_to_num(noise[known])
    results, too_few, unresolved = [], 0, 0
    for axis, name in enumerate(settings):
        levels = int(axes[axis].max(initial=0)) + 1
        values, context = axes[axis], contexts_of(axes, axis)
        rows = _thinned(context * levels + values)
        i, j = (rows[side] for side in neighbours(context[rows], values[rows]))
        bar = noise if noise.ndim == 0 else 2 * np.hypot(noise[i], noise[j])
        clear = np.abs(b[i] - b[j]) > bar
        unresolved += int((~clear).sum())
        i, j = i[clear], j[clear]
        between = np.minimum(values[i], values[j]) * levels + np.maximum(values[i], values[j])
        change, which = np.unique(between, return_inverse=True)
        errors = (1 - np.sign(a[i] - a[j]) * np.sign(b[i] - b[j])) / 2
        count, wrong = np.bincount(which), np.bincount(which, errors)
        too_few += int((count < fewest).sum())
        for k in np.flatnonzero(count >= max(fewest, 1)).tolist():
            first_runs = (int(known.nonzero()[0][np.argmax(values == level)]) for level in divmod(change[k], levels))
            before, after = (settings[name][run] for run in first_runs)
            results.append(Environment(name, (before, after), float(wrong[k] / count[k]), int(count[k])))
    results.sort(key=lambda e: (-e.sign_error, -e.pairs))
    return Environments(results, too_few, unresolved, int((~known).sum()))


def effects(table: Table, measures: Sequence[str] | None = None, settings: Sequence[str] | None = None) -> list[Effect]:
    """Relate every measure to every setting that varies, over all runs and within the table's groups."""
    labels = table.labels()
    columns = {path: table.setting(path) for path in (table.settings() if settings is None else settings)}
    names = table.measures if measures is None else measures
    return [effect(table.measure(m), path, column, labels) for m in names for path, column in columns.items()]


def effect(x: Column, setting: str, column: NDArray[Any], labels: ArrayLike | None = None) -> Effect:
    """Relate one measure to one setting."""
    known = np.isfinite(x.values) & np.array([v is not None for v in column], dtype=bool)
    values, level = x.values[known], ranks([repr(v) for v in column[known]])
    row = Effect(x.name, setting, len(np.unique(level)), int(known.sum()), *_share_between(values, level))
    if not all(v is None or isinstance(v, (bool, int, float)) for v in column):  # words have no order
        return row
    numbers = np.array([float(v) for v in column[known]])
    counted = pairs(values, numbers)
    ceiling = (counted.all - counted.tied_y) / counted.all if counted.all else nan
    groups = np.zeros(len(values)) if labels is None else np.asarray(labels)[known]
    within = pairs(values, numbers, groups).tau_a if len(np.unique(groups)) > 1 else nan
    return replace(row, tau=counted.tau_a, tau_ceiling=ceiling, within=within)


def _complete_runs(
    x: ArrayLike, y: ArrayLike, settings: Settings
) -> tuple[Floats, Floats, NDArray[np.bool_], list[Ints]]:
    """Measure and target of the runs that have both, which runs these are, and the codes of their settings."""
    a, b = (np.asarray(v, dtype=np.float64) for v in (x, y))
    known = np.isfinite(a) & np.isfinite(b)
    for name, column in settings.items():
        if len(column) != len(a):
            raise ValueError(f"each run has one value of {name}: there are {len(a)} runs and {len(column)} values")
    return a[known], b[known], known, [first_seen(map(repr, v))[known] for v in settings.values()]


def neighbours(context: Ints, values: Ints) -> tuple[Ints, Ints]:
    """All pairs of runs with equal context (all settings but one) and different values of the remaining setting."""
    differ = (context[:, None] == context) & (values[:, None] != values)
    first, second = np.nonzero(np.triu(differ))
    return first, second


def contexts_of(axes: Sequence[Ints], axis: int) -> Ints:
    """Each run's combination of the other settings, as integers from 0."""
    others = [values for i, values in enumerate(axes) if i != axis]
    if not others:
        return np.zeros(len(axes[axis]), dtype=np.int64)
    return np.unique(np.stack(others), axis=1, return_inverse=True)[1].reshape(-1)


def _thinned(settings_code: Ints) -> Ints:
    """Rows with at most `MAX_ALIKE` runs per combination of settings: pairs grow with their square."""
    kind = ranks(settings_code)
    size = np.bincount(kind)
    if size.max(initial=0) <= MAX_ALIKE:
        return np.arange(len(kind))
    order = np.lexsort((np.random.default_rng(0).random(len(kind)), kind))
    position = np.arange(len(kind)) - np.repeat(np.cumsum(size) - size, size)  # within its kind
    return np.sort(order[position < MAX_ALIKE])


def _share_between(values: Floats, level: Ints) -> tuple[float, float]:
    """The share of rank variance between levels, and the largest that it can be."""
    n = len(values)
    if n < 3 or np.ptp(values) == 0 or level.max() == 0:
        return nan, nan
    dense, size = ranks(values), np.bincount(level)
    alike = np.bincount(dense)
    centred = (np.cumsum(alike) - alike / 2 - n / 2)[dense]  # tied values share their mean rank
    share = float((np.bincount(level, centred) ** 2 / size).sum() / (centred**2).sum())
    # levels that follow one another in rank leave the variance of consecutive ranks within each
    within = float((size * (size**2 - 1.0)).sum() / 12)
    return share, max(share, 1 - within / float((centred**2).sum()))
