"""Which method won? Every contender against the plain optimizer, paired by seed and every other setting.

A contender is a method with its options: each radius of SAM is one. The difference of a target is averaged over pairs.
Configurations, the settings that two methods share apart from the seed, are the sample: the standard error is that of
their means, as permutations and intervals of tau exchange and leave out whole configurations. Seeds say how a
difference repeats in one configuration, not in others: a study of few configurations with many seeds would be certain
of what they have in common by chance. Where there is one configuration only, its seeds are the sample, and the verdict
is on that configuration. Settings that a study tunes for each method belong to the contender too: the tuned methods are
compared, each at its own learning rate. p and interval come from the same Student's t and agree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan, sqrt
from typing import Any, Literal

import numpy as np

from ..table import Run, Table, word
from .kendall import Floats, Ints, ranks
from .permutation import SEEDS
from .predictions import CONFIDENCE, LEVEL, POWER, not_shown

Verdict = Literal["better", "worse", "no difference seen", "cannot tell"]

PLAIN = ("none", "deep")  # the method that leaves the optimizer as it is, and the ensemble of such runs
OF_STRATEGIES = ("member_radii", "exchange_at", "exchange_every", "share", "named", "rest")
OWN = ("method", "rho", "method_options", "strategy", *OF_STRATEGIES)  # settings that make a contender
# A difference of less than a tenth of the reference's error is not what methods are chosen for: Foret et al. 2021
# (Table 1) report that SAM removes 10 to 30 % of the errors on CIFAR.
RELEVANT = 0.1
FEWEST = 3  # pairs: the spread of two differences is a coin's
# Runs whose mean training errors differ by more than a point are not trained to the same end: A modern look, section
# 5.1, compares runs with at most 1 % training error.
SAME_ERROR = 0.01
ROUNDING = 1e-9  # values closer than this are equal
SAME_LOSS = 2.0  # factor between mean training losses, where errors are not known


@dataclass(frozen=True)
class Comparison:
    """One contender against the reference in one target.

    Attributes
    ----------
    contender, reference, target : str
        Names; a contender with its options, such as "sam rho=0.1".
    verdict : {"better", "worse", "no difference seen", "cannot tell"}
        The conclusion.
    why, sentence : str
        The reason in a few words, and the comparison in a sentence.
    difference, low, high : float
        Mean of contender minus reference over pairs, with its 95 % interval. Negative is better.
    error, freedom : float, int
        The standard error of the difference, and its degrees of freedom.
    mean, reference_mean : float
        Means of the target over the pairs.
    p, p_corrected : float
        Two-sided p-value of the difference, and the same corrected for all tests of the study.
    smallest_detectable_difference : float
        What these pairs show with 80 % power at the corrected level.
    pairs, configurations : int
        Pairs of runs, and configurations that they are in.
    wins, losses, ties : int
        Pairs in which the contender's target is lower, higher, or equal.
    passes, reference_passes, seconds, reference_seconds : float
        Mean training cost per run; nan if it is not stored.
    warning : str
        Why the difference may be one of training length; empty if there is no sign of that.

    Examples
    --------
    >>> runs = [
    ...     steppe.studies.Run(
    ...         f"{method} {seed}", "", {"method": method, "seed": seed}, {}, "done", {"test_error": error + seed / 100}
    ...     )
    ...     for method, error in [("none", 0.02), ("sam", 0.01)]
    ...     for seed in range(4)
    ... ]
    >>> (comparison,) = steppe.studies.correlate.findings(steppe.studies.Table(runs)).comparisons
    >>> comparison.contender, round(comparison.difference, 4), comparison.wins, comparison.verdict
    ('sam', -0.01, 4, 'better')

    """

    contender: str
    reference: str
    target: str
    difference: float
    low: float
    high: float
    mean: float
    reference_mean: float
    p: float
    pairs: int
    configurations: int
    wins: int
    losses: int
    ties: int
    passes: float = nan
    reference_passes: float = nan
    seconds: float = nan
    reference_seconds: float = nan
    warning: str = ""
    error: float = nan
    freedom: int = 0
    p_corrected: float = nan
    smallest_detectable_difference: float = nan
    verdict: Verdict = "cannot tell"
    why: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Contest:
    """Comparisons of all contenders with one reference, and a remark on the choice of the reference."""

    reference: str
    note: str
    comparisons: list[Comparison]


def contest(table: Table, targets: Sequence[str], tuned: Sequence[str] = ()) -> Contest:
    """Compare every contender with the plain optimizer; if there is none, with SAM, or with the most frequent one.

    Runs are paired by seed and by every setting that is neither of the contender nor `tuned`.
    """
    names = contenders(table)
    order = list(dict.fromkeys(names))
    if len(order) < 2:
        return Contest("", "the study has one method: there is nothing to compare" if order else "", [])
    plain = [name for name, run in zip(names, table.runs, strict=True) if _method(run) in PLAIN]
    sam = [name for name, run in zip(names, table.runs, strict=True) if _method(run) == "sam"]
    reference = Counter(plain or sam or names).most_common(1)[0][0]
    note = "" if plain else f"the study has no plain optimizer: methods are compared with {reference}"
    keys = _keys(table, tuned)
    rows: dict[str, dict[tuple[str, str], int | None]] = {name: {} for name in order}
    for i, (name, key) in enumerate(zip(names, keys, strict=True)):
        rows[name][key] = None if key in rows[name] else i  # runs that nothing tells apart have no partner
    comparisons = []
    for target in targets:
        values = table.target(target).values
        for name in (n for n in order if n != reference):
            partners = ((a, rows[reference].get(key), key[0]) for key, a in rows[name].items())
            pairs = [(a, b, key) for a, b, key in partners if a is not None and b is not None]
            pairs = [(a, b, key) for a, b, key in pairs if isfinite(values[a]) and isfinite(values[b])]
            comparisons.append(_comparison(table, (name, reference, target), values, pairs))
    return Contest(reference, note, comparisons)


def contenders(table: Table) -> list[str]:
    """Each run's method, or strategy of an ensemble, with the options that differ between runs of the same one."""
    methods, options = [_method(run) for run in table.runs], [_own(run) for run in table.runs]
    values: dict[tuple[str, str], set[str]] = {}
    for method, own in zip(methods, options, strict=True):
        for key in {k for m, o in zip(methods, options, strict=True) if m == method for k in o}:
            values.setdefault((method, key), set()).add(repr(own.get(key)))
    return [
        run.contender or " ".join([m, *(f"{k}={word(v)}" for k, v in own.items() if len(values[m, k]) > 1)])
        for run, m, own in zip(table.runs, methods, options, strict=True)
    ]


