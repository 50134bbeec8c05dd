"""Relations of measures and targets: tau, its p-value by permutations, and its interval.

p-values are those of permutations that respect the design (`permutation`). An interval has two sources. The jackknife
leaves out configurations and the levels of each factor (`jackknife`): it follows whatever the runs are like, but four
methods in order by chance have no jackknife error. The spread under permutations knows what four methods show by
chance, but shrinks with tau as for normal variables. Each alone covers 90 to 99 % in some crossed design; the ends of
the interval are half-way between theirs, and it includes zero wherever p is above 0.05. Two levels give no variance:
there the interval is as wide as the wider of the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import asin, ceil, isfinite, nan, pi, sin, sqrt

import numpy as np
from numpy.typing import NDArray

from ..table import Table
from .confounding import confounding
from .design import Design, design_of
from .jackknife import FEWEST_LEVELS, Jackknife, ends, row_variances, rows_of
from .kendall import Floats, Ints, Signs, alike, ranks, same_group, scores, signs
from .permutation import NORMAL, Permutations, PermutationTest, Scores, share_scores, tau_scores
from .predictions import HYPOTHESES, RELEVANT, Finding, GroupTau, Hypothesis
from .spread import CONFIDENCE, POWER, Spread

FLATTEST = 0.1  # the share of runs that counts as the flattest
# The interval has to agree with the test, and spreads vary between studies: without this, a study at the stated tau
# shows it in 74 to 78 % of cases, not 80 (benchmarks/verdicts.py).
AGREEMENT = 1.03
FEWEST = 3  # runs on either side of the weak hypothesis: the mean of fewer does not generalise

TOGETHER = 2e7  # pairs of runs of the measures that draw more permutations together


@dataclass
class Relations:
    """The findings of some measures against one target by one hypothesis, their errors, and the test of all scores."""

    findings: list[Finding]
    spreads: list[Spread | None]
    test: PermutationTest | None = field(repr=False)

    def draw(self, times: int) -> bool:
        """Draw permutations up to a number; returns whether any were drawn."""
        return self.test is not None and self.test.draw(times)

    def p(self) -> NDArray[np.float64]:
        """Lower bounds, estimates and upper bounds of the p-values of all measures.

        Where the design leaves most combinations of levels empty, not all factors can be permuted: there p is at least
        that of the jackknife, which leaves them all out.
        """
        if self.test is not None and self.test.permutations.complete:
            return np.stack(self.test.p())
        jackknifed = [
            s.p(f.tau) if s is not None and f.pairs else 1.0 for f, s in zip(self.findings, self.spreads, strict=True)
        ]
        if self.test is None:
            return np.ones((3, len(self.findings)))
        return np.maximum(np.stack(self.test.p()), jackknifed)

    def spread_of(self, i: int) -> float:
        """The standard deviation of tau under permutation."""
        f = self.findings[i]
        return float(self.test.spread[i]) / f.pairs if self.test is not None and f.pairs else nan

    def weaker(self, i: int) -> tuple[float, float]:
        """The p-value of a tau at its bound or beyond, and the smallest that this design could give."""
        f, s, chance = self.findings[i], self.spreads[i], self.spread_of(i)
        if s is None or not f.bound > 0 or not isfinite(chance):
            return 1.0, 1.0
        from scipy.special import ndtr

        away, wide = f.bound - abs(f.tau), chance * shrunk(RELEVANT)
        best = float(ndtr(-f.bound / wide)) if wide else 0.0
        if away <= 0:
            return 1.0, best
        # both sides are tested one by one, and the nearer one decides
        return max(s.p(away) / 2, float(ndtr(-away / wide)) if wide else 0.0), best

    def interval(self, i: int) -> tuple[float, float]:
        """The interval of a tau: half-way between the jackknife's and that of its spread under permutation."""
        f, spread, chance = self.findings[i], self.spreads[i], self.spread_of(i)
        low, high = ends(f.tau, spread, 1 - CONFIDENCE)
        if not isfinite(low):
            return low, high
        by_chance = [score_end(f.tau, side, chance, f.attainable) for side in (-1, 1)]
        if f.sample and f.levels < FEWEST_LEVELS:  # of two levels none can be left out: the spread does not shrink
            half = max(f.tau - low, high - f.tau, 1.96 * chance)
            low, high = max(f.tau - half, -1.0), min(f.tau + half, 1.0)
        else:
            low, high = (low + by_chance[0]) / 2, (high + by_chance[1]) / 2
        return (low, high) if self.p()[1][i] <= 1 - CONFIDENCE else (min(low, 0.0), max(high, 0.0))


