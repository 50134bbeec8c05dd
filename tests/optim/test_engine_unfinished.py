"""A loop over `passes()` that was left while a variable keeps its iterator: what is saved then is the weights."""

from __future__ import annotations

import contextlib
import copy
import gc
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from registry import Entry, Run, batch, copied, obeying, same
from torch import nn
from torch.nn import functional as F

import steppe


def left(run: Run, number: int, at: int | None = None) -> Any:
    """The iterator of a loop that was left at a probe, by default the last one."""
    at = run.case.passes(number) if at is None else at
    passes = run.opt.passes(**run.extras(number))
    run.seen = []
    for i in range(at):
        pass_ = next(passes)
        if i + 1 < at:
            pass_.backward(run.loss(pass_, number))
    return passes


@obeying()
def test_a_state_dict_of_the_model_is_that_of_the_weights(entry: Entry) -> None:
    run, twin = Run(entry, dropout=0.0), Run(entry, dropout=0.0)
    for each in (run, twin):
        each.step(0)
    before = run.weights()
    passes = left(run, 1)
    same(copied(run.model.state_dict()), before)
    assert next(passes, None) is None
    for each in (run, twin):
        each.step(1)
    same(run.everything(), twin.everything())


def in_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


OTHERS: dict[str, Callable[[], Any]] = {
    "plain": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "enable_grad": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("thread", [False, True], ids=["here", "thread"])
@obeying(only=lambda e: e.passes(1) > 1)
def test_a_loop_that_is_collected_touches_no_other_code(entry: Entry, other: str, thread: bool) -> None:
    """Its weights and buffers return; grad mode and random numbers are those of the code that happens to run."""
    run, twin = Run(entry), Run(entry)
    for each in (run, twin):
        each.step(0)
    before = twin.everything()
    gc.collect()
    cycle: list[Any] = [left(run, 1, at=2)]
    cycle.append(cycle)
    torch.set_grad_enabled(True)  # a pass without a gradient has switched them off
    tensors = [[*each.model.parameters(), *each.model.buffers()] for each in (run, twin)]
    moved = not all(map(torch.equal, *tensors))
    assert moved or entry.name == "sharpbalance"  # whose second pass is at the weights
    after: list[Any] = []

    def collect() -> None:
        with OTHERS[other]():
            after.append(state())
            gc.collect()
            after.append(state())

    def state() -> tuple[Any, ...]:
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        return *modes, torch.get_rng_state().tolist()

    torch.default_generator.manual_seed(77)
    del cycle
    (in_a_thread if thread else lambda work: work())(collect)
    assert after[0] == after[1]
    assert torch.is_grad_enabled()
    same(run.everything(), before)
    for each in (run, twin):
        each.step(1)
    same(run.everything(), twin.everything())


@obeying(only=lambda e: e.passes(1) > 1)
def test_a_loop_that_another_thread_closes_touches_none_of_its_state(entry: Entry) -> None:
    run = Run(entry)
    run.step(0)
    before = run.everything()
    passes, enabled = left(run, 1, at=2), []

    def close() -> None:
        with torch.no_grad():
            passes.close()
            enabled.append(torch.is_grad_enabled())

    noise = torch.get_rng_state()
    in_a_thread(close)
    torch.set_grad_enabled(True)
    assert enabled == [False]
    assert torch.equal(noise, torch.get_rng_state())
    same(run.everything(), before)


class Wrapper(nn.Module):
    """A wrapper with the model in `module`, as DDP has it."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.module(x)
        return out


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).double()


def displaced(model: nn.Module, opt: Any) -> Any:
    passes = opt.passes()
    x, y = batch(0)
    next(passes).backward(F.cross_entropy(model(x), y))
    next(passes)
    return passes


PARTS: dict[str, Callable[[Any], nn.Module]] = {
    "wrapper": lambda m: m,
    "inner": lambda m: m.module,
    "layer": lambda m: m.module[0],
}


@pytest.mark.parametrize("part", PARTS)
def test_the_wrapper_the_model_and_its_parts_are_saved_as_they_are(part: str) -> None:
    model = Wrapper(network())
    saved = PARTS[part](model)
    before = copied(saved.state_dict())
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, model=model)
    passes = displaced(model, opt)
    assert not torch.equal(model.module[0].weight, network()[0].weight)
    same(copied(saved.state_dict()), before)
    with pytest.raises(RuntimeError, match=r"closed before its last pass.*state_dict\(\)"):
        opt.step()
    del passes


def test_an_exception_handler_saves_the_weights_while_the_traceback_lives() -> None:
    model = network()
    before = copied(model.state_dict())
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, model=model)
    x, y = batch(0)

    def train() -> None:
        passes = opt.passes()
        for pass_ in passes:
            pass_.backward(F.cross_entropy(model(x), y))
            if pass_.probe.at is not None:
                raise ZeroDivisionError

    try:
        train()
    except ZeroDivisionError:
        same(copied(model.state_dict()), before)


def test_closing_ends_a_loop_with_its_block() -> None:
    """Without `model=` too, and for whatever reads the weights."""
    model = network()
    before = copied(model.state_dict())
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5)
    x, y = batch(0)
    try:
        with contextlib.closing(opt.passes()) as passes:
            for pass_ in passes:
                pass_.backward(F.cross_entropy(model(x), y))
                if pass_.probe.at is not None:
                    raise ZeroDivisionError
    except ZeroDivisionError:
        same(dict(copied(model.state_dict())), before)


def test_copies_of_the_model_have_loops_of_their_own() -> None:
    """A deep copy of both, and a pickle of the model, which can be opened without steppe."""
    model = network()
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), rho=0.5, model=model)
    data = pickle.dumps(model)
    assert b"steppe" not in data
    before = copied(model.state_dict())
    same(dict(pickle.loads(data).state_dict()), before)
    alone, (its_model, its_opt) = copy.deepcopy(model), copy.deepcopy((model, opt))
    passes, its_turns = displaced(model, opt), displaced(its_model, its_opt)
    for other in (alone, its_model):
        same(copied(other.state_dict()), before)
    assert next(its_turns, None) is None
    assert not torch.equal(model[0].weight, before["0.weight"])  # nobody has closed its loop
    passes.close()


@pytest.mark.parametrize("copied_", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
@obeying(only=lambda e: e.passes(1) > 1)
def test_copies_in_an_unfinished_loop_are_refused_while_weights_are_displaced(entry: Entry, copied_: Any) -> None:
    """A copy of the optimizer closes the loop first, as its `state_dict` does."""
    run = Run(entry)
    run.step(0)
    before = run.weights()
    copied_(run.model)
    passes = left(run, 1)
    with pytest.raises(RuntimeError, match=r"copied or pickled in a loop over passes\(\)(.|\n)*close_unfinished"):
        copied_(run.model)
    copied_(run.opt)
    assert next(passes, None) is None
    same(run.weights(), before)
    copied_(run.model)


def test_nothing_stays_on_a_model_whose_optimizer_is_gone() -> None:
    model = network()
    for _ in range(3):
        opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
        opt.load_state_dict(opt.state_dict())
        opt.__setstate__(opt.__getstate__())
        assert all(len(m._state_dict_pre_hooks) == 1 for m in model.modules())
        del opt
        gc.collect()
        assert not any(m._state_dict_pre_hooks for m in model.modules())
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        opt = steppe.sam(base, model=model)
        assert len(base._optimizer_step_pre_hooks) == 1
        del opt
        gc.collect()


def test_a_loop_of_another_model_goes_on() -> None:
    model, other = network(), network()
    opt, its = (steppe.sam(torch.optim.SGD(m.parameters(), lr=0.1), rho=0.5, model=m) for m in (model, other))
    passes, others = displaced(model, opt), displaced(other, its)
    model.state_dict()
    assert torch.equal(model[0].weight, network()[0].weight)
    assert not torch.equal(other[0].weight, model[0].weight)
    assert next(passes, None) is None
    others.close()


def test_gradients_are_on_after_a_step_whose_memory_cannot_be_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the capture of a graph fails: nothing can be written before the capture has ended."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    opt = steppe.sam(torch.optim.SGD(net.parameters(), lr=0.1), model=net)

    def undo(*_: object, **__: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(opt.forward_state, "undo", undo)

    def closure() -> torch.Tensor:
        raise ValueError("of the closure")

    with pytest.raises(RuntimeError, match="not permitted"):
        opt.step(closure)
    assert torch.is_grad_enabled()
