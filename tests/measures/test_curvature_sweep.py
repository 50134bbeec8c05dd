"""The Lanczos process and the sweep on matrices whose spectrum is known: true residuals, bounds, shared products."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise, permutations
from math import inf, nan, sqrt
from statistics import median

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import F64, Matrix, trained, with_spectrum
from oracles import curvature as oracle
from problems import random_hessian, random_vector
from torch import Tensor

from steppe import Vector
from steppe.core.basis import flat, unflat
from steppe.core.draw import Draw
from steppe.core.vector import Space
from steppe.measures.curvature.lanczos import Lanczos, Operator, Probes
from steppe.measures.curvature.spectrum import LEAST_PROBES, PER_PROBE, Sweep
from steppe.measures.estimate import Estimate, NotFinite, last


def close(a: Tensor, b: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def network(parts: int = 1) -> Matrix:
    """The Hessian of a trained network with its gradient."""
    return Matrix(*trained(), parts)


def spectrum(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def started(operator: Matrix, steps: int, seed: int = 0) -> Lanczos:
    lanczos = Lanczos(operator, lambda i: unflat(operator.space, random_vector(operator.dimension, seed + i)))
    for _ in range(steps):
        lanczos.step()
    return lanczos


def basis_of(lanczos: Lanczos) -> Tensor:
    """The Krylov basis as rows."""
    return torch.stack([flat(lanczos.basis.combined(e)) for e in torch.eye(lanczos.steps, dtype=F64)])


def test_a_search_frees_its_memory_without_a_garbage_collection() -> None:
    """It keeps graphs of gradients, which on a GPU are most of the memory."""
    sweep = Sweep(Matrix(*trained()))
    last(sweep.eigenvalues(rtol=1e-2))
    alive = weakref.ref(sweep.lanczos)
    gc.collect()
    gc.disable()
    try:
        del sweep
        assert alive() is None
    finally:
        gc.enable()


# -- the process ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("steps", [1, 2, 9, 30, 67])
def test_the_tridiagonal_relation(steps: int, parts: int) -> None:
    """A Q = Q T + beta q e', with Q orthonormal and q orthogonal to it."""
    operator = network(parts)
    lanczos = started(operator, steps)
    q, t = basis_of(lanczos), lanczos.matrix(steps)
    close(q @ q.T, torch.eye(steps, dtype=F64))
    rest = operator.matrix @ q.T - q.T @ t
    close(rest[:, :-1], torch.zeros_like(rest[:, :-1]))
    assert float(rest[:, -1].norm()) == pytest.approx(lanczos.off[-1], abs=1e-12)
    close(q @ rest[:, -1], torch.zeros(steps, dtype=F64))
    assert operator.made == steps
    assert lanczos.invariant == (steps == 67)
    assert t.diagonal(1).ge(0).all()


@pytest.mark.parametrize("steps", [1, 5, 20])
def test_ritz_pairs_have_the_residuals_that_they_say(steps: int) -> None:
    operator = network(2)
    lanczos = started(operator, steps)
    ritz = lanczos.ritz()
    assert all(a < b for a, b in pairwise(ritz.values))
    for i in range(steps):
        y = flat(lanczos.vector(ritz, i))
        assert float(y.norm()) == pytest.approx(1, rel=1e-12)
        residual = operator.matrix @ y - ritz.values[i] * y
        assert float(residual.norm()) == pytest.approx(ritz.residuals[i], abs=1e-12)
        assert float((oracle.eigenvalues(operator.matrix) - ritz.values[i]).abs().min()) <= ritz.residuals[i] + 1e-12


def test_weights_are_the_squared_components_of_the_start() -> None:
    lanczos = started(network(), 8)
    ritz = lanczos.ritz()
    start = random_vector(67) / random_vector(67).norm()
    expected = [float(flat(lanczos.vector(ritz, i)) @ start) ** 2 for i in range(8)]
    np.testing.assert_allclose(ritz.weights, expected, rtol=1e-10)
    assert ritz.weights.sum() == pytest.approx(1)


