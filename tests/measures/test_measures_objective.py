"""Any model, at any weights: an objective's loss and gradient are those of a copy that was really moved there."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import FLOAT, MAKERS, SIZES, Case, classification, convolutions, frozen, make, tied, transformer
from problems import each_cross_entropy, mlp_problem
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import cross_entropy, mse_loss

from steppe import TRACE, Ball, Elementwise, NormLayersOnly, Probe, Vector
from steppe.core.rows import Part, RowIndex
from steppe.measures.curvature.measures import Trace
from steppe.measures.estimate import Measure, NotFinite
from steppe.measures.functional import unwrap
from steppe.measures.objective import Objective
from steppe.measures.sharpness import AverageCase, GradientNorm, Loss
from steppe.measures.universal import ZerothOrder
from steppe.measures.worst_case import WorstCase


def every_case(function: Any) -> Any:
    return pytest.mark.parametrize("maker", MAKERS, ids=lambda f: f.__name__)(function)


def close(actual: Any, expected: Any) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-12)


BALLS = {
    "l2": Ball(0.3),
    "adaptive l2": Ball(0.3, Elementwise(everywhere=True)),
    "adaptive linf": Ball(0.05, Elementwise(eta=0.0, everywhere=True), p=inf),
}

# -- the function itself ----------------------------------------------------------------------------------


@every_case
def test_loss_and_gradient_are_those_of_all_rows_at_once(maker: Callable[[], Case]) -> None:
    case = make(maker)
    objective = case.objective()
    expected, expected_grad = case.moved()
    loss, grad = objective.gradient()
    close(loss, expected)
    close(objective.loss(), loss)
    close(grad.tensors, expected_grad)


@pytest.mark.parametrize("ball", BALLS)
@every_case
def test_at_displaced_weights_they_are_those_of_a_copy_that_was_moved(maker: Callable[[], Case], ball: str) -> None:
    case = make(maker)
    objective = case.objective()
    here, grad = objective.gradient()
    away = BALLS[ball].steepest(grad, objective)
    expected, expected_grad = case.moved(away.tensors)
    loss, there = objective.gradient(away)
    close(loss, expected)
    close(objective.loss(away), loss)
    close(there.tensors, expected_grad)
    assert abs(loss - here) > 1e-3  # the displacement was large enough to tell


@every_case
def test_the_gradient_is_what_finite_differences_say(maker: Callable[[], Case]) -> None:
    objective = make(maker).objective()
    at = objective.draw(7).normal() * 0.1
    _, grad = objective.gradient(at)
    for sample in range(3):
        direction, h = objective.draw(1, sample).normal(), 1e-5
        rise = objective.loss(at + direction * h) - objective.loss(at - direction * h)
        assert rise / (2 * h) == pytest.approx(float(grad.dot(direction)), rel=1e-6, abs=1e-8)


@every_case
def test_a_reading_knows_the_loss_of_every_row(maker: Callable[[], Case]) -> None:
    case = make(maker)
    reading = case.objective().read(Probe())
    if case.loss_fn is each_cross_entropy:
        case.model.eval()
        close(reading.losses, torch.cat([case.loss_fn(case.model(x), y) for x, y in case.batches]).detach())
    else:
        assert reading.losses is None
    assert reading.batch == sum(SIZES)


def test_each_batch_is_an_objective_of_its_own() -> None:
    case = make(convolutions)
    objective = case.objective()
    case.model.eval()
    for (number, one), (i, (x, y)) in zip(objective.each(), enumerate(case.batches), strict=True):
        assert number == i
        assert one.rows == len(x)
        close(one.loss(), cross_entropy(case.model(x), y).item())


def test_rows_of_the_only_batch_can_be_asked_for() -> None:
    problem = mlp_problem(steps=1)
    (x, y), model = problem.batches[0], problem.model
    objective = Objective(model, each_cross_entropy, (x, y))
    for rows in (Part(1, 3), RowIndex(torch.tensor([0, 7, 3]), 12)):
        reading = objective.read(Probe(rows=rows))
        loss = cross_entropy(model(x[rows.index(12)]), y[rows.index(12)])
        close(reading.loss.item(), loss.item())
        close(reading.grad.tensors, list(torch.autograd.grad(loss, list(model.parameters()))))


class SumOfTwo(nn.Module):
    """The gradient of a + b is one tensor for both; too large to be stacked, they are kept as they come."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = (nn.Parameter(torch.linspace(0, 1, 20_000, dtype=FLOAT)) for _ in "ab")

    def forward(self, x: Tensor) -> Tensor:
        return (self.a + self.b).square().mean() * x.mean()


