"""m-sharpness as a mean over batches with its error, and sharpness of normalised logits, both spelled out by hand."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from math import inf, isnan, nan, sqrt

import pytest
import torch
from oracles.sharpness import trust_region
from problems import random_vector
from sharpness_problems import FLOAT, MAGNITUDE, network
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import Ball, rademacher
from steppe.measures.combinators import NormalisedLogits, OnNormalisedLogits, PerBatch
from steppe.measures.estimate import Estimate, Kind, Measure, NotFinite, summarise, weighted
from steppe.measures.objective import Objective
from steppe.measures.sharpness import AverageCase, OneStep
from steppe.measures.worst_case import WorstCase

Batches = list[tuple[Tensor, Tensor]]
SIZES = (5, 2, 4, 1)


def batches(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Batches:
    rows = sum(sizes)
    x, y = random_vector(4 * rows, seed).reshape(rows, 4), torch.arange(rows) % 3
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def objective(sizes: tuple[int, ...] = SIZES, **options) -> Objective:
    return Objective(network()[0], cross_entropy, batches(sizes), **options)


def alone(measure: Measure, number: int, batch: tuple[Tensor, Tensor], seed: int = 0) -> Estimate:
    return measure.estimate(Objective(network()[0], cross_entropy, batch, first=number), seed)


@dataclass(frozen=True)
class Rows(Measure):
    """A number of every batch that can be told by looking at it: the mean of its inputs."""

    kinds: tuple[Kind, ...] = ("exact",)

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        ((x, _),) = objective.batches
        objective.loss()
        yield Estimate(nan, nan, 1, "unbiased")  # the last one counts
        yield Estimate(float(x.mean()), 0.1, 3, self.kinds[objective.first % len(self.kinds)])


MEASURES = {
    "worst": WorstCase(Ball(0.3), 8),
    "worst l_inf, adaptive": WorstCase(Ball(0.05, MAGNITUDE, inf), 8),
    "average": AverageCase(0.3, n=3),
    "one step": OneStep(Ball(0.3)),
}

# -- per batch ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(MEASURES))
def test_it_is_the_mean_over_rows_of_what_every_batch_has_by_itself(name):
    """The worst point of one batch is not that of another."""
    measure = MEASURES[name]
    each = [alone(measure, i, batch, seed=2).value for i, batch in enumerate(batches())]
    found = PerBatch(measure).estimate(objective(), 2)
    expected = sum(n * value for n, value in zip(SIZES, each, strict=True)) / sum(SIZES)
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert (found.n, found.kind) == (4, alone(measure, 0, batches()[0]).kind)


@pytest.mark.parametrize("name", sorted(MEASURES))
def test_the_parts_are_the_estimates_of_the_batches(name):
    measure = MEASURES[name]
    parts = PerBatch(measure).parts(objective(), 2)
    assert [number for number, _ in parts] == [0, 1, 2, 3]
    assert [e for _, e in parts] == [alone(measure, i, batch, 2) for i, batch in enumerate(batches())]


def test_batches_of_one_size_have_the_textbook_error():
    found = PerBatch(Rows()).estimate(objective((3, 3, 3, 3)))
    means = torch.stack([x.mean() for x, _ in batches((3, 3, 3, 3))])
    assert found.value == pytest.approx(float(means.mean()), rel=1e-12)
    assert found.stderr == pytest.approx(float(means.std()) / sqrt(4), rel=1e-9)


def test_uneven_batches_have_the_error_of_the_jackknife():
    means = torch.stack([x.mean() for x, _ in batches()])
    n = torch.tensor(SIZES, dtype=FLOAT)
    without = torch.stack([(n * means)[k].sum() / n[k].sum() for k in (torch.arange(4) != i for i in range(4))])
    found = PerBatch(Rows()).estimate(objective())
    assert found.value == pytest.approx(float(torch.cat([x for x, _ in batches()]).mean()), rel=1e-12)
    assert found.stderr == pytest.approx(sqrt(float(3 / 4 * (without - without.mean()).square().sum())), rel=1e-9)


def test_the_weighted_mean_is_weighted():
    values, weights = torch.tensor([1.0, 3.0, nan], dtype=torch.float64), torch.tensor([1.0, 1.0, 0.0])
    assert weighted(values, weights, "exact").value == 2.0
    assert weighted(values, torch.tensor([3.0, 1.0, 0.0]), "exact").value == 1.5


def test_one_batch_has_a_value_and_no_error():
    found = PerBatch(Rows()).estimate(objective((5,)))
    assert found.n == 1
    assert isnan(found.stderr)


def test_m_is_the_size_of_the_batches():
    found, by_hand = (PerBatch(MEASURES["worst"]).estimate(o) for o in (objective(m=3), objective((3, 3, 3, 3))))
    assert found == by_hand
    assert PerBatch(MEASURES["worst"]).estimate(objective(m=12)).value < found.value  # one point for all of them


def test_smaller_batches_are_never_less_sharp_on_bowls():
    """A maximum of a mean is at most the mean of the maxima."""
    x, y = random_vector(24, 3).reshape(8, 3), random_vector(8, 4)
    model = nn.Linear(3, 1, bias=False).double()
    sharp = [
        PerBatch(WorstCase(Ball(0.5), 60)).estimate(Objective(model, square, (x, y), m=m)).value for m in (8, 4, 2, 1)
    ]
    assert sharp == sorted(sharp)
    assert sharp[-1] > 1.1 * sharp[0]


def square(out: Tensor, y: Tensor) -> Tensor:
    return (out.squeeze(-1) - y).square()


def test_on_linear_regression_it_is_the_mean_of_trust_region_maxima():
    x, y = random_vector(24, 3).reshape(8, 3), random_vector(8, 4)
    model = nn.Linear(3, 1, bias=False).double()
    w, exact = model.weight.detach()[0], []
    for a, b in zip(x.split(2), y.split(2), strict=True):
        exact.append(trust_region(a.T @ (a @ w - b), a.T @ a, 0.5).rise)  # of the mean over two rows
    found = PerBatch(WorstCase(Ball(0.5), 60)).estimate(Objective(model, square, (x, y), m=2))
    assert found.value == pytest.approx(sum(exact) / 4, rel=1e-3)
    assert found.stderr == pytest.approx(float(torch.tensor(exact).std()) / 2, rel=1e-2)


def test_every_batch_has_draws_of_its_own():
    """Batches of the same rows would otherwise agree, and the error over batches would be too small."""
    same = [batches((4,))[0]] * 3
    parts = PerBatch(AverageCase(0.3, n=2)).parts(Objective(network()[0], cross_entropy, same))
    assert len({e.value for _, e in parts}) == 3
    starts = PerBatch(WorstCase(Ball(3.0), 1, 6)).parts(Objective(network()[0], cross_entropy, same))
    assert len({e.value for _, e in starts}) == 3


def test_the_same_seed_gives_the_same_bits():
    measure = PerBatch(AverageCase(0.3, n=2))
    assert measure.estimate(objective(), 1) == measure.estimate(objective(), 1)
    assert measure.estimate(objective(), 1).value != measure.estimate(objective(), 2).value


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(24,) * 5, (12, 36, 20, 28, 24)])
def test_intervals_cover_the_population_that_batches_are_drawn_from(sizes):
    """Linear regression on standard normal inputs: E of the batch's average-case sharpness is rho^2 d.

    The spread over batches holds that of the rows and that of the noise.
    """
    d, rho, covered = 3, 0.4, 0
    model = nn.Linear(d, 1, bias=False).double()
    measure, rows = PerBatch(AverageCase(rho, rademacher, n=1)), sum(sizes)
    for seed in range(200):
        x, y = random_vector(rows * d, 10 + seed).reshape(rows, d), torch.zeros(rows, dtype=FLOAT)
        data = list(zip(x.split(sizes), y.split(sizes), strict=True))
        low, high = measure.estimate(Objective(model, square, data, trusted=True), seed).interval()
        covered += low <= rho**2 * d <= high
    assert 0.88 * 200 <= covered <= 0.99 * 200


def test_running_estimates_take_one_batch_after_another():
    whole = objective()
    with assert_untouched(whole.model):
        some = list(PerBatch(Rows()).running(whole))
        running = PerBatch(Rows()).running(whole)
        next(running)
        running.close()
    assert [e.n for e in some] == [1, 2, 3, 4]
    means = [torch.cat([x for x, _ in batches()[: i + 1]]).mean() for i in range(4)]
    assert [e.value for e in some] == pytest.approx([float(m) for m in means], rel=1e-12)


def test_the_cost_is_in_passes_over_all_rows():
    found = PerBatch(AverageCase(0.3, n=3)).estimate(objective())
    assert found.cost.losses == pytest.approx(7, rel=1e-12)
    steps = PerBatch(OneStep(Ball(0.1))).estimate(objective())
    assert steps.cost.gradients + steps.cost.losses == pytest.approx(2, rel=1e-12)


@dataclass(frozen=True)
class Ends(Measure):
    """Fails at the third batch."""

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        if objective.first == 2:
            raise NotFinite("the loss is inf at the third batch")
        yield Estimate(1.0, 0.0, 1, "exact")


def test_a_batch_without_a_number_is_not_left_out_silently():
    with pytest.raises(NotFinite, match="third batch"):
        PerBatch(Ends()).estimate(objective())


def test_kinds_are_not_mixed_silently():
    """A mean of exact values and lower bounds is at best a lower bound."""
    assert PerBatch(Rows(("exact", "lower bound"))).estimate(objective()).kind == "lower bound"
    assert PerBatch(Rows(("lower bound", "exact"))).estimate(objective()).kind == "lower bound"
    assert PerBatch(Rows(("exact", "unbiased"))).estimate(objective()).kind == "unbiased"


# -- normalised logits ---------------------------------------------------------------------------------------------


def normalised(z: Tensor) -> Tensor:
    """Equation 5 of A modern look, class by class in plain Python; nothing is centred."""
    rows = []
    for logits in z.tolist():
        mean = sum(logits) / len(logits)
        rows.append([value / sqrt(sum((v - mean) ** 2 for v in logits) / len(logits)) for value in logits])
    return torch.tensor(rows, dtype=z.dtype)


def seen(logits: Tensor, target: Tensor) -> Tensor:
    """A loss that shows its logits: it is no function of differences."""
    return (logits * torch.arange(1.0, logits.shape[1] + 1, dtype=logits.dtype)).sum(1) + target


def test_logits_are_divided_by_their_standard_deviation_over_classes():
    z, y = random_vector(15).reshape(5, 3) * 4 + 1, torch.arange(5)
    torch.testing.assert_close(NormalisedLogits(seen)(z, y), seen(normalised(z), y), rtol=1e-12, atol=1e-12)
    assert not torch.allclose(NormalisedLogits(seen)(z + 7, y), NormalisedLogits(seen)(z, y))  # not centred
    labels = torch.tensor([0, 1, 2, 0, 1])
    loss = NormalisedLogits(cross_entropy)
    assert loss(z + 7, labels) == pytest.approx(float(loss(z, labels)), rel=1e-12)  # softmax does not see shifts
    assert loss(1e3 * z, labels) == pytest.approx(float(loss(z, labels)), rel=1e-12)


@pytest.mark.parametrize("name", sorted(MEASURES))
def test_a_measure_on_normalised_logits_is_that_of_the_normalised_model(name):
    """A model that divides by itself, in its last layer, measured as it is."""

    class Dividing(nn.Module):
        def __init__(self, inner: nn.Module):
            super().__init__()
            self.inner = inner

        def forward(self, x: Tensor) -> Tensor:
            z = self.inner(x)
            away = z - z.mean(1, keepdim=True)
            return z / away.square().mean(1, keepdim=True).sqrt()

    model, x, y = network(1)
    ours = OnNormalisedLogits(MEASURES[name]).estimate(Objective(model, cross_entropy, (x, y)))
    theirs = MEASURES[name].estimate(Objective(Dividing(model), cross_entropy, (x, y)))
    assert ours.value == pytest.approx(theirs.value, rel=1e-9)
    assert (ours.kind, ours.n) == (theirs.kind, theirs.n)
    assert ours.value != pytest.approx(MEASURES[name].estimate(Objective(model, cross_entropy, (x, y))).value, rel=1e-2)


@pytest.mark.parametrize("measure", [WorstCase(Ball(0.5, MAGNITUDE), 8), AverageCase(0.3, metric=MAGNITUDE, n=3)])
def test_adaptive_sharpness_of_normalised_logits_ignores_the_scale_of_the_last_layer(measure):
    """Without normalisation confident networks look flat: the point of equation 5."""
    model, x, y = network(1)
    louder = deepcopy(model)
    with torch.no_grad():
        louder[4].weight.mul_(30.0), louder[4].bias.mul_(30.0)
    here, there = (Objective(m, cross_entropy, (x, y)) for m in (model, louder))
    ours = OnNormalisedLogits(measure)
    assert ours.estimate(there).value == pytest.approx(ours.estimate(here).value, rel=1e-6)
    assert abs(measure.estimate(there).value / measure.estimate(here).value - 1) > 0.5


def test_combinators_combine_in_either_order():
    inside = PerBatch(OnNormalisedLogits(AverageCase(0.3, n=3))).estimate(objective(), 1)
    outside = OnNormalisedLogits(PerBatch(AverageCase(0.3, n=3))).estimate(objective(), 1)
    assert inside == outside
    assert inside.cost.losses == pytest.approx(outside.cost.losses)
    assert inside.cost.losses == pytest.approx(7, rel=1e-12)
    assert inside.n == 4


def test_what_was_normalised_is_the_loss_and_not_the_objective():
    whole = objective()
    before = whole.loss()
    OnNormalisedLogits(AverageCase(0.3, n=1)).estimate(whole)
    assert whole.loss_fn is cross_entropy
    assert whole.loss() == before


def test_one_loss_a_row_is_normalised_row_by_row():
    model, x, y = network(1)
    each = Objective(model, lambda z, y: cross_entropy(z, y, reduction="none"), (x, y))
    mean = Objective(model, cross_entropy, (x, y))
    ours = OnNormalisedLogits(WorstCase(Ball(0.3), 5))
    assert ours.estimate(each).value == pytest.approx(ours.estimate(mean).value, rel=1e-9)


def test_logits_that_do_not_differ_have_no_scale():
    model, x, y = network(1)
    with torch.no_grad():
        model[4].weight.zero_(), model[4].bias.zero_()
    with pytest.raises(NotFinite):
        OnNormalisedLogits(WorstCase(Ball(0.1))).estimate(Objective(model, cross_entropy, (x, y)))


def test_draws_become_a_number_in_one_place():
    """The mean over batches of one size is what summarise makes of the batches' values."""
    values = torch.stack([x.mean() for x, _ in batches((3, 3, 3, 3))])
    assert PerBatch(Rows()).estimate(objective((3, 3, 3, 3))) == summarise(values, "exact")
