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
from steppe.studies.statistics.design import Design, design_of
from steppe.studies.statistics.findings import able_to_reject
from steppe.studies.statistics.jackknife import Jackknife, row_variances
from steppe.studies.statistics.kendall import pairs, scores, signs
from steppe.studies.statistics.permutation import (
    FIRST,
    MISSING,
    Permutations,
    PermutationTest,
    share_scores,
    tau_scores,
)
from steppe.studies.statistics.predictions import LEVEL
from steppe.studies.statistics.relations import attainable, flattest, relations, score_end, shrunk


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


def nested(codes, **factors):
    """The design of runs of these configurations, with seeds of their own."""
    codes = np.asarray(codes)
    places = np.array([(codes[:i] == c).sum() for i, c in enumerate(codes)], dtype=int)
    return Design(codes, places, {name: np.asarray(levels) for name, levels in factors.items()}, False)


def strong_test(x, y, codes, group=None, normal=False, seed=0):
    group = np.zeros(len(x), dtype=int) if group is None else np.asarray(group)
    score = np.array([signs_of(x, y, group).sum() / 2])
    moved = Permutations(nested(codes), group, seed)
    scores = tau_scores(np.asarray(x)[None], y, group, moved.holes)
    return PermutationTest(score, scores, moved, normal)


# --- the coefficient


@pytest.mark.parametrize("n", [0, 1, 2, 32, 33, 34, 65, 66, 67, 200, 1100])
def test_scores_are_sums_of_signs_with_ties_groups_and_missing_values(n):
    """Against all pairs one by one, at sizes around those of the blocks."""
    draws = np.random.default_rng(n)
    for levels, of, share in ((3, 1, 0.0), (n + 1, 1, 0.2), (n + 1, 3, 0.0), (4, 3, 0.2), (40_000, 1, 0.1)):
        x, group = draws.integers(0, levels, n).astype(float), draws.integers(0, of, n)
        y = np.where(draws.random((4, n)) < share, MISSING, draws.integers(0, levels, (4, n)))
        pairs = (group[:, None] == group) * np.sign(x[:, None] - x)
        there = [(line >= 0)[:, None] & (line >= 0) for line in y]
        expected = [int((pairs * np.sign(v[:, None] - v) * both).sum()) // 2 for v, both in zip(y, there, strict=True)]
        assert scores(np.stack([x, -x]), y, group).tolist() == [expected, [-score for score in expected]]


def test_equal_infinities_are_ties():
    assert pairs([1, np.inf, np.inf, -np.inf, -np.inf], [2, 3, 4, 0, 1]).score == 8


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


# --- designs and their permutations


def made(**columns):
    """Runs with these settings."""
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return Table([Run(str(i), "", row, {}, "done") for i, row in enumerate(rows)])


def test_runs_that_differ_in_their_seed_alone_are_one_configuration():
    configs = [{"lr": lr, "seed": seed} for lr in (1, 2) for seed in (0, 1)]
    runs = [Run(str(i), "", c, {}, "done") for i, c in enumerate(configs)]
    assert design_of(Table(runs)).configuration.tolist() == [0, 0, 1, 1]
    other = Run("4", "", {"lr": 2, "seed": 2}, {"family": "b"}, "done")  # another group is another configuration
    assert design_of(Table([*runs, other])).configuration.tolist() == [0, 0, 1, 1, 2]
    # checkpoints without a configuration are told apart by nothing, and are no repetitions of each other
    alone = design_of(Table([Run(str(i), "", {"seed": 0}, {}, "done") for i in range(3)]))
    assert alone.configuration.tolist() == [0, 1, 2]


def test_the_design_is_read_from_the_settings():
    m, lr, seed = (v.ravel() for v in np.meshgrid(["none", "sam", "asam"], [0.1, 0.2, 0.3, 0.4], [0, 1], indexing="ij"))
    grid = design_of(made(method=m.tolist(), lr=lr.tolist(), seed=seed.tolist()))
    assert {name: int(codes.max()) + 1 for name, codes in grid.factors.items()} == {"method": 3, "lr": 4}
    assert grid.crossed
    assert grid.weakest == (3, "method")
    fresh = (seed + 10 * (10 * lr).astype(int)).tolist()  # the same for all methods at a rate
    assert not design_of(made(method=m.tolist(), lr=lr.tolist(), seed=fresh)).crossed
    # what follows from the method is no factor of its own
    epochs = [40 if one == "none" else 20 for one in m]
    assert list(design_of(made(method=m.tolist(), lr=lr.tolist(), epochs=epochs, seed=fresh)).factors) == [
        "method",
        "lr",
    ]
    draws = np.random.default_rng(0)
    drawn = design_of(made(method=m.tolist(), lr=draws.random(24).tolist(), seed=list(range(24))))
    assert (list(drawn.factors), drawn.crossed, len(set(drawn.configuration.tolist()))) == (["method"], False, 24)
    radii = [None if one == "none" else float(draws.random()) for one in m]  # drawn options are not in the name
    rho = design_of(made(method=m.tolist(), rho=radii, lr=lr.tolist(), seed=fresh))
    assert int(rho.factors["method"].max()) == 2


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
        ([0, 0, 1, 1, 2, 2, 3, 3], [0] * 4 + [1] * 4, 4),
        ([0, 1, 0, 1, 2, 2], [0] * 6, 6),
    ],
)
def test_permutations_move_configurations_as_blocks(codes, group, count):
    moved = Permutations(nested(codes), np.array(group), 0)
    assert moved.count == count
    expected = every_exchange(codes, group)
    assert sorted(map(tuple, moved.all().tolist())) == expected
    drawn, counts = np.unique(moved.batch(0), axis=0, return_counts=True)
    assert drawn.tolist() == [list(e) for e in expected]  # random ones are of the same kind, and all alike
    assert stats.chisquare(counts).pvalue > 1e-4


