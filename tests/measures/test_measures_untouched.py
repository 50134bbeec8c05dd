"""A measurement leaves everything bitwise as it was: the model and the process around it, however it ends."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from model_cases import FLOAT, MAKERS, Case, classification, convolutions, lstm, make, writes_a_buffer
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from steppe import SAM, Ball
from steppe.measures.objective import Objective


class Trouble(Exception):
    """Raised by the caller's own code in the middle of a pass."""


def displaced(objective: Objective) -> Any:
    return objective.draw(3).normal() * 0.1


ASKED: dict[str, Callable[[Objective], object]] = {
    "loss": lambda o: o.loss(),
    "loss elsewhere": lambda o: o.loss(displaced(o)),
    "gradient": lambda o: o.gradient(),
    "gradient elsewhere": lambda o: o.gradient(displaced(o)),
    "each": lambda o: [one.gradient(displaced(one)) for _, one in o.each()],
    "a plan": lambda o: o.drive(SAM(0.1)),
    "its own memory": lambda o: [(o.weights * 2.0).add_(o.draw(0).signs()), o.gradient()[1].mul_(3.0)],
    "a ball": lambda o: Ball(0.1).steepest_(o.gradient()[1], o),
}


def in_use(case: Case) -> Case:
    """The model in the middle of things: every second module in training mode, some gradients there, hooks."""
    for i, m in enumerate(case.model.modules()):
        m.training = i % 2 == 0
    for i, p in enumerate(case.model.parameters()):
        if i % 3 == 0 and p.requires_grad:
            p.grad = torch.full_like(p, -0.0 if i else float("nan"))
    first = next(p for p in case.model.parameters() if p.requires_grad)
    first.register_hook(lambda g: g * 0)
    case.model.register_forward_hook(lambda *_: None)
    return case


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("maker", MAKERS, ids=lambda f: f.__name__)
def test_a_measurement_leaves_no_trace(maker: Callable[[], Case], asked: str) -> None:
    case = in_use(make(maker))
    torch.manual_seed(5)
    torch.rand(3)
    with assert_untouched(case.model):
        ASKED[asked](case.objective())


@pytest.mark.parametrize("asked", ["gradient", "gradient elsewhere", "each"])
def test_parameters_that_do_not_move_get_no_gradient(asked: str) -> None:
    """They are in the graph themselves, not as copies."""
    case = in_use(make(convolutions))
    with assert_untouched(case.model):
        ASKED[asked](case.objective(only=["1.*"]))


@pytest.mark.parametrize("statistics", ["running", "batch"])
@pytest.mark.parametrize("mode", [True, False])
def test_statistics_and_modes_stay(mode: bool, statistics: str) -> None:
    case = make(convolutions)
    case.model.train(mode)
    with assert_untouched(case.model):
        case.objective(statistics=statistics).gradient()


def test_buffers_that_forward_writes_or_replaces_stay() -> None:
    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3, dtype=FLOAT)
            self.register_buffer("written", torch.zeros(()))
            self.register_buffer("replaced", torch.zeros(()), persistent=False)

        def forward(self, x: Tensor) -> Tensor:
            self.written += 1
            self.replaced = self.replaced + 1
            return self.layer(x)

    case = make(classification)
    case.model = Counting()
    with assert_untouched(case.model):
        case.objective().gradient()


