"""Spectral densities, log-determinants and diagonals on matrices, and dense answers, against the whole spectrum."""

from __future__ import annotations

import re
from math import inf, log, nan, pi, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import F64, Matrix, rotation, trained, with_spectrum
from oracles import curvature as oracle
from problems import flat_weights, random_hessian, random_vector
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe
from steppe import Objective
from steppe.core.basis import flat
from steppe.core.draw import Draw
from steppe.measures.curvature.lanczos import Density, spectral_density
from steppe.measures.curvature.measures import LogDeterminant
from steppe.measures.curvature.spectrum import DENSE_MOST, Dense, Sweep, diagonal
from steppe.measures.estimate import Estimate, NotFinite, last


def network(parts: int = 1) -> Matrix:
    return Matrix(*trained(), parts)


def decaying(d: int = 60, rate: float = 0.8) -> Tensor:
    """A positive definite matrix whose eigenvalues fall by a constant factor, down to 2e-6 of the largest."""
    return with_spectrum(rate ** torch.arange(d, dtype=F64))


def within(found: Estimate, exact: float, errors: float = 3.0) -> bool:
    assert found.stderr >= 0
    return abs(found.value - exact) <= errors * found.stderr + 1e-10 * abs(exact)


# -- the distribution -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_moments(seed: int) -> None:
    density, values = spectral_density(network(2), runs=12, steps=20, seed=seed), oracle.eigenvalues(trained()[0])
    assert density.moment(0).value == pytest.approx(67, rel=1e-12)
    assert density.moment(0).stderr == pytest.approx(0, abs=1e-10)
    for k in range(1, 5):
        found = density.moment(k)
        assert (found.n, found.kind) == (12, "plug-in")
        assert within(found, float((values**k).sum()), 4)


def test_every_run_is_a_quadratic_form_of_its_start() -> None:
    """The estimate of the k-th moment is the mean of d z'H^k z over unit vectors z."""
    operator = network()
    h, space = operator.matrix, operator.space
    density = spectral_density(operator, runs=5, steps=6, seed=3)
    z = torch.stack([flat(Draw(space, (3, 2, i), space.weights(), space.zeros()).normal()) for i in range(5)])
    z = z / z.norm(dim=1, keepdim=True)
    for k in range(12):
        draws = 67 * (z @ torch.linalg.matrix_power(h, k) * z).sum(1)
        found = density.moment(k)
        assert found.value == pytest.approx(float(draws.mean()), rel=1e-8)
        assert found.stderr == pytest.approx(float(draws.std()) / sqrt(5), rel=1e-6, abs=1e-9)
    assert operator.made == 30


def test_ends_of_the_spectrum() -> None:
    values = oracle.eigenvalues(trained()[0])
    density = spectral_density(network(), runs=4, steps=40)
    assert density.largest == pytest.approx(float(values[-1]), rel=1e-8)
    assert float(values[0]) - 1e-12 <= density.smallest < 0


def test_counts() -> None:
    density, values = spectral_density(network(), runs=10, steps=67), oracle.eigenvalues(trained()[0])
    for low, high in ((-inf, inf), (0.15, inf), (-inf, -1e-4), (0.05, 0.3), (2.0, 3.0)):
        found = density.count(low, high)
        assert within(found, float(((values > low) & (values <= high)).sum()), 4), (low, high)
    assert density.count().value == pytest.approx(67)
    assert density.count(2.0).value == 0


def test_counts_take_the_upper_end_and_not_the_lower() -> None:
    density = spectral_density(Matrix(torch.diag(torch.tensor([1.0, 1.0, 2.0], dtype=F64))), runs=3, steps=3)
    nodes = np.concatenate([run.values for run in density.runs])
    top = float(nodes.max())
    assert density.count(-inf, top).value == pytest.approx(3)
    assert density.count(top, inf).value == 0


def smoothed(values: Tensor, grid: np.ndarray, width: float) -> np.ndarray:
    distance = (grid[:, None] - values.numpy()) / width
    return np.exp(-(distance**2) / 2).mean(1) / (width * sqrt(2 * pi))


@pytest.mark.parametrize("width", [None, 0.02])
def test_the_curve_is_the_smoothed_spectrum(width: float | None) -> None:
    values = oracle.eigenvalues(trained()[0])
    density = spectral_density(network(), runs=16, steps=67)  # nothing but the starts is left to chance
    grid = np.linspace(-0.3, 1.1, 3001)
    curve, error = density.curve(grid, width)
    used = width or 0.01 * float(values[-1] - values[0])
    expected = smoothed(values, grid, used)
    assert np.trapezoid(curve, grid) == pytest.approx(1, abs=1e-6)
    assert np.all(np.abs(curve - expected) <= 5 * error + 1e-9 * expected.max())
    assert np.mean(np.abs(curve - expected) <= 2 * error + 1e-9 * expected.max()) > 0.8


