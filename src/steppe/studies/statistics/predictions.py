"""Does a measure predict a target? Three hypotheses, each a mean of signs over pairs of runs, with a verdict.

- strong: over all pairs of runs (Andriushchenko et al. 2023, section 3.1: sharpness is highly correlated with
  generalisation). tau is their Eq. 4.
- within groups: over pairs of runs in the same group, for studies with groups (their Figure 5).
- weak: over pairs of one of the flattest runs and one other run (section 3.1: the flattest models generalise well). tau
  is then the share of such pairs in which the flat run has the lower target minus the share in which it has the higher
  one (Cliff 1993).

Positive values mean that flatter runs have a lower target. Intervals leave out one configuration at a time (the
jackknife, with Student's t), p-values permute configurations (`permutation`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import asin, ceil, isfinite, nan, pi, sin, sqrt
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..table import Table
from .kendall import Floats, Ints, Signs, ranks, same_group, signs
from .permutation import (
    NORMAL,
    Clusters,
    Permutations,
    PermutationTest,
    Scores,
    configurations,
    jackknife_error,
    share_scores,
    tau_scores,
)

Hypothesis = Literal["strong", "within groups", "weak"]
Verdict = Literal["predicts", "predicts the opposite", "no sign of it", "cannot tell"]
HYPOTHESES: tuple[Hypothesis, ...] = get_args(Hypothesis)

# At 0.5 three of four pairs are in order. The paper names no number for "highly correlated"; it calls 0.30 low.
RELEVANT = 0.5
CONFIDENCE = 0.95
LEVEL = 0.05  # the chance that a study without any relation shows any verdict
POWER = 0.8  # of the smallest detectable tau (Cohen 1988)
FLATTEST = 0.1  # the share of runs that counts as the flattest
FEWEST = 3  # runs on either side of the weak hypothesis: the mean of fewer does not generalise
FEWEST_CONFIGURATIONS = 5  # of an interval: jackknifes of fewer configurations have too few values
MAX_SIGNS = 2e7  # numbers in the sign matrices of measures that are permuted together


@dataclass(frozen=True)
class GroupTau:
    """tau in one group of runs, with its interval; descriptive, without a verdict."""

    group: str
    n: int
    configurations: int
    tau: float
    low: float
    high: float


@dataclass(frozen=True)
class Finding:
    """One measure against one target by one hypothesis.

    Attributes
    ----------
    measure, target : str
        Names.
    hypothesis : {"strong", "within groups", "weak"}
        Which pairs of runs are compared.
    verdict : {"predicts", "predicts the opposite", "no sign of it", "cannot tell"}
        The conclusion.
    why, sentence : str
        The reason in a few words, and the finding in a sentence.
    tau, low, high : float
        The mean sign over these pairs and its 95 % interval; nan without one.
    p, p_corrected : float
        The permutation p-value, and the same corrected for all tests of the study.
    smallest_detectable_tau : float
        The tau that this pool shows with 80 % power at the corrected level; nan if it shows none.
    n, missing, configurations, pairs : int
        Runs with both values, runs without, configurations, and pairs that are compared.
    flattest : int
        Number of the flattest runs, for the weak hypothesis.
    mean_flattest, mean_rest : float
        Means of the target over them and over the others.
    by_group : tuple of GroupTau
        Each group by itself, for pairs within groups.

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
    >>> finding = found.of("trace", "test_error")
    >>> finding.tau, finding.pairs, round(finding.p, 5), finding.verdict  # p is 2 / 6!
    (1.0, 15, 0.00278, 'predicts')

    """

    measure: str
    target: str
    hypothesis: Hypothesis
    tau: float
    low: float
    high: float
    n: int
    missing: int
    configurations: int
    pairs: int
    flattest: int = 0
    mean_flattest: float = nan
    mean_rest: float = nan
    by_group: tuple[GroupTau, ...] = ()
    p: float = nan
    p_corrected: float = nan
    smallest_detectable_tau: float = nan
    verdict: Verdict = "cannot tell"
    why: str = ""
    sentence: str = ""


@dataclass
class Relations:
    """The findings of some measures against one target by one hypothesis, and the test of their scores."""

    findings: list[Finding]
    test: PermutationTest | None = field(repr=False)

    def draw(self, times: int) -> bool:
        """Draw permutations up to a number; returns whether any were drawn."""
        return self.test is not None and self.test.draw(times)


def relations(table: Table, measures: Sequence[str], targets: Sequence[str], seed: int) -> Iterator[Relations]:
    """All hypotheses on all measures and targets, measures with the same runs together."""
    codes, labels = configurations(table), table.labels()
    hypotheses = [h for h in HYPOTHESES if h != "within groups" or len(np.unique(labels)) > 1]
    for target in targets:
        y = table.target(target).values
        by_rows: dict[bytes, list[str]] = {}
        for measure in measures:
            present = np.isfinite(table.measure(measure).values) & np.isfinite(y)
            by_rows.setdefault(present.tobytes(), []).append(measure)
        for key, names in by_rows.items():
            rows = np.flatnonzero(np.frombuffer(key, dtype=bool))
            size = max(1, int(MAX_SIGNS / max(len(rows), 1) ** 2))
            for part in (names[i : i + size] for i in range(0, len(names), size)):
                x = np.stack([table.measure(name).values[rows] for name in part])
                pool = _Pool(part, target, x, y[rows], codes[rows], labels[rows], len(y), seed)
                yield from (pool.relations(hypothesis) for hypothesis in hypotheses)


@dataclass(frozen=True)
class _Pool:
    """Measures (one line each) and a target over the same runs, of a table with `total` runs."""

    measures: Sequence[str]
    target: str
    x: Floats
    y: Floats
    configuration: Ints
    labels: NDArray[np.str_]
    total: int
    seed: int

    def relations(self, hypothesis: Hypothesis) -> Relations:
        return self._weak() if hypothesis == "weak" else self._taus(hypothesis)

    def _finding(self, i: int, hypothesis: Hypothesis, tau: float, without: Floats, pairs: int, strata: int) -> Finding:
        n, k = len(self.y), len(np.unique(self.configuration))
        row = (self.measures[i], self.target, hypothesis, tau, *interval(tau, without, strata))
        return Finding(*row, n, self.total - n, k, pairs)

    def _test(self, observed: Sequence[float], scores: Scores, clusters: Clusters, normal: bool) -> PermutationTest:
        permutations = Permutations(clusters.blocks(), len(self.y), self.seed)
        return PermutationTest(np.array(observed), scores, permutations, normal and clusters.count >= NORMAL)

    def _taus(self, hypothesis: Hypothesis) -> Relations:
        """Tau over all pairs, or over pairs within groups."""
        n, within = len(self.y), hypothesis == "within groups"
        clusters = Clusters(self.configuration, ranks(self.labels) if within else np.zeros(n, dtype=np.int64))
        compared = same_group(clusters.group, n).astype(np.int8)
        sign_y = signs(self.y) * compared
        findings, scores, sign_x = [], [], [signs(x) for x in self.x]
        for i, sign in enumerate(sign_x):
            score, pairs, without = _score_and_without(sign * sign_y, compared, clusters)
            row = self._finding(i, hypothesis, score / pairs if pairs else nan, without, pairs, clusters.strata)
            findings.append(replace(row, by_group=self._by_group(sign * sign_y)) if within else row)
            scores.append(score)
        if not compared.any():
            return Relations(findings, None)
        matrices = np.stack([(sign * compared).astype(np.float32) for sign in sign_x])
        return Relations(findings, self._test(scores, tau_scores(matrices, self.y), clusters, normal=True))

    def _by_group(self, agree: Signs) -> tuple[GroupTau, ...]:
        rows = []
        for label in np.unique(self.labels):
            inside = self.labels == label
            n, configuration = int(inside.sum()), self.configuration[inside]
            part = Clusters(configuration, np.zeros(n, dtype=np.int64))
            compared = same_group(part.group, n).astype(np.int8)
            score, pairs, without = _score_and_without(agree[np.ix_(inside, inside)], compared, part)
            tau = score / pairs if pairs else nan
            rows.append(GroupTau(str(label), n, len(np.unique(configuration)), tau, *interval(tau, without)))
        return tuple(rows)

    def _weak(self) -> Relations:
        """The flattest runs against the rest."""
        order = -signs(self.y).astype(np.float64)  # [i, j]: whether j has a higher target than i
        n = len(self.y)
        clusters = Clusters(self.configuration, np.zeros(n, dtype=np.int64))
        left_out = clusters.left_out()
        of_cluster = np.stack([order[:, ~kept].sum(1) for kept in left_out]) if n else np.zeros((0, 0))
        inside = np.stack([flattest(x) for x in self.x])
        total, findings, observed = order.sum(1), [], []
        for i, flat in enumerate(inside):
            few = int(flat.sum())
            if min(few, n - few) < FEWEST:
                findings.append(self._finding(i, "weak", nan, np.array([]), 0, 1))
                observed.append(0.0)
                continue
            without = []
            for cluster, kept in enumerate(left_out):
                others = flattest(self.x[i][kept])
                size = int(others.sum()) * int((~others).sum())
                score = float((total - of_cluster[cluster])[kept][others].sum())
                without.append(score / size if size else nan)
            score = float(total[flat].sum())  # pairs of two flat runs cancel
            row = self._finding(i, "weak", score / (few * (n - few)), np.array(without), few * (n - few), 1)
            inner, outer = float(self.y[flat].mean()), float(self.y[~flat].mean())
            findings.append(replace(row, flattest=few, mean_flattest=inner, mean_rest=outer))
            observed.append(score)
        if not any(f.pairs for f in findings):
            return Relations(findings, None)
        return Relations(findings, self._test(observed, share_scores(inside, total), clusters, normal=False))


def flattest(x: Floats) -> NDArray[np.bool_]:
    """The flattest tenth of the runs, at least three; runs that are tied at the border are all inside."""
    few = min(max(ceil(FLATTEST * len(x)), FEWEST), len(x))
    inside: NDArray[np.bool_] = x <= np.partition(x, few - 1)[few - 1] if few else np.zeros(0, dtype=bool)
    return inside


def interval(tau: float, without: Floats, strata: int = 1) -> tuple[float, float]:
    """The 95 % interval from the values without one configuration each; nan if there are too few."""
    k = len(without)
    if k < max(FEWEST_CONFIGURATIONS, strata + 1) or not np.isfinite(without).all():
        return nan, nan
    from scipy.special import stdtrit

    half = float(stdtrit(k - strata, (1 + CONFIDENCE) / 2)) * jackknife_error(without)
    return max(tau - half, -1.0), min(tau + half, 1.0)


def _score_and_without(agree: Signs, compared: Signs, clusters: Clusters) -> tuple[int, int, Floats]:
    """The score, the number of pairs, and tau without each configuration, from matrices over all pairs."""
    member = (~clusters.left_out()).astype(np.float32)
    (score, without_score), (pairs, without_pairs) = (_sums(m.astype(np.float32), member) for m in (agree, compared))
    defined = without_pairs > 0
    without = np.divide(without_score, without_pairs, out=np.full(len(member), nan), where=defined)
    return round(score / 2), round(pairs / 2), without


def _sums(matrix: NDArray[np.float32], member: NDArray[np.float32]) -> tuple[float, Floats]:
    """The sum of a symmetric matrix, and its sum without the lines and columns of each configuration."""
    lines = (member @ matrix).astype(np.float64)
    total = float(matrix.sum(dtype=np.float64))
    return total, total - 2 * lines.sum(1) + (lines * member).sum(1)


def smallest_detectable_tau(test: PermutationTest, measure: int, pairs: int, level: float) -> float:
    """The tau that is significant at a level with 80 % power; nan if none is.

    tau has to exceed the critical value by its own spread times the normal quantile of the power. Its spread shrinks
    from that under permutation to zero at tau = 1, as for normal variables (Esscher 1924; Kendall and Gibbons 1990).
    """
    from scipy.special import ndtri

    if test.smallest_p[measure] > level or not pairs:
        return nan
    spread, critical = float(test.spread[measure]) / pairs, test.critical(measure, level) / pairs
    if critical >= 1:
        return nan
    low, high = critical, 1.0
    while high - low > 1e-4:  # critical + quantile * spread(tau) - tau falls with tau
        tau = (low + high) / 2
        left = sqrt(max(0.0, 1 - (6 / pi * asin(sin(pi * tau / 2) / 2)) ** 2))
        low, high = (tau, high) if critical + float(ndtri(POWER)) * spread * left > tau else (low, tau)
    return high


def decided(finding: Finding, *, rejected: bool, open_: bool, testable: bool, tests: int) -> Finding:
    """The finding with its verdict: given only where the corrected p-value and the interval agree."""
    f, low, high = finding, finding.low, finding.high
    verdict: Verdict = "cannot tell"
    if not f.pairs:
        why = "too few runs to compare"
    elif not isfinite(low):
        why = "no interval: there are too few configurations"
    elif not testable:
        why = "too few configurations, or too many ties: even a perfect order would not be significant after correction"
    elif open_:
        why = f"p is too close to the level that {tests} tests require"
    elif rejected and low > 0:
        verdict, why = "predicts", "significant after correction, and the interval is above zero"
    elif rejected and high < 0:
        verdict, why = "predicts the opposite", "significant after correction, and the interval is below zero"
    elif rejected:
        why = "significant after correction, but the interval includes zero"
    elif max(-low, high) < RELEVANT:
        verdict = "no sign of it"
        why = f"{not_shown(low, high, tests)}, and the interval excludes {RELEVANT:g} in either direction"
    elif low > 0 or high < 0:
        why = f"the interval excludes zero, but {not_shown(low, high, tests)}"
    else:
        why = f"the interval includes zero and {RELEVANT if high >= RELEVANT else -RELEVANT:g}: too few runs"
    return replace(f, verdict=verdict, why=why)


def not_shown(low: float, high: float, tests: int) -> str:
    """Why a test that does not reject shows no difference from zero."""
    if low <= 0 <= high:
        return "the interval includes zero"
    return f"p is not significant after correction for {tests} tests"
