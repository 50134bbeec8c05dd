"""SA-SAM and SA-SGD against Algorithm 1 of the SA-SAM paper, and on quadratics against the curvature itself."""

from math import inf, sqrt

import pytest
import torch
from oracles.flat import SGD, Landscape, trajectory
from oracles.follow import BASES, Run, assert_follows, assert_same_path
from oracles.sa_sam import SmoothnessAdaptive
from problems import bowl_problem, mlp_problem, random_hessian, random_vector
from torch import nn

from steppe import SASAM, SASGD, SharpnessAware, build

PROBLEM = mlp_problem(steps=8)
RELEASED = {"damping": 1.0, "epsilon": 1e-8, "lagging_radius": True}


def run(problem, method, base="sgd", **options):
    model = problem.fresh_model()
    optimizer = BASES[base][0](model.parameters())
    optimizer.param_groups[0].update(options)
    return Run(problem, model, SharpnessAware(optimizer, method, model=model))


def sizes(followed):
    return [options["lr"] for options in followed.options]


@pytest.mark.parametrize(
    "options",
    [{}, {"delta": 0.5}, {"damping": 1.0}, {"epsilon": 1e-3}, {"lagging_radius": True}, RELEASED],
    ids=lambda o: ",".join(o) or "paper",
)
def test_sa_sam(options):
    rule = SmoothnessAdaptive(**options)
    followed = run(PROBLEM, SASAM(**options))
    assert_follows(followed, PROBLEM, rule)
    assert set(rule.branches) == {1, 2}, "both branches of the step size have to be seen"
    assert sizes(followed) == pytest.approx(rule.sizes, rel=1e-9)


@pytest.mark.parametrize("method", [SASAM, SASGD])
def test_with_adamw_as_base(method):
    """Steps of size 1 / 2L suit gradients, not Adam's directions, so four steps are as far as this stays tame."""
    problem = mlp_problem(steps=4)
    assert_follows(run(problem, method(), "adamw"), problem, SmoothnessAdaptive(ascent=method is SASAM), "adamw")


@pytest.mark.parametrize("options", [{}, {"damping": 1.0, "epsilon": 1e-8}], ids=["paper", "released"])
def test_sa_sgd(options):
    rule = SmoothnessAdaptive(ascent=False, **options)
    followed = run(PROBLEM, SASGD(**options))
    assert_follows(followed, PROBLEM, rule)
    assert set(rule.branches) == {1, 2}
    assert sizes(followed) == pytest.approx(rule.sizes, rel=1e-9)


def test_the_papers_choices_are_the_defaults():
    model = PROBLEM.fresh_model()
    followed = Run(PROBLEM, model, build("sa-sam", BASES["sgd"][0](model.parameters())))
    assert_follows(followed, PROBLEM, SmoothnessAdaptive(delta=0.02, damping=2.0, epsilon=0.0, lagging_radius=False))


