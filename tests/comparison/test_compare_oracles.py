"""Formulas of comparisons against oracles of another kind: tables, closed testing, resampling, brute force."""

from __future__ import annotations

from itertools import combinations
from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtri
from scipy.stats import norm, t

from steppe.comparison.halving import Halved, limit, threshold
from steppe.comparison.sequential import Rules, decide, levels, looks_to, spending
from steppe.comparison.statistics import Outcomes, estimate, weights


@pytest.mark.parametrize(
    ("looks", "bounds"),
    [  # gsDesign(k, test.type = 2, alpha = 0.025, sfu = sfLDOF); Lan and DeMets 1983, Proschan et al. 2006
        (2, [2.9626, 1.9686]),
        (3, [3.7103, 2.5114, 1.9930]),
        (4, [4.3326, 2.9631, 2.3590, 2.0141]),
        (5, [4.8769, 3.3569, 2.6803, 2.2898, 2.0310]),
    ],
)
def test_boundaries_of_equal_looks_are_those_of_the_tables(looks: int, bounds: list[float]) -> None:
    numbers = tuple(range(1, looks + 1))
    assert [-ndtri(levels(0.05, numbers, k) / 2) for k in range(looks)] == pytest.approx(bounds, abs=2e-4)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.05 / 3, 0.05 / 6])
def test_what_the_looks_spend_is_what_the_spending_function_says(alpha: float) -> None:
    """By simulated paths, look by look, at the unequal looks of the protocol."""
    looks, random, n = looks_to(8, 96), np.random.default_rng(1), 400_000
    information = np.array(looks) / looks[-1]
    z = (random.normal(size=(n, 6)) * np.sqrt(np.diff(information, prepend=0))).cumsum(1) / np.sqrt(information)
    crossed = abs(z) > [norm.isf(levels(alpha, looks, k) / 2) for k in range(6)]
    for k in range(6):
        expected = spending(alpha, information[k])
        assert crossed[:, : k + 1].any(1).mean() == pytest.approx(expected, abs=4 * sqrt(expected / n) + 1e-6)


def test_levels_of_two_tests_are_nested() -> None:
    """Holm's procedure over looks needs it: a larger level has the larger boundary levels at every look."""
    looks = looks_to(8, 96)
    for small, large in combinations([0.05 / k for k in range(6, 0, -1)], 2):
        assert all(levels(small, looks, k) <= levels(large, looks, k) for k in range(6))


def trials(seed: int, methods: int, n: int) -> dict[str, Outcomes]:
    random = np.random.default_rng(seed)
    shifts = random.choice([0.0, 0.0, 0.004, 0.012, -0.01], methods - 1)
    base = 0.1 + 0.05 * random.random(n)
    return {str(m): Outcomes(*(base + s + 0.004 * random.normal(size=(2, n)))) for m, s in enumerate([0.0, *shifts])}


def test_one_look_is_holms_procedure() -> None:
    """Written as in a textbook: order the p-values, and stop at the first that is too large."""
    assert {len(holm(seed)) for seed in range(40)} > {1, 2, 3}


def holm(seed: int) -> set[str]:
    found, rules = trials(seed, 5, 48), Rules(worth=1e-9, once=True)
    p = {}
    for m in "1234":
        d = estimate(found[m], found["0"], 8)
        p[m] = 2 * t.sf(abs(d.value) / d.stderr, d.df)
    rejected: set[str] = set()
    for rank, m in enumerate(sorted(p, key=p.__getitem__)):
        if p[m] > 0.05 / (4 - rank):
            break
        rejected.add(m)
    last = decide(found, rules)[-1]
    assert {m for m in last if last[m].verdict in ("better", "worse")} == rejected
    return rejected


def test_all_looks_together_are_within_closed_testing() -> None:
    """A contender is named only if every set of contenders that has it is rejected, by one of its looks so far."""
    assert sum(closed(seed) for seed in range(25)) > 15