def test_quadrature_is_exact_for_low_powers() -> None:
    """k nodes integrate polynomials up to degree 2 k - 1."""
    ritz, h = started(network(), 4).ritz(), trained()[0]
    start = random_vector(67) / random_vector(67).norm()
    for power in range(8):
        exact = float(start @ torch.linalg.matrix_power(h, power) @ start)
        assert float(ritz.weights @ ritz.values**power) == pytest.approx(exact, rel=1e-10)
    assert float(ritz.weights @ ritz.values**8) != pytest.approx(
        float(start @ torch.linalg.matrix_power(h, 8) @ start), rel=1e-10
    )


@pytest.mark.parametrize("c", [3.0, -2.0, 0.0])
def test_a_multiple_of_the_identity_is_invariant_at_once(c: float) -> None:
    lanczos = started(Matrix(c * torch.eye(6, dtype=F64), parts=2), 1)
    assert lanczos.invariant
    for _ in range(5):
        lanczos.step()
    np.testing.assert_allclose(lanczos.ritz().values, np.full(6, c), rtol=1e-14)
    close(basis_of(lanczos) @ basis_of(lanczos).T, torch.eye(6, dtype=F64))
    with pytest.raises(RuntimeError, match="all 6 dimensions"):
        lanczos.step()


def test_a_matrix_of_low_rank_is_found_to_be_so() -> None:
    """Whether rounding hides it or not, the process goes on in directions that are orthogonal to the first ones."""
    h = with_spectrum(torch.cat([torch.zeros(37, dtype=F64), spectrum(1.0, 2.0, 5.0)]))
    lanczos = started(Matrix(h), 4)
    assert lanczos.off[-1] < 1e-12
    np.testing.assert_allclose(lanczos.ritz().values, [0, 1, 2, 5], atol=1e-12)
    for _ in range(6):
        lanczos.step()
    close(basis_of(lanczos) @ basis_of(lanczos).T, torch.eye(10, dtype=F64))
    np.testing.assert_allclose(lanczos.ritz().values, [*[0] * 7, 1, 2, 5], atol=1e-12)


def test_single_precision() -> None:
    h = trained()[0].float()
    lanczos = started(Matrix(h), 40)
    q = torch.stack([flat(lanczos.basis.combined(e)) for e in torch.eye(40)])
    close(q @ q.T, torch.eye(40), 1e-5)
    found = last(Sweep(Matrix(h, trained()[1].float())).eigenvalues(rtol=1e-5))
    assert found.value == pytest.approx(float(oracle.eigenvalues(trained()[0])[-1]), rel=1e-5)


# -- eigenvalues --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("end", ["top", "bottom"])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_outermost_pairs(k: int, end: str, seed: int) -> None:
    operator = Matrix(with_spectrum(torch.linspace(-1, 2, 60, dtype=F64) ** 3), random_vector(60), parts=3)
    values, vectors = torch.linalg.eigh(operator.matrix)
    order = range(59, 59 - k, -1) if end == "top" else range(k)
    pairs = Sweep(operator, seed).pairs(k, end, rtol=1e-6)
    assert len(pairs) == k
    for pair, i in zip(pairs, order, strict=True):
        y = flat(pair.vector)
        assert float((operator.matrix @ y - pair.value * y).norm()) == pytest.approx(pair.residual, abs=1e-12)
        assert pair.residual <= 1e-6 * abs(pairs[-1].value)
        assert pair.value == pytest.approx(float(values[i]), rel=1e-9)
        assert abs(float(y @ vectors[:, i])) == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("end", ["top", "bottom"])
def test_running_eigenvalues_are_bounds_that_improve(k: int, end: str) -> None:
    operator = network()
    values = oracle.eigenvalues(operator.matrix)
    sign, exact = (1, values[-k]) if end == "top" else (-1, values[k - 1])
    running = list(Sweep(operator).eigenvalues(k, end, rtol=1e-4))
    assert len(running) > 2
    for found in running:
        assert sign * found.value <= sign * float(exact) + 1e-12
        assert float((values - found.value).abs().min()) <= found.stderr + 1e-12  # some eigenvalue is that near
    assert all(sign * a.value <= sign * b.value + 1e-14 for a, b in pairwise(running))
    bound = "lower bound" if end == "top" else "upper bound"
    assert {found.kind for found in running} <= {bound, "exact"}
    assert running[0].kind == bound
    assert running[-1].value == pytest.approx(float(exact), rel=1e-4)


