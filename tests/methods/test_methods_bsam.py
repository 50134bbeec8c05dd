"""bSAM and an ascent by Adam: against naive rewrites, which agree with the authors' code and with optax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import sqrt

import pytest
import torch
from oracles.flat import SGD, Base, Landscape, trajectory
from oracles.follow import BASES, Run, assert_follows, assert_same_path
from oracles.inputs import Chance
from problems import mlp_problem
from torch import Tensor, nn

import steppe
from steppe import BSAM, AdamAscentSAM, SharpnessAware
from steppe.training.config import Config
from steppe.training.problem import options_of
from steppe.training.schedule import Timeline

PROBLEM = mlp_problem(steps=7)


class Posterior:
    """bSAM's Algorithm 1, a line at a time; `released` is the order of the authors' code, which moves w before s."""

    def __init__(self, rho: float, n: int, prior: float, beta1: float, beta2: float, damping: float, released: bool):
        self.rho, self.n, self.delta, self.beta1, self.beta2 = rho, n, prior / n, beta1, beta2
        self.gamma, self.released = damping, released

    def direction(self, grad: Callable[[Tensor], Tensor], w: Tensor, z: Tensor) -> Tensor:
        if not hasattr(self, "s"):
            self.s, self.g_m = torch.ones_like(w), torch.zeros_like(w)
        theta = w + z * torch.sqrt(1 / (self.n * self.s))
        g = grad(theta)
        epsilon = self.rho * g / self.s
        g_epsilon = grad(w + epsilon)
        self.g_m = self.beta1 * self.g_m + (1 - self.beta1) * (g_epsilon + self.delta * w)
        before = self.s
        self.s = self.beta2 * self.s + (1 - self.beta2) * (self.s.sqrt() * g.abs() + self.delta + self.gamma)
        return self.g_m / (before if self.released else self.s)


@pytest.mark.parametrize(("rho", "n", "beta2"), [(0.3, 100, 0.9), (0.05, 5, 0.999), (0.0, 40, 0.5)])
def test_bsam(rho: float, n: int, beta2: float) -> None:
    model = PROBLEM.fresh_model()
    method = BSAM(rho, n, prior=2.0, beta1=0.8, beta2=beta2, damping=0.2)
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05), method, model=model, seed=5)
    paper, chance = Posterior(rho, n, 2.0, 0.8, beta2, 0.2, released=False), Chance(opt, model)

    def rule(land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        return paper.direction(land.grad, w, chance.normal(t))

    followed = Run(PROBLEM, model, opt)
    assert_same_path(followed.weights, trajectory(PROBLEM, rule, SGD(lr=0.05)))
    kept = torch.cat([opt.state[p]["steppe.precision"].reshape(-1) for p in model.parameters()])
    torch.testing.assert_close(kept, paper.s, rtol=1e-10, atol=0)
    assert kept.std() > 1e-5, "a precision of each weight"
    assert [len(places) for places in followed.visited] == [2] * 7


def test_the_noise_of_bsam_has_the_variance_of_the_posterior() -> None:
    w = nn.Parameter(torch.zeros(40_000, dtype=torch.float64))
    opt = SharpnessAware(torch.optim.SGD([w], lr=0.1), BSAM(num_data=25))
    scale = torch.linspace(0.0, 3.0, len(w), dtype=torch.float64)
    for _ in range(3):
        precision = opt.state[w]["steppe.precision"].clone() if w in opt.state else torch.ones_like(w)
        start, places = w.detach().clone(), []
        for pass_ in opt.passes():
            places.append(w.detach() - start)
            pass_.backward((scale * w).sum())
        opt.step()
        noise = places[0]
        assert float((noise * sqrt(25) * precision.sqrt()).std()) == pytest.approx(1, abs=0.02)


START = [0.5, -1.0, 2.0, 0.1]


def bowl(w: Tensor) -> Tensor:
    return torch.log(torch.cosh(w)).sum() + torch.sin(w).prod() + 0.1 * (w**4).sum()


def test_the_rewrite_in_its_other_order_is_the_authors_code() -> None:
    """team-approx-bayes/bayesian-sam 936eec1 on jax 0.10.2 in float64, with these draws."""
    draws = [[0.3, -1.2, 0.7, 2.1], [-0.4, 0.9, 1.1, -0.2], [1.5, 0.1, -0.8, 0.6], [-1.0, 0.2, 0.5, -1.7]]
    w = torch.tensor(START, dtype=torch.float64)
    released = Posterior(0.2, 50, 5.0, 0.9, 0.99, 0.1, released=True)
    for z in torch.tensor(draws, dtype=torch.float64):
        w = w - 0.1 * released.direction(lambda at: torch.func.grad(bowl)(at), w, z)
    expected = [0.44313275318388, -0.85438355502100, 1.25765130257405, 0.11454776697832]
    precision = [0.98560937466562, 1.01109268480867, 1.10922643779118, 0.97768910049052]
    torch.testing.assert_close(w, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-13)
    torch.testing.assert_close(released.s, torch.tensor(precision, dtype=torch.float64), rtol=0, atol=1e-13)


class AdamAscent:
    """Adam's direction with its bias corrections, of length rho."""

    def __init__(self, rho: float, beta1: float, beta2: float):
        self.rho, self.beta1, self.beta2 = rho, beta1, beta2
        self.m: Tensor | float = 0.0
        self.v: Tensor | float = 0.0

    def __call__(self, land: Landscape, w: Tensor, base: Base, t: int) -> Tensor:
        g = land.grad(w)
        self.m = self.beta1 * self.m + (1 - self.beta1) * g
        self.v = self.beta2 * self.v + (1 - self.beta2) * g**2
        up = (self.m / (1 - self.beta1 ** (t + 1))) / (self.v / (1 - self.beta2 ** (t + 1))).sqrt()
        return land.grad(w + self.rho * up / up.norm())


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.9), (0.5, 0.0)])
def test_adam_ascent(betas: tuple[float, float], base: str) -> None:
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES[base][0](model.parameters()), AdamAscentSAM(0.3, *betas), model=model)
    assert_follows(Run(PROBLEM, model, opt), PROBLEM, AdamAscent(0.3, *betas), base)


OPTAX = {
    0.9: [0.24216432453381, -0.48295216734480, 0.76954045754843, 0.25015398612334],
    0.0: [0.26331938190016, -0.49093550696170, 0.79421956080107, 0.20253165150262],
}


@pytest.mark.parametrize("beta1", OPTAX)
def test_adam_ascent_is_that_of_optax(beta1: float) -> None:
    """optax 0.2.8 in float64: sam(sgd(0.1), chain(scale_by_adam(eps=0), normalize(), sgd(0.3)), reset_state=False)."""
    w = nn.Parameter(torch.tensor(START, dtype=torch.float64))
    opt = steppe.adam_ascent_sam(torch.optim.SGD([w], lr=0.1), rho=0.3, beta1=beta1)
    for _ in range(5):
        opt.step(lambda pass_: pass_.backward(bowl(w)))
    torch.testing.assert_close(w.detach(), torch.tensor(OPTAX[beta1], dtype=torch.float64), rtol=0, atol=1e-13)


def test_a_run_counts_its_training_samples_for_bsam() -> None:
    config, timeline = Config(method="bsam", batch_size=64), Timeline(steps=40, per_epoch=20)
    assert (config.lr, config.momentum) == (0.5, 0.0)
    assert options_of(config, timeline) == {"num_data": 20 * 64}
    assert options_of(replace(config, method_options={"num_data": 9}), timeline) == {"num_data": 9}