def test_a_gradient_owns_its_memory() -> None:
    objective = Objective(SumOfTwo(), lambda out, y: out, (torch.ones(3), torch.ones(3)))
    _, grad = objective.gradient()
    expected = [t.clone() for t in grad.tensors]
    away = Ball(0.5).steepest_(grad, objective)  # in place, as plans do
    length = torch.cat(expected).norm()
    close(away.tensors, [0.5 * g / length for g in expected])


def test_a_gradient_that_is_one_number_everywhere_can_be_written_to() -> None:
    model = nn.ParameterList([torch.zeros(20_000, dtype=FLOAT)])
    objective = Objective(
        model, mse_loss, (torch.ones(3), torch.ones(3)), forward=lambda m, x: (m[0].sum() + x[0], -x[1])
    )
    _, grad = objective.gradient()
    close(grad.mul_(0.25).tensors[0], torch.ones(20_000, dtype=FLOAT))


def test_a_displacement_serves_twice() -> None:
    objective = make(classification).objective()
    at = objective.draw(0).normal()
    assert objective.loss(at) == objective.loss(at)
    assert objective.gradient(at)[0] == objective.gradient(at)[0]


def test_gradients_are_computed_whatever_the_mode_of_the_caller() -> None:
    objective = make(classification).objective()
    expected = objective.gradient()[1].tensors
    with torch.no_grad():
        close(objective.gradient()[1].tensors, expected)
    assert not objective.gradient()[1].tensors[0].requires_grad


