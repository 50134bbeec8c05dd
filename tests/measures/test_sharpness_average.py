"""Average-case sharpness: closed forms on quadratics, intervals that cover, mirror images that cancel odd orders."""

from __future__ import annotations

from math import inf, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.flat import Landscape
from problems import each_cross_entropy, flat_weights, random_hessian, random_vector
from sharpness_problems import FLOAT, MAGNITUDE, bowl, classifier, network, rescaled, scaled_by, surface, waves
from sites import flat
from snapshots import assert_untouched
from torch import nn
from torch.nn.functional import cross_entropy

from steppe import Draw, Vector, gaussian, rademacher, sphere
from steppe.measures.estimate import NotFinite, with_cost
from steppe.measures.objective import Objective
from steppe.measures.sharpness import AverageCase, box

SCALES = torch.tensor([0.5, 2.0, 0.0, 1.0, 0.3], dtype=FLOAT)
# of one entry of the noise: its second and fourth moments, by hand
LAWS = {"gaussian": (gaussian, 1.0, 3.0), "box": (box, 1 / 3, 1 / 5), "rademacher": (rademacher, 1.0, 1.0)}


# -- closed forms ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["euclidean", "given", "magnitude"])
@pytest.mark.parametrize("law", sorted(LAWS))
def test_on_quadratics_it_is_the_trace_of_the_rescaled_hessian(law, metric):
    """E = rho^2 / 2 tr(DHD) for Gaussian noise and rho^2 / 6 tr(DHD) in the box, also away from critical points."""
    noise, second, _ = LAWS[law]
    h, w = random_hessian(5, lowest=-1.0), random_vector(5)
    c = {"euclidean": torch.ones(5, dtype=FLOAT), "given": SCALES, "magnitude": w.abs()}[metric]
    named = {"euclidean": None, "given": scaled_by(SCALES), "magnitude": MAGNITUDE}[metric]
    expected = 0.2**2 / 2 * second * float((c * c * h.diag()).sum())
    found = AverageCase(0.2, noise, named, n=400).estimate(bowl(h, w))
    assert abs(found.value - expected) < 4 * found.stderr
    assert found.stderr < 0.2 * abs(expected)


@pytest.mark.parametrize("law", sorted(LAWS))
def test_it_is_the_mean_over_its_own_draws(law):
    """Draw by draw rho^2 / 2 v'DHDv, and their spread over the square root of n: nothing random is left."""
    noise, _, _ = LAWS[law]
    h, w = random_hessian(5), random_vector(5)
    objective = bowl(h, w)
    found = AverageCase(0.2, noise, scaled_by(SCALES), n=7).estimate(objective, seed=3)
    d = torch.stack([0.2 * SCALES * flat(noise(objective.draw(3, 0, i))) for i in range(7)])
    values = ((d @ h) * d).sum(1) / 2
    assert found.value == pytest.approx(float(values.mean()), rel=1e-9)
    assert found.stderr == pytest.approx(float(values.std()) / sqrt(7), rel=1e-6)


def test_on_networks_it_is_the_mean_over_its_own_draws():
    model, x, y = network(2, nn.Tanh)
    objective = Objective(model, cross_entropy, (x, y))
    land, w = Landscape(model, each_cross_entropy, x, y), flat_weights(model)
    moves = [0.3 * w.abs() * flat(objective.draw(5, 0, i).normal()) for i in range(6)]
    expected = sum(float(land.loss(w + d) + land.loss(w - d)) / 2 - float(land.loss(w)) for d in moves) / 6
    assert AverageCase(0.3, metric=MAGNITUDE, n=6).estimate(objective, 5).value == pytest.approx(expected, rel=1e-9)


def test_the_noise_of_the_box_is_uniform():
    v = flat(box(Objective(nn.Linear(200, 100), cross_entropy, (torch.zeros(1, 200), torch.zeros(1).long())).draw(0)))
    assert v.abs().max() <= 1
    assert v.abs().max() > 0.999
    assert float(v.mean()) == pytest.approx(0, abs=0.02)
    assert float(v.square().mean()) == pytest.approx(1 / 3, rel=0.02)
    assert float((v.abs() < 0.5).double().mean()) == pytest.approx(0.5, abs=0.02)


def test_on_the_sphere_it_is_the_trace_over_the_dimension():
    h = random_hessian(6)
    found = AverageCase(0.5, sphere, n=300).estimate(bowl(h, random_vector(6)))
    assert abs(found.value - 0.5**2 / 2 * float(h.trace()) / 6) < 4 * found.stderr


