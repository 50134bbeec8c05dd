"""Diagonal linear networks against dense Hessians, sparse regression; sharpness of scaled weights and small radii."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from steppe.measures import Curvature, Dense, Objective
from steppe.nn.mlp import DiagonalLinear
from steppe_papers.figures import diagonal_networks as diagonal
from steppe_papers.figures import small_radius
from steppe_papers.figures import weight_scaling as scaling
from steppe_papers.figures.registry import Settings

F64 = torch.float64
SCALES = {
    "standard": diagonal.unit_scales,
    "balanced": diagonal.balanced_scales,
    "adaptive": diagonal.magnitude_scales,
    "as printed": diagonal.printed_scales,
}


def drawn(seed: int, rows: int = 5, d: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x, u, v = (torch.randn(*shape, dtype=F64, generator=g) for shape in ((rows, d), (d,), (d,)))
    return x, torch.randn(rows, dtype=F64, generator=g), u, v


def white(seed: int, d: int = 4) -> Tensor:
    return torch.linalg.qr(drawn(seed, 7, d)[0]).Q


@pytest.mark.parametrize("seed", [0, 1])
def test_the_hessian_is_that_of_automatic_differentiation(seed: int) -> None:
    x, y, u, v = drawn(seed)

    def loss(w: Tensor) -> Tensor:
        return ((x @ (w[:4] * w[4:]) - y) ** 2).sum()

    w = torch.cat([u, v])
    assert float(diagonal.loss(x, y, u, v)) == pytest.approx(float(loss(w)))
    torch.testing.assert_close(diagonal.hessian(x, y, u, v), torch.autograd.functional.hessian(loss, w))
    torch.testing.assert_close(torch.cat(diagonal.gradients(x, y, u, v)), torch.func.grad(loss)(w))


def test_the_hessian_is_that_of_the_librarys_model_by_products() -> None:
    x, y, u, v = drawn(2)
    model = DiagonalLinear(4, 1, 0.1).double()
    with torch.no_grad():
        model.u.copy_(u[None])
        model.v.copy_(v[None])
    objective = Objective(model, lambda out, y: ((out[:, 0] - y) ** 2).sum(), (x, y))
    torch.testing.assert_close(Dense(Curvature(objective)).matrix, diagonal.hessian(x, y, u, v), rtol=1e-9, atol=1e-9)


def test_a_stack_of_networks_is_the_same_as_one_after_another() -> None:
    x, y, _, _ = drawn(3)
    u, v = torch.randn(2, 6, 4, dtype=F64, generator=torch.Generator().manual_seed(0))
    for name, scales in SCALES.items():
        stacked = diagonal.sharpness(x, y, u, v, scales(u, v))
        for i in range(6):
            alone = diagonal.sharpness(x, y, u[i], v[i], scales(u[i], v[i]))
            torch.testing.assert_close(stacked.trace[i], alone.trace, msg=name)
            torch.testing.assert_close(stacked.top[i], alone.top, msg=name)


@pytest.mark.parametrize("name", SCALES)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_closed_forms_on_whitened_data(name: str, seed: int) -> None:
    x, (_, _, u, v) = white(seed), drawn(seed)
    y = x @ (u * v)
    scales = SCALES[name](u, v)
    closed, dense = diagonal.whitened_sharpness(u, v, scales), diagonal.sharpness(x, y, u, v, scales)
    torch.testing.assert_close(closed.trace, dense.trace, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(closed.top, dense.top, rtol=1e-9, atol=1e-9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 1000), alpha=st.floats(0.1, 10))
def test_balanced_scales_see_the_norms_of_the_predictor_alone(seed: int, alpha: float) -> None:
    """4 ||beta||_1 and 4 ||beta||_inf: rho^2 / 2 of them are twice the printed norms."""
    _, _, u, v = drawn(seed)
    u, v = alpha * u, v / alpha
    beta = u * v
    found = diagonal.whitened_sharpness(u, v, diagonal.balanced_scales(u, v))
    torch.testing.assert_close(found.trace, 4 * beta.abs().sum())
    torch.testing.assert_close(found.top, 4 * beta.abs().max())
    adaptive = diagonal.whitened_sharpness(u, v, diagonal.magnitude_scales(u, v))
    torch.testing.assert_close(adaptive.trace, 4 * beta.square().sum())
    torch.testing.assert_close(adaptive.top, 4 * beta.square().max())


def test_the_scales_as_printed_are_not_invariant() -> None:
    _, _, u, v = drawn(1)
    here = diagonal.whitened_sharpness(u, v, diagonal.printed_scales(u, v))
    there = diagonal.whitened_sharpness(3 * u, v / 3, diagonal.printed_scales(3 * u, v / 3))
    assert float(there.trace) > 1.5 * float(here.trace)


def test_the_trace_needs_unit_columns_only() -> None:
    x, _, u, v = drawn(4, rows=3, d=6)  # fewer rows than columns: X'X is far from I
    x = x / x.norm(dim=0)
    y = x @ (u * v)
    found = diagonal.sharpness(x, y, u, v, diagonal.balanced_scales(u, v))
    torch.testing.assert_close(found.trace, 4 * (u * v).abs().sum())
    assert float(found.top) > 4.5 * float((u * v).abs().max()), "lambda_max is another matter"


# -- sparse regression ------------------------------------------------------------------------------------------------

SMALL = diagonal.Sizes(networks=12, dimension=40, rows=20, most=4000, target=1e-4)


def test_training_together_is_training_alone() -> None:
    """The stack against a plain loop over one network, in the order of rows that the stack draws."""
    sizes = diagonal.Sizes(networks=3, dimension=10, rows=6, batch=2, most=40, target=0.0, rates=(0.1, 0.5))
    g = torch.Generator().manual_seed(1)
    problem = diagonal.task(sizes, g)
    state = g.get_state()
    trained = diagonal.train(problem, sizes, g)
    g.set_state(state)
    low, high = torch.tensor(sizes.scales).log()
    scale = (low + (high - low) * torch.rand(3, 1, generator=g)).exp()
    torch.rand(3, 1, generator=g)
    u, v = (scale * torch.randn(3, 10, generator=g) for _ in range(2))
    order = [torch.randint(6, (2,), generator=g) for _ in range(40)]
    x, y = problem.x.float(), problem.y.float()
    for i in range(3):
        a, b = u[i].clone(), v[i].clone()
        for rows in order:
            w = torch.stack([a, b]).requires_grad_()
            loss = 3 * ((x[rows] @ (w[0] * w[1]) - y[rows]) ** 2).sum()
            a, b = w.detach() - trained.rate[i] * torch.autograd.grad(loss, w)[0]
        torch.testing.assert_close(trained.u[i].float(), a, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(trained.v[i].float(), b, rtol=1e-3, atol=1e-5)


def test_trained_networks_fit_and_differ() -> None:
    g = torch.Generator().manual_seed(0)
    problem = diagonal.task(SMALL, g)
    assert int((problem.truth != 0).sum()) == 4
    assert float(problem.truth.norm()) == pytest.approx(1)
    trained = diagonal.train(problem, SMALL, g)
    assert int(trained.reached.sum()) >= 10
    fitted = ((problem.x @ (trained.u * trained.v).T).T - problem.y).square().sum(1)
    assert float(fitted[trained.reached].max()) < 1.1 * SMALL.target
    values = diagonal.quantities(problem, trained)
    torch.testing.assert_close(values["tr, adaptive"] / 4, values["||β||₁"], rtol=0.5, atol=0)


def test_the_test_loss_is_that_of_new_rows() -> None:
    g = torch.Generator().manual_seed(0)
    problem = diagonal.task(SMALL, g)
    beta = problem.truth + 0.1
    rows = torch.randn(100_000, 40, dtype=F64, generator=g)
    sampled = (rows @ (beta - problem.truth)).square().mean()
    assert float(problem.test_loss(beta)) == pytest.approx(float(sampled), rel=0.02)


def test_correlations_are_kendalls() -> None:
    values = {"a": torch.tensor([1.0, 2, 3, 4]), "b": torch.tensor([1.0, 3, 2, 4]), "c": -torch.tensor([1.0, 2, 3, 4])}
    tau = diagonal.correlations(values)
    assert tau["a"]["b"] == pytest.approx(4 / 6)
    assert tau["a"]["c"] == pytest.approx(-1)


def test_sparse_regression_as_a_study() -> None:
    """Smaller than Figure 7 and with its first finding: ||beta||_1 ranks test losses, and the adaptive trace is it."""
    sizes = {"networks": 30, "dimension": 60, "rows": 30, "most": 6000, "target": 1e-3}
    result = diagonal.sparse_regression(Settings(sizes=sizes))
    tau = result.data["tau"]
    assert tau["test loss"]["||β||₁"] > 0.5
    assert tau["||β||₁"]["tr, adaptive"] > 0.85
    assert len(result.figure["data"]) == 4
    assert len(result.words) == 4


# -- scaled weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rho", "normalised"), [(0.3, False), (0.3, True), (1.1, False), (1.1, True)])
def test_sharpness_of_a_linear_classifier_is_that_of_the_worst_corner(rho: float, normalised: bool) -> None:
    """The loss is convex in the logits, so the worst point of a box is a corner: all of them are tried, row by row."""
    sizes = scaling.Sizes(rows=12, dimension=3, spread=0.6)
    x, y = scaling.two_clusters(sizes, torch.Generator().manual_seed(0))
    w = 0.7 * scaling.trained_weights(x, y, 20, 1.0)
    model, classes = scaling.classifier(w), (y > 0).long()

    def losses(weight: Tensor) -> Tensor:
        logits = x @ weight.T
        logits = logits / logits.std(1, correction=0, keepdim=True) if normalised else logits
        return torch.nn.functional.cross_entropy(logits, classes, reduction="none")

    weight = model.weight.detach()
    corners = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 6).reshape(-1, 2, 3)
    worst = torch.stack([losses(weight * (1 + rho * corner)) for corner in corners]).amax(0)
    form = scaling.normalised_sharpness if normalised else scaling.sharpness
    assert float(form(x, y, w, rho)) == pytest.approx(float((worst - losses(weight)).mean()), abs=1e-12)


def test_weight_scaling_as_a_study() -> None:
    result = scaling.weight_scaling(Settings(sizes={"scales": 7, "measured": 2, "radii": [0.5]}))
    plain, normalised = (curve["exact"] for curve in result.data["sharpness"].values())
    assert max(plain) > 0.1 > 1e-6 > plain[-1]  # it rises, and tends to zero
    assert len(set(normalised)) == 1
    for curve in result.data["sharpness"].values():
        assert curve["measured"] == pytest.approx([curve["exact"][0], curve["exact"][-1]], abs=1e-9)


# -- small radii ------------------------------------------------------------------------------------------------------


def test_sharpness_tends_to_its_limits_as_a_study() -> None:
    result = small_radius.asymptotics(Settings(sizes={"rows": 40, "steps": 20, "radii": 2, "draws": 30, "width": 4}))
    ratios = result.data["ratios"]
    for name, values in {**ratios["slope"], **ratios["minimum"]}.items():
        assert 0.97 < values[0] < 1.01, name  # a search finds a lower bound
    for name, values in ratios["average"].items():
        assert values[0] == pytest.approx(1, abs=0.25), name
    assert max(abs(v[1] - 1) for where in ratios.values() for v in where.values()) > 0.2, "at radius 1 they are not"


def test_a_model_that_agrees_with_itself_is_at_a_minimum() -> None:
    x, _ = small_radius.images(40)
    objective = small_radius.at_minimum(small_radius.network(5, 0), x)
    assert float(objective.gradient()[1].norm()) < 1e-12
