"""The oracles of curvature and worst-case sharpness agree with one another, with algebra and with other libraries."""

from __future__ import annotations

from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import conv_problem, flat_weights, random_hessian, random_vector
from torch import Tensor, nn
from torch.func import grad, jacfwd, jacrev, jvp
from torch.nn.functional import cross_entropy, mse_loss

from oracles import curvature, sharpness

F64 = torch.float64


def close(a, b, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def small(norm: bool = True) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 3)]
    return nn.Sequential(*[m for m in layers if norm or not isinstance(m, nn.LayerNorm)]).double()


def uneven() -> list[tuple[Tensor, Tensor]]:
    x, y = random_vector(44, seed=1).reshape(11, 4), torch.arange(11) % 3
    return [(x[:7], y[:7]), (x[7:], y[7:])]


def conv() -> tuple[nn.Module, list[tuple[Tensor, Tensor]]]:
    problem = conv_problem(steps=1, rows=3)
    return problem.model.eval(), problem.batches


# -- dense matrices ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("model", "batches"), [(small(), uneven()), conv()], ids=["layer norm", "conv"])
def test_the_hessian_by_three_routes(model, batches):
    f, w = curvature.mean_loss(model, cross_entropy, batches), flat_weights(model)
    h = curvature.hessian(f, w)
    close(h, curvature.hessian_row_by_row(f, w))
    close(h, curvature.hessian_by_differences(f, w), 1e-8)
    close(h, h.T)


def test_batches_count_by_their_rows_and_losses_may_come_one_a_row():
    model, batches = small(), uneven()
    joined = [(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))]
    w = flat_weights(model)
    for matrix in (
        lambda loss, b: curvature.hessian(curvature.mean_loss(model, loss, b), w),
        lambda loss, b: curvature.gauss_newton(model, loss, b, w),
    ):
        whole = matrix(cross_entropy, joined)
        close(matrix(cross_entropy, batches), whole)
        close(matrix(nn.CrossEntropyLoss(reduction="none"), batches), whole)


def test_gauss_newton_by_three_routes():
    model, batches = small(), uneven()
    g = curvature.gauss_newton(model, cross_entropy, batches, flat_weights(model))
    close(g, curvature.softmax_fisher(model, batches, flat_weights(model)))
    close(g, curvature.curvlinops_matrix("GGN", model, nn.CrossEntropyLoss(), batches))


@pytest.mark.parametrize(("model", "batches"), [(small(norm=False), uneven()), conv()], ids=["mlp", "conv"])
def test_curvlinops_has_the_same_hessian(model, batches):
    f = curvature.mean_loss(model, cross_entropy, batches)
    theirs = curvature.curvlinops_matrix("Hessian", model, nn.CrossEntropyLoss(), batches)
    close(theirs, curvature.hessian(f, flat_weights(model)))


@pytest.mark.parametrize("count", [1, 2], ids=["one batch", "loader"])
def test_pyhessian_has_the_same_eigenvalues(count):
    model, batches = small().train(), uneven()[:count]
    f = curvature.mean_loss(model, cross_entropy, batches)
    ours = curvature.eigenvalues(curvature.hessian(f, flat_weights(model)))
    largest = ours[ours.abs().argsort(descending=True)][:2]
    close(curvature.pyhessian_eigenvalues(model, cross_entropy, batches, k=2), largest, 1e-5)
    assert model.training
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own, in jvp
def test_torch_is_still_wrong_through_layer_norm():
    """When this fails torch has been mended: let curvlinops_matrix take LayerNorm, and lift what else refuses it."""
    model, batches = small(), uneven()
    f, w = curvature.mean_loss(model, cross_entropy, batches), flat_weights(model)
    right = curvature.hessian_by_differences(f, w)
    unit = torch.eye(len(w), dtype=F64)

    def error(matrix: Tensor) -> float:
        return float((matrix - right).norm() / right.norm())

    assert error(torch.stack([jvp(grad(f), (w,), (e,))[1] for e in unit])) < 1e-7
    assert error(torch.stack([jvp(jacrev(f), (w,), (e,))[1] for e in unit])) > 1e-3  # forward over vmapped reverse
    assert error(jacrev(jacfwd(f))(w)) > 1e-3  # reverse over forward
    assert error(curvature._curvlinops("Hessian", model, nn.CrossEntropyLoss(), batches)) > 1e-3
    with pytest.raises(ValueError, match="LayerNorm"):
        curvature.curvlinops_matrix("Hessian", model, nn.CrossEntropyLoss(), batches)