def test_levels_of_factors_move_as_a_whole():
    """Three methods at two rates with two shared seeds: 3! 2! 2! permutations, found by trying all of 12 cells."""
    m, r, s = (v.ravel() for v in np.meshgrid(range(3), range(2), range(2), indexing="ij"))
    design = Design(2 * m + r, s, {"method": m, "lr": r}, True)
    moved = Permutations(design, np.zeros(12, dtype=int), 0)
    cell = {(a, b, c): i for i, (a, b, c) in enumerate(zip(m.tolist(), r.tolist(), s.tolist(), strict=True))}
    expected = sorted(
        tuple(cell[p[a], q[b], t[c]] for a, b, c in zip(m, r, s, strict=True))
        for p in permutations(range(3)) for q in permutations(range(2)) for t in permutations(range(2))
    )  # fmt: skip
    assert moved.count == len(expected) == 24
    assert sorted(map(tuple, moved.all().tolist())) == expected
    assert set(map(tuple, moved.batch(3).tolist())) == set(expected)
    within = Permutations(design, r, 0)  # groups fix the rates, and so do seeds that methods share
    assert sorted({tuple(m[order]) for order in within.all()}) == sorted(
        {tuple(np.array(p)[m]) for p in permutations(range(3))}
    )
    assert (r[within.all()] == r).all()


@pytest.mark.parametrize("rates", [5, 50])
def test_runs_without_a_partner_leave_their_pairs_out(rates):
    """Also of more runs than 127, whose pairs do not fit into small integers."""
    m, r = (v.ravel() for v in np.meshgrid(range(4), range(rates), indexing="ij"))
    kept, n = np.arange(4 * rates) != 7, 4 * rates - 1
    design = Design(np.arange(n), np.zeros(n, dtype=int), {"method": m[kept], "lr": r[kept]}, False)
    moved = Permutations(design, np.zeros(n, dtype=int), 0)
    rows = moved.batch(0)[:200]
    assert moved.holes
    assert ((rows == MISSING).sum(1) <= 1).all()
    x, y = np.random.default_rng(0).normal(size=(2, n))
    found = tau_scores(x[None], y, np.zeros(n, dtype=int), True)(rows)[0]
    for score, order in zip(found, rows, strict=True):
        there = order >= 0
        expected = signs_of(x[there], y[order[there]]).sum() / (there.sum() * (there.sum() - 1))
        assert score / comb(n, 2) == pytest.approx(expected, abs=1e-5)


