"""The constructions behind the universal class: spectra from exponentials, Hessians from point masses, invariance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from math import exp, inf, log, pi, sqrt
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import with_spectrum
from oracles import curvature
from problems import bowl_problem, each_output, flat_weights
from scipy.integrate import quad
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss, one_hot

from steppe import (
    DETERMINANT,
    FROBENIUS,
    TRACE,
    Ball,
    Draw,
    Hypercube,
    Measure,
    Objective,
    PointMass,
    Triple,
    Vector,
    exponential,
    gaussian,
)
from steppe.core.basis import unflat
from steppe.core.triple import Law, identity
from steppe.measures import (
    AverageCase,
    AverageLimit,
    Curvature,
    CurvatureLimit,
    Dense,
    Eigenvalue,
    FrobeniusSquared,
    RelativeFlatness,
    SecondOrder,
    SlopeLimit,
    Trace,
    WorstCase,
    ZerothOrder,
    box,
)
from steppe.measures.registration import MAGNITUDE
from steppe_papers.figures import exponential_integrals, hessian_from_point_masses, spectrum_from_exponentials

F64 = torch.float64


def chebyshev(d: int, reach: float = 0.9) -> list[float]:
    """d different points in [-reach, reach], none of them 0, crowded at the ends as good nodes are."""
    nodes = [reach * float(np.cos(pi * (2 * i + 1) / (2 * d))) for i in range(d)]
    return [x if abs(x) > 1e-3 else reach / 3 for x in nodes]


def bowl(hessian: Tensor) -> Objective:
    problem = bowl_problem(hessian, torch.zeros(len(hessian), dtype=F64))
    return Objective(problem.model, each_output, problem.batches)


# -- Theorem 6: the spectrum from exponentials ------------------------------------------------------------------------

SPECTRUM = torch.tensor([-0.8, 0.0, 0.3, 0.9], dtype=F64)


def test_integrals_are_those_of_quadrature() -> None:
    """One Gaussian integral an eigenvalue, as eq. 43 has it."""
    for sigma, found in zip(chebyshev(5), exponential_integrals(SPECTRUM, chebyshev(5)), strict=True):
        factors = [
            quad(lambda u, a=a: np.exp((sigma * a - 1) * u * u / 2) / sqrt(2 * pi), -inf, inf)[0]
            for a in SPECTRUM.tolist()
        ]
        assert float(found) == pytest.approx(float(np.prod(factors)), rel=1e-7)


def test_integrals_are_means_over_gaussian_directions() -> None:
    hessian, sigmas = with_spectrum(SPECTRUM), [-0.6, 0.4]
    v = torch.randn(20_000, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    halves = ((v @ hessian) * v).sum(1) / 2
    for sigma, found in zip(sigmas, exponential_integrals(SPECTRUM, sigmas), strict=True):
        psi = (sigma * halves).exp()
        error = float(psi.std()) / sqrt(len(psi))
        assert abs(float(psi.mean()) - float(found)) <= 4 * error < 0.05 * float(found)


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=5), st.floats(-0.9, 0.9))
@settings(max_examples=50, deadline=None)
def test_integrals_are_one_over_the_root_of_a_determinant(spectrum: list[float], sigma: float) -> None:
    matrix = with_spectrum(torch.tensor(spectrum, dtype=F64))
    determinant = float(torch.linalg.det(torch.eye(len(spectrum), dtype=F64) - sigma * matrix))
    found = exponential_integrals(torch.tensor(spectrum, dtype=F64), [sigma])
    assert float(found) == pytest.approx(determinant**-0.5, rel=1e-9)


@pytest.mark.parametrize(("sigma", "eigenvalue"), [(1.0, 1.0), (2.0, 0.6), (-1.0, -1.5)])
def test_integrals_that_diverge_are_refused(sigma: float, eigenvalue: float) -> None:
    with pytest.raises(ValueError, match="sigma lambda < 1"):
        exponential_integrals(torch.tensor([eigenvalue, 0.1], dtype=F64), [0.1, sigma])


def recovered(spectrum: Tensor, sigmas: Sequence[float]) -> Tensor:
    return eigenvalues_of(with_spectrum(spectrum), sigmas)


def eigenvalues_of(matrix: Tensor, sigmas: Sequence[float]) -> Tensor:
    """From determinants, so that nobody has computed an eigenvalue."""
    unit = torch.eye(len(matrix), dtype=F64)
    integrals = torch.stack([torch.linalg.det(unit - s * matrix) ** -0.5 for s in sigmas])
    return spectrum_from_exponentials(integrals, sigmas)


@given(st.lists(st.integers(-10, 10), min_size=1, max_size=5, unique=True))
@settings(max_examples=50, deadline=None)
def test_different_eigenvalues_are_recovered(tenths: list[int]) -> None:
    spectrum = torch.tensor(sorted(tenths), dtype=F64) / 10
    torch.testing.assert_close(recovered(spectrum, chebyshev(len(tenths))), spectrum, rtol=0, atol=1e-7)


@given(st.lists(st.floats(-1, 1, allow_subnormal=False), min_size=1, max_size=5))
@settings(max_examples=50, deadline=None)
def test_any_eigenvalues_are_recovered_as_far_as_roots_can_be(values: list[float]) -> None:
    """A k-fold root moves by the k-th root of a rounding error; the polynomial itself does not."""
    spectrum = torch.tensor(sorted(values), dtype=F64)
    found = recovered(spectrum, chebyshev(len(values)))
    torch.testing.assert_close(found, spectrum, rtol=0, atol=0.02)
    torch.testing.assert_close(found.sum(), spectrum.sum(), rtol=0, atol=1e-9)
    assert torch.equal(found, found.sort().values)


@pytest.mark.parametrize(
    ("spectrum", "tolerance"),
    [
        ([0.0, 0.0, 0.0], 1e-4),
        ([0.0, 0.0, 0.7], 1e-6),
        ([0.5, 0.5], 1e-6),
        ([-0.3, 0.5, 0.5, 0.5], 1e-3),
        ([-0.9], 1e-12),
    ],
)
def test_zeros_and_repeated_eigenvalues(spectrum: list[float], tolerance: float) -> None:
    expected = torch.tensor(spectrum, dtype=F64)
    torch.testing.assert_close(recovered(expected, chebyshev(len(spectrum))), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("scale", [1e-100, 1e-6, 1e6, 1e100])
def test_the_unit_of_the_loss_does_not_matter(scale: float) -> None:
    """Large eigenvalues need small sigmas, whose powers would vanish."""
    spectrum = torch.tensor([-0.8, 0.1, 0.3, 0.9], dtype=F64)
    sigmas = [s / scale for s in chebyshev(4)]
    found = spectrum_from_exponentials(exponential_integrals(scale * spectrum, sigmas), sigmas)
    torch.testing.assert_close(found / scale, spectrum, rtol=0, atol=1e-8)


def test_the_order_of_the_sigmas_does_not_matter() -> None:
    sigmas = chebyshev(4)
    mixed = [sigmas[i] for i in (2, 0, 3, 1)]
    torch.testing.assert_close(recovered(SPECTRUM, mixed), recovered(SPECTRUM, sigmas), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("integrals", "sigmas"),
    [(2, [0.1, 0.1]), (2, [0.1, 0.0]), (3, [0.1, 0.2]), (2, [0.1, 0.2, 0.3]), (2, [0.1, 0.1, 0.2])],
    ids=["twice the same", "zero", "too few", "too many", "too many but one"],
)
def test_sigmas_that_tell_too_little_are_refused(integrals: int, sigmas: list[float]) -> None:
    with pytest.raises(ValueError, match="one integral for each of d different sigmas"):
        spectrum_from_exponentials(torch.ones(integrals, dtype=F64), sigmas)


def tiny() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    """Five parameters, so that a Hessian's polynomial is well within double precision."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(2, 1), nn.Tanh(), nn.Linear(1, 1)).double()
        batches = [(torch.randn(n, 2, dtype=F64), torch.randn(n, 1, dtype=F64)) for n in (9, 5)]
    return model, batches