def shrunk(tau: float) -> float:
    """The spread of tau at a true tau, as a share of that at zero: for normal variables, zero at 1.

    Esscher 1924; Kendall and Gibbons 1990.
    """
    return sqrt(max(0.0, 1 - (6 / pi * asin(sin(pi * min(abs(tau), 1.0) / 2) / 2)) ** 2))


def score_end(tau: float, side: int, spread: float, attainable: float = 1.0) -> float:
    """The end of the interval of all true values from which `tau` is no farther than their spread explains.

    The spread of a true value shrinks towards the ends of the scale, so that the interval of a perfect order is that of
    the values which often give one (Wilson 1927, for shares).
    """
    from scipy.special import ndtri

    z = float(ndtri((1 + CONFIDENCE) / 2))
    inner, outer = tau, float(side)
    while abs(outer - inner) > 1e-4:
        middle = (inner + outer) / 2
        far = abs(middle - tau) > z * spread * shrunk(middle / attainable if attainable else 0.0)
        inner, outer = (inner, middle) if far else (middle, outer)
    return inner


def relations(
    table: Table, measures: Sequence[str], targets: Sequence[str], seed: int, design: Design | None = None
) -> Iterator[Relations]:
    """All hypotheses on all measures and targets, measures with the same runs together."""
    labels = table.labels()
    design = design if design is not None else design_of(table)
    hypotheses = [h for h in HYPOTHESES if h != "within groups" or len(np.unique(labels)) > 1]
    loss = training_loss(table)
    moved: dict[tuple[bytes, bool], Permutations] = {}  # the same for all targets of the same runs
    for target in targets:
        y, wrong = table.target(target).values, rows_of(table, target)
        by_rows: dict[bytes, list[str]] = {}
        for measure in measures:
            present = np.isfinite(table.measure(measure).values) & np.isfinite(y)
            by_rows.setdefault(present.tobytes(), []).append(measure)
        for key, names in by_rows.items():
            rows = np.flatnonzero(np.frombuffer(key, dtype=bool))
            size = max(1, int(TOGETHER / max(len(rows), 1) ** 2))
            for part in (names[i : i + size] for i in range(0, len(names), size)):
                pool = _Pool(
                    part, target, np.stack([table.measure(name).values[rows] for name in part]), y[rows],
                    design.of(rows), labels[rows], {name: codes[rows] for name, codes in design.columns.items()},
                    None if wrong is None else wrong[rows], loss[rows], len(y), seed, moved, key,
                )  # fmt: skip
                yield from (pool.relations(hypothesis) for hypothesis in hypotheses)


def training_loss(table: Table) -> Floats:
    """Each run's training loss, or the error where no run has a loss; nan where it is not known."""
    found = np.full(len(table), nan)
    for name, test, gap in (("train_error", "test_error", "gap"), ("train_loss", "test_loss", "loss_gap")):
        values = [r.targets.get(name, r.targets.get(test, nan) - r.targets.get(gap, nan)) for r in table.runs]
        found = np.array(values) if np.isfinite(values).any() else found
    return found


