"""Which value of a setting is better? Every contender against a reference, paired by seed and every other setting.

By default methods are compared. A contender is a method with its options: each radius of SAM is one. With `compare` any
other setting is, and its values are the contenders. The difference of a target is averaged over pairs. Its error has a
part for every sample that the pairs share (`spread`):

- configurations: the settings that two contenders have in common. Seeds say how a difference repeats in one
  configuration, not in others. With one configuration only, its seeds are the sample, and the verdict is on it.
- seeds, where configurations share them: ten learning rates with the same two seeds have two.
- every other setting that configurations share, from three values on.
- test rows, where the store has them: neither seeds nor configurations average over rows.

Settings that a study tunes for each method belong to the contender too: the tuned methods are compared, each at its own
learning rate. Where no pair has everything else in common, the runs of the two are compared unpaired, and the result
says so. There, and where the setting decides on the training data, runs of one seed share nothing: in one configuration
their variance is that of all configurations of the table together, at least that of the two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan, sqrt
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..._util.names import unknown
from ..table import Table, word
from .design import METHOD, OWN, Design, contenders, design_of, first_seen, method_of, places_in, seed_of
from .differences import (
    Cells,
    cells_of,
    detectable,
    levels_needed,
    paired_spread,
    row_part,
    share_interval,
    smallest_step,
    unpaired_spread,
)
from .jackknife import rows_of
from .kendall import Floats, Ints
from .spread import CONFIDENCE, Spread

Verdict = Literal["better", "worse", "no relevant difference", "cannot tell"]

PLAIN = ("none", "deep")  # the method that leaves the optimizer as it is, and the ensemble of such runs
# Settings that decide on training rows, their labels or their order: runs of one seed share nothing across their values
OF_DATA = ("data", "fraction", "per_class", "validation", "label_noise", "labels", "batch_size", "data_seed")
# A difference of less than a tenth of the reference's error is not what methods are chosen for: Foret et al. 2021
# (Table 1) report that SAM removes 10 to 30 % of the errors on CIFAR.
RELEVANT = 0.1
# Runs whose mean training errors differ by more than a point are not trained to the same end: A modern look, section
# 5.1, compares runs with at most 1 % training error.
SAME_ERROR = 0.01
SAME_LOSS = 2.0  # factor between mean training losses, where errors are not known


@dataclass(frozen=True)
class Comparison:
    """One contender against the reference in one target.

    Attributes
    ----------
    contender, reference, target : str
        Names; a contender with its options, such as "sam rho=0.1".
    verdict : {"better", "worse", "no relevant difference", "cannot tell"}
        The conclusion.
    why, sentence : str
        The reason in a few words, and the comparison in a sentence.
    difference, low, high : float
        Mean of contender minus reference over pairs, with its 95 % interval. Negative is better.
    error : float
        The standard error of the difference.
    rows : float
        The part of it that the test rows add; nan if the study stores no rows of this target.
    mean, reference_mean : float
        Means of the target over the pairs.
    bound : float
        The difference that counts as relevant: a tenth of the reference's mean.
    p, p_corrected : float
        Two-sided p-value of the difference, and the same corrected for all tests of the study.
    p_within, p_within_corrected : float
        The p-value of a difference of `bound` or more, in either direction, and the same corrected.
    smallest_detectable_difference : float
        What these pairs show with 80 % power at the corrected level.
    needed : int
        How many levels of `sample` would show a difference of `bound`; 0 if no number would, or it is not known.
    levels, sample : int, str
        The sample that the error mostly comes from: its levels and name, such as 2 of "seed".
    runs, pairs, configurations : int
        Runs of the two, pairs of them, and configurations that the contender's are in.
    wins, losses, ties : int
        Pairs in which the contender's target is lower, higher, or equal.
    improvement, improvement_low, improvement_high : float
        The chance that a run of the contender is better than its partner (a tie counts half), with its 95 % interval.
    unpaired : str
        Why runs are not paired; empty if they are.
    selected : bool
        Whether each of the two has settings that were selected for it: the verdict is on these settings.
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
    bound: float = nan
    runs: int = 0
    passes: float = nan
    reference_passes: float = nan
    seconds: float = nan
    reference_seconds: float = nan
    warning: str = ""
    error: float = nan
    rows: float = nan
    improvement: float = nan
    improvement_low: float = nan
    improvement_high: float = nan
    unpaired: str = ""
    selected: bool = False
    levels: int = 0
    sample: str = ""
    p_corrected: float = nan
    p_within: float = nan
    p_within_corrected: float = nan
    smallest_detectable_difference: float = nan
    needed: int = 0
    verdict: Verdict = "cannot tell"
    why: str = ""
    sentence: str = ""


