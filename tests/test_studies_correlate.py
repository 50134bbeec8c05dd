"""Kendall's tau, permutations of configurations, the jackknife and corrections: against brute force and SciPy."""

import subprocess
import sys
from itertools import permutations
from math import comb, isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.studies import Measured, Run, Table
from steppe.studies.correlate import findings, holm, tau_a, tau_b
from steppe.studies.statistics.findings import able_to_reject
from steppe.studies.statistics.kendall import pairs, signs
from steppe.studies.statistics.permutation import (
    Clusters,
    Permutations,
    PermutationTest,
    configurations,
    jackknife_error,
    share_scores,
    tau_scores,
)
from steppe.studies.statistics.predictions import LEVEL, flattest, interval, relations


def lists(least=2, most=40, levels=12):
    """Two lists over the same runs and their groups, with many ties."""
    value, group = st.integers(-levels, levels), st.integers(0, 3)
    rows = st.lists(st.tuples(value, value, group), min_size=least, max_size=most)
    return rows.map(lambda r: tuple(np.array(column, dtype=float) for column in zip(*r, strict=True)))


def signs_of(x, y, groups=None):
    """Eq. 4 written out: the sign of every pair."""
    table = np.sign(x[:, None] - x) * np.sign(y[:, None] - y)
    return table if groups is None else table * (groups[:, None] == groups)


def pool(x, y, configuration, groups=None):
    """Runs with a measure m and a target e; seeds count up within a configuration."""
    runs = []
    for i, (a, b, c) in enumerate(zip(x, y, configuration, strict=True)):
        seed = int(sum(c == d for d in configuration[:i]))
        group = {} if groups is None else {"group": int(groups[i])}
        config = {"lr": int(c), "seed": seed}
        runs.append(Run(str(i), str(i), config, group, "done", {"e": float(b)}, {"m": Measured(float(a))}))
    return Table(runs)


def strong_test(x, y, codes, group=None, normal=False, seed=0):
    clusters = Clusters(np.asarray(codes), np.zeros(len(x), dtype=int) if group is None else np.asarray(group))
    same = clusters.group[:, None] == clusters.group
    score = np.array([signs_of(x, y, clusters.group).sum() / 2])
    scores = tau_scores((signs(x) * same).astype(np.float32)[None], y)
    return PermutationTest(score, scores, Permutations(clusters.blocks(), len(x), seed), normal)


# --- the coefficient


@settings(max_examples=50)
@given(lists())
def test_tau_is_equation_4_and_scipys_tau_b(data):
    x, y, groups = data
    n = len(x)
    assert tau_a(x, y) == pytest.approx(signs_of(x, y).sum() / (n * (n - 1)), abs=1e-12)
    assert pairs(x, y, groups).score == signs_of(x, y, groups).sum() / 2
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


