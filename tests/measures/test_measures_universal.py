"""Measures of (phi, psi, mu) triples: against naive rewrites, the closed forms of Table 1, and what is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import cycle
from math import erf, exp, isnan, log, pi, sqrt
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from matrices import with_spectrum
from oracles import curvature
from problems import bowl_problem, each_output, flat_weights, mlp_problem, random_hessian, random_vector
from scipy.integrate import dblquad
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from steppe import (
    DETERMINANT,
    FROBENIUS,
    TRACE,
    Ball,
    Draw,
    Hypercube,
    Objective,
    PointMass,
    Triple,
    UniversalSAM,
    Vector,
    exponential,
    gaussian,
    rademacher,
    sphere,
)
from steppe.core.basis import flat
from steppe.core.triple import LOG_CAP, Law, Times, identity, uphill
from steppe.measures import AverageCase, Estimate, NotFinite, OneStep, PerBatch, SecondOrder, ZerothOrder
from steppe.measures.estimate import summarise, with_cost

F64 = torch.float64
Forms = Callable[[Tensor], float]  # of u, one row a draw and one column a law


def bowl(hessian: Tensor, start: Tensor | None = None) -> Objective:
    """The bowl w'Aw / 2 around its lowest point, or around another."""
    problem = bowl_problem(hessian, torch.zeros(len(hessian), dtype=F64) if start is None else start)
    return Objective(problem.model, each_output, problem.batches)


