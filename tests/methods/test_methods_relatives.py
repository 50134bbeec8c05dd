"""GSAM, LookSAM, R-SAM, ESAM and momentum-SAM against their papers' formulas."""

import pytest
import torch
from oracles import relatives as naive
from oracles import sam as naive_sam
from oracles.flat import trajectory
from oracles.follow import BASES, Run, assert_follows
from oracles.inputs import Chance
from problems import conv_problem, mlp_problem

from steppe import ESAM, GSAM, RSAM, LookSAM, MomentumSAM, RadiusFollowsLR, SharpnessAware, build

PROBLEM = mlp_problem(steps=7)
CONV = conv_problem()


def start(method, base="sgd", problem=PROBLEM):
    model = problem.fresh_model()
    return model, SharpnessAware(BASES[base][0](model.parameters()), method, model=model, seed=5)


def run(method, base="sgd", problem=PROBLEM):
    return Run(problem, *start(method, base, problem))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("alpha", [0.4, 1.5])
def test_gsam(alpha, base):
    assert_follows(run(GSAM(0.3, alpha), base), PROBLEM, naive.gsam(0.3, alpha), base)


def test_gsam_without_its_correction_is_sam():
    assert_follows(run(GSAM(0.3, 0.0)), PROBLEM, naive_sam.sam(0.3))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("k", [1, 2, 3])
def test_looksam_projects_over_the_whole_vector(k, base):
    followed = run(LookSAM(0.3, k, 0.7), base)
    assert_follows(followed, PROBLEM, naive.Look(0.3, k, 0.7), base)
    assert [len(places) for places in followed.visited] == [1 if t % k else 2 for t in range(7)], "one pass in between"


@pytest.mark.parametrize("problem", [PROBLEM, CONV], ids=["mlp", "conv"])
@pytest.mark.parametrize(("sigma", "smoothing"), [(0.05, 1.0), (0.5, 0.2)])
def test_r_sam(sigma, smoothing, problem):
    model, opt = start(RSAM(0.3, sigma, smoothing), problem=problem)
    rule = naive.r_sam(0.3, sigma, smoothing, problem.model, Chance(opt, model).normal)
    followed = Run(problem, model, opt)
    assert_follows(followed, problem, rule)
    assert [d[-1].norm().item() for d in followed.visited] == pytest.approx([0.3] * len(problem.batches), rel=1e-9)


def test_r_sam_without_noise_is_sam():
    assert_follows(run(RSAM(0.3, sigma=0.0)), PROBLEM, naive_sam.sam(0.3))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("beta", "gamma"), [(0.6, 0.5), (0.6, 1.0), (1.0, 0.25), (0.4, 0.3)])
def test_esam(beta, gamma, base):
    model, opt = start(ESAM(0.2, beta, gamma), base)
    moved = [sum(c < beta for c in Chance(opt, model).tensor_chances(t)) for t in range(7)]
    assert min(moved) > 0, "where nothing moves no loss rises, and any rows will do"
    rule = naive.esam(0.2, beta, gamma, PROBLEM.model, Chance(opt, model).tensor_chances)
    followed = Run(PROBLEM, model, opt)
    assert_follows(followed, PROBLEM, rule, base)
    chosen = {0.25: 3, 0.3: 4, 0.5: 6}  # of twelve rows
    assert followed.rows == [[12, 12] if gamma == 1 else [12, 12, chosen[gamma]]] * 7


def test_esam_with_everything_kept_is_sam():
    assert_follows(run(ESAM(0.3, beta=1.0, gamma=1.0)), PROBLEM, naive_sam.sam(0.3))


def test_esam_moves_about_the_share_beta_of_the_tensors():
    """And on the mean over masks, as far as SAM does."""
    problem = mlp_problem(steps=1)
    model, opt = start(ESAM(0.2, 0.6, 1.0), problem=problem)
    chance = Chance(opt, model)
    moved = torch.tensor([[c < 0.6 for c in chance.tensor_chances(t)] for t in range(400)]).double()
    error = (0.6 * 0.4 / moved.numel()) ** 0.5
    assert abs(moved.mean().item() - 0.6) < 4 * error
    d = Run(problem, model, opt).visited[0][1]
    full = run(ESAM(0.2, 1.0, 1.0), problem=problem).visited[0][1]
    torch.testing.assert_close(d[d != 0], full[d != 0] / 0.6, rtol=1e-12, atol=0)


