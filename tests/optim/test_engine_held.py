"""What a step holds on to while the weights are displaced: an exact copy of them, and statistics that stay."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from registry import ENTRIES, Entry, Run, copied, same
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe import Probe

F64 = torch.float64
SEVERAL = [e for e in ENTRIES if e.passes(1) > 1]  # passes
every_method = pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
alone_and_stacked = pytest.mark.parametrize("alone", [True, False], ids=["alone", "stacked"], indirect=True)
fixture_alone = pytest.mark.usefixtures("alone")
several_passes = pytest.mark.parametrize("entry", SEVERAL, ids=lambda e: e.name)


@pytest.fixture
def alone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tensor is a chunk of its own, as on a GPU, or small ones are stacked, as on a CPU."""
    if request.param:
        monkeypatch.setattr("steppe.core.vector.STACK_BELOW", 0)


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


# -- the weights --------------------------------------------------------------------------------------------


@several_passes
def test_after_a_pass_that_fails_everything_is_as_before(entry: Entry) -> None:
    run = Run(entry, dtype=torch.float32)
    run.step(0)
    run.step(1)
    before = run.everything()

    for bad in (0, 1):
        with pytest.raises(ZeroDivisionError):
            run.step(2, meddle=lambda number, loss: loss * (1 // (bad - number)))
        same(run.everything(), before)


@several_passes
def test_after_a_step_that_is_left_everything_is_as_before(entry: Entry) -> None:
    run = Run(entry, dtype=torch.float32)
    run.step(0)
    run.step(1)
    before = run.everything()
    for leave in ("close", "drop", "begin anew"):
        passes = run.opt.passes(**run.extras(2))
        pass_ = next(passes)
        pass_.backward(run.loss(pass_, 2))
        run.loss(next(passes), 2)  # away, and a forward pass has been taken there
        if leave == "close":
            passes.close()
        elif leave == "drop":
            del passes
        else:
            run.opt.passes(**run.extras(2))
        same(run.everything(), before)


@several_passes
def test_a_refused_step_leaves_no_trace(entry: Entry) -> None:
    run = Run(entry, dtype=torch.float32)
    run.step(0)
    run.step(1)
    before = run.everything()
    for bad in (0, 1):
        with pytest.raises(FloatingPointError):
            run.step(2, meddle=lambda number, loss: loss * (math.nan if number == bad else 1))
        same(run.everything(), before)


@pytest.mark.sampled(16)
@alone_and_stacked
@fixture_alone
@every_method
def test_a_run_that_is_taken_up_again_goes_on_bitwise(entry: Entry) -> None:
    whole, first, second = (Run(entry, dtype=torch.float32) for _ in range(3))
    for i in range(4):
        whole.step(i)
    for i in range(2):
        first.step(i)
    saved = first.everything()
    second.model.load_state_dict(saved["model"])
    second.opt.load_state_dict(saved["optimizer"])
    for i in range(2, 4):
        second.step(i)
    same(second.everything(), whole.everything())


class Wandering:
    """Goes away, comes back, goes away twice in a row; asks for norms everywhere and returns the last gradient."""

    slots = ()

    def __init__(self) -> None:
        self.norms: list[tuple[Tensor, Tensor]] = []

    def options(self) -> dict[str, Any]:
        return {}

    def cost(self, step: int) -> int:
        return 5

    def note(self, vector: Any) -> None:
        vector = vector.clone()
        self.norms.append((vector.norm(), torch.cat([t.reshape(-1) for t in vector.tensors]).norm()))

    def plan(self, context: Any) -> Any:
        here = yield Probe()
        self.note(here.grad)
        self.note(context.weights)
        there = yield Probe(at=here.grad * 1.0)
        self.note(there.grad)
        self.note(context.weights)
        back = yield Probe(at=None)
        self.note(back.grad)
        self.note(context.weights)
        far = yield Probe(at=here.grad * 2.0)
        self.note(far.grad)
        last = yield Probe(at=here.grad * -1.0)
        self.note(context.weights)
        return last.grad


@alone_and_stacked
@fixture_alone
@pytest.mark.parametrize("dtype", [torch.float32, F64])
def test_a_plan_may_come_back_and_leave_again(dtype: torch.dtype) -> None:
    run = Run(Entry("wandering", Wandering), dtype=dtype, dropout=0.0)
    params = list(run.model.parameters())
    for number in range(3):
        before, seen, grads = [p.detach().clone() for p in params], [], []
        for pass_ in run.opt.passes():
            seen.append([p.detach().clone() for p in params])
            pass_.backward(run.loss(pass_, number))
            grads.append([p.grad.clone() for p in params])
        for at, factor in zip(seen, (0.0, 1.0, 0.0, 2.0, -1.0), strict=True):
            same(at, [b + g * factor if factor else b for b, g in zip(before, grads[0], strict=True)])
        same([p.detach() for p in params], before)
        same(grads[2], grads[0])
        run.opt.step()
    for found, expected in run.method.norms:
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("bad", [None, 0, 1, 2])
def test_accumulated_steps_go_back_to_before_the_first_of_them(bad: int | None) -> None:
    """Though the memory of what was saved is used again as soon as nobody has it."""
    entry = next(e for e in ENTRIES if e.name == "sam-3-steps")
    run = Run(entry, dtype=torch.float32)
    run.step(0)
    run.step(1)
    before = run.everything()
    statistics = []
    for micro in range(3):
        for pass_ in run.opt.passes(accumulate=True):
            pass_.backward(run.loss(pass_, 10 + micro) * (math.nan if micro == bad else 1))
        statistics.append(copied(dict(run.model.named_buffers())))
    assert not torch.equal(statistics[0]["norm.running_mean"], statistics[2]["norm.running_mean"])
    if bad is None:
        run.opt.step()
        same(dict(run.model.named_buffers()), statistics[2])
    else:
        with pytest.raises(FloatingPointError):
            run.opt.step()
        same(run.everything(), before)
    for i in (2, 3):  # and goes on
        run.step(i)


@alone_and_stacked
@fixture_alone
def test_parameters_may_lie_in_any_order_in_memory() -> None:
    def ends(order: torch.memory_format) -> list[Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(16, 2))
        model.to(F64, memory_format=order)
        x, y = torch.randn(6, 3, 4, 4, dtype=F64), torch.arange(6) % 2
        opt = steppe.build("asam", torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=model)
        for i in range(4):
            if i == 2:
                model.to(memory_format=torch.contiguous_format)
            opt.step(lambda pass_: pass_.backward(F.cross_entropy(model(x), y)))
        return list(model.state_dict().values())

    close(ends(torch.channels_last), ends(torch.contiguous_format))


@pytest.mark.parametrize("height", [1, 4])
def test_parameters_may_change_their_shape_between_steps(height: int) -> None:
    model, x = nn.Linear(3, 2, bias=False), rows(0)
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    opt.step(lambda pass_: pass_.backward(model(x).square().mean()))
    model.weight.grad = None
    model.weight.data = torch.randn(height, 3)
    before = model.weight.detach().clone()
    for pass_ in opt.passes():
        pass_.backward(model(x).square().mean())
    assert torch.equal(model.weight, before)


class Odd(nn.Module):
    """Buffers that are dense, but not in the order of their dimensions; one that moves and one that never does."""

    def __init__(self) -> None:
        super().__init__()
        grid = torch.arange(2.0 * 3 * 2 * 4).view(2, 3, 2, 4)
        self.register_buffer("kernel", grid.to(memory_format=torch.channels_last))
        self.register_buffer("running_table", torch.arange(6.0).view(2, 3).t())

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.running_table += x.detach().mean()
        return x + self.running_table.clone().mean() * 0 + self.kernel.mean() * 0


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("end", ["fails", "is refused", "is taken"])
def test_buffers_may_lie_in_any_order_in_memory(end: str, steps: int) -> None:
    model = nn.Sequential(nn.Linear(3, 4), Odd(), nn.Linear(4, 1))
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))

    def take(factor: float = 1.0, fail: bool = False) -> None:
        for i, pass_ in enumerate(opt.passes()):
            loss = model(x).square().mean() * factor
            if fail and i:
                raise ZeroDivisionError
            pass_.backward(loss)
        opt.step()

    for _ in range(steps):
        take()
    before, once = buffers(model), copy.deepcopy(model)
    if end == "fails":
        with pytest.raises(ZeroDivisionError):
            take(fail=True)
    elif end == "is refused":
        with pytest.raises(FloatingPointError):
            take(math.nan)
    else:
        once(x)
        before = buffers(once)
        take()
    same(buffers(model), before)


