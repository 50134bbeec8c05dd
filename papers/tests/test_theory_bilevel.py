"""The naive bilevel method beside Agnostic-SAM: its step against formulas, and its experiment."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import steppe
from steppe_papers.figures import bilevel
from steppe_papers.figures.registry import Settings

F64 = torch.float64
ROWS = torch.tensor([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0], [-2.0, 1.0], [0.0, 4.0], [1.5, 1.5]], dtype=F64)
CURVATURE = torch.tensor([1.0, 3.0], dtype=F64)


def gradient(method: bilevel.BilevelSAM, at: list[float]) -> torch.Tensor:
    """The gradient that the method leaves for mean over rows of (w - x)' C (w - x) / 2."""
    w = torch.nn.Parameter(torch.tensor(at, dtype=F64))
    opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), method)
    for pass_ in opt.passes():
        pass_.backward(((w - pass_.rows(ROWS)).square() @ CURVATURE).mean() / 2)
    assert opt.passes_run == 4
    assert w.tolist() == at
    assert w.grad is not None
    found = w.grad.clone()
    opt.step()
    return found


@pytest.mark.parametrize(("rho", "held_out_rho", "inner_lr", "share"), [(0.1, 0.05, 0.1, 0.7), (0.4, 0.9, 0.3, 0.5)])
def test_a_step_by_hand(rho: float, held_out_rho: float, inner_lr: float, share: float) -> None:
    w, c = np.array([0.3, -0.7]), CURVATURE.numpy()
    cut = round(share * len(ROWS))
    train, held = ROWS[:cut].numpy().mean(0), ROWS[cut:].numpy().mean(0)

    def unit(v: np.ndarray) -> np.ndarray:
        return v / np.linalg.norm(v)

    ahead = w - inner_lr * c * (w + rho * unit(c * (w - train)) - train)
    expected = c * (ahead + held_out_rho * unit(c * (ahead - held)) - held)
    found = gradient(bilevel.BilevelSAM(rho, held_out_rho, inner_lr, share), [0.3, -0.7])
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_without_a_step_it_is_sam_on_the_held_out_rows() -> None:
    w = torch.nn.Parameter(torch.tensor([0.3, -0.7], dtype=F64))
    opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), steppe.SAM(0.2))
    for pass_ in opt.passes():
        pass_.backward(((w - ROWS[4:]).square() @ CURVATURE).mean() / 2)
    found = gradient(bilevel.BilevelSAM(0.5, 0.2, inner_lr=0.0), [0.3, -0.7])
    torch.testing.assert_close(found, w.grad, rtol=1e-12, atol=0)
    opt.step()


def test_it_is_the_first_order_form_of_the_outer_derivative() -> None:
    """The derivative of L_v(w - lr g_t(w)) by w is (1 - lr C) times the method's gradient, for radii of 0."""
    lr, w = 0.2, torch.tensor([0.3, -0.7], dtype=F64, requires_grad=True)
    ahead = w - lr * CURVATURE * (w - ROWS[:4].mean(0))
    (exact,) = torch.autograd.grad(((ahead - ROWS[4:]).square() @ CURVATURE).mean() / 2, w)
    found = gradient(bilevel.BilevelSAM(0.0, 0.0, lr), [0.3, -0.7])
    torch.testing.assert_close((1 - lr * CURVATURE) * found, exact, rtol=1e-12, atol=0)


def test_wrong_labels_are_wrong_and_as_many_as_asked() -> None:
    x, y, test_x, test_y = bilevel.digits(0.4, seed=0)
    clean = bilevel.digits(0.0, seed=0)[1]
    assert abs(float((y != clean).double().mean()) - 0.4) < 0.05
    assert torch.equal(bilevel.digits(0.0, seed=1)[1], clean)
    assert len(x) + len(test_x) == 1797
    assert set(y.tolist()) == set(test_y.tolist()) == set(range(10))


def test_an_interval_is_students() -> None:
    mean, low, high = bilevel.interval([1.0, 2.0, 3.0])
    assert (mean, high - mean) == pytest.approx((2.0, 4.302653 / 3**0.5), rel=1e-6)
    assert low == pytest.approx(4 - high)


def test_every_method_has_as_many_trials() -> None:
    assert len({len(trials) for trials in bilevel.TRIALS.values()}) == 1
    for trials in bilevel.TRIALS.values():
        assert len({str(bilevel.options(*trial)) for trial in trials}) == len(trials)


def test_bilevel_as_a_study(monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: trials[:1] for name, trials in bilevel.TRIALS.items()}
    monkeypatch.setattr(bilevel, "TRIALS", few)
    result = bilevel.bilevel(Settings(quick=True))
    assert [len(row["errors"]) for row in result.data["rows"]] == [2] * 4
    assert len(result.words) == 5
    for row in result.data["rows"]:
        agnostic = next(r for r in result.data["rows"] if r["method"] == "Agnostic-SAM")
        if row is not agnostic:
            assert row["difference"][0] == pytest.approx(np.mean(row["errors"]) - np.mean(agnostic["errors"]))