def test_the_search_stops_as_soon_as_the_residual_allows() -> None:
    running = list(Sweep(network()).eigenvalues(rtol=1e-3))
    assert [found.stderr <= 1e-3 * found.value for found in running] == [False] * (len(running) - 1) + [True]
    assert len(running) <= 11


def test_eigenvalues_close_together_are_told_apart() -> None:
    """1.5 % apart: a rule that trusts residual^2 / gap stops at a mixture of the two, below the larger one.

    A start that happens to be 15 times longer along the second one satisfies any residual of 1e-3, which is rare.
    """
    values = torch.cat([torch.linspace(-0.05, 0.5, 58, dtype=F64), spectrum(0.985, 1.0)])
    missed, seeds = 0, 40
    for seed in range(seeds):
        h = with_spectrum(values, seed)
        slope = h @ random_vector(60, seed + 7)
        missed += abs(last(Sweep(Matrix(h, slope), seed).eigenvalues()).value - 1) > 1e-3
        assert [p.value for p in Sweep(Matrix(h, slope), seed).pairs(2)] == pytest.approx([1, 0.985], rel=1e-3)
    assert missed <= 0.05 * seeds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("values", [[5, 5, *[1] * 10], [5, 5, 5, 3, 3, 2, 2, 1, 1, 1, 0, 0], [1, *[0] * 9]])
def test_eigenvalues_that_occur_several_times_count_as_often(values: list[float], seed: int) -> None:
    operator = Matrix(with_spectrum(spectrum(*values), seed), random_vector(len(values)))
    for k in (1, 2, 3, 4):
        assert last(Sweep(operator, seed).eigenvalues(k)).value == pytest.approx(values[k - 1], abs=1e-9)
    found = [pair.value for pair in Sweep(operator, seed).pairs(4)]
    assert found == pytest.approx(values[:4], abs=1e-9)


@pytest.mark.parametrize(
    "features", [3, pytest.param(40, marks=pytest.mark.xfail(strict=True, reason="a limit of Lanczos from one start"))]
)
def test_several_outputs_of_a_linear_regression_share_their_eigenvalues(features: int) -> None:
    """Which is where eigenvalues that occur several times come from; few of them make a space that is invariant."""
    x = random_vector(100 * features).reshape(100, features)
    h = oracle.linear_regression_hessian(x, outputs=3, bias=False)
    found = [pair.value for pair in Sweep(Matrix(h, random_vector(3 * features))).pairs(5)]
    assert found == pytest.approx(oracle.eigenvalues(h).flip(0)[:5].tolist(), rel=2e-3)


def test_invariant_spaces_are_not_searched_twice() -> None:
    operator = Matrix(with_spectrum(spectrum(5, 5, 5, *[1] * 40)), random_vector(43))
    sweep = Sweep(operator)
    found, made = last(sweep.eigenvalues(2)), operator.made
    assert made < 20
    assert last(sweep.eigenvalues(2)) == found
    assert operator.made == made


def test_a_pair_of_equal_eigenvalues_among_many_others() -> None:
    h = with_spectrum(torch.cat([torch.linspace(0.0, 1.0, 78, dtype=F64), spectrum(2.0, 2.0)]))
    assert last(Sweep(Matrix(h, random_vector(80))).eigenvalues(2)).value == pytest.approx(2, rel=1e-3)


def test_a_zero_matrix() -> None:
    sweep = Sweep(Matrix(torch.zeros(30, 30, dtype=F64)))
    assert last(sweep.eigenvalues()).value == last(sweep.eigenvalues(3, "bottom")).value == 0
    for found in (last(sweep.trace()), last(sweep.frobenius_squared())):
        assert (found.value, found.stderr) == (0, 0)