def test_a_relation_between_four_methods_has_the_p_of_their_orders():
    """Methods in a perfect order, and nothing within them: 2 of 24 orders are as good, or nearly."""
    draws = np.random.default_rng(0)
    m, lr = (v.ravel() for v in np.meshgrid(range(4), range(10), indexing="ij"))
    x, y = m + 0.1 * draws.normal(size=(2, 40))
    runs = [
        Run(str(i), "", {"method": f"m{a}", "lr": int(b), "seed": 0}, {}, "done", {"e": q}, {"m": Measured(p)})
        for i, (a, b, p, q) in enumerate(zip(m, lr, x, y, strict=True))
    ]
    found = findings(Table(runs), draws=2000).of("m", "e")
    assert found.tau > 0.7
    assert 0.02 < found.p < 1 / 12 + 0.02
    assert found.verdict == "cannot tell"
    assert (found.levels, found.sample) == (4, "method")
    assert found.low <= 0 or found.p <= 0.05
    (within,) = [w for w in found.confounding.within if w.setting == "method"]
    assert within.low < 0 < within.high
    assert "4 methods" in found.sentence


def test_seeds_of_a_configuration_that_is_alone_are_exchangeable():
    assert Permutations(nested([0] * 4), np.zeros(4, dtype=int), 0).count == 24
    assert Permutations(nested([0, 0, 0, 1, 1]), np.array([0, 0, 0, 1, 1]), 0).count == 6 * 2


@settings(max_examples=25, deadline=None)
@given(lists(least=4, most=7, levels=3))
def test_p_of_a_tiny_pool_counts_every_exchange(data):
    x, y, groups = data
    codes, group = np.arange(len(x)), groups.astype(int) % 2
    for label in (np.zeros(len(x), dtype=int), group):
        test = strong_test(x, y, codes, label)
        test.draw(1)
        null = [signs_of(x, y[list(o)], label).sum() for o in every_exchange(codes.tolist(), label.tolist())]
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


def test_large_pools_draw_fewer_permutations_first_and_as_many_where_it_matters():
    n = 1000
    design, one = nested(np.arange(n), method=np.arange(n) % 4), np.zeros(n, dtype=int)
    moved, whole = Permutations(design, one, 0), Permutations(design, one, 0)
    test = PermutationTest(np.zeros(1), lambda rows: np.ones((1, len(rows))), moved, normal=False)
    assert [test.draw(times) for times in (FIRST, FIRST)] == [True, True]
    assert test.draws == FIRST
    assert not test.draw(2 * FIRST)
    again = PermutationTest(np.zeros(1), lambda rows: np.ones((1, len(rows))), moved, normal=False)
    again.draw(FIRST)
    assert again.draws == 4000
    whole.size = 2000  # a smaller batch is the beginning of a larger one
    assert (moved.batch(5) == whole.batch(5)[: moved.size]).all()


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
    one, again, other = (Permutations(nested(np.arange(12)), np.zeros(12, dtype=int), seed) for seed in (5, 5, 6))
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
    assert (found.n, found.configurations, found.pairs) == (17, 9, comb(17, 2))