def test_a_graph_made_before_is_still_good_afterwards() -> None:
    case = make(lstm)
    x, y = case.batches[0]
    loss = case.loss_fn(case.model(x), y)
    expected = torch.autograd.grad(loss, list(case.model.parameters()), retain_graph=True)
    case.objective().gradient(displaced(case.objective()))
    again = torch.autograd.grad(loss, list(case.model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(expected, again, strict=True))


# -- random numbers ---------------------------------------------------------------------------------------


class Wasteful(nn.Module):
    """Draws from every generator, to no effect on the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3, dtype=FLOAT)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + 0 * (torch.rand(()) + np.random.rand() + random.random())


@pytest.mark.parametrize("asked", ["loss", "gradient elsewhere", "each"])
def test_random_numbers_that_the_model_draws_are_put_back(asked: str) -> None:
    case = make(classification)
    case.model = Wasteful()
    with assert_untouched(case.model):
        ASKED[asked](case.objective())


@pytest.mark.parametrize("shuffle", [True, False])
def test_reading_a_loader_draws_no_random_numbers_of_others(shuffle: bool) -> None:
    """A loader seeds its workers, its sampler and whatever its data set augments from the common generators."""
    x, y = torch.randn(12, 4, dtype=FLOAT), torch.randint(0, 3, (12,))

    def jittered(rows: list[Any]) -> Any:
        random.random(), np.random.rand()
        xs, ys = zip(*rows, strict=True)
        return torch.stack(xs), torch.stack(ys)

    model = nn.Linear(4, 3, dtype=FLOAT)
    with assert_untouched(model):
        Objective(model, cross_entropy, DataLoader(TensorDataset(x, y), 5, shuffle, collate_fn=jittered)).loss()


def test_what_the_caller_draws_next_does_not_depend_on_the_measurement() -> None:
    objective = make(convolutions).objective()
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    objective.gradient()
    assert torch.equal(torch.rand(4), expected)


# -- GPUs -------------------------------------------------------------------------------------------------

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@on_gpu
@pytest.mark.parametrize("maker", MAKERS, ids=lambda f: f.__name__)
def test_a_model_on_a_gpu_measures_what_it_does_on_the_cpu_and_stays(maker: Callable[[], Case]) -> None:
    """The data need not be moved; an LSTM has a backward pass although it is in eval mode."""
    expected, expected_grad = make(maker).objective().gradient()
    case = make(maker)
    case.model.cuda()
    torch.rand(3, device="cuda")
    with assert_untouched(case.model):
        loss, grad = case.objective().gradient()
    assert loss == pytest.approx(expected, rel=1e-8)
    torch.testing.assert_close([t.cpu() for t in grad.tensors], expected_grad.tensors, rtol=1e-8, atol=1e-10)


@on_gpu
def test_random_numbers_of_a_device_that_the_model_is_not_on_stay() -> None:
    torch.rand(3, device="cuda")
    case = make(classification)
    with assert_untouched(case.model):
        case.objective().gradient()


# -- exceptions -------------------------------------------------------------------------------------------


class Backfires(torch.autograd.Function):
    """Harmless forwards; backwards it raises."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, error: type[BaseException]) -> Tensor:
        ctx.error = error
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        raise ctx.error


def explodes_in(place: str, call: int, error: type[BaseException], case: Case) -> Case:
    """The same case with an exception in the call-th forward pass, where it has written buffers already."""
    calls = [0]
    forward, loss_fn = case.forward, case.loss_fn

    def due(where: str) -> bool:
        return where == place and calls[0] == call

    def troubled_forward(model: nn.Module, batch: Any) -> Any:
        calls[0] += 1
        output, target = forward(model, batch)
        torch.rand(3)
        if due("forward"):
            raise error
        return (Backfires.apply(output, error) if due("backward") else output), target

    def troubled_loss(output: Any, target: Any) -> Tensor:
        if due("loss"):
            raise error
        return loss_fn(output, target)

    case.forward, case.loss_fn = troubled_forward, troubled_loss
    return case


@pytest.mark.parametrize("error", [Trouble, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("place", "call"),
    [(place, call) for place in ("forward", "loss") for call in (1, 2, 3, 5, 7)] + [("backward", 6), ("backward", 7)],
)
@pytest.mark.parametrize("maker", [convolutions, lstm])
def test_an_exception_leaves_no_trace(
    maker: Callable[[], Case], place: str, call: int, error: type[BaseException]
) -> None:
    """Calls 1 to 5 are checks of the loss; 6 to 8 are the three batches."""
    case = explodes_in(place, call, error, in_use(make(maker)))
    objective = case.objective(statistics="batch")
    with pytest.raises(error), assert_untouched(case.model):
        objective.gradient(displaced(objective))
    with assert_untouched(case.model):  # and the next one works
        assert objective.gradient()[0] == pytest.approx(make(maker).objective(statistics="batch").loss(), rel=1e-12)


@pytest.mark.parametrize("asked", ["loss", "gradient"])
def test_a_refusal_leaves_no_trace(asked: str) -> None:
    case = in_use(make(convolutions))
    forward = case.forward
    case.forward = lambda m, b: (forward(m, b)[0] * torch.rand(()), b[1])
    with pytest.raises(ValueError, match="not a function of the weights"), assert_untouched(case.model):
        ASKED[asked](case.objective())


def test_a_loop_over_batches_may_be_left() -> None:
    case = in_use(make(convolutions))
    with assert_untouched(case.model):
        for _, one in case.objective().each():
            one.gradient()
            break


def test_a_measurement_inside_a_pass_that_is_under_way() -> None:
    """From a forward hook, say: the outer pass goes on with its own mode and weights."""
    case = make(convolutions)
    case.model.train()
    x, _ = case.batches[0]
    torch.manual_seed(0)
    expected = case.model(x)
    objective = case.objective()

    def measure(*_: Any) -> None:
        handle.remove()
        objective.loss(displaced(objective))

    handle = case.model[0].register_forward_hook(measure)
    torch.manual_seed(0)
    assert torch.equal(case.model(x), expected)


# -- assert_untouched itself: every kind of change is seen ------------------------------------------------


def write_and_undo(model: nn.Module) -> None:
    with torch.no_grad():
        model[0].weight.add_(0.0)


CHANGES: dict[str, Callable[[nn.Module], object]] = {
    "a weight": lambda m: m[0].weight.data.view(-1)[0].add_(1e-15),
    "a weight, written and undone": write_and_undo,
    "a weight replaced": lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight.detach())),
    "the sign of a zero": lambda m: m[1].running_mean.neg_(),
    "a buffer": lambda m: m[1].num_batches_tracked.add_(1),
    "a buffer replaced": lambda m: setattr(m[1], "running_var", m[1].running_var.clone()),
    "a mode": lambda m: m[3].eval(),
    "a flag": lambda m: m[0].bias.requires_grad_(False),
    "a gradient that was none": lambda m: setattr(m[5].weight, "grad", torch.zeros_like(m[5].weight)),
    "a gradient": lambda m: m[0].weight.grad.mul_(2),
    "a gradient gone": lambda m: m.zero_grad(),
    "a hook": lambda m: m[2].register_forward_hook(lambda *_: None),
    "a hook of a tensor": lambda m: m[0].weight.register_hook(lambda g: g),
    "another hook of a tensor": lambda m: m[0].weight.register_post_accumulate_grad_hook(lambda p: None),
    "an attribute": lambda m: setattr(m[0], "cache", torch.ones(2)),
    "a module": lambda m: m.append(nn.Identity()),
    "torch's generator": lambda m: torch.rand(()),
    "numpy's generator": lambda m: np.random.rand(),
    "Python's generator": lambda m: random.random(),
    "a switch": lambda m: torch.backends.mha.set_fastpath_enabled(False),
    "grad mode": lambda m: torch.set_grad_enabled(False),
    "a backend": lambda m: torch.backends.cuda.enable_flash_sdp(False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_seen(change: str) -> None:
    model = in_use(make(convolutions)).model.train()
    model[1].running_mean.zero_()
    try:
        with pytest.raises(AssertionError, match="changed: "), assert_untouched(model):
            CHANGES[change](model)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
        torch.backends.cuda.enable_flash_sdp(True)
        torch.set_grad_enabled(True)


def test_a_change_is_seen_behind_an_exception() -> None:
    model = make(writes_a_buffer).model
    with pytest.raises(AssertionError, match=r"changed: model 0: layer\.bias"), assert_untouched(model):
        model.layer.bias.data.zero_()
        raise Trouble
    with pytest.raises(Trouble), assert_untouched(model):
        raise Trouble