@dataclass(frozen=True)
class _Pool:
    """Measures (one line each) and a target over the same runs, of a table with `total` runs."""

    measures: Sequence[str]
    target: str
    x: Floats
    y: Floats
    design: Design
    labels: NDArray[np.str_]
    columns: dict[str, Ints]
    wrong: NDArray[np.bool_] | None
    loss: Floats
    total: int
    seed: int
    moved: dict[tuple[bytes, bool], Permutations]
    key: bytes

    def relations(self, hypothesis: Hypothesis) -> Relations:
        return self._weak() if hypothesis == "weak" else self._taus(hypothesis)

    def _finding(self, i: int, hypothesis: Hypothesis, tau: float, spread: Spread | None, pairs: int) -> Finding:
        n, k = len(self.y), len(np.unique(self.design.configuration))
        low, high = ends(tau, spread)
        levels, sample = self.design.weakest
        rows = nan
        if self.wrong is not None and spread is not None:
            rows = sqrt(sum(p.variance for p in spread.more if p.name == "test rows"))
        row = (self.measures[i], self.target, hypothesis, tau, low, high, n, self.total - n, k, pairs)
        return Finding(*row, levels=levels, sample=sample, rows=rows)

    def _permutations(self, group: Ints, *, within: bool) -> Permutations:
        if (self.key, within) not in self.moved:
            self.moved[self.key, within] = Permutations(self.design, group, self.seed)
        return self.moved[self.key, within]

    def _test(self, observed: Sequence[float], scores: Scores, moved: Permutations, normal: bool) -> PermutationTest:
        return PermutationTest(np.array(observed), scores, moved, normal and moved.fewest >= NORMAL)

    def _taus(self, hypothesis: Hypothesis) -> Relations:
        """Tau over all pairs, or over pairs within groups."""
        n, within = len(self.y), hypothesis == "within groups"
        group = ranks(self.labels) if within else np.zeros(n, dtype=np.int64)
        left_out, moved = Jackknife(self.design, group), self._permutations(group, within=within)
        compared = same_group(group, n)
        pairs, sign_y = int(compared.sum()) // 2, signs(self.y)
        loss = signs(self.loss) if np.isfinite(self.loss).all() and np.ptp(self.loss) else None
        rows = row_variances(self.x, self.y, group, self.wrong)
        findings, scores = [], []
        spreads: list[Spread | None] = []
        for i, x in enumerate(self.x):
            sign_x = signs(x)
            agree = sign_x * sign_y * compared
            tau, without = left_out.without(agree, compared)
            spread = left_out.spread(without, float(rows[i])) if pairs else None
            row = self._finding(i, hypothesis, tau, spread, pairs)
            if within:
                row = replace(row, by_group=self._by_group(agree))
            else:
                apart = confounding(sign_x, sign_y, loss, left_out, self.design, self.columns)
                row = replace(row, confounding=apart)
            findings.append(_bounded(row, attainable(x, self.y, group)))
            spreads.append(spread)
            scores.append(float(agree.sum()) / 2)
        if not pairs:
            return Relations(findings, spreads, None)
        permuted = tau_scores(self.x, self.y, group, moved.holes)
        return Relations(findings, spreads, self._test(scores, permuted, moved, normal=True))

    def _by_group(self, agree: Signs) -> tuple[GroupTau, ...]:
        rows = []
        for label in np.unique(self.labels):
            inside = np.flatnonzero(self.labels == label)
            design, one = self.design.of(inside), np.zeros(len(inside), dtype=np.int64)
            left_out = Jackknife(design, one)
            compared = same_group(one, len(inside))
            tau, without = left_out.without(agree[np.ix_(inside, inside)], compared)
            low, high = ends(tau, left_out.spread(without))
            rows.append(GroupTau(str(label), len(inside), len(np.unique(design.configuration)), tau, low, high))
        return tuple(rows)

    def _weak(self) -> Relations:
        """The flattest runs against the rest."""
        order = -signs(self.y).astype(np.float64)  # [i, j]: whether j has a higher target than i
        n = len(self.y)
        one = np.zeros(n, dtype=np.int64)
        left_out, moved = Jackknife(self.design, one), self._permutations(one, within=False)
        kept = ~left_out.member
        of_line = order @ left_out.member.T  # each run against those of a line
        inside = np.stack([flattest(x) for x in self.x])
        total, findings, observed = order.sum(1), [], []
        spreads: list[Spread | None] = []
        for i, flat in enumerate(inside):
            few = int(flat.sum())
            if min(few, n - few) < FEWEST:
                findings.append(self._finding(i, "weak", nan, None, 0))
                spreads.append(None)
                observed.append(0.0)
                continue
            without = []
            for line, rest in enumerate(kept):
                others = flattest(self.x[i][rest])
                size = int(others.sum()) * int((~others).sum())
                score = float((total - of_line[:, line])[rest][others].sum())
                without.append(score / size if size else nan)
            score = float(total[flat].sum())  # pairs of two flat runs cancel
            spread = left_out.spread(np.array(without))
            row = self._finding(i, "weak", score / (few * (n - few)), spread, few * (n - few))
            best = np.argsort(np.argsort(self.y, kind="stable"), kind="stable") < few  # the lowest targets
            row = _bounded(replace(row, rows=nan), float(total[best].sum()) / (few * (n - few)))
            inner, outer = float(self.y[flat].mean()), float(self.y[~flat].mean())
            findings.append(replace(row, flattest=few, mean_flattest=inner, mean_rest=outer))
            spreads.append(spread)
            observed.append(score)
        if not any(f.pairs for f in findings):
            return Relations(findings, spreads, None)
        scores = share_scores(inside, total)
        return Relations(findings, spreads, self._test(observed, scores, moved, normal=False))


