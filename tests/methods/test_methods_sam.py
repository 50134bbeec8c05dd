"""SAM against its formula: every norm, un-normalised, several ascent steps, decay in the ascent, radii by group."""

from math import inf

import pytest
import torch
from oracles import sam as naive
from oracles.follow import BASES, Run, assert_follows
from problems import flat_parts, mlp_problem

from steppe import SAM, Ball, Elementwise, SharpnessAware, build, sam
from steppe.core.ball import GradientStep

PROBLEM = mlp_problem()
ETA = 0.01
ADAPTIVE = naive.elementwise(PROBLEM.model, ETA)
DECAY = 0.02  # of the SGD base


def run(method, base="sgd", **engine):
    model = PROBLEM.fresh_model()
    return Run(PROBLEM, model, SharpnessAware(BASES[base][0](model.parameters()), method, model=model, **engine))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("p", [1, 1.5, 2, 3, inf])
def test_sam_in_every_norm(p, base):
    rho = 0.02 if p == inf else 0.2
    assert_follows(run(SAM(Ball(rho, p=p)), base), PROBLEM, naive.sam(rho, p), base)


@pytest.mark.parametrize("p", [1, 1.5, 2, 3, inf])
def test_the_perturbation_lies_on_the_sphere_of_its_norm(p):
    first, second = run(SAM(Ball(0.2, p=p))).visited[0]
    assert first.abs().max() == 0
    assert torch.linalg.vector_norm(second, p).item() == pytest.approx(0.2, rel=1e-12)


@pytest.mark.parametrize("base", BASES)
def test_un_normalised_sam_is_a_plain_step_up(base):
    assert_follows(run(SAM(GradientStep(0.3)), base), PROBLEM, naive.sam(0.3, normalized=False), base)


def test_un_normalised_asam_has_the_square_of_its_scale():
    rule = naive.sam(0.6, scale=ADAPTIVE, normalized=False)
    assert_follows(run(SAM(GradientStep(0.6, Elementwise(ETA)))), PROBLEM, rule)


@pytest.mark.parametrize("normalized", [True, False])
def test_three_ascent_steps_climb_a_third_of_the_radius_each(normalized):
    ascent = Ball(0.6) if normalized else GradientStep(0.6)
    followed = run(SAM(ascent, steps=3))
    assert_follows(followed, PROBLEM, naive.sam(0.6, steps=3, normalized=normalized))
    assert [len(places) for places in followed.visited] == [4] * len(PROBLEM.batches)


def test_several_ascent_steps_keep_the_metric_of_the_starting_point():
    rule = naive.sam(0.9, steps=3, scale=ADAPTIVE)
    assert_follows(run(SAM(Ball(0.9, Elementwise(ETA)), steps=3)), PROBLEM, rule)


@pytest.mark.parametrize("steps", [1, 3])
def test_decay_in_the_ascent_is_part_of_the_loss_that_is_climbed(steps):
    followed = run(SAM(0.5, steps=steps, decay_in_ascent=True))
    assert_follows(followed, PROBLEM, naive.sam(0.5, steps=steps, decay=DECAY))
    without = run(SAM(0.5, steps=steps))
    assert (followed.weights - without.weights).abs().max() > 1e-6, "the decay must be strong enough to be seen"


def by_groups(model, *radii):
    """One parameter group a radius, parameters dealt out in turn; all other options as in the SGD base."""
    params = list(model.parameters())
    return [{"params": params[i :: len(radii)], "rho": rho} for i, rho in enumerate(radii)]


def flat_radii(model, *radii):
    parts = flat_parts(model)
    return torch.cat(
        [
            torch.full((s.stop - s.start,), radii[i % len(radii)], dtype=torch.float64)
            for i, s in enumerate(parts.values())
        ]
    )


@pytest.mark.parametrize("radii", [(0.3, 0.05), (0.1, 0.2, 0.4)])
def test_radii_by_group_make_one_ellipsoid(radii):
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES["sgd"][0](by_groups(model, *radii)), SAM(7.0), model=model)  # 7: no group asks for it
    followed = Run(PROBLEM, model, opt)
    each = flat_radii(model, *radii)
    assert_follows(followed, PROBLEM, naive.ellipsoid(each))
    for _, d in followed.visited:
        assert (d**2 / each**2).sum().item() == pytest.approx(1.0, rel=1e-12)


def test_a_group_of_radius_zero_stays_where_it_is():
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES["sgd"][0](by_groups(model, 0.3, 0.0)), SAM(), model=model)
    followed = Run(PROBLEM, model, opt)
    still = flat_radii(model, 0.3, 0.0) == 0
    scale = naive.sam(0.3, scale=lambda w: (~still).double())
    assert_follows(followed, PROBLEM, scale)
    assert all(d[still].abs().max() == 0 for _, d in followed.visited)


def test_radii_by_group_of_an_un_normalised_step():
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES["sgd"][0](by_groups(model, 0.9, 0.2)), SAM(GradientStep(1.0)), model=model)
    each = flat_radii(model, 0.9, 0.2)
    rule = naive.sam(1.0, scale=lambda w: each.sqrt(), normalized=False)  # d = scale^2 g
    assert_follows(Run(PROBLEM, model, opt), PROBLEM, rule)


def test_radii_by_group_and_an_adaptive_scale_multiply():
    """d = (rho T)^2 g / |rho T g|."""
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES["sgd"][0](by_groups(model, 0.9, 0.2)), SAM(Ball(1.0, Elementwise(ETA))), model=model)
    each = flat_radii(model, 0.9, 0.2)
    assert_follows(Run(PROBLEM, model, opt), PROBLEM, naive.sam(1.0, scale=lambda w: each * ADAPTIVE(w)))


def test_radii_by_group_stretch_every_norm():
    """In {max |d / rho| <= 1} every entry moves by its own radius."""
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES["sgd"][0](by_groups(model, 0.03, 0.01)), SAM(Ball(1.0, p=inf)), model=model)
    each = flat_radii(model, 0.03, 0.01)
    assert_follows(Run(PROBLEM, model, opt), PROBLEM, naive.sam(1.0, inf, scale=lambda w: each))


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("sam", {"rho": 0.2, "p": 3}, naive.sam(0.2, 3)),
        ("sam", {"rho": 0.4, "steps": 2}, naive.sam(0.4, steps=2)),
        ("sam", {"rho": 0.2, "normalized": False}, naive.sam(0.2, normalized=False)),
        ("sam", {"rho": 0.5, "decay_in_ascent": True}, naive.sam(0.5, decay=DECAY)),
    ],
)
def test_options_by_name_reach_the_method(name, options, rule):
    model = PROBLEM.fresh_model()
    assert_follows(Run(PROBLEM, model, build(name, BASES["sgd"][0](model.parameters()), **options)), PROBLEM, rule)


def test_the_short_form_is_sam():
    model = PROBLEM.fresh_model()
    opt = sam(BASES["sgd"][0](model.parameters()), rho=0.2, model=model)
    assert_follows(Run(PROBLEM, model, opt), PROBLEM, naive.sam(0.2))
