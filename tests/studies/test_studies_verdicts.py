"""Verdicts of studies: they follow p and interval, hold in simulations, do not flip, and sentences repeat them."""

import csv
import json
from dataclasses import replace
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
from steppe.studies.statistics.comparisons import contest
from steppe.studies.statistics.design import contenders
from steppe.studies.statistics.differences import detectable, levels_needed, paired_spread, row_part
from steppe.studies.statistics.findings import decided
from steppe.studies.statistics.predictions import RELEVANT
from steppe.studies.statistics.spread import Part, Spread

CROSSED = ["methods 85 %, 4 x 10 x 2", "methods 85 %, 8 x 5 x 2", "both axes, 4 x 10 x 2", "both axes, 3 x 4 x 2"]
SHARED = ["seeds as large as runs, 10 x 2 shared", "seeds as large as runs, 10 x 5 shared"]


@pytest.fixture(scope="module")
def simulated():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
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
        (0.1, 0.6, {"settled": False}, "cannot tell", "too close"),
        (-0.2, 0.4, {"weaker": True}, "weaker than 0.5", "stronger relations are excluded after correction for 54"),
        (0.1, 0.4, {"weaker": True}, "cannot tell", "excludes zero"),  # never beside an interval without zero
        (-0.2, 0.4, {}, "cannot tell", "stronger relations are not excluded"),
        (-0.2, 0.4, {"able": False}, "cannot tell", "even a perfect order"),
        (nan, nan, {}, "cannot tell", "no interval"),
    ],
)
def test_a_verdict_needs_p_and_interval(low, high, how, verdict, why):
    usual = {"rejected": False, "weaker": False, "settled": True, "able": True, "tests": 54}
    made = decided(one(low, high), **{**usual, **how})
    assert made.verdict == verdict
    assert why in made.why


def test_without_pairs_there_is_no_verdict():
    made = decided(one(0.1, 0.6, pairs=0), rejected=True, weaker=False, settled=True, able=True, tests=1)
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
    assert "no tau can be significant" in few.sentence


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
        if f.verdict == "weaker than 0.5":
            assert f.p_corrected > 0.05 >= f.p_weaker_corrected
            assert abs(f.tau) < f.bound <= RELEVANT
            assert says_zero
        if isfinite(f.low):
            assert -1 <= f.low <= f.tau <= f.high <= 1
            assert sentences.tau_words(f.low) in f.sentence
        assert f.sentence.count("annot tell") == (f.verdict == "cannot tell")
    for c in found.comparisons:
        if c.verdict in ("better", "worse"):
            assert c.p_corrected <= 0.05
            assert c.high < 0 if c.verdict == "better" else c.low > 0
        if c.verdict == "no relevant difference":
            assert c.p_corrected > 0.05 >= c.p_within_corrected
            assert abs(c.difference) < c.bound == pytest.approx(0.1 * abs(c.reference_mean))
            assert c.low <= 0 <= c.high
            assert f"No difference larger than {sentences.bound_words(c)}" in c.sentence
        if isfinite(c.improvement_low):
            assert 0 <= c.improvement_low <= c.improvement <= c.improvement_high <= 1
        assert c.wins + c.losses + c.ties == c.pairs
    names = {
        v: [f.measure for f in found.findings if f.verdict == v and f.hypothesis == "strong"] for v in ("predicts",)
    }
    assert ("m predicts test_error" in found.sentence) == bool(names["predicts"])
    json.dumps(json_safe(found.to_dict()), allow_nan=False)


# --- simulations (benchmarks/verdicts.py has the full ones, with their bars)


def worst(test, studies, share):
    """As many of so many studies as a share of them exceeds with a chance of one in two thousand."""
    return sum(map(test, range(studies))), stats.binom.ppf(0.9995, studies, share)