def network() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """A small smooth network away from every minimum, and batches of unequal size."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()
        batches = [(torch.randn(n, 3, dtype=F64), torch.randint(0, 3, (n,))) for n in (7, 4)]
    return model, batches


@dataclass
class Recorded:
    """A law that keeps what it drew."""

    law: Law
    drawn: list[Tensor] = field(default_factory=list)

    def __call__(self, draw: Draw) -> Vector:
        v = self.law(draw)
        self.drawn.append(flat(v).clone())
        return v


def own_phi(t: Tensor) -> Tensor:
    return t[0] * t[0] - 3 * t[1]


def own_psi(t: Tensor) -> Tensor:
    return torch.stack([t.sin(), t * t])


def own_form(u: Tensor) -> float:
    """Each component from the draws of its own law, or both from those that they share."""
    return float(u[:, 0].sin().mean() ** 2 - 3 * (u[:, -1] ** 2).mean())


ROWS: dict[str, tuple[Triple, Forms]] = {
    "trace": (TRACE, lambda u: float(u.sum() / len(u))),
    "frobenius": (FROBENIUS, lambda u: 2 * float(((u - u.mean()) ** 2).sum() / (len(u) - 1))),
    "determinant": (replace(DETERMINANT, laws=(Hypercube(0.5),)), lambda u: -2 * log(float((-u).exp().mean()))),
    "exponential": (exponential(0.3), lambda u: -2 * log(float((0.3 * u).exp().mean()))),
    "two laws": (Triple(own_phi, own_psi, (gaussian, rademacher)), own_form),
    "one law for two": (Triple(own_phi, own_psi, (sphere,)), own_form),
    "two components in logs": (
        Triple(lambda t: t[0] - 2 * t[1], lambda t: torch.stack([t, -t]), (sphere, gaussian), logs=True),
        lambda u: log(float(u[:, 0].exp().mean())) - 2 * log(float((-u[:, 1]).exp().mean())),
    ),
    "uphill": (Triple(identity, identity, (uphill,)), lambda u: float(u.mean())),
}


@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("name", ROWS)
def test_the_value_is_phi_of_the_mean_of_psi(name: str, order: int) -> None:
    """By hand: from losses at w + rho v, or from the dense Hessian, at the directions that the laws gave."""
    (model, batches), (triple, form) = network(), ROWS[name]
    laws = [Recorded(law) for law in triple.laws]
    triple = replace(triple, laws=laws)
    rho, n = 0.7, 12
    measure = ZerothOrder(triple, rho, n) if order == 0 else SecondOrder(triple, n)
    found = measure.estimate(Objective(model, cross_entropy, batches), seed=5)
    f, w = curvature.mean_loss(model, cross_entropy, batches), flat_weights(model)
    hessian = curvature.hessian(f, w)

    def u(v: Tensor) -> float:
        return float((f(w + rho * v) - f(w)) / rho**2 if order == 0 else v @ hessian @ v / 2)

    assert [len(law.drawn) for law in laws] == [n] * len(laws)
    seen = torch.tensor([[u(law.drawn[i]) for law in laws] for i in range(n)], dtype=F64)
    assert found.value == pytest.approx(form(seen), rel=1e-9)
    without = torch.tensor([form(torch.cat([seen[:i], seen[i + 1 :]])) for i in range(n)], dtype=F64)
    jackknife = sqrt((n - 1) / n * float(((without - without.mean()) ** 2).sum()))
    assert found.stderr == pytest.approx(jackknife, rel=1e-6, abs=1e-12)
    assert found.n == n
    assert found.note == ("logarithm" if triple.logs else "")
    assert found.kind == ("unbiased" if name in ("trace", "uphill") else "plug-in")


def test_the_logarithm_of_a_mean_is_no_unbiased_estimate() -> None:
    """Where phi is the identity, in logs the value is still the logarithm of a mean."""
    triple = Triple(identity, Times(-1.0), (gaussian,), logs=True)
    assert ZerothOrder(triple, n=3).estimate(bowl(random_hessian(3))).kind == "plug-in"


# -- the rows of Table 1 ----------------------------------------------------------------------------------------------

SPECTRUM = torch.tensor([-0.5, 0.25, 0.5, 1.0, 1.5, 2.0], dtype=F64)
EVEN = torch.linspace(-0.5, 2, 40, dtype=F64)  # a sample variance needs many draws where few eigenvalues stand out
SEEDS = 200
SIGMA = -0.4


@dataclass(frozen=True)
class Row:
    """A row of Table 1 on a spectrum, and as many draws as an interval at that spectrum needs."""

    triple: Triple
    spectrum: Tensor
    value: float
    n: int


CLOSED: dict[str, Row] = {
    "trace": Row(TRACE, SPECTRUM, float(SPECTRUM.sum()) / 12, 20),
    "frobenius": Row(FROBENIUS, EVEN, float((EVEN**2).sum()), 50),
    "exponential": Row(exponential(SIGMA), SPECTRUM, float((1 - SIGMA * SPECTRUM).log().sum()), 20),
}


@cache
def over_seeds(name: str) -> list[Estimate]:
    """Many estimates of v'Av / 2 on a known spectrum: what a second-order form makes of its draws."""
    row = CLOSED[name]
    objective, hessian, (law,) = bowl(with_spectrum(row.spectrum)), with_spectrum(row.spectrum), row.triple.laws

    def one(seed: int) -> Estimate:
        v = torch.stack([flat(law(objective.draw(seed, 0, i, 0))) for i in range(row.n)])
        psis = row.triple.psis(((v @ hessian) * v).sum(1, keepdim=True) / 2)
        return summarise(psis, "plug-in", row.triple.link)

    return [one(seed) for seed in range(SEEDS)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CLOSED)
def test_intervals_cover_the_closed_form(name: str) -> None:
    expected = CLOSED[name].value
    intervals = [e.interval() for e in over_seeds(name)]
    covered = sum(low <= expected <= high for low, high in intervals) / SEEDS
    assert 0.88 <= covered <= 0.99
    widths = torch.tensor([high - low for low, high in intervals])
    assert float(widths.median()) < 1.2 * abs(expected), "an interval that covers everything says nothing"


