"""What a study finds, computed in one place: does a measure predict a target, and which method won?

`findings` returns one frozen object. The terminal, JSON and CSV output, the page and the README quote it; nothing
computes a verdict again.

Errors follow from the design (`design`, `spread`, `jackknife`, `permutation`). Every relation and every difference is
tested twice: that there is none, and that it is as large as matters (0.5 of the attainable tau, 10 % of the reference).
The first gives "predicts", "better" and "worse", the second "weaker than 0.5" and "no relevant difference", and neither
"cannot tell". No verdict stands beside an interval that contradicts it.

P-values are corrected over all these tests. Holm's procedure (1979) bounds the chance that a study shows any false
verdict, whatever the dependence of its tests. Measures are variants of one idea, targets share their runs and methods
their reference, so the dependence is strong and unknown, and readers take every single verdict for a finding.
Benjamini and Yekutieli's procedure bounds only the share of false verdicts among all, and Westfall and Young's, over
permutations that all tests share, holds only where a true relation says nothing about the other tests. Tests that could
not have a small enough p-value however the targets were ordered (small pools, many ties) never reject and do not count
(Tarone 1990): that depends on design and ties, not on the order that was observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..table import Table
from . import comparisons, sentences
from .comparisons import Comparison, concluded, contest, within
from .design import METHOD, design_of
from .kendall import Floats
from .permutation import BATCH, FIRST
from .predictions import HYPOTHESES, LEVEL, RELEVANT, Finding, Verdict
from .relations import Relations, relations, smallest_detectable_tau


@dataclass(frozen=True)
class Findings:
    """The verdicts of a study.

    Attributes
    ----------
    runs, configurations : int
        Runs that count, and their configurations: runs that differ in the seed alone are one.
    tests : int
        The number of tests that p-values are corrected for.
    level : float
        The chance that a study without any relation shows any verdict.
    relevant_tau, relevant_difference : float
        What "weaker than 0.5" excludes, as a share of the attainable tau, and what "no relevant difference" excludes,
        as a share of the reference.
    findings : tuple of Finding
        Target by target, measure by measure, hypothesis by hypothesis.
    comparisons : tuple of Comparison
        Target by target, contender by contender.
    compare, reference, reference_note : str
        The setting that is compared, what contenders are compared with, and a remark if it is not the plain optimizer.
    sentence, method_sentence : str
        Whether sharpness predicts generalisation, and which method won.
    measure_sentences : mapping of str to str
        One sentence per measure.
    row_sentence : str
        Which intervals include the choice of test samples.

    Examples
    --------
    >>> runs = [
    ...     steppe.studies.Run(
    ...         f"key {i}", f"run {i}", {"lr": i / 10}, {}, "done", {"test_error": i / 100},
    ...         {"trace": steppe.studies.Measured(2.0 * i)},
    ...     )
    ...     for i in range(7)
    ... ]
    >>> found = steppe.studies.correlate.findings(steppe.studies.Table(runs))
    >>> found.sentence
    'trace predicts test_error (7 runs of 7 configurations).'
    >>> found.of("trace", "test_error").verdict
    'predicts'

    """

    runs: int
    configurations: int
    tests: int = 0
    level: float = LEVEL
    relevant_tau: float = RELEVANT
    relevant_difference: float = comparisons.RELEVANT
    findings: tuple[Finding, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    compare: str = METHOD
    reference: str = ""
    reference_note: str = ""
    sentence: str = ""
    method_sentence: str = ""
    measure_sentences: Mapping[str, str] = field(default_factory=dict)
    row_sentence: str = ""

    def of(self, measure: str, target: str, hypothesis: str = "strong") -> Finding:
        """The finding on a measure and a target."""
        return next(f for f in self.findings if (f.measure, f.target, f.hypothesis) == (measure, target, hypothesis))

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def findings(
    table: Table,
    measures: Sequence[str] | None = None,
    targets: Sequence[str] | None = None,
    *,
    compared: Table | None = None,
    tuned: Sequence[str] = (),
    compare: str = METHOD,
    reference: Any = None,
    seed: int = 0,
    draws: int = FIRST,
) -> Findings:
    """Test every measure against every target, compare all contenders, correct over everything, and decide.

    Parameters
    ----------
    table : Table
        The runs that count.
    measures, targets : sequence of str, optional
        Names; all that the table has by default.
    compared : Table, optional
        The runs of which methods are compared, if they are others.
    tuned : sequence of str
        Settings that were selected for each method, such as "lr".
    compare : str
        The setting whose values are compared, methods with their options by default.
    reference : value of the setting, optional
        What the others are compared with; the plain optimizer, or the first value, by default.
    seed : int
        Seed of the permutations. Verdicts do not depend on it: where a p-value is closer to the level that decides than
        its sampling error, more permutations are drawn, and the verdict is "cannot tell" if that does not settle it.
    draws : int
        Permutations that every test starts with.

    Returns
    -------
    Findings

    """
    measures = list(table.measures if measures is None else measures)
    targets = list(table.targets if targets is None else targets)
    design = design_of(table)
    related = list(relations(table, measures, [t for t in targets if t in table.targets], seed, design))
    compared = table if compared is None else compared
    contested = contest(compared, targets, tuned, compare, reference, design if compared is table else None)
    for relation in related:
        relation.draw(draws)
    tested = [(relation, i) for relation in related for i in range(len(relation.findings))]
    n = len(tested)
    # first that there is nothing, then that it is as large as matters; of relations, then of comparisons
    pairs = list(zip(contested.comparisons, contested.spreads, strict=True))
    weaker = [r.weaker(i) for r, i in tested]
    smallest = [r.test.smallest_p[i] if r.test is not None and r.spreads[i] is not None else np.inf for r, i in tested]
    smallest += [best if r.spreads[i] is not None else np.inf for (r, i), (_, best) in zip(tested, weaker, strict=True)]
    smallest += [0.0 if spread is not None else np.inf for _, spread in pairs] * 2
    able = able_to_reject(smallest)

    def corrected(bound: int) -> Floats:
        """Holm's p-values from lower bounds (0), estimates (1) or upper bounds (2) of the p-values."""
        values = [p for relation in related for p in relation.p()[bound]] + [p for p, _ in weaker]
        values += [c.p for c, _ in pairs] + [within(c, spread) for c, spread in pairs]
        return holm(np.where(able, values, np.nan))

    times = max(draws, BATCH)  # what a test draws at least
    while True:
        rejected, kept = corrected(2) <= LEVEL, ~(corrected(0) <= LEVEL)
        unsettled = {id(r) for (r, _), yes, no in zip(tested, rejected, kept, strict=False) if not (yes or no)}
        times *= 2
        drawn = [relation.draw(times) for relation in related if id(relation) in unsettled]
        if not any(drawn):
            break
    tests, adjusted = int(able.sum()), np.where(able, corrected(1), 1.0)
    level = LEVEL / max(tests, 1)
    seconds = float(np.mean([run.meta.get("training_seconds", np.nan) for run in table.runs] or [np.nan]))
    rows: list[Finding] = []
    for k, (relation, i) in enumerate(tested):
        settled = bool(rejected[k] or kept[k])
        how = {
            "rejected": bool(rejected[k]),
            "weaker": bool(rejected[n + k]),
            "settled": settled,
            "able": bool(able[k]),
        }
        f = replace(_finished(relation, i, level, able=bool(able[k])), p_corrected=float(adjusted[k]))
        f = replace(f, p_weaker=weaker[k][0], p_weaker_corrected=float(adjusted[n + k]))
        f = decided(replace(f, seconds=seconds), **how, tests=tests)
        rows.append(replace(f, sentence=sentences.of_finding(f)))
    rows.sort(key=lambda f: (targets.index(f.target), measures.index(f.measure), HYPOTHESES.index(f.hypothesis)))
    rivals: list[Comparison] = []
    for k, (c, spread) in enumerate(pairs):
        at, same = 2 * n + k, 2 * n + len(pairs) + k
        c = replace(
            c, p_corrected=float(adjusted[at]), p_within=within(c, spread), p_within_corrected=float(adjusted[same])
        )
        how = {"rejected": bool(rejected[at]), "equal": bool(rejected[same])}
        c = concluded(c, spread, **how, tests=tests, level=level)
        rivals.append(replace(c, sentence=sentences.of_comparison(c)))
    pool = len(table), len(np.unique(design.configuration))
    return Findings(
        *pool,
        tests,
        findings=tuple(rows),
        comparisons=tuple(rivals),
        compare=contested.compare,
        reference=contested.reference,
        reference_note=contested.note,
        sentence=sentences.of_study(rows, *pool),
        method_sentence=sentences.of_methods(rivals, contested.reference, contested.note),
        measure_sentences={f.measure: sentences.of_measure(f.measure, rows) for f in rows},
        row_sentence=sentences.of_rows([*rows, *rivals]),
    )