def test_the_spectrum_of_a_network_from_closed_integrals() -> None:
    model, batches = tiny()
    hessian = curvature.hessian(curvature.mean_loss(model, mse_loss, batches), flat_weights(model))
    expected = curvature.eigenvalues(hessian)
    sigmas = chebyshev(5, 0.9 / float(expected.abs().max()))
    torch.testing.assert_close(eigenvalues_of(hessian, sigmas), expected, rtol=1e-4, atol=1e-5)
    again = spectrum_from_exponentials(exponential_integrals(expected, sigmas), sigmas)
    torch.testing.assert_close(again, expected, rtol=1e-4, atol=1e-5)


def test_the_spectrum_from_integrals_that_were_measured() -> None:
    """The same draws for every sigma, so that their errors go together."""
    spectrum, sigmas = torch.tensor([-0.5, 0.8], dtype=F64), [-0.5, 0.5]
    objective = bowl(with_spectrum(spectrum))
    found = [SecondOrder(exponential(sigma), 150).estimate(objective, seed=1) for sigma in sigmas]
    integrals = torch.tensor([exp(-e.value / 2) for e in found], dtype=F64)  # phi(t) = t^-2, as its logarithm
    torch.testing.assert_close(spectrum_from_exponentials(integrals, sigmas), spectrum, rtol=0, atol=0.15)