def test_ties_count_zero_and_the_denominator_does_not_shrink():
    assert tau_a([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / 3)
    assert tau_b([1, 1, 2], [1, 2, 3]) == pytest.approx(2 / np.sqrt(6))
    assert tau_a([1, 1, 1], [1, 2, 3]) == 0
    assert isnan(tau_a([1], [2]))
    with pytest.raises(ValueError, match="missing"):
        tau_a([1, nan], [1, 2])
    with pytest.raises(ValueError, match="same length"):
        tau_a([1, 2], [1, 2, 3])


# --- configurations and their permutations


def test_runs_that_differ_in_their_seed_alone_are_one_configuration():
    configs = [{"lr": lr, "seed": seed} for lr in (1, 2) for seed in (0, 1)]
    runs = [Run(str(i), "", c, {}, "done") for i, c in enumerate(configs)]
    assert configurations(Table(runs)).tolist() == [0, 0, 1, 1]
    other = Run("4", "", {"lr": 2, "seed": 2}, {"family": "b"}, "done")  # another group is another configuration
    assert configurations(Table([*runs, other])).tolist() == [0, 0, 1, 1, 2]
    # checkpoints without a configuration are told apart by nothing, and are no repetitions of each other
    assert configurations(Table([Run(str(i), "", {"seed": 0}, {}, "done") for i in range(3)])).tolist() == [0, 1, 2]


def every_exchange(codes, group):
    """All permutations of the rows that move configurations as blocks, found by trying every permutation of rows."""
    n = len(codes)
    members = {c: [i for i in range(n) if codes[i] == c] for c in codes}
    allowed = []
    for order in permutations(range(n)):
        whole = all([order[i] for i in rows] in members.values() for rows in members.values())
        if whole and all(group[i] == group[order[i]] for i in range(n)):
            allowed.append(order)
    return sorted(allowed)


@pytest.mark.parametrize(
    ("codes", "group", "count"),
    [
        ([0, 0, 1, 1, 2, 2], [0] * 6, 6),
        ([0, 1, 1, 2, 2, 3, 4], [0] * 7, 6 * 2),  # only configurations of equal size change places
        ([0, 0, 1, 1, 2, 2, 3, 3], [0] * 4 + [1] * 4, 4),
        ([0, 1, 0, 1, 2], [0] * 5, 2),
    ],
)
def test_permutations_move_configurations_as_blocks(codes, group, count):
    clusters = Clusters(np.array(codes), np.array(group))
    made = Permutations(clusters.blocks(), len(codes), 0)
    assert made.count == count
    expected = every_exchange(codes, group)
    assert sorted(map(tuple, made.all().tolist())) == expected
    drawn, counts = np.unique(made.batch(0), axis=0, return_counts=True)
    assert drawn.tolist() == [list(e) for e in expected]  # random ones are of the same kind, and all alike
    assert stats.chisquare(counts).pvalue > 1e-4


def test_seeds_of_a_configuration_that_is_alone_are_exchangeable():
    alone = Clusters(np.zeros(4, dtype=int), np.zeros(4, dtype=int))
    assert Permutations(alone.blocks(), 4, 0).count == 24
    each = Clusters(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 1]))
    assert Permutations(each.blocks(), 5, 0).count == 6 * 2


@settings(max_examples=25, deadline=None)
@given(lists(least=4, most=7, levels=3), st.lists(st.integers(0, 3), min_size=7, max_size=7))
def test_p_of_a_tiny_pool_counts_every_exchange(data, codes):
    x, y, groups = data
    codes, group = np.array(codes[: len(x)]), groups.astype(int) % 2
    for label in (np.zeros(len(x), dtype=int), group):
        clusters = Clusters(codes, label)
        test = strong_test(x, y, codes, label)
        test.draw(1)
        null = [signs_of(x, y[list(o)], label).sum() for o in every_exchange(clusters.code.tolist(), label.tolist())]
        observed = abs(signs_of(x, y, label).sum())
        low, p, high = test.p()
        assert p[0] == low[0] == high[0] == pytest.approx(np.mean(np.abs(null) >= observed))
        assert test.spread[0] == pytest.approx(np.sqrt(np.mean(np.square(null))) / 2)
        assert test.smallest_p[0] == pytest.approx(np.mean(np.abs(null) == np.max(np.abs(null))))


def test_p_without_seeds_is_scipys_and_drawn_permutations_agree_with_all():
    draws = np.random.default_rng(3)
    x, y = draws.permutation(8.0 + np.arange(8)), np.arange(8.0)
    test = strong_test(x, y, np.arange(8))
    test.draw(1)
    assert test.p()[1][0] == pytest.approx(stats.kendalltau(x, y, method="exact").pvalue)
    x, y = draws.normal(size=(2, 30))
    y += 0.5 * x
    drawn = strong_test(x, y, np.arange(30))
    drawn.draw(20_000)
    low, p, high = drawn.p()
    assert low[0] < stats.kendalltau(x, y, method="exact").pvalue < high[0]
    assert low[0] < p[0] < high[0] < 2 * p[0]


