"""Kendall's tau, its p-value and its interval, against brute force, SciPy and known copulas."""

import subprocess
import sys
from itertools import permutations
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.studies import Chance, Column, Measured, Run, Table, correlate
from steppe.studies.correlate import benjamini_hochberg, holm, kendall
from steppe.studies.statistics.kendall import (
    _score_variance,
    bootstrap_taus,
    bootstrap_weights,
    jackknife_error,
    pairs,
    permutation_p,
    tau_a,
    tau_b,
)

QUICK = Chance(resamples=400, permutations=199)


def lists(least=2, most=40, levels=12):
    """Two lists over the same runs and their groups, with many ties."""
    value, group = st.integers(-levels, levels), st.integers(0, 3)
    rows = st.lists(st.tuples(value, value, group), min_size=least, max_size=most)
    return rows.map(lambda r: tuple(np.array(column, dtype=float) for column in zip(*r, strict=True)))


def signs(x, y, groups=None):
    """Eq. 4 written out: the sign of every pair."""
    table = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    return table if groups is None else table * (groups[:, None] == groups)


def copula(tau, n, seed):
    """Gaussian pairs with that tau: sin(pi tau / 2) is their correlation (Greiner 1909)."""
    draws, r = np.random.default_rng(seed), np.sin(np.pi * tau / 2)
    x = draws.normal(size=n)
    return x, r * x + np.sqrt(1 - r**2) * draws.normal(size=n)


# --- the coefficient


@settings(max_examples=50)
@given(lists())
def test_tau_is_equation_4_and_scipys_tau_b(data):
    x, y, groups = data
    n = len(x)
    assert tau_a(x, y) == pytest.approx(signs(x, y).sum() / (n * (n - 1)), abs=1e-12)
    assert pairs(x, y, groups).score == signs(x, y, groups).sum() / 2
    if np.ptp(x) and np.ptp(y):
        assert tau_b(x, y) == pytest.approx(stats.kendalltau(x, y).statistic, abs=1e-12)
    else:
        assert isnan(tau_b(x, y))


