"""Climbs in the unit ball: Auto-PGD as printed, power ascent as its theorem says, none of them ever outside."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction
from math import ceil, inf

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from oracles import sharpness
from oracles.curvature import gradient, mean_loss
from problems import mlp_problem, random_hessian, random_vector
from sharpness_problems import FLOAT, MAGNITUDE, Function, bowl, network, surface, waves
from sites import BareSite, flat
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import Ball, Vector
from steppe.measures.combinators import NormalisedLogits
from steppe.measures.objective import Objective
from steppe.measures.worst_case import (
    AscentProblem,
    AscentRule,
    AutoPGD,
    Point,
    PowerAscent,
    ProjectedAscent,
    WorstCase,
    checkpoints,
)

SHORT = 10  # steps within which rounding does not decide
NORMS = [1.0, 1.5, 2.0, 3.0, inf]
CLIMBS: dict[str, AscentRule] = {
    "power": PowerAscent(),
    "power without averaging": PowerAscent(0, 0.0),
    "auto-pgd": AutoPGD(),
    "projected": ProjectedAscent(),
    "projected, far": ProjectedAscent(3.0),
}

seeds = st.integers(0, 10**6)


class Hill:
    """The loss f around w, looked at by plain autograd on the flat vector; remembers what was looked at."""

    def __init__(self, f: Function, w: Tensor, p: float = 2.0):
        self.f, self.w, self.p = f, w, p
        half = len(w) // 2
        self.place = BareSite([w[:half], w[half:]])
        self.seen: list[Tensor] = []

    def vector(self, x: Tensor) -> Vector:
        half = len(self.w) // 2
        return self.place.vector(x[:half], x[half:])

    def look(self, gamma: Vector) -> Point:
        here = self.w + flat(gamma)
        self.seen.append(flat(gamma).clone())
        return Point(gamma, float(self.f(here)), self.vector(gradient(self.f, here)))

    def climb(self, climb: AscentRule, steps: int, start: Tensor | None = None) -> list[Point]:
        problem = AscentProblem(Ball(1.0, None, self.p), float(self.f(self.w)), self.look, self.place)
        first = self.look(self.vector(torch.zeros_like(self.w) if start is None else start))
        self.seen.clear()
        return list(climb(first, problem, steps))


def convex(seed: int, d: int = 4) -> Function:
    """The logarithm of a sum of exponentials, plus a slope: convex, and far from quadratic."""
    rows, slope = random_vector(6 * d, seed).reshape(6, d), random_vector(d, seed + 1)
    return lambda w: 2 * torch.logsumexp(rows @ w, 0) + slope @ w


def on_boundary(d: int, seed: int, p: float = 2.0) -> Tensor:
    x = random_vector(d, seed)
    return x / torch.linalg.vector_norm(x, p)


# -- all of them ----------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(seeds, st.sampled_from(NORMS), st.sampled_from(sorted(CLIMBS)), st.booleans())
def test_no_climb_looks_outside_the_ball(seed, p, name, centre):
    hill = Hill(waves(seed, 5), random_vector(5, seed), p)
    hill.climb(CLIMBS[name], 10, None if centre else on_boundary(5, seed, p))
    assert max(float(torch.linalg.vector_norm(x, p)) for x in hill.seen) <= 1 + 1e-9


@pytest.mark.parametrize("name", sorted(CLIMBS))
def test_every_point_seen_is_handed_out_and_stays_as_it_was(name):
    hill = Hill(waves(3, 5), random_vector(5))
    points = hill.climb(CLIMBS[name], 12)
    assert len(points) == len(hill.seen) <= 12
    for point, seen in zip(points, hill.seen, strict=True):
        assert torch.equal(flat(point.gamma), seen)
        assert point.loss == float(hill.f(hill.w + seen))
        assert torch.equal(flat(point.slope), gradient(hill.f, hill.w + seen))


@pytest.mark.parametrize("name", ["power", "power without averaging", "auto-pgd"])
@settings(deadline=None, max_examples=15)
@given(seeds, st.sampled_from(NORMS))
@example(93558, 1.0)
def test_the_first_step_is_as_high_as_the_point_furthest_along_the_slope(name, seed, p):
    """So that no search from the centre ends below the one-step value."""
    hill = Hill(waves(seed, 4), random_vector(4, seed), p)
    context, slope = hill.place, hill.vector(gradient(hill.f, hill.w))
    furthest = float(hill.f(hill.w + flat(Ball(1.0, None, p).steepest(slope, context))))
    assert max(point.loss for point in hill.climb(CLIMBS[name], 10)) >= furthest - 1e-9


def scattered(start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
    """A climb of one's own: looks at random places."""
    for k in range(steps):
        yield problem.evaluate(
            problem.project(start.gamma.map(lambda x, k=k: x + random_vector(x.numel(), k).view_as(x)))
        )


