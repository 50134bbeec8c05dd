"""Comparisons, the statistics: against brute force, closed forms, published boundaries and simulation."""

from importlib import import_module
from itertools import combinations
from math import comb, inf, sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import t

from steppe.comparison.border import at_border
from steppe.comparison.sequential import Rules, decide, levels, looks_to, spending, worth_of
from steppe.comparison.statistics import (
    Estimated,
    Outcomes,
    curve,
    detectable,
    estimate,
    trials_for,
    weights,
    weights_without,
)
from steppe.core.floor import row_floor
from steppe.core.laws import Choice, Integers, LogUniform, Uniform, as_plain, law_in, law_of, point


def best_of_all_subsets(validation, test, tuning):
    """The mean test error of the best on validation of every subset; ties are broken evenly."""
    found = []
    for chosen in combinations(range(len(validation)), tuning):
        v, e = validation[list(chosen)], test[list(chosen)]
        found.append(e[v == v.min()].mean())
    return np.mean(found)


@given(st.integers(2, 9), st.integers(1, 8), st.integers(0, 10**6), st.booleans())
def test_the_estimate_is_the_mean_over_all_subsets(n, tuning, seed, ties):
    tuning, random = min(tuning, n - 1), np.random.default_rng(seed)
    v = random.integers(0, 4, n) / 10 if ties else random.random(n)
    e = random.random(n)
    assert weights(v, tuning).sum() == pytest.approx(1)
    assert weights(v, tuning) @ e == pytest.approx(best_of_all_subsets(v, e, tuning))
    if tuning < n - 1:
        rows = weights_without(v, tuning)
        for j in range(n):
            left = best_of_all_subsets(np.delete(v, j), np.delete(e, j), tuning)
            assert rows[j] @ e == pytest.approx(left)
            assert rows[j, j] == 0


def test_weights_are_the_binomial_ones():
    v = np.arange(12.0)
    assert weights(v, 5) == pytest.approx([comb(12 - i, 4) / comb(12, 5) for i in range(1, 13)])


def test_variances_are_those_of_their_definitions():
    random = np.random.default_rng(1)
    v, rows = random.random((2, 10)), random.random((2, 10, 40)) < 0.3
    first, second = Outcomes.of(v[0], rows[0]), Outcomes.of(v[1], rows[1])
    found = estimate(first, second, 3)
    left = [
        best_of_all_subsets(np.delete(v[0], j), np.delete(rows[0].mean(1), j), 3)
        - best_of_all_subsets(np.delete(v[1], j), np.delete(rows[1].mean(1), j), 3)
        for j in range(10)
    ]
    assert found.points == pytest.approx(9 / 10 * np.sum((left - np.mean(left)) ** 2))
    g = [sum(w * x for w, x in zip(weights(v[0], 3), rows[0, :, r], strict=True))
         - sum(w * x for w, x in zip(weights(v[1], 3), rows[1, :, r], strict=True)) for r in range(40)]  # fmt: skip
    assert found.value == pytest.approx(np.mean(g))
    assert found.rows == pytest.approx(np.var(g, ddof=1) / 40)
    assert found.stderr == pytest.approx(sqrt(found.points + found.rows))
    assert found.df == pytest.approx(2 * 10 / 3 * (1 + found.rows / found.points) ** 2)
    assert found.p == pytest.approx(2 * t.sf(abs(found.value) / found.stderr, found.df))
    assert found.half_width(0.1) == pytest.approx(t.isf(0.05, found.df) * found.stderr)


def test_a_method_against_itself_differs_by_nothing():
    random = np.random.default_rng(2)
    o = Outcomes.of(random.random(16), random.random((16, 30)) < 0.2)
    found = estimate(o, o, 8)
    assert (found.value, found.stderr, found.p) == (0, 0, 1)
    history = decide({"none": o, "sam": o}, Rules(most=16, worth=0.01))
    assert history[-1]["sam"].verdict == "no difference"


def test_the_tuning_curve_begins_at_the_mean_and_ends_at_half_the_trials():
    random = np.random.default_rng(3)
    o = Outcomes(random.random(12), random.random(12))
    found = list(curve(o))
    assert [e.tuning for e in found] == [1, 2, 3, 4, 5, 6]
    assert found[0].value == pytest.approx(o.test.mean())
    assert found[0].points == pytest.approx(o.test.var(ddof=1) / 12)


def test_more_tuning_than_trials_is_refused():
    o = Outcomes(np.arange(4.0), np.arange(4.0))
    with pytest.raises(ValueError, match="4 trials of a method show the best of up to 3, not of 4"):
        estimate(o, o, 4)