@pytest.mark.parametrize("name", slow_unless(lambda name: "85 %, 8" in name, CROSSED))
def test_levels_that_runs_share_make_no_relation(simulated, name):
    """Methods explain most of a measure and of a target, independently: 20 to 42 % false verdicts if runs were taken
    as independent."""
    world = replace(simulated.RELATIONS[name], measures=1, targets=1)
    wrong, most = worst(lambda seed: simulated.related(world, seed)[0], 60, 0.05)
    assert wrong <= most


@pytest.mark.parametrize("name", slow_unless(lambda name: "10 x 2 shared" in name, SHARED))
def test_seeds_that_rates_share_make_no_difference(simulated, name):
    """Fifty-nine in a hundred differed with errors over rates alone."""
    wrong, most = worst(lambda seed: simulated.compared(simulated.DIFFERENCES[name], seed)[0], 60, 0.05)
    assert wrong <= most


@pytest.mark.slow
@pytest.mark.parametrize("name", ["independent, 18 of 2 seeds", "both axes, 10 x 10 x 1"])
def test_intervals_of_tau_cover(simulated, name):
    """93 to 97 % is the aim; the bounds are those of 150 pools with a chance of 99.9 %."""
    world = replace(simulated.RELATIONS[name], measures=1, targets=1, r=simulated.BOUND)
    truth = world.truth(500)
    hits = sum(simulated.related_at(world, truth, seed)[1] for seed in range(150))
    assert stats.binom.ppf(0.0005, 150, 0.93) <= hits


@pytest.mark.slow
def test_what_is_stated_as_detectable_is_detected(simulated):
    """80 % is the aim; of 30 studies 18 to 30 detect it with a chance of 99.5 %."""
    world = replace(simulated.POWERS["18 configurations of 2 seeds"], measures=2, targets=1)
    tau = simulated.stated_tau(world, 4)
    assert 0.35 < tau < 0.7
    detected = sum(simulated.related(replace(world, r=np.sin(np.pi * tau / 2)), seed)[3] for seed in range(30))
    assert 18 <= detected <= 30


@pytest.mark.slow
def test_verdicts_do_not_depend_on_the_seed_of_the_permutations(simulated):
    table = simulated.World(9, 2, 2, r=0.95, config=0.6).table(np.random.default_rng(1))
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


@pytest.mark.parametrize(("gain", "verdict"), [(-0.02, "better"), (0.02, "worse"), (0.0, "no relevant difference")])
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
    assert found.tests == 6


def test_the_error_of_a_difference_is_that_of_configurations():
    draws = np.random.default_rng(1)
    codes, own = np.repeat(np.arange(5), 4), np.arange(20)
    d = draws.normal(size=5)[codes] + draws.normal(size=20)
    spread = paired_spread(d, codes, own, {})
    assert (spread.variance**0.5, spread.dominant.freedom) == (pytest.approx(stats.sem(d.reshape(5, 4).mean(1))), 4)
    one = paired_spread(d[:4], np.zeros(4, dtype=int), own[:4], {})  # one configuration: its seeds
    assert (one.variance**0.5, one.dominant.freedom) == (pytest.approx(stats.sem(d[:4])), 3)
    for level in (0.05, 0.001):
        assert one.half(level) == pytest.approx(stats.sem(d[:4]) * stats.t.ppf(1 - level / 2, 3))
    assert one.p(d[:4].mean()) == pytest.approx(stats.ttest_1samp(d[:4], 0).pvalue)
    assert paired_spread(d[:2], codes[:2], own[:2], {}) is None
    same = paired_spread(np.full(4, 0.02), np.zeros(4, dtype=int), own[:4], {}, 0.01)
    assert same.variance**0.5 == pytest.approx(0.01 / np.sqrt(24))  # equal differences by chance are no certainty


