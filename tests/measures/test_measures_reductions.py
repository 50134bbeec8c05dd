"""A loss over batches is that of all data at once, whatever it divides by; oracles are dense Hessians of the latter."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from oracles.curvature import hessian
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from steppe import Objective
from steppe.measures import Curvature, Dense, FisherTrace, InputCurvature, Loss, PerBatch, gauss_newton, measure

F64 = torch.float64
IGNORED = -100
CLASSES = torch.tensor([1.0, 5.0, 20.0], dtype=F64)
SIZES = [3, 1, 9, 7, 4]  # the first batch is complete, the last one ignores all of its targets


class Network(nn.Module):
    """Outputs of three classes, at one place or at several."""

    def __init__(self, places: int = 0) -> None:
        super().__init__()
        self.places = places
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.first, self.last = nn.Linear(3, 4), nn.Linear(4, 3 * max(places, 1))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        out = self.last(torch.tanh(self.first(x)))
        return out.view(-1, 3, self.places) if self.places else out


def inputs() -> Tensor:
    return torch.randn(sum(SIZES), 3, dtype=F64, generator=torch.Generator().manual_seed(1))


def classes(places: int = 0, ignored: int | None = None) -> Tensor:
    """Sorted by class; where some are ignored, none of the first batch and all of the last."""
    random = torch.Generator().manual_seed(2)
    y = torch.randint(3, (sum(SIZES), *([places] if places else [])), generator=random)
    y = y.sort(0).values
    if ignored is not None:
        y[SIZES[0] :][torch.rand(y[SIZES[0] :].shape, generator=random) < 0.5] = ignored
        y[-SIZES[-1] :] = ignored
    return y


def reals(low: float = -1.0) -> Tensor:
    return torch.rand(sum(SIZES), 3, dtype=F64, generator=torch.Generator().manual_seed(3)) * (1 - low) + low


def signs() -> Tensor:
    return reals().sign()


def shares() -> Tensor:
    return reals().softmax(1)


def cut(*data: Tensor) -> list[tuple[Tensor, ...]]:
    return list(zip(*(t.split(SIZES) for t in data), strict=True))


KNOWN: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Tensor, int]] = {
    "cross-entropy": (nn.CrossEntropyLoss(), classes(), 0),
    "ignored targets": (nn.CrossEntropyLoss(), classes(ignored=IGNORED), 0),
    "an ignored class": (partial(F.cross_entropy, ignore_index=1), classes(), 0),
    "class weights": (nn.CrossEntropyLoss(CLASSES), classes(), 0),
    "class weights, ignored, smoothed": (
        nn.CrossEntropyLoss(CLASSES, ignore_index=7, label_smoothing=0.2), classes(ignored=7), 0,
    ),
    "smoothed": (partial(F.cross_entropy, label_smoothing=0.3), classes(ignored=IGNORED), 0),
    "probabilities": (nn.CrossEntropyLoss(CLASSES, label_smoothing=0.1), shares(), 0),
    "a sum with class weights": (nn.CrossEntropyLoss(CLASSES, reduction="sum"), classes(ignored=IGNORED), 0),
    "one loss per row": (nn.CrossEntropyLoss(CLASSES, reduction="none"), classes(), 0),
    "places": (nn.CrossEntropyLoss(), classes(5, IGNORED), 5),
    "places with class weights": (nn.CrossEntropyLoss(CLASSES), classes(5, IGNORED), 5),
    "linear": (nn.NLLLoss(CLASSES), classes(ignored=IGNORED), 0),
    "squares": (nn.MSELoss(), reals(), 0),
    "a sum of squares": (partial(F.mse_loss, reduction="sum"), reals(), 0),
    "smooth l1": (nn.SmoothL1Loss(), reals(), 0),
    "binary, weighted": (
        nn.BCEWithLogitsLoss(torch.tensor([1.0, 2.0, 9.0]).double(), pos_weight=CLASSES), reals(0.0).round(), 0,
    ),
    "a sum of binary": (nn.BCEWithLogitsLoss(reduction="sum", pos_weight=CLASSES), reals(0.0).round(), 0),
    "divergence per row": (nn.KLDivLoss(reduction="batchmean"), shares(), 0),
    "divergence, a sum": (nn.KLDivLoss(reduction="sum"), shares(), 0),
    "counts": (nn.PoissonNLLLoss(), reals(0.0).round(), 0),
    "soft margins": (nn.SoftMarginLoss(), signs(), 0),
    "labels": (nn.MultiLabelSoftMarginLoss(CLASSES), reals(0.0).round(), 0),
}  # fmt: skip


def wrapped(loss_fn: Callable[[Tensor, Tensor], Tensor]) -> dict[str, dict[str, Any]]:
    """The same loss as it is, in a function, and computed by `forward`."""
    return {
        "as it is": {"loss_fn": loss_fn},
        "in a function": {"loss_fn": lambda out, y: loss_fn(out, y)},
        "in forward": {
            "loss_fn": lambda loss, _: loss,
            "forward": lambda model, batch: (loss_fn(model(batch[0]), batch[1]), None),
        },
    }


def dense(loss_fn: Callable[[Tensor, Tensor], Tensor], model: nn.Module, x: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """The loss of all data at once, and its Hessian."""
    shapes = {n: p.shape for n, p in model.named_parameters()}

    def loss(w: Tensor) -> Tensor:
        parts = zip(shapes.items(), w.split([s.numel() for s in shapes.values()]), strict=True)
        return loss_fn(functional_call(model, {n: part.view(s) for (n, s), part in parts}, (x,)), y).mean()

    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    return float(loss(flat)), hessian(loss, flat)


@pytest.mark.parametrize("way", ["as it is", "in a function", "in forward"])
@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.sampled(len(KNOWN))
def test_batches_have_the_loss_and_the_hessian_of_all_data_at_once(name: str, way: str) -> None:
    loss_fn, y, places = KNOWN[name]
    model, x = Network(places), inputs()
    value, matrix = dense(loss_fn, model, x, y)
    objective = Objective(model, **wrapped(loss_fn)[way], batches=cut(x, y))
    assert objective.loss() == pytest.approx(value, rel=1e-12)
    torch.testing.assert_close(Dense(Curvature(objective)).matrix, matrix, rtol=1e-9, atol=1e-11)
    found = measure(model, data=cut(x, y), measures="lambda_max", progress=False, **wrapped(loss_fn)[way])
    assert found["lambda_max"].value == pytest.approx(float(torch.linalg.eigvalsh(matrix)[-1]), rel=1e-4)


@pytest.mark.parametrize("name", ["ignored targets", "class weights", "a sum with class weights", "squares", "places"])
def test_the_fisher_trace_weighs_rows_as_the_loss_does(name: str) -> None:
    """Mean over rows of |grad of the row's own loss|^2, weighed by what the row's loss divides by."""
    loss_fn, y, places = KNOWN[name]
    model, x = Network(places), inputs()
    total, weights = 0.0, 0.0
    for i in range(len(x)):
        row, target = x[i : i + 1], y[i : i + 1]
        weight = 1.0
        if "sum" not in name and not y.is_floating_point():
            kept = target[target != IGNORED]
            weight = float(CLASSES[kept].sum() if name == "class weights" else len(kept))
        if weight:
            grads = torch.autograd.grad(loss_fn(model(row), target), list(model.parameters()))
            total += weight * float(sum(g.square().sum() for g in grads))
            weights += weight
    for data in ((x, y), cut(x, y)):
        for way in wrapped(loss_fn).values():
            found = FisherTrace().estimate(Objective(model, **way, batches=data))
            assert found.value == pytest.approx(total / weights, rel=1e-9)


@pytest.mark.parametrize("name", ["ignored targets", "class weights", "a sum with class weights"])
def test_the_curvature_in_inputs_is_that_of_a_rows_own_loss(name: str) -> None:
    loss_fn, y, _ = KNOWN[name]
    model, x = Network(), inputs()
    rows = [i for i in range(len(x)) if y[i] != IGNORED or "sum" in name]
    weights = torch.tensor([float(CLASSES[y[i]]) if name == "class weights" else 1.0 for i in rows])
    traces = [hessian(lambda v, i=i: loss_fn(model(v[None]), y[i : i + 1]), x[i]).trace().detach() for i in rows]
    exact = float((weights * torch.tensor(traces)).sum() / weights.sum())
    found = InputCurvature(1, 200).estimate(Objective(model, loss_fn, cut(x, y)))
    assert found.value == pytest.approx(exact, rel=0.02, abs=0.01)


def test_margins_that_have_no_second_derivative_weigh_rows() -> None:
    loss_fn, y, model, x = nn.MultiMarginLoss(2, weight=CLASSES), classes(), Network(), inputs()
    assert Objective(model, loss_fn, cut(x, y)).loss() == pytest.approx(float(loss_fn(model(x), y).detach()), rel=1e-12)


def test_m_sharpness_weighs_batches_as_the_loss_does() -> None:
    loss_fn, y, _ = KNOWN["class weights"]
    model, x = Network(), inputs()
    found = PerBatch(Loss()).estimate(Objective(model, loss_fn, cut(x, y)))
    assert found.value == pytest.approx(dense(loss_fn, model, x, y)[0], rel=1e-12)


def test_the_gauss_newton_part_and_other_weights_follow_too() -> None:
    """Of normalised logits, whose loss is a wrapper, and of the part that is J'CJ."""
    loss_fn, y, _ = KNOWN["class weights, ignored, smoothed"]
    model, x = Network(), inputs()
    names = ["gauss_newton_trace", "gauss_newton_lambda_max"]
    one, several = (measure(model, loss_fn, data, names, progress=False) for data in ((x, y), cut(x, y)))
    assert {n: e.value for n, e in several.items()} == {n: pytest.approx(e.value, rel=1e-6) for n, e in one.items()}
    matrix = Dense(Curvature(Objective(model, loss_fn, cut(x, y)), gauss_newton)).matrix
    whole = Dense(Curvature(Objective(model, loss_fn, (x, y)), gauss_newton)).matrix
    torch.testing.assert_close(matrix, whole, rtol=1e-10, atol=1e-12)