def test_one_dimension() -> None:
    sweep = Sweep(Matrix(torch.tensor([[-4.0]], dtype=F64)))
    found = [last(sweep.eigenvalues()), last(sweep.eigenvalues(end="bottom")), last(sweep.trace())]
    assert [(f.value, f.stderr, f.kind) for f in found] == [(-4, 0, "exact")] * 3
    assert last(sweep.frobenius_squared()).value == pytest.approx(16)
    assert sweep.products == 1


@pytest.mark.parametrize("k", [0, -1, 7])
def test_eigenvalues_that_there_are_not(k: int) -> None:
    with pytest.raises(ValueError, match="there are 6 eigenvalues"):
        last(Sweep(Matrix(random_hessian(6))).eigenvalues(k))


def test_no_more_products_than_allowed() -> None:
    for most in (1, 3, 6):
        operator = network()
        found = last(Sweep(operator).eigenvalues(5, rtol=0.0, most=most))
        assert operator.made == max(most, 5)
        assert found.stderr > 0
    for question in (Sweep.trace, Sweep.frobenius_squared):
        for most in (20, 33, 60):
            operator = network()
            last(question(Sweep(operator), rtol=0.0, most=most))
            assert most - PER_PROBE <= operator.made <= most


# -- trace and Frobenius norm -------------------------------------------------------------------------------


def test_without_deflation_the_trace_is_hutchinsons() -> None:
    operator = network(2)
    h, space = operator.matrix, operator.space
    sweep = Sweep(operator, seed=3, deflate=0)
    found, squares = last(sweep.trace(most=40)), last(sweep.frobenius_squared(most=40))
    assert found.n == squares.n == operator.made == 40
    z = torch.stack([flat(Draw(space, (3, 1, i), space.weights(), space.zeros()).signs()) for i in range(40)])
    assert z.abs().eq(1).all()
    draws, norms = (z @ h * z).sum(1), (z @ h).square().sum(1)
    assert found.value == pytest.approx(float(draws.mean()), rel=1e-12)
    assert found.stderr == pytest.approx(standard_error(draws, norms, 67), rel=1e-12)
    assert squares.value == pytest.approx(float(norms.mean()), rel=1e-12)


def standard_error(draws: Tensor, squares: Tensor, rank: int) -> float:
    """Of a trace: a quarter of the variance is twice the squared norm of the remainder less its mean eigenvalue."""
    formula = 2 * (squares.mean() - draws.mean() ** 2 / rank)
    assert formula > 0
    return float(((0.75 * draws.var() + 0.25 * formula.clamp(max=4 * draws.var())) / len(draws)).sqrt())


def signs(space: Space, seed: int, n: int) -> Tensor:
    return torch.stack([flat(Draw(space, (seed, 1, i), space.weights(), space.zeros()).signs()) for i in range(n)])


@pytest.mark.parametrize(("deflate", "steps"), [(1, 0), (6, 0), (30, 0), (30, 25), (30, 40)])
def test_what_is_left_to_chance_is_the_complement_of_the_krylov_space(deflate: int, steps: int) -> None:
    """Against matrices: known part plus the mean over all probes, also of those from before the space grew."""
    operator = network()
    h = operator.matrix
    sweep = Sweep(operator, seed=1, deflate=deflate)
    for _ in sweep.trace(0.0, most=30):  # several rounds
        pass
    while sweep.lanczos.steps < steps:  # as a search for eigenvalues would
        sweep.lanczos.step()
    made = operator.made
    found, squares = next(sweep.trace()), next(sweep.frobenius_squared())
    assert operator.made == made
    z, q = signs(operator.space, 1, found.n), basis_of(sweep.lanczos)
    n, rank = len(z), 67 - len(q)
    outside = torch.eye(67, dtype=F64) - q.T @ q
    rest = outside @ h @ outside
    forms, lengths = (z @ rest * z).sum(1), (z @ outside).square().sum(1)
    others = [torch.arange(n) != i for i in range(n)]
    means = torch.stack([forms[rows].sum() / lengths[rows].sum() for rows in others])  # of eigenvalues
    traces = forms - means * (lengths - rank)
    norms = (z @ h @ outside).square().sum(1) - (z @ q.T @ q @ h @ outside).square().sum(1)
    assert found.value == pytest.approx(float(h.trace() - rest.trace() + traces.mean()), rel=1e-10)
    assert found.stderr == pytest.approx(standard_error(traces, norms, rank), rel=1e-8)
    assert squares.value == pytest.approx(float(h.square().sum() - rest.square().sum() + norms.mean()), rel=1e-10)
    assert squares.stderr == pytest.approx(float(norms.std()) / sqrt(n), rel=1e-8)