def test_the_rescaled_hessian_is_the_curvature_in_gamma():
    model, batches = small(), uneven()
    f, w = curvature.mean_loss(model, cross_entropy, batches), flat_weights(model)
    in_gamma = curvature.hessian(lambda gamma: f(w + w.abs() * gamma), torch.zeros_like(w))
    close(curvature.rescaled(curvature.hessian(f, w), w.abs()), in_gamma)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_and_logistic_regression(bias):
    torch.manual_seed(0)
    model, (x, y) = nn.Linear(4, 3, bias=bias).double(), uneven()[0]
    w, targets = flat_weights(model), random_vector(21).reshape(7, 3)
    squares = curvature.mean_loss(model, mse_loss, [(x, targets)])
    close(curvature.linear_regression_hessian(x, 3, bias), curvature.hessian(squares, w))
    close(curvature.linear_regression_hessian(x, 3, bias), curvature.gauss_newton(model, mse_loss, [(x, targets)], w))
    entropy = curvature.mean_loss(model, cross_entropy, [(x, y)])
    close(curvature.logistic_regression_hessian(x, model(x).detach(), bias), curvature.hessian(entropy, w))


def test_diagonal_linear_networks():
    x, y, w = random_vector(20).reshape(5, 4), random_vector(5, seed=1), random_vector(8, seed=2)
    u, v = w[:4], w[4:]
    closed = curvature.diagonal_network_hessian(x, y, u, v)
    close(closed, curvature.hessian(curvature.diagonal_network_loss(x, y), w))
    x = torch.linalg.qr(x).Q  # whitened, and y such that w is a minimum
    at_minimum = curvature.diagonal_network_hessian(x, x @ (u * v), u, v)
    want = 2 * torch.cat([torch.zeros(4, dtype=F64), (u**2 + v**2).sort().values])
    close(curvature.eigenvalues(at_minimum), want)


def test_numbers_of_a_matrix_whose_spectrum_is_known():
    h, spectrum = random_hessian(6), 0.5 + torch.arange(6, dtype=F64)
    close(curvature.eigenvalues(h), spectrum)
    assert curvature.trace(h) == pytest.approx(18.0)
    assert curvature.frobenius_squared(h) == pytest.approx(float((spectrum**2).sum()))
    assert curvature.log_det_shifted(h, 0.7) == pytest.approx(float((spectrum + 0.7).log().sum()))
    with pytest.raises(torch.linalg.LinAlgError):
        curvature.log_det_shifted(h, -1.0)
    value, count = curvature.log_det_above(h - 2 * torch.eye(6, dtype=F64), 0.2)  # -1.5, -.5, .5, 1.5, 2.5, 3.5
    assert count == 3
    assert value == pytest.approx(float(torch.tensor([1.5, 2.5, 3.5]).log().sum()))


# -- the highest point of a ball --------------------------------------------------------------------------------------