def test_signs_on_a_diagonal_bowl_need_one_draw():
    h = torch.diag(torch.tensor([1.0, 5.0, 2.0, 0.5], dtype=FLOAT))
    found = AverageCase(0.5, rademacher, n=2).estimate(bowl(h, random_vector(4)))
    assert found.value == pytest.approx(0.5**2 / 2 * 8.5, rel=1e-12)
    assert found.stderr == pytest.approx(0, abs=1e-12)


@settings(deadline=None, max_examples=15)
@given(st.integers(0, 10**6), st.floats(1e-2, 1e2))
def test_on_quadratics_it_grows_with_the_square_of_the_radius(seed, times):
    objective = bowl(random_hessian(4, seed), torch.zeros(4, dtype=FLOAT))
    one, more = (AverageCase(0.1 * t, n=3).estimate(objective, seed).value for t in (1.0, times))
    assert more == pytest.approx(one * times**2, rel=1e-6)


def test_fourth_orders_are_seen():
    """E (w + rho v)^4 - w^4 = 6 rho^2 w^2 E v^2 + rho^4 E v^4, which differs by law."""
    w = torch.tensor([0.5, -1.0], dtype=FLOAT)
    for noise, second, fourth in LAWS.values():
        found = AverageCase(0.7, noise, n=400).estimate(surface(lambda v: v.pow(4).sum(), w))
        expected = float((6 * 0.49 * w**2 * second + 0.7**4 * fourth).sum())
        assert abs(found.value - expected) < 4 * found.stderr + 1e-9


# -- mirror images --------------------------------------------------------------------------------------------------


def test_a_steep_slope_does_not_matter():
    """The gradient cancels between a draw and its mirror image, and with it nearly all of the noise."""
    h, w = random_hessian(5), random_vector(5)
    flat_one = AverageCase(0.2, n=20).estimate(bowl(h, w, torch.zeros(5, dtype=FLOAT)))
    steep = AverageCase(0.2, n=20).estimate(bowl(h, w, 1e5 * random_vector(5, 7)))
    assert steep.value == pytest.approx(flat_one.value, rel=1e-5)
    assert steep.stderr == pytest.approx(flat_one.stderr, rel=1e-4)


@pytest.mark.parametrize("law", sorted(LAWS))
def test_odd_losses_are_flat_on_average(law):
    objective = surface(lambda w: (w - 0.3).pow(3).sum() + (w - 0.3).sum().sin(), torch.full((4,), 0.3, dtype=FLOAT))
    found = AverageCase(0.5, LAWS[law][0], n=10).estimate(objective)
    assert found.value == pytest.approx(0, abs=1e-14)
    assert found.stderr == pytest.approx(0, abs=1e-14)


# -- error and cost --------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("law", ["gaussian", "box"])
def test_intervals_cover(law):
    noise, second, _ = LAWS[law]
    h = random_hessian(6)
    objective, expected = bowl(h, random_vector(6)), 0.3**2 / 2 * second * float(h.trace())
    measure = AverageCase(0.3, noise, n=8)
    intervals = [measure.estimate(objective, seed).interval() for seed in range(200)]
    covered = sum(low <= expected <= high for low, high in intervals)
    assert 0.88 * 200 <= covered <= 0.99 * 200


def test_it_costs_a_loss_for_every_draw_and_mirror_image_and_one_at_the_weights():
    found = AverageCase(0.1, n=13).estimate(classifier())
    assert (found.n, found.kind) == (13, "unbiased")
    assert (found.cost.losses, found.cost.gradients, found.cost.products) == (27, 0, 0)


def test_unless_told_otherwise_it_takes_a_hundred_losses_in_pairs():
    assert AverageCase().n == 50


def test_one_pair_knows_no_error():
    found = AverageCase(0.1, n=1).estimate(classifier())
    assert found.stderr != found.stderr
    assert found.value == found.value


@pytest.mark.parametrize("n", [0, -3])
def test_an_average_of_nothing_is_refused(n):
    with pytest.raises(ValueError, match=r"n|draws|pairs"):
        AverageCase(0.1, n=n).estimate(classifier())


def test_a_negative_radius_is_refused():
    with pytest.raises(ValueError, match=r"rho of AverageCase takes a number, 0 or more, and finite, not -0\.1"):
        AverageCase(-0.1)


def test_running_estimates_take_more_and_more_draws():
    objective = classifier()
    with assert_untouched(objective.model):
        some = list(with_cost(AverageCase(0.1, n=25).running(objective, 2), objective))
        running = with_cost(AverageCase(0.1, n=25).running(objective, 2), objective)
        first = next(running)
        running.close()
    assert [e.n for e in some] == [10, 20, 25]
    assert [e.cost.losses for e in some] == [21, 41, 51]
    assert first == some[0] == AverageCase(0.1, n=10).estimate(objective, 2)


