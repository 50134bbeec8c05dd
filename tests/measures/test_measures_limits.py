"""Limits of small radii against sharpness in small balls, dense Hessians and diagonal linear networks."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import with_spectrum
from oracles import curvature
from problems import bowl_problem, each_output, flat_weights, random_vector
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from steppe import Ball, Measure, Objective, gaussian, rademacher
from steppe.core.metric import CustomScales, Metric
from steppe.measures import (
    AutoPGD,
    AverageCase,
    AverageLimit,
    CurvatureLimit,
    GradientNorm,
    Loss,
    NotFinite,
    PowerAscent,
    SlopeLimit,
    WorstCase,
    box,
)
from steppe.measures.registration import MAGNITUDE

F64 = torch.float64


def network(width: int = 3) -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Smooth, away from its minima, on batches of unequal size."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 3)).double()
        batches = [(torch.randn(n, 3, dtype=F64), torch.randint(0, 3, (n,))) for n in (8, 5)]
    return model, batches


def given_scales(model: nn.Module) -> list[Tensor]:
    return [torch.linspace(0.5, 2.0, p.numel(), dtype=F64).view_as(p) for p in model.parameters()]


SCALES: dict[str, tuple[Callable[[nn.Module], Metric | None], Callable[[nn.Module], Tensor]]] = {
    "standard": (lambda m: None, lambda m: torch.ones_like(flat_weights(m))),
    "adaptive": (lambda m: MAGNITUDE, lambda m: flat_weights(m).abs()),
    "given": (lambda m: CustomScales(given_scales(m)), lambda m: torch.cat([s.reshape(-1) for s in given_scales(m)])),
}
"""A metric, and the same as a flat vector c."""


def dual_norm(x: Tensor, p: float) -> float:
    """sup of <x, gamma> over ||gamma||_p <= 1, at the gamma that attains it."""
    if p == 1:
        return float(x.abs().max())
    if p == inf:
        return float(x.abs().sum())
    gamma = x.sign() * x.abs() ** (1 / (p - 1))
    return float(x @ gamma / (gamma.abs() ** p).sum() ** (1 / p))


# -- Proposition 1, away from critical points -------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("p", [1, 4 / 3, 2, 4, inf])
def test_the_slope_limit_is_the_dual_norm_of_the_scaled_gradient(p: float, scale: str) -> None:
    model, batches = network()
    metric, c = (f(model) for f in SCALES[scale])
    slope = c * curvature.gradient(curvature.mean_loss(model, cross_entropy, batches), flat_weights(model))
    found = SlopeLimit(Ball(0.3, metric, p)).estimate(Objective(model, cross_entropy, batches))
    assert found.value == pytest.approx(0.3 * dual_norm(slope, p), rel=1e-10)
    assert (found.stderr, found.n, found.kind) == (0.0, 1, "exact")
    assert (found.cost.losses, found.cost.gradients, found.cost.products) == (0, 1, 0)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("p", [1, 2, 4, inf])
def test_worst_case_sharpness_tends_to_the_slope_limit(p: float, scale: str) -> None:
    """And the gap is of second order in the radius."""
    model, batches = network()
    objective, metric = Objective(model, cross_entropy, batches), SCALES[scale][0](model)

    def gap(rho: float) -> float:
        return WorstCase(Ball(rho, metric, p)).estimate(objective).value - limit * rho

    limit = SlopeLimit(Ball(1.0, metric, p)).estimate(objective).value
    gaps = gap(1e-3), gap(1e-4)
    assert abs(gaps[1]) < 2e-3 * limit * 1e-4
    assert gaps[0] / gaps[1] == pytest.approx(100, rel=0.1)


# -- Proposition 1, at critical points --------------------------------------------------------------------------------


class Diagonal(nn.Module):
    """A diagonal linear network: the predictor is u * v."""

    def __init__(self, u: Tensor, v: Tensor):
        super().__init__()
        self.u, self.v = nn.Parameter(u.clone()), nn.Parameter(v.clone())

    def forward(self, x: Tensor) -> Tensor:
        return x @ (self.u * self.v)


def sum_of_squares(out: Tensor, y: Tensor) -> Tensor:
    """Eq. (6) of A modern look: neither a mean nor a half."""
    return ((out - y) ** 2).sum()


U = torch.tensor([1.5, -0.4, 0.9, 2.0], dtype=F64)
V = torch.tensor([0.5, 1.2, -0.7, 0.3], dtype=F64)
BETA = U * V


def whitened(rows: int = 7, d: int = 4) -> Tensor:
    """Data with X'X = I."""
    generator = torch.Generator().manual_seed(5)
    return torch.linalg.qr(torch.randn(rows, d, dtype=F64, generator=generator)).Q