@settings(max_examples=50)
@given(lists())
def test_pairs_within_groups_are_those_of_each_group_together(data):
    x, y, groups = data
    whole = pairs(x, y, groups)
    each = [pairs(x[groups == g], y[groups == g]) for g in np.unique(groups)]
    for count in ("all", "tied_x", "tied_y", "score"):
        assert getattr(whole, count) == sum(getattr(one, count) for one in each)
    size = np.bincount(groups.astype(int))
    assert whole.all == (size * (size - 1) // 2).sum()


@settings(max_examples=30)
@given(lists(), st.permutations(range(40)))
def test_tau_follows_ranks_only(data, order):
    x, y, _ = data
    order = [i for i in order if i < len(x)]
    assert tau_a(np.exp(x / 3), y[:]) == tau_a(x, y)
    assert tau_a(x[order], y[order]) == tau_a(x, y)
    assert tau_a(-x, y) == -tau_a(x, y)
    assert tau_a(y, x) == tau_a(x, y)


def test_ties_count_zero_and_the_denominator_does_not_shrink():
    assert tau_a([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 3)
    assert tau_b([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / np.sqrt(6))
    assert tau_a([1, 1, 1], [1, 2, 3]) == 0
    assert isnan(tau_a([1], [2]))


# --- p-values


@settings(max_examples=40)
@given(lists(most=6, levels=2))
def test_p_of_a_tiny_pool_counts_every_order(data):
    x, y, groups = data
    found = kendall(x, y, how=QUICK)
    null = [signs(x, y[list(order)]).sum() for order in permutations(range(len(x)))]
    if np.ptp(x) and np.ptp(y):
        assert _score_variance(*(tuple(np.unique(v, return_counts=True)[1]) for v in (x, y))) == pytest.approx(
            np.var(null) / 4
        )
    assert found.p == pytest.approx(np.mean(np.abs(null) >= abs(signs(x, y).sum())))
    assert found.p_from == "exact"
    within = [o for o in permutations(range(len(x))) if (groups[list(o)] == groups).all()]
    null = [signs(x, y[list(o)], groups).sum() for o in within]
    score = pairs(x, y, groups).score
    p, _ = permutation_p(score, x, y, np.unique(groups, return_inverse=True)[1], 99, 0)
    assert p == pytest.approx(np.mean(np.abs(null) >= 2 * abs(score)))


@pytest.mark.parametrize(("n", "how"), [(8, "exact"), (30, "9999 permutations"), (400, "normal")])
def test_p_is_scipys_where_nothing_is_tied(n, how):
    x, y = copula(2 / n**0.5 / 3, n, 5)
    found = kendall(x, y, how=Chance(resamples=50))
    assert how in found.p_from
    expected = stats.kendalltau(x, y, method="exact" if n <= 150 else "asymptotic").pvalue
    assert found.p == pytest.approx(expected, rel=1e-6 if n != 30 else 0.1)


def test_p_of_shuffles_is_that_of_other_shuffles_with_ties_and_groups():
    draws = np.random.default_rng(0)
    groups = np.repeat([0, 1], [14, 10])
    x, y = draws.integers(0, 6, 24), draws.integers(0, 6, 24)
    score = pairs(x, y, groups).score + 20
    p, how = permutation_p(score, x, y, groups, 9999, 0)
    orders = (np.concatenate([draws.permutation(14), 14 + draws.permutation(10)]) for _ in range(4000))
    null = [abs(signs(x, y[order], groups).sum()) / 2 for order in orders]
    assert how == "9999 permutations"
    assert 0.05 < p < 0.9
    assert p == pytest.approx(np.mean(np.array(null) >= score), abs=0.03)


def test_p_of_shuffles_is_never_zero():
    """The order that was found is a possible one, so 99 shuffles cannot say less than 1 in 100."""
    assert kendall(range(30), range(30), how=Chance(permutations=99)).p == 0.01


def test_p_is_uniform_without_a_relation_also_within_groups_with_ties():
    ps = []
    for seed in range(200):
        draws = np.random.default_rng(seed)
        groups = np.repeat([0, 1, 2], [12, 9, 4])
        x, y = groups + draws.normal(size=25), np.round(-groups + draws.normal(size=25), 1)
        ps.append(kendall(x, y, groups, how=Chance(resamples=2, permutations=199, seed=seed)).p)
    below = [np.mean(np.array(ps) <= level) for level in (0.05, 0.2, 0.5)]
    assert 0.01 <= below[0] <= 0.1
    assert 0.12 <= below[1] <= 0.26
    assert 0.35 <= below[2] <= 0.57  # scores are whole numbers, so p is on the large side


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1) | st.just(nan), max_size=12))
def test_corrections_are_the_textbooks(p):
    there = [v for v in p if not isnan(v)]
    m = len(there)

    def holm_by_hand(v):  # the worst of all steps up to its own
        return min(1, max((m - sum(w < u for w in there)) * u for u in there if u <= v))

    assert np.allclose([h for h in holm(p) if not isnan(h)], [holm_by_hand(v) for v in there])
    if there:
        by_scipy = stats.false_discovery_control(there)
        assert np.allclose(benjamini_hochberg(p)[~np.isnan(p)], by_scipy)
    assert np.isnan(holm(p)).tolist() == np.isnan(p).tolist() == np.isnan(benjamini_hochberg(p)).tolist()


def test_an_unknown_correction_is_refused():
    with pytest.raises(ValueError, match=r"no correction 'bonferoni'.*holm"):
        correlate.correlations(Table([]), correction="bonferoni")


# --- intervals


@pytest.mark.parametrize(("tau", "n"), [(0.0, 30), (0.3, 20), (0.7, 40), (0.85, 15)])
def test_a_95_percent_interval_covers_the_true_tau(tau, n):
    """88 to 99 % of 200 pools; a strong tau of few runs has one on the wide side, which may cover all."""
    hits = 0
    for seed in range(200):
        found = kendall(*copula(tau, n, seed), how=Chance(resamples=300, permutations=9, seed=seed))
        hits += found.low <= tau <= found.high
    assert 176 <= hits <= (198 if tau < 0.8 else 200)


def test_intervals_within_groups_cover_what_holds_within():
    """Groups far apart in both: pooled tau is high, within groups it is 0.3."""
    hits = 0
    for seed in range(200):
        x, y = copula(0.3, 36, seed)
        groups = np.repeat(range(3), 12)
        found = kendall(
            x + 10 * groups, y + 10 * groups, groups, how=Chance(resamples=300, permutations=9, redraws=10, seed=seed)
        )
        hits += found.low <= 0.3 <= found.high
        assert found.groups == 3
    assert 176 <= hits <= 198
    assert kendall(x + 10 * groups, y + 10 * groups, how=QUICK).tau > 0.7