def closed(seed: int) -> int:
    """How many contenders a comparison names, each of which closed testing names too."""
    found, rules = trials(seed, 4, 96), Rules(most=96, worth=1e-9)
    looks, reference = rules.looks, found["0"]
    estimates = {m: [estimate(found[m].first(n), reference.first(n), 8) for n in looks] for m in "123"}
    p = {m: [2 * t.sf(abs(d.value) / d.stderr, d.df) for d in each] for m, each in estimates.items()}
    history = decide(found, rules, futility=False)
    assert len(history) == len(looks) or not any(c.verdict == "open" for c in history[-1].values())
    for k, look in enumerate(history):
        for m, c in look.items():
            if c.verdict not in ("better", "worse"):
                continue
            for size in range(3):
                for others in combinations([x for x in "123" if x != m], size):
                    together = (m, *others)
                    assert any(
                        p[x][j] <= levels(0.05 / len(together), looks, j) for x in together for j in range(k + 1)
                    )
    return sum(c.verdict in ("better", "worse") for c in history[-1].values())


def test_the_variance_of_rows_is_that_of_resampled_rows() -> None:
    random = np.random.default_rng(3)
    hard = random.beta(0.3, 2.0, 400)
    rows = [random.random((24, 400)) < np.clip(hard * f, 0, 1) for f in (1.0, 1.2)]
    validation = random.random((2, 24))
    one, two = (Outcomes.of(v, r) for v, r in zip(validation, rows, strict=True))
    found = estimate(one, two, 8)
    values = []
    for _ in range(4000):
        drawn = random.integers(0, 400, 400)
        again = [Outcomes(v, r[:, drawn].mean(1)) for v, r in zip(validation, rows, strict=True)]
        values.append(estimate(*again, 8, 0.0).value)
    assert np.var(values) == pytest.approx(found.rows, rel=0.1)


def rows_of(random: np.random.Generator, n: int) -> tuple[Outcomes, Outcomes]:
    """Two methods with the same hard rows, and 120 rows that only one of them finds harder."""
    hard = np.random.default_rng(5).beta(0.3, 2.0, 600)
    other = np.where(np.arange(600) < 120, np.clip(3 * hard, 0, 1), hard)
    rows = [random.random((n, 600)) < chance for chance in (hard, other)]
    one, two = (Outcomes.of(random.random(n), r) for r in rows)
    return one, two


def test_the_part_of_the_rows_that_lasts_is_the_one_of_very_many_trials() -> None:
    """From 16 trials each, on average: the variance of the rows of 2000 trials, and in between of 48."""
    random = np.random.default_rng(6)
    few = [estimate(*rows_of(random, 16), 8) for _ in range(300)]
    for n, count, rel in ((48, 100, 0.12), (2000, 2, 0.06)):  # the best of 8 of 16 is fewer trials than a third of 48
        many = np.mean([estimate(*rows_of(random, n), 8).rows for _ in range(count)])
        assert np.mean([d.at(n).rows for d in few]) == pytest.approx(many, rel=rel)
        assert np.mean([d.rows for d in few]) > 1.5 * many  # what each of the 16 adds is not of the rows
    assert few[0].at(10**9).stderr == pytest.approx(sqrt(few[0].lasting), rel=1e-3)


def test_the_part_of_the_rows_that_lasts_is_that_of_pairs_of_trials() -> None:
    """By its definition: covariances over rows of all pairs of different trials, by the weights of the pairs."""
    one, two = rows_of(np.random.default_rng(7), 9)
    u, v = weights(one.validation, 4), weights(two.validation, 4)
    covariance = np.cov(np.vstack([one.rows, two.rows]).astype(float))
    pairs = [(i, k) for i in range(9) for k in range(9) if i != k]

    def mean(a: np.ndarray, b: np.ndarray, part: np.ndarray) -> float:
        return float(np.average([part[i, k] for i, k in pairs], weights=[a[i] * b[k] for i, k in pairs]))

    within = mean(u, u, covariance[:9, :9]) + mean(v, v, covariance[9:, 9:])
    between = mean(u, v, covariance[:9, 9:])
    assert estimate(one, two, 4).lasting == pytest.approx((within - 2 * between) / 600)
    same = estimate(one, one, 4)
    assert (same.lasting, same.rows) == (0, 0)