def test_with_and_without_gradient_an_attention_layer_runs_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its fused kernel, which has no gradient, rounds otherwise: small differences of losses would see that."""
    case, calls = make(transformer), []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *a: calls.append(1) or fused(*a))
    objective = case.objective()
    assert objective.loss() == objective.gradient()[0]
    assert not calls
    with torch.no_grad():
        case.model.eval()(case.batches[0][0])
    assert calls  # which is what would have run


# -- which parameters move --------------------------------------------------------------------------------


def test_frozen_parameters_stay() -> None:
    case = make(frozen)
    assert list(case.objective().params) == ["1.weight", "1.bias", "3.weight", "3.bias"]
    assert case.objective().dimension == sum(p.numel() for p in case.model.parameters() if p.requires_grad)


@pytest.mark.parametrize(
    ("only", "names"),
    [
        (["0.*"], ["0.weight", "0.bias"]),
        (["*.weight"], ["0.weight", "1.weight", "3.weight"]),
        (["3.bias", "1.*"], ["1.weight", "1.bias", "3.bias"]),
        (["[13].bias"], ["1.bias", "3.bias"]),
        (("?.weight", "0.bias"), ["0.weight", "0.bias", "1.weight", "3.weight"]),
    ],
)
def test_only_parameters_that_are_named_move(only: Any, names: list[str]) -> None:
    case = make(classification)
    objective = case.objective(only=only)
    assert list(objective.params) == names
    where = [i for i, (name, _) in enumerate(case.model.named_parameters()) if name in names]
    at = objective.draw(0).normal()
    by = [torch.zeros_like(p) for p in case.model.parameters()]
    for i, d in zip(where, at.tensors, strict=True):
        by[i] = d
    expected, expected_grad = case.moved(by)
    loss, grad = objective.gradient(at)
    close(loss, expected)
    close(grad.tensors, [expected_grad[i] for i in where])


def test_one_pattern_needs_no_list() -> None:
    """A text is a sequence of texts, and one of its characters may be a star."""
    assert list(make(classification).objective(only="0.*").params) == ["0.weight", "0.bias"]


def test_frozen_parameters_stay_even_if_named() -> None:
    assert list(make(frozen).objective(only=["0.*", "3.*"]).params) == ["3.weight", "3.bias"]


def test_shared_parameters_are_one() -> None:
    objective = make(tied).objective()
    assert objective.dimension == 7 * 4 + 4 * 4 + 4 + 7
    assert list(objective.params) == ["embedding.weight", "middle.weight", "middle.bias", "decoder.bias"]


@pytest.mark.parametrize("name", ["embedding.weight", "decoder.weight"])
def test_a_shared_parameter_answers_to_each_of_its_names(name: str) -> None:
    objective = make(tied).objective(only=[name])
    assert objective.dimension == 7 * 4
    close(objective.gradient()[1].tensors[0], make(tied).objective().gradient()[1].tensors[0])


@pytest.mark.parametrize("model", [nn.Flatten(), nn.Linear(4, 3).requires_grad_(False)])
def test_a_model_without_trainable_parameters_is_refused(model: nn.Module) -> None:
    with pytest.raises(ValueError, match="no trainable parameter"):
        Objective(model, cross_entropy, (torch.ones(2, 4), torch.tensor([0, 1]))).loss()


def test_a_pattern_that_matches_nothing_is_refused_with_names_that_exist() -> None:
    with pytest.raises(ValueError, match=r"no trainable parameter matches .*layer4.*0\.weight"):
        make(classification).objective(only=["layer4.*"]).loss()


def test_parameters_that_do_not_exist_yet_are_refused_with_what_to_do() -> None:
    model = nn.Sequential(nn.LazyLinear(3, dtype=FLOAT))
    with pytest.raises(ValueError, match=r"(?i)uninitiali[sz]ed.*(dummy|one) batch"):
        Objective(model, cross_entropy, make(classification).batches).loss()
    assert model[0].has_uninitialized_params()


def test_parameters_of_several_types_move_together() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 6, dtype=FLOAT), nn.Tanh(), nn.Linear(6, 3))
    model.insert(2, _Cast())
    case = Case(model, make(classification).batches, cross_entropy)
    objective = case.objective()
    _, grad = objective.gradient()
    away = Ball(0.3).steepest(grad, objective)
    assert [t.dtype for t in away.tensors] == [FLOAT, FLOAT, torch.float32, torch.float32]
    expected, expected_grad = case.moved(away.tensors)
    loss, there = objective.gradient(away)
    assert loss == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(there.tensors, expected_grad, rtol=1e-5, atol=1e-6)


class _Cast(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.float()


def test_low_precision_sums_in_high() -> None:
    """Many equal batches in bfloat16: their mean is not rounded again and again."""
    model = nn.Linear(4, 3).bfloat16()
    x, y = torch.randn(8, 4, dtype=torch.bfloat16), torch.randint(0, 3, (8,))
    one = Objective(model, cross_entropy, (x, y)).loss()
    assert Objective(model, cross_entropy, [(x, y)] * 50).loss() == pytest.approx(one, rel=1e-6)


def test_balls_know_what_the_parameters_are() -> None:
    """A ball for normalisation layers only needs names, which an objective has."""
    objective = make(classification).objective()
    away = Ball(0.1, NormLayersOnly()).steepest(objective.gradient()[1], objective)
    assert [bool(t.any()) for t in away.tensors] == [False, False, True, True, False, False]


# -- wrappers ---------------------------------------------------------------------------------------------


class Compiled(nn.Module):
    """What torch.compile returns, as far as we look at it; its own forward must not be used."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self._orig_mod = model

    def forward(self, *_: Any) -> Tensor:
        raise AssertionError("a compiled model has no second derivative")


@pytest.mark.parametrize(
    "wrap", [Compiled, nn.DataParallel, lambda m: nn.DataParallel(Compiled(m)), lambda m: Compiled(nn.DataParallel(m))]
)
def test_wrappers_are_taken_off(wrap: Callable[[nn.Module], nn.Module]) -> None:
    case = make(classification)
    wrapped = wrap(case.model)
    assert unwrap(wrapped) is case.model
    objective = replace(case, model=wrapped).objective()
    assert list(objective.params) == [name for name, _ in case.model.named_parameters()]
    close(objective.gradient()[0], case.moved()[0])


# -- normalisation layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [True, False])
def test_running_statistics_are_used_whatever_the_mode(mode: bool) -> None:
    case = make(convolutions)
    case.model.train(mode)
    close(case.objective().loss(), case.moved()[0])


