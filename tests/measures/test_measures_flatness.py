"""Relative flatness against its definition on dense Hessians, and what it does not see."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import sqrt

import pytest
import torch
from oracles import curvature
from problems import flat_parts, flat_weights
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from steppe import Objective
from steppe.measures import PerBatch, RelativeFlatness
from steppe.measures.estimate import with_cost

F64 = torch.float64
Batches = list[tuple[Tensor, Tensor]]


def multilayer() -> tuple[nn.Sequential, Batches]:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3)).double()
        return model, [(torch.randn(n, 3, dtype=F64), torch.randint(0, 3, (n,))) for n in (9, 6)]


def convolutions() -> tuple[nn.Sequential, Batches]:
    with torch.random.fork_rng():
        torch.manual_seed(2)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 2), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3)
        ).double()
        return model, [(torch.randn(n, 1, 4, 4, dtype=F64), torch.randint(0, 3, (n,))) for n in (5, 3)]


MODELS: dict[str, Callable[[], tuple[nn.Sequential, Batches]]] = {"linear": multilayer, "conv": convolutions}
LAYERS = [
    ("linear", "0.weight"),
    ("linear", "2.weight"),
    ("linear", "4.weight"),
    ("conv", "0.weight"),
    ("conv", "2.weight"),
    ("conv", "5.weight"),
]


def by_definition(model: nn.Module, batches: Batches, layer: str) -> float:
    """sum over rows s and s' of <w_s, w_s'> tr(H_ss'), one pair after the other."""
    hessian = curvature.hessian(curvature.mean_loss(model, cross_entropy, batches), flat_weights(model))
    part = flat_parts(model)[layer]
    block, w = hessian[part, part], model.get_parameter(layer).detach().flatten(1)
    width = w.shape[1]
    total = 0.0
    for s in range(len(w)):
        for t in range(len(w)):
            cross = block[s * width : (s + 1) * width, t * width : (t + 1) * width]
            total += float(w[s] @ w[t]) * float(cross.trace())
    return total


@pytest.mark.parametrize(("kind", "layer"), LAYERS)
def test_the_mean_over_draws_is_the_definition(kind: str, layer: str) -> None:
    model, batches = MODELS[kind]()
    found = RelativeFlatness(layer, n=150, rtol=0.0).estimate(Objective(model, cross_entropy, batches))
    expected = by_definition(model, batches, layer)
    assert abs(found.value - expected) <= 6 * found.stderr, "of draws whose distribution has long tails"
    assert found.stderr < 0.2 * abs(expected), "the error bar can tell"
    assert (found.kind, found.n, found.note) == ("unbiased", 150, f"of {layer}")
    assert RelativeFlatness(layer, n=20).estimate(Objective(model, cross_entropy, batches)).kind == "plug-in"


@pytest.mark.slow
def test_intervals_cover_and_the_mean_over_seeds_is_the_definition() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model, data = nn.Linear(4, 3).double(), (torch.randn(9, 4, dtype=F64), torch.randint(0, 3, (9,)))
    objective, seeds = Objective(model, cross_entropy, data), 200
    expected = by_definition(model, [data], "weight")
    found = [RelativeFlatness(n=20, rtol=0.0).estimate(objective, seed) for seed in range(seeds)]
    values = torch.tensor([e.value for e in found], dtype=F64)
    assert abs(float(values.mean()) - expected) <= 4 * float(values.std()) / sqrt(seeds) < 0.3 * expected
    covered = sum(low <= expected <= high for low, high in (e.interval() for e in found)) / seeds
    assert 0.88 <= covered <= 0.99


def test_of_least_squares_it_is_the_ridge_penalty() -> None:
    """One output: ||w||^2 tr(2 X'X / n), which is what Petzka et al. show of ordinary least squares."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model, x = nn.Linear(5, 1, bias=False).double(), torch.randn(20, 5, dtype=F64)
        y = torch.randn(20, 1, dtype=F64)
    expected = float((model.weight.detach() ** 2).sum() * 2 * (x**2).sum() / 20)
    found = RelativeFlatness(n=300, rtol=0.0).estimate(Objective(model, mse_loss, (x, y)))
    assert abs(found.value - expected) <= 4 * found.stderr < 0.5 * expected


# -- scales that a ReLU network does not see --------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "layer"), LAYERS)
def test_rescaled_layers_have_the_same_flatness(kind: str, layer: str) -> None:
    """Draw for draw: a times the first layer, the second over a, and so on, make the same function."""
    model, batches = MODELS[kind]()
    other = deepcopy(model)
    layers = [m for m in other if hasattr(m, "weight")]
    with torch.no_grad():
        for first, second, a in zip(layers[:-1], layers[1:], (3.0, 0.2), strict=True):
            first.weight.mul_(a), first.bias.mul_(a), second.weight.div_(a)
    torch.testing.assert_close(model(batches[0][0]), other(batches[0][0]))
    one, two = (RelativeFlatness(layer, n=10).estimate(Objective(m, cross_entropy, batches)) for m in (model, other))
    assert two.value == pytest.approx(one.value, rel=1e-9)
    assert two.stderr == pytest.approx(one.stderr, rel=1e-6)


# -- which layer, which data, how long --------------------------------------------------------------------------------


def test_by_default_it_is_the_last_matrix() -> None:
    model, batches = multilayer()
    objective = Objective(model, cross_entropy, batches)
    found = RelativeFlatness(n=10).estimate(objective)
    assert found == RelativeFlatness("4.weight", n=10).estimate(objective)
    assert found.note == "of 4.weight"
    model[4].requires_grad_(False)
    assert RelativeFlatness(n=10).estimate(Objective(model, cross_entropy, batches)).note == "of 2.weight"
    part = Objective(model, cross_entropy, batches, only=["0.*"])
    assert RelativeFlatness(n=10).estimate(part).note == "of 0.weight"


def test_other_parameters_that_may_move_change_nothing() -> None:
    model, batches = multilayer()
    one, other = (Objective(model, cross_entropy, batches, only=only) for only in (None, ["2.weight"]))
    measure = RelativeFlatness("2.weight", n=10)
    assert measure.estimate(one).value == measure.estimate(other).value


def test_unequal_batches_are_one_data_set() -> None:
    model, batches = multilayer()
    together = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    apart, whole = (RelativeFlatness(n=10).estimate(Objective(model, cross_entropy, d)) for d in (batches, together))
    assert apart.value == pytest.approx(whole.value, rel=1e-9)


def test_it_stops_when_the_error_is_small_enough() -> None:
    model, batches = multilayer()
    objective = Objective(model, cross_entropy, batches)
    running = list(with_cost(RelativeFlatness(n=400, rtol=0.3).running(objective), objective))
    assert [e.n for e in running] == list(range(5, running[-1].n + 1, 5))
    assert 10 <= running[-1].n < 400
    assert running[-1].stderr <= 0.3 * abs(running[-1].value)
    assert all(e.n < 10 or e.stderr > 0.3 * abs(e.value) for e in running[:-1])
    assert running[-1].cost.products == running[-1].n
    assert running[-1].cost.gradients == 1
    seven = RelativeFlatness(n=7).estimate(objective)
    assert (seven.n, seven.cost.products) == (7, 7)


def test_it_does_not_trust_the_first_few_draws() -> None:
    """One column: every draw is w itself or -w, so that there is no spread at all."""
    model, (x, y) = nn.Linear(1, 3).double(), multilayer()[1][0]
    found = RelativeFlatness().estimate(Objective(model, cross_entropy, (x[:, :1], y)))
    assert found.n == 10
    assert found.value == pytest.approx(by_definition(model, [(x[:, :1], y)], "weight"), rel=1e-9)


def test_a_seed_fixes_the_draws() -> None:
    model, batches = multilayer()
    objective, measure = Objective(model, cross_entropy, batches), RelativeFlatness(n=10)
    one, again, other = (measure.estimate(objective, seed) for seed in (1, 1, 2))
    assert (one.value, one.stderr) == (again.value, again.stderr)
    assert one.value != other.value


def test_batches_have_draws_of_their_own() -> None:
    """Else the mean over batches of equal content has no error, although every one of its parts has."""
    model, (batch, _) = multilayer()
    found = PerBatch(RelativeFlatness(n=4)).estimate(Objective(model, cross_entropy, [batch] * 4))
    assert found.stderr > 1e-6 * abs(found.value)


def test_single_precision() -> None:
    model, batches = multilayer()
    double = RelativeFlatness(n=10).estimate(Objective(model, cross_entropy, batches))
    single = RelativeFlatness(n=10).estimate(
        Objective(deepcopy(model).float(), cross_entropy, [(x.float(), y) for x, y in batches])
    )
    assert single.value == pytest.approx(double.value, rel=1e-4)


def test_the_model_is_left_alone() -> None:
    model, batches = convolutions()
    with assert_untouched(model):
        RelativeFlatness("2.weight", n=5).estimate(Objective(model, cross_entropy, batches))


@pytest.mark.parametrize("layer", ["6.weight", "2.wieght", "2.*"])
def test_a_layer_that_is_not_there_is_refused_with_those_that_are(layer: str) -> None:
    model, batches = multilayer()
    with pytest.raises(ValueError, match=r"2\.weight") as caught:
        RelativeFlatness(layer).estimate(Objective(model, cross_entropy, batches))
    assert repr(layer) in str(caught.value)


def test_a_bias_is_refused_and_not_called_missing() -> None:
    """It is there, but it is no matrix: so only matrices are named as what to ask for."""
    model, batches = multilayer()
    with pytest.raises(ValueError, match="matrix") as caught:
        RelativeFlatness("2.bias").estimate(Objective(model, cross_entropy, batches))
    assert "2.weight" in str(caught.value)
    assert str(caught.value).count("bias") == 1


def test_a_frozen_layer_is_refused() -> None:
    model, batches = multilayer()
    model[2].requires_grad_(False)
    with pytest.raises(ValueError, match=r"'2\.weight'"):
        RelativeFlatness("2.weight").estimate(Objective(model, cross_entropy, batches))


def test_a_model_without_a_matrix_is_refused() -> None:
    model, batches = multilayer()
    objective = Objective(model, cross_entropy, batches, only=["*.bias"])
    with pytest.raises(ValueError, match="needs a weight matrix"):
        RelativeFlatness().estimate(objective)
