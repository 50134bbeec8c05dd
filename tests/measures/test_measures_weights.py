"""How data is cut into batches changes no measure: batches weigh what the loss averages over, given or by rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from math import nan
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import FROBENIUS, TRACE, Ball, Objective
from steppe.measures import (
    AverageCase,
    Eigenvalue,
    Estimate,
    FisherTrace,
    FrobeniusSquared,
    GradientNorm,
    Loss,
    Measure,
    NotFinite,
    OneStep,
    PerBatch,
    RelativeFlatness,
    SecondOrder,
    SlopeLimit,
    Trace,
    WorstCase,
    ZerothOrder,
    fisher_traces,
    gauss_newton,
    measure,
)

F64 = torch.float64
SCALED = ("loss", "gradient", "lambda_max", "gauss_newton", "slope", "relative")  # numbers in proportion to the loss
ROWS, IGNORED = 24, -100
CUTS = st.lists(st.integers(1, 9), min_size=1, max_size=8)

# all that are functions of the mean loss; the twelve definitions are means over batches, and depend on m by definition
INVARIANT: dict[str, Measure] = {
    "loss": Loss(),
    "gradient": GradientNorm(),
    "lambda_max": Eigenvalue(rtol=1e-9),
    "trace": Trace(rtol=0.1),
    "frobenius": FrobeniusSquared(rtol=0.1),
    "gauss_newton": Eigenvalue(form=gauss_newton, rtol=1e-9),
    "average": AverageCase(0.1, n=3),
    "worst": WorstCase(Ball(0.1), steps=4),
    "one_step": OneStep(Ball(0.1)),
    "slope": SlopeLimit(Ball(0.1)),
    "zeroth": ZerothOrder(TRACE, 0.1, n=3),
    "second": SecondOrder(FROBENIUS, n=3),
    "relative": RelativeFlatness(n=5),
    "fisher": FisherTrace(),
    "losses of batches": PerBatch(Loss()),
}


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)).double()


MODEL = network()


@cache
def table(ignored: bool = False) -> tuple[Tensor, Tensor]:
    """Inputs and classes, of which some are ignored: more among the first rows, and all of the first three."""
    random = torch.Generator().manual_seed(1)
    x, y = torch.randn(ROWS, 3, dtype=F64, generator=random), torch.randint(0, 3, (ROWS,), generator=random)
    if ignored:
        y = torch.where(torch.rand(ROWS, generator=random) > torch.linspace(0.2, 1.5, ROWS), IGNORED, y)
        y[:3] = IGNORED
    return x, y


def cut(data: tuple[Tensor, Tensor], sizes: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Batches of these sizes, and what is left over as the last one."""
    sizes = [min(n, ROWS - sum(sizes[:i])) for i, n in enumerate(sizes) if sum(sizes[:i]) < ROWS]
    rest = [ROWS - sum(sizes)] if sum(sizes) < ROWS else []
    return list(zip(*(t.split([*sizes, *rest]) for t in data), strict=True))


def kept(batch: tuple[Tensor, Tensor]) -> Tensor:
    return (batch[1] != IGNORED).sum()


def summed(out: Tensor, y: Tensor) -> Tensor:
    """A sum that torch does not know as one of its losses."""
    return cross_entropy(out, y, reduction="none").sum()


def numbers(data: Any, loss_fn: Any = cross_entropy, **options: Any) -> dict[str, float]:
    found = measure(MODEL, loss_fn, data, INVARIANT, **options, progress=False)
    assert not found.failures
    return {name: e.value for name, e in found.items()}


def same(found: dict[str, float], expected: dict[str, float]) -> None:
    assert found == {name: pytest.approx(value, rel=1e-7, abs=1e-10) for name, value in expected.items()}


@cache
def whole(ignored: bool = False) -> dict[str, float]:
    """Of all rows as one batch; where some are ignored, of the others alone, which needs no weight."""
    x, y = table(ignored)
    return numbers((x[y != IGNORED], y[y != IGNORED]))


# -- laws -------------------------------------------------------------------------------------------------


