"""The twelve definitions of A modern look: their names and radii, and what each tends to on single batches."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import inf, nan

import pytest
import torch
from oracles import curvature
from problems import flat_weights
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import MEASURES, Ball, Objective, gaussian
from steppe.core.basis import flat
from steppe.measures import (
    DEFINITIONS,
    RADII,
    AverageCase,
    NormalisedLogits,
    OnNormalisedLogits,
    PerBatch,
    WorstCase,
    box,
)
from steppe.measures.registration import MAGNITUDE
from steppe.measures.registry import measure_by_name

F64 = torch.float64

NAMES = {
    "avg_l2", "avg_linf", "worst_l2", "worst_linf",
    "adaptive_avg_l2", "adaptive_avg_linf", "adaptive_worst_l2", "adaptive_worst_linf",
    "adaptive_avg_l2_normalised", "adaptive_avg_linf_normalised",
    "adaptive_worst_l2_normalised", "adaptive_worst_linf_normalised",
}  # fmt: skip


def test_there_are_twelve() -> None:
    """{average, worst} x {l2, l_inf} x {standard, adaptive, adaptive with normalised logits}."""
    assert set(DEFINITIONS) == NAMES
    assert len(NAMES) == 12


# -- the radii, as printed in Tables 1 to 4 ---------------------------------------------------------------------------

LARGE_MODELS = {  # Tables 1 and 2: l_inf adaptive sharpness alone, LogitNorm Yes and No at the same radii
    "imagenet": {"worst": (0.001, 0.002, 0.004), "avg": (0.05, 0.1, 0.2)},
    "imagenet-21k": {"worst": (0.001, 0.002, 0.004), "avg": (0.05, 0.1, 0.2)},
    "clip": {"worst": (0.001, 0.002, 0.004), "avg": (0.001, 0.002, 0.004)},
    "bert-mnli": {"worst": (0.0005, 0.001, 0.002), "avg": (0.1, 0.2, 0.4)},
}

CIFAR = {  # Tables 3 and 4
    "resnet18-cifar10": {
        "avg_l2": (0.05, 0.1, 0.2, 0.4),
        "worst_l2": (0.25, 0.5, 1.0, 2.0),
        "adaptive_avg_l2": (0.05, 0.1, 0.2, 0.4),
        "adaptive_worst_l2": (0.25, 0.5, 1.0, 2.0),
        "adaptive_avg_l2_normalised": (0.05, 0.1, 0.2, 0.4),
        "adaptive_worst_l2_normalised": (0.25, 0.5, 1.0, 2.0),
        "avg_linf": (0.1, 0.2, 0.4, 0.8),
        "worst_linf": (0.0005, 0.001, 0.002, 0.004),
        "adaptive_avg_linf": (0.1, 0.2, 0.4, 0.8),
        "adaptive_worst_linf": (0.001, 0.002, 0.004, 0.008),
        "adaptive_avg_linf_normalised": (0.1, 0.2, 0.4, 0.8),
        "adaptive_worst_linf_normalised": (0.001, 0.002, 0.004, 0.008),
    },
    "vit-cifar10": {
        "avg_l2": (0.005, 0.01, 0.02, 0.04),
        "worst_l2": (0.025, 0.05, 0.1, 0.2),
        "adaptive_avg_l2": (0.1, 0.2, 0.4, 0.8),
        "adaptive_worst_l2": (0.5, 1.0, 2.0, 4.0),
        "adaptive_avg_l2_normalised": (0.1, 0.2, 0.4, 0.8),
        "adaptive_worst_l2_normalised": (0.25, 0.5, 1.0, 2.0),
        "avg_linf": (0.01, 0.02, 0.04, 0.08),
        "worst_linf": (0.00001, 0.00002, 0.00004, 0.00008),
        "adaptive_avg_linf": (0.1, 0.2, 0.4, 0.8),
        "adaptive_worst_linf": (0.0005, 0.001, 0.002, 0.004),
        "adaptive_avg_linf_normalised": (0.1, 0.2, 0.4, 0.8),
        "adaptive_worst_linf_normalised": (0.0005, 0.001, 0.002, 0.004),
    },
}

PRINTED = CIFAR | {
    setting: {f"adaptive_{case}_linf{suffix}": radii for case, radii in grids.items() for suffix in ("", "_normalised")}
    for setting, grids in LARGE_MODELS.items()
}


def test_there_are_six_settings() -> None:
    assert set(RADII) == set(PRINTED)


@pytest.mark.parametrize("setting", PRINTED)
def test_the_radii_are_the_papers(setting: str) -> None:
    assert set(RADII[setting]) == set(PRINTED[setting])
    for name, radii in PRINTED[setting].items():
        assert tuple(RADII[setting][name]) == pytest.approx(radii, rel=1e-12), name


@pytest.mark.parametrize("name", sorted(NAMES))
def test_by_name_alone_a_definition_stands_at_the_smallest_radius_for_resnets(name: str) -> None:
    assert MEASURES[name]() == DEFINITIONS[name](CIFAR["resnet18-cifar10"][name][0])


# -- what they are ----------------------------------------------------------------------------------------------------

COMBINED: dict[str, Callable[[float], PerBatch]] = {
    "avg_l2": lambda rho: PerBatch(AverageCase(rho, gaussian)),
    "avg_linf": lambda rho: PerBatch(AverageCase(rho, box)),
    "worst_l2": lambda rho: PerBatch(WorstCase(Ball(rho))),
    "worst_linf": lambda rho: PerBatch(WorstCase(Ball(rho, p=inf))),
    "adaptive_avg_l2": lambda rho: PerBatch(AverageCase(rho, gaussian, MAGNITUDE)),
    "adaptive_avg_linf": lambda rho: PerBatch(AverageCase(rho, box, MAGNITUDE)),
    "adaptive_worst_l2": lambda rho: PerBatch(WorstCase(Ball(rho, MAGNITUDE))),
    "adaptive_worst_linf": lambda rho: PerBatch(WorstCase(Ball(rho, MAGNITUDE, inf))),
    "adaptive_avg_l2_normalised": lambda rho: PerBatch(OnNormalisedLogits(AverageCase(rho, gaussian, MAGNITUDE))),
    "adaptive_avg_linf_normalised": lambda rho: PerBatch(OnNormalisedLogits(AverageCase(rho, box, MAGNITUDE))),
    "adaptive_worst_l2_normalised": lambda rho: PerBatch(OnNormalisedLogits(WorstCase(Ball(rho, MAGNITUDE)))),
    "adaptive_worst_linf_normalised": lambda rho: PerBatch(OnNormalisedLogits(WorstCase(Ball(rho, MAGNITUDE, inf)))),
}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_definition_is_its_combination(name: str) -> None:
    """And with the paper's numbers: 20 steps, 100 losses a batch, c = |w| for every weight and without eta."""
    assert DEFINITIONS[name](0.07) == COMBINED[name](0.07)
    inner = COMBINED[name](0.07).measure
    inner = inner.measure if isinstance(inner, OnNormalisedLogits) else inner
    assert (inner.n == 50) if isinstance(inner, AverageCase) else (inner.steps == 20)
    assert (MAGNITUDE.eta, MAGNITUDE.everywhere) == (0.0, True)