def test_esam_without_a_loss_a_row_says_what_it_needs():
    model, opt = start(ESAM())
    x, y = PROBLEM.batches[0]

    def closure(pass_):
        a, b = pass_.rows(x, y)
        loss = PROBLEM.losses(model(a), b).mean()
        pass_.backward(loss)
        return loss

    with pytest.raises(RuntimeError, match="reduction='none'"):
        opt.step(closure)


@pytest.mark.parametrize("base", BASES)
def test_momentum_sam_looks_where_the_last_step_was_heading(base):
    """SGD's momentum buffer, and Adam's running mean of gradients."""
    followed = run(MomentumSAM(0.3), base)
    assert_follows(followed, PROBLEM, naive.momentum_sam(0.3), base)
    assert [len(places) for places in followed.visited] == [1] * 7
    assert [places[0].norm().item() for places in followed.visited] == pytest.approx([0.0] + [0.3] * 6, rel=1e-12)
    if base == "sgd":  # without Adam's scaling the last step itself shows the direction
        last_step = followed.weights[2] - followed.weights[1]
        torch.testing.assert_close(followed.visited[3][0], 0.3 * last_step / last_step.norm(), rtol=1e-9, atol=1e-12)


def test_momentum_sam_needs_a_momentum():
    model = PROBLEM.fresh_model()
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="momentum"):
        Run(PROBLEM, model, SharpnessAware(base, MomentumSAM(), model=model))


@pytest.mark.parametrize(
    ("name", "options", "rule"),
    [
        ("gsam", {}, naive.gsam(0.05, 0.4)),
        ("gsam", {"rho": 0.2, "alpha": 0.1}, naive.gsam(0.2, 0.1)),
        ("looksam", {}, naive.Look(0.05, 5, 0.7)),
        ("looksam", {"k": 2, "alpha": 0.3}, naive.Look(0.05, 2, 0.3)),
        ("msam", {}, naive.momentum_sam(0.3)),
    ],
)
def test_names_build_the_methods_tested_here(name, options, rule):
    model = PROBLEM.fresh_model()
    opt = build(name, BASES["sgd"][0](model.parameters()), model=model, **options)
    assert_follows(Run(PROBLEM, model, opt), PROBLEM, rule)


def test_the_radius_follows_the_learning_rate_and_is_never_negative():
    """A warm-up from 0 to lr_max starts below lr_min, where a straight line would give a negative radius."""
    _, opt = start(GSAM())
    schedule = RadiusFollowsLR(opt, rho_max=0.4, rho_min=0.1, lr_max=1.0, lr_min=0.5)
    expected = {0.0: 0.1, 0.2: 0.1, 0.5: 0.1, 0.6: 0.16, 0.75: 0.25, 1.0: 0.4, 1.5: 0.4}
    for lr, rho in expected.items():
        opt.param_groups[0]["lr"] = lr
        schedule.step()
        assert opt.param_groups[0]["rho"] == pytest.approx(rho, rel=1e-12)


def test_the_scheduled_radius_is_the_one_that_is_used():
    model, opt = start(GSAM(9.0, 0.4))
    RadiusFollowsLR(opt, rho_max=0.4, rho_min=0.0, lr_max=0.2)
    followed = Run(PROBLEM, model, opt)
    torch.testing.assert_close(
        followed.weights, trajectory(PROBLEM, naive.gsam(0.2, 0.4), BASES["sgd"][1]()), rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize(
    "wrong", [{"rho_min": -0.1}, {"rho_min": 0.5}, {"lr_min": 1.0}, {"lr_min": 2.0}, {"lr_min": -1.0}], ids=str
)
def test_a_schedule_that_could_turn_negative_is_refused(wrong):
    _, opt = start(GSAM())
    with pytest.raises(ValueError, match="needs 0 <= rho_min <= rho_max"):
        RadiusFollowsLR(opt, **{"rho_max": 0.4, "rho_min": 0.0, "lr_max": 1.0, "lr_min": 0.0, **wrong})