@settings(max_examples=8, deadline=None)
@given(CUTS)
def test_cuts_change_no_measure_of_a_mean(sizes: list[int]) -> None:
    same(numbers(cut(table(), sizes)), whole())


@settings(max_examples=8, deadline=None)
@given(CUTS)
def test_cuts_change_no_measure_where_targets_are_ignored_and_batches_weigh_what_they_keep(sizes: list[int]) -> None:
    """Also where a batch keeps none, whose mean loss is 0 / 0."""
    same(numbers(cut(table(ignored=True), sizes), weight=kept), whole(ignored=True))


@settings(max_examples=10, deadline=None)
@given(CUTS, st.booleans())
def test_cuts_of_a_sum_with_weights_are_refused_unless_every_row_is_a_batch(sizes: list[int], unknown: bool) -> None:
    data = cut(table(), sizes)
    loss_fn = summed if unknown else partial(cross_entropy, reduction="sum")
    if all(len(x) == 1 for x, _ in data):  # a sum of one is a mean
        same(numbers(data, loss_fn, weight=lambda b: len(b[0])), whole())
    else:
        with pytest.raises(ValueError, match=r'sum.*reduction="mean"'):
            numbers(data, loss_fn, weight=lambda b: len(b[0]))


@settings(max_examples=10, deadline=None)
@given(CUTS)
def test_a_sum_of_torch_is_that_over_all_rows_however_they_are_cut(sizes: list[int]) -> None:
    found = numbers(cut(table(), sizes), partial(cross_entropy, reduction="sum"))
    for name in SCALED:
        assert found[name] == pytest.approx(ROWS * whole()[name], rel=1e-7)


@pytest.mark.parametrize("m", [1, 5, 7, ROWS])
def test_weights_follow_the_batches_that_m_makes(m: int) -> None:
    same(numbers(table(ignored=True), m=m, weight=kept), whole(ignored=True))


# -- what is refused --------------------------------------------------------------------------------------

SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross entropy": summed,
    "squares": lambda out, y: (out - nn.functional.one_hot(y, 3).double()).square().sum(),
    "of negative losses": lambda out, y: -cross_entropy(out, y, reduction="sum"),
    "as a tensor of one": lambda out, y: cross_entropy(out, y, reduction="sum").reshape(1),
}


@pytest.mark.parametrize("m", [17, 16, 4, 1])
@pytest.mark.parametrize("loss", SUMS)
def test_sums_are_refused_with_what_to_do(loss: str, m: int) -> None:
    with pytest.raises(ValueError, match=r'sum over its rows.*reduction="mean"'):
        Objective(MODEL, SUMS[loss], table(), m=m).loss()


def test_a_sum_over_one_batch_is_what_was_asked_for() -> None:
    """Nothing is cut, so nothing depends on a cut."""
    found = numbers(table(), SUMS["cross entropy"])
    for name in SCALED:
        assert found[name] == pytest.approx(ROWS * whole()[name], rel=1e-7)


def test_a_sum_is_noticed_where_the_first_batch_has_one_row() -> None:
    with pytest.raises(ValueError, match="sum over its rows"):
        Objective(MODEL, SUMS["cross entropy"], cut(table(), [1, 1, 5])).loss()


def test_a_sum_is_noticed_where_the_model_computes_the_loss_itself() -> None:
    """As language models do: there is no output of which some rows could be taken."""

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, None]:
        return summed(model(batch[0]), batch[1]), None

    with pytest.raises(ValueError, match="sum over its rows"):
        Objective(MODEL, lambda loss, _: loss, table(), forward=forward, m=8).loss()