def test_the_error_of_the_curve_is_that_of_the_mean_over_runs() -> None:
    density, grid = spectral_density(network(), runs=6, steps=9), np.linspace(-0.1, 0.8, 11)
    alone = np.stack([Density([run], 67).curve(grid, 0.05)[0] for run in density.runs])
    curve, error = density.curve(grid, 0.05)
    np.testing.assert_allclose(curve, alone.mean(0))
    np.testing.assert_allclose(error, alone.std(0, ddof=1) / sqrt(6))
    assert np.isnan(Density(density.runs[:1], 67).curve(grid)[1]).all()


def test_the_curve_of_a_spectrum_without_width() -> None:
    """All eigenvalues are one: the default width, a share of their range, must not be 0."""
    density, grid = spectral_density(Matrix(2 * torch.eye(5, dtype=F64)), runs=2, steps=5), np.linspace(1, 3, 2001)
    curve, _ = density.curve(grid)
    assert np.isfinite(curve).all()
    assert abs(grid[curve.argmax()] - 2) < 0.01


def test_seeds() -> None:
    def asked(seed: int) -> list[float]:
        return spectral_density(network(2), runs=3, steps=5, seed=seed).curve(np.linspace(0, 1, 5))[0].tolist()

    assert asked(4) == asked(4)
    assert asked(4) != asked(5)


# -- log-determinants -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0.3, 0.1, 0.03, 0.01])
def test_the_log_determinant_above_a_cut_that_is_resolved(cut: float) -> None:
    h = decaying()
    exact, count = oracle.log_det_above(h, cut)
    density = spectral_density(Matrix(h), runs=20, steps=40)
    found = density.log_determinant(cut)
    assert within(found, exact)
    assert found.stderr < 0.5 * abs(exact)
    assert density.resolution < cut
    assert f"above {cut:.3g}" in found.note  # the largest eigenvalue is 1
    assert abs(float(re.findall(r"about (\d+) eigenvalues", found.note)[0]) - count) <= 0.3 * count + 1


@pytest.mark.parametrize("steps", [6, 10, 20, 30])
def test_a_cut_below_what_is_resolved_is_refused_with_the_smallest_one(steps: int) -> None:
    density = spectral_density(Matrix(decaying(rate=0.9)), runs=4, steps=steps)
    with pytest.raises(ValueError, match=rf"4 runs of {steps} steps resolve: take cut >=") as refusal:
        density.log_determinant(1e-3)
    smallest = float(re.findall(r"take cut >= ([0-9.e-]+)", str(refusal.value))[0])
    assert smallest == pytest.approx(density.resolution / density.largest, rel=0.06)
    density.log_determinant(smallest)  # what is said to be possible is
    with pytest.raises(ValueError, match="take cut >="):
        density.log_determinant(0.9 * smallest)


def test_what_is_resolved_has_small_residuals_and_more_steps_resolve_more() -> None:
    resolutions = []
    for steps in (5, 10, 20, 40, 60):
        density = spectral_density(Matrix(decaying()), runs=3, steps=steps)
        resolutions.append(density.resolution)
        for run in density.runs:
            above = run.values > density.resolution
            assert np.all(run.residuals[above] <= 0.25 * run.values[above])
    assert resolutions == sorted(resolutions, reverse=True)
    assert resolutions[-1] == 0


def test_negative_eigenvalues_take_no_part() -> None:
    h = with_spectrum(torch.cat([torch.tensor([-5.0, -3.0]), torch.linspace(1, 2, 8)]).double())
    found = spectral_density(Matrix(h), runs=30, steps=10).log_determinant(0.1)
    assert within(found, oracle.log_det_above(h, 0.1)[0])


@pytest.mark.parametrize("steps", [10, 2])
def test_no_positive_eigenvalue_no_log_determinant(steps: int) -> None:
    for h in (-random_hessian(10), torch.zeros(10, 10, dtype=F64)):
        with pytest.raises(ValueError, match="no eigenvalue is positive"):
            spectral_density(Matrix(h), runs=2, steps=steps).log_determinant()
        with pytest.raises(ValueError, match="no eigenvalue is positive"):
            last(Sweep(Matrix(h)).log_determinant())
        with pytest.raises(ValueError, match="no eigenvalue is positive"):
            last(Dense(Matrix(h)).log_determinant())