def test_one_look_has_the_whole_level():
    assert levels(0.05, (48,), 0) == pytest.approx(0.05)
    assert spending(0.05, 1.0) == pytest.approx(0.05)
    assert looks_to(8, 48, once=True) == (48,)


def made(n=48, shifts=(0.0, 0.0), sd=0.001, seed=5):
    random = np.random.default_rng(seed)
    base = 0.1 + 0.05 * random.random(n)
    return {
        str(m): Outcomes(base + s + sd * random.normal(size=n), base + s + sd * random.normal(size=n))
        for m, s in enumerate(shifts)
    }


def test_a_look_reads_its_own_trials_alone():
    outcomes = made(96, (0, -0.002, 0.001, 0.0003), sd=0.006)
    rules = Rules(most=96, worth=0.002)
    whole = decide(outcomes, rules)
    for k, n in enumerate(rules.looks):
        cut = {m: o.first(n) for m, o in outcomes.items()}
        assert decide(cut, rules) == whole[: k + 1]
        ahead = {m: o.first(n + 5) for m, o in outcomes.items()}
        assert decide(ahead, rules) == whole[: k + 1]


def test_contenders_that_are_decided_need_no_more_trials():
    outcomes = made(48, (0, -0.03, 0.0))
    first = decide({m: o.first(32) for m, o in outcomes.items()}, Rules(worth=1e-5))
    stopped = next(k for k, look in enumerate(first) if look["1"].verdict == "better")
    n = Rules().looks[stopped]
    assert n < 48
    some = {m: o.first(n) if m == "1" else o for m, o in outcomes.items()}
    assert decide(some, Rules(worth=1e-5))[-1]["1"] == first[-1]["1"]
    assert len(decide(some, Rules(worth=1e-5))) > stopped + 1


def test_holm_passes_the_level_of_a_rejection_on():
    outcomes = made(48, (0, -0.03, -0.03, 0.0), sd=0.004)
    look = decide(outcomes, Rules(worth=1e-5, once=True))[-1]
    assert sorted([look["1"].level, look["2"].level]) == pytest.approx([0.05 / 3, 0.05 / 2])
    assert look["3"].level == pytest.approx(0.05)
    none = decide(made(48, (0, 0, 0, 0), sd=0.004), Rules(worth=1e-5, once=True))[-1]
    assert [c.level for c in none.values()] == pytest.approx([0.05 / 3] * 3)


def test_the_contrasts_keep_the_order_of_the_methods():
    assert list(decide(made(48, (0, 0.01, -0.03, 0.0)), Rules())[-1]) == ["1", "2", "3"]


def test_the_selected_edge_of_the_space_prevents_a_verdict():
    outcomes = made(48, (0, -0.03))
    at_edge = decide(outcomes, Rules(), edges=lambda method, n: ["lr (high)"] if method == "0" else [])
    assert at_edge[-1]["1"].verdict == "cannot tell"
    assert at_edge[-1]["1"].edges == ("lr (high)",)
    assert decide(outcomes, Rules())[-1]["1"].verdict == "better"


def test_the_border_is_the_outer_tenth_with_a_third_of_the_weights():
    v, law = np.arange(16.0), {"lr": LogUniform(1e-3, 1), "epochs": Choice(1, 2)}
    inside = np.full((16, 2), 0.5)
    assert at_border(v, inside, law, 8) == []
    best = inside.copy()
    best[0] = 0.95  # the best of 16 has half of the weights of 8
    assert at_border(v, best, law, 8) == ["lr (high)"]
    best[0] = 0.05
    assert at_border(v, best, law, 8) == ["lr (low)"]
    worst = inside.copy()
    worst[5:] = 0.95
    assert at_border(v, worst, law, 8) == []


def test_the_margin_is_of_the_references_first_trials():
    outcomes = made(48)
    rules = Rules()
    assert worth_of(rules, outcomes["0"]) == worth_of(rules, outcomes["0"].first(16)) == 0.005
    assert worth_of(Rules(worth=0.02), outcomes["0"]) == 0.02


def test_rows_that_cannot_show_it_stop_the_comparison():
    outcomes = made(96, (0, 0.0005))
    last = decide(outcomes, Rules(most=96, worth=0.003), row_variance=0.01**2)[-1]["1"]
    assert (last.verdict, last.why) == ("undecided", "rows")
    assert last.difference.trials < 96
    kept = decide(outcomes, Rules(most=96, worth=0.003), row_variance=0.01**2, futility=False)[-1]["1"]
    assert (kept.verdict, kept.difference.trials) == ("undecided", 96)


