"""Verdicts of studies: they follow p and interval, hold in simulations, do not flip, and sentences repeat them."""

import csv
import json
from dataclasses import replace
from functools import partial
from importlib import import_module
from math import isfinite, isnan, nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tiers import slow_unless

from steppe._util.formats import json_safe
from steppe.studies import Measured, Run, Table, export_findings
from steppe.studies.correlate import Comparison, Finding, findings
from steppe.studies.statistics import sentences
from steppe.studies.statistics.comparisons import concluded, contenders, contest, paired_error
from steppe.studies.statistics.predictions import RELEVANT, decided


@pytest.fixture(scope="module")
def simulated():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent.parent / "benchmarks"))
        yield import_module("verdicts")


def one(low, high, *, tau=None, pairs=100):
    return Finding("m", "e", "strong", (low + high) / 2 if tau is None else tau, low, high, 36, 0, 18, pairs)


# --- what a verdict needs


@pytest.mark.parametrize(
    ("low", "high", "how", "verdict", "why"),
    [
        (0.1, 0.6, {"rejected": True}, "predicts", "above zero"),
        (-0.6, -0.1, {"rejected": True}, "predicts the opposite", "below zero"),
        (-0.1, 0.6, {"rejected": True}, "cannot tell", "includes zero"),  # p alone is not enough
        (0.1, 0.6, {}, "cannot tell", "not significant after correction for 54"),  # nor the interval
        (0.1, 0.6, {"rejected": True, "open_": True}, "cannot tell", "too close"),
        (-0.2, 0.4, {}, "no sign of it", "includes zero, and the interval excludes 0.5 in either"),
        (0.1, 0.4, {}, "no sign of it", "not significant after correction for 54 tests, and the interval excludes 0.5"),
        (-0.2, 0.5, {}, "cannot tell", "includes zero and 0.5"),
        (-0.6, 0.2, {}, "cannot tell", "includes zero and -0.5"),
        (-0.2, 0.4, {"testable": False}, "cannot tell", "even a perfect order"),
        (nan, nan, {}, "cannot tell", "no interval"),
    ],
)
def test_a_verdict_needs_p_and_interval(low, high, how, verdict, why):
    made = decided(one(low, high), **{"rejected": False, "open_": False, "testable": True, "tests": 54, **how})
    assert made.verdict == verdict
    assert why in made.why


def test_without_pairs_there_is_no_verdict():
    made = decided(one(0.1, 0.6, pairs=0), rejected=True, open_=False, testable=True, tests=1)
    assert made.verdict == "cannot tell"


# --- cases that were wrong


def runs_of(x, y, **config):
    return Table(
        [
            Run(str(i), "", {"lr": i, **config}, {}, "done", {"test_error": float(b)}, {"m": Measured(float(a))})
            for i, (a, b) in enumerate(zip(x, y, strict=True))
        ]
    )


def test_six_runs_with_a_high_tau_cannot_tell():
    """tau -0.87, an interval that included zero, and once "flatter runs have a HIGHER test_error"."""
    found = findings(runs_of([1, 2, 3, 4, 5, 6], [6, 5, 3, 4, 2, 1])).of("m", "test_error")
    assert found.tau == pytest.approx(-13 / 15)
    assert found.p == pytest.approx(stats.kendalltau(range(6), [6, 5, 3, 4, 2, 1]).pvalue)
    few = findings(runs_of([1, 2, 3, 4], [1, 2, 3, 4]))  # the smallest possible p is 0.083
    assert few.of("m", "test_error").verdict == "cannot tell"
    assert isnan(few.of("m", "test_error").smallest_detectable_tau)
    assert "cannot tell whether sharpness predicts test_error" in few.sentence
    assert "no tau could be significant" in few.sentence