@pytest.mark.parametrize("mu", [1e-3, 0.1, 10.0])
def test_the_shifted_log_determinant(mu: float) -> None:
    h = decaying() + 1e-3 * torch.eye(60, dtype=F64)
    found = spectral_density(Matrix(h), runs=20, steps=50).log_determinant_shifted(mu)
    assert within(found, oracle.log_det_shifted(h, mu))


def test_shifts_that_leave_negative_eigenvalues_are_refused() -> None:
    h = trained()[0]
    smallest = float(oracle.eigenvalues(h)[0])
    assert smallest < -1e-3
    density = spectral_density(Matrix(h), runs=4, steps=67)
    for asked in (density.log_determinant_shifted, lambda mu: last(Dense(Matrix(h)).log_determinant_shifted(mu))):
        with pytest.raises(ValueError, match=f"not positive definite: its smallest eigenvalue is .*{smallest:.4g}"):
            asked(-smallest / 2)
        assert asked(-2 * smallest).value == pytest.approx(
            oracle.log_det_shifted(h, -2 * smallest), abs=4 * asked(-2 * smallest).stderr + 1e-9
        )


@settings(deadline=None, max_examples=10)
@given(factor=st.floats(0.01, 100), seed=st.integers(0, 1000), mu=st.floats(0.01, 10))
def test_log_determinants_of_multiples(factor: float, seed: int, mu: float) -> None:
    """Of the same starts: log det(c H + c mu) is d log c more, and above a relative cut count times log c."""
    one, two = (spectral_density(Matrix(c * decaying(20)), runs=3, steps=20, seed=seed) for c in (1.0, factor))
    shifted = two.log_determinant_shifted(factor * mu).value - one.log_determinant_shifted(mu).value
    assert shifted == pytest.approx(20 * log(factor), abs=1e-6)
    above = two.log_determinant(0.105).value - one.log_determinant(0.105).value
    assert above == pytest.approx(one.count(0.105).value * log(factor), abs=1e-6)


