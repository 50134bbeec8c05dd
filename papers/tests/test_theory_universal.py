"""Table 1 and Examples 1 to 3 of the universal-SAM paper, and where its methods end on a known zero-loss manifold."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from math import exp, log, pi, prod, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steppe import DETERMINANT, FROBENIUS, TRACE, Hypercube, SharpnessAware, UniversalSAM, exponential
from steppe.measures import ZerothOrder
from steppe_papers.figures import exponential_integrals, universal
from steppe_papers.figures import zero_loss_manifold as manifold
from steppe_papers.figures.registry import Settings

F64 = torch.float64
SPECTRA = st.lists(st.floats(-3, 3), min_size=1, max_size=4).map(lambda x: torch.tensor(x, dtype=F64))


def turned(values: Tensor, seed: int = 0) -> Tensor:
    """A matrix with those eigenvalues along random axes."""
    generator = torch.Generator().manual_seed(seed)
    axes = torch.linalg.qr(torch.randn(len(values), len(values), dtype=F64, generator=generator)).Q
    return (axes * values) @ axes.T


# -- Table 1 ----------------------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(SPECTRA)
def test_the_first_row_is_exact_over_a_cross(values: Tensor) -> None:
    hessian = turned(values)
    measured = universal.functional(TRACE, hessian, universal.cross_points(len(values)))
    assert measured == pytest.approx(universal.closed_forms(values, 0.1)["trace"], abs=1e-12)
    assert measured == pytest.approx(float(hessian.trace()) / (2 * len(values)), abs=1e-12)


@settings(max_examples=8, deadline=None)
@given(st.lists(st.floats(-3, 3), min_size=1, max_size=3).map(lambda x: torch.tensor(x, dtype=F64)))
def test_the_second_row_is_the_square_of_the_norm_exactly(values: Tensor) -> None:
    hessian = turned(values)
    measured = universal.functional(FROBENIUS, hessian, universal.gaussian_points(len(values)))
    assert measured == pytest.approx(float(torch.linalg.matrix_norm(hessian)) ** 2, abs=1e-10)
    assert measured == pytest.approx(universal.closed_forms(values, 0.1)["frobenius"], abs=1e-10)


def test_the_points_have_the_moments_of_a_gaussian() -> None:
    points = universal.gaussian_points(2)
    for a, b, moment in [(1, 0, 0), (2, 0, 1), (1, 1, 0), (4, 0, 3), (2, 2, 1), (3, 1, 0), (5, 0, 0)]:
        assert float((points[:, 0] ** a * points[:, 1] ** b).mean()) == pytest.approx(moment, abs=1e-12)


@pytest.mark.parametrize("values", [(1.0, 2.5), (0.7, 0.7), (3.0,)])
def test_the_third_row_is_the_determinant(values: tuple[float, ...]) -> None:
    hessian = turned(torch.tensor(values, dtype=F64), seed=3)
    found = universal.log_determinant(hessian, half=10.0, points=40)
    assert found == pytest.approx(float(torch.logdet(hessian)), abs=1e-8)
    assert exp(found) == pytest.approx(universal.closed_forms(torch.tensor(values), 0.1)["determinant"], rel=1e-6)


@settings(max_examples=30, deadline=None)
@given(SPECTRA, st.floats(-0.3, 0.3))
def test_the_fourth_row_is_one_over_the_squared_integral(values: Tensor, sigma: float) -> None:
    closed = universal.closed_forms(values, sigma)["exponential"]
    assert closed == pytest.approx(float(exponential_integrals(values, [sigma])[0]) ** -2, rel=1e-9)
    assert closed == pytest.approx(float(torch.linalg.det(torch.eye(len(values)) - sigma * turned(values))), rel=1e-9)


def test_the_fourth_row_by_quadrature() -> None:
    values, sigma = torch.tensor([1.2, -0.8], dtype=F64), 0.5
    v = universal.midpoints(2, 12.0, 300)
    density = (-v.square().sum(1) / 2).exp() / (2 * pi) * (24 / 300) ** 2
    psi = exponential(sigma).psi((v.square() @ values) / 2).exp()
    integral = float((density * psi).sum())
    assert integral**-2 == pytest.approx(universal.closed_forms(values, sigma)["exponential"], rel=1e-10)


def test_table_1_as_a_study() -> None:
    result = universal.table_1(Settings(quick=True))
    rows = result.data["rows"]
    assert {r["row"] for r in rows} == {"trace", "frobenius", "determinant", "exponential"}
    assert sum(abs(r["measured"] - r["closed"]) < 3.5 * r["stderr"] for r in rows) >= len(rows) - 1
    assert len(result.figure["data"]) == 8
    assert "square" in " ".join(result.words)


# -- Examples ---------------------------------------------------------------------------------------------------------


def test_example_1_no_function_of_a_constant_hessian_tells_points_apart() -> None:
    def loss(w: Tensor) -> Tensor:
        return (w[0] ** 2 - w[1] ** 2) / 2

    here, there = (
        torch.autograd.functional.hessian(loss, torch.tensor(w, dtype=F64)) for w in ((0.0, 0.0), (3.0, -1.0))
    )
    torch.testing.assert_close(here, there)
    torch.testing.assert_close(here, universal.saddle())
    forms = universal.closed_forms(torch.linalg.eigvalsh(here), 0.1)
    assert forms["trace"] == 0
    assert forms["frobenius"] == 2


@pytest.mark.parametrize(("x1", "x2"), [(1.4, 0.5), (-0.6, 1.1), (2.0, 0.5)])
def test_example_2_is_the_hessian_of_its_loss(x1: float, x2: float) -> None:
    w = torch.tensor([x1, x2], dtype=F64)
    dense = torch.autograd.functional.hessian(lambda w: (w[0] * w[1]) ** 2 - 2 * w[0] * w[1] + 1, w)
    torch.testing.assert_close(universal.product_hessian(x1, x2), dense)
    assert universal.product_determinant(x1, x2) == pytest.approx(float(torch.linalg.det(dense)), abs=1e-10)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.2, 3), st.floats(0.2, 3), st.floats(0.2, 5), st.sampled_from([1, -1]))
def test_example_3_the_determinant_does_not_see_the_scale(x1: float, x2: float, k: float, sign: int) -> None:
    moved = universal.product_hessian(sign * k * x1, sign * x2 / k)
    here = universal.product_hessian(x1, x2)
    scale = torch.diag(torch.tensor([1 / k, k], dtype=F64)) * sign
    torch.testing.assert_close(moved, scale @ here @ scale, rtol=1e-9, atol=1e-9)  # D^-1 H D^-1
    assert universal.product_determinant(k * x1, x2 / k) == pytest.approx(
        universal.product_determinant(x1, x2), rel=1e-9, abs=1e-9
    )


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 8))
def test_on_a_curve_of_minima_in_the_plane_all_measures_are_one_eigenvalue(x1: float) -> None:
    """Why two parameters cannot tell the methods apart: trace and norm agree and the determinant is 0."""
    hessian = universal.product_hessian(x1, 1 / x1)
    trace = float(hessian.trace())
    assert float(torch.linalg.matrix_norm(hessian)) == pytest.approx(trace, rel=1e-9)
    assert abs(float(torch.linalg.det(hessian))) < 1e-9 * trace**2
    assert universal.product_determinant(x1, 1 / x1) == pytest.approx(0, abs=1e-9)


# -- the zero-loss manifold -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("s", [-1.5, 0.0, 0.8, 2.0])
def test_curvatures_are_those_of_the_valley(s: float) -> None:
    model = manifold.Valley(s)

    def loss(w: Tensor) -> Tensor:
        return torch.func.functional_call(model, {"along": w[0], "across": w[1:]}, ())

    dense = torch.autograd.functional.hessian(loss, torch.tensor([s, 0.0, 0.0], dtype=F64))
    values = torch.linalg.eigvalsh(dense)
    a, b = manifold.curvatures(s)
    torch.testing.assert_close(values, torch.tensor(sorted([0.0, a, b]), dtype=F64), rtol=1e-12, atol=1e-12)
    assert a > 0
    assert b > 0
    found = manifold.measures(s)
    assert found["trace"] == pytest.approx(float(dense.trace()))
    assert found["frobenius"] == pytest.approx(float(dense.square().sum()))
    assert found["determinant"] == pytest.approx(float(values[1] * values[2]))


def test_the_minima_lie_where_slopes_vanish_and_far_apart() -> None:
    best = manifold.minima()
    for name, s in best.items():
        slope = (manifold.measures(s + 1e-5)[name] - manifold.measures(s - 1e-5)[name]) / 2e-5
        assert abs(slope) < 1e-5
    places = sorted(best.values())
    assert min(b - a for a, b in itertools.pairwise(places)) > 0.3


@pytest.mark.parametrize("half", [0.01, 0.5, 3.0])
@pytest.mark.parametrize("s", [-1.0, 0.7])
def test_the_measure_on_a_cube_is_its_integral(s: float, half: float) -> None:
    hessian = torch.diag(torch.tensor([0.0, *manifold.curvatures(s)], dtype=F64))
    mean = universal.functional(DETERMINANT, hessian, universal.midpoints(3, half, 16))  # the flat axis needs no points
    assert manifold.cube_measure(s, half) == pytest.approx(mean, abs=2e-2 * min(1, half**2))


def test_a_small_cube_measures_the_trace_and_a_large_one_the_determinant() -> None:
    s, t = -0.4, 0.9
    small = (manifold.cube_measure(s, 0.01) - manifold.cube_measure(t, 0.01)) / 0.01**2 * 3
    assert small == pytest.approx(manifold.measures(s)["trace"] - manifold.measures(t)["trace"], rel=1e-3)
    large = manifold.cube_measure(s, 20.0) - manifold.cube_measure(t, 20.0)
    assert large == pytest.approx(
        log(manifold.measures(s)["determinant"] / manifold.measures(t)["determinant"]), abs=1e-9
    )
    best = manifold.minima()
    assert manifold.argmin(lambda s: manifold.cube_measure(s, manifold.SMALL)) == pytest.approx(best["trace"], abs=1e-3)
    assert manifold.argmin(lambda s: manifold.cube_measure(s, 20.0)) == pytest.approx(best["determinant"], abs=1e-3)


@pytest.mark.parametrize("off", [0.0, 0.05])
def test_the_determinants_regulariser_falls_off_the_manifold(off: float) -> None:
    """a b exp(-2 L / rho^2), against the integral itself on a lattice across the valley at one s."""
    s, rho, half, points = 0.3, 0.1, 14.0, 160
    a, b = manifold.curvatures(s)
    v = universal.midpoints(2, half, points)
    y = torch.tensor([off, -off], dtype=F64)

    def loss(p: Tensor) -> Tensor:
        return (a * p[..., 0] ** 2 + b * p[..., 1] ** 2) / 2

    psi = (-(loss(y + rho * v) - loss(y)) / rho**2).exp()
    integral = float(psi.sum()) * (2 * half / points) ** 2
    assert (2 * pi) ** 2 / integral**2 == pytest.approx(
        manifold.determinant_regulariser(s, float(loss(y)), rho), rel=1e-6
    )


def test_where_the_determinants_objective_is_least() -> None:
    s, rho = -1.0, 0.1
    grid = torch.linspace(0, 0.05, 20001).tolist()
    for strength in (0.1, 3.0):
        objective = [x + strength * rho**2 * manifold.determinant_regulariser(s, x, rho) for x in grid]
        assert manifold.loss_at_minimum(s, strength, rho) == pytest.approx(
            grid[objective.index(min(objective))], abs=1e-5
        )
    assert manifold.loss_at_minimum(s, 0.1, rho) == 0 < manifold.loss_at_minimum(s, 3.0, rho)


@pytest.mark.parametrize("place", [(0.3, 0.02, -0.4), (-1.5, 1.0, 0.0), (1.5, -0.2, 2.0)])
def test_the_valleys_gradient_is_autograds(place: tuple[float, float, float]) -> None:
    valley = manifold.Valley(*place)
    loss = valley()
    wanted = torch.autograd.grad(loss, [valley.along, valley.across])
    assert valley.backward().item() == pytest.approx(loss.item(), rel=1e-14)
    for p, grad in zip((valley.along, valley.across), wanted, strict=True):
        assert p.grad is not None
        assert p.grad.dtype == p.dtype
        torch.testing.assert_close(p.grad, grad, rtol=1e-14, atol=1e-15)


STEPS = {"trace": 200, "frobenius": 200, "determinant": 120, "determinant, small cube": 200}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("start", [-1.5, 1.5])
@pytest.mark.parametrize("name", manifold.METHODS)
def test_each_method_ends_near_the_minimum_of_its_own_measure(name: str, start: float) -> None:
    """And not near the others', from both sides; Det-SAM on the paper's cube ends at the trace's."""
    run = manifold.METHODS[name]
    path = list(manifold.train(run, start, STEPS[name]))
    best = manifold.minima()
    end = manifold.end(path)
    assert min(best, key=lambda k: abs(best[k] - end)) == run.own
    assert abs(end - best[run.own]) < (0.25 if run.own == "determinant" else 0.15)
    assert path[-1][1] < 1e-3, "the loss stays near 0"