@settings(max_examples=60, deadline=None)
@given(st.integers(3, 24), st.integers(1, 3), st.floats(-3, 3), st.integers(0, 10**6), st.booleans())
def test_verdicts_never_contradict_what_is_shown(n, seeds, strength, seed, grouped):
    draws = np.random.default_rng(seed)
    runs = []
    for i in range(n):
        x = draws.normal()
        for s in range(seeds):
            config, groups = (
                {"method": ("none", "sam")[i % 2], "lr": i // 2, "seed": s},
                {"g": i % 2} if grouped else {},
            )
            y = round(strength * x + draws.normal(), 1)
            measures = {"m": Measured(x + 0.3 * draws.normal())}
            runs.append(Run(f"{i}-{s}", "", config, groups, "done", {"test_error": y}, measures))
    found = findings(Table(runs), draws=2000)
    for f in found.findings:
        says_zero = f.low <= 0 <= f.high
        if f.verdict.startswith("predicts"):
            assert f.p_corrected <= 0.05
            assert not says_zero
            assert (f.verdict == "predicts") == (f.tau > 0)
        if f.verdict == "no sign of it":
            assert f.p_corrected > 0.05
            assert max(-f.low, f.high) < RELEVANT
            assert ("the interval includes zero" in f.sentence) == says_zero
        if isfinite(f.low):
            assert -1 <= f.low <= f.tau <= f.high <= 1
            assert sentences.tau_words(f.low) in f.sentence
        assert f.sentence.count("annot tell") == (f.verdict == "cannot tell")
    for c in found.comparisons:
        if c.verdict in ("better", "worse"):
            assert c.p_corrected <= 0.05
            assert c.high < 0 if c.verdict == "better" else c.low > 0
        if c.verdict == "no difference seen":
            assert c.p_corrected > 0.05
            assert max(-c.low, c.high) <= 0.1 * abs(c.reference_mean)
            assert ("the interval includes zero" in c.sentence) == (c.low <= 0 <= c.high)
        assert c.wins + c.losses + c.ties == c.pairs
    names = {
        v: [f.measure for f in found.findings if f.verdict == v and f.hypothesis == "strong"] for v in ("predicts",)
    }
    assert ("m predicts test_error" in found.sentence) == bool(names["predicts"])
    json.dumps(json_safe(found.to_dict()), allow_nan=False)


# --- simulations (benchmarks/verdicts.py has the full ones)


@pytest.mark.slow
def test_studies_without_any_relation_show_no_verdict(simulated):
    """At most 5 % may. Of 40 studies, 5 or more do with a chance of 5 % at that rate, and of 0.1 % at 2 %."""
    shows = [simulated.false_verdicts(simulated.Shape(), seed) for seed in range(40)]
    assert sum(map(any, shows)) <= 4


@pytest.mark.slow
def test_what_is_stated_as_detectable_is_detected(simulated):
    """80 % is the aim; of 30 studies 18 to 30 detect it with a chance of 99.5 %."""
    shape = simulated.Shape(measures=2, targets=1)
    tau = simulated.stated_tau(shape, 4)
    assert 0.35 < tau < 0.7
    detected = sum(simulated.detects(replace(shape, tau=tau), seed) for seed in range(30))
    assert 18 <= detected <= 30
    assert sum(simulated.detects(replace(shape, tau=tau / 2), seed) for seed in range(10)) <= 5


@pytest.mark.parametrize("k", slow_unless(lambda k: k < 60, [8, 18, 60]))
@pytest.mark.parametrize("tau", [0.0, 0.5])
def test_intervals_cover(simulated, k, tau):
    """93 to 97 % is the aim; the bounds are those of 300 pools with a chance of 99.9 %."""
    shape = simulated.Shape(k // 2, 2, tau=tau, measures=1, targets=1, grouped=False)
    hits = sum(map(partial(simulated.covers, shape), range(300)))
    assert stats.binom.ppf(0.0005, 300, 0.93) <= hits <= stats.binom.ppf(0.9995, 300, 0.97)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rates", "seeds", "varies"), [(1, 5, 0.0), (2, 5, 0.0), (3, 3, 1.0), (6, 2, 0.0), (8, 1, 1.0), (12, 2, 1.0)]
)
def test_intervals_of_differences_cover(simulated, rates, seeds, varies):
    """93 to 97 % is the aim, whether configurations agree or not; bounds as above."""
    shape = simulated.Shape(2, rates, seeds, 1, 1, shared=0.0, effect=-1.0, varies=varies)
    hits = sum(map(partial(simulated.covers_difference, shape), range(300)))
    assert stats.binom.ppf(0.0005, 300, 0.93) <= hits <= stats.binom.ppf(0.9995, 300, 0.97)


@pytest.mark.slow
def test_verdicts_do_not_depend_on_the_seed_of_the_permutations(simulated):
    table = simulated.Shape(tau=0.8, measures=3, targets=2).table(np.random.default_rng(1))
    found = [findings(table, seed=s, draws=2000) for s in range(5)]
    assert found[0].of("m0", "t0_error").verdict == "predicts"
    assert all([f.verdict for f in f.findings] == [f.verdict for f in found[0].findings] for f in found)
    assert len({f.of("m1", "t1_error").p for f in found}) > 1  # they are other permutations


# --- methods


def duel(gain, *, rates=4, seeds=3, noise=0.002, **more):
    """A plain optimizer, sam at two radii and asam, where sam at 0.2 has `gain` on top."""
    draws, runs = np.random.default_rng(0), []
    contestants = [("none", None), ("sam", 0.1), ("sam", 0.2), ("asam", 0.5)]
    for method, rho in contestants:
        for rate in range(rates):
            for seed in range(seeds):
                error = 0.1 + 0.01 * rate + noise * draws.normal() + (gain if rho == 0.2 else 0.0)
                config = {"method": method, "rho": rho, "method_options": {}, "lr": rate, "seed": seed}
                meta = {"passes": 20.0 if method == "none" else 40.0, "training_seconds": 3.0}
                targets = {"test_error": error, **{k: v[method] for k, v in more.items()}}
                runs.append(Run(f"{method}{rho}{rate}{seed}", "", config, {}, "done", targets, {}, meta=meta))
    return Table(runs)


def test_a_contender_is_a_method_with_the_options_that_differ():
    assert list(dict.fromkeys(contenders(duel(0)))) == ["none", "sam rho=0.1", "sam rho=0.2", "asam"]


@pytest.mark.parametrize(("gain", "verdict"), [(-0.02, "better"), (0.02, "worse"), (0.0, "no difference seen")])
def test_methods_are_compared_in_pairs(gain, verdict):
    table = duel(gain)
    found = findings(table, targets=["test_error"])
    assert found.reference == "none"
    c = next(c for c in found.comparisons if c.contender == "sam rho=0.2")
    assert c.verdict == verdict
    y = table.target("test_error").values
    d = y[24:36] - y[:12]
    assert c.difference == pytest.approx(d.mean())
    assert (c.pairs, c.configurations) == (12, 4)
    assert (c.wins, c.losses) == (int((d < 0).sum()), int((d > 0).sum()))
    assert (c.passes, c.reference_passes, c.seconds) == (40, 20, 3)
    assert c.warning == ""
    assert (f"sam rho=0.2 ({100 * d.mean():+.2f} points) is {verdict}" in found.method_sentence) == (gain != 0)
    assert "the plain optimizer" in c.sentence
    assert found.tests == 3


def test_the_error_of_a_difference_is_that_of_configurations():
    draws = np.random.default_rng(1)
    codes = np.repeat(np.arange(5), 4)
    d = draws.normal(size=5)[codes] + draws.normal(size=20)
    error, freedom = paired_error(d, codes, 0.0)
    assert (error, freedom) == (pytest.approx(stats.sem(d.reshape(5, 4).mean(1))), 4)
    error, freedom = paired_error(d[:5], np.arange(5), 0.0)
    assert (error, freedom) == (pytest.approx(stats.sem(d[:5])), 4)
    error, freedom = paired_error(d[:4], np.zeros(4, dtype=int), 0.0)  # one configuration: its seeds
    assert (error, freedom) == (pytest.approx(stats.sem(d[:4])), 3)
    assert paired_error(d[:2], np.arange(2), 0.0)[1] == 0
    same, freedom = paired_error(np.full(4, 0.02), np.zeros(4, dtype=int), 0.01)
    assert (same, freedom) == (pytest.approx(0.01 / np.sqrt(24)), 3)  # equal differences by chance are no certainty


@pytest.mark.parametrize("seeds", [1, 5])
def test_few_configurations_are_not_certain_of_what_they_share_by_chance(simulated, seeds):
    """Configurations that differ, without any method being better on average: seeds do not make up for configurations.

    At a level of 1 %, 8 or more of 300 reject with a chance of 1 %.
    """
    shape = simulated.Shape(2, 3, seeds, 1, 1, shared=0.5)
    tables = (shape.table(np.random.default_rng([seed, 14])) for seed in range(300))
    assert sum(contest(table, ["t0_error"]).comparisons[0].p < 0.01 for table in tables) < 8


def test_only_runs_with_the_same_settings_are_pairs():
    table = duel(-0.02)
    some = table.where(lambda run: run.config["method"] != "none" or run.config["lr"] > 0 or run.config["seed"] > 1)
    c = next(c for c in contest(some, ["test_error"]).comparisons if c.contender == "asam")
    assert (c.pairs, c.configurations) == (10, 4)
    apart = table.where(lambda run: (run.config["method"] == "none") == (run.config["lr"] > 1))
    c = contest(apart, ["test_error"]).comparisons[0]
    assert c.pairs == 0
    assert "no run of none has the same seed and settings" in concluded(c, rejected=False, tests=1, level=0.05).why


def test_without_a_plain_optimizer_sam_is_the_reference_or_the_most_frequent_method():
    table = duel(-0.02).where(
        lambda run: run.config["method"] != "none" and not (run.config["rho"] == 0.2 and run.config["lr"])
    )
    found = findings(table, targets=["test_error"])
    assert found.reference == "sam rho=0.1"
    few = table.where(lambda run: run.config["method"] == "asam" or not run.config["seed"])  # asam is more frequent
    assert findings(few, targets=["test_error"]).reference.startswith("sam rho=")
    assert "no plain optimizer" in found.reference_note
    assert "no plain optimizer" in found.method_sentence
    alone = findings(table.where(lambda run: run.config["method"] == "asam"), targets=["test_error"])
    assert alone.comparisons == ()
    assert "nothing to compare" in alone.method_sentence


def test_a_comparison_of_training_length_is_warned_of():
    error = {"none": 0.0, "sam": 0.3, "asam": 0.005}
    found = findings(duel(-0.02, train_error=error), targets=["test_error"])
    warnings = {c.contender: c.warning for c in found.comparisons}
    assert "training errors differ" in warnings["sam rho=0.2"]
    assert "30.0 % and 0.0 %" in warnings["sam rho=0.2"]
    assert warnings["asam"] == ""
    assert "Training errors or losses differ for sam rho=0.2" in found.method_sentence
    loss = findings(duel(-0.02, train_loss={"none": 0.1, "sam": 0.3, "asam": 0.15}), targets=["test_error"])
    assert ["losses" in c.warning for c in loss.comparisons] == [True, True, False]
    gap = findings(duel(-0.02, gap={"none": 0.1, "sam": -0.2, "asam": 0.1}), targets=["test_error"])
    assert [bool(c.warning) for c in gap.comparisons] == [True, True, False]  # the error minus the gap


def test_the_smallest_detectable_difference_has_its_power():
    """The chance that a true difference of that size is significant, from SciPy's noncentral t."""
    c = next(c for c in findings(duel(-0.02), targets=["test_error"]).comparisons if c.contender == "asam")
    critical = stats.t.ppf(1 - 0.05 / 3 / 2, c.freedom)
    power = stats.nct.sf(critical, c.freedom, c.smallest_detectable_difference / c.error)
    assert power == pytest.approx(0.8, abs=1e-6)


# --- output


def test_findings_are_exported_row_by_row(tmp_path, simulated):
    found = findings(simulated.Shape().table(np.random.default_rng(0)), draws=2000)
    with export_findings(found, tmp_path / "findings.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(found.findings) + len(found.comparisons)
    first, row = rows[0], found.findings[0]
    assert (first["measure"], first["verdict"], first["sentence"]) == (row.measure, row.verdict, row.sentence)
    assert float(first["tau"]) == row.tau
    assert rows[-1]["contender"] == found.comparisons[-1].contender


def test_words_for_numbers():
    assert sentences.amount("test_error", 0.0456) == "4.56 %"
    assert sentences.amount("gap", -0.0123, signed=True) == "-1.23 points"
    assert sentences.amount("loss_gap", 0.5, signed=True) == "+0.5"
    assert sentences.tau_words(0.001) == "+0.001"
    assert sentences.tau_words(-0.125) == "-0.12"
    assert sentences.listed(["a", "b", "c"]) == "a, b and c"
    assert isinstance(Comparison, type)


def test_ensembles_are_compared_by_their_strategies():
    """Each strategy against the deep ensemble of the same seed; its own settings are no part of the pairing."""
    strategies = [
        {"strategy": "deep", "method": "none"},
        {"strategy": "deep+sam", "method": "sam", "rho": 0.2},
        {"strategy": "sharpbalance", "method": "sam", "rho": 0.2, "share": 0.3},
        {"strategy": "sharpbalance", "method": "sam", "rho": 0.2, "share": 0.5},
    ]
    runs = [
        Run(
            f"{i} {seed}",
            "",
            {**own, "members": 3, "seed": seed},
            {},
            "done",
            {"test_error": 0.3 - i / 100 + seed / 50},
        )
        for i, own in enumerate(strategies)
        for seed in range(5)
    ]
    made = contest(Table(runs), ["test_error"])
    assert made.reference == "deep"
    found = {c.contender: (c.pairs, round(c.difference, 6)) for c in made.comparisons}
    expected = {"deep+sam": -0.01, "sharpbalance share=0.3": -0.02, "sharpbalance share=0.5": -0.03}
    assert found == {name: (5, difference) for name, difference in expected.items()}


def test_tuned_methods_are_compared_each_at_its_own_setting():
    """Without `tuned`, runs with different learning rates have no partner."""
    runs = [
        Run(f"{method} {s}", "", {"method": method, "lr": lr, "seed": s}, {}, "done", {"test_error": e + s / 50})
        for method, lr, e in [("none", 0.05, 0.3), ("sam", 0.1, 0.4)]
        for s in range(5)
    ]
    (apart,), (tuned,) = (contest(Table(runs), ["test_error"], t).comparisons for t in ((), ("lr",)))
    assert apart.pairs == 0
    assert (tuned.pairs, tuned.configurations, tuned.losses) == (5, 1, 5)
    assert tuned.difference == pytest.approx(0.1)