def quadratic(d: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    """A slope, and a Hessian with eigenvalues .5 - shift, 1.5 - shift, .."""
    return random_vector(d, seed), random_hessian(d, seed) - shift * torch.eye(d, dtype=F64)


def satisfies_kkt(g: Tensor, h: Tensor, rho: float, gamma: Tensor) -> None:
    """What is necessary and sufficient for a global maximum of g'x + x'Hx / 2 in the ball (More & Sorensen 1983)."""
    slope = g + h @ gamma
    multiplier = slope @ gamma / rho**2
    assert gamma.norm() <= rho * (1 + 1e-12)
    assert multiplier >= max(0.0, float(torch.linalg.eigvalsh(h)[-1])) - 1e-9
    close(slope, multiplier * gamma, 1e-8)
    if gamma.norm() < rho * (1 - 1e-9):
        close(slope, torch.zeros_like(slope), 1e-8)


@settings(deadline=None, max_examples=60)
@given(
    d=st.integers(1, 7),
    seed=st.integers(0, 10_000),
    shift=st.sampled_from([0.0, 2.0, 100.0]),
    rho=st.sampled_from([0.01, 0.3, 2.0]),
    adaptive=st.booleans(),
)
def test_the_trust_region_solution_satisfies_kkt(d, seed, shift, rho, adaptive):
    g, h = quadratic(d, seed, shift)
    c = random_vector(d, seed + 1).abs() + 0.01 if adaptive else torch.ones_like(g)
    peak = sharpness.trust_region(g, h, rho, c)
    satisfies_kkt(c * g, curvature.rescaled(h, c), rho, peak.at / c)
    assert peak.rise == pytest.approx(float(g @ peak.at + peak.at @ h @ peak.at / 2))


@pytest.mark.parametrize("top", [1.0, -0.25, 0.0])
def test_the_hard_case(top):
    """No slope along the top eigenvector, alone or of a top pair, and at a critical point."""
    h = torch.diag(torch.tensor([-3.0, -1.0, top, top], dtype=F64))
    for g in (torch.tensor([0.4, -0.2, 0.0, 0.0], dtype=F64), torch.zeros(4, dtype=F64)):
        peak = sharpness.trust_region(g, h, 0.7)
        satisfies_kkt(g, h, 0.7, peak.at)
        if not g.any():
            assert peak.rise == pytest.approx(max(top, 0.0) * 0.7**2 / 2)


def test_pinned_entries_stay():
    g, h = quadratic(4, seed=3)
    c = torch.tensor([1.0, 0.0, 0.5, 2.0], dtype=F64)
    free = torch.tensor([0, 2, 3])
    peak = sharpness.trust_region(g, h, 0.6, c)
    assert peak.at[1] == 0
    assert peak.rise == pytest.approx(sharpness.trust_region(g[free], h[free][:, free], 0.6, c[free]).rise)


@pytest.mark.parametrize("shift", [0.0, 1.0, 5.0])
@pytest.mark.parametrize("c", [torch.ones(2, dtype=F64), torch.tensor([0.3, 2.0], dtype=F64)], ids=["round", "ellipse"])
def test_exact_maxima_in_two_dimensions_by_brute_force(shift, c):
    g, h = quadratic(2, 5, shift)
    f, w = sharpness.second_order(g, h), torch.zeros(2, dtype=F64)
    assert sharpness.trust_region(g, h, 0.8, c).rise == pytest.approx(
        sharpness.polar_grid(f, w, 0.8, 2, c).rise, rel=1e-9
    )
    if shift == 0:
        for p in (1, inf):
            corner, grid = sharpness.vertices(f, w, 0.8, p, c), sharpness.polar_grid(f, w, 0.8, p, c)
            assert corner.rise == pytest.approx(grid.rise, rel=1e-9)


@pytest.mark.parametrize("shift", [0.0, 3.0])
@pytest.mark.parametrize("adaptive", [False, True])
def test_exact_maxima_in_six_dimensions_by_long_ascent(shift, adaptive):
    g, h = quadratic(6, 1, shift)
    w = random_vector(6, seed=8)
    c = w.abs() if adaptive else torch.ones_like(w)
    f = lambda x: sharpness.second_order(g, h)(x - w)  # noqa: E731
    exact = sharpness.trust_region(g, h, 0.9, c)
    assert sharpness.projected_ascent(f, w, 0.9, 2, c, starts=3).rise == pytest.approx(exact.rise, rel=1e-7)
    if shift == 0:
        corner = sharpness.vertices(f, w, 0.9, inf, c)
        assert sharpness.projected_ascent(f, w, 0.9, inf, c, starts=40).rise == pytest.approx(corner.rise, rel=1e-12)


# -- climbing procedures ----------------------------------------------------------------------------------------------


def test_checkpoints():
    assert sharpness.checkpoints(100) == [0, 22, 41, 57, 70, 80, 87, 93, 99]  # Croce & Hein 2020, section 3.3
    assert sharpness.checkpoints(20) == [0, 5, 9, 12, 14, 16, 18, 19, 20]
    assert sharpness.checkpoints_in_floats(20) == [0, 5, 9, 12, 15, 16, 18, 19, 20]
    assert sharpness.checkpoints_in_floats(100)[3] == 58


class Recorded:
    """A function of one number that remembers where its value and where its slope were asked for."""

    def __init__(self, value, slope):
        self.value, self.slope = value, slope
        self.values_at, self.slopes_at = [], []

    def __call__(self, x: Tensor) -> Tensor:
        at = float(x.detach())
        if x.requires_grad:
            self.slopes_at.append(at)
            return x.sum() * self.slope(at)
        self.values_at.append(at)
        return torch.tensor(self.value(at), dtype=F64)


@pytest.mark.parametrize("p", [2.0, inf])
def test_six_steps_by_hand(p):
    """On -(x - .3)^2 in [-1, 1] from 0, where the first steps overshoot; checkpoints are at 2, 3, 4 and 5."""
    w = torch.zeros(1, dtype=F64)
    f = Recorded(lambda x: -((x - 0.3) ** 2), lambda x: -2 * (x - 0.3))
    rise, at = sharpness.auto_pgd(f, w, 1.0, p, steps=6)
    assert f.values_at == [0.0, 1.0, -0.25, 0.375, -0.21875, 0.3828125, 0.1484375, 0.0]
    assert f.slopes_at == [0.0, 1.0, -0.25, 0.375, -0.21875, 0.375]  # the last one from the best point again
    assert (rise, float(at)) == (pytest.approx(0.09 - 0.075**2), 0.375)

    f = Recorded(f.value, f.slope)
    rise, at = sharpness.published_procedure(f, w, 1.0, p, steps=6)
    assert f.values_at == [0.0, 1.0, -0.75, 0.4375, -0.609375, -0.640625, -0.8203125]
    assert f.slopes_at == [0.0, 1.0, 0.0, 0.4375, 0.4375, 0.4375]  # which does not bring the displacement back
    assert (rise, float(at)) == (pytest.approx(0.09 - 0.1375**2), 0.4375)


@pytest.mark.parametrize(
    ("heights", "restarts"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], []),
        ([0, 1, 2, 3, 4, -9, -8, -7, -6, -5, -4], [9]),  # four of five rise, then all do, but none is the highest
        ([0, 1, 2, 1, 3, -1, 2, 5, 6, 7, 8], [5]),  # three of five rise
        ([9, 1, 2, 3, 4, 5, 6, 10, 11, 12, 13], [5]),  # as many as needed do, and none is the highest
        ([0, 1, 2, 1, 2, 1, 1.5, -8, -7, -6, -5], [5]),  # at 9 none is the highest, but the step has been halved
    ],
)
def test_auto_pgd_starts_again_from_the_best(heights, restarts):
    """In the first ten of 20 steps, which are up and down in turn; checkpoints are at 5 and 9."""
    told, signs = iter([*heights, *([-10] * 20)]), iter([1, -1] * 10)
    f = Recorded(lambda x: next(told), lambda x: next(signs))
    sharpness.auto_pgd(f, torch.zeros(1, dtype=F64), 1.0, steps=20, start=torch.tensor([0.125], dtype=F64))
    x = f.values_at
    assert [k for k in range(10) if f.slopes_at[k + 1] != x[k + 1]] == restarts
    for k in restarts:
        assert f.slopes_at[k + 1] == x[heights.index(max(heights[: k + 2]))]