def test_the_same_seed_gives_the_same_bits():
    objective, measure = classifier(), AverageCase(0.1, n=5)
    one = measure.estimate(objective, 4)
    torch.manual_seed(1)
    assert measure.estimate(objective, 4) == one
    assert len({measure.estimate(objective, seed).value for seed in range(5)}) == 5


# -- scales and invariance ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [gaussian, box])
def test_adaptive_sharpness_ignores_how_a_relu_network_is_scaled_inside(law):
    model, x, y = network(4)
    here, there = (Objective(m, cross_entropy, (x, y)) for m in (model, rescaled(model, 20.0)))
    adaptive, standard = AverageCase(0.3, law, MAGNITUDE, n=5), AverageCase(0.3, law, n=5)
    assert adaptive.estimate(there).value == pytest.approx(adaptive.estimate(here).value, rel=1e-9)
    assert abs(standard.estimate(there).value / standard.estimate(here).value - 1) > 0.2


def test_weights_of_zero_do_not_move_in_adaptive_noise():
    """The loss depends on nothing but weights that are zero."""
    w = torch.tensor([0.0, 1.0, 0.0, 2.0], dtype=FLOAT)
    objective = surface(lambda v: v[0].square() + v[2].exp() + 0 * v.sum(), w)
    assert AverageCase(0.5, metric=MAGNITUDE, n=3).estimate(objective).value == 0
    assert AverageCase(0.5, n=3).estimate(objective).value > 0


def test_without_radius_nothing_changes():
    assert AverageCase(0.0, n=3).estimate(classifier()).value == 0


def test_single_precision_is_enough_for_a_bowl():
    h, w = torch.diag(torch.tensor([1.0, 5.0, 2.0, 0.5])), random_vector(4).float()
    found = AverageCase(0.3, rademacher, n=4).estimate(bowl(h, w))
    assert found.value == pytest.approx(0.3**2 / 2 * 8.5, rel=1e-5)


# -- trouble ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("f", [lambda w: (30 * w).exp().exp().sum(), lambda w: -(1 - w).log().sum()])
def test_a_loss_that_is_not_finite_at_a_draw_is_no_number(f):
    objective = surface(f, torch.tensor([0.1, 0.1], dtype=FLOAT))
    with pytest.raises(NotFinite, match=r"(nan|inf).*radius 7\.5.*smaller radius"), assert_untouched(objective.model):
        AverageCase(7.5).estimate(objective)
    assert AverageCase(1e-3).estimate(objective).value > 0


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_a_mirror_image_that_is_not_finite_is_enough(side):
    """To one side the loss goes on for ever, to the other it ends: one of the two is the draw, one its image."""
    objective = surface(lambda w: -(side * w.sum() + 0.01).log(), torch.zeros(2, dtype=FLOAT))
    with pytest.raises(NotFinite, match=r"nan.*draw 0 and its mirror image, radius 0\.5"):
        AverageCase(0.5, n=1).estimate(objective)


def along_the_weights(draw: Draw) -> Vector:
    """A law whose draws are the weights themselves: twice as long, or gone."""
    return draw.weights


def test_a_law_may_hand_out_what_it_was_given():
    """Whoever stretches a draw must not stretch the weights."""
    h, w = random_hessian(5), random_vector(5)
    objective = bowl(h, w)
    with assert_untouched(objective.model):
        found = AverageCase(0.5, along_the_weights, n=2).estimate(objective)
    assert found.value == pytest.approx(0.25 * float(w @ h @ w) / 2, rel=1e-9)


def test_losses_without_derivative_have_an_average():
    """Such as the share of wrong answers."""
    model, x, y = network(1)
    objective = Objective(model, lambda out, y: (out.argmax(1) != y).double(), (x, y))
    found = AverageCase(0.5, n=20).estimate(objective)
    assert -1 <= found.value <= 1
    assert found.stderr > 0
    assert found.cost.gradients == 0


def test_waves_that_are_shorter_than_the_noise_average_out():
    """E sin(k'(w + rho v) + a) = exp(-rho^2 |k|^2 / 2) sin(k'w + a) for Gaussian v: far from any expansion."""
    f, w = waves(3, 4), random_vector(4)
    found = AverageCase(50.0, n=600).estimate(surface(f, w))
    assert abs(found.value - float(-f(w))) < 4 * found.stderr + 1e-6
    assert found.interval()[1] < inf
