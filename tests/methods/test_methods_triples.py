"""Triples as functionals of the Hessian: their values on bowls, and Det-SAM where exp would overflow."""

from dataclasses import replace
from math import exp, pi, sqrt

import pytest
import torch
from oracles.follow import Run
from problems import bowl_problem, flat_weights, mlp_problem, random_hessian

import steppe
from steppe import (
    DETERMINANT,
    DETERMINANT_RELEASED,
    FROBENIUS,
    TRACE,
    Draw,
    Hypercube,
    PointMass,
    SharpnessAware,
    Space,
    UniversalSAM,
    gaussian,
    rademacher,
    sphere,
)


def halves(law, hessian, draws):
    """v'Av / 2 for many draws: what the loss rises by over rho^2 at the bottom of the bowl."""
    space = Space([torch.zeros(len(hessian) - 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)])
    zero = space.zeros()
    v = torch.stack([torch.cat(law(Draw(space, (0, 0, i), zero, zero)).tensors) for i in range(draws)])
    return ((v @ hessian) * v).sum(1) / 2


def within(values, expected, sigmas=4.0):
    return abs(values.mean().item() - expected) <= sigmas * values.std().item() / sqrt(len(values))


def test_trace_is_the_trace_over_twice_the_dimension():
    hessian = random_hessian(6)
    values = torch.stack([TRACE.value(u.reshape(1, 1)) for u in halves(sphere, hessian, 4000)])
    assert within(values, hessian.trace().item() / 12)
    assert not within(values, hessian.trace().item() / 6), "the error bar must be able to tell a factor of 2"


@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 5])
def test_frobenius_is_the_square_of_the_norm_without_bias(n):
    hessian = random_hessian(6)
    u = halves(gaussian, hessian, 6000).reshape(-1, n, 1)
    values = torch.stack([FROBENIUS.value(batch) for batch in u])
    squared = (hessian**2).sum().item()
    assert within(values, squared)
    biased = (n - 1) / n
    assert not within(values, squared * biased), "the error bar must be able to tell the biased variance"


def test_frobenius_of_a_batch_is_four_times_half_the_unbiased_variance():
    u = torch.tensor([0.3, -1.2, 2.0, 0.7, 0.1], dtype=torch.float64)
    assert FROBENIUS.value(u[:, None]).item() == pytest.approx(2 * u.var(correction=1).item(), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("triple", "power"), [(DETERMINANT, 1.0), (DETERMINANT_RELEASED, 2.0)], ids=["paper", "released"]
)
def test_determinant_up_to_its_constant(triple, power):
    """The mean of exp(-v'Av / 2) over a wide cube is (2 pi)^(d/2) det(A)^(-1/2) over its volume; phi(t) = t^-2."""
    hessian, half, n = random_hessian(2, lowest=1.0), 8.0, 20_000
    u = halves(Hypercube(half), hessian, n)
    value = replace(triple, laws=(Hypercube(half),)).value(u[:, None]).item()
    exact = (2 * half) ** 4 * torch.linalg.det(hessian).item() / (2 * pi * power) ** 2
    psi = torch.exp(-u / power)
    error = 2 * exact * psi.std().item() / psi.mean().item() / sqrt(n)  # the delta method
    assert abs(value - exact) <= 4 * error
    assert error < 0.1 * exact


def test_rademacher_draws_see_the_trace_alone_on_a_diagonal_hessian():
    hessian = torch.diag(torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64))
    assert torch.equal(halves(rademacher, hessian, 10), torch.full((10,), 3.5, dtype=torch.float64))


def test_trace_sam_on_a_bowl_adds_rho_times_hessian_times_direction():
    """g(w + rho v) - g(w) = rho A v exactly."""
    hessian, v = random_hessian(4), torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.float64)
    w = torch.tensor([1.0, 2.0, -1.0, 0.5], dtype=torch.float64)
    method = UniversalSAM(replace(TRACE, laws=(PointMass([v[:2], v[2:]]),)), rho=0.3, strength=0.7)
    assert_gradient(method, hessian, w, hessian @ w + 0.7 * 0.3 * hessian @ v)


def gradient(method, hessian, w):
    problem = bowl_problem(hessian, w)
    model = problem.fresh_model()
    followed = Run(problem, model, SharpnessAware(torch.optim.SGD(model.parameters(), lr=1.0), method, model=model))
    return w - followed.weights[0]


def assert_gradient(method, hessian, w, expected):
    torch.testing.assert_close(gradient(method, hessian, w), expected, rtol=1e-10, atol=1e-12)


ONE = torch.ones(1, dtype=torch.float64)


def det_step(u, w, n=1, strength=1.0):
    """Det-SAM's gradient at w on L = a w^2 / 2 with all mass at v = 1 - 2 w, a such that L(w + v) - L(w) = u."""
    v = 1 - 2 * w
    a = 2 * u / ((w + v) ** 2 - w**2)
    mass = PointMass([v * ONE, torch.zeros(1)])
    hessian = torch.diag(torch.tensor([a, 0.0], dtype=torch.float64))
    method = UniversalSAM(replace(DETERMINANT, laws=(mass,)), rho=1.0, n=n, strength=strength)
    start = torch.tensor([w, 0.0], dtype=torch.float64)
    return gradient(method, hessian, start)[0].item(), a * w, a * v


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("u", [-20.0, -1.0, 0.5, 3.0, 20.0])
def test_det_sam_has_the_factor_two_exp_two_u(u, n):
    """n equal draws are one draw: the mean of equal numbers."""
    got, here, change = det_step(u, w=0.25, n=n, strength=0.3)
    assert got == pytest.approx(here + 0.3 * 2 * exp(2 * u) * change, rel=1e-9)