def test_intervals_of_large_pools_cover_too_and_agree_with_the_bootstrap():
    hits = sum(
        (t := kendall(*copula(0.4, 301, seed), how=Chance(resamples=2, permutations=1))).low <= 0.4 <= t.high
        for seed in range(200)
    )
    assert 176 <= hits <= 198
    assert "jackknife" in t.interval
    x, y = copula(0.4, 500, 0)
    y = np.round(y, 1)
    label = np.repeat([0, 1], [200, 300])
    spread = bootstrap_taus(bootstrap_weights(label, 1000, 0), x, y, label).std()
    assert jackknife_error(x, y, label) == pytest.approx(spread, rel=0.1)


@given(lists(least=4, most=9, levels=3))
@settings(max_examples=30)
def test_resampled_taus_are_those_of_the_resampled_runs(data):
    x, y, groups = data
    label = np.unique(groups, return_inverse=True)[1]
    weights = bootstrap_weights(label, 5, 1)
    for w, tau in zip(weights.astype(int), bootstrap_taus(weights, x, y, label), strict=True):
        rows = np.repeat(np.arange(len(x)), w)
        assert (np.bincount(label[rows], minlength=label.max() + 1) == np.bincount(label)).all()
        other = (rows[:, None] != rows) & (label[rows][:, None] == label[rows])
        assert (
            tau == pytest.approx((signs(x[rows], y[rows]) * other).sum() / other.sum(), abs=1e-6)
            if other.any()
            else (isnan(tau))
        )


def test_a_pool_that_cannot_tell_has_no_interval():
    few, perfect = kendall([1, 2, 3], [2, 1, 3], how=QUICK), kendall(range(8), range(8), how=QUICK)
    assert isnan(few.low)
    assert isnan(perfect.high)
    assert perfect.tau == 1
    assert perfect.p == pytest.approx(2 / 40320)
    none = kendall([1, nan], [nan, 2], how=QUICK)
    assert (none.n, none.missing) == (0, 2)
    assert isnan(none.tau)
    assert isnan(none.p)


# --- missing values and errors of values


@given(lists(least=6), st.data())
@settings(max_examples=30)
def test_missing_values_are_left_out_and_counted(data, more):
    x, y, groups = data
    lost = np.array(more.draw(st.lists(st.booleans(), min_size=len(x), max_size=len(x))))
    how = Chance(resamples=20, permutations=20)
    found = kendall(np.where(lost, nan, x), y, groups, how=how)
    kept = kendall(x[~lost], y[~lost], groups[~lost], how=how)
    assert (found.n, found.missing) == (int((~lost).sum()), int(lost.sum()))
    assert repr(found) == repr(kept).replace("missing=0", f"missing={lost.sum()}")


def test_errors_of_values_widen_the_interval_and_say_so():
    x, y = copula(0.6, 60, 1)
    plain, exact = kendall(x, y, how=QUICK), kendall(x, y, x_error=np.zeros(60), how=QUICK)
    noisy = kendall(x, y, x_error=np.full(60, 0.5), how=QUICK)
    assert (plain.errors, exact.errors, noisy.errors) == ("ignored", "exact values", "carried")
    assert plain.ignores_errors
    assert not exact.ignores_errors
    assert not noisy.ignores_errors
    assert (exact.low, exact.high) == (plain.low, plain.high)
    assert noisy.tau == plain.tau
    assert noisy.high - noisy.low > 1.1 * (plain.high - plain.low)
    assert noisy.error_spread > 0
    assert exact.error_spread == 0
    half = np.where(np.arange(60) < 20, nan, 0.5)
    assert kendall(x, y, x_error=half, how=QUICK).errors == "not known for 20 of 60 runs"
    assert kendall(x, y, y_error=np.full(60, 0.5), how=QUICK).ignores_errors  # only the target's are known
    assert "ignored" in str(plain)
    assert "ignored" not in str(noisy)


def test_attenuation_is_what_a_dose_of_noise_does():
    """Of Gaussians: tau = 2/pi asin(r), and noise of variance s^2 on x divides r by sqrt(1 + s^2)."""
    x, y = copula(0.6, 300, 2)
    found = kendall(x, y, x_error=np.full(300, 0.7), how=Chance(resamples=100, permutations=9, redraws=30))
    after = 2 / np.pi * np.arcsin(np.sin(0.3 * np.pi) / np.sqrt(1 + 0.49))
    assert found.attenuation == pytest.approx(after - 0.6, abs=0.03)
    assert found.low <= found.tau <= found.high