# -- statistics ---------------------------------------------------------------------------------------------


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {k: v.clone() for k, v in model.named_buffers()}


class OwnForward(nn.BatchNorm1d):
    """Moves its statistics whether it tracks or not."""

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, 0.3)


class Narrower(nn.BatchNorm1d):
    """Another class, which runs as torch's own does."""

    def _check_input_dim(self, x: Tensor) -> None:
        assert x.ndim == 2


def instance_forward(width: int) -> nn.Module:
    layer = nn.BatchNorm1d(width, affine=False)
    layer.forward = lambda x: F.batch_norm(x, layer.running_mean, layer.running_var, training=True)
    return layer


class Borrowing(nn.Module):
    """Normalises by functions, with the buffers of a layer that it never calls."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        return F.batch_norm(x, self.of.running_mean, self.of.running_var, self.of.weight, self.of.bias, self.training)


class Hooked(nn.BatchNorm1d):
    """Runs as torch's own does; a hook counts rows in a buffer, where torch counts batches or in one more."""

    def __init__(self, width: int, counter: str) -> None:
        super().__init__(width)
        self.counter = counter
        if counter not in self._buffers:
            self.register_buffer(counter, torch.tensor(0))
        self.register_forward_hook(self.count)

    @staticmethod
    def count(layer: Hooked, given: Any, found: Tensor) -> None:
        layer._buffers[layer.counter] += len(found)