@pytest.mark.parametrize("k", [0, 1, 3])
def test_draws_have_the_means_that_they_say(k: int) -> None:
    """Over all vectors of signs; a trace takes its mean eigenvalue from another one."""
    h = random_hessian(8) - 2 * torch.eye(8, dtype=F64)
    every = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * 8)
    lanczos = started(Matrix(h), k)
    probes = Probes(Matrix(h), lanczos, 0)
    q = basis_of(lanczos) if k else torch.zeros(0, 8, dtype=F64)
    outside = torch.eye(8, dtype=F64) - q.T @ q
    rest = outside @ h @ outside
    drawn, squares = [], []
    for z in every:
        values = []
        for pair in ((z, every[5]), (z, every[77])):
            probes._probe = lambda i, pair=pair: unflat(lanczos.operator.space, pair[i])
            probes._forms, probes._norms, probes._components = [], [], []
            probes.add(2)
            values.append(float(probes.traces(k)[0]))
        drawn.append(values)
        squares.append(float(probes.squares(k)[0]))
    close(torch.tensor(drawn, dtype=F64).mean(0), rest.trace().expand(2), 1e-10)
    assert sum(squares) / len(squares) == pytest.approx(float(rest.square().sum()), rel=1e-10)


def test_the_trace_of_a_shifted_low_rank_matrix_is_exact() -> None:
    """What is left is a multiple of a projection, whose trace a probe of any length gives."""
    h = with_spectrum(torch.cat([torch.full((60,), 0.5, dtype=F64), spectrum(-1.0, 2.0, 5.0)]))
    found = last(Sweep(Matrix(h), deflate=4).trace(0.0, most=30))
    assert found.value == pytest.approx(36, rel=1e-10)
    assert found.stderr < 1e-10