def test_the_normal_limit_is_close_to_permutations_of_sixty_configurations():
    draws = np.random.default_rng(0)
    codes = np.repeat(np.arange(60), 2)
    x, y = draws.normal(size=(2, 60))
    x, y = (np.repeat(v, 2) + 0.5 * draws.normal(size=120) for v in (x, y + 0.85 * x))
    limit, drawn = strong_test(x, y, codes, normal=True), strong_test(x, y, codes)
    limit.draw(10_000)
    drawn.draw(100_000)
    assert 1e-4 < drawn.p()[1][0] < 0.01
    assert limit.p()[0][0] < drawn.p()[1][0] < limit.p()[2][0]
    assert limit.draws == 4_000 - 4_000 % 2_000


def test_the_weak_score_is_that_of_mann_and_whitney():
    draws = np.random.default_rng(1)
    x, y = draws.normal(size=25), draws.integers(0, 9, size=25).astype(float)
    flat = flattest(x)
    order = -signs(y).astype(float).sum(1)
    score = share_scores(flat[None], order)(np.arange(25)[None])[0, 0]
    u = stats.mannwhitneyu(y[~flat], y[flat]).statistic
    assert score == pytest.approx(2 * u - flat.sum() * (~flat).sum())
    found = next(r for r in relations(pool(x, y, range(25)), ["m"], ["e"], 0) if r.findings[0].hypothesis == "weak")
    assert found.findings[0].tau == pytest.approx(score / (flat.sum() * (~flat).sum()))
    assert found.findings[0].flattest == 3
    assert flattest(np.array([0.0, 1, 1, 1, 2, 3])).tolist() == [True] * 4 + [False] * 2  # tied at the border


def test_random_permutations_are_a_function_of_seed_and_number():
    blocks = Clusters(np.arange(12), np.zeros(12, dtype=int)).blocks()
    one, again, other = (Permutations(blocks, 12, seed) for seed in (5, 5, 6))
    assert (one.batch(9) == again.batch(9)).all()
    assert (one.batch(0) == again.batch(0)).all()
    assert (one.batch(0) != one.batch(1)).any()
    assert (one.batch(0) != other.batch(0)).any()


# --- corrections


@settings(max_examples=50)
@given(st.lists(st.floats(0, 1) | st.just(nan), max_size=12))
def test_holms_correction_is_its_definition(p):
    there = [v for v in p if not isnan(v)]
    m = len(there)

    def rejected(v, level):  # step by step: the smallest against level / m, the next against level / (m - 1), ...
        for step, u in enumerate(sorted(there)):
            if u > level / (m - step):
                return False
            if u == v:
                return True
        return False

    for value, corrected in zip(p, holm(p), strict=True):
        assert isnan(value) == isnan(corrected)
        for level in (0.01, 0.05, 0.3):
            if not isnan(value) and abs(corrected - level) > 1e-9:
                assert rejected(value, level) == (corrected <= level)


def test_tests_that_could_never_reject_do_not_count():
    assert able_to_reject([0.5, 0.5, 0.0]).tolist() == [False, False, True]
    assert able_to_reject([0.016, 0.016, 0.0]).tolist() == [True] * 3  # 0.05 / 3 is 0.0167
    assert able_to_reject([0.02, 0.02, 0.0]).tolist() == [False, False, True]
    assert able_to_reject([0.02, 0.5, 0.0]).tolist() == [True, False, True]  # two tests that count
    assert able_to_reject([np.inf]).tolist() == [False]
    assert able_to_reject([]).tolist() == []
    k = 40
    able = able_to_reject(np.linspace(0, 0.01, k))
    assert 0 < able.sum() < k
    assert able.sum() <= LEVEL / np.linspace(0, 0.01, k)[able].max()


# --- intervals


