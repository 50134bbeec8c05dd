"""Closed forms through the engine: radii by group, tied weights, schedules of the radius, and the report."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import steppe

A = torch.tensor([3.0, 1.0, 0.5], dtype=torch.float64)
W = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64)


def bowl(w: Tensor) -> Tensor:
    """L(w) = w' diag(A) w / 2, whose gradient is A w."""
    return (A * w * w).sum() / 2


def closure_of(loss: Any, seen: list[Any] | None = None, *params: Tensor) -> Any:
    def closure(pass_: Any) -> Tensor:
        if seen is not None:
            seen.append([p.detach().clone() for p in params])
        value = loss()
        pass_.backward(value)
        return value

    return closure


def test_the_report_of_a_quadratic() -> None:
    w = nn.Parameter(W.clone())
    opt = steppe.sam(torch.optim.SGD([w], lr=0.1), rho=0.3, record=True)
    opt.step(closure_of(lambda: bowl(w)))
    g = A * W
    top = W + 0.3 * g / g.norm()
    expected = {
        "loss": bowl(W),
        "perturbed_loss": bowl(top),
        "displacement": 0.3,
        "grad_norm": g.norm(),
        "perturbed_grad_norm": (A * top).norm(),
        "cosine": torch.dot(g, A * top) / (g.norm() * (A * top).norm()),
        "lr": 0.1,
        "rho": 0.3,
    }
    assert opt.last.read() == pytest.approx({k: float(v) for k, v in expected.items()}, rel=1e-12)


def test_the_report_names_the_step_size_and_radius_that_were_used() -> None:
    w = nn.Parameter(W.clone())
    opt = steppe.build("sa-sam", torch.optim.SGD([w], lr=0.01), record=True)
    for _ in range(3):
        opt.step(closure_of(lambda: bowl(w)))
        report = opt.last.read()
        assert report["lr"] == opt.param_groups[0]["lr"]
        assert report["rho"] == pytest.approx(report["lr"] ** 0.5)
        assert report["displacement"] == pytest.approx(report["rho"])
    assert opt.param_groups[0]["lr"] > 0.01


def test_the_report_is_of_the_last_step_and_holds_every_pass() -> None:
    w = nn.Parameter(W.clone())
    opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), steppe.SAM(0.3, steps=3), record=True)
    for _ in range(2):
        before = bowl(w.detach())
        opt.step(closure_of(lambda: bowl(w)))
        assert torch.equal(opt.last.losses[0], before)
        assert len(opt.last.losses) == len(opt.last.displacements) == 4
    assert [float(d) for d in opt.last.displacements] == sorted(float(d) for d in opt.last.displacements)


@pytest.mark.parametrize("method", [steppe.SAM(0.3, steps=3), steppe.TraceSAM(rho=0.3, n=3)], ids=["steps", "draws"])
@pytest.mark.parametrize("alike", [False, True], ids=["alone", "stacked"])
def test_every_displacement_starts_at_the_weights(method: Any, alike: bool) -> None:
    """Passes that follow one another away from w do not add up, for lone tensors and for those stored together."""
    params = [nn.Parameter(W.clone()), nn.Parameter(2 * W if alike else 2 * W[:2])]
    opt = steppe.SharpnessAware(torch.optim.SGD(params, lr=0.0), method, record=True)
    seen: list[Any] = []
    opt.step(closure_of(lambda: sum(p.pow(4).sum() for p in params), seen, *params))
    home = torch.cat([p.detach() for p in params])
    realised = [float((torch.cat(place) - home).norm()) for place in seen]
    assert realised == pytest.approx([float(d) for d in opt.last.displacements], rel=1e-12)
    assert len(realised) == 4
    assert realised[-1] <= 0.3 + 1e-12


def test_recording_changes_nothing() -> None:
    ends = []
    for record in (False, True):
        w = nn.Parameter(W.clone())
        opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1, momentum=0.9), steppe.GSAM(0.3), record=record)
        for _ in range(3):
            opt.step(closure_of(lambda: bowl(w)))
        ends.append(w.detach().clone())
    assert torch.equal(*ends)


def test_without_recording_the_report_says_how_to_get_it() -> None:
    opt = steppe.sam(torch.optim.SGD([nn.Parameter(W.clone())], lr=0.1))
    with pytest.raises(RuntimeError, match="record=True"):
        _ = opt.last


def test_radii_by_group_make_one_ellipsoid() -> None:
    """d_g = rho_g^2 g_g / sqrt(sum rho_g^2 |g_g|^2): the steepest point of sum |d_g|^2 / rho_g^2 <= 1."""
    u, v = nn.Parameter(W.clone()), nn.Parameter(2 * W)
    base = torch.optim.SGD([{"params": [u], "rho": 0.1}, {"params": [v], "rho": 0.4}], lr=0.0)
    seen: list[Any] = []
    steppe.SharpnessAware(base, steppe.SAM(0.05)).step(closure_of(lambda: bowl(u) + bowl(v), seen, u, v))
    gu, gv = A * W, A * 2 * W
    scale = (0.01 * gu.square().sum() + 0.16 * gv.square().sum()).sqrt()
    torch.testing.assert_close(seen[1][0], W + 0.01 * gu / scale)
    torch.testing.assert_close(seen[1][1], 2 * W + 0.16 * gv / scale)