def indefinite() -> Objective:
    """A network of 134 weights away from any minimum: more eigenvalues than a run has steps, many of them negative."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 4)
        model = nn.Sequential(*layers).double()
        return Objective(model, cross_entropy, (torch.randn(32, 6, dtype=F64), torch.randint(4, (32,))))


def test_the_default_cut_on_an_indefinite_hessian() -> None:
    """Quadrature does not resolve it, and the matrix takes fewer products than quadrature may."""
    objective = indefinite()
    h = oracle.hessian(
        oracle.mean_loss(objective.model, cross_entropy, objective.batches), flat_weights(objective.model)
    )
    exact, count = oracle.log_det_above(h, 1e-2)
    assert float(oracle.eigenvalues(h)[0]) < -0.1
    found = steppe.measure(objective.model, cross_entropy, objective.batches, "log_determinant", progress=False)
    estimate = found["log_determinant"]
    assert (estimate.value, estimate.kind, estimate.stderr) == (pytest.approx(exact, rel=1e-8), "exact", 0)
    assert estimate.note == f"{count} eigenvalues above {0.01 * float(oracle.eigenvalues(h)[-1]):.3g}"
    assert estimate.cost.products <= 1000
    with pytest.raises(ValueError, match="runs of 13 steps resolve: take cut >="):  # 130 products at most
        LogDeterminant(1e-2, runs=10, steps=13).estimate(objective)


def test_a_matrix_in_place_of_runs_is_counted_once() -> None:
    operator = Matrix(decaying(rate=0.9))
    sweep = Sweep(operator)
    found = last(sweep.log_determinant(1e-3, runs=10, steps=10))
    assert found.kind == "exact"
    assert found.value == pytest.approx(oracle.log_det_above(decaying(rate=0.9), 1e-3)[0], rel=1e-8)
    assert sweep.products == operator.made == 2 * 10 + 60
    assert last(sweep.log_determinant(1e-3, runs=10, steps=10)) == found
    assert operator.made == 2 * 10 + 60


def test_runs_of_one_length_are_made_once() -> None:
    operator = Matrix(decaying())
    sweep = Sweep(operator, seed=2)
    found = last(sweep.log_determinant(0.1, runs=5, steps=20))
    assert operator.made == 100
    assert last(sweep.log_determinant(0.1, runs=5, steps=20)) == found
    assert last(sweep.log_determinant(0.1, runs=3, steps=20)).n == 3
    last(sweep.log_determinant_shifted(1.0, runs=5, steps=20))
    assert operator.made == 100
    assert last(sweep.log_determinant(0.1, runs=8, steps=20)).n == 8
    assert operator.made == 160
    assert found == spectral_density(Matrix(decaying()), runs=5, steps=20, seed=2).log_determinant(0.1)


def test_running_log_determinants() -> None:
    running = list(Sweep(Matrix(decaying())).log_determinant(0.1, runs=6, steps=20))
    assert [found.n for found in running] == [2, 3, 4, 5, 6]
    assert all(np.isfinite(found.stderr) for found in running)
    (alone,) = Sweep(Matrix(decaying())).log_determinant(0.1, runs=1, steps=20)
    assert np.isnan(alone.stderr)


# -- the diagonal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3])
def test_the_diagonal_from_signs(parts: int) -> None:
    operator = network(parts)
    mean, error = (flat(v) for v in diagonal(operator, n=30, seed=6))
    assert operator.made == 30
    space = operator.space
    z = torch.stack([flat(Draw(space, (6, 3, i), space.weights(), space.zeros()).signs()) for i in range(30)])
    draws = z * (z @ operator.matrix)
    torch.testing.assert_close(mean, draws.mean(0), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(error, draws.std(0) / sqrt(30), rtol=1e-6, atol=1e-9)
    assert (mean - operator.matrix.diagonal()).abs().le(5 * error + 1e-12).all()


def test_the_diagonal_of_a_diagonal_matrix_is_exact() -> None:
    values = random_vector(9)
    mean, error = (flat(v) for v in diagonal(Matrix(torch.diag(values)), n=2))
    torch.testing.assert_close(mean, values)
    assert error.abs().max() < 1e-7


def test_one_probe_has_no_error() -> None:
    with pytest.raises(ValueError, match="at least two probes, not n = 1"):
        diagonal(network(), n=1)


def test_diagonals_of_other_seeds() -> None:
    one, same, other = (flat(diagonal(network(), n=3, seed=s)[0]) for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("bad", [nan, inf])
def test_curvature_that_is_not_finite(bad: float) -> None:
    h = random_hessian(8)
    h[2, 3] = h[3, 2] = bad
    for asked in (spectral_density, lambda op: last(Dense(op).trace()), lambda op: Dense(op).spectrum):
        with pytest.raises(NotFinite):
            asked(Matrix(h))


@pytest.mark.parametrize("bad", [nan, inf])
def test_a_diagonal_that_is_not_finite(bad: float) -> None:
    h = random_hessian(8)
    h[2, 3] = h[3, 2] = bad
    with pytest.raises(NotFinite):
        diagonal(Matrix(h))


# -- dense ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 4])
def test_dense_answers_are_those_of_the_matrix(parts: int) -> None:
    operator = network(parts)
    h, values = trained()[0], oracle.eigenvalues(trained()[0])
    dense = Dense(operator)
    torch.testing.assert_close(dense.matrix, (h + h.T) / 2, rtol=0, atol=0)
    torch.testing.assert_close(dense.spectrum, values, rtol=1e-12, atol=1e-14)
    answers = {
        float(values[-1]): dense.eigenvalues(),
        float(values[-3]): dense.eigenvalues(3),
        float(values[1]): dense.eigenvalues(2, "bottom"),
        oracle.trace(h): dense.trace(),
        oracle.frobenius_squared(h): dense.frobenius_squared(),
        oracle.log_det_above(h, 1e-2)[0]: dense.log_determinant(1e-2),
        oracle.log_det_shifted(h, 0.3): dense.log_determinant_shifted(0.3),
    }
    for exact, answer in answers.items():
        found = last(answer)
        assert (found.kind, found.stderr) == ("exact", 0)
        assert found.value == pytest.approx(exact, rel=1e-10)
    assert operator.made == 67
    count = oracle.log_det_above(h, 1e-2)[1]
    assert last(dense.log_determinant(1e-2)).note == f"{count} eigenvalues above {0.01 * float(values[-1]):.3g}"


def test_a_matrix_that_is_not_quite_symmetric_is_made_so() -> None:
    skew = random_hessian(6) + 1e-9 * (rotation(6) - rotation(6).T)
    matrix = Dense(Matrix(skew)).matrix
    assert torch.equal(matrix, matrix.T)


@pytest.mark.parametrize("k", [0, -2, 7])
@pytest.mark.parametrize("end", ["top", "bottom"])
def test_eigenvalues_that_there_are_not(k: int, end: str) -> None:
    with pytest.raises(ValueError, match="there are 6 eigenvalues"):
        last(Dense(Matrix(random_hessian(6))).eigenvalues(k, end))


def test_models_that_are_too_large_are_refused_with_what_to_do() -> None:
    class Large(Matrix):
        @property
        def dimension(self) -> int:
            return DENSE_MOST + 1

    with pytest.raises(ValueError, match=f"{DENSE_MOST + 1} parameters is too large .*: use Sweep, or choose fewer"):
        Dense(Large(random_hessian(2)))