# -- Theorem 7: the Hessian from point masses -------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(0, 100))
@settings(max_examples=20, deadline=None)
def test_a_matrix_from_its_form_at_few_points(d: int, seed: int) -> None:
    half = torch.randn(d, d, dtype=F64, generator=torch.Generator().manual_seed(seed))
    asked: list[tuple[float, ...]] = []

    def form(v: Tensor) -> float:
        asked.append(tuple(v.tolist()))
        return float(v @ (half + half.T) @ v)

    torch.testing.assert_close(hessian_from_point_masses(form, d), half + half.T, rtol=1e-12, atol=1e-12)
    units = torch.eye(d, dtype=F64)
    points = {tuple((units[i] + units[j] * (i != j)).tolist()) for i in range(d) for j in range(i + 1)}
    assert len(asked) == d * (d + 1) // 2
    assert set(asked) == points


def by_products(objective: Objective) -> Callable[[Tensor], float]:
    operator = Curvature(objective)

    def form(v: Tensor) -> float:
        along = unflat(objective.space, v)
        return float(along.dot(operator.product(along)))

    return form


def by_point_masses(objective: Objective) -> Callable[[Tensor], float]:
    def form(v: Tensor) -> float:
        triple = Triple(identity, identity, (PointMass(unflat(objective.space, v).tensors),))
        return 2 * SecondOrder(triple, 1).estimate(objective).value

    return form


def by_losses(objective: Objective) -> Callable[[Tensor], float]:
    """A mirrored pair of zeroth-order forms, so that the slope cancels."""

    def form(v: Tensor) -> float:
        sides = [PointMass(unflat(objective.space, side * v).tensors) for side in (1, -1)]
        return sum(ZerothOrder(Triple(identity, identity, (s,)), 1e-4, 1).estimate(objective).value for s in sides)

    return form


@pytest.mark.parametrize(
    ("form", "tolerance"),
    [(by_products, 1e-10), (by_point_masses, 1e-10), (by_losses, 1e-6)],
    ids=["products", "point masses", "losses"],
)
def test_the_hessian_of_a_network(form: Callable[[Objective], Callable[[Tensor], float]], tolerance: float) -> None:
    model, batches = tiny()
    expected = curvature.hessian(curvature.mean_loss(model, mse_loss, batches), flat_weights(model))
    found = hessian_from_point_masses(form(Objective(model, mse_loss, batches)), len(expected))
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# -- Example 2: a product of two weights under (k x1, x2 / k) ---------------------------------------------------------


