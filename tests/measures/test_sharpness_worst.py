"""Worst-case sharpness: against exact maxima and brute force, inside its ball, invariant where it should be."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.curvature import gradient
from oracles.flat import Landscape
from oracles.sharpness import polar_grid, trust_region, vertices
from problems import conv_problem, each_cross_entropy, flat_parts, flat_weights, random_hessian, random_vector
from sharpness_problems import FLOAT, MAGNITUDE, bowl, classifier, network, rescaled, scaled_by, surface, waves
from sites import flat
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import SAM, Ball, Elementwise, Filterwise, NormLayersOnly
from steppe.core.metric import CustomScales
from steppe.measures.estimate import NotFinite, with_cost
from steppe.measures.objective import Objective
from steppe.measures.sharpness import OneStep
from steppe.measures.worst_case import AscentProblem, AutoPGD, Point, PowerAscent, ProjectedAscent, WorstCase

NORMS = [1.0, 1.5, 2.0, 3.0, inf]
CLIMBS = {"power": PowerAscent(), "auto-pgd": AutoPGD(), "projected": ProjectedAscent()}
PATIENT = {"power": PowerAscent(rtol=-1.0), "auto-pgd": AutoPGD()}  # which do not end early

seeds = st.integers(0, 10**6)


def patient(ball: Ball, climb: str = "power", steps: int = 50, starts: int = 3) -> WorstCase:
    return WorstCase(ball, steps, starts, PATIENT[climb])


def length(d: Tensor, scales: Tensor, p: float) -> float:
    """||d / scales||_p, infinite if d moves where the scale is 0."""
    free = scales > 0
    return inf if d[~free].any() else float(torch.linalg.vector_norm(d[free] / scales[free], p))


def loss_of(objective: Objective) -> Landscape:
    """The objective's loss on its only batch as a function of the flat weights."""
    (x, y), *others = objective.batches
    assert not others
    return Landscape(objective.model, objective.loss_fn, x, y)


# -- exact maxima -----------------------------------------------------------------------------------------------

SCALES = torch.tensor([0.5, 2.0, 0.0, 1.0, 0.3], dtype=FLOAT)
METRICS = {"euclidean": None, "given, one pinned": scaled_by(SCALES), "magnitude": MAGNITUDE}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("climb", sorted(PATIENT))
@pytest.mark.parametrize(
    ("lowest", "steepness"), [(0.5, 0.0), (0.5, 1.0), (-1.0, 0.0), (-1.0, 1.0), (-6.0, 0.1), (-6.0, 1.0)]
)
@pytest.mark.parametrize("metric", sorted(METRICS))
def test_on_quadratics_it_is_the_maximum_of_the_trust_region_problem(metric, lowest, steepness, climb):
    """At and away from critical points, around minima, saddles and near maxima."""
    h, w, slope = random_hessian(5, 1, lowest), random_vector(5, 2), steepness * random_vector(5, 3)
    c = {"euclidean": torch.ones(5, dtype=FLOAT), "given, one pinned": SCALES, "magnitude": w.abs()}[metric]
    exact = trust_region(slope, h, 0.7, c).rise
    found = patient(Ball(0.7, METRICS[metric]), climb).estimate(bowl(h, w, slope)).value
    close = 0.05 if lowest == -6 and steepness else 2e-3  # the maximum lies inside, where steps must shrink
    assert exact * (1 - close) <= found <= exact * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("seed", range(8))
def test_by_default_it_finds_most_of_the_maximum_of_any_quadratic(seed):
    lowest, steepness, rho = (-1.0, -3.0, -8.0, 0.5)[seed % 4], (0.1, 1.0)[seed % 2], (0.3, 2.0)[seed // 4]
    h, slope = random_hessian(4, seed, lowest), steepness * random_vector(4, seed + 2)
    exact = trust_region(slope, h, rho).rise
    found = WorstCase(Ball(rho)).estimate(bowl(h, random_vector(4, seed + 1), slope), seed).value
    assert 0.9 * exact <= found <= exact * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(6))