@dataclass(frozen=True)
class Contest:
    """Comparisons of all contenders with one reference, their errors, and a remark on the choice of the reference."""

    compare: str
    reference: str
    note: str
    comparisons: list[Comparison]
    spreads: list[Spread | None] = field(default_factory=list)


@dataclass(frozen=True)
class Paired:
    """The runs of a contender and of the reference that are compared, as indices, with what the pairs share.

    `contexts` has the codes of the other settings by name, `configuration` and `seed` those of pairs, and `alike` says
    whether partners have the same seed. Unpaired runs have no partner: `unpaired` says why.
    """

    contender: str
    ours: Ints
    theirs: Ints
    configuration: Ints
    seed: Ints
    contexts: Mapping[str, Ints]
    alike: bool = True
    unpaired: str = ""

    @property
    def configurations(self) -> int:
        """The number of configurations that pairs are in."""
        return len(np.unique(self.configuration))


def values_of(table: Table, compare: str) -> list[str]:
    """Each run's contender: its method with options, or its value of another setting; empty where it has none."""
    if compare == METHOD:
        return contenders(table)
    return ["" if value is None else f"{compare}={word(value)}" for value in table.setting(compare)]


def reference_of(table: Table, names: Sequence[str], compare: str, reference: Any = None) -> tuple[str, str]:
    """What contenders are compared with, and a remark if the study does not have what it should be.

    For methods this is the plain optimizer; if there is none SAM, or the most frequent one. For other settings it is
    the first value of the study.
    """
    if reference is not None:
        wanted = str(reference) if compare == METHOD else f"{compare}={word(reference)}"
        if wanted not in names:
            raise ValueError(f"reference: {unknown('contender', wanted, set(filter(None, names)))}")
        return wanted, ""
    if compare != METHOD:
        return next(filter(None, names)), ""
    plain = [name for name, run in zip(names, table.runs, strict=True) if method_of(run) in PLAIN]
    sam = [name for name, run in zip(names, table.runs, strict=True) if method_of(run) == "sam"]
    chosen = Counter(plain or sam or names).most_common(1)[0][0]
    return chosen, "" if plain else f"the study has no plain optimizer: methods are compared with {chosen}"