@pytest.mark.parametrize("climb", [sharpness.auto_pgd, sharpness.published_procedure])
def test_a_plane_is_climbed_in_one_step(climb):
    g, w = random_vector(5), random_vector(5, seed=1)
    for c in (torch.ones_like(w), w.abs()):
        box = float(0.3 * (c * g).abs().sum())
        assert climb(lambda x: x @ g, w, 0.3, inf, c).rise == pytest.approx(box)
        assert climb(lambda x: x @ g, w, 0.3, inf, c, steps=1).rise == pytest.approx(box)
    assert climb(lambda x: x @ g, w, 0.3, 2.0, steps=1).rise == pytest.approx(float(0.3 * g.norm()))


@settings(deadline=None, max_examples=15)
@given(seed=st.integers(0, 10_000), p=st.sampled_from([2.0, inf]), adaptive=st.booleans())
def test_climbs_stay_in_the_ball_and_below_the_exact_maximum(seed, p, adaptive):
    g, h = quadratic(4, seed)
    w = random_vector(4, seed + 1)
    w[seed % 4] = 0.0
    c = w.abs() if adaptive else torch.ones_like(w)
    f = lambda x: sharpness.second_order(g, h)(x - w)  # noqa: E731
    exact = sharpness.trust_region(g, h, 0.5, c) if p == 2 else sharpness.vertices(f, w, 0.5, p, c)
    start = sharpness.onto_ball(random_vector(4, seed + 2), 0.5, p)
    from_zero = [sharpness.auto_pgd(f, w, 0.5, p, c), sharpness.published_procedure(f, w, 0.5, p, c)]
    assert all(peak.rise >= 0 for peak in from_zero)  # from elsewhere it may end on a peak that is lower than w
    for peak in (*from_zero, sharpness.auto_pgd(f, w, 0.5, p, c, start=start)):
        assert peak.rise <= exact.rise * (1 + 1e-12)
        assert float(f(w + peak.at) - f(w)) == pytest.approx(peak.rise, abs=1e-12)
        assert peak.at[c == 0].eq(0).all()
        assert (peak.at[c > 0] / c[c > 0]).norm(p) <= 0.5 * (1 + 1e-12)