class Counting(nn.Module):
    """Moves a buffer of any name, and replaces another."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("rows_seen", torch.tensor(0))
        self.register_buffer("running_top", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.rows_seen += len(x)
            self.running_top = torch.maximum(self.running_top, x.detach().amax(0))
        return x / (1 + self.running_top.clone())


def frozen(width: int) -> nn.Module:
    """One layer in eval mode, which has statistics to use, beside one that trains."""
    layer = nn.BatchNorm1d(width)
    layer.running_mean.fill_(0.3)
    layer.running_var.fill_(2.0)
    return nn.Sequential(layer.eval(), nn.BatchNorm1d(width))


def folded(layer: Callable[[int], nn.Module], dims: int) -> Callable[[int], nn.Module]:
    """A layer of images or volumes in a network on rows of six: two channels, of three places each."""
    shape = (2, *([1] * (dims - 1)), 3)
    return lambda width: nn.Sequential(nn.Unflatten(1, shape), layer(2), nn.Flatten())


LAYERS: dict[str, Callable[[int], nn.Module]] = {
    "BatchNorm1d": nn.BatchNorm1d,
    "BatchNorm2d": folded(nn.BatchNorm2d, 2),
    "BatchNorm3d": folded(nn.BatchNorm3d, 3),
    **({"SyncBatchNorm": nn.SyncBatchNorm} if torch.__version__ >= (2, 7) else {}),  # before, it ran on GPUs only
    "momentum=None": lambda width: nn.BatchNorm1d(width, momentum=None),
    "affine=False": lambda width: nn.BatchNorm1d(width, affine=False),
    "never tracks": lambda width: nn.BatchNorm1d(width, track_running_stats=False),
    "eval": lambda width: nn.BatchNorm1d(width).eval(),
    "frozen beside training": frozen,
    "a class that runs as torch's": Narrower,
    "a class with its own forward": OwnForward,
    "an instance with its own forward": instance_forward,
    "a layer that lends its buffers": Borrowing,
    "a layer with a hook": lambda width: Hooked(width, "num_batches_tracked"),
    "a layer with one more buffer": lambda width: Hooked(width, "running_rows"),
    "InstanceNorm": folded(lambda width: nn.InstanceNorm1d(width, track_running_stats=True, affine=True), 1),
    "a module with moving buffers": Counting,
    "two kinds": lambda width: nn.Sequential(nn.BatchNorm1d(width), Counting(width)),
}
METHODS: dict[str, Callable[[], Any]] = {
    "two passes": lambda: steppe.SAM(1.0),
    "three passes": lambda: steppe.SAM(1.0, steps=2),
    "SA-SAM": steppe.SASAM,
}
layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS.keys())
methods = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS.keys())


def problem(layer: Callable[[int], nn.Module], method: Any = None) -> tuple[nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), layer(6), nn.Tanh(), nn.Linear(6, 1))
    base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return model, steppe.SharpnessAware(base, method or steppe.SAM(1.0), model=model)


def rows(number: int) -> Tensor:
    return torch.randn(7, 3, generator=torch.Generator().manual_seed(number))


def loss_of(model: nn.Module, number: int) -> Tensor:
    return (model(rows(number)) - 1).square().mean()


@pytest.mark.sampled(16)
@methods
@layers
def test_buffers_move_as_in_one_plain_pass(layer: Callable[[int], nn.Module], method: Callable[[], Any]) -> None:
    model, opt = problem(layer, method())
    for i in range(4):
        plain = problem(layer)[0]  # not a copy: closures would hold the first model
        plain.load_state_dict(model.state_dict())
        loss_of(plain, i)
        opt.step(lambda pass_: pass_.backward(loss_of(model, i)))
        same(buffers(model), buffers(plain))


@pytest.mark.parametrize("how", ["raises", "closed", "dropped", "begun anew"])
@layers
def test_buffers_are_as_before_however_a_step_ends(layer: Callable[[int], nn.Module], how: str) -> None:
    model, opt = problem(layer, steppe.SAM(1.0, steps=2))
    opt.step(lambda pass_: pass_.backward(loss_of(model, 0)))
    before = copied(model.state_dict())
    for taken in (1, 2, 3):
        passes = opt.passes()
        for _ in range(taken):
            pass_ = next(passes)
            pass_.backward(loss_of(model, 1))
        if how == "raises":
            with pytest.raises(ZeroDivisionError):
                passes.throw(ZeroDivisionError())
        elif how == "closed":
            passes.close()
        elif how == "dropped":
            del passes
        else:
            opt.passes()
        same(dict(model.state_dict()), dict(before))


def test_who_turns_tracking_off_between_steps_is_obeyed() -> None:
    model, opt = problem(nn.BatchNorm1d)
    opt.step(lambda pass_: pass_.backward(loss_of(model, 0)))
    model[1].track_running_stats = False
    before = buffers(model)
    opt.step(lambda pass_: pass_.backward(loss_of(model, 1)))
    assert model[1].track_running_stats is False
    same(buffers(model), before)
    model[1].track_running_stats = True
    opt.step(lambda pass_: pass_.backward(loss_of(model, 2)))
    assert int(model[1].num_batches_tracked) == 2


def test_copies_and_pickles_made_between_steps_track() -> None:
    model, opt = problem(nn.BatchNorm1d)
    opt.step(lambda pass_: pass_.backward(loss_of(model, 0)))
    other = copy.deepcopy(model)
    assert other[1].track_running_stats
    its = steppe.sam(torch.optim.SGD(other.parameters(), lr=0.1), model=other)
    its.step(lambda pass_: pass_.backward(loss_of(other, 1)))
    assert int(other[1].num_batches_tracked) == 2
    assert int(model[1].num_batches_tracked) == 1


# -- compiled models ----------------------------------------------------------------------------------------


class Compilations:
    """A compiler that compiles nothing and counts how often it is asked to."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, graph: Any, example: Any) -> Any:
        self.asked += 1
        return graph.forward


class Small(nn.Module):
    """Not an nn.Sequential, which is not compiled in place."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.norm(self.first(x))))


@pytest.mark.parametrize("how", ["model.compile", "torch.compile", "a part of it"])
def test_a_compiled_model_is_compiled_once(how: str) -> None:
    torch.compiler.reset()
    compiler = Compilations()
    torch.manual_seed(0)
    model = Small()
    plain = copy.deepcopy(model)
    whole: Any = model
    its = steppe.sam(torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), model=plain, rho=1.0)
    if how == "model.compile":
        model.compile(backend=compiler)
    elif how == "torch.compile":
        whole = torch.compile(model, backend=compiler)
    else:
        model.compile(backend=compiler)
        whole = nn.Sequential(model)
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model=whole, rho=1.0)
    for i in range(3):
        for pass_ in opt.passes():
            pass_.backward(loss_of(whole, i))
        opt.step()
        its.step(lambda pass_: pass_.backward(loss_of(plain, i)))
    assert compiler.asked == 1
    torch.testing.assert_close(model.state_dict(), plain.state_dict())