@pytest.mark.parametrize("name", ["trace", "frobenius"])
def test_the_mean_over_seeds_is_the_closed_form(name: str) -> None:
    values = torch.tensor([e.value for e in over_seeds(name)], dtype=F64)
    expected, error = CLOSED[name].value, float(values.std()) / sqrt(SEEDS)
    assert abs(float(values.mean()) - expected) <= 4 * error
    assert error < 0.05 * expected


def test_the_exponential_row_is_a_product_over_the_spectrum() -> None:
    """The mean of psi has no bias, unlike the value: prod(1 - sigma lambda)^(-1/2)."""
    integrals = torch.tensor([exp(-e.value / 2) for e in over_seeds("exponential")], dtype=F64)
    expected, error = float((1 - SIGMA * SPECTRUM).prod()) ** -0.5, float(integrals.std()) / sqrt(SEEDS)
    assert abs(float(integrals.mean()) - expected) <= 4 * error
    assert error < 0.02 * expected


@pytest.mark.parametrize("name", CLOSED)
def test_on_a_bowl_both_forms_are_the_same(name: str) -> None:
    """L(rho v) - L(0) is rho^2 v'Av / 2 exactly, and both draw the same directions."""
    triple, objective = CLOSED[name].triple, bowl(with_spectrum(SPECTRUM))
    zeroth, second = ZerothOrder(triple, 0.1, 15).estimate(objective, 7), SecondOrder(triple, 15).estimate(objective, 7)
    assert zeroth.value == pytest.approx(second.value, rel=1e-9)
    assert zeroth.stderr == pytest.approx(second.stderr, rel=1e-6)


def log_mean_over_a_box(curvatures: Sequence[float], half: float) -> float:
    """log of the mean of exp(-v'Av / 2) over [-half, half]^d for a diagonal A, by the error function."""
    means = [sqrt(2 * pi / a) * erf(half * sqrt(a / 2)) / (2 * half) for a in curvatures]
    return sum(map(log, means))


@pytest.mark.parametrize("curvatures", [(1.3,), (0.8, 2.0)])
@pytest.mark.parametrize("order", [0, 2])
def test_the_determinant_row_on_a_cube_is_its_integral(curvatures: tuple[float, ...], order: int) -> None:
    objective = bowl(torch.diag(torch.tensor([*curvatures, 0.0][:2], dtype=F64)))
    triple = replace(DETERMINANT, laws=(Hypercube(1.5),))
    found = (ZerothOrder(triple, 1.0, 120) if order == 0 else SecondOrder(triple, 120)).estimate(objective)
    assert abs(found.value - -2 * log_mean_over_a_box(curvatures, 1.5)) <= 4 * found.stderr
    assert found.stderr < 0.3


def test_the_determinant_row_on_a_large_cube_is_the_determinant() -> None:
    """(2 pi)^d over the squared integral, whose constants the triple leaves out; the axes are not the cube's."""
    hessian, half, d = with_spectrum(torch.tensor([1.0, 2.5])), 4.0, 2
    found = SecondOrder(replace(DETERMINANT, laws=(Hypercube(half),)), 150).estimate(bowl(hessian), seed=1)
    a, b, c = (float(hessian[i, j]) for i, j in ((0, 0), (0, 1), (1, 1)))
    integral, _ = dblquad(lambda y, x: np.exp(-(a * x * x + 2 * b * x * y + c * y * y) / 2), -half, half, -half, half)
    assert abs(found.value - -2 * log(integral / (2 * half) ** d)) <= 4 * found.stderr
    determinant = found.value + d * log(2 * pi) - 2 * d * log(2 * half)
    assert abs(determinant - log(2.5)) <= 4 * found.stderr
    assert found.stderr < 0.6