def test_crossed_seeds_have_a_part_of_their_own():
    """The mean squares of an analysis of variance, each with its quantile of Student's t."""
    draws = np.random.default_rng(2)
    k, m = 6, 3
    d = draws.normal(size=(k, 1)) + 2 * draws.normal(size=(1, m)) + draws.normal(size=(k, m))
    spread = paired_spread(d.ravel(), np.repeat(np.arange(k), m), np.tile(np.arange(m), k), {})
    of_rate, of_seed = stats.sem(d.mean(1)) ** 2, stats.sem(d.mean(0)) ** 2
    left = d - d.mean(1, keepdims=True) - d.mean(0) + d.mean()
    rest = (left**2).sum() / ((k - 1) * (m - 1)) / (k * m)
    assert [p.variance for p in spread.shared] == pytest.approx([of_rate, of_seed])
    assert spread.residual.variance == pytest.approx(rest)
    assert spread.variance == pytest.approx(of_rate + of_seed - rest)
    t = [stats.t.ppf(0.975, f) ** 2 for f in (k - 1, m - 1)]
    expected = t[0] * (of_rate - rest) + t[1] * (of_seed - rest) + max(t) * rest
    assert spread.half(0.05) == pytest.approx(np.sqrt(expected))
    assert spread.half(spread.p(1.5)) == pytest.approx(1.5)
    assert (spread.dominant.name, spread.dominant.levels) == ("seed", 3)
    nested = paired_spread(d.ravel(), np.repeat(np.arange(k), m), np.arange(k * m), {})
    assert nested.variance == pytest.approx(of_rate)


def test_rows_that_all_runs_get_wrong_together_widen_intervals():
    draws = np.random.default_rng(0)
    base = draws.random(400) < 0.3
    ours, theirs = (np.tile(base ^ (draws.random(400) < 0.2), (6, 1)) for _ in range(2))
    part = row_part(ours, theirs, paired=True)
    g = ours.mean(0) - theirs.mean(0)
    assert part.variance == pytest.approx(g.var(ddof=1) / 400)  # runs agree: nothing is counted twice
    single = [row_part(*(draws.random((2, 6, 400)) < 0.3), paired=True).variance for _ in range(20)]
    assert np.mean(single) < 0.2 * 2 * 0.3 * 0.7 / 6 / 400  # runs differ at random: the variance over runs has it all
    table = duel(-0.02)
    bits = [replace(run, rows=draws.random(500) > run.targets["test_error"]) for run in table.runs]
    known = Table([replace(run, targets={"test_error": 1 - float(run.rows.mean())}) for run in bits])
    found = findings(known, targets=["test_error"])
    assert all(c.rows >= 0 for c in found.comparisons)
    assert "Intervals of test_error include the choice of test samples" in found.row_sentence
    assert all(isnan(c.rows) for c in findings(table, targets=["test_error"]).comparisons)


def test_where_nothing_can_be_paired_runs_are_compared_unpaired():
    table = duel(-0.02, rates=1, seeds=5)
    longer = [
        replace(run, config={**run.config, "epochs": 20 if run.config["method"] == "none" else 10})
        for run in table.runs
    ]
    found = findings(Table(longer), targets=["test_error"])
    c = next(c for c in found.comparisons if c.contender == "sam rho=0.2")
    assert "epochs differ" in c.unpaired
    assert "unpaired" in c.sentence
    assert c.verdict == "better"
    y = table.target("test_error").values.reshape(4, 5)
    assert c.difference == pytest.approx(y[2].mean() - y[0].mean())
    (alone,) = contest(Table(longer[:10]), ["test_error"]).comparisons
    alike = stats.bartlett(*y[:2]).pvalue > 0.5
    assert alone.p == pytest.approx(stats.ttest_ind(y[1], y[0], equal_var=alike).pvalue)