def diagonal_network(u: Tensor = U, v: Tensor = V) -> Objective:
    """At a global minimum on whitened data."""
    x = whitened()
    return Objective(Diagonal(u, v), sum_of_squares, (x, x @ (u * v)))


def balancing(u: Tensor, v: Tensor) -> Metric:
    """The c that makes both diagonal blocks |beta|: |u_i| / |v_i| for the weight whose curvature is v_i^2."""
    return CustomScales([(u.abs() / v.abs()).sqrt(), (v.abs() / u.abs()).sqrt()])


@pytest.mark.parametrize("metric", [None, MAGNITUDE, balancing(U, V)], ids=["standard", "adaptive", "balancing"])
def test_worst_case_sharpness_tends_to_the_curvature_limit(metric: Metric | None) -> None:
    objective, rho = diagonal_network(), 1e-3
    limit = CurvatureLimit(Ball(rho, metric), rtol=1e-9).estimate(objective)
    worst = WorstCase(Ball(rho, metric), 200, 3, PowerAscent(rtol=1e-6)).estimate(objective).value
    assert worst == pytest.approx(limit.value, rel=2e-3)
    assert SlopeLimit(Ball(rho, metric)).estimate(objective).value == pytest.approx(0, abs=1e-12)


SPECTRA = {
    "minimum": [0.5, 1.0, 3.0],
    "saddle": [-4.0, -1.0, 2.0],
    "flat": [0.0, 0.0, 0.0],
    "maximum": [-3.0, -2.0, -0.5],
    "maximum with a flat direction": [-3.0, -2.0, 0.0],
}