def test_gradient_evaluations_a_step():
    """Three for SA-SAM and two for SA-SGD, from the second step on: the previous weights on the current batch."""
    assert [len(places) for places in run(PROBLEM, SASAM()).visited] == [2] + [3] * 7
    followed = run(PROBLEM, SASGD())
    assert [len(places) for places in followed.visited] == [1] + [2] * 7
    for t in range(1, 8):
        before = PROBLEM.start if t == 1 else followed.weights[t - 2]
        torch.testing.assert_close(followed.visited[t][1], before - followed.weights[t - 1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("lagging", [False, True])
def test_the_radius_is_the_root_of_the_step_size(lagging):
    followed = run(PROBLEM, SASAM(lagging_radius=lagging))
    used = [0.1, *sizes(followed)[:-1]] if lagging else sizes(followed)
    for size, places in zip(used, followed.visited, strict=True):
        assert places[-1].norm().item() == pytest.approx(sqrt(size), rel=1e-9)


@pytest.mark.parametrize("method", [SASAM, SASGD])
def test_the_second_step_takes_the_first_branch_however_large(method):
    """theta_0 is infinite, so the step size may jump: here from 1e-6 to half the inverse curvature."""
    problem = bowl_problem(3.0 * torch.eye(4, dtype=torch.float64), random_vector(4), steps=2)
    followed = run(problem, method(), lr=1e-6, momentum=0.0, weight_decay=0.0)
    assert sizes(followed)[0] == 1e-6
    assert sizes(followed)[1] == pytest.approx(1 / (2 * 3.0), rel=1e-7)
    assert followed.options[0]["theta"] == inf


def test_on_a_bowl_the_first_branch_is_half_the_inverse_curvature_along_the_step():
    hessian = random_hessian(5)
    problem = bowl_problem(hessian, random_vector(5), steps=2)
    followed = run(problem, SASGD(), lr=0.01, momentum=0.0, weight_decay=0.0)
    along = hessian @ problem.start
    curvature = (hessian @ along).norm() / along.norm()
    assert sizes(followed)[1] == pytest.approx(1 / (2 * curvature.item()), rel=1e-9)


@pytest.mark.parametrize("method", [SASAM, SASGD])
def test_equal_gradients_take_the_second_branch(method):
    """On a plane both gradients are the same, and 0 / 0 or 1 / 0 would spoil the step size."""
    hessian, start = random_hessian(5), random_vector(5)
    problem = bowl_problem(hessian, start, steps=5, curved=lambda t: t < 2)
    rule = SmoothnessAdaptive(ascent=method is SASAM)
    followed = run(problem, method())
    assert_same_path(followed.weights, trajectory(problem, rule, BASES["sgd"][1]()))
    assert rule.branches[1:] == [2, 2, 2]
    lr = [0.1, *sizes(followed)]
    for t in (2, 3, 4):
        theta = lr[t] / lr[t - 1]
        assert lr[t + 1] == pytest.approx(sqrt(1 + 0.02 * theta) * lr[t], rel=1e-12)


@pytest.mark.parametrize("method", [SASAM, SASGD])
def test_without_slope_or_history_the_step_size_stays(method):
    """A plane from the start: at the second step both branches are infinite, later the second one is not."""
    problem = bowl_problem(random_hessian(4), random_vector(4), steps=4, curved=lambda t: False)
    followed = run(problem, method())
    assert sizes(followed)[:2] == [0.1, 0.1]
    assert sizes(followed)[2] == pytest.approx(sqrt(1.02) * 0.1, rel=1e-12)
    assert sizes(followed)[3] == pytest.approx(sqrt(1 + 0.02 * sqrt(1.02)) * sizes(followed)[2], rel=1e-12)


@pytest.mark.parametrize("method", [SASAM, SASGD])
def test_weights_that_do_not_move_are_harmless(method):
    """At the bottom of a bowl the step is 0 / 0."""
    problem = bowl_problem(random_hessian(4), torch.zeros(4, dtype=torch.float64), steps=3)
    followed = run(problem, method())
    assert followed.weights.abs().max() == 0
    assert sizes(followed) == pytest.approx([0.1, 0.1, 0.1 * sqrt(1.02)], rel=1e-12)


@pytest.mark.parametrize("method", [SASAM, SASGD])
@pytest.mark.parametrize("start", [1.0, 1e-25])
def test_a_move_too_small_to_be_measured_does_not_end_the_run(method, start):
    """The weights stand still in their precision while the gradients differ, or |dw|^2 is below the smallest float."""
    w = torch.nn.Parameter(torch.full((2,), start))
    opt = SharpnessAware(torch.optim.SGD([w], lr=1e-30), method())
    calls = 0

    def closure():
        nonlocal calls
        calls += 1
        opt.zero_grad()
        loss = 5e24 * w.square().sum() if start < 1 else (1 + 1e-3 * calls) * w.sum()  # noise between the two passes
        loss.backward()
        return loss

    sizes = []
    for _ in range(4):
        opt.step(closure)
        sizes.append(opt.param_groups[0]["lr"])
    assert sizes[:2] == pytest.approx([1e-30, 1e-30])  # nothing was learnt of the slope
    assert sizes[2] == pytest.approx(sqrt(1.02) * 1e-30)
    assert all(size > 0 for size in sizes)


class PartlyFrozen(Landscape):
    """A landscape whose gradient vanishes on frozen weights."""

    def __init__(self, land, trained):
        super().__init__(land.model, land.losses, land.x, land.y)
        self.trained = trained

    def grad(self, w):
        return super().grad(w) * self.trained


@pytest.mark.parametrize("method", [SASAM, SASGD])
def test_weights_that_are_unfrozen_later_have_not_moved_before(method):
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), method(delta=50.0), model=model)
    late = torch.cat([torch.full((p.numel(),), p is model[0].weight) for p in model.parameters()])

    def thaw(t):
        model[0].weight.requires_grad_(t >= 3)
        return {}

    adaptive = SmoothnessAdaptive(ascent=method is SASAM, delta=50.0)  # lets the first branch decide

    def rule(land, w, base, t):
        return adaptive(PartlyFrozen(land, torch.ones_like(w) if t >= 3 else (~late).double()), w, base, t)

    followed = Run(PROBLEM, model, opt, thaw)
    assert_same_path(followed.weights, trajectory(PROBLEM, rule, SGD(lr=0.1, momentum=0.9)))
    assert adaptive.branches[2] == 1


@pytest.mark.parametrize("method", [SASAM, SASGD])
def test_groups_with_step_sizes_of_their_own_are_refused(method):
    model = PROBLEM.fresh_model()
    a, *b = model.parameters()
    base = torch.optim.SGD([{"params": [a], "lr": 0.1}, {"params": b, "lr": 0.2}])
    with pytest.raises(ValueError, match="one size for all weights"):
        Run(PROBLEM, model, SharpnessAware(base, method(), model=model))


def test_bf16_rounds_away_what_the_step_size_is_made_of():
    """Why `steppe train` refuses it: in 20 layers the step size falls by orders of magnitude, and goes on falling."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(20, 64, 20, generator=generator), torch.randint(0, 5, (20, 64), generator=generator)

    def step_size(precision):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.LazyLinear(32), nn.LazyBatchNorm1d(), nn.ReLU()) for _ in range(20)]
        model = nn.Sequential(*layers, nn.LazyLinear(5))
        model(x[0])
        opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=1e-3), SASGD(), model=model)
        for rows, targets in zip(x, y, strict=True):
            for pass_ in opt.passes():
                with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
                    loss = nn.functional.cross_entropy(model(rows), targets)
                pass_.backward(loss)
            opt.step()
        return float(opt.param_groups[0]["lr"])

    assert 0 < step_size("bf16") < step_size("float32") / 100
