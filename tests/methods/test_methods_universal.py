"""(phi, psi, mu)-SAM against autograd of its objective; Trace-, Frob- and Det-SAM against the paper's algorithms."""

import pytest
import torch
from oracles import sam as naive_sam
from oracles import universal as naive
from oracles.follow import BASES, Run, assert_follows
from oracles.inputs import Chance
from problems import mlp_problem

from steppe import (
    DETERMINANT_RELEASED,
    FROBENIUS,
    TRACE,
    DetSAM,
    FrobSAM,
    Hypercube,
    SharpnessAware,
    TraceSAM,
    Triple,
    UniversalSAM,
    build,
    gaussian,
    rademacher,
    sphere,
)
from steppe.core.triple import uphill

PROBLEM = mlp_problem()


def identity(t):
    return t


def run(method, base="sgd", seed=3):
    """The run, and the directions that it drew: for a step, one list a sample with one direction a law."""
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES[base][0](model.parameters()), method, model=model, seed=seed)
    chance, laws = Chance(opt, model), method.triple.laws

    def directions(t):
        return [[chance.from_law(law, t, i * len(laws) + k) for k, law in enumerate(laws)] for i in range(method.n)]

    return Run(PROBLEM, model, opt), directions


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("n", [1, 3])
def test_trace_sam(n, base):
    followed, directions = run(TraceSAM(rho=0.1, n=n, strength=2.0), base)
    assert_follows(followed, PROBLEM, naive.objective(identity, identity, directions, 0.1, 2.0), base)
    for places in followed.visited:
        assert [d.norm().item() for d in places] == pytest.approx([0.0] + [0.1] * n, rel=1e-12), (
            "on the sphere, jointly"
        )


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("n", [2, 5])
def test_frob_sam_is_algorithm_3(n, base):
    followed, directions = run(FrobSAM(rho=0.05, n=n, strength=0.01), base)
    assert_follows(followed, PROBLEM, naive.algorithm_3(directions, 0.05, 0.01), base)
    assert [len(places) for places in followed.visited] == [1 + n] * 5, "both integrals share their draws"


@pytest.mark.parametrize("build_method", [FrobSAM, lambda n: UniversalSAM(FROBENIUS, n=n)])
def test_frob_sam_of_one_draw_is_refused(build_method):
    with pytest.raises(ValueError, match="at least two draws"):
        build_method(n=1)


def test_det_sam_of_one_draw():
    followed, directions = run(DetSAM(rho=1.0, n=1, strength=0.5))
    assert_follows(followed, PROBLEM, naive.det_sam_of_one_sample(directions, 1.0, 0.5))


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("base", BASES)
def test_det_sam(n, base):
    followed, directions = run(DetSAM(rho=0.5, n=n, strength=0.5), base)
    rule = naive.objective(lambda t: t**-2, lambda t: torch.exp(-t), directions, 0.5, 0.5)
    assert_follows(followed, PROBLEM, rule, base)


def test_det_sam_as_released():
    followed, directions = run(DetSAM(rho=0.5, n=3, strength=0.5, triple=DETERMINANT_RELEASED))
    rule = naive.objective(lambda t: t**-2, lambda t: torch.exp(-t / 2), directions, 0.5, 0.5)
    assert_follows(followed, PROBLEM, rule)


def test_sam_falls_out_with_all_mass_at_the_normalised_gradient():
    method = UniversalSAM(Triple(identity, identity, (uphill,)), rho=0.2, n=1, strength=1.0)
    followed, _ = run(method)
    assert_follows(followed, PROBLEM, naive_sam.sam(0.2))


def smooth_maximum(t):
    return torch.log1p(torch.exp(t))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    "law", [sphere, gaussian, rademacher, Hypercube(0.5)], ids=["sphere", "gaussian", "rademacher", "cube"]
)
def test_a_phi_and_psi_of_ones_own(law, base):
    """m = 1, any torch functions: derivatives come from autograd."""
    method = UniversalSAM(Triple(torch.sinh, smooth_maximum, (law,)), rho=0.1, n=2, strength=0.3)
    followed, directions = run(method, base)
    assert_follows(followed, PROBLEM, naive.objective(torch.sinh, smooth_maximum, directions, 0.1, 0.3), base)