def test_at_an_exact_minimum_it_is_half_the_largest_eigenvalue_times_rho_squared(seed):
    """The gradient is zero at the centre, which does not mean that the loss is flat."""
    values = torch.tensor([5.0, 2.0, 1.0, 0.5, 0.1, 0.0], dtype=FLOAT)
    basis, _ = torch.linalg.qr(random_vector(36, seed).reshape(6, 6))
    found = WorstCase(Ball(0.3)).estimate(bowl(basis @ values.diag() @ basis.T, torch.zeros(6, dtype=FLOAT)), seed)
    assert found.value == pytest.approx(0.3**2 / 2 * 5, rel=5e-3)


@pytest.mark.parametrize("d", [3, 10, 30])
def test_at_a_minimum_whose_eigenvalues_crowd_patience_finds_the_largest(d):
    objective, exact = bowl(random_hessian(d), torch.zeros(d, dtype=FLOAT)), 0.3**2 / 2 * (d - 0.5)
    quick = [WorstCase(Ball(0.3)).estimate(objective, seed).value for seed in range(5)]
    assert all(0.85 * exact <= value <= exact * (1 + 1e-9) for value in quick)
    assert patient(Ball(0.3), steps=100, starts=2).estimate(objective).value == pytest.approx(exact, rel=2e-3)


@pytest.mark.parametrize("metric", sorted(METRICS))
@pytest.mark.parametrize(("p", "rho"), [(inf, 0.4), (1.0, 1.5)])
def test_in_boxes_and_cross_polytopes_it_is_the_highest_corner(p, rho, metric):
    """Where the loss is convex the maximum is at a corner; a climb may end at another one, many seldom do."""
    h, w = random_hessian(5, 4), random_vector(5, 5)
    c = {"euclidean": torch.ones(5, dtype=FLOAT), "given, one pinned": SCALES, "magnitude": w.abs()}[metric]
    exact = vertices(lambda v: v @ h @ v / 2, w, rho, p, c).rise
    found = WorstCase(Ball(rho, METRICS[metric], p), starts=12).estimate(bowl(h, w)).value
    assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("p", "climb"), [(1.0, "power"), (2.0, "power"), (inf, "power"), (2.0, "auto-pgd"), (inf, "auto-pgd")]
)
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_in_two_dimensions_it_is_what_brute_force_finds(seed, p, climb):
    f, w, c = waves(seed), random_vector(2, seed), torch.tensor([1.0, 0.5], dtype=FLOAT)
    exact = polar_grid(f, w, 1.2, p, c).rise
    found = patient(Ball(1.2, scaled_by(c), p), climb, 30, 4).estimate(surface(f, w)).value
    assert exact * 0.97 <= found <= exact * (1 + 1e-6) + 1e-9


# -- what it found is there --------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=15)
@given(
    seeds,
    st.sampled_from(NORMS),
    st.floats(0.01, 3.0),
    st.sampled_from([None, MAGNITUDE, Elementwise(), Filterwise(rows=True)]),
    st.sampled_from(sorted(CLIMBS)),
    st.sampled_from([nn.ReLU, nn.Tanh]),
)
def test_the_worst_point_is_in_the_ball_and_has_the_stated_loss(seed, p, rho, metric, climb, activation):
    objective = classifier(seed, activation)
    rho = rho / 10 if p == inf else rho
    measure = WorstCase(Ball(rho, metric, p), 5, 2, CLIMBS[climb])
    summit = measure.highest(objective, seed)
    w, d = flat_weights(objective.model), flat(summit.at)
    scales = torch.ones_like(w) if metric is None else flat(metric(objective))
    assert length(d, rho * scales, p) <= 1 + 1e-6
    land = loss_of(objective)
    assert summit.rise == pytest.approx(float(land.loss(w + d) - land.loss(w)), rel=1e-9, abs=1e-13)
    assert summit.rise >= 0
    assert measure.estimate(objective, seed).value == summit.rise


@settings(deadline=None, max_examples=12)
@given(seeds, st.sampled_from(NORMS), st.floats(0.05, 5.0), st.sampled_from(["waves", "network"]))
def test_it_is_never_below_the_one_step_value(seed, p, rho, kind):
    objective = surface(waves(seed, 3), random_vector(3, seed)) if kind == "waves" else classifier(seed)
    ball = Ball(rho if kind == "waves" else rho / 5, None, p)
    for climb in (PowerAscent(), AutoPGD()):
        found = WorstCase(ball, 10, 1, climb).estimate(objective).value
        assert found >= max(OneStep(ball).estimate(objective).value, 0) * (1 - 1e-12)