@pytest.mark.parametrize("mode", [True, False])
def test_batch_statistics_on_request_without_dropout_and_without_moving_them(mode: bool) -> None:
    case = make(convolutions)
    case.model.train(mode)
    statistics = {k: v.clone() for k, v in case.model.state_dict().items()}
    objective = case.objective(statistics="batch")
    conv, norm, _, _, _, head = case.model
    x, y = case.batches[0]
    z = conv(x)
    mean, var = z.mean((0, 2, 3), keepdim=True), z.var((0, 2, 3), keepdim=True, correction=0)
    z = (z - mean) / (var + norm.eps).sqrt() * norm.weight[:, None, None] + norm.bias[:, None, None]
    by_hand = cross_entropy(head(z.tanh().flatten(1)), y)
    _, first = next(objective.each())
    loss, grad = first.gradient()
    close(loss, by_hand.item())
    close(grad.tensors, list(torch.autograd.grad(by_hand, list(case.model.parameters()))))
    assert abs(loss - next(case.objective().each())[1].loss()) > 1e-3
    assert all(torch.equal(v, statistics[k]) for k, v in case.model.state_dict().items())


def test_statistics_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match=r"running.*batch|batch.*running"):
        make(convolutions).objective(statistics="train").loss()


# -- losses that are no function of the weights -----------------------------------------------------------


class Noisy(nn.Module):
    """Draws random numbers in its forward pass whatever its mode."""

    def __init__(self, noise: Callable[[Tensor], Tensor]):
        super().__init__()
        self.layer, self.noise = nn.Linear(4, 3, dtype=FLOAT), noise

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.noise(x))


NOISES: dict[str, Callable[[Tensor], Tensor]] = {
    "forced dropout": lambda x: functional.dropout(x, 0.1, training=True),
    "augmentation": lambda x: x.flip(1) if torch.rand(()) < 0.5 else x,
    "additive": lambda x: x + 1e-4 * torch.randn_like(x),
    "random order": lambda x: x[:, torch.randperm(4)],
    "noisy normalisation": lambda x: (x - x.mean(0)) * (1 + 0.1 * torch.randn(4, dtype=FLOAT)),
}


@pytest.mark.parametrize("ask", ["loss", "gradient", "read", "each"])
@pytest.mark.parametrize("noise", NOISES)
def test_noise_in_the_forward_pass_is_refused_with_what_to_do(noise: str, ask: str) -> None:
    objective = Objective(Noisy(NOISES[noise]), cross_entropy, make(classification).batches)
    asked = {"read": lambda: objective.read(Probe()), "each": lambda: list(objective.each())}
    for _ in range(2):  # a refusal does not make it trusted
        with pytest.raises(ValueError, match=r"not a function of the weights.*switch it off"):
            asked.get(ask, getattr(objective, ask, None))()


def test_noise_in_the_loss_or_in_forward_is_refused() -> None:
    case = make(classification)
    noisy_loss = replace(case, loss_fn=lambda out, y: cross_entropy(out, y) * (1 + 0.01 * torch.rand(())))
    noisy_forward = replace(case, forward=lambda m, b: (functional.dropout(m(b[0])), b[1]))
    for noisy in (noisy_loss, noisy_forward):
        with pytest.raises(ValueError, match="not a function of the weights"):
            noisy.objective().loss()


def test_noise_of_numpy_is_refused() -> None:
    model = Noisy(lambda x: x * (1 + 0.1 * float(np.random.rand())))
    with pytest.raises(ValueError, match="not a function of the weights"):
        Objective(model, cross_entropy, make(classification).batches).loss()


def test_a_trusted_objective_with_another_loss_is_checked_again() -> None:
    objective = make(classification).objective()
    objective.loss()
    with pytest.raises(ValueError, match="not a function of the weights"):
        replace(objective, forward=lambda m, b: (functional.dropout(m(b[0])), b[1])).loss()


def test_dropout_that_follows_the_mode_is_no_trouble() -> None:
    case = make(convolutions)
    case.model.train()
    assert case.objective().loss() == case.objective().loss()


def counted(case: Case) -> tuple[Objective, list[int]]:
    """An objective, and the rows of every forward pass so far."""
    seen: list[int] = []

    def forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
        seen.append(len(batch[0]))
        return model(batch[0]), batch[1]

    return replace(case, forward=forward).objective(), seen