def test_intervals_with_errors_cover_the_tau_of_what_was_measured():
    hits, n = 0, 30
    true = 2 / np.pi * np.arcsin(np.sin(0.3 * np.pi) / np.sqrt(1 + 0.25))
    for seed in range(200):
        x, y = copula(0.6, n, seed)
        x = x + 0.5 * np.random.default_rng([seed, 1]).normal(size=n)
        found = kendall(x, y, x_error=np.full(n, 0.5), how=Chance(resamples=300, permutations=9, redraws=10, seed=seed))
        hits += found.low <= true <= found.high
    assert hits >= 176  # on the wide side, as it says


def test_everything_is_a_function_of_the_seed():
    x, y = copula(0.3, 25, 3)
    one, again, other = (kendall(x, y, x_error=np.full(25, 0.1), how=Chance(resamples=300, seed=s)) for s in (1, 1, 2))
    assert one == again
    assert one.low != other.low


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: kendall([1, 2], [1, 2, 3]), "two lists of the same length"),
        (lambda: kendall([1, 2], [1, 2], [1]), "2 runs and 1 groups"),
        (lambda: kendall([1, 2], [1, 2], x_error=[-1, 0]), "0 or more"),
        (lambda: kendall([1, 2], [1, 2], x_error=[0]), "2 values and 1 errors"),
        (lambda: tau_a([1, nan], [1, 2]), "missing"),
        (lambda: Chance(level=95), "0.95 for 95 %"),
        (lambda: Chance(resamples=0), "resamples is 0"),
    ],
)
def test_misuse_is_refused(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# --- whole tables


def pool(n=24, seed=0):
    """Runs in two groups; `good` orders test errors within them, `noise` nothing, `rare` is mostly missing."""
    draws = np.random.default_rng(seed)
    runs = []
    for i in range(n):
        x, group = draws.normal(), i % 2
        measures = {"good": Measured(x + 9 * group, 0.01, 8), "noise": Measured(draws.normal(), 0.0)}
        if i < 3:
            measures["rare"] = Measured(float(i))
        error = (x + 0.1 * draws.normal()) / 100 + 0.5 - 0.3 * group
        runs.append(
            Run(str(i), f"run {i}", {"lr": 0.1 * (i % 3)}, {"augment": group}, "done", {"error": error}, measures)
        )
    return Table(runs)


def test_a_table_is_correlated_pooled_within_groups_and_by_group():
    rows = {row.measure: row for row in correlate.correlations(pool(), how=QUICK)}
    good = rows["good"]
    assert good.target == "error"
    assert good.pooled.tau < 0 < 0.7 < good.within.tau  # Simpson's paradox, as in the paper's Figure 5
    assert set(good.by_group) == {"augment=0", "augment=1"}
    assert all(t.n == 12 and t.tau > 0.7 for t in good.by_group.values())
    assert good.within.pairs == 2 * 66
    assert (rows["rare"].pooled.n, rows["rare"].pooled.missing) == (3, 21)
    ps = [row.pooled.p for row in rows.values()]
    assert [row.pooled.adjusted for row in rows.values()] == holm(ps).tolist()
    bh = correlate.correlations(pool(), correction="benjamini-hochberg", how=QUICK)
    assert [row.within.adjusted for row in bh] == benjamini_hochberg([row.within.p for row in bh]).tolist()


def test_a_table_without_groups_has_no_within():
    table = Table([Run(str(i), "", {}, {}, "done", {"e": i}, {"m": Measured(i)}) for i in range(6)])
    (row,) = correlate.correlations(table, how=QUICK)
    assert row.within is None
    assert row.by_group == {}
    alone = correlate.correlation(Column("m", np.arange(6.0), np.full(6, nan)), table.target("e"), how=QUICK)
    assert repr(alone) == repr(row)  # with nan in it, which is not equal to itself
    with pytest.raises(ValueError, match="no measure 'n'"):
        correlate.correlations(table, ["n"])


def test_statistics_and_store_need_no_torch():
    code = "import sys, steppe.studies as s; s.correlate, s.Store, s.export_table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