def test_detectable_differences_and_trials_are_inverse():
    d = Estimated(0.0, 0.0015**2, 0.0005**2, 0.0005**2, 16, 8)
    q = t.isf(0.025, 12 * (1 + 1 / 3) ** 2) + t.isf(0.2, 12 * (1 + 1 / 3) ** 2)
    assert detectable(d, 48, 0.05) == pytest.approx(q * sqrt(0.0015**2 / 3 + 0.0005**2))
    n = trials_for(d, 0.004, 0.05)
    assert detectable(d, n, 0.05) <= 0.004 < detectable(d, int(n / 1.06), 0.05)
    assert trials_for(Estimated(0.0, 0.0015**2, 0.005**2, 0.005**2, 16, 8), 0.004, 0.05) == inf
    # rows that differ between trials do not stand in the way
    assert trials_for(Estimated(0.0, 0.0015**2, 0.005**2, 0.0, 16, 8), 0.004, 0.05) < inf


def test_the_floor_of_the_rows_is_the_papers_number():
    assert 100 * row_floor(0.1, 1000, 0.1) == pytest.approx(1.53, abs=0.01)
    assert 100 * row_floor(0.1, 1000, 0.5) == pytest.approx(3.42, abs=0.01)


def test_points_are_functions_of_seed_and_number_and_more_settings_change_none():
    seed, z = point(7, 3, 2)
    assert point(7, 3, 2) == (seed, z)
    assert point(7, 3, 5) == (seed, [*z, *point(7, 3, 5)[1][2:]])
    assert len({point(s, i, 1)[0] for s in range(3) for i in range(40)}) == 120
    many = np.array([point(1, i, 2)[1] for i in range(4000)])
    assert many.mean(0) == pytest.approx(0.5, abs=0.02)
    assert np.corrcoef(many.T)[0, 1] == pytest.approx(0, abs=0.06)


def test_laws():
    assert LogUniform(1e-3, 1).at(1 / 3) == pytest.approx(1e-2)
    assert Uniform(1, 3).at(0.25) == 1.5
    assert [Choice(1, 2, 3).at(u) for u in (0, 0.34, 0.999, 1.0)] == [1, 2, 3, 3]
    assert [Integers(2, 4).at(u) for u in (0, 0.33, 0.34, 0.67, 1.0)] == [2, 2, 3, 4, 4]
    for law in (LogUniform(1e-3, 1), Uniform(0, 1), Integers(1, 8), Choice(1, 2), Choice("a"), Choice([["crop"]])):
        assert law_of(as_plain(law)) == law
    written = {"1e-3..1": LogUniform(1e-3, 1), "0..0.9": Uniform(0, 0.9), "10/a": Choice(10, "a"), "cosine": "cosine"}
    assert {text: law_in(text) for text in written} == written
    assert law_in(0.1) == 0.1
    with pytest.raises(ValueError, match=r"write LOW\.\.HIGH"):
        law_in("a..b")
    with pytest.raises(ValueError, match="begins above 0"):
        LogUniform(0, 1)
    with pytest.raises(ValueError, match="from a number to a larger one"):
        Uniform(2, 1)
    with pytest.raises(ValueError, match="from one whole number to another"):
        Integers(1, 2.5)
    with pytest.raises(ValueError, match="no law of a setting"):
        law_of([0, 1])


@pytest.fixture
def simulator(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return import_module("compare")


def test_simulated_comparisons_keep_their_error_rates(simulator):
    """300 of the 1500 replicates of the page: 5 % and four Monte Carlo errors."""
    null = simulator.rates(simulator.TABLE["null, looks to 48"], 300)
    assert null.false < 0.05 + 4 * sqrt(0.05 * 0.95 / 300)
    half = simulator.rates(simulator.TABLE["0.5 better, one look at 48"], 300)
    assert half.equivalent < 0.05 + 4 * sqrt(0.05 * 0.95 / 300)
    assert half.better == pytest.approx(half.expected, abs=0.13)
    assert 0.92 < half.covered < 0.985
    full = simulator.rates(simulator.TABLE["1.0 better, looks to 48"], 100)
    assert full.better > 0.9


def test_simulated_comparisons_without_the_rows_variance_fail(simulator):
    """The simulator can fail: three worlds that break the protocol's assumptions do."""
    assert simulator.rates(simulator.TABLE["null, row noise 0.3, without its variance"], 40).false > 0.5
    repeats = dict(zip(("naive", "bars", "selected"), simulator.COMMON.values(), strict=True))
    wrong = [simulator.common(simulator.NULL, repeats["selected"], seed)[0] for seed in range(200)]
    assert np.mean(wrong) > 0.15