@pytest.mark.parametrize("kind", SPECTRA)
def test_bowls_of_every_kind(kind: str) -> None:
    """On a bowl the limit is the sharpness itself, which at a local maximum is 0."""
    top = max(SPECTRA[kind][-1], 0.0)
    problem = bowl_problem(with_spectrum(torch.tensor(SPECTRA[kind])), torch.zeros(3, dtype=F64))
    objective, ball = Objective(problem.model, each_output, problem.batches), Ball(0.7)
    found = CurvatureLimit(ball).estimate(objective)
    assert found.value == pytest.approx(0.7**2 / 2 * top, abs=1e-12)
    worst = WorstCase(ball, 100, climb=AutoPGD()).estimate(objective).value
    assert worst == pytest.approx(found.value, rel=1e-3, abs=1e-12)


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=6), st.floats(0, 3))
@settings(max_examples=20, deadline=None)
def test_the_curvature_limit_is_never_negative(spectrum: list[float], rho: float) -> None:
    problem = bowl_problem(with_spectrum(torch.tensor(spectrum, dtype=F64)), torch.zeros(len(spectrum), dtype=F64))
    found = CurvatureLimit(Ball(rho), rtol=1e-6).estimate(Objective(problem.model, each_output, problem.batches))
    assert found.value >= 0
    assert found.value == pytest.approx(rho**2 / 2 * max(max(spectrum), 0.0), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("scale", SCALES)
def test_the_curvature_limit_of_a_network_is_an_eigenvalue_of_the_rescaled_hessian(scale: str) -> None:
    model, batches = network()
    metric, c = (f(model) for f in SCALES[scale])
    hessian = curvature.hessian(curvature.mean_loss(model, cross_entropy, batches), flat_weights(model))
    top = float(curvature.eigenvalues(curvature.rescaled(hessian, c))[-1])
    found = CurvatureLimit(Ball(0.3, metric), rtol=1e-6).estimate(Objective(model, cross_entropy, batches))
    assert found.value == pytest.approx(0.3**2 / 2 * top, rel=1e-6)
    assert found.kind in ("lower bound", "exact")
    assert found.cost.products > 0
    rough = CurvatureLimit(Ball(0.3, metric), rtol=0.2).estimate(Objective(model, cross_entropy, batches))
    assert abs(rough.value - 0.3**2 / 2 * top) <= rough.stderr, "the residual is scaled with the value"


@pytest.mark.parametrize("ball", [Ball(0.1, None, inf), Ball(0.1, None, 1), Ball([0.1, 0.2])])
def test_balls_without_such_a_limit_are_refused(ball: Ball) -> None:
    model, batches = network()
    with pytest.raises(ValueError, match="eigenvalue in l2 balls of one radius"):
        CurvatureLimit(ball).estimate(Objective(model, cross_entropy, batches))


# -- Proposition 2 ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", SCALES)
def test_the_average_limit_is_a_trace_of_the_rescaled_hessian(scale: str) -> None:
    model, batches = network()
    metric, c = (f(model) for f in SCALES[scale])
    hessian = curvature.hessian(curvature.mean_loss(model, cross_entropy, batches), flat_weights(model))
    expected = curvature.trace(curvature.rescaled(hessian, c))
    objective = Objective(model, cross_entropy, batches)
    one, other = (AverageLimit(0.3, metric, variance).estimate(objective) for variance in (1.0, 1 / 3))
    assert abs(one.value - 0.3**2 / 2 * expected) <= 4 * one.stderr + 1e-12
    assert one.stderr < 0.05 * abs(one.value)
    assert other.value == pytest.approx(one.value / 3, rel=1e-12)
    assert other.stderr == pytest.approx(one.stderr / 3, rel=1e-12)
    assert one.cost.products > 0


LAWS = {"gaussian": (gaussian, 1.0), "signs": (rademacher, 1.0), "box": (box, 1 / 3)}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("metric", [None, MAGNITUDE], ids=["standard", "adaptive"])
@pytest.mark.parametrize("law", LAWS)
def test_average_case_sharpness_tends_to_the_average_limit(law: str, metric: Metric | None) -> None:
    """Away from a critical point too: mirrored draws cancel the slope."""
    model, batches = network()
    objective, rho = Objective(model, cross_entropy, batches), 1e-3
    noise, variance = LAWS[law]
    limit = AverageLimit(rho, metric, variance).estimate(objective)
    found = AverageCase(rho, noise, metric, n=120).estimate(objective)
    assert abs(found.value - limit.value) <= 4 * sqrt(found.stderr**2 + limit.stderr**2)
    assert found.stderr < 0.2 * limit.value, "tells a variance of 1/3 from 1"


def test_on_a_diagonal_bowl_signs_are_the_limit_itself() -> None:
    problem = bowl_problem(torch.diag(torch.tensor([1.0, -3.0, 4.0], dtype=F64)), random_vector(3))
    objective = Objective(problem.model, each_output, problem.batches)
    found = AverageCase(0.5, rademacher, n=5).estimate(objective)
    assert found.value == pytest.approx(AverageLimit(0.5).estimate(objective).value, rel=1e-10)
    assert found.value == pytest.approx(0.5**2 / 2 * 2, rel=1e-10)


# -- diagonal linear networks, with the factor 2 that the paper's Hessian lacks ---------------------------------------

RHO = 0.3


def closed_forms(metric: str, u: Tensor, v: Tensor) -> tuple[float, float]:
    """Average and worst limit: rho^2 / 2 times trace and lambda_max of 2 [[v^2, uv], [uv, u^2]], rescaled."""
    beta = u * v
    by = {
        "standard": u**2 + v**2,
        "adaptive": 2 * beta**2,
        "balancing": 2 * beta.abs(),
        "as printed": (u**4 + v**4) / beta.abs(),
    }[metric]
    return RHO**2 * float(by.sum()), RHO**2 * float(by.max())


def diagonal_metric(name: str, u: Tensor, v: Tensor) -> Metric | None:
    ratio = (u.abs() / v.abs()).sqrt()
    return {
        "standard": None,
        "adaptive": MAGNITUDE,
        "balancing": balancing(u, v),
        "as printed": CustomScales([1 / ratio, ratio]),  # section 5.2 has the two halves of c the other way round
    }[name]


@pytest.mark.parametrize("alpha", [1.0, 3.0])
@pytest.mark.parametrize("name", ["standard", "adaptive", "balancing", "as printed"])
def test_diagonal_linear_networks_have_closed_forms(name: str, alpha: float) -> None:
    u, v = alpha * U, V / alpha
    objective, metric = diagonal_network(u, v), diagonal_metric(name, u, v)
    average, worst = closed_forms(name, u, v)
    assert AverageLimit(RHO, metric).estimate(objective).value == pytest.approx(average, rel=1e-9)
    assert CurvatureLimit(Ball(RHO, metric), rtol=1e-9).estimate(objective).value == pytest.approx(worst, rel=1e-7)


def test_the_balancing_scale_sees_the_predictor_alone() -> None:
    """2 ||beta||_1 and 2 ||beta||_inf in units of rho^2, however u and v share it; printed without the 2."""
    for alpha in (1.0, 0.2, 5.0):
        average, worst = closed_forms("balancing", alpha * U, V / alpha)
        assert average == pytest.approx(2 * RHO**2 * float(BETA.abs().sum()))
        assert worst == pytest.approx(2 * RHO**2 * float(BETA.abs().max()))
    assert closed_forms("as printed", 3 * U, V / 3) != pytest.approx(closed_forms("as printed", U, V), rel=0.1)


def test_the_closed_forms_are_those_of_the_dense_hessian() -> None:
    x = whitened()
    hessian = curvature.diagonal_network_hessian(x, x @ BETA, U, V)
    autograd = curvature.hessian(curvature.diagonal_network_loss(x, x @ BETA), torch.cat([U, V]))
    torch.testing.assert_close(hessian, autograd, rtol=1e-10, atol=1e-12)
    c = torch.cat([(U.abs() / V.abs()).sqrt(), (V.abs() / U.abs()).sqrt()])
    values = curvature.eigenvalues(curvature.rescaled(hessian, c))
    average, worst = closed_forms("balancing", U, V)
    assert RHO**2 / 2 * float(values.sum()) == pytest.approx(average, rel=1e-10)
    assert RHO**2 / 2 * float(values[-1]) == pytest.approx(worst, rel=1e-10)


# -- numbers at the weights themselves --------------------------------------------------------------------------------


def test_the_loss_and_the_norms_of_its_gradient() -> None:
    model, batches = network()
    objective = Objective(model, cross_entropy, batches)
    f, w = curvature.mean_loss(model, cross_entropy, batches), flat_weights(model)
    loss, slope = Loss().estimate(objective), curvature.gradient(f, w)
    assert loss.value == pytest.approx(float(f(w)), rel=1e-12)
    assert (loss.kind, loss.stderr, loss.cost.losses, loss.cost.gradients) == ("exact", 0.0, 1, 0)
    for p, expected in ((1, slope.abs().sum()), (2, slope.norm()), (3, (slope.abs() ** 3).sum() ** (1 / 3))):
        found = GradientNorm(p).estimate(objective)
        assert found.value == pytest.approx(float(expected), rel=1e-12)
        assert (found.kind, found.cost.losses, found.cost.gradients) == ("exact", 0, 1)
    assert GradientNorm(inf).estimate(objective).value == pytest.approx(float(slope.abs().max()), rel=1e-12)


class Root(nn.Module):
    """sqrt(w) at w = 0: the loss is 0 and its slope infinite."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(2, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return self.w.sum().sqrt().expand(len(x), 1)


@pytest.mark.parametrize("measure", [GradientNorm(), SlopeLimit(), CurvatureLimit(), AverageLimit()])
def test_an_infinite_slope_is_said(measure: Measure) -> None:
    objective = Objective(Root(), lambda out, y: out.mean(), (torch.zeros(2, 1), torch.zeros(2)))
    assert Loss().estimate(objective).value == 0
    with pytest.raises(NotFinite):
        measure.estimate(objective)


LIMITS = [SlopeLimit(Ball(0.1, MAGNITUDE)), CurvatureLimit(), AverageLimit(), GradientNorm(), Loss()]


@pytest.mark.parametrize("measure", LIMITS, ids=lambda m: type(m).__name__)
def test_the_model_is_left_alone(measure: Measure) -> None:
    model, _ = network()
    data = (random_vector(12).reshape(4, 3), random_vector(12, 1).reshape(4, 3))
    with assert_untouched(model):
        found = measure.estimate(Objective(model, mse_loss, data), 1)
    assert found.value == measure.estimate(Objective(model, mse_loss, data), 1).value