def network() -> tuple[nn.Sequential, list[tuple[Tensor, Tensor]]]:
    with torch.random.fork_rng():
        torch.manual_seed(8)
        model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4)).double()
        batches = [(torch.randn(n, 3, dtype=F64), torch.randint(0, 4, (n,))) for n in (6, 6, 4)]
    return model, batches


def normalised_by_hand(out: Tensor, y: Tensor) -> Tensor:
    """Eq. (5): over the standard deviation of a row's logits, and not centred."""
    mean = out.sum(1, keepdim=True) / out.shape[1]
    deviation = (((out - mean) ** 2).sum(1, keepdim=True) / out.shape[1]).sqrt()
    return cross_entropy(out / deviation, y)


def test_normalised_logits_are_eq_5() -> None:
    model, batches = network()
    for x, y in batches:
        out = model(x).detach()
        expected = float(normalised_by_hand(out, y))
        assert float(NormalisedLogits(cross_entropy)(out, y)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_small_radii_give_the_limits_of_single_batches(name: str) -> None:
    """Dual norms of every batch's scaled gradient, and second-order forms of its Hessian at the same draws."""
    model, batches = network()
    rho, seed = 1e-5 if "worst" in name else 1e-3, 4
    objective = Objective(model, cross_entropy, batches)
    loss_fn = normalised_by_hand if "normalised" in name else cross_entropy
    w = flat_weights(model)
    c = w.abs() if "adaptive" in name else torch.ones_like(w)
    expected, rows = [], torch.tensor([float(len(x)) for x, _ in batches], dtype=F64)
    for i, batch in enumerate(batches):
        f = curvature.mean_loss(model, loss_fn, [batch])
        if "worst" in name:
            slope = c * curvature.gradient(f, w)
            expected.append(rho * float(slope.abs().sum() if "linf" in name else slope.norm()))
        else:
            draws = [objective.draw(seed, i, j) for j in range(50)]
            v = torch.stack([flat(d.uniform(-1, 1) if "linf" in name else d.normal()) for d in draws])
            hessian = curvature.rescaled(curvature.hessian(f, w), c)
            expected.append(rho**2 / 2 * float(((v @ hessian) * v).sum(1).mean()))
    found = DEFINITIONS[name](rho).estimate(objective, seed)
    assert found.value == pytest.approx(float((rows * torch.tensor(expected)).sum() / rows.sum()), rel=2e-3)
    assert found.n == 3
    assert found.stderr > 0
    assert found.kind == ("lower bound" if "worst" in name else "unbiased")


@pytest.mark.parametrize("name", ["worst_linf", "adaptive_worst_l2", "adaptive_avg_l2_normalised"])
def test_m_is_the_size_of_the_batches(name: str) -> None:
    """m-sharpness of the whole data in one batch is another number than the mean over batches."""
    model, batches = network()
    data = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    rho = 0.1
    halves = DEFINITIONS[name](rho).estimate(Objective(model, cross_entropy, data, m=8))
    by_hand = [(data[0][:8], data[1][:8]), (data[0][8:], data[1][8:])]
    assert halves.value == DEFINITIONS[name](rho).estimate(Objective(model, cross_entropy, by_hand)).value
    assert halves.n == 2
    whole = DEFINITIONS[name](rho).estimate(Objective(model, cross_entropy, data))
    assert whole.value != pytest.approx(halves.value, rel=1e-3)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(name for name in NAMES if "adaptive" in name))