def test_a_climb_of_ones_own_is_a_generator():
    f, w = waves(1), random_vector(2)
    found = WorstCase(Ball(1.0), 200, 1, scattered).estimate(surface(f, w))
    assert found.value == pytest.approx(sharpness.polar_grid(f, w, 1.0).rise, rel=0.05)
    assert found.cost.gradients == 201


# -- Auto-PGD ---------------------------------------------------------------------------------------------------


def test_checkpoints_are_exact():
    assert sorted(checkpoints(20)) == [0, 5, 9, 12, 14, 16, 18, 19, 20]  # in floats, .70 of 20 is 15
    assert sorted(checkpoints(100)) == [0, 22, 41, 57, 70, 80, 87, 93, 99]


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 10, 20, 50, 99, 100, 1000])
def test_checkpoints_are_ceilings_of_rational_shares(steps):
    shares = [Fraction(0), Fraction(22, 100)]
    while shares[-1] <= 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - Fraction(3, 100), Fraction(6, 100)))
    assert checkpoints(steps) == {ceil(share * steps) for share in shares[:-1]}


def on_a_network(p: float) -> tuple[Objective, Function, Tensor, Ball, Tensor]:
    """Adaptive, so that the ball of gamma is not that of the weights."""
    problem = mlp_problem(steps=1)
    objective = Objective(problem.model, problem.losses, problem.batches)
    ball = Ball(0.05 if p == inf else 0.5, MAGNITUDE, p)
    f = mean_loss(problem.model, problem.losses, problem.batches)
    return objective, f, problem.start, ball, problem.start.abs()


def on_waves(p: float) -> tuple[Objective, Function, Tensor, Ball, Tensor]:
    f, w = waves(5, 6), random_vector(6)
    return surface(f, w), f, w, Ball(1.5, None, p), torch.ones_like(w)


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 9, 14, 20, 23, 37])
@pytest.mark.parametrize("p", [2.0, inf])
@pytest.mark.parametrize("case", [on_a_network, on_waves])
def test_auto_pgd_is_the_printed_algorithm(case, p, steps):
    objective, f, w, ball, c = case(p)
    expected = sharpness.auto_pgd(f, w, ball.rho, p, c, steps)
    found = WorstCase(ball, steps, 1, AutoPGD()).highest(objective)
    assert found.rise == pytest.approx(expected.rise, rel=1e-9)
    torch.testing.assert_close(flat(found.at), expected.at, rtol=1e-4, atol=1e-6)  # flat near the top
    assert found.looks == steps + 1


class Followed:
    """Auto-PGD that keeps its points, in coordinates in which the ball has radius 1."""

    def __init__(self) -> None:
        self.points: list[Tensor] = []

    def __call__(self, start: Point, problem: AscentProblem, steps: int) -> Iterator[Point]:
        for point in AutoPGD()(start, problem, steps):
            self.points.append(flat(point.gamma).clone())
            yield point