def test_the_variance_of_points_is_that_of_new_comparisons() -> None:
    """The jackknife's mean against the spread of the estimate over independent comparisons."""
    random = np.random.default_rng(4)
    values, variances = [], []
    for _ in range(3000):
        z = random.random(48)
        mean = 0.1 + 0.25 * (z - 0.5) ** 2
        outcomes = []
        for _ in range(2):
            seeds = mean + 0.003 * random.normal(size=48)
            outcomes.append(Outcomes(seeds + 0.005 * random.normal(size=48), seeds + 0.002 * random.normal(size=48)))
        found = estimate(*outcomes, 8)
        values.append(found.value)
        variances.append(found.points)
    assert np.mean(variances) == pytest.approx(np.var(values), rel=0.12)


@given(st.integers(0, 10**6), st.integers(6, 12), st.integers(1, 5))
def test_a_failure_is_chosen_only_if_all_fail(seed: int, n: int, tuning: int) -> None:
    """With validation error 1, which no trial that ended has."""
    random = np.random.default_rng(seed)
    v = random.random(n) * 0.9
    failed = random.random(n) < 0.4
    v[failed] = 1.0
    w = weights(v, tuning)
    assert w[failed].sum() == pytest.approx(_all_within(failed.sum(), n, tuning))


def _all_within(k: int, n: int, tuning: int) -> float:
    """The probability that all of a tuning are among k of n trials, by counting sets."""
    return float(np.mean([all(i < k for i in chosen) for chosen in combinations(range(n), tuning)]))


def naive(validation: np.ndarray, rung: np.ndarray, test: np.ndarray, first: np.ndarray, tuning: int) -> float:
    """The mean over all sets of trials of the test error that halving and validation select, from scratch."""
    kept = sorted(rung[first])[: (first.sum() + 1) // 2][-1]
    found = []
    for chosen in combinations(range(len(test)), tuning):
        alive = [i for i in chosen if rung[i] <= kept]
        best = min(alive, key=lambda i: validation[i]) if alive else min(chosen, key=lambda i: rung[i])
        found.append(test[best])
    return float(np.mean(found))


@given(st.integers(0, 10**6), st.integers(6, 9))
def test_halving_is_rerun_without_each_trial(seed: int, n: int) -> None:
    random, k = np.random.default_rng(seed), 4
    rung = random.permutation(n) / n + 0.01 * random.random(n)
    validation, test = random.random(n) * 0.9, random.random(n)
    most = limit(rung[:k])
    stopped = (np.arange(n) >= k) & (rung > most)
    halved = Halved(np.where(stopped, rung, validation), rung, k)
    found = estimate(Outcomes(halved.ranked(), test, halved=halved), None, 2, 0.0)
    first = np.arange(n) < k
    assert found.value == pytest.approx(naive(validation, rung, test, first, 2))
    without = [naive(*(np.delete(x, j) for x in (validation, rung, test, first)), 2) for j in range(n)]
    assert found.points == pytest.approx((n - 1) / n * np.sum((np.array(without) - np.mean(without)) ** 2))
    thresholds = [threshold(np.delete(rung, j)[: k - (j < k)]) for j in range(n)]
    assert max([*thresholds, threshold(rung[:k])]) <= most  # so a trial that stopped is behind all of them
    cut = Outcomes(halved.ranked(), test, halved=halved).first(5)
    assert cut.validation == pytest.approx(Halved(halved.validation[:5], rung[:5], k).ranked())