def test_the_scale_of_the_last_layer_is_seen_without_normalised_logits_alone(name: str) -> None:
    model, batches = network()
    louder = deepcopy(model)
    with torch.no_grad():
        for p in louder[2].parameters():
            p.mul_(7.0)
    one, other = (DEFINITIONS[name](0.05).estimate(Objective(m, cross_entropy, batches)).value for m in (model, louder))
    same = other == pytest.approx(one, rel=1e-6)
    assert same == ("normalised" in name)


@pytest.mark.parametrize("name", ["avg_l2", "worst_linf"])
def test_the_cost_is_that_of_the_papers_procedure_at_most(name: str) -> None:
    """100 losses and the one at the weights; 20 steps a climb, two starts, a random one among them."""
    model, batches = network()
    cost = DEFINITIONS[name](0.1).estimate(Objective(model, cross_entropy, batches)).cost
    if "avg" in name:
        assert (cost.losses, cost.gradients, cost.products) == (101, 0, 0)
    else:
        assert cost.losses == cost.products == 0
        assert 10 <= cost.gradients <= 42


# -- by name and radius -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize(("text", "rho"), [("0.002", 0.002), ("1e-3", 0.001), ("2", 2.0), ("0", 0.0)])
def test_name_at_radius(name: str, text: str, rho: float) -> None:
    assert measure_by_name(f"{name}@{text}") == DEFINITIONS[name](rho)


@pytest.mark.parametrize("radius", ["", "abc", "-1", str(nan)])
@pytest.mark.parametrize("name", ["worst_linf", "avg_l2", "adaptive_avg_linf_normalised"])
def test_a_radius_that_is_none_is_refused(name: str, radius: str) -> None:
    with pytest.raises(ValueError, match=f"'{name}@{radius}' names {name} at radius '{radius}'"):
        measure_by_name(f"{name}@{radius}")


@pytest.mark.parametrize("name", ["trace@0.1", "worst_lnif@0.1"])
def test_what_has_no_radius_is_refused_with_what_has(name: str) -> None:
    with pytest.raises(ValueError, match=r"no measure .*worst_linf"):
        measure_by_name(name)