@pytest.mark.parametrize("rho", [0.05, 1.0])
def test_all_mass_at_the_gradient_is_sams_sharpness(rho: float) -> None:
    model, batches = network()
    objective = Objective(model, cross_entropy, batches)
    found = ZerothOrder(Triple(identity, identity, (uphill,)), rho, 3).estimate(objective)
    assert found.value == pytest.approx(OneStep(Ball(rho)).estimate(objective).value / rho**2, rel=1e-9)
    assert found.stderr == pytest.approx(0, abs=1e-9)


class Valley(nn.Module):
    """L = w'Aw / 2 + (b'w)^3 + (c'w)^4 of every row: critical at 0, curved as A there, and no quadratic."""

    def __init__(self, hessian: Tensor):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(len(hessian), dtype=F64))
        self.register_buffer("hessian", hessian)

    def forward(self, x: Tensor) -> Tensor:
        w = self.w
        return (w @ self.hessian @ w / 2 + (w @ random_vector(len(w), 1)) ** 3 + (w @ x[0]) ** 4).expand(len(x))


@pytest.mark.parametrize("name", ["trace", "frobenius", "exponential", "determinant"])
def test_the_zeroth_order_form_tends_to_the_second_order_form(name: str) -> None:
    """At a critical point, and as fast as rho: what third derivatives leave."""
    model, triple = Valley(with_spectrum(SPECTRUM)), ROWS[name][0]
    objective = Objective(model, each_output, (random_vector(6, 2)[None], torch.zeros(1)))
    limit = SecondOrder(triple, 20).estimate(objective).value
    gaps = [ZerothOrder(triple, rho, 20).estimate(objective).value - limit for rho in (1e-3, 1e-4)]
    assert abs(gaps[1]) < 1e-2 * abs(limit)
    assert abs(gaps[1]) < 0.2 * abs(gaps[0])


# -- what is measured is what is trained ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ROWS)
def test_the_value_is_the_optimizers(name: str) -> None:
    u = random_vector(10, 4).reshape(5, 2)[:, : len(ROWS[name][0].laws)]
    triple, form = ROWS[name]
    expected = float(triple.value(u))
    assert (exp(form(u)) if triple.logs else form(u)) == pytest.approx(expected, rel=1e-9)
    link = float(triple.link(triple.psis(u)))
    assert (exp(link) if triple.logs else link) == pytest.approx(expected, rel=1e-12)


def test_a_logarithm_beyond_the_cap_is_measured_and_capped_where_it_is_trained() -> None:
    u = torch.full((4, 1), 100.0, dtype=F64)
    assert float(DETERMINANT.value(u)) == pytest.approx(exp(LOG_CAP), rel=1e-12)
    triple = replace(DETERMINANT, laws=(PointMass([torch.ones(1), torch.zeros(1)]),))
    objective = bowl(torch.diag(torch.tensor([200.0, 0.0], dtype=F64)))
    # v = 1 on a parabola of curvature 200 rises by 100
    assert ZerothOrder(triple, 1.0, 4).estimate(objective).value == pytest.approx(200, rel=1e-12)


class Round:
    """A law that gives the same few directions again and again, so that a loss of it is one function of w."""

    def __init__(self, seed: int, n: int, d: int):
        self.directions = cycle([random_vector(d, 10 * seed + i) for i in range(n)])

    def __call__(self, draw: Draw) -> Vector:
        v = next(self.directions)
        half = draw.space.params[0].numel()
        return draw.space.vector([v[:half].clone(), v[half:].clone()])


@pytest.mark.parametrize("name", [name for name in ROWS if name != "uphill"])
def test_the_trained_gradient_is_that_of_what_is_measured(name: str) -> None:
    """By central differences of L + strength rho^2 R, with R as the measure has it."""
    d, n, rho, strength = 4, 3, 0.4, 0.3
    triple = replace(ROWS[name][0], laws=[Round(k, n, d) for k, _ in enumerate(ROWS[name][0].laws)])
    hessian, w = 0.5 * random_hessian(d), random_vector(d, 8)

    def trained(w: Tensor) -> float:
        objective = bowl(hessian, w)
        r = ZerothOrder(triple, rho, n).estimate(objective).value
        return objective.loss() + strength * rho**2 * (exp(r) if triple.logs else r)

    h = 1e-5
    expected = [(trained(w + h * e) - trained(w - h * e)) / (2 * h) for e in torch.eye(d, dtype=F64)]
    got = flat(bowl(hessian, w).drive(UniversalSAM(triple, rho, n, strength)))
    torch.testing.assert_close(got, torch.tensor(expected, dtype=F64), rtol=1e-6, atol=1e-7)