def pairings(
    table: Table, names: Sequence[str], design: Design, compare: str, reference: str, tuned: Sequence[str] = ()
) -> list[Paired]:
    """The pairs of every contender with the reference, from settings alone.

    Runs are paired by seed and by every setting that is neither compared nor tuned, without a common seed by settings
    alone. Where nothing can be paired, all runs of the two are compared, and the settings that keep them apart named.
    """
    own = OWN if compare == METHOD else (compare,)
    codes = {k: code for k, code in design.columns.items() if k.partition(".")[0] not in tuned and k not in own}
    if compare == METHOD:
        codes = {k: code for k, code in codes.items() if k.partition(".")[0] not in OWN}
    elif compare.partition(".")[0] in OWN:  # an option is part of the names of contenders
        codes[METHOD] = first_seen(contenders(table, compare.rpartition(".")[2]))
    configuration = first_seen(zip(*codes.values(), strict=True) if codes else [()] * len(table))
    seed = first_seen(map(seed_of, table.runs))
    places = places_in(first_seen(zip(names, configuration, strict=True)))
    rows: dict[str, dict[tuple[int, int], int | None]] = {name: {} for name in dict.fromkeys(names)}
    for i, (name, *both) in enumerate(zip(names, configuration.tolist(), seed.tolist(), strict=True)):
        key = both[0], both[1]
        rows[name][key] = None if key in rows[name] else i  # runs that nothing tells apart have no partner
    found = []
    for name in (n for n in rows if n not in (reference, "")):
        partners = ((a, rows[reference].get(key)) for key, a in rows[name].items())
        both = [(a, b) for a, b in partners if a is not None and b is not None]
        alike = bool(both)
        if not both:  # the same settings with other seeds: paired by their place
            placed = {(configuration[i], places[i]): i for i, n in enumerate(names) if n == reference}
            mine = ((i, placed.get((configuration[i], places[i]))) for i, n in enumerate(names) if n == name)
            both = [(a, b) for a, b in mine if b is not None]
        pairs = np.array(both, dtype=np.int64).reshape(-1, 2)
        ours, theirs = pairs[:, 0], pairs[:, 1]
        unpaired = ""
        if not both:
            ours, theirs = (np.array([i for i, n in enumerate(names) if n == one]) for one in (name, reference))
            apart = [k for k, code in codes.items() if not set(code[ours]) & set(code[theirs])]
            unpaired = f"no other settings and seed in common{': ' + ', '.join(apart) + ' differ' if apart else ''}"
        contexts = {k: code[ours] for k, code in codes.items()}
        found.append(Paired(name, ours, theirs, configuration[ours], seed[ours], contexts, alike, unpaired))
    return found


def contest(
    table: Table, targets: Sequence[str], tuned: Sequence[str] = (), compare: str = METHOD, reference: Any = None,
    design: Design | None = None,
) -> Contest:  # fmt: skip
    """Compare every contender with the reference in every target."""
    names = values_of(table, compare)
    if len(set(filter(None, names))) < 2:
        what = "method" if compare == METHOD else f"value of {compare}"
        return Contest(compare, "", f"the study has one {what}: there is nothing to compare" if len(table) else "", [])
    design = design_of(table) if design is None else design
    chosen, note = reference_of(table, names, compare, reference)
    paired = pairings(table, names, design, compare, chosen, tuned)
    shares = compare.partition(".")[0] not in OF_DATA
    comparisons, spreads = [], []
    for target in targets:
        values, wrong = table.target(target).values, rows_of(table, target)
        cells = cells_of(design.configuration, values)
        for pairing in paired:
            one, spread = _comparison(table, pairing, (chosen, target), values, wrong, cells, shares)
            comparisons.append(replace(one, selected=bool(tuned)))
            spreads.append(spread)
    return Contest(compare, chosen, note, comparisons, spreads)