def _method(run: Run) -> str:
    return str(run.setting("strategy") or run.setting("method"))


def _own(run: Run) -> dict[str, Any]:
    """The options of a run's method or strategy."""
    more = run.setting("method_options")
    own = {"rho": run.setting("rho"), **(more if isinstance(more, Mapping) else {})}
    own |= {name: run.setting(name) for name in OF_STRATEGIES}
    return {name: value for name, value in own.items() if value is not None}


def _keys(table: Table, tuned: Sequence[str]) -> list[tuple[str, str]]:
    """Each run's settings apart from its contender: the configuration, and the seed."""
    paths = [p for p in table.settings() if p.partition(".")[0] not in (*OWN, *SEEDS, *tuned)]
    keys = []
    for run in table.runs:
        columns = {k: v for k, v in run.groups.items() if run.setting(k) is None}  # of a pool's CSV file
        keys.append((repr([*(run.setting(p) for p in paths), columns]), repr([run.setting(name) for name in SEEDS])))
    return keys


def _comparison(
    table: Table, names: tuple[str, str, str], values: Floats, pairs: Sequence[tuple[int, int, str]]
) -> Comparison:
    if not pairs:
        return Comparison(*names, nan, nan, nan, nan, nan, nan, 0, 0, 0, 0, 0)
    ours, theirs = (np.array([pair[side] for pair in pairs], dtype=np.int64) for side in (0, 1))
    d, codes = values[ours] - values[theirs], ranks([pair[2] for pair in pairs])
    difference, (error, freedom) = float(d.mean()), paired_error(d, codes, smallest_step(values))
    low, high, p = student(difference, error, freedom)
    return Comparison(
        *names, difference, low, high, float(values[ours].mean()), float(values[theirs].mean()), p,
        pairs=len(d), configurations=int(codes.max()) + 1,
        wins=int((d < 0).sum()), losses=int((d > 0).sum()), ties=int((d == 0).sum()),
        passes=_mean(table, ours, "passes"), reference_passes=_mean(table, theirs, "passes"),
        seconds=_mean(table, ours, "training_seconds"), reference_seconds=_mean(table, theirs, "training_seconds"),
        warning=_warning(table, names[0], names[1], ours, theirs), error=error, freedom=freedom,
    )  # fmt: skip


