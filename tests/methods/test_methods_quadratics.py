"""One step on the bowl w'Aw / 2 against algebra: the gradient is A times wherever the method looks."""

from math import inf, sqrt

import pytest
import torch
from oracles.follow import Run
from problems import bowl_problem, random_hessian, random_vector

from steppe import (
    GSAM,
    SAM,
    AgnosticSAM,
    Ball,
    Elementwise,
    FrobSAM,
    LookSAM,
    MomentumSAM,
    PerPart,
    Plain,
    SharpnessAware,
)
from steppe.core.ball import GradientStep

A, W = random_hessian(6), random_vector(6)
G = A @ W
RHO, ETA = 0.3, 0.05


def unit(x):
    return x / x.norm()


def largest(g):
    top = torch.zeros_like(g)
    top[g.abs().argmax()] = g[g.abs().argmax()].sign()
    return top


T = W.abs() + ETA
HALFWAY = W + RHO / 2 * unit(G)
UP = A @ (W + RHO * unit(G))

ONE_STEP = {
    "plain": (Plain(), G),
    "sam": (SAM(RHO), UP),
    "sam, p = inf": (SAM(Ball(RHO, p=inf)), A @ (W + RHO * G.sign())),
    "sam, p = 1": (SAM(Ball(RHO, p=1)), A @ (W + RHO * largest(G))),
    "sam, p = 3": (SAM(Ball(RHO, p=3)), A @ (W + RHO * G.sign() * G.abs().sqrt() / (G.abs() ** 1.5).sum() ** (1 / 3))),
    "un-normalised": (SAM(GradientStep(RHO)), G + RHO * A @ G),
    "two ascent steps": (SAM(RHO, steps=2), A @ (HALFWAY + RHO / 2 * unit(A @ HALFWAY))),
    "asam": (SAM(Ball(RHO, Elementwise(ETA, everywhere=True))), A @ (W + RHO * T**2 * G / (T * G).norm())),
    "m-sam of equal rows": (PerPart(SAM(RHO), 2), UP),
    "looksam, first step": (LookSAM(RHO), UP),
    "gsam": (GSAM(RHO, 0.5), UP - 0.5 * (G - (G @ UP) / (UP @ UP) * UP)),
}


def run(problem, method, options=lambda t: {}, **base):
    model = problem.fresh_model()
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 1.0, **base})
    return Run(problem, model, SharpnessAware(optimizer, method, model=model), options)


@pytest.mark.parametrize("case", ONE_STEP)
def test_one_step_by_algebra(case):
    method, gradient = ONE_STEP[case]
    followed = run(bowl_problem(A, W), method)
    torch.testing.assert_close(W - followed.weights[0], gradient, rtol=1e-11, atol=1e-12)


def test_the_step_itself_has_momentum_and_decay_on_the_unperturbed_weights():
    """w1 = w0 - lr (g0 + decay w0), then the buffer: g at the top, decay at w."""
    followed = run(bowl_problem(A, W, steps=2), SAM(RHO), lr=0.05, momentum=0.9, weight_decay=0.1)
    first = UP + 0.1 * W
    w1 = W - 0.05 * first
    second = 0.9 * first + A @ (w1 + RHO * unit(A @ w1)) + 0.1 * w1
    torch.testing.assert_close(followed.weights, torch.stack([w1, w1 - 0.05 * second]), rtol=1e-11, atol=1e-12)


def test_sam_along_an_eigenvector_lengthens_the_gradient():
    """A v = c v gives c (1 + rho / |w|) w: SAM shrinks the weights as the gradient would, from further out."""
    values, vectors = torch.linalg.eigh(A)
    w = 2.0 * vectors[:, 3]
    followed = run(bowl_problem(A, w), SAM(RHO))
    torch.testing.assert_close(w - followed.weights[0], values[3] * (1 + RHO / 2) * w, rtol=1e-10, atol=1e-12)


def test_momentum_sam_by_algebra():
    """After one step the momentum is the first gradient, and the second is taken rho further down it."""
    followed = run(bowl_problem(A, W, steps=2), MomentumSAM(RHO), lr=0.05, momentum=0.9)
    w1 = W - 0.05 * G
    ahead = A @ (w1 - RHO * unit(G))
    torch.testing.assert_close(followed.weights[1], w1 - 0.05 * (0.9 * G + ahead), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("simple", [True, False])
def test_agnostic_sam_between_two_bowls(simple):
    """Up the training bowl, down the held-out one, then the training gradient there."""
    held = random_hessian(6, seed=8)
    problem, model = bowl_problem(A, W), bowl_problem(A, W).fresh_model()
    base = torch.optim.SGD(model.parameters(), lr=1.0)

    def held_out(pass_):
        w = torch.cat([model.head, model.tail])
        loss = w @ held @ w / 2
        pass_.backward(loss)
        return loss.detach()

    method = AgnosticSAM(0.3, 0.2, share=None, simple=simple)
    followed = Run(problem, model, SharpnessAware(base, method, model=model), lambda t: {"held_out": held_out})
    w_v = W if simple else W + 0.2 * unit(held @ W)
    gradient = A @ (W + 0.3 * unit(G) - 0.2 * unit(held @ w_v))
    torch.testing.assert_close(W - followed.weights[0], gradient, rtol=1e-11, atol=1e-12)


@pytest.mark.slow
def test_frob_sam_on_average_adds_four_times_the_hessian_times_the_gradient():
    """4 / rho^2 cov(rho g'v + rho^2 v'Av / 2, rho A v) = 4 A g for Gaussian v, with the unbiased covariance of two."""
    problem = bowl_problem(A, W)
    model = problem.fresh_model()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), FrobSAM(rho=0.5, n=2, strength=1.0), model=model)
    (x, y), added = problem.batches[0], []
    for _ in range(600):
        opt.step(lambda pass_: pass_.backward(problem.losses(model(x), y)))
        added.append(torch.cat([model.head.grad, model.tail.grad]) - G)
    added = torch.stack(added)
    error = added.std(0) / sqrt(len(added))
    assert ((added.mean(0) - 4 * A @ G).abs() < 4 * error).all()
    assert ((added.mean(0) - 2 * A @ G).abs() > 4 * error).any(), "the biased covariance of two draws is half of it"


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, inf])
def test_the_loss_rises_by_at_least_the_dual_norm(p):
    """L(w + d) - L(w) = <g, d> + d'Ad / 2, and <g, d> = rho |g|_q for the steepest d."""
    followed = run(bowl_problem(A, W), SAM(Ball(RHO, p=p)))
    d = followed.visited[0][1]
    q = {1: inf, inf: 1}.get(p) or p / (p - 1)
    assert (G @ d).item() == pytest.approx(RHO * torch.linalg.vector_norm(G, q).item(), rel=1e-11)