def test_a_sum_is_noticed_beside_batch_statistics() -> None:
    """Where half of a batch has another loss than it has within the batch."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()
    with pytest.raises(ValueError, match="sum over its rows"):
        Objective(model, SUMS["cross entropy"], table(), m=8, statistics="batch").loss()
    assert Objective(model, cross_entropy, table(), m=8, statistics="batch").loss() > 0


UNEVEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "ignored targets": lambda out, y: 1 * cross_entropy(out, y),
    "weights of classes": lambda out, y: (
        1 * cross_entropy(out, y.clamp(min=0), torch.tensor([1.0, 5.0, 20.0], dtype=F64))
    ),
    "pairs of rows": lambda out, y: cross_entropy(out @ out.mT, torch.arange(len(out))),
}


@pytest.mark.parametrize("loss", UNEVEN)
def test_a_mean_over_something_else_than_rows_needs_a_weight(loss: str) -> None:
    """For one batch there is nothing to weigh, and who gives a weight says what is meant."""
    data = cut(table(ignored=True), [17])
    with pytest.raises(ValueError, match=r"not the mean.*weight="):
        Objective(MODEL, UNEVEN[loss], data).loss()
    assert Objective(MODEL, UNEVEN[loss], table(ignored=True)).loss() > 0
    losses = [UNEVEN[loss](MODEL(x), y).item() for x, y in data]
    found = Objective(MODEL, UNEVEN[loss], data, weight=lambda b: len(b[0])).loss()
    assert found == pytest.approx((17 * losses[0] + (ROWS - 17) * losses[1]) / ROWS, rel=1e-12)
    assert Objective(MODEL, UNEVEN[loss], data, weight=2).loss() == pytest.approx(sum(losses) / 2, rel=1e-12)


def test_a_penalty_beside_the_mean_is_a_mean() -> None:
    def penalised(model: nn.Module, batch: Any) -> tuple[Tensor, Any]:
        return cross_entropy(model(batch[0]), batch[1]) + model[0].weight.square().sum(), None

    whole = Objective(MODEL, lambda loss, _: loss, table(), forward=penalised)
    parts = Objective(MODEL, lambda loss, _: loss, cut(table(), [5, 8]), forward=penalised)
    assert parts.loss() == pytest.approx(whole.loss(), rel=1e-12)


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_rounding_is_not_taken_for_another_reduction(precision: Any) -> None:
    model, (x, y) = network().float(), table()

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, None]:
        return cross_entropy(model(batch[0]), batch[1]), None

    for forwards in ({}, {"forward": forward}):
        loss_fn = (lambda loss, _: loss) if forwards else cross_entropy
        assert Objective(model, loss_fn, (x.float(), y), m=7, precision=precision, **forwards).loss() > 0


@pytest.mark.parametrize("wrong", [-1, nan, "many", lambda b: float("inf"), lambda b: None, lambda b: b[0]])
def test_a_weight_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="weight"):
        Objective(MODEL, cross_entropy, table(), weight=wrong).loss()


def test_data_without_any_weight_is_refused() -> None:
    x, y = table()
    with pytest.raises(ValueError, match=r"weight.* 0"):
        Objective(MODEL, cross_entropy, (x, torch.full_like(y, IGNORED)), m=5, weight=kept).loss()


# -- weights of rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["ghost", "vmap", "rows"])
def test_rows_without_weight_have_no_gradient_and_do_not_count(way: Any) -> None:
    x, y = table(ignored=True)
    objective = Objective(MODEL, cross_entropy, (x, y), m=7, weight=kept)
    traces = fisher_traces(objective, way)
    assert not traces[y == IGNORED].any()
    alone = fisher_traces(Objective(MODEL, cross_entropy, (x[y != IGNORED], y[y != IGNORED])), way)
    torch.testing.assert_close(traces[y != IGNORED], alone, rtol=1e-12, atol=0)
    found = FisherTrace(way).estimate(objective)
    assert (found.n, found.value) == (len(alone), pytest.approx(float(alone.mean()), rel=1e-12))
    assert found.stderr == pytest.approx(float(alone.std()) / len(alone) ** 0.5, rel=1e-9)


def test_the_trace_over_rows_is_weighed_too() -> None:
    """Of sequences, of which each weighs as many steps as it keeps."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        x, y = torch.randn(6, 4, 3, dtype=F64), torch.randint(0, 3, (6, 4))
    for i in range(6):
        y[i, : i % 4] = IGNORED

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        return model(batch[0]).flatten(0, 1), batch[1].flatten()

    objective = Objective(MODEL, cross_entropy, (x, y), forward=forward, m=4, weight=kept)
    traces, weights = fisher_traces(objective), (y != IGNORED).sum(1).double()
    found: Estimate = FisherTrace().estimate(objective)
    assert found.value == pytest.approx(float((traces * weights).sum() / weights.sum()), rel=1e-12)