def test_a_search_that_finds_nothing_higher_returns_zero():
    """At the top of a dome."""
    summit = WorstCase(Ball(0.5)).highest(bowl(-random_hessian(4), torch.zeros(4, dtype=FLOAT)))
    assert summit.rise == 0
    assert not flat(summit.at).any()


# -- weights that cannot move ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@pytest.mark.parametrize("climb", sorted(CLIMBS))
def test_weights_of_zero_are_pinned_in_adaptive_balls(climb, p):
    """A published procedure reached ||d / w|| = 11.2 for a radius of 0.5 when some weights were exactly 0."""
    model, x, y = network(3)
    with torch.no_grad():
        model[0].weight[1].zero_(), model[2].weight[:, 2].zero_(), model[4].bias.zero_()
    w = flat_weights(model)
    rho = 0.1 if p == inf else 0.5
    measure = WorstCase(Ball(rho, MAGNITUDE, p), 10, climb=CLIMBS[climb])
    summit = measure.highest(Objective(model, cross_entropy, (x, y)))
    d = flat(summit.at)
    assert (w == 0).sum() > 10
    assert not d[w == 0].any()
    assert summit.rise > 0
    assert 0.9 < length(d, rho * w.abs(), p) <= 1 + 1e-9


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("climb", sorted(CLIMBS))
def test_pinned_weights_take_nothing_of_the_radius(climb, p):
    """Measured with some weights pinned by scale, and with the same weights left out of the model."""
    h, w = random_hessian(6, 2), random_vector(6, 3)
    free = torch.tensor([0.0, 1, 0, 0, 1, 1], dtype=FLOAT)
    kept = free.bool()
    whole = bowl(h, w)
    part = bowl(h[kept][:, kept], w[kept], (h @ w)[kept])
    ours = WorstCase(Ball(0.8, scaled_by(free), p), 10, 1, CLIMBS[climb]).estimate(whole).value
    assert ours == pytest.approx(WorstCase(Ball(0.8, None, p), 10, 1, CLIMBS[climb]).estimate(part).value, rel=1e-9)


@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@pytest.mark.parametrize("seed", range(4))
def test_random_starts_lie_where_weights_can_move(seed, p):
    """At a minimum only they climb, and among many pinned weights few directions lead anywhere."""
    d = 40
    scales = torch.zeros(d, dtype=FLOAT)
    scales[7] = 1.0
    objective = bowl(torch.eye(d, dtype=FLOAT), torch.zeros(d, dtype=FLOAT))
    found = WorstCase(Ball(0.5, scaled_by(scales), p)).estimate(objective, seed).value
    assert found == pytest.approx(0.5**2 / 2, rel=1e-6)


def test_norm_layers_only_moves_norm_layers_only():
    problem = conv_problem(steps=1)
    objective = Objective(problem.model, problem.losses, problem.batches)
    d = flat(WorstCase(Ball(0.5, NormLayersOnly())).highest(objective).at)
    parts = flat_parts(problem.model)
    assert {name for name, where in parts.items() if d[where].any()} == {"1.weight", "1.bias"}
    assert float(d.norm()) == pytest.approx(0.5, rel=1e-6)


def test_only_the_parameters_asked_for_move():
    model, x, y = network()
    objective = Objective(model, cross_entropy, (x, y), only=["4.*"])
    summit = WorstCase(Ball(0.5)).highest(objective)
    w = flat_weights(model)
    d = torch.cat([torch.zeros(len(w) - 18, dtype=FLOAT), flat(summit.at)])
    land = Landscape(model, each_cross_entropy, x, y)
    assert summit.rise == pytest.approx(float(land.loss(w + d) - land.loss(w)), rel=1e-9)


# -- scales ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", NORMS)
def test_a_given_scale_is_the_metric_that_it_equals(p):
    objective = classifier(1)
    w = [t.detach().abs() for t in objective.model.parameters()]
    ours, same = Ball(0.1, CustomScales(w), p), Ball(0.1, MAGNITUDE, p)
    assert WorstCase(ours).estimate(objective).value == WorstCase(same).estimate(objective).value