def on_logits(normalised: bool, adaptive: bool, p: float, activation: type[nn.Module] = nn.Tanh, seed: int = 0):
    """A loss of logits that may be normalised, the same as a function of the flat weights, and a ball of the paper."""
    model, x, y = network(seed, activation, rows=32)
    objective = Objective(model, NormalisedLogits(cross_entropy) if normalised else cross_entropy, (x, y))

    def loss(out: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(out / out.std(1, correction=0, keepdim=True) if normalised else out, y)

    w = torch.cat([q.detach().reshape(-1) for q in model.parameters()])
    ball = Ball(0.02 if p == inf else 0.5, MAGNITUDE if adaptive else None, p)
    return objective, mean_loss(model, loss, [(x, y)]), w, ball, w.abs() if adaptive else torch.ones_like(w)


def apart(one: Tensor, two: Tensor) -> float:
    return float((one - two).norm() / two.norm())


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("p", [2.0, inf])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.sampled(16)
def test_every_step_of_a_long_search_is_the_printed_one(normalised, adaptive, p, seed, activation):
    """The printed algorithm is led along our points: what it steps to from these is where we went."""
    objective, f, w, ball, c = on_logits(normalised, adaptive, p, activation, seed)
    followed = Followed()
    WorstCase(ball, 100, 1, followed).estimate(objective)
    printed = sharpness.auto_pgd_points(f, w, ball.rho, p, c, 100)
    expected: Tensor | None = next(printed)
    for point in followed.points:
        assert expected is not None
        assert apart(point * ball.rho, expected) < 1e-13
        try:
            expected = printed.send(point * ball.rho)
        except StopIteration:
            expected = None
    assert (len(followed.points), expected) == (100, None)


def test_a_long_search_on_normalised_logits_is_chaotic():
    """Where the spread of logits is small, their normalisation is steep: rounding decides where 100 steps end.

    The printed algorithm departs from itself as far, and as soon, if its start is moved by 1e-15.
    """
    objective, f, w, ball, c = on_logits(True, True, 2.0, seed=3)
    followed = Followed()
    WorstCase(ball, 100, 1, followed).estimate(objective)
    near = 1e-15 * random_vector(len(w))
    here, moved = (list(sharpness.auto_pgd_points(f, w, ball.rho, 2.0, c, 100, start)) for start in (None, near))
    ours = [apart(ball.rho * a, b) for a, b in zip(followed.points, here, strict=True)]
    theirs = [apart(a, b) for a, b in zip(moved, here, strict=True)]
    assert max(ours[:SHORT]) < 1e-11
    assert max(ours[-20:]) > 1e-4
    assert max(theirs[-20:]) > 1e-4
    for k in range(SHORT, 100, 10):  # they grow together, from starts that differ by rounding and by 1e-15
        assert ours[k] < 1e3 * max(theirs[: k + 1])


@pytest.mark.parametrize("p", [2.0, inf])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_short_searches_of_all_definitions_agree(normalised, adaptive, p):
    objective, f, w, ball, c = on_logits(normalised, adaptive, p)
    found = WorstCase(ball, SHORT, 1, AutoPGD()).estimate(objective).value
    assert found == pytest.approx(sharpness.auto_pgd(f, w, ball.rho, p, c, SHORT).rise, rel=1e-9)


@pytest.mark.parametrize(("seed", "d", "frequency"), [(80, 2, 3), (95, 5, 3), (4, 3, 2), (11, 4, 1)])
def test_auto_pgd_counts_a_record_only_once_its_step_is_over(seed, d, frequency):
    """A new record in the step of a checkpoint belongs to the next stretch: the first two cases have one there."""
    f, w = waves(seed, d, frequency), random_vector(d, seed)
    expected = sharpness.auto_pgd(f, w, 1.0, steps=20)
    found = WorstCase(Ball(1.0), 20, 1, AutoPGD()).highest(surface(f, w))
    assert found.rise == pytest.approx(expected.rise, rel=1e-9)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("p", [2.0, inf])
@pytest.mark.parametrize("case", [on_a_network, on_waves])
def test_auto_pgd_from_other_starts_is_the_printed_algorithm(case, p, seed):
    """The first climb starts at the centre, the second across from its end, the third anywhere on the boundary."""
    objective, f, w, ball, c = case(p)
    noise = flat(objective.draw(seed, 0, 2).normal())
    gamma = noise.sign() if p == inf else noise / noise.norm()
    one, three = (sharpness.auto_pgd(f, w, ball.rho, p, c, 20, start) for start in (None, ball.rho * gamma))
    first = WorstCase(ball, 20, 1, AutoPGD()).highest(objective, seed)
    two = sharpness.auto_pgd(f, w, ball.rho, p, c, 20, -ball.rho * flat(first.gamma))
    found = WorstCase(ball, 20, 3, AutoPGD()).highest(objective, seed)
    assert found.rise >= max(one.rise, three.rise) * (1 - 1e-9)
    assert found.rise <= max(one.rise, two.rise, three.rise) * (1 + 1e-9)
    assert 3 + 2 * 20 <= found.looks <= 3 + 3 * 20


def test_auto_pgd_halves_its_step_until_it_stands_on_a_summit_inside():
    """Where a fixed step of the same length would pace up and down for ever."""
    summit = torch.tensor([0.3, -0.2, 0.1, 0.25], dtype=FLOAT)
    hill = Hill(lambda w: -(w - summit).square().sum(), torch.zeros(4, dtype=FLOAT))
    best = max(hill.climb(AutoPGD(), 100), key=lambda point: point.loss)
    assert (flat(best.gamma) - summit).norm() < 0.02
    fixed = max(hill.climb(ProjectedAscent(AutoPGD().step), 100), key=lambda point: point.loss)
    assert (flat(fixed.gamma) - summit).norm() > 0.2


@pytest.mark.parametrize("p", NORMS)
def test_auto_pgd_without_momentum_is_projected_ascent_until_it_looks_back(p):
    hill = Hill(waves(4, 5), random_vector(5), p)
    ours = hill.climb(AutoPGD(momentum=1.0, step=0.4), 30)
    plain = hill.climb(ProjectedAscent(0.4), 30)
    first = min(checkpoints(30) - {0})
    for a, b in zip(ours[: first + 1], plain, strict=False):
        torch.testing.assert_close(flat(a.gamma), flat(b.gamma), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(("progress", "halved"), [(0.0, False), (1.01, True)])
def test_auto_pgd_halves_when_too_few_steps_climbed(progress, halved):
    """On a slope without end every step climbs; a share above 1 of them can never be had, one of 0 always."""
    hill = Hill(lambda w: w.sum(), torch.zeros(6, dtype=FLOAT))
    points = hill.climb(AutoPGD(momentum=1.0, step=1e-3, progress=progress), 20)
    lengths = torch.stack([flat(p.gamma) for p in points]).diff(dim=0).norm(dim=1)
    assert lengths[:5] == pytest.approx(1e-3, rel=1e-6)
    assert float(lengths[5]) == pytest.approx(5e-4 if halved else 1e-3, rel=1e-6)


# -- power ascent -----------------------------------------------------------------------------------------------


def test_power_ascent_is_power_iteration_on_a_bowl():
    h, start = random_hessian(5), on_boundary(5, 3)
    points = Hill(lambda w: w @ h @ w / 2, torch.zeros(5, dtype=FLOAT)).climb(PowerAscent(0, -1.0), 12, start)
    assert len(points) == 12
    for k, point in enumerate(points, start=1):
        expected = torch.linalg.matrix_power(h, k) @ start
        torch.testing.assert_close(flat(point.gamma), expected / expected.norm(), rtol=1e-10, atol=1e-12)


def test_power_ascent_keeps_a_quarter_of_the_point_before_in_its_averaged_steps():
    h, w = random_hessian(4), random_vector(4)
    points = Hill(lambda v: v @ h @ v / 2, w).climb(PowerAscent(averaged=3, rtol=-1.0), 7)
    gamma = torch.zeros(4, dtype=FLOAT)
    for k, point in enumerate(points):
        slope = h @ (w + gamma)
        kept = 0.25 if k in (1, 2, 3) else 0.0
        gamma = (1 - kept) * slope / slope.norm() + kept * gamma
        torch.testing.assert_close(flat(point.gamma), gamma, rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=40)
@given(seeds, st.sampled_from(NORMS), st.integers(0, 9), st.booleans())
def test_power_ascent_never_descends_where_the_loss_is_convex(seed, p, averaged, centre):
    hill = Hill(convex(seed), random_vector(4, seed), p)
    points = hill.climb(PowerAscent(averaged, -1.0), 25, None if centre else on_boundary(4, seed, p))
    losses = torch.tensor([point.loss for point in points], dtype=FLOAT)
    assert len(losses) == 25
    assert losses.diff().min() >= -1e-12
    assert losses[-1] > losses[0] or float(torch.linalg.vector_norm(flat(points[0].gamma), p)) > 1 - 1e-9


@settings(deadline=None, max_examples=40)
@given(seeds, st.sampled_from(NORMS), st.integers(0, 8), st.sampled_from([1e-1, 1e-2, 1e-3]))
def test_power_ascent_ends_when_a_step_gains_little(seed, p, averaged, rtol):
    hill = Hill(convex(seed), random_vector(4, seed), p)
    points = hill.climb(PowerAscent(averaged, rtol), 100)
    losses, base = [point.loss for point in points], float(hill.f(hill.w))
    small = [b - a <= rtol * (a - base) for a, b in itertools.pairwise(losses)]
    assert len(points) < 100
    assert small[-1]
    assert not any(small[averaged:-1])  # which the averaged steps may be
    longer = hill.climb(PowerAscent(averaged, rtol * 1e-3), 100)
    assert [p.loss for p in longer[: len(points)]] == losses  # it differs in nothing but when it ends


def test_power_ascent_without_an_end_takes_all_its_steps():
    hill = Hill(convex(0), random_vector(4))
    assert len(hill.climb(PowerAscent(rtol=-1.0), 33)) == 33


@pytest.mark.slow
@settings(deadline=None, max_examples=12)
@given(seeds, st.sampled_from([1.0, 2.0, inf]))
def test_power_ascent_comes_back_when_it_overshoots(seed, p):
    """On a dome whose top lies inside the ball, where a full step leads down the other side."""
    top, h = 0.6 * on_boundary(4, seed, p), random_hessian(4, seed)
    hill = Hill(lambda w: -(w - top) @ h @ (w - top) / 2, torch.zeros(4, dtype=FLOAT), p)
    rise = max(point.loss for point in hill.climb(PowerAscent(), 40)) - float(hill.f(hill.w))
    assert rise >= 0.9 * float(top @ h @ top / 2)


@pytest.mark.parametrize("p", NORMS)
def test_where_the_slope_is_zero_no_climb_moves(p):
    hill = Hill(lambda w: w.square().sum(), torch.zeros(4, dtype=FLOAT), p)
    for climb in CLIMBS.values():
        assert all(not flat(point.gamma).any() for point in hill.climb(climb, 12))


# -- projected ascent ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [2.0, inf])
@pytest.mark.parametrize("step", [0.1, 0.25, 1.5])
def test_projected_ascent_is_its_loop(p, step):
    hill = Hill(waves(2, 5), random_vector(5), p)
    points = hill.climb(ProjectedAscent(step), 12)
    gamma = torch.zeros(5, dtype=FLOAT)
    for point in points:
        gamma = sharpness.onto_ball(gamma + step * sharpness.uphill(gradient(hill.f, hill.w + gamma), p), 1.0, p)
        torch.testing.assert_close(flat(point.gamma), gamma, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("p", [2.0, inf])
def test_projected_ascent_with_short_steps_reaches_what_a_patient_search_does(p):
    h, w = random_hessian(4), random_vector(4)
    found = WorstCase(Ball(0.5, None, p), 80, 2, ProjectedAscent(0.1)).estimate(bowl(h, w)).value
    expected = sharpness.projected_ascent(lambda v: v @ h @ v / 2, w, 0.5, p, steps=200, starts=6).rise
    assert found == pytest.approx(expected, rel=1e-3)