class Product(nn.Module):
    """L = x1^2 x2^2 - 2 x1 x2 + 1."""

    def __init__(self, x1: float, x2: float):
        super().__init__()
        self.x1, self.x2 = nn.Parameter(torch.tensor(x1, dtype=F64)), nn.Parameter(torch.tensor(x2, dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return (self.x1**2 * self.x2**2 - 2 * self.x1 * self.x2 + 1).expand(len(x))


ONE_ROW = (torch.zeros(1, 1), torch.zeros(1))


def product(x1: float, x2: float, k: float = 1.0) -> Objective:
    return Objective(Product(k * x1, x2 / k), each_output, ONE_ROW)


@pytest.mark.parametrize("k", [0.5, 3.0, -2.0])
@pytest.mark.parametrize(("x1", "x2"), [(1.4, 0.5), (1.0, 1.0), (-0.6, 1.1)])
def test_the_determinant_is_invariant_and_trace_and_lambda_max_are_not(x1: float, x2: float, k: float) -> None:
    here, there = (Dense(Curvature(o)).spectrum for o in (product(x1, x2), product(x1, x2, k)))
    determinant = 4 * (x1 * x2) ** 2 - (4 * x1 * x2 - 2) ** 2
    assert float(here.prod()) == pytest.approx(determinant, abs=1e-10)
    assert float(there.prod()) == pytest.approx(determinant, abs=1e-10)
    trace = 2 * (k * x1) ** 2 + 2 * (x2 / k) ** 2
    assert Trace().estimate(product(x1, x2, k)).value == pytest.approx(trace, rel=1e-9)
    assert float(there.sum()) != pytest.approx(float(here.sum()), rel=0.01)
    assert float(there[-1]) != pytest.approx(float(here[-1]), rel=0.01)


def squeezed(law: Law, k: float) -> Law:
    """The law of D v, for the matrix D = diag(k, 1 / k) that moves the weights."""

    def image(draw: Draw) -> Vector:
        v = law(draw)
        return draw.space.vector([v.tensors[0] * k, v.tensors[1] / k])

    return image


LAWS: dict[str, Law] = {"gaussian": gaussian, "hypercube": Hypercube(0.7)}
SHAPES = {"trace": TRACE, "frobenius": FROBENIUS, "determinant": DETERMINANT, "exponential": exponential(-0.3)}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("order", [0, 2])
def test_a_measure_moves_with_the_weights(order: int, shape: str, law: str) -> None:
    """Theorem 11, one step before the end: S at D x with the law of D v is S at x, whatever phi, psi and mu."""
    k, n = 2.5, 12

    def value(measured: Objective, mu: Law) -> float:
        triple = replace(SHAPES[shape], laws=(mu,))
        measure = ZerothOrder(triple, 0.3, n) if order == 0 else SecondOrder(triple, n)
        return measure.estimate(measured, seed=2).value

    here = value(product(1.4, 0.5), LAWS[law])
    assert value(product(1.4, 0.5, k), squeezed(LAWS[law], k)) == pytest.approx(here, rel=1e-8)
    assert value(product(1.4, 0.5, k), LAWS[law]) != pytest.approx(here, rel=1e-2), "neither law is invariant itself"


def lattice(half: float = 9.0, points: int = 90) -> Tensor:
    """The midpoints of small squares: the mean over them is an integral over the plane if psi fades in time."""
    ticks = (torch.arange(points, dtype=F64) + 0.5) * 2 * half / points - half
    return torch.cartesian_prod(ticks, ticks)


REGIONS: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {
    "everywhere": (True, lambda v: v[:, 0] < inf),
    "a function of the product": (True, lambda v: v.prod(1).abs() < 1.0),
    "another function of the product": (True, lambda v: v.prod(1) > 0.3),
    "a disc": (False, lambda v: v.norm(dim=1) < 2.0),
    "a strip": (False, lambda v: v[:, 0].abs() < 1.0),
}


@pytest.mark.parametrize("region", REGIONS)
def test_the_laws_of_theorem_10_and_no_others_make_invariant_measures(region: str) -> None:
    """Lebesgue measure times f(v1 v2), here the indicator of a region, in the triple of the determinant."""
    invariant, inside = REGIONS[region]
    v = lattice()
    v = v[inside(v)]
    values = []
    for k in (1.0, 2.0):
        hessian = Dense(Curvature(product(sqrt(0.7), sqrt(0.7), k))).matrix
        values.append(float(DETERMINANT.link(DETERMINANT.psis(((v @ hessian) * v).sum(1, keepdim=True) / 2))))
    assert (abs(values[0] - values[1]) < 0.1) == invariant
    if region == "everywhere":
        assert values[0] == pytest.approx(log(4 * 0.49 - 0.64) + 4 * log(18) - 2 * log(2 * pi), abs=1e-3)


# -- rescaled layers of a ReLU network --------------------------------------------------------------------------------


def relu_network() -> tuple[nn.Sequential, tuple[Tensor, Tensor]]:
    with torch.random.fork_rng():
        torch.manual_seed(6)
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3, bias=False)).double()
        return model, (torch.randn(30, 3, dtype=F64), torch.randint(0, 3, (30,)))