def test_the_check_costs_one_pass_and_two_more_over_one_batch_once() -> None:
    """One over all, for what batches weigh: `forward` may do what it likes to targets."""
    objective, seen = counted(make(classification))
    objective.loss()
    assert sorted(seen) == sorted([*SIZES, *SIZES, SIZES[0], SIZES[0]])
    seen.clear()
    objective.gradient(objective.draw(0).normal())
    assert seen == list(SIZES)
    seen.clear()
    for _, one in objective.each():
        one.loss()
    assert seen == list(SIZES)


def test_the_check_is_made_again_after_a_failure() -> None:
    case, on = make(classification), [True]
    case.forward = lambda m, b: (functional.dropout(m(b[0]), training=on[0]), b[1])
    objective = case.objective()
    for _ in range(2):
        with pytest.raises(ValueError, match="not a function of the weights"):
            objective.loss()
    on[0] = False
    close(objective.loss(), make(classification).moved()[0])


CONSTANT: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "detached": lambda out, y: cross_entropy(out, y).detach(),
    "a Python number": lambda out, y: cross_entropy(out, y).item(),
    "of the targets alone": lambda out, y: y.double().mean(),
    "rounded": lambda out, y: (out.argmax(1) != y).double().mean(),
}


@pytest.mark.parametrize("kind", CONSTANT)
def test_a_gradient_of_a_loss_without_graph_is_refused_with_what_to_do(kind: str) -> None:
    objective = replace(make(classification), loss_fn=CONSTANT[kind]).objective()
    with pytest.raises(ValueError, match=r"does not depend on the parameters.*detach or item"):
        objective.gradient()


def test_a_gradient_of_another_models_loss_is_refused() -> None:
    case = make(classification)
    other = deepcopy(case.model)
    for stranger in (other, deepcopy(other).requires_grad_(False)):
        case.forward = lambda m, b: (stranger(b[0]), b[1])
        with pytest.raises(ValueError, match="does not depend on the parameters"):
            case.objective().gradient()


def test_a_loss_that_the_chosen_parameters_have_no_part_in_is_refused() -> None:
    """Its graph reaches other parameters, which do not move."""
    model = nn.ModuleDict({"used": nn.Linear(4, 3), "idle": nn.Linear(4, 3)}).double()
    data, forward = make(classification).batches, lambda m, b: (m["used"](b[0]), b[1])
    with pytest.raises(ValueError, match=r"does not depend on the parameters.*idle\.weight"):
        Objective(model, cross_entropy, data, forward=forward, only=["idle.*"]).gradient()
    _, grad = Objective(model, cross_entropy, data, forward=forward).gradient()  # some do take part
    assert [bool(t.any()) for t in grad.tensors] == [True, True, False, False]


def test_a_loss_without_derivative_still_has_a_value() -> None:
    """Averages over random displacements need nothing else: the error rate is a loss, too."""
    case = make(classification)
    case.loss_fn = lambda out, y: out.argmax(1) != y
    case.model.eval()
    wrong = sum(int((case.model(x).argmax(1) != y).sum()) for x, y in case.batches)
    assert case.objective().loss() == pytest.approx(wrong / sum(SIZES), rel=1e-12)


@pytest.mark.parametrize("where", [0, 2])
@pytest.mark.parametrize("value", [nan, inf])
@pytest.mark.parametrize("ask", [Loss(), GradientNorm(), WorstCase(), AverageCase(), Trace(), ZerothOrder(TRACE)])
def test_a_loss_that_is_not_finite_at_the_weights_is_said_to_be(value: float, where: int, ask: Measure) -> None:
    case = make(classification)
    case.batches[where][0][1, 1] = value
    with pytest.raises(NotFinite):
        ask.estimate(case.objective())


def test_a_loss_that_is_not_finite_elsewhere_can_be_asked_for() -> None:
    """The measures decide what it means there."""
    objective = Objective(
        nn.Linear(1, 1, bias=False).double(),
        lambda out, y: out.exp().mean(),
        (torch.ones(2, 1).double(), torch.ones(2)),
    )
    away = Vector(objective.space, tensors=[torch.full((1, 1), 1e4, dtype=FLOAT)])
    assert objective.loss(away) == inf


def test_an_objective_has_no_options() -> None:
    with pytest.raises(LookupError, match="give the ball its radius"):
        make(classification).objective().option("rho")