def _bounded(f: Finding, most: float) -> Finding:
    return replace(f, attainable=most, bound=RELEVANT * most)


def attainable(x: Floats, y: Floats, group: Ints) -> float:
    """The largest tau of these values in any order, over pairs within groups: ties count zero."""
    pairs = alike(group, group)
    together = [np.lexsort((values, group)) for values in (x, y)]
    return (
        int(scores(x[None, together[0]], ranks(y)[None, together[1]], np.sort(group))[0, 0]) / pairs if pairs else 1.0
    )


def flattest(x: Floats) -> NDArray[np.bool_]:
    """The flattest tenth of the runs, at least three; runs that are tied at the border are all inside."""
    few = min(max(ceil(FLATTEST * len(x)), FEWEST), len(x))
    inside: NDArray[np.bool_] = x <= np.partition(x, few - 1)[few - 1] if few else np.zeros(0, dtype=bool)
    return inside


def smallest_detectable_tau(relations: Relations, i: int, level: float) -> float:
    """The tau that is significant at a level with 80 % power; nan if none is.

    tau has to exceed the critical value by its own spread, which shrinks with tau, times the quantile of the power. The
    jackknife has critical values of its own, where it decides too.
    """
    from scipy.special import ndtri

    f, s, test, quantile = relations.findings[i], relations.spreads[i], relations.test, float(ndtri(POWER))
    if test is None or test.smallest_p[i] > level or not f.pairs:
        return nan
    spread, critical = relations.spread_of(i), test.critical(i, level) / f.pairs
    if critical >= 1:
        return nan

    def needed(tau: float) -> float:
        by_chance = critical + quantile * spread * shrunk(tau)
        if test.permutations.complete or s is None or not shrunk(f.tau):
            return by_chance
        return max(by_chance, (s.half(level) + quantile * sqrt(s.variance)) * shrunk(tau) / shrunk(f.tau))

    low, high = critical, 1.0
    while high - low > 1e-4:  # what is needed falls with tau
        tau = (low + high) / 2
        low, high = (tau, high) if needed(tau) > tau else (low, tau)
    return min(AGREEMENT * high, 1.0)