def _finished(relation: Relations, i: int, level: float, *, able: bool) -> Finding:
    """A finding with what follows from the permutations: its interval, p-value and power."""
    f, test = relation.findings[i], relation.test
    if test is None or not f.pairs:
        return f
    low, high = relation.interval(i)
    shown = smallest_detectable_tau(relation, i, level) if able else np.nan
    needed = round(f.levels * (shown / f.bound) ** 2) if isfinite(shown) and f.bound > 0 else 0
    p = float(relation.p()[1][i])
    return replace(f, low=low, high=high, p=p, smallest_detectable_tau=shown, needed=needed)


def decided(f: Finding, *, rejected: bool, weaker: bool, settled: bool, able: bool, tests: int) -> Finding:
    """The finding with its verdict: given only where the corrected p-value and the interval agree."""
    verdict: Verdict = "cannot tell"
    zero = f.low <= 0 <= f.high
    if not f.pairs:
        why = "too few runs to compare"
    elif not isfinite(f.low):
        why = "no interval: there are too few configurations"
    elif rejected and f.low > 0:
        verdict, why = "predicts", "significant after correction, and the interval is above zero"
    elif rejected and f.high < 0:
        verdict, why = "predicts the opposite", "significant after correction, and the interval is below zero"
    elif weaker and zero:
        verdict, why = "weaker than 0.5", f"stronger relations are excluded after correction for {tests} tests"
    elif not able:
        why = "too few configurations or levels, or too many ties: even a perfect order would not be significant"
    elif not settled:
        why = f"p is too close to the level that {tests} tests require"
    elif not zero:
        why = f"the interval excludes zero, but p is not significant after correction for {tests} tests"
    else:
        why = "the interval includes zero, and stronger relations are not excluded after correction"
    return replace(f, verdict=verdict, why=why)


def holm(p: ArrayLike) -> Floats:
    """Holm 1979: corrected p-values; missing ones (nan) stay missing and are not counted."""
    values = np.asarray(p, dtype=np.float64)
    present = np.flatnonzero(~np.isnan(values))
    order = present[np.argsort(values[present], kind="stable")]
    n = len(order)
    corrected = np.full(values.shape, np.nan)
    corrected[order] = np.minimum(1, np.maximum.accumulate((n - np.arange(n)) * values[order]))
    return corrected


def able_to_reject(smallest_p: ArrayLike, level: float = LEVEL) -> NDArray[np.bool_]:
    """Which tests count: those that could reject if as many tests as these count (Tarone 1990)."""
    smallest = np.asarray(smallest_p, dtype=np.float64)
    for k in range(1, len(smallest) + 1):
        able = smallest <= level / k
        if able.sum() <= k:
            return able
    return np.zeros(len(smallest), dtype=bool)