def rescaled(model: nn.Sequential, a: float) -> nn.Sequential:
    """The same function: the first layer times a, the second over a."""
    other = deepcopy(model)
    with torch.no_grad():
        other[0].weight.mul_(a), other[0].bias.mul_(a), other[2].weight.div_(a)
    return other


def both(measure: Measure, a: float = 8.0) -> tuple[float, float]:
    model, data = relu_network()
    return tuple(measure.estimate(Objective(m, cross_entropy, data)).value for m in (model, rescaled(model, a)))


ADAPTIVE: dict[str, Measure] = {
    "average": AverageCase(0.1, gaussian, MAGNITUDE, n=5),
    "average in the box": AverageCase(0.1, box, MAGNITUDE, n=5),
    "worst l2": WorstCase(Ball(0.3, MAGNITUDE)),
    "worst linf": WorstCase(Ball(0.05, MAGNITUDE, inf)),
    "slope": SlopeLimit(Ball(1.0, MAGNITUDE)),
    "curvature": CurvatureLimit(Ball(1.0, MAGNITUDE), rtol=1e-8),
    "average limit": AverageLimit(1.0, MAGNITUDE),
    "lambda_max": Eigenvalue(metric=MAGNITUDE, by=Dense),
    "frobenius": FrobeniusSquared(metric=MAGNITUDE, by=Dense),
    "relative flatness": RelativeFlatness("0.weight", n=10),
}

STANDARD: dict[str, Measure] = {
    "average": AverageCase(0.1, gaussian, n=5),
    "worst l2": WorstCase(Ball(0.3)),
    "worst linf": WorstCase(Ball(0.05, None, inf)),
    "slope": SlopeLimit(Ball(1.0)),
    "curvature": CurvatureLimit(Ball(1.0)),
    "trace": Trace(by=Dense),
    "frobenius": FrobeniusSquared(by=Dense),
    "triple": SecondOrder(TRACE, 10),
}


@pytest.mark.parametrize("name", ADAPTIVE)
def test_adaptive_measures_do_not_see_the_scale_of_a_layer(name: str) -> None:
    one, other = both(ADAPTIVE[name])
    assert other == pytest.approx(one, rel=1e-6)


@pytest.mark.parametrize("name", STANDARD)
def test_standard_measures_do(name: str) -> None:
    one, other = both(STANDARD[name])
    assert other != pytest.approx(one, rel=0.05)


def test_the_determinant_of_a_rescaled_network_changes_by_that_of_the_rescaling() -> None:
    """|det H| is divided by det(D)^2 = a^(2 (12 - 9)): invariant only where both layers are of one size."""
    model, (x, y) = relu_network()
    data = (x, one_hot(y, 3).double())  # cross-entropy does not see logits move together

    def logarithms(**options: Any) -> list[float]:
        spectra = [
            Dense(Curvature(Objective(m, mse_loss, data, **options))).spectrum for m in (model, rescaled(model, 3))
        ]
        return [float(spectrum.abs().log().sum()) for spectrum in spectra]

    here, there = logarithms()
    assert there - here == pytest.approx(-2 * (12 - 9) * log(3.0), rel=1e-6)
    here, there = logarithms(only=["*.weight"])
    assert there == pytest.approx(here, rel=1e-9)