def ratio(t):
    return t[0] / (1 + t[1])


def moments(t):
    return torch.stack([t, t**2])


@pytest.mark.parametrize("n", [1, 3])
def test_two_components_with_laws_of_their_own(n):
    method = UniversalSAM(Triple(ratio, moments, (sphere, gaussian)), rho=0.1, n=n, strength=0.7)
    followed, directions = run(method)
    assert_follows(followed, PROBLEM, naive.objective(ratio, moments, directions, 0.1, 0.7))
    by_hand = naive.algorithm_2(
        [lambda t: 1 / (1 + t[1]), lambda t: -t[0] / (1 + t[1]) ** 2],
        [identity, lambda t: t**2],
        [torch.ones_like, lambda t: 2 * t],
        directions, 0.1, 0.7,
    )  # fmt: skip
    assert_follows(followed, PROBLEM, by_hand)


def test_two_components_that_share_one_law():
    method = UniversalSAM(Triple(ratio, moments, (gaussian,)), rho=0.05, n=3, strength=0.7)
    followed, directions = run(method)
    assert_follows(followed, PROBLEM, naive.objective(ratio, moments, directions, 0.05, 0.7))
    assert [len(places) for places in followed.visited] == [4] * 5


def skewed(draw):
    """A law of one's own: exponential entries, and a little of the gradient."""
    entries = draw.uniform(0.0, 1.0).map(lambda x: -torch.log1p(-x))
    return entries.add_(draw.grad, 0.0)


def test_a_law_of_ones_own():
    method = UniversalSAM(Triple(identity, identity, (skewed,)), rho=0.05, n=2)
    followed, directions = run(method)
    assert_follows(followed, PROBLEM, naive.objective(identity, identity, directions, 0.05))
    first = followed.visited[0][1] / 0.05
    assert first.min() >= 0
    assert first.max() > 1


def test_the_strength_multiplies_what_is_added():
    """Gradients are affine in the strength, and 0 is the base optimizer."""
    steps = {s: run(TraceSAM(rho=0.1, strength=s))[0].weights[0] for s in (0.0, 1.0, 3.0)}
    torch.testing.assert_close(steps[3.0] - steps[0.0], 3 * (steps[1.0] - steps[0.0]), rtol=1e-9, atol=1e-13)
    assert (steps[1.0] - steps[0.0]).abs().max() > 1e-5


@pytest.mark.parametrize("laws", [(), (sphere, sphere, sphere)])
def test_laws_that_do_not_match_psi_are_refused(laws):
    with pytest.raises(ValueError, match="2 components: give one law for all, or one each"):
        Triple(ratio, moments, laws)


def test_radii_by_group_are_refused():
    model = PROBLEM.fresh_model()
    a, *b = model.parameters()
    base = torch.optim.SGD([{"params": [a], "rho": 0.1}, {"params": b, "rho": 0.2}], lr=0.1)
    with pytest.raises(ValueError, match="one radius for all weights"):
        Run(PROBLEM, model, SharpnessAware(base, TraceSAM(), model=model))


@pytest.mark.parametrize(
    ("name", "options", "method"),
    [
        ("trace-sam", {"rho": 0.1, "n": 2}, TraceSAM(0.1, 2)),
        ("frob-sam", {"rho": 0.05, "n": 3, "strength": 0.001}, FrobSAM(0.05, 3, 0.001)),
        ("det-sam", {"rho": 0.5, "strength": 0.1}, DetSAM(0.5, 1, 0.1)),
        ("universal-sam", {"triple": TRACE, "rho": 0.1}, TraceSAM(0.1)),
        ("universal-sam", {"triple": "frobenius", "rho": 0.05, "n": 2, "strength": 0.1}, FrobSAM(0.05, 2, 0.1)),
    ],
)
def test_names_build_the_methods_tested_here(name, options, method):
    model = PROBLEM.fresh_model()
    opt = build(name, BASES["sgd"][0](model.parameters()), model=model, seed=3, **options)
    torch.testing.assert_close(Run(PROBLEM, model, opt).weights, run(method)[0].weights, rtol=0, atol=0)