def test_a_given_scale_is_copied():
    single, double = [torch.ones(3), torch.ones(2)], [torch.ones(3, dtype=FLOAT), torch.ones(2, dtype=FLOAT)]
    context = surface(waves(0, 5), random_vector(5))
    for scales in (single, double):
        found = CustomScales(scales)(context)
        assert all(t.dtype == FLOAT for t in found.tensors)
        found.mul_(5.0)
        assert all((x == 1).all() for x in scales)


@pytest.mark.parametrize("scales", [[torch.ones(3)], [torch.ones(2), torch.ones(3)], [torch.ones(3, 1), torch.ones(2)]])
def test_a_given_scale_of_other_shapes_is_refused(scales):
    with pytest.raises(ValueError, match="one tensor per parameter"):
        WorstCase(Ball(0.1, CustomScales(scales))).estimate(surface(waves(0, 5), random_vector(5)))


def test_filters_move_by_their_norms():
    """In the l_inf ball of Filterwise the worst corner has |d| = rho ||filter|| wherever the slope is not zero."""
    problem = conv_problem(steps=1)
    objective = Objective(problem.model, problem.losses, problem.batches)
    at = WorstCase(Ball(0.01, Filterwise(0.0, everywhere=True), inf)).highest(objective).at
    filters = problem.model[0].weight.detach()
    expected = 0.01 * filters.flatten(1).norm(dim=1)[:, None, None, None].expand_as(filters)
    assert at.tensors[0].abs() == pytest.approx(expected, rel=1e-9)
    bias = problem.model[3].bias.detach()
    assert at.tensors[4].abs() == pytest.approx(0.01 * bias.abs(), rel=1e-9)


def test_radii_may_differ_by_chunk():
    """One number a chunk makes an ellipsoid: the same as scales that are constant on a chunk."""
    h, w = random_hessian(5), random_vector(5)
    objective = bowl(h, w)
    ours = patient(Ball([0.2, 0.7])).estimate(objective).value
    scales = torch.tensor([0.2, 0.2, 0.2, 0.7, 0.7], dtype=FLOAT)
    assert ours == pytest.approx(trust_region(h @ w, h, 1.0, scales).rise, rel=1e-6)


def test_the_unit_ball_is_round_and_stretches_to_the_ball():
    objective = surface(waves(0, 5), random_vector(5))
    ball = Ball(0.3, MAGNITUDE, 3.0)
    assert ball.unit == Ball(1.0, None, 3.0)
    metric, rho = ball.scales(objective)
    assert torch.equal(flat(metric), flat_weights(objective.model).abs())
    assert rho == 0.3
    assert Ball(0.3).scales(objective) == [0.3]


# -- laws ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1.0, 2.0, inf])
@pytest.mark.parametrize("climb", ["power", "projected"])
def test_more_steps_never_find_less(climb, p):
    """Auto-PGD's checkpoints move with their number, and power ascent goes over to it where a loss is not convex."""
    hollow, wavy = bowl(random_hessian(6), random_vector(6)), surface(waves(7, 6, 2.0), random_vector(6))
    objective, ball = hollow if climb == "power" else wavy, Ball(1.0, None, p)
    values = [WorstCase(ball, n, 2, CLIMBS[climb]).estimate(objective).value for n in (1, 2, 5, 12)]
    assert values == sorted(values)
    assert values[-1] > values[0] or (climb == "power" and p != 2)  # which may jump to the highest corner at once


@pytest.mark.parametrize("climb", sorted(CLIMBS))
def test_more_starts_never_find_less(climb):
    objective, ball = surface(waves(7, 6, 2.0), random_vector(6)), Ball(2.0)
    values = [WorstCase(ball, 12, n, CLIMBS[climb]).estimate(objective).value for n in (1, 2, 3, 5, 8)]
    assert values == sorted(values)
    assert values[-1] > values[0]