def test_frob_sams_measure_is_the_zeroth_order_form_here() -> None:
    """R_rho of the measures that methods train tends to S on the manifold."""
    from steppe.measures import Objective

    class Rows(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.valley = manifold.Valley(0.4)

        def forward(self, x: Tensor) -> Tensor:
            return self.valley().expand(len(x))

    objective = Objective(Rows(), lambda out, _: out, (torch.zeros(1, 1), torch.zeros(1)))
    found = ZerothOrder(TRACE, 1e-3, 150).estimate(objective)
    assert abs(found.value - manifold.measures(0.4)["trace"] / 6) < 4 * found.stderr
    cube = replace(DETERMINANT, laws=(Hypercube(1.0),))
    found = ZerothOrder(cube, 1e-3, 150).estimate(objective)
    assert abs(found.value - manifold.cube_measure(0.4, 1.0)) < 4 * found.stderr


def test_explicit_bias_as_a_study() -> None:
    result = manifold.explicit_bias(Settings(sizes={"steps": 12}))
    assert set(result.data["minima"]) == {"trace", "frobenius", "determinant"}
    assert len(result.data["runs"]) == 8
    assert len(result.words) == 5
    half, lowest = result.data["cubes"][-1].values()
    assert half == pytest.approx(10)
    assert lowest == pytest.approx(result.data["minima"]["determinant"], abs=1e-3)
    assert sqrt(len(result.figure["data"])) > 3


# -- Frob-SAM's gradient at a critical point ---------------------------------------------------------------------------

NODES, NODE_WEIGHTS = np.polynomial.hermite_e.hermegauss(4)  # exact for degree 7: a loss times a gradient
RULE = [(x, w / sqrt(2 * pi)) for x, w in zip(NODES, NODE_WEIGHTS, strict=True)]  # N(0, 1)


def expected_gradient(loss: Callable[[Tensor], Tensor], at: Tensor, rho: float) -> Tensor:
    """The mean of Algorithm 3's gradient over both its Gaussian draws, by quadrature of the method itself."""
    d = len(at)
    draws = [
        (torch.tensor([x for x, _ in point], dtype=F64), prod(w for _, w in point))
        for point in itertools.product(RULE, repeat=d)
    ]
    weights = torch.nn.Parameter(at.clone())
    total = torch.zeros(d, dtype=F64)
    for (v, p), (u, q) in itertools.combinations_with_replacement(draws, 2):  # symmetric in its two draws
        nodes = iter([v, u])
        triple = replace(FROBENIUS, laws=(lambda draw, nodes=nodes: draw.space.vector([next(nodes).clone()]),))
        opt = SharpnessAware(torch.optim.SGD([weights], lr=0.0), UniversalSAM(triple, rho, n=2))
        for pass_ in opt.passes():
            pass_.backward(loss(weights))
        assert weights.grad is not None
        total += p * q * (1 if v is u else 2) * weights.grad
        opt.step()
        opt.zero_grad()
    return total


def quartic(d: int, seed: int) -> tuple[Callable[[Tensor], Tensor], Tensor, Tensor]:
    """A polynomial with a critical point at 0, and its second and third derivatives there, all without symmetry."""
    generator = torch.Generator().manual_seed(seed)

    def symmetric(order: int) -> Tensor:
        t = torch.randn([d] * order, dtype=F64, generator=generator)
        return torch.stack([t.permute(*p) for p in itertools.permutations(range(order))]).mean(0)

    hessian, third, fourth = symmetric(2), symmetric(3), symmetric(4)

    def loss(x: Tensor) -> Tensor:
        cubic = torch.einsum("ijk,i,j,k->", third, x, x, x)
        return x @ hessian @ x / 2 + cubic / 6 + torch.einsum("ijkl,i,j,k,l->", fourth, x, x, x, x) / 24

    return loss, hessian, third


def at_small_radius(loss: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """The limit of the expected gradient over rho^2; the gradient of a quartic has terms up to rho^6, all even."""
    radii = [0.4, 0.2, 0.1]
    values = [(expected_gradient(loss, at, rho) - torch.func.grad(loss)(at)) / rho**2 for rho in radii]
    powers = torch.tensor([[rho**k for k in (0, 2, 4)] for rho in radii], dtype=F64)
    return torch.linalg.solve(powers, torch.stack(values))[0]


@pytest.mark.slow
@pytest.mark.parametrize(("d", "seed"), [(1, 0), (1, 1), (2, 2)])
def test_frob_sams_gradient_at_a_critical_point_has_a_second_term(d: int, seed: int) -> None:
    loss, hessian, third = quartic(d, seed)
    limit = at_small_radius(loss, torch.zeros(d, dtype=F64))
    norm, extra = universal.frob_sam_gradient(hessian, third)
    torch.testing.assert_close(limit, norm + extra, rtol=1e-8, atol=1e-10)
    assert (extra.norm() > 0.05 * norm.norm()).item(), "the test can tell"
    zero = torch.zeros(d, dtype=F64, requires_grad=True)
    squared = torch.autograd.functional.hessian(loss, zero, create_graph=True).square().sum()
    torch.testing.assert_close(norm, torch.autograd.grad(squared, zero)[0])
    if d == 1:
        torch.testing.assert_close(norm, extra)  # so the gradient is twice that of the squared norm


@pytest.mark.slow
def test_along_a_manifold_of_minima_the_second_term_vanishes() -> None:
    """L = h(s) y^2 / 2 + y^3 / 2 with minima at y = 0: along s the gradient is that of ||H||^2 = h^2, across it not."""

    def h(s: Tensor) -> Tensor:
        return 1 + s + s**2 / 2

    def loss(x: Tensor) -> Tensor:
        return h(x[0]) * x[1] ** 2 / 2 + x[1] ** 3 / 2

    at = torch.tensor([0.3, 0.0], dtype=F64)
    along, across = at_small_radius(loss, at).tolist()
    value, slope, third = h(at[0]).item(), 1 + 0.3, 3.0
    assert along == pytest.approx(2 * value * slope, rel=1e-8)
    assert across == pytest.approx(2 * value * third + 2 * value * third, rel=1e-8)