def test_the_jackknife_leaves_out_the_levels_of_every_factor():
    """Sums of squares of the factors, taken from those of configurations, leave the residual."""
    draws = np.random.default_rng(3)
    m, r = (v.ravel() for v in np.meshgrid(range(4), range(6), indexing="ij"))
    x, y = draws.normal(size=(2, 24))
    design = Design(np.arange(24), np.zeros(24, dtype=int), {"method": m, "lr": r}, False)
    left_out = Jackknife(design, np.zeros(24, dtype=int))
    agree, every = (signs(x) * signs(y)).astype(float), 1.0 - np.eye(24)
    tau, without = left_out.without(agree, every)
    assert tau == pytest.approx(tau_a(x, y))
    spread = left_out.spread(without)
    parts = {}
    for name, codes in (("", np.arange(24)), ("method", m), ("lr", r)):
        values = np.array([tau_a(x[codes != c], y[codes != c]) for c in range(codes.max() + 1)])
        k = len(values)
        parts[name] = (k - 1, (k - 1) / k * ((values - values.mean()) ** 2).sum())
    assert {p.name: (p.freedom, p.variance) for p in spread.shared} == {
        name: (parts[name][0], pytest.approx(parts[name][1])) for name in ("method", "lr")
    }
    squares = 23 * parts[""][1] - sum(f * v for f, v in (parts["method"], parts["lr"]))
    assert spread.residual.variance == pytest.approx(max(squares / 15, 0))


def test_a_perfect_order_has_an_interval_and_few_configurations_have_none():
    perfect = findings(pool(np.arange(20.0), np.arange(20.0), range(20)))
    one = perfect.of("m", "e")
    assert one.tau == one.high == 1
    by_jackknife, by_chance = 1 - stats.t.ppf(0.975, 19) / 40, score_end(1.0, -1, np.sqrt(2 * 45 / (9 * 20 * 19)))
    assert one.low == pytest.approx((by_jackknife + by_chance) / 2, abs=0.01)
    assert one.verdict == "predicts"
    few = findings(pool(np.arange(4.0), np.arange(4.0), range(4))).of("m", "e")
    assert isnan(few.low)
    assert isnan(few.high)


def test_the_spread_of_tau_shrinks_as_for_normal_variables():
    """At the end of an interval, the observed tau is 1.96 of the spread away; the spread is checked by simulation."""
    end = score_end(0.4, 1, 0.15)
    assert end - 0.4 == pytest.approx(1.96 * 0.15 * shrunk(end), abs=1e-3)
    draws = np.random.default_rng(0)
    r, n = np.sin(np.pi * 0.5 / 2), 40
    taus = []
    for _ in range(1500):
        x, e = draws.normal(size=(2, n))
        taus.append(stats.kendalltau(x, r * x + np.sqrt(1 - r**2) * e).statistic)
    assert np.std(taus) == pytest.approx(np.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1))) * shrunk(0.5), rel=0.08)


@pytest.mark.parametrize(("x", "y", "most"), [([1, 2, 3, 4], [0, 0, 0, 1], 0.5), ([1, 1, 2, 2], [0, 0, 1, 1], 4 / 6)])
def test_ties_limit_what_tau_can_be(x, y, most):
    x, y = np.array(x, dtype=float), np.array(y, dtype=float)
    assert attainable(x, y, np.zeros(4, dtype=int)) == pytest.approx(most)
    assert max(tau_a(x, y[list(o)]) for o in permutations(range(4))) == pytest.approx(most)


def test_test_rows_that_differ_between_runs_together_widen_tau():
    """Two families of runs are wrong on other rows: which of them errs more depends on the rows that were drawn."""
    draws = np.random.default_rng(0)
    family = np.repeat([0, 1], 10)
    x, one = (family + 0.01 * draws.normal(size=20))[None], np.zeros(20, dtype=int)
    hard = draws.random((2, 400)) < 0.2
    together = hard[family] ^ (draws.random((20, 400)) < 0.01)
    apart = draws.random((20, 400)) < 0.2
    wide, narrow = (float(row_variances(x, wrong.mean(1), one, wrong)[0]) for wrong in (together, apart))
    assert wide > 0.01
    assert narrow < 0.2 * wide
    assert row_variances(x, apart.mean(1), one, None).tolist() == [0]


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