def home(start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
    """A climb that goes back to the centre."""
    yield problem.evaluate(start.gamma * 0.0)


def test_a_start_that_is_higher_than_its_climb_counts():
    h = random_hessian(4)
    summit = WorstCase(Ball(0.5), 1, 4, home).highest(bowl(h, torch.zeros(4, dtype=FLOAT)))
    d = flat(summit.at)
    assert summit.rise == pytest.approx(float(d @ h @ d) / 2, rel=1e-9)
    assert float(d.norm()) == pytest.approx(0.5, rel=1e-9)


@pytest.mark.parametrize("climb", sorted(CLIMBS))
@pytest.mark.parametrize("p", [1.0, 2.0, inf])
def test_in_a_ball_without_radius_nothing_rises(p, climb):
    for metric in (None, MAGNITUDE):
        summit = WorstCase(Ball(0.0, metric, p), 3, climb=CLIMBS[climb]).highest(classifier())
        assert summit.rise == 0
        assert not flat(summit.at).any()


@settings(deadline=None, max_examples=12)
@given(seeds, st.sampled_from([1.0, 2.0, inf]), st.floats(1e-3, 1e3))
def test_around_a_minimum_it_grows_with_the_square_of_the_radius(seed, p, times):
    objective = bowl(random_hessian(4, seed), torch.zeros(4, dtype=FLOAT))
    one, more = (WorstCase(Ball(rho, None, p)).estimate(objective, seed).value for rho in (0.1, 0.1 * times))
    assert more == pytest.approx(one * times**2, rel=1e-6)


@pytest.mark.parametrize("p", NORMS)
def test_for_small_radii_it_is_the_dual_norm_of_the_slope(p):
    objective = classifier(2, nn.Tanh)
    w = flat_weights(objective.model)
    g = gradient(loss_of(objective).loss, w)
    q = inf if p == 1 else (1.0 if p == inf else p / (p - 1))
    found = WorstCase(Ball(1e-5, MAGNITUDE, p)).estimate(objective).value
    assert found == pytest.approx(1e-5 * float(torch.linalg.vector_norm(w * g, q)), rel=1e-3)


@pytest.mark.parametrize("climb", sorted(CLIMBS))
@pytest.mark.parametrize("p", [2.0, inf])
@pytest.mark.parametrize("up", [10.0, 0.03])
def test_adaptive_sharpness_ignores_how_a_relu_network_is_scaled_inside(up, p, climb):
    """A factor moved from one layer to the next leaves the function as it is (A modern look, section 3.1)."""
    model, x, y = network(4)
    here, there = (Objective(m, cross_entropy, (x, y)) for m in (model, rescaled(model, up)))
    assert there.loss() == pytest.approx(here.loss(), rel=1e-12)
    adaptive = WorstCase(Ball(0.05 if p == inf else 0.5, MAGNITUDE, p), 12, climb=CLIMBS[climb])
    one, other = adaptive.estimate(here).value, adaptive.estimate(there).value
    assert other == pytest.approx(one, rel=1e-6)
    standard = WorstCase(Ball(0.01 if p == inf else 0.1, None, p), 12, climb=CLIMBS[climb])
    assert abs(standard.estimate(there).value / standard.estimate(here).value - 1) > 0.2


def test_single_precision_is_enough_for_a_bowl():
    h, w = random_hessian(5), random_vector(5)
    objective = bowl(h.float(), w.float())
    summit = patient(Ball(0.5)).highest(objective)
    assert summit.rise == pytest.approx(trust_region(h @ w, h, 0.5).rise, rel=1e-5)
    assert all(t.dtype == torch.float32 for t in summit.at.tensors)
    assert float(flat(summit.at).double().norm()) <= 0.5 * (1 + 1e-6)


# -- how it is measured ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("climb", sorted(CLIMBS))
def test_the_same_seed_gives_the_same_bits_and_another_seed_other_starts(climb):
    objective, measure = surface(waves(7, 6, 2.0), random_vector(6)), WorstCase(Ball(2.0), climb=CLIMBS[climb])
    one, again = measure.highest(objective, 1), measure.highest(objective, 1)
    assert one.rise == again.rise
    assert torch.equal(flat(one.at), flat(again.at))
    torch.manual_seed(99)
    assert measure.estimate(objective, 1).value == one.rise  # nobody else's random numbers matter
    starts = WorstCase(Ball(2.0), 1, 8, CLIMBS[climb])
    assert len({starts.estimate(objective, seed).value for seed in range(4)}) > 1


@pytest.mark.parametrize("climb", sorted(CLIMBS))
def test_it_costs_a_gradient_for_every_point_looked_at(climb):
    objective = classifier()
    measure = WorstCase(Ball(0.3), 7, 3, CLIMBS[climb])
    summit, found = measure.highest(objective), measure.estimate(objective)
    assert found.cost.gradients == summit.looks
    assert (found.cost.losses, found.cost.products) == (0, 0)
    assert summit.looks <= 1 + 2 + 3 * 7
    if climb != "power":  # which may end early
        assert summit.looks >= 1 + 2 + 2 * 7  # the climb from across may give up


def test_it_is_a_lower_bound_without_error_bar():
    found = WorstCase(Ball(0.3)).estimate(classifier())
    assert (found.kind, found.n, found.stderr) == ("lower bound", 1, 0.0)


def test_running_estimates_climb_and_can_be_left():
    objective = surface(waves(7, 6, 2.0), random_vector(6))
    with assert_untouched(objective.model):
        whole = list(with_cost(WorstCase(Ball(2.0), starts=3).running(objective), objective))
        values = [e.value for e in whole]
        assert values == sorted(values)
        assert len(set(values)) > 3
        costs = [e.cost.gradients for e in whole]
        assert costs == sorted(set(costs))
        running = with_cost(WorstCase(Ball(2.0), starts=3).running(objective), objective)
        some = [next(running).value for _ in range(4)]
        running.close()
    assert some == values[:4]
    assert WorstCase(Ball(2.0), starts=3).estimate(objective).value == values[-1]


def test_the_model_stays_as_it_was():
    objective = classifier()
    with assert_untouched(objective.model):
        WorstCase(Ball(0.3, MAGNITUDE)).estimate(objective)
        OneStep(Ball(0.3)).estimate(objective)


@pytest.mark.parametrize("settings", [{"starts": 0}, {"steps": 0}, {"starts": -1}])
def test_a_search_without_steps_is_refused(settings):
    with pytest.raises(ValueError, match=r"(starts|steps) of WorstCase takes a whole number, 1 or more"):
        WorstCase(Ball(0.1), **settings).estimate(classifier())


# -- losses that end ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("climb", sorted(CLIMBS))
@pytest.mark.parametrize(
    "f",
    [
        lambda w: (20 * w).exp().exp().sum(),  # infinite
        lambda w: -(1 - w).log().sum(),  # not a number
        lambda w: (300 * w[0]).exp() - (300 * w[1] + 1).exp() + w.sum(),  # the difference of two infinities
    ],
)
def test_a_loss_that_is_not_finite_in_the_ball_is_no_number(f, climb):
    objective = surface(f, torch.tensor([0.1, 0.1], dtype=FLOAT))
    with pytest.raises(NotFinite, match=r"(nan|inf).*radius 7\.5.*smaller ball"), assert_untouched(objective.model):
        WorstCase(Ball(7.5), climb=CLIMBS[climb]).estimate(objective)
    assert WorstCase(Ball(1e-3), climb=CLIMBS[climb]).estimate(objective).value > 0


def test_a_slope_that_is_not_finite_is_no_number_either():
    objective = surface(lambda w: w.abs().sqrt().sum(), torch.tensor([0.0, 1.0], dtype=FLOAT))
    with pytest.raises(NotFinite):
        WorstCase(Ball(0.5)).estimate(objective)


# -- one step ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", [None, MAGNITUDE, Elementwise()])
@pytest.mark.parametrize("p", [2.0, inf])
def test_one_step_is_the_rise_at_the_point_where_sam_looks(p, metric):
    objective = classifier(3, nn.Tanh)
    w, land = flat_weights(objective.model), loss_of(objective)
    g = gradient(land.loss, w)
    if metric is None:
        t = torch.ones_like(w)
    else:
        here = [q.abs() if metric is MAGNITUDE else q.abs() + 0.01 for q in objective.model.parameters()]
        named = [n.endswith("weight") or metric is MAGNITUDE for n, _ in objective.model.named_parameters()]
        t = torch.cat(
            [(x if own else torch.ones_like(x)).detach().flatten() for x, own in zip(here, named, strict=True)]
        )
    rho = 0.02 if p == inf else 0.3
    d = rho * t * (g * t).sign() if p == inf else rho * t * (g * t) / (g * t).norm()
    found = OneStep(Ball(rho, metric, p)).estimate(objective)
    assert found.value == pytest.approx(float(land.loss(w + d) - land.loss(w)), rel=1e-9)
    assert (found.cost.gradients, found.cost.losses) == (1, 1)
    assert (found.kind, found.stderr) == ("exact", 0.0)


def test_one_step_is_where_sam_takes_its_gradient():
    h, w = random_hessian(4), random_vector(4)
    objective = bowl(h, w)
    there = torch.linalg.solve(h, flat(objective.drive(SAM(0.3))))
    assert OneStep(Ball(0.3)).estimate(objective).value == pytest.approx(
        float(there @ h @ there - w @ h @ w) / 2, rel=1e-9
    )


def test_one_step_may_lead_down():
    """Beyond the top of a dome: L(w + d) - L(w) is negative there, and SAM does not know."""
    w = torch.tensor([0.1, 0.0, 0.0], dtype=FLOAT)
    objective = bowl(-torch.eye(3, dtype=FLOAT), w)
    assert OneStep(Ball(1.0)).estimate(objective).value == pytest.approx((0.1**2 - 0.9**2) / 2, rel=1e-9)
    assert WorstCase(Ball(1.0)).estimate(objective).value == pytest.approx(0.1**2 / 2, rel=0.05)


def test_one_step_to_where_the_loss_ends_is_no_number():
    objective = surface(lambda w: (20 * w).exp().exp().sum(), torch.tensor([0.1, 0.1], dtype=FLOAT))
    with pytest.raises(NotFinite, match=r"inf.*radius 7\.5"), assert_untouched(objective.model):
        OneStep(Ball(7.5)).estimate(objective)


def test_one_step_on_a_slope_is_the_radius_times_its_length():
    objective = surface(lambda w: 3 * w[0] - 4 * w[1], torch.zeros(2, dtype=FLOAT))
    assert OneStep(Ball(0.2)).estimate(objective).value == pytest.approx(1.0, rel=1e-12)
    assert OneStep(Ball(0.2, None, inf)).estimate(objective).value == pytest.approx(1.4, rel=1e-12)
    assert OneStep(Ball(0.2, None, 1.0)).estimate(objective).value == pytest.approx(0.8, rel=1e-12)
    assert OneStep(Ball(0.2, scaled_by(torch.tensor([sqrt(2), 0.0])))).estimate(objective).value == pytest.approx(
        0.6 * sqrt(2), rel=1e-6
    )


# -- across from the first summit -----------------------------------------------------------------------------------


def test_a_higher_summit_on_the_other_side_is_found():
    """Where the slope leads up a low hill, and the higher one is behind."""

    def two_sides(w: Tensor) -> Tensor:
        x = w[0]
        return torch.where(x > 0, x.square(), 3 * x.square()) + 0.1 * x

    objective = surface(two_sides, torch.zeros(2, dtype=FLOAT))
    one = WorstCase(Ball(1.0), starts=1).highest(objective)
    two = WorstCase(Ball(1.0)).highest(objective)
    assert one.rise == pytest.approx(1.1, rel=1e-6)
    assert two.rise == pytest.approx(2.9, rel=1e-6)
    assert flat(two.at)[0] == pytest.approx(-1.0, rel=1e-6)


def test_where_the_loss_falls_on_the_other_side_one_look_there_is_enough():
    objective = surface(lambda w: w.sum(), torch.zeros(3, dtype=FLOAT))
    looks = [WorstCase(Ball(1.0), starts=starts).highest(objective).looks for starts in (1, 2)]
    assert looks[1] == looks[0] + 1


def test_a_climb_from_the_other_side_that_falls_behind_is_given_up():
    objective = surface(lambda w: w[0].square() + 0.3 * w[0], torch.zeros(3, dtype=FLOAT))
    one, two = (WorstCase(Ball(1.0), 20, n, AutoPGD()).highest(objective) for n in (1, 2))
    assert two.rise == one.rise
    assert one.looks < two.looks <= one.looks + 4