@pytest.mark.parametrize("n", [1, 3])
def test_det_sam_of_a_vanishing_factor_is_the_plain_gradient(n):
    got, here, _ = det_step(-1000.0, w=0.25, n=n)
    assert got == pytest.approx(here, rel=1e-12)


@pytest.mark.parametrize("n", [1, 3])
def test_det_sam_cannot_overflow(n):
    got, here, change = det_step(1000.0, w=0.25, n=n)
    assert torch.isfinite(torch.tensor(got))
    assert (got - here) * change > 0, "it still points the right way"


def test_draws_on_both_extremes_are_weighed_in_logs():
    """The mean of exp(-u) is all in the lowest u, so phi vanishes as exp(-2000) does."""
    u = torch.tensor([[1000.0], [-1000.0], [0.0]], dtype=torch.float64, requires_grad=True)
    value = DETERMINANT.value(u)
    (slopes,) = torch.autograd.grad(value, u)
    assert value.item() == 0.0
    assert slopes.flatten().tolist() == [0.0, 0.0, 0.0]


def test_the_mean_of_unequal_draws_in_logs_is_the_mean():
    u = torch.tensor([[12.0], [15.0], [-9.0]], dtype=torch.float64, requires_grad=True)
    v = u.detach().clone().requires_grad_()
    value, plain = DETERMINANT.value(u), torch.exp(-v).mean() ** -2
    assert value.item() == pytest.approx(plain.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(value, u)[0], torch.autograd.grad(plain, v)[0], rtol=1e-10, atol=0.0)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("shown", ["weights", "grad"])
def test_a_law_may_return_what_it_was_shown(shown, n):
    """Which is not its own: neither the weights nor the gradient may be written into."""
    problem = mlp_problem(steps=1)
    model, (x, y) = problem.fresh_model(), problem.batches[0]
    triple = steppe.Triple(lambda t: t, lambda t: t, (lambda draw: getattr(draw, shown),))
    opt = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), steppe.UniversalSAM(triple, 0.1, n))
    for pass_ in opt.passes():
        pass_.backward(problem.losses(model(x), y))
    opt.step()
    assert torch.equal(flat_weights(model), problem.start)


BY_PARTS = [
    ({"phi": "identity", "psi": "identity", "mu": "sphere"}, TRACE),
    ({"phi": "twice-variance", "psi": "moments", "mu": ["gaussian"], "correction": "bessel"}, FROBENIUS),
    ({"phi": {"times": -2}, "psi": {"times": -1}, "mu": {"hypercube": 0.01}, "logs": True}, DETERMINANT),
    ({"like": "determinant", "psi": {"times": -0.5}}, DETERMINANT_RELEASED),
    ({"like": "determinant", "mu": {"hypercube": 0.2}}, replace(DETERMINANT, laws=(Hypercube(0.2),))),
    ({"phi": {"times": -2}, "psi": {"times": 0.3}, "mu": "gaussian", "logs": True}, steppe.exponential(0.3)),
    ({"like": "trace", "mu": "rademacher"}, replace(TRACE, laws=(rademacher,))),
    ({"like": "trace", "mu": "hypercube"}, replace(TRACE, laws=(Hypercube(),))),
]


@pytest.mark.parametrize(("parts", "triple"), BY_PARTS)
def test_triples_by_the_names_of_their_parts(parts, triple):
    assert steppe.method("universal-sam", triple=parts, n=2) == UniversalSAM(triple, n=2)


def test_named_parts_compute_the_functional_of_their_names():
    """An own triple, its value by numpy: -2 log mean exp(0.3 t), exponentiated."""
    made = steppe.method("universal-sam", triple=BY_PARTS[5][0]).triple
    u = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)
    expected = sum(exp(0.3 * x) for x in u.tolist()) / 3
    assert made.value(u.reshape(3, 1)).item() == pytest.approx(expected**-2, rel=1e-12)


@pytest.mark.parametrize("side", [None, 0.02, 1.5])
def test_the_side_of_det_sams_cube(side):
    """Draws fill the cube of that side: largest entry, and variance side^2 / 12, over 4000 entries."""
    (law,) = steppe.method("det-sam", side=side).triple.laws
    space = Space([torch.zeros(4000, dtype=torch.float64)])
    entries = law(Draw(space, (0, 0, 0), space.zeros(), space.zeros())).tensors[0]
    width = side or 0.02
    assert 0.999 * width / 2 < entries.abs().max() <= width / 2
    assert entries.var().item() == pytest.approx(width**2 / 12, rel=0.05)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"phi": "identity", "psi": "identity"}, "mu is missing"),
        ({"like": "determinat"}, "Did you mean 'determinant'"),
        ({"like": "trace", "mu": "cube"}, "Did you mean 'hypercube'"),
        ({"like": "trace", "phi": "times"}, "phi of a triple takes times with its factor, {times: NUMBER}"),
        ({"like": "trace", "phi": {"times": "2"}}, "with its factor"),
        ({"like": "trace", "mu": {"sphere": 2}}, "takes sphere without a number"),
        ({"like": "trace", "psi": "moments"}, "phi of a triple takes the 2 components of psi to one number, not to 2"),
        ({"like": "trace", "logs": 1}, "logs of a triple takes true or false, not 1"),
        ({"like": "trace", "law": "sphere"}, "There are: correction, like, logs, mu, phi, psi"),
        ({"like": "frobenius", "mu": ["sphere"] * 3}, "psi has 2 components"),
    ],
)
def test_wrong_parts_are_refused(parts, says):
    with pytest.raises(ValueError, match="triple of universal-sam: ") as error:
        steppe.method("universal-sam", triple=parts, n=2)
    assert says in str(error.value)