def test_a_group_of_radius_0_stays() -> None:
    u, v = nn.Parameter(W.clone()), nn.Parameter(2 * W)
    base = torch.optim.SGD([{"params": [u], "rho": 0.0}, {"params": [v]}], lr=0.0)
    seen: list[Any] = []
    steppe.SharpnessAware(base, steppe.SAM(0.4)).step(closure_of(lambda: bowl(u) + bowl(v), seen, u, v))
    assert torch.equal(seen[1][0], W)
    assert float((seen[1][1] - 2 * W).norm()) == pytest.approx(0.4)


def test_a_radius_changed_between_steps_is_used() -> None:
    w = nn.Parameter(W.clone())
    opt = steppe.sam(torch.optim.SGD([w], lr=0.0), rho=0.1, record=True)
    for rho in (0.1, 0.5, 0.0):
        opt.param_groups[0]["rho"] = rho
        opt.step(closure_of(lambda: bowl(w)))
        assert opt.last.read()["displacement"] == pytest.approx(rho)


@pytest.mark.parametrize("name", ["sam", "asam", "gsam", "frob-sam", "sa-sam"])
def test_a_tied_weight_is_one_weight(name: str) -> None:
    """Two modules that share a matrix train as one function of that matrix."""
    torch.manual_seed(0)
    x = torch.randn(6, 4, dtype=torch.float64)
    tied = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 4, bias=False)).double()
    tied[2].weight = tied[0].weight
    single = nn.Linear(4, 4, bias=False).double()
    single.load_state_dict({"weight": tied[0].weight.detach()})
    losses = {
        tied: lambda: tied(x).square().mean(),
        single: lambda: single(torch.tanh(single(x))).square().mean(),
    }
    for model, loss in losses.items():
        opt = steppe.build(name, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
        for _ in range(3):
            opt.step(closure_of(loss))
    torch.testing.assert_close(tied[0].weight, single.weight, rtol=1e-12, atol=1e-14)


def test_smoothness_is_not_measured_over_weights_that_joined_late() -> None:
    """A group added after the first step has no previous weights: SA-SGD's |w - w_prev| may not count it as moved."""
    w, late = nn.Parameter(W.clone()), nn.Parameter(100 * W)
    alone = nn.Parameter(W.clone())
    opt = steppe.build("sa-sgd", torch.optim.SGD([w], lr=0.01))
    plain = steppe.build("sa-sgd", torch.optim.SGD([alone], lr=0.01))
    opt.step(closure_of(lambda: bowl(w)))
    plain.step(closure_of(lambda: bowl(alone)))
    opt.add_param_group({"params": [late], "lr": opt.param_groups[0]["lr"]})
    opt.step(closure_of(lambda: bowl(w) + late.sum()))
    plain.step(closure_of(lambda: bowl(alone)))
    assert opt.param_groups[0]["lr"] == pytest.approx(plain.param_groups[0]["lr"], rel=1e-12)


def test_a_learning_rate_of_0_is_a_still_step() -> None:
    """A schedule may pass through 0: the smoothness rule then divides nothing by nothing."""
    w = nn.Parameter(W.clone())
    opt = steppe.build("sa-sam", torch.optim.SGD([w], lr=0.01))
    opt.step(closure_of(lambda: bowl(w)))
    before = w.detach().clone()
    opt.param_groups[0]["lr"] = 0.0
    opt.step(closure_of(lambda: bowl(w)))
    assert torch.equal(w.detach(), before)


def test_looksam_of_radius_0_is_its_base_whatever_the_gradient() -> None:
    """What SAM adds is then nothing; a rounding error of the projection, normalised, would be something."""
    for seed in range(20):
        start = torch.randn(5, generator=torch.Generator().manual_seed(seed))
        ours, alone = nn.Parameter(start.clone()), nn.Parameter(start.clone())
        opt = steppe.build("looksam", torch.optim.SGD([ours], lr=0.1), rho=0.0, k=3)
        plain = torch.optim.SGD([alone], lr=0.1)
        for _ in range(3):
            opt.step(closure_of(lambda: ours.pow(4).sum()))
            plain.zero_grad()
            alone.pow(4).sum().backward()
            plain.step()
        assert torch.equal(ours, alone), f"seed {seed}"


@pytest.mark.parametrize("method", [steppe.SAM(0.1), steppe.SASAM()], ids=["sam", "sa-sam"])
def test_a_learning_rate_in_a_tensor(method: Any) -> None:
    """As captured graphs want it: the same numbers, and the option stays a tensor."""
    ends = []
    for lr in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        w = nn.Parameter(W.clone())
        opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=lr), method)
        for _ in range(3):
            opt.step(closure_of(lambda: bowl(w)))
        assert isinstance(opt.param_groups[0]["lr"], type(lr))
        ends.append(w.detach().clone())
    torch.testing.assert_close(*ends, rtol=1e-12, atol=1e-14)