class OwnLoss(nn.Module):
    """Computes its loss as Transformers do: labels that are shifted, of which -100 do not count."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.embed, self.head = nn.Embedding(7, 3), nn.Linear(3, 7)
        self.double()

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        logits = self.head(torch.tanh(self.embed(input_ids).cumsum(1)))[:, :-1]
        return SimpleNamespace(loss=F.cross_entropy(logits.reshape(-1, 7), labels[:, 1:].reshape(-1)))


def test_a_models_own_loss_counts_its_tokens() -> None:
    """The first batch is complete, and one has no token that counts."""
    random = torch.Generator().manual_seed(4)
    ids = torch.randint(7, (8, 6), generator=random)
    labels = ids.clone()
    labels[2:4, 2:] = IGNORED
    labels[6:, 1:] = IGNORED
    batch = {"input_ids": ids, "labels": labels}
    batches = [{k: v[i : i + 2] for k, v in batch.items()} for i in range(0, 8, 2)]
    one, several = (
        measure(OwnLoss(), None, data, ["loss", "lambda_max", "fisher_trace"], progress=False)
        for data in (batch, batches)
    )
    assert not one.failures
    assert {n: e.value for n, e in several.items()} == {n: pytest.approx(e.value, rel=1e-5) for n, e in one.items()}


# -- losses that torch does not know ----------------------------------------------------------------------------------


def by_class(out: Tensor, y: Tensor) -> Tensor:
    return (F.cross_entropy(out, y, CLASSES, reduction="none") / CLASSES[y].sum()).sum()


def masked(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none").sum() / (y != IGNORED).sum()


def total(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y, reduction="none").sum()


@pytest.mark.parametrize("in_forward", [False, True])
@pytest.mark.parametrize(
    ("loss_fn", "y", "said"),
    [(by_class, classes(), r"weight="), (masked, classes(ignored=IGNORED), r"weight="), (total, classes(), "sum over")],
)
@pytest.mark.parametrize("m", [1, 3, 8])
@pytest.mark.sampled(18)
def test_every_batch_of_another_loss_is_checked(loss_fn: Any, y: Tensor, said: str, m: int, in_forward: bool) -> None:
    """Within a batch of one class, or of one row, nothing shows: batches are compared with each other."""
    way = wrapped(loss_fn)["in forward" if in_forward else "as it is"]
    with pytest.raises(ValueError, match=said):
        Objective(Network(), **way, batches=(inputs(), y), m=m).loss()


@pytest.mark.parametrize("in_forward", [False, True])
@pytest.mark.parametrize(("loss_fn", "y"), [(by_class, classes()), (masked, classes(ignored=IGNORED))])
def test_equal_losses_hide_nothing(loss_fn: Any, y: Tensor, in_forward: bool) -> None:
    """Where the last layer is zero, as at the start of many trainings, all rows have one loss, but not one gradient."""
    model = Network()
    nn.init.zeros_(model.last.weight)
    nn.init.zeros_(model.last.bias)
    way = wrapped(loss_fn)["in forward" if in_forward else "as it is"]
    with pytest.raises(ValueError, match="weight="):
        Objective(model, **way, batches=(inputs()[:-4], y[:-4]), m=5).gradient()


def test_a_weight_makes_them_right() -> None:
    x, y = inputs(), classes()
    objective = Objective(Network(), by_class, (x, y), m=3, weight=lambda batch: CLASSES[batch[1]].sum())
    assert objective.loss() == pytest.approx(dense(by_class, Network(), x, y)[0], rel=1e-12)


def test_another_loss_that_is_a_mean_over_rows_passes_and_takes_one_evaluation_more() -> None:
    rows: list[int] = []

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
        rows.append(len(batch[0]))
        return model(batch[0]), batch[1]

    def penalised(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out, y) + 0.1

    x, y = inputs(), classes()
    objective = Objective(Network(), penalised, cut(x, y), forward=forward)
    assert objective.loss() == pytest.approx(dense(penalised, Network(), x, y)[0], rel=1e-12)
    assert sum(rows) == 2 * len(x) + 2 * SIZES[0]  # what it averages over, and whether it is random: the first batch


def test_a_loss_of_torch_is_known_from_its_targets_alone() -> None:
    calls: list[int] = []
    model, x, y = Network(), inputs(), classes(ignored=IGNORED)
    model.register_forward_hook(lambda *_: calls.append(1))
    Objective(model, nn.CrossEntropyLoss(), cut(x, y)).loss()
    counted = [bool((part != IGNORED).any()) for part in y.split(SIZES)]
    assert False in counted
    assert len(calls) == sum(counted) + 3  # whether it is random, and of what shape outputs are: the first batch


def test_rows_that_depend_on_each_other_are_refused_also_under_a_loss_of_torch() -> None:
    def contrastive(out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out @ out.mT, torch.arange(len(out)))

    with pytest.raises(ValueError, match=r"not the mean.*weight="):
        Objective(Network(), contrastive, cut(inputs(), classes())).loss()


def test_batches_that_cannot_be_compared_are_refused() -> None:
    """Single rows of different lengths, whose loss the model computes by something that torch does not know."""

    def forward(model: nn.Module, batch: Any) -> tuple[Tensor, None]:
        return model(batch[0].view(-1, 3)).square().sum() / (batch[0] > 0).sum(), None

    batches = [(torch.ones(1, n, 3, dtype=F64), torch.zeros(1)) for n in (2, 3)]
    with pytest.raises(ValueError, match=r"can be neither joined nor cut, .*: pass the weight of a batch"):
        Objective(Network(), lambda loss, _: loss, batches, forward=forward).loss()


def test_a_batch_that_divides_by_nothing_is_refused() -> None:
    """Label smoothing of targets without weight: 'the sum over them divided by 0' enters the loss of all data."""
    loss_fn = nn.CrossEntropyLoss(torch.tensor([0.0, 1.0, 1.0]).double(), label_smoothing=0.1)
    with pytest.raises(ValueError, match=r"label smoothing.*batches larger"):
        Objective(Network(), loss_fn, cut(inputs(), classes())).loss()