def smallest_step(values: Floats) -> float:
    """The smallest step between values: one test row, for errors."""
    steps = np.diff(np.unique(values[np.isfinite(values)]))
    return float(steps[steps > ROUNDING].min(initial=np.inf))


def paired_error(d: Floats, codes: Ints, step: float) -> tuple[float, int]:
    """The standard error of the mean of paired differences over configurations, and its degrees of freedom.

    With one configuration, it is that over seeds. It is at least that of values that are rounded to a step: errors of a
    few hundred test rows are multiples of one row, and differences that are equal by chance would have no error at all.
    """
    n = len(d)
    if n < FEWEST:
        return nan, 0
    if codes.max() == 0:
        codes = np.arange(n)
    of_configuration = np.bincount(codes, d - d.mean())  # sums over pairs, so that larger ones weigh more
    k = len(of_configuration)
    error = sqrt(float((of_configuration**2).sum()) * k / (k - 1)) / n
    return max(error, step / sqrt(6 * n) if isfinite(step) else 0.0), k - 1  # each value has variance step^2 / 12


def student(difference: float, error: float, freedom: int) -> tuple[float, float, float]:
    """The 95 % interval and the two-sided p-value."""
    from scipy.special import stdtr, stdtrit

    if not freedom:
        return nan, nan, nan
    if not error:  # all runs have the same value
        return difference, difference, 1.0
    half = float(stdtrit(freedom, (1 + CONFIDENCE) / 2)) * error
    return difference - half, difference + half, float(2 * stdtr(freedom, -abs(difference) / error))


def _mean(table: Table, rows: Ints, name: str) -> float:
    return float(np.mean([table.runs[i].meta.get(name, nan) for i in rows]))


def _warning(table: Table, name: str, reference: str, ours: Ints, theirs: Ints) -> str:
    """Whether the two are trained to different ends: mean training errors, or losses where errors are not known."""
    errors = [_training(table, rows, "train_error", "test_error", "gap") for rows in (ours, theirs)]
    if all(map(isfinite, errors)):
        if abs(errors[0] - errors[1]) <= SAME_ERROR:
            return ""
        shown = " and ".join(f"{100 * e:.1f} %" for e in errors)
        return f"training errors differ ({name} and {reference}: {shown}): this may compare how far they train"
    losses = [_training(table, rows, "train_loss", "test_loss", "loss_gap") for rows in (ours, theirs)]
    if not all(map(isfinite, losses)) or max(losses) <= SAME_LOSS * max(min(losses), 0.01):
        return ""
    shown = " and ".join(f"{loss:.3g}" for loss in losses)
    return f"training losses differ ({name} and {reference}: {shown}): this may compare how far they train"


def _training(table: Table, rows: Ints, name: str, test: str, gap: str) -> float:
    """A mean over runs of a number of the training rows: as it is stored, or the one on test rows minus the gap."""
    targets = [table.runs[i].targets for i in rows]
    return float(np.mean([t.get(name, t.get(test, nan) - t.get(gap, nan)) for t in targets]))


def concluded(c: Comparison, *, rejected: bool, tests: int, level: float) -> Comparison:
    """The comparison with its verdict and the smallest difference that it could have shown."""
    from scipy.special import nctdtrinc, stdtrit

    verdict: Verdict = "cannot tell"
    if not c.pairs:
        return replace(c, why=f"no run of {c.reference} has the same seed and settings")
    if not c.freedom:
        return replace(c, why=f"{c.pairs} pairs are too few")
    errors = float(nctdtrinc(c.freedom, 1 - POWER, stdtrit(c.freedom, 1 - level / 2)))  # of the noncentral t
    bound, share = RELEVANT * abs(c.reference_mean), f"{100 * RELEVANT:.0f} % of the reference"
    if rejected and (c.high < 0 or c.low > 0):
        verdict = "better" if c.high < 0 else "worse"
        why = f"significant after correction, and the interval is {'below' if c.high < 0 else 'above'} zero"
    elif c.p_corrected <= LEVEL:  # whether other tests of the study reject, and so the correction, is not settled
        why = "p is too close to the level that the correction requires"
    elif max(-c.low, c.high) <= bound:
        verdict, why = "no difference seen", f"{not_shown(c.low, c.high, tests)}, and the interval excludes {share}"
    elif c.low > 0 or c.high < 0:
        why = f"the interval excludes zero, but {not_shown(c.low, c.high, tests)}"
    else:
        why = f"the interval includes zero and {share}: too few {'configurations' if c.configurations > 1 else 'pairs'}"
    return replace(c, verdict=verdict, why=why, smallest_detectable_difference=errors * c.error)