@pytest.mark.parametrize("most", [30, 60, 99, 150])
def test_the_space_grows_with_the_budget(most: int) -> None:
    operator = Matrix(with_spectrum(random_vector(400)), random_vector(400, 1))
    sweep = Sweep(operator)
    found = last(sweep.trace(0.0, most=most))
    assert (found.n, sweep.lanczos.steps, operator.made) == (most // 3, 2 * (most // 3), most)


def test_a_bound_of_the_space_leaves_the_rest_to_probes() -> None:
    operator = Matrix(with_spectrum(random_vector(400)), random_vector(400, 1))
    sweep = Sweep(operator, deflate=12)
    found = last(sweep.trace(0.0, most=70))
    assert (found.n, sweep.lanczos.steps, operator.made) == (58, 12, 70)


@pytest.mark.parametrize(("dimension", "vectors"), [(10**6, 536), (10**7, 53), (10**9, 15)])
def test_the_bound_is_a_function_of_the_size_alone(dimension: int, vectors: int) -> None:
    """2 GiB of float32, and at least 15 vectors."""
    operator = Matrix(torch.zeros(2, 2))
    sized = type("Sized", (), {"dimension": dimension, "space": operator.space})()
    assert Sweep(sized).deflate == vectors


def test_a_space_that_is_exhausted_leaves_nothing_to_chance() -> None:
    h = random_hessian(12) - 3 * torch.eye(12, dtype=F64)
    operator = Matrix(h, parts=2)
    sweep = Sweep(operator)
    trace, squares = last(sweep.trace()), last(sweep.frobenius_squared())
    assert (trace.kind, trace.stderr, squares.kind, squares.stderr) == ("exact", 0, "exact", 0)
    assert trace.value == pytest.approx(oracle.trace(h), rel=1e-12)
    assert squares.value == pytest.approx(oracle.frobenius_squared(h), rel=1e-12)
    assert operator.made == sweep.products == 12
    for k in range(1, 13):
        found = last(sweep.eigenvalues(k))
        assert (found.kind, found.stderr) == ("exact", 0)
        assert found.value == pytest.approx(float(oracle.eigenvalues(h)[-k]), rel=1e-10)
    assert operator.made == 12


def test_a_space_that_eigenvalues_have_exhausted() -> None:
    h = random_hessian(20)
    sweep = Sweep(Matrix(h))
    last(sweep.eigenvalues(20))
    assert last(sweep.trace()).value == pytest.approx(oracle.trace(h), rel=1e-12)
    assert last(sweep.trace()).kind == "exact"
    assert sweep.products == 20


def test_low_rank_leaves_nothing_to_chance_either() -> None:
    h = with_spectrum(torch.cat([torch.zeros(60, dtype=F64), spectrum(-1.0, 2.0, 5.0)]))
    found = last(Sweep(Matrix(h)).trace())
    assert found.value == pytest.approx(6, rel=1e-10)
    assert found.stderr < 1e-10


def test_running_traces_improve() -> None:
    running = list(Sweep(network(), deflate=2).trace(rtol=0.0, most=180))
    assert [found.n for found in running] == [5, 10, 15, 20, 25, 30, 35, 40, 50, 60, 75, 90, 110, 135, 165, 178]
    assert running[-1].stderr < running[2].stderr / 2
    assert all(found.kind == "unbiased" for found in running)


def test_probing_stops_at_the_relative_error_asked_for() -> None:
    for rtol in (0.1, 0.02, 0.01):
        running = list(Sweep(network()).trace(rtol))
        reached = [found.stderr <= rtol * abs(found.value) and found.n >= LEAST_PROBES for found in running]
        assert reached == [False] * (len(running) - 1) + [True]


# -- several questions ----------------------------------------------------------------------------------------

SpectralMeasure = Callable[[Sweep], Iterator[Estimate]]
QUESTIONS: dict[str, tuple[SpectralMeasure, Callable[[Tensor], float]]] = {
    "largest": (lambda s: s.eigenvalues(), lambda h: float(oracle.eigenvalues(h)[-1])),
    "third": (lambda s: s.eigenvalues(3), lambda h: float(oracle.eigenvalues(h)[-3])),
    "trace": (lambda s: s.trace(), oracle.trace),
    "squares": (lambda s: s.frobenius_squared(), oracle.frobenius_squared),
}


def valid(found: Estimate, exact: float) -> bool:
    return abs(found.value - exact) <= (2e-3 * abs(exact) if "bound" in found.kind else 4 * found.stderr + 1e-12)


@pytest.mark.parametrize("order", list(permutations(QUESTIONS)), ids=" ".join)
def test_questions_in_any_order(order: tuple[str, ...]) -> None:
    operator = network()
    sweep = Sweep(operator, seed=len(order[0]))
    answers = {}
    for name in order:
        question, exact = QUESTIONS[name]
        answers[name] = last(question(sweep))
        assert valid(answers[name], exact(operator.matrix)), name
        assert operator.made == sweep.products
    made = operator.made
    for name in reversed(order):  # asked again, they know at least as much, and it costs nothing
        again = last(QUESTIONS[name][0](sweep))
        assert again.stderr <= answers[name].stderr or again.n > answers[name].n
        assert valid(again, QUESTIONS[name][1](operator.matrix)), name
    assert operator.made == made


def test_three_questions_cost_hardly_more_than_one() -> None:
    shared, apart = [], []
    for seed in range(12):
        operator = network()
        sweep = Sweep(operator, seed)
        for name in ("largest", "trace", "squares"):
            last(QUESTIONS[name][0](sweep))
        shared.append(operator.made)
        apart.append(sum(last_cost(QUESTIONS[name][0], seed) for name in ("largest", "trace", "squares")))
    assert 25 <= median(shared) <= 35
    assert max(shared) <= 45
    assert median(apart) > 1.7 * median(shared)


def last_cost(question: SpectralMeasure, seed: int) -> int:
    operator = network()
    last(question(Sweep(operator, seed)))
    return operator.made


def test_eigenvalues_asked_later_make_a_trace_more_accurate() -> None:
    sweep = Sweep(network(), deflate=4)
    before = last(sweep.trace(0.0, most=30))
    last(sweep.eigenvalues(3, rtol=1e-8))
    assert sweep.lanczos.steps > 15
    after, made = next(sweep.trace()), sweep.products
    assert after.n == before.n
    assert after.stderr < 0.5 * before.stderr
    assert sweep.products == made
    exact = oracle.trace(trained()[0])
    assert valid(before, exact)
    assert valid(after, exact)


def test_a_density_does_not_use_up_what_a_trace_may_cost() -> None:
    sweep = Sweep(network())
    last(sweep.log_determinant_shifted(1.0, runs=10, steps=20))
    assert last(sweep.trace()) == last(Sweep(network()).trace())


def test_all_products_are_counted() -> None:
    operator = network()
    sweep = Sweep(operator)
    last(sweep.eigenvalues())
    last(sweep.log_determinant_shifted(1.0, runs=3, steps=5))
    assert operator.made == 15 + sweep.lanczos.steps
    assert sweep.products == operator.made


# -- seeds, interruptions and trouble -------------------------------------------------------------------------


def everything(sweep: Sweep) -> list[Estimate]:
    found = [last(question(sweep)) for question, _ in QUESTIONS.values()]
    return [*found, last(sweep.log_determinant_shifted(1.0, runs=3, steps=5))]


def test_the_same_seed_gives_the_same_bits_and_another_one_other_draws() -> None:
    assert everything(Sweep(network(2), seed=5)) == everything(Sweep(network(2), seed=5))
    for one, other in zip(everything(Sweep(network(2), seed=5)), everything(Sweep(network(2), seed=6)), strict=True):
        assert one.value != other.value


def test_the_callers_random_numbers_do_not_matter() -> None:
    torch.manual_seed(0)
    one = everything(Sweep(network()))
    state = torch.get_rng_state()
    torch.manual_seed(1)
    torch.rand(3)
    assert everything(Sweep(network())) == one
    torch.manual_seed(0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("name", QUESTIONS)
def test_whoever_stops_early_has_the_estimate_before_and_can_go_on(name: str) -> None:
    question, exact = QUESTIONS[name]
    operator = network()
    sweep = Sweep(operator, deflate=3)
    running = question(sweep)
    early = next(running)
    running.close()
    assert np.isfinite(early.value)
    whole = Sweep(network(), deflate=3)
    assert last(question(sweep)) == last(question(whole))
    assert sweep.products == whole.products
    assert valid(last(question(sweep)), exact(operator.matrix))


class Interrupted(Matrix):
    """Ctrl-C comes during one of the products."""

    when = 0

    def product(self, v: Vector) -> Vector:
        image = super().product(v)
        if self.made == self.when:
            raise KeyboardInterrupt
        return image


@pytest.mark.parametrize("when", [1, 2, 5, 14, 17, 23])
def test_a_product_that_was_interrupted_leaves_the_sweep_as_it_was(when: int) -> None:
    operator = Interrupted(*trained())
    operator.when = when
    sweep, measurement_mode = Sweep(operator), Sweep(network())
    for name, (question, exact) in QUESTIONS.items():
        try:
            found = last(question(sweep))
        except KeyboardInterrupt:
            found = last(question(sweep))
        assert valid(found, exact(operator.matrix)), name
        assert found == last(question(measurement_mode))
    q = basis_of(sweep.lanczos)
    close(q @ q.T, torch.eye(len(q), dtype=F64))


@pytest.mark.parametrize("bad", [nan, inf, -inf])
@pytest.mark.parametrize("deflate", [0, 15])
def test_curvature_that_is_not_finite(bad: float, deflate: int) -> None:
    h = trained()[0].clone()
    h[3, 5] = h[5, 3] = bad
    for question in (Sweep.eigenvalues, Sweep.trace, Sweep.frobenius_squared, Sweep.log_determinant):
        with pytest.raises(NotFinite):
            last(question(Sweep(Matrix(h, trained()[1]), deflate=deflate)))


def test_a_gradient_that_is_zero_is_no_trouble() -> None:
    """At a minimum there is no slope to start from."""
    found = last(Sweep(Matrix(trained()[0])).eigenvalues())
    assert found.value == pytest.approx(float(oracle.eigenvalues(trained()[0])[-1]), rel=1e-3)


def test_a_gradient_that_misses_the_largest_eigenvalue_is_no_trouble() -> None:
    h = with_spectrum(torch.cat([spectrum(10.0), torch.linspace(0.1, 1.0, 49, dtype=F64)]))
    vectors = torch.linalg.eigh(h).eigenvectors
    for slope in (vectors[:, 0], vectors[:, 20], 1e9 * vectors[:, 48], 1e-9 * (vectors[:, 3] + vectors[:, 4])):
        assert last(Sweep(Matrix(h, slope)).eigenvalues()).value == pytest.approx(10, rel=1e-6)


def test_a_matrix_is_an_operator() -> None:
    def typed(operator: Operator) -> int:
        return operator.dimension

    assert typed(network()) == 67


# -- laws -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), d=st.integers(2, 25), factor=st.floats(0.01, 100), shift=st.floats(-10, 10))
def test_scaled_and_shifted_matrices_have_the_same_krylov_space(seed: int, d: int, factor: float, shift: float) -> None:
    values = random_vector(d, seed)
    h, slope = with_spectrum(values, seed), random_vector(d, seed + 1)
    steps = min(d, 6)
    plain, other = (
        Sweep(Matrix(h, slope), seed),
        Sweep(Matrix(factor * h + shift * torch.eye(d, dtype=F64), slope), seed),
    )
    for _ in range(steps):
        plain.lanczos.step()
        other.lanczos.step()
    scale = factor * float(values.abs().max()) + abs(shift)
    a, b = plain.lanczos.ritz(), other.lanczos.ritz()
    np.testing.assert_allclose(b.values, factor * a.values + shift, atol=1e-6 * scale)
    np.testing.assert_allclose(b.residuals, factor * a.residuals, atol=1e-6 * scale)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 40), k=st.integers(1, 4))