def test_auto_pgd_reaches_the_maximum():
    g, h = quadratic(6, 2)
    w, f = torch.zeros(6, dtype=F64), sharpness.second_order(g, h)
    for c in (torch.ones(6, dtype=F64), torch.logspace(-1, 1, 6, dtype=F64)):
        exact = sharpness.trust_region(g, h, 0.5, c).rise
        assert sharpness.auto_pgd(f, w, 0.5, 2, c, steps=50).rise > 0.999 * exact
    assert sharpness.published_procedure(f, w, 0.5, 2, steps=50).rise > 0.999 * sharpness.trust_region(g, h, 0.5).rise


@pytest.mark.parametrize("lag", [0, 1])
def test_the_published_procedure_misses_the_maximum_over_an_ellipsoid(lag):
    """Its steps c g, brought back to the nearest point, end where d ~ c^3 g; the top of a plane is at d ~ c^2 g."""
    c = torch.arange(1, 7, dtype=F64)
    w, g, top = torch.zeros_like(c), 1 / c, 0.5 * 6**0.5
    end = 0.5 * c**3 * g / (c**2 * g).norm()
    close(sharpness.nearest_in_ellipsoid(end + 0.3 * c * g, 0.5, c), end)
    assert g @ end < 0.9 * top
    rise = sharpness.published_procedure(lambda x: x @ g, w, 0.5, 2, c, steps=50, lag=lag).rise
    assert g @ end < rise < 0.98 * top  # the best of what it passed on its way
    assert sharpness.auto_pgd(lambda x: x @ g, w, 0.5, 2, c, steps=1).rise == pytest.approx(top)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10_000))
def test_the_nearest_point_of_an_ellipsoid(seed):
    d, c = 3 * random_vector(4, seed), random_vector(4, seed + 1).abs()
    nearest = sharpness.nearest_in_ellipsoid(d, 0.5, c)
    others = torch.stack([sharpness.onto_ball(random_vector(4, seed + k), 0.5, 2) for k in range(2, 40)]) * c
    assert (nearest / c).norm() <= 0.5 * (1 + 1e-12)
    assert ((others - nearest) @ (d - nearest)).max() <= 1e-9  # the variational inequality of a projection
    close(sharpness.nearest_in_ellipsoid(others[0] / 2, 0.5, c), others[0] / 2)