def _comparison(
    table: Table,
    pairing: Paired,
    against: tuple[str, str],
    values: Floats,
    wrong: NDArray[np.bool_] | None,
    cells: Cells,
    shares: bool,
) -> tuple[Comparison, Spread | None]:
    names = (pairing.contender, *against)
    if pairing.unpaired:
        ours, theirs = (rows[np.isfinite(values[rows])] for rows in (pairing.ours, pairing.theirs))
    else:
        known = np.isfinite(values[pairing.ours]) & np.isfinite(values[pairing.theirs])
        ours, theirs = pairing.ours[known], pairing.theirs[known]
    if not len(ours) or not len(theirs):
        return Comparison(*names, nan, nan, nan, nan, nan, nan, 0, 0, 0, 0, 0), None
    step = smallest_step(values)
    if pairing.unpaired:
        difference, pairs = float(values[ours].mean() - values[theirs].mean()), len(ours) * len(theirs)
        spread = unpaired_spread(values[ours], values[theirs], cells.of[ours], cells.of[theirs], cells)
        better, shares_of_wins = np.sign(values[theirs] - values[ours][:, None]), None
        configurations = len(np.unique(cells.of[ours]))
    else:
        d = values[ours] - values[theirs]
        difference, pairs = float(d.mean()), len(d)
        samples = pairing.configuration[known], pairing.seed[known], {k: c[known] for k, c in pairing.contexts.items()}
        configurations = len(np.unique(samples[0]))
        spread = paired_spread(d, *samples, step)
        if configurations == 1 and not (shares and pairing.alike):
            spread = unpaired_spread(values[ours], values[theirs], cells.of[ours], cells.of[theirs], cells)
        better = np.sign(-d)
        shares_of_wins = paired_spread(better / 2, *samples)
    rows = nan
    if wrong is not None and spread is not None:
        part = row_part(wrong[ours], wrong[theirs], paired=not pairing.unpaired)
        spread, rows = replace(spread, more=[*spread.more, part]), sqrt(part.variance)
    half = spread.half(1 - CONFIDENCE) if spread is not None else nan
    chance = float(better.mean() + 1) / 2
    low, high = share_interval(chance, shares_of_wins, configurations if configurations > 1 else pairs, pairs)
    wins, losses, ties = (int((better == side).sum()) for side in (1, -1, 0))
    return Comparison(
        *names, difference, difference - half, difference + half, float(values[ours].mean()),
        float(values[theirs].mean()), spread.p(difference) if spread is not None else nan,
        bound=RELEVANT * abs(float(values[theirs].mean())), runs=len(ours) + len(theirs),
        pairs=pairs, configurations=configurations, wins=wins, losses=losses, ties=ties,
        passes=_mean(table, ours, "passes"), reference_passes=_mean(table, theirs, "passes"),
        seconds=_mean(table, ours, "training_seconds"), reference_seconds=_mean(table, theirs, "training_seconds"),
        warning=_warning(table, names[0], names[1], ours, theirs), unpaired=pairing.unpaired,
        error=sqrt(spread.variance) if spread is not None else nan, rows=rows,
        improvement=chance, improvement_low=low, improvement_high=high,
        levels=spread.dominant.levels if spread is not None else 0,
        sample=spread.dominant.name if spread is not None else "",
    ), spread  # fmt: skip


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


def within(c: Comparison, spread: Spread | None) -> float:
    """The p-value of a relevant difference, in either direction: the nearer side decides."""
    away = c.bound - abs(c.difference)
    return spread.p(away) / 2 if spread is not None and away > 0 else 1.0


def concluded(
    c: Comparison, spread: Spread | None, *, rejected: bool, equal: bool, tests: int, level: float
) -> Comparison:
    """The comparison with its verdict, the smallest difference that it could have shown, and what more it takes."""
    verdict: Verdict = "cannot tell"
    if not c.pairs:
        return replace(c, why="one of the two has no run with this target")
    if spread is None:
        return replace(c, why=f"{c.runs} runs are too few")
    shown, needed = detectable(spread, level), 0
    if rejected and (c.high < 0 or c.low > 0):
        verdict = "better" if c.high < 0 else "worse"
        why = f"significant after correction, and the interval is {'below' if c.high < 0 else 'above'} zero"
    elif equal and c.low <= 0 <= c.high:
        verdict, why = "no relevant difference", f"larger ones are excluded after correction for {tests} tests"
    else:
        needed = levels_needed(spread, level, c.bound)
        says = "includes" if c.low <= 0 <= c.high else "excludes"
        why = f"the interval {says} zero, but p is not significant after correction for {tests} tests"
        if says == "includes":
            why = "the interval includes zero, and relevant differences are not excluded after correction"
    return replace(c, verdict=verdict, why=why, smallest_detectable_difference=shown, needed=needed)