# -- data, randomness, cost -------------------------------------------------------------------------------------------

FORMS: dict[str, Callable[..., Any]] = {
    "zeroth": lambda triple=TRACE, n=20: ZerothOrder(triple, 0.1, n),
    "second": lambda triple=TRACE, n=20: SecondOrder(triple, n),
}


@pytest.mark.parametrize("form", FORMS)
def test_unequal_batches_are_one_data_set(form: str) -> None:
    model, batches = network()
    together = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    apart, whole = (FORMS[form]().estimate(Objective(model, cross_entropy, data)) for data in (batches, together))
    assert apart.value == pytest.approx(whole.value, rel=1e-8)
    assert apart.stderr == pytest.approx(whole.stderr, rel=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_a_seed_fixes_the_draws(form: str) -> None:
    objective, measure = bowl(random_hessian(5)), FORMS[form]()
    one, again, other = (measure.estimate(objective, seed) for seed in (1, 1, 2))
    assert (one.value, one.stderr) == (again.value, again.stderr)
    assert one.value != other.value


@pytest.mark.parametrize("form", FORMS)
def test_batches_have_draws_of_their_own(form: str) -> None:
    """Three times the same batch is three times the same number only if the draws are the same too."""
    model, (batch, _) = network()
    parts = PerBatch(FORMS[form](n=3)).parts(Objective(model, cross_entropy, [batch] * 3))
    assert len({e.value for _, e in parts}) == 3


@pytest.mark.parametrize("form", FORMS)
def test_laws_of_one_triple_draw_apart(form: str) -> None:
    laws = [Recorded(gaussian), Recorded(gaussian)]
    FORMS[form](Triple(own_phi, own_psi, laws), n=3).estimate(bowl(random_hessian(4)))
    assert len({tuple(v.tolist()) for law in laws for v in law.drawn}) == 6


SHARED: dict[str, Callable[[Law], Any]] = {
    "zeroth": lambda law: ZerothOrder(replace(TRACE, laws=(law,)), n=3),
    "second": lambda law: SecondOrder(replace(TRACE, laws=(law,)), n=3),
    "average case": lambda law: AverageCase(0.1, law, n=3),
}


@pytest.mark.parametrize("name", SHARED)
def test_workers_that_share_the_batches_draw_the_same_directions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum over workers is a loss only if all of them look at the same place."""
    model, batches = network()
    monkeypatch.setattr(dist, "get_world_size", lambda group: 2)
    monkeypatch.setattr(dist, "all_reduce", lambda number, group: None)
    monkeypatch.setattr(dist, "all_gather_object", lambda everybody, mine, group: None)
    drawn = []
    for rank in range(2):
        monkeypatch.setattr(dist, "get_rank", lambda group, rank=rank: rank)
        law = Recorded(gaussian)
        SHARED[name](law).estimate(Objective(model, cross_entropy, [batches[rank]], group=object()))
        drawn.append(torch.stack(law.drawn))
    assert torch.equal(*drawn)


@pytest.mark.parametrize("form", FORMS)
def test_only_some_parameters(form: str) -> None:
    hessian = random_hessian(6)
    problem = bowl_problem(hessian, torch.zeros(6, dtype=F64))
    objective = Objective(problem.model, each_output, problem.batches, only=["head"])
    found = FORMS[form](n=200).estimate(objective)
    assert abs(found.value - float(hessian[:3, :3].trace()) / 6) <= 4 * found.stderr


@pytest.mark.parametrize("form", FORMS)
def test_single_precision(form: str) -> None:
    model, batches = network()
    double = FORMS[form](replace(TRACE, laws=(rademacher,))).estimate(Objective(model, cross_entropy, batches))
    with torch.random.fork_rng():
        small = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    small.load_state_dict(model.state_dict())
    single = FORMS[form](replace(TRACE, laws=(rademacher,))).estimate(
        Objective(small, cross_entropy, [(x.float(), y) for x, y in batches])
    )
    assert double.stderr > 0
    assert single.value == pytest.approx(double.value, abs=1e-2 * double.stderr + 1e-3)


@pytest.mark.parametrize("laws", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_the_cost_is_what_was_worked(form: str, laws: int) -> None:
    triple = Triple(own_phi, own_psi, (gaussian, sphere)) if laws == 2 else TRACE
    objective = bowl(random_hessian(4))
    objective.loss(), objective.gradient()  # which is not this measure's
    cost = FORMS[form](triple, n=13).estimate(objective).cost
    assert cost.gradients == 1
    assert (cost.losses, cost.products) == ((13 * laws, 0) if form == "zeroth" else (0, 13 * laws))
    assert 0 < cost.seconds < 100


@pytest.mark.parametrize("form", FORMS)
def test_running_estimates_improve_step_by_step(form: str) -> None:
    objective, measure = bowl(random_hessian(4)), FORMS[form](n=25)
    running = list(with_cost(measure.running(objective, 3), objective))
    assert [e.n for e in running] == [10, 20, 25]
    assert running[0].cost.seconds < running[-1].cost.seconds
    final = measure.estimate(objective, 3)
    assert (running[-1].value, running[-1].stderr) == (final.value, final.stderr)
    assert running[0].value == FORMS[form](n=10).estimate(objective, 3).value


@pytest.mark.parametrize("form", FORMS)
def test_one_draw_has_a_value_and_no_error(form: str) -> None:
    found = FORMS[form](n=1).estimate(bowl(random_hessian(4)))
    assert found.n == 1
    assert isnan(found.stderr)


@pytest.mark.parametrize("form", FORMS)
def test_two_draws_of_a_variance_have_a_value_and_no_error(form: str) -> None:
    """n = 2 is Frob-SAM's; without one of two draws there is no variance to compare with."""
    laws = Recorded(gaussian)
    hessian = random_hessian(4)
    found = FORMS[form](replace(FROBENIUS, laws=(laws,)), n=2).estimate(bowl(hessian))
    one, two = (float(v @ hessian @ v / 2) for v in laws.drawn)
    assert found.value == pytest.approx((one - two) ** 2, rel=1e-8)
    assert isnan(found.stderr)


@pytest.mark.parametrize("form", FORMS)
def test_one_draw_of_a_variance_is_refused(form: str) -> None:
    with pytest.raises(ValueError, match="at least two draws"):
        FORMS[form](FROBENIUS, n=1).estimate(bowl(random_hessian(4)))


@pytest.mark.parametrize("form", FORMS)
def test_the_model_is_left_alone(form: str) -> None:
    problem = mlp_problem(2)
    objective = Objective(problem.model, problem.losses, problem.batches)
    with assert_untouched(problem.model):
        FORMS[form](n=3).estimate(objective)


# -- laws that return what they were shown ----------------------------------------------------------------------------

SHOWN: dict[str, Law] = {"weights": lambda draw: draw.weights, "gradient": lambda draw: draw.grad}


SHOWING: dict[str, tuple[str, Callable[[Law, int], Any]]] = {
    **{f"{name}, {form}": (name, lambda law, n, form=form: FORMS[form](Triple(identity, identity, (law,)), n))
       for name in SHOWN for form in FORMS},
    "weights, average case": ("weights", lambda law, n: AverageCase(0.1, law, n=n)),
}  # fmt: skip


@pytest.mark.parametrize("name", SHOWING)
def test_a_law_may_return_what_it_was_shown(name: str) -> None:
    """The weights or the gradient as a direction are a point mass, which the measure must not scale in place."""
    shown, measure = SHOWING[name]
    model, batches = network()
    objective = Objective(model, cross_entropy, batches)
    with assert_untouched(model):
        found = measure(SHOWN[shown], 3).estimate(objective)
    assert found.stderr == pytest.approx(0, abs=1e-9), "the same direction three times"
    assert found.value == pytest.approx(measure(SHOWN[shown], 1).estimate(objective).value, rel=1e-9)


# -- what is no number ------------------------------------------------------------------------------------------------


class Cliff(nn.Module):
    """Infinite further than 1 from the weights, which are 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(3, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        far = self.w @ self.w
        return torch.where(far > 1, torch.inf, far).expand(len(x))


def test_an_infinite_loss_is_said_with_the_draw_and_the_radius() -> None:
    objective = Objective(Cliff(), each_output, (torch.zeros(1, 1), torch.zeros(1)))
    assert ZerothOrder(TRACE, 0.5).estimate(objective).value == pytest.approx(1.0)
    with pytest.raises(NotFinite, match=r"inf at draw 0, radius 2\.0: measure at a smaller radius"):
        ZerothOrder(TRACE, 2.0).estimate(objective)


@pytest.mark.parametrize("form", FORMS)
def test_a_psi_that_overflows_is_said(form: str) -> None:
    """In logs it would not: that is what logs are for."""
    objective = bowl(1e4 * random_hessian(3))
    with pytest.raises(NotFinite, match="infinite"):
        FORMS[form](Triple(lambda t: t**-2, torch.exp, (gaussian,))).estimate(objective)
    assert FORMS[form](exponential(-1.0)).estimate(objective).value > 0


@pytest.mark.parametrize("rho", [0.0, -0.1, float("nan")])
def test_a_radius_that_is_none_is_refused(rho: float) -> None:
    with pytest.raises(ValueError, match="rho"):
        ZerothOrder(TRACE, rho).estimate(bowl(random_hessian(3)))


# -- the time that draws take -----------------------------------------------------------------------------------------


class Numbers(TorchDispatchMode):
    """Counts the numbers that torch computes."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.count += sum(t.numel() for t in tree_leaves((args, out)) if isinstance(t, Tensor))
        return out


@pytest.mark.slow
@pytest.mark.parametrize(("form", "triple"), [("zeroth", FROBENIUS), ("second", exponential(0.1))])
def test_four_times_the_draws_take_four_times_the_work(form: str, triple: Triple) -> None:
    """The running estimates, of which every one leaves out each of its draws, included."""

    def work(n: int) -> int:
        objective = bowl(0.01 * random_hessian(3))
        with Numbers() as numbers:
            FORMS[form](triple, n=n).estimate(objective)
        return numbers.count

    assert work(800) <= 1.5 * 4 * work(200)


@pytest.mark.parametrize("triple", [TRACE, FROBENIUS, DETERMINANT, exponential(0.1)])
def test_leaving_out_each_draw_in_linear_time_is_leaving_it_out(triple: Triple) -> None:
    """Also beside a draw that outweighs all others together."""
    u = torch.randn(40, 1, dtype=F64, generator=torch.Generator().manual_seed(0))
    for huge in (u[7].clone(), torch.tensor([1e3], dtype=F64), torch.tensor([-1e3], dtype=F64)):
        u[7] = huge
        psis = triple.psis(u)
        expected = torch.stack([triple.link(torch.cat([psis[:i], psis[i + 1 :]])) for i in range(40)])
        torch.testing.assert_close(triple.links_without_each(psis), expected, rtol=1e-12, atol=1e-12)