def test_any_setting_can_be_compared():
    draws = np.random.default_rng(0)
    runs = [
        Run(f"{d}{m}{lr}{s}", "", {"method": m, "weight_decay": d, "lr": lr, "seed": 10 * lr + s}, {}, "done",
            {"test_error": 0.2 + 10 * d + 0.05 * lr + 0.002 * draws.normal()})
        for d in (0.0, 0.001, 0.01) for m in ("none", "sam") for lr in range(4) for s in range(2)
    ]  # fmt: skip
    found = findings(Table(runs), targets=["test_error"], compare="weight_decay", reference=0.001)
    assert (found.compare, found.reference) == ("weight_decay", "weight_decay=0.001")
    made = {c.contender: (c.verdict, c.pairs, c.configurations) for c in found.comparisons}
    assert made == {"weight_decay=0.0": ("better", 16, 8), "weight_decay=0.01": ("worse", 16, 8)}
    assert "weight_decay=0.01 (+" in found.method_sentence
    assert findings(Table(runs), targets=["test_error"], compare="weight_decay").reference == "weight_decay=0.0"
    with pytest.raises(ValueError, match=r"no contender 'weight_decay=0.5'.* There are: weight_decay=0.0"):
        findings(Table(runs), compare="weight_decay", reference=0.5)


def test_only_runs_with_the_same_settings_are_pairs():
    table = duel(-0.02)
    some = table.where(lambda run: run.config["method"] != "none" or run.config["lr"] > 0 or run.config["seed"] > 1)
    c = next(c for c in contest(some, ["test_error"]).comparisons if c.contender == "asam")
    assert (c.pairs, c.configurations) == (10, 4)
    apart = table.where(lambda run: (run.config["method"] == "none") == (run.config["lr"] > 1))
    c = contest(apart, ["test_error"]).comparisons[0]
    assert c.unpaired == "no other settings and seed in common: lr differ"


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
    error, spread = 0.02, Spread.of([], Part("", 4, 3, 0.02**2))
    power = stats.nct.sf(stats.t.ppf(1 - 0.05 / 6 / 2, 3), 3, detectable(spread, 0.05 / 6) / error)
    assert power == pytest.approx(0.8, abs=1e-4)
    more = levels_needed(spread, 0.05, 0.01)
    sizes = [detectable(Spread.of([], Part("", k, k - 1, 4 * 0.02**2 / k)), 0.05) for k in (more - 1, more)]
    assert sizes[1] <= 0.01 < sizes[0]


# --- output


def test_findings_are_exported_row_by_row(tmp_path, simulated):
    found = findings(simulated.World().table(np.random.default_rng(0)), draws=2000)
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
    assert "lr differ" in apart.unpaired
    assert (tuned.pairs, tuned.configurations, tuned.losses) == (5, 1, 5)
    assert tuned.difference == pytest.approx(0.1)


def test_a_compared_option_leaves_the_names_of_methods():
    """Radii of SAM are compared among its runs; other methods have none, and seeds of their own are paired by place."""
    runs = [
        Run(f"{rho}{lr}{s}", "",
            {"method": "sam" if rho else "none", "rho": rho, "lr": lr, "seed": 100 * i + 10 * lr + s},
            {}, "done", {"test_error": 0.3 - (rho or 0) + 0.01 * lr + 0.001 * (s + i)})
        for i, rho in enumerate([None, 0.05, 0.1]) for lr in range(4) for s in range(2)
    ]  # fmt: skip
    found = findings(Table(runs), targets=["test_error"], compare="rho")
    (c,) = found.comparisons
    assert (found.reference, c.contender, c.pairs, c.configurations) == ("rho=0.05", "rho=0.1", 8, 4)
    assert (c.verdict, c.unpaired) == ("better", "")
    assert c.difference == pytest.approx(-0.05 + 0.001)
    alone = Table([run for run in runs if run.config["lr"] == 0 and run.config["rho"]])  # seeds share nothing
    (c,) = contest(alone, ["test_error"], compare="rho").comparisons
    y = alone.target("test_error").values
    assert c.p == pytest.approx(stats.ttest_ind(y[2:], y[:2]).pvalue)
