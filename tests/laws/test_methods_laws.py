"""Random directions: what their laws promise, and that they are a function of (seed, step, sample) alone."""

from math import sqrt

import pytest
import torch
from oracles.follow import BASES, Run
from oracles.inputs import Chance
from problems import mlp_problem

from steppe import (
    Draw,
    Hypercube,
    PointMass,
    SharpnessAware,
    Space,
    TraceSAM,
    Triple,
    UniversalSAM,
    gaussian,
    rademacher,
    sphere,
)
from steppe.core.triple import uphill

LAWS = {"sphere": sphere, "gaussian": gaussian, "rademacher": rademacher, "cube": Hypercube(0.01)}
SIZES = ((3, 4), (5,), (3, 4), (2, 2, 2), (1,))  # two alike, which share a stack
D = sum(torch.Size(s).numel() for s in SIZES)
N = 4000


def space():
    return Space([torch.ones(s, dtype=torch.float64) for s in SIZES])


def sampled(law, here, key):
    gradient = here.vector([torch.full(s, 2.0, dtype=torch.float64) for s in SIZES])
    return torch.cat([t.reshape(-1) for t in law(Draw(here, key, here.weights(), gradient)).tensors])


@pytest.fixture(scope="module", params=LAWS)
def draws(request):
    here = space()
    return request.param, torch.stack([sampled(LAWS[request.param], here, (0, 0, i)) for i in range(N)])


VARIANCES = {"sphere": 1 / D, "gaussian": 1.0, "rademacher": 1.0, "cube": 0.02**2 / 12}
KURTOSES = {"sphere": 3 * D / (D + 2), "gaussian": 3.0, "rademacher": 1.0, "cube": 9 / 5}


def test_every_entry_has_mean_zero_and_its_variance(draws):
    name, x = draws
    variance, kurtosis = VARIANCES[name], KURTOSES[name]
    assert (x.mean(0).abs() < 4.5 * sqrt(variance / N)).all()
    spread = variance * sqrt(max(kurtosis - 1, 0) / N)
    assert ((x**2).mean(0) - variance).abs().max() <= 4.5 * spread + 1e-15


def test_the_fourth_moment_tells_the_laws_apart(draws):
    name, x = draws
    fourth = (x**4 / VARIANCES[name] ** 2).flatten()
    error = fourth.std() / sqrt(N)  # entries of one draw depend on one another: count draws, not entries
    assert (fourth.mean() - KURTOSES[name]).abs() <= 4 * error + 1e-12


def test_entries_are_uncorrelated_across_parameters(draws):
    name, x = draws
    correlation = (x.T @ x) / N / VARIANCES[name]
    off = correlation - torch.diag(torch.diag(correlation))
    assert off.abs().max() < 5.5 / sqrt(N), "stacked parameters must not share their numbers"


def test_supports(draws):
    name, x = draws
    if name == "sphere":
        torch.testing.assert_close(x.norm(dim=1), torch.ones(N, dtype=torch.float64), rtol=1e-12, atol=0)
    elif name == "rademacher":
        assert set(x.flatten().tolist()) == {-1.0, 1.0}
    elif name == "cube":
        assert x.abs().max() <= 0.01
        assert x.abs().max() > 0.0099
    else:
        assert x.abs().max() > 3.5


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_the_same_key_gives_the_same_draw(law):
    first = sampled(law, space(), (1, 2, 3))
    torch.manual_seed(0)  # no hidden state: neither this nor earlier draws matter
    here = space()
    sampled(law, here, (9, 9, 9))
    assert torch.equal(sampled(law, here, (1, 2, 3)), first)


@pytest.mark.parametrize("law", LAWS.values(), ids=LAWS)
def test_every_part_of_the_key_matters(law):
    here = space()
    keys = [(1, 2, 3), (0, 2, 3), (1, 0, 3), (1, 2, 0), (2, 1, 3), (1, 3, 2), (3, 2, 1)]
    drawn = [sampled(law, here, key) for key in keys]
    assert all(not torch.equal(drawn[i], drawn[j]) for i in range(len(keys)) for j in range(i))


def test_drawing_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    sampled(gaussian, space(), (0, 0, 0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_point_mass_is_where_it_was_put(dtype):
    at = [torch.randn(s, dtype=dtype) for s in SIZES]
    expected = torch.cat([x.flatten() for x in at]).double()
    here, law = space(), PointMass(at)
    assert torch.equal(sampled(law, here, (0, 0, 0)), expected)
    law(Draw(here, (0, 0, 0), here.weights(), here.zeros())).mul_(5.0)
    assert torch.equal(sampled(law, here, (4, 5, 6)), expected), (
        "a draw that was scaled in place must not move the mass"
    )


def test_uphill_is_the_normalised_gradient():
    torch.testing.assert_close(
        sampled(uphill, space(), (0, 0, 0)), torch.full((D,), 1 / sqrt(D), dtype=torch.float64), rtol=1e-12, atol=0
    )


PROBLEM = mlp_problem(steps=3)


def displacements(seed, law=gaussian, n=2):
    model = PROBLEM.fresh_model()
    method = UniversalSAM(Triple(_identity, _identity, (law,)), rho=0.1, n=n)
    opt = SharpnessAware(BASES["sgd"][0](model.parameters()), method, model=model, seed=seed)
    followed = Run(PROBLEM, model, opt)
    return torch.stack([d for places in followed.visited for d in places[1:]]) / 0.1, opt, model


def _identity(t):
    return t


def test_a_run_draws_anew_at_every_step_and_sample():
    v, opt, model = displacements(seed=5)
    for i in range(6):
        expected = Chance(opt, model).from_law(gaussian, i // 2, i % 2)
        torch.testing.assert_close(v[i], expected, rtol=1e-10, atol=1e-13)
    far = (v[:, None] - v[None]).norm(dim=2) + 100 * torch.eye(6)
    assert far.min() > 1
    assert (displacements(seed=6)[0] - v).norm(dim=1).min() > 1, "another seed, other draws"


def test_trace_sam_draws_on_the_sphere_over_all_parameters_jointly():
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES["sgd"][0](model.parameters()), TraceSAM(rho=0.3, n=4), model=model)
    for places in Run(PROBLEM, model, opt).visited:
        assert [d.norm().item() for d in places[1:]] == pytest.approx([0.3] * 4, rel=1e-12)