# -- losses that are not finite ---------------------------------------------------------------------------


def test_first_rows_without_a_loss_do_not_hide_that_the_batch_has_one() -> None:
    random = torch.Generator().manual_seed(3)
    x, y = torch.randn(40, 3, dtype=F64, generator=random), torch.randint(0, 3, (40,), generator=random)
    y[:20] = IGNORED  # the first rows, which are looked at, have a loss of 0 / 0
    expected = Objective(MODEL, cross_entropy, (x[20:], y[20:]))
    assert Objective(MODEL, cross_entropy, (x, y)).loss() == pytest.approx(expected.loss(), rel=1e-12)
    found, right = (Eigenvalue().estimate(o).value for o in (Objective(MODEL, cross_entropy, (x, y)), expected))
    assert found == pytest.approx(right, rel=1e-9)
    with pytest.raises(ValueError, match="not a function of the weights"):  # looked at as the few would have been
        Objective(MODEL, lambda out, y: cross_entropy(out + torch.randn_like(out), y), (x, y)).loss()


class Masked(nn.Module):
    """Shuts out the class that some rows have: their loss is infinite, its derivatives are not."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        out = self.net(x)
        return torch.where((x[:, :1] > 90) & (torch.arange(3) == 0), -torch.inf, out)


CURVED: dict[str, Measure] = {
    "loss": Loss(),
    "gradient": GradientNorm(),
    "lambda_max": Eigenvalue(),
    "trace": Trace(),
    "gauss_newton": Eigenvalue(form=gauss_newton),
    "second": SecondOrder(TRACE, n=3),
    "slope": SlopeLimit(Ball(0.1)),
    "relative": RelativeFlatness(n=3),
    "fisher": FisherTrace(),
}


@pytest.mark.parametrize("m", [None, 8])
@pytest.mark.parametrize("name", CURVED)
def test_an_infinite_loss_with_finite_derivatives_is_no_objective(name: str, m: int | None) -> None:
    """In the last row, far from those that are looked at first."""
    x, y = (t.clone() for t in table())
    x[-1, 0], y[-1] = 100.0, 0
    with pytest.raises(NotFinite):
        CURVED[name].estimate(Objective(Masked(), cross_entropy, (x, y), m=m))


def added_in_place(out: Tensor, y: Tensor) -> Tensor:
    loss = cross_entropy(out, y)
    loss += 0.3 * out.square().mean()
    return loss


def divided_in_place(out: Tensor, y: Tensor) -> Tensor:
    loss = cross_entropy(out, y, reduction="sum")
    loss /= len(y)
    return loss


def kept_targets(out: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(out, y, reduction="none")[y != IGNORED]


@pytest.mark.parametrize("loss", [added_in_place, kept_targets])
def test_what_is_not_the_mean_of_torch_any_more_is_checked_on_every_batch(loss: Any) -> None:
    """Both are means over rows on the batch that is checked first: the last rows have all their targets."""
    x, y = table(ignored=True)
    with pytest.raises(ValueError, match=r"not the mean.*weight="):
        Objective(MODEL, loss, cut((x.flip(0), y.flip(0)), [5, 8])).loss()


@pytest.mark.parametrize("sizes", [[1] * ROWS, [3, 17]])
def test_a_sum_of_torch_that_becomes_a_mean_in_place_is_a_mean(sizes: list[int]) -> None:
    whole = Objective(MODEL, cross_entropy, table()).loss()
    assert Objective(MODEL, divided_in_place, cut(table(), sizes)).loss() == pytest.approx(whole, rel=1e-12)
