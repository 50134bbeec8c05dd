"""Numbers that know their error: against textbook formulas, scipy and coverage; and what they cost, counted."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from math import inf, isnan, nan, sqrt
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from model_cases import SIZES, classification, make
from scipy import stats
from torch import Tensor

from steppe import SAM, Probe
from steppe.core.rows import Part, Row
from steppe.measures.estimate import (
    Cost,
    Estimate,
    Measure,
    NotFinite,
    exact,
    last,
    mean,
    report_points,
    summarise,
    weighted,
)
from steppe.measures.objective import Objective

FLOAT = torch.float64


def draws(n: int, seed: int = 0, columns: tuple[int, ...] = ()) -> Tensor:
    return torch.randn(n, *columns, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))


# -- from draws to a number -------------------------------------------------------------------------------

SAMPLES = st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=20).map(lambda x: torch.tensor(x, dtype=FLOAT))


@settings(max_examples=60, deadline=None)
@given(SAMPLES)
def test_the_error_of_a_mean_is_the_textbooks(x: Tensor) -> None:
    found = summarise(x, "unbiased")
    assert found.value == pytest.approx(float(x.mean()), rel=1e-12, abs=1e-12)
    assert found.stderr == pytest.approx(stats.sem(x.numpy()), rel=1e-9, abs=1e-12)
    assert (found.n, found.kind, found.complete) == (len(x), "unbiased", True)


@settings(max_examples=60, deadline=None)
@given(SAMPLES)
def test_the_jackknife_of_a_mean_is_the_textbooks(x: Tensor) -> None:
    """Not taken from the formula for means, because the statistic does not say that it is one."""
    found = summarise(x, "plug-in", lambda d: d.mean(0))
    assert found.stderr == pytest.approx(stats.sem(x.numpy()), rel=1e-6, abs=1e-7)


@settings(max_examples=60, deadline=None)
@given(SAMPLES, st.floats(0.1, 10), st.floats(-5, 5))
def test_errors_scale_with_the_draws_and_ignore_shifts(x: Tensor, scale: float, shift: float) -> None:
    one, two = summarise(x, "unbiased"), summarise(x * scale + shift, "unbiased")
    assert two.value == pytest.approx(one.value * scale + shift, rel=1e-9, abs=1e-9)
    assert two.stderr == pytest.approx(one.stderr * scale, rel=1e-6, abs=1e-9)


def test_the_jackknife_of_a_variance_is_the_closed_form() -> None:
    """Leaving x_i out changes the sample variance by a quadratic in x_i - mean, whose spread is known."""
    x = draws(40).exp()
    n, away = len(x), x - x.mean()
    without = ((n - 1) * x.var() - n / (n - 1) * away.square()) / (n - 2)
    expected = sqrt(float((n - 1) / n * (without - without.mean()).square().sum()))
    found = summarise(x, "unbiased", lambda d: d.var(0))
    assert found.value == pytest.approx(float(x.var()), rel=1e-12)
    assert found.stderr == pytest.approx(expected, rel=1e-9)


def test_the_error_of_a_variance_is_that_of_normal_theory() -> None:
    n = 2000
    found = summarise(draws(n), "unbiased", lambda d: d.var(0))
    assert found.stderr == pytest.approx(sqrt(2 / (n - 1)), rel=0.1)


def test_the_jackknife_of_a_ratio_is_the_delta_methods() -> None:
    n = 500
    pairs = draws(n, columns=(2,)) * torch.tensor([1.0, 0.5]) + torch.tensor([2.0, 4.0])
    pairs[:, 1] += 0.3 * pairs[:, 0]
    (a, b), c = pairs.mean(0), torch.cov(pairs.T)
    by = torch.stack([1 / b, -a / b**2])
    found = summarise(pairs, "plug-in", lambda d: d[:, 0].mean() / d[:, 1].mean())
    assert found.value == pytest.approx(float(a / b), rel=1e-12)
    assert found.stderr == pytest.approx(sqrt(float(by @ c @ by) / n), rel=0.01)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_draws_that_are_not_finite_are_no_number(bad: float) -> None:
    x = draws(10)
    x[3] = x[7] = bad
    with pytest.raises(NotFinite, match="2 of 10 draws"):
        summarise(x, "unbiased")


def test_a_statistic_that_is_not_finite_is_no_number() -> None:
    with pytest.raises(NotFinite, match=r"statistic of 4 finite draws is -?inf"):
        summarise(torch.zeros(4), "plug-in", lambda d: d.mean(0).log())
    with pytest.raises(NotFinite, match="nan"):
        summarise(torch.zeros(0), "unbiased")
    with pytest.raises(NotFinite, match="inf"):
        exact(inf)


def test_one_draw_cannot_tell_its_error() -> None:
    found = summarise(torch.tensor([2.5]), "unbiased")
    assert found.value == 2.5
    assert isnan(found.stderr)
    assert all(isnan(end) for end in found.interval())
    assert str(found) == "2.5 (unbiased)"


def test_draws_in_low_precision_are_summed_in_high() -> None:
    x = torch.full((4000,), 0.1, dtype=torch.float16)
    assert summarise(x, "unbiased").value == pytest.approx(float(x[0]), rel=1e-12)
    assert summarise(torch.arange(5), "unbiased").value == 2.0
    assert summarise(torch.tensor([1.0, 2.0], requires_grad=True), "unbiased").value == 1.5


def test_the_default_statistic_is_the_mean() -> None:
    x = draws(5, columns=(3,))
    assert torch.equal(mean(x), x.mean(0))


# -- intervals --------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 200), st.sampled_from([0.5, 0.8, 0.95, 0.99]), st.floats(0.01, 100), st.floats(-100, 100))
def test_intervals_are_students(n: int, level: float, stderr: float, value: float) -> None:
    found = Estimate(value, stderr, n, "unbiased").interval(level)
    expected = stats.t.interval(level, n - 1, loc=value, scale=stderr)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("n", [5, 30])
def test_intervals_cover_the_truth_as_often_as_they_say(n: int) -> None:
    ends = [summarise(3 + 2 * draws(n, seed), "unbiased").interval() for seed in range(400)]
    assert 0.92 <= sum(low <= 3 <= high for low, high in ends) / 400 <= 0.98


@pytest.mark.parametrize("n", [30])
def test_intervals_of_a_smooth_function_of_means_cover_as_well(n: int) -> None:
    found = [
        summarise(draws(n, seed) * 0.5 + 2, "plug-in", lambda d: d.mean(0).square()).interval() for seed in range(400)
    ]
    assert 0.92 <= sum(low <= 4 <= high for low, high in found) / 400 <= 0.98


def test_intervals_without_draws() -> None:
    assert exact(2.0).interval() == (2.0, 2.0)
    assert Estimate(2.0, 0.5, 1, "lower bound").interval() == (1.5, 2.5)  # within a residual
    assert Estimate(2.0, 0.5, 1, "upper bound").interval(0.5) == (1.5, 2.5)
    assert all(isnan(end) for end in Estimate(2.0, 0.5, 1, "unbiased").interval())


@pytest.mark.parametrize("level", [95, -0.5])
def test_a_level_in_per_cent_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match=r"level.*between 0 and 1|0 < level < 1"):
        Estimate(2.0, 0.5, 10, "unbiased").interval(level)


# -- how they read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimate", "text"),
    [
        (Estimate(0.041283, 0.0031, 8, "lower bound"), "0.0413 ± 0.0031 (lower bound, n=8)"),
        (Estimate(1234567.0, 890.0, 20, "unbiased"), "(1.23457 ± 0.00089)e+06 (unbiased, n=20)"),
        (exact(3.14159265), "3.14159 (exact)"),
        (exact(3.0, note="dense"), "3 (exact): dense"),
        (Estimate(2.0, nan, 1, "plug-in"), "2 (plug-in)"),
        (Estimate(2.0, 0.1, 4, "unbiased", complete=False), "2.00 ± 0.10 (unbiased, n=4, stopped early)"),
        (
            Estimate(2.0, 0.1, 4, "unbiased", note="why", complete=False),
            "2.00 ± 0.10 (unbiased, n=4, stopped early): why",
        ),
    ],
)
def test_estimates_read_well(estimate: Estimate, text: str) -> None:
    assert str(estimate) == text


def test_stopping_changes_nothing_else() -> None:
    whole = Estimate(2.0, 0.1, 4, "unbiased", Cost(1), "why")
    early = replace(whole, complete=False)
    assert whole.complete
    assert not early.complete
    assert (early.value, early.stderr, early.n, early.kind, early.cost, early.note) == (
        (whole.value, whole.stderr, whole.n, whole.kind, whole.cost, whole.note)
    )


def test_equal_numbers_are_equal_whatever_they_cost() -> None:
    assert Estimate(2.0, 0.1, 4, "unbiased", Cost(1)) == Estimate(2.0, 0.1, 4, "unbiased", Cost(7, seconds=3))
    assert Estimate(2.0, 0.1, 4, "unbiased") != Estimate(2.0, 0.1, 4, "plug-in")


def test_a_measure_ends_with_its_last_estimate() -> None:
    class Counting(Measure):
        def __init__(self, n: int):
            self.n = n

        def running(self, objective: Any, seed: int = 0) -> Iterator[Estimate]:
            for i in range(self.n):
                yield exact(float(i + seed))

    objective = make(classification).objective()
    assert Counting(4).estimate(objective, seed=10).value == 13.0
    assert last(iter([exact(1.0)])).value == 1.0
    with pytest.raises(RuntimeError, match="at least one"):
        Counting(0).estimate(objective)


# -- cost -------------------------------------------------------------------------------------------------

COSTS = st.builds(Cost, *[st.integers(0, 1000).map(float)] * 4)


@settings(max_examples=60, deadline=None)
@given(COSTS, COSTS, COSTS)
def test_costs_add_up(a: Cost, b: Cost, c: Cost) -> None:
    assert a + b == b + a
    assert (a + b) + c == a + (b + c)
    assert a + Cost() == a
    assert (a + b) - b == a
    assert (a + b).products == a.products + b.products


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (Cost(), "nothing"),
        (Cost(seconds=3.0), "nothing"),
        (Cost(1), "1 pass"),
        (Cost(2), "2 passes"),
        (Cost(0.25), "0.25 passes"),
        (Cost(1, 1, 1), "4 passes"),
        (Cost(0, 20, 30.5), "81 passes"),
        (Cost(gradients=1 / 3), "0.333 passes"),
        (Cost(losses=0.05333), "0.0533 passes"),
        (Cost(gradients=sum([0.1] * 10)), "1 pass"),
        (Cost(losses=12345), "12345 passes"),
    ],
)
def test_costs_read_well(cost: Cost, text: str) -> None:
    assert str(cost) == text


def test_a_meter_counts_rows_and_tells_passes_and_the_time() -> None:
    objective = make(classification).objective()
    objective.meter.update(losses=objective.rows, gradients=2 * objective.rows)
    first, second = objective.spent(), objective.spent()
    assert (first.losses, first.gradients, first.products) == (1.0, 2.0, 0.0)
    assert 0 <= (second - first).seconds < 5


def counted(objective: Objective) -> Any:
    spent = objective.spent()
    return pytest.approx((spent.losses, spent.gradients, spent.products), abs=1e-12)


def test_passes_over_all_rows_are_counted() -> None:
    objective = make(classification).objective()
    assert counted(objective) == (0, 0, 0)
    objective.loss()
    assert counted(objective) == (1, 0, 0)
    objective.gradient()
    assert counted(objective) == (1, 1, 0)
    for _ in range(3):
        objective.read(Probe(objective.draw(0).normal()))
    assert counted(objective) == (1, 4, 0)
    objective.read(Probe(grad=False))
    assert counted(objective) == (2, 4, 0)


def test_a_plan_costs_what_its_method_says() -> None:
    objective = make(classification).objective()
    objective.drive(SAM(0.1))
    assert counted(objective) == (0, 2, 0)


def test_passes_over_some_batches_are_counted_in_proportion() -> None:
    objective = make(classification).objective()
    parts = objective.each()
    _, first = next(parts)
    first.gradient()
    assert counted(objective) == (0, SIZES[0] / sum(SIZES), 0)
    next(parts)[1].loss()
    assert counted(objective) == (SIZES[1] / sum(SIZES), SIZES[0] / sum(SIZES), 0)


def test_a_loop_over_all_batches_is_one_pass() -> None:
    objective = make(classification).objective(m=5)
    for _, one in objective.each():
        one.gradient()
        one.loss()
    assert counted(objective) == (1, 1, 0)


def test_passes_over_some_rows_are_counted_in_proportion() -> None:
    objective = make(classification).objective(m=sum(SIZES))
    objective.read(Probe(rows=Part(0, 3)))
    assert counted(objective) == (0, 1 / 3, 0)
    objective.read(Probe(rows=Row(2), grad=False))
    assert counted(objective) == (1 / sum(SIZES), 1 / 3, 0)


def test_objectives_do_not_share_a_meter_unless_one_is_part_of_the_other() -> None:
    case = make(classification)
    one, two = case.objective(), case.objective()
    one.loss()
    assert counted(two) == (0, 0, 0)


# -- the time that numbers take ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 9, 10, 25, 100, 1234, 100_000])
def test_running_estimates_together_take_linear_time(n: int) -> None:
    """Looks end with the last draw, and who stops early loses ten draws or a tenth of them."""
    due = list(report_points(n))
    assert due[-1] == n
    assert all(a < b <= max(a + 10, 1.1 * a + 10) for a, b in pairwise([0, *due]))
    assert sum(due) <= 12 * n


def test_leaving_out_weighted_draws_takes_linear_time() -> None:
    values, weights = draws(300), draws(300, seed=1).exp()
    quick = weighted(values, weights, "unbiased")
    slow = summarise(torch.stack([values * weights, weights], 1), "unbiased", lambda d: d[:, 0].sum() / d[:, 1].sum())
    assert (quick.value, quick.n) == (pytest.approx(slow.value, rel=1e-12), 300)
    assert quick.stderr == pytest.approx(slow.stderr, rel=1e-12)


# -- estimates as values ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["value", "stderr"])
def test_an_estimate_that_is_not_a_number_equals_itself(field: str) -> None:
    """Whichever nan it is: the one of math, one that was computed, or one that was read from a file."""
    numbers = {"value": 1.5, "stderr": 0.5}
    one, two, other = (
        Estimate(**{**numbers, field: x}, n=1, kind="unbiased", cost=Cost(seconds=s))
        for s, x in enumerate([nan, float("inf") - float("inf"), 0.25])
    )
    assert one == two == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(two)
    assert {one, two, other} == {one, other}
    assert one != other
    assert one != "nan"
    assert one != replace(one, note="of another")
    assert one != replace(one, kind="exact")


@given(
    value=st.floats(), stderr=st.floats(), n=st.integers(1, 99), note=st.text(), complete=st.booleans(),
    cost=st.lists(st.floats(allow_nan=False), min_size=4, max_size=4),
)  # fmt: skip
def test_an_estimate_survives_json(
    value: float, stderr: float, n: int, note: str, complete: bool, cost: list[float]
) -> None:
    one = Estimate(value, stderr, n, "plug-in", Cost(*cost), note, complete)
    text = json.dumps(one.to_dict(interval=False), allow_nan=False)
    read = Estimate.from_dict(json.loads(text))
    assert read == one
    assert read.cost == one.cost


@pytest.mark.parametrize(
    "wrong",
    [{}, {"value": "x", "n": 1, "kind": "exact"}, {"value": 1.0, "n": 1, "kind": "exact", "other": 2}, [1.0], None],
)
def test_what_is_no_estimate_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="is no estimate"):
        Estimate.from_dict(wrong)


def test_estimates_need_no_torch() -> None:
    """Studies' tables and pages are made of them."""
    code = "import sys, steppe; steppe.Estimate(1.0, 0.1, 2, 'exact').to_dict(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
