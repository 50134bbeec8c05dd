"""What a study finds, computed in one place: does a measure predict a target, and which method won?

`findings` returns one frozen object. The terminal, JSON and CSV output, the page and the README quote it; nothing
computes a verdict again. P-values are corrected over all tests of a study:

Holm's procedure (1979) bounds the chance that a study shows any false verdict, whatever the dependence of its tests.
Measures are variants of one idea, targets share their runs and methods share their reference, so the dependence is
strong and unknown, and readers take every single verdict for a finding: the family-wise error is what has to be
bounded. Benjamini and Yekutieli's procedure also allows any dependence, but bounds only the share of false verdicts
among all, and with a dozen true ones in a study that admits false ones.

Permutations that all tests share (the step-down minimum of p, Westfall and Young 1993) would use the dependence. They
gain little here: the 38 tests of a study with five measures and two targets count as 18 instead, which lowers the
smallest detectable tau from 0.48 to 0.45, or as 31 where measures share 64 % of their variance (0.47). And they bound
the chance of a false verdict only where a true relation says nothing about the joint distribution of the other tests,
which targets that share their runs violate.

Tests that could not have a small enough p-value however the targets were ordered (small pools, many ties) never reject
and do not count (Tarone 1990): whether a test counts depends on its design and ties, not on the order that was
observed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..table import Table
from . import comparisons, sentences
from .comparisons import Comparison, concluded, contest
from .kendall import Floats
from .permutation import FIRST, configurations
from .predictions import HYPOTHESES, LEVEL, RELEVANT, Finding, decided, relations, smallest_detectable_tau


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
        What "no sign of it" excludes, and what "no difference seen" excludes as a share of the reference.
    findings : tuple of Finding
        Target by target, measure by measure, hypothesis by hypothesis.
    comparisons : tuple of Comparison
        Target by target, contender by contender.
    reference, reference_note : str
        What contenders are compared with, and a remark if it is not the plain optimizer.
    sentence, method_sentence : str
        Whether sharpness predicts generalisation, and which method won.
    measure_sentences : mapping of str to str
        One sentence per measure.

    Examples
    --------
    >>> runs = [
    ...     steppe.studies.Run(
    ...         f"key {i}", f"run {i}", {"lr": i / 10}, {}, "done", {"test_error": i / 100},
    ...         {"trace": steppe.studies.Measured(2.0 * i)},
    ...     )
    ...     for i in range(6)
    ... ]
    >>> found = steppe.studies.correlate.findings(steppe.studies.Table(runs))
    >>> found.sentence
    'trace predicts test_error (6 runs of 6 configurations).'
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
    reference: str = ""
    reference_note: str = ""
    sentence: str = ""
    method_sentence: str = ""
    measure_sentences: Mapping[str, str] = field(default_factory=dict)

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
    seed: int = 0,
    draws: int = FIRST,
) -> Findings:
    """Test every measure against every target, compare all methods, correct over everything, and decide.

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
    related = list(relations(table, measures, targets, seed))
    contested = contest(table if compared is None else compared, targets, tuned)
    for relation in related:
        relation.draw(draws)
    tested = [(f, relation.test, i) for relation in related for i, f in enumerate(relation.findings)]
    smallest = [test.smallest_p[i] if test is not None and f.pairs else np.inf for f, test, i in tested]
    smallest += [0.0 if c.freedom else np.inf for c in contested.comparisons]
    able = able_to_reject(smallest)

    def corrected(bound: int) -> Floats:
        """Holm's p-values from lower bounds (0), estimates (1) or upper bounds (2) of the p-values."""
        values = [test.p()[bound][i] if test is not None else np.nan for _, test, i in tested]
        values += [c.p for c in contested.comparisons]
        return holm(np.where(able, values, np.nan))

    times = draws
    while True:
        rejected, kept = corrected(2) <= LEVEL, ~(corrected(0) <= LEVEL)
        unsettled = {id(test) for (_, test, _), r, k in zip(tested, rejected, kept, strict=False) if not (r or k)}
        times *= 2
        drawn = [relation.draw(times) for relation in related if id(relation.test) in unsettled]
        if not any(drawn):
            break
    tests, adjusted = int(able.sum()), np.where(able, corrected(1), 1.0)
    level = LEVEL / max(tests, 1)
    rows: list[Finding] = []
    for (f, test, i), p, counts, yes, no in zip(tested, adjusted, able, rejected, kept, strict=False):
        if test is not None and f.pairs:
            shown = smallest_detectable_tau(test, i, f.pairs, level) if counts else np.nan
            f = replace(f, p=float(test.p()[1][i]), p_corrected=float(p), smallest_detectable_tau=shown)
        f = decided(f, rejected=bool(yes), open_=not (yes or no), testable=bool(counts), tests=tests)
        rows.append(replace(f, sentence=sentences.of_finding(f)))
    rows.sort(key=lambda f: (targets.index(f.target), measures.index(f.measure), HYPOTHESES.index(f.hypothesis)))
    rivals: list[Comparison] = []
    for c, p, yes in zip(contested.comparisons, adjusted[len(tested) :], rejected[len(tested) :], strict=True):
        c = concluded(replace(c, p_corrected=float(p)), rejected=bool(yes), tests=tests, level=level)
        rivals.append(replace(c, sentence=sentences.of_comparison(c)))
    pool = len(table), len(np.unique(configurations(table)))
    return Findings(
        *pool,
        tests,
        findings=tuple(rows),
        comparisons=tuple(rivals),
        reference=contested.reference,
        reference_note=contested.note,
        sentence=sentences.of_study(rows, *pool),
        method_sentence=sentences.of_methods(rivals, contested.reference, contested.note),
        measure_sentences={f.measure: sentences.of_measure(f.measure, rows) for f in rows},
    )


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