def test_the_jackknife_leaves_out_configurations():
    draws = np.random.default_rng(2)
    codes = np.repeat(np.arange(9), [1, 2, 3, 2, 1, 2, 2, 1, 3])
    x, y = draws.normal(size=(2, len(codes)))
    found = next(relations(pool(x, y, codes), ["m"], ["e"], 0)).findings[0]
    without = np.array([tau_a(x[codes != c], y[codes != c]) for c in range(9)])
    error = np.sqrt(8 / 9 * ((without - without.mean()) ** 2).sum())
    half = stats.t.ppf(0.975, 8) * error
    assert (found.low, found.high) == pytest.approx((found.tau - half, found.tau + half))
    assert jackknife_error(without) == pytest.approx(error)
    assert (found.n, found.configurations, found.pairs) == (17, 9, comb(17, 2))


def test_a_perfect_order_has_an_interval_and_few_configurations_have_none():
    perfect = findings(pool(np.arange(20.0), np.arange(20.0), range(20)))
    one = perfect.of("m", "e")
    assert one.tau == one.high == 1
    assert one.low == pytest.approx(1 - stats.t.ppf(0.975, 19) / 40)
    assert one.verdict == "predicts"
    assert all(map(isnan, interval(0.5, np.array([0.4, 0.5, 0.6, 0.5]))))
    assert all(map(isnan, interval(0.5, np.array([0.4, 0.5, nan, 0.5, 0.5, 0.5]))))


def test_intervals_within_groups_are_of_pairs_within_groups():
    draws = np.random.default_rng(4)
    groups = np.repeat([0, 1], 12)
    x, y = draws.normal(size=(2, 24))
    table = pool(x + 9 * groups, y - 9 * groups, range(24), groups)
    found = findings(table, draws=2000)
    row = found.of("m", "e", "within groups")
    assert row.tau == pytest.approx(pairs(x, y, groups).tau_a)
    assert found.of("m", "e").tau < 0  # Simpson's paradox, as in the paper's Figure 5
    assert {g.group: g.tau for g in row.by_group} == {
        f"group={g}": pytest.approx(tau_a(x[groups == g], y[groups == g])) for g in (0, 1)
    }
    assert [(g.n, g.configurations) for g in row.by_group] == [(12, 12)] * 2


# --- whole tables


def test_missing_values_are_left_out_and_counted():
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(2, 24))
    lost = np.arange(24) % 5 == 0
    whole = findings(pool(x[~lost], y[~lost], np.flatnonzero(~lost)), draws=2000)
    part = findings(pool(np.where(lost, nan, x), y, range(24)), draws=2000)
    for a, b in zip(whole.findings, part.findings, strict=True):
        assert (b.n, b.missing) == (19, 5)
        assert (a.tau, a.low, a.p) == (b.tau, b.low, b.p)


def test_results_do_not_depend_on_the_order_of_measures_or_on_other_measures():
    draws = np.random.default_rng(0)
    names = [f"m{i}" for i in range(4)]
    runs = [
        Run(str(i), "", {"lr": i}, {}, "done", {"e": draws.normal()}, {n: Measured(draws.normal()) for n in names})
        for i in range(15)
    ]
    one, other = (findings(Table(runs), order, draws=2000) for order in (names, names[::-1]))
    for f in one.findings:
        assert repr(other.of(f.measure, f.target, f.hypothesis)) == repr(f)
    alone = findings(Table(runs), ["m2"], draws=2000).of("m2", "e")
    assert (alone.p, alone.low) == (one.of("m2", "e").p, one.of("m2", "e").low)
    with pytest.raises(ValueError, match="no measure 'n'"):
        findings(Table(runs), ["n"])


@pytest.mark.parametrize("n", [0, 1, 2])
def test_a_study_that_has_hardly_begun_cannot_tell(n):
    found = findings(pool(range(n), range(n), range(n)))
    assert {f.verdict for f in found.findings} <= {"cannot tell"}
    assert found.sentence
    assert found.comparisons == ()


def test_statistics_and_store_need_no_torch():
    code = "import sys, steppe.studies as s; s.correlate, s.Store, s.export_table; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