def test_the_bottom_is_the_top_of_the_negative(seed: int, d: int, k: int) -> None:
    h, slope, k = with_spectrum(random_vector(d, seed), seed), random_vector(d, seed + 1), min(k, d)
    top = last(Sweep(Matrix(h, slope), seed).eigenvalues(k, "top", 1e-8))
    bottom = last(Sweep(Matrix(-h, slope), seed).eigenvalues(k, "bottom", 1e-8))
    assert bottom.value == pytest.approx(-top.value, rel=1e-12, abs=1e-12)
    assert top.value == pytest.approx(float(random_vector(d, seed).sort().values[-k]), rel=1e-6, abs=1e-9)


@settings(deadline=None, max_examples=25)
@given(seed=st.integers(0, 10_000), d=st.integers(1, 40))
def test_the_trace_is_linear_in_the_matrix_and_exact_for_low_rank(seed: int, d: int) -> None:
    values = torch.zeros(d, dtype=F64)
    values[: min(d, 4)] = random_vector(min(d, 4), seed)
    found = last(Sweep(Matrix(with_spectrum(values, seed)), seed).trace())
    assert found.value == pytest.approx(float(values.sum()), rel=1e-8, abs=1e-10)
    squares = last(Sweep(Matrix(with_spectrum(values, seed)), seed).frobenius_squared())
    assert squares.value == pytest.approx(float(values.square().sum()), rel=1e-8, abs=1e-10)
