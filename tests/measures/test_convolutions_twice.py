"""Convolutions differentiated by plain kernels: against torch's own derivatives, differences, and counts of calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from threading import Thread
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.autograd import forward_ad, grad, gradcheck, gradgradcheck
from torch.autograd.graph import saved_tensors_hooks
from torch.func import functional_call
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from steppe.measures.curvature.convolutions import PlainConvolutions

F64 = torch.float64
CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}


def close(a: Any, b: Any, tolerance: float = 1e-11) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = F64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64).to(dtype)


def inside(function: Any, *args: Any, **kwargs: Any) -> Any:
    with PlainConvolutions():
        return function(*args, **kwargs)


def taken(y: Tensor) -> bool:
    """Whether a tensor was made by the functions under test."""
    return y.grad_fn is not None and y.grad_fn.name() == "_ConvolutionBackward"


class Calls(TorchDispatchMode):
    """Notes every convolution and gradient of one that reaches a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[str, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "conv" in func.name():
            self.made.append((func.name().removeprefix("aten::"), args))
        return func(*args, **(kwargs or {}))

    def __len__(self) -> int:
        return len(self.made)


@dataclass(frozen=True)
class Layer:
    """A convolution to be made of random tensors."""

    dimensions: int = 2
    size: int = 5
    kernel: int = 3
    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1
    bias: bool = True

    def tensors(self) -> list[Tensor]:
        x = normal(2, 2 * self.groups, *range(self.size, self.size + self.dimensions), seed=1)
        weight = normal(self.groups, 2, *[self.kernel] * self.dimensions, seed=2)
        return [t.requires_grad_() for t in [x, weight, *([normal(self.groups, seed=3)] if self.bias else [])]]

    def __call__(self, *tensors: Tensor) -> Tensor:
        x, weight, *bias = tensors
        how = (self.stride, self.padding, self.dilation, self.groups)
        return CONV[self.dimensions](x, weight, bias[0] if bias else None, *how)


LAYERS = [
    Layer(1, 6, 3, stride=2, padding=1),
    Layer(1, 6, 2, dilation=2, groups=2, bias=False),
    Layer(2, 4, 1),
    Layer(2, 4, 1, stride=2, bias=False),  # the shortcut of a ResNet: not every pixel is seen
    Layer(2, 4, 3, stride=2, padding=1),  # of 4 x 5 pixels: the stride does not divide one side
    Layer(2, 4, 2, padding=2),  # more padding than the kernel covers
    Layer(2, 3, 2, dilation=2, padding=1, groups=2),
    Layer(3, 2, 2, stride=2, padding=1),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_derivatives_agree_with_differences(layer: Layer) -> None:
    tensors = layer.tensors()

    def made(*tensors: Tensor) -> Tensor:
        found = inside(layer, *tensors)
        assert taken(found)
        return found

    assert gradcheck(made, tensors)
    assert gradgradcheck(made, tensors, fast_mode=True)


def orders(y: Tensor, tensors: list[Tensor], n: int) -> list[list[Tensor]]:
    """The first derivatives along random directions: of the output, of its first derivatives, and so on."""
    found, outputs = [], [y.tanh()]
    for order in range(n):
        weights = [normal(*o.shape, seed=10 * order + i).to(o) for i, o in enumerate(outputs)]
        outputs = list(grad(outputs, tensors, weights, create_graph=True))
        found.append(outputs)
    return found


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_three_orders_equal_those_of_torch(data: st.DataObject) -> None:
    dimensions, kernel, dilation = (data.draw(st.integers(1, 3)) for _ in range(3))
    padding = data.draw(st.integers(0, 3))
    least = max(1, dilation * (kernel - 1) + 1 - 2 * padding)
    layer = Layer(
        dimensions,
        data.draw(st.integers(least, least + 3)),
        kernel,
        data.draw(st.integers(1, 3)),
        padding,
        dilation,
        data.draw(st.integers(1, 3)),
        data.draw(st.booleans()),
    )
    tensors = layer.tensors()
    ours, theirs = inside(layer, *tensors), layer(*tensors)
    assert taken(ours)
    assert torch.equal(ours, theirs)
    close(orders(ours, tensors, 3), orders(theirs, tensors, 3))


@pytest.mark.parametrize(("dtype", "tolerance"), [(F64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_first_gradients_are_those_of_torch(dtype: torch.dtype, tolerance: float) -> None:
    layer = Layer(2, 6, 3, padding=1, groups=2)
    tensors = [t.detach().to(dtype).requires_grad_() for t in layer.tensors()]
    ours, theirs = (orders(y, tensors, 2) for y in (inside(layer, *tensors), layer(*tensors)))
    assert all(torch.equal(a, b) for a, b in zip(ours[0][:2], theirs[0][:2], strict=True))  # the very same kernels
    close(ours[0][2], theirs[0][2], tolerance)
    for a, b in zip(ours[1], theirs[1], strict=True):
        assert a.dtype is dtype
        assert (a - b).norm() <= tolerance * b.norm()


def test_gradients_depend_on_what_they_are_computed_from() -> None:
    """The gradient in the data is not a function of the data, though it has their shape."""
    x, weight, _ = Layer().tensors()
    y = inside(torch.conv2d, x, weight.detach())
    assert not grad(y.sum(), x, create_graph=True)[0].requires_grad


def test_an_empty_batch_has_gradients() -> None:
    weight = normal(3, 2, 3, 3).requires_grad_()
    y = inside(torch.conv2d, normal(0, 2, 5, 5), weight)
    assert taken(y)
    assert torch.equal(grad(y.sum(), weight)[0], torch.zeros_like(weight))


CHANNELS, ROWS = (
    (3, 4, 5, 6),
    2,
)  # of the net's input and of each layer: all different, so that shapes tell which is which


class Net(nn.Module):
    """Three convolutions, normalisation and smooth functions."""

    def __init__(self) -> None:
        super().__init__()
        pairs = zip(CHANNELS, CHANNELS[1:], ({"padding": 1}, {"stride": 2, "bias": False}, {}), strict=False)
        self.convolutions = nn.ModuleList(nn.Conv2d(a, b, 3, **how) for a, b, how in pairs)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.convolutions
        return third(functional.silu(second(torch.tanh(self.norm(first(x)))))).mean((2, 3))


def net(dtype: torch.dtype = F64) -> Net:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = Net()
        model.norm.running_var.uniform_(0.5, 2)
    return model.to(dtype).eval()


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return functional.cross_entropy(model(x), torch.arange(len(x)))


def product(gradient: Any, weights: list[Tensor]) -> list[Tensor]:
    along = [normal(*w.shape, seed=20 + i).to(w) for i, w in enumerate(weights)]
    return list(grad(gradient, weights, along, retain_graph=True))


def both(model: nn.Module, x: Tensor, mode: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The gradient, with its graph, and a Hessian product; the mode covers the forward pass only."""
    weights = list(model.parameters())
    with mode:
        value = loss(model, x)
    gradient = list(grad(value, weights, create_graph=True))
    return gradient, product(gradient, weights)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
def test_hessian_products_equal_the_dense_hessian_and_those_of_torch() -> None:
    model, x = net(), normal(ROWS, 3, 9, 9)
    gradient, found = both(model, x, PlainConvolutions())
    close((gradient, found), both(model, x, nullcontext()))
    names, weights = zip(*model.named_parameters(), strict=True)
    sizes = [w.numel() for w in weights]

    def of_flat(flat: Tensor) -> Tensor:
        parts = [p.view_as(w) for p, w in zip(flat.split(sizes), weights, strict=True)]
        return functional.cross_entropy(
            functional_call(model, dict(zip(names, parts, strict=True)), (x,)), torch.arange(ROWS)
        )

    some = [0, 50, sum(sizes) // 2, sum(sizes) - 1]  # columns: the whole matrix takes seconds
    flat = torch.cat([w.detach().flatten() for w in weights])
    columns = torch.func.vmap(
        lambda e: torch.func.jvp(torch.func.grad(of_flat), (flat,), (e,))[1]
    )(torch.eye(len(flat), dtype=F64)[some])  # fmt: skip
    with PlainConvolutions():
        slope = grad(loss(model, x), weights, create_graph=True)
    for i, column in zip(some, columns, strict=True):
        units = torch.eye(1, len(flat), dtype=F64).roll(i, 1)[0].split(sizes)
        along = [u.view_as(w) for u, w in zip(units, weights, strict=True)]
        row = grad(slope, weights, along, retain_graph=True)
        close(torch.cat([r.flatten() for r in row]), column)


def test_a_product_takes_six_plain_kernels_a_layer_and_two_in_the_first() -> None:
    """Two each for the derivatives of the convolution and of its two gradients; the data of the first have none."""
    model, x = net(), normal(ROWS, 3, 9, 9)
    weights = list(model.parameters())
    shapes: set[tuple[torch.Size, torch.Size]] = set()
    for m in model.convolutions:
        m.register_forward_hook(lambda m, args, out: shapes.add((args[0].shape, m.weight.shape)))
    with PlainConvolutions():
        value = loss(model, x)
    with Calls() as first:
        gradient = grad(value, weights, create_graph=True)
    assert len(first) == 2 * len(shapes) - 1
    with Calls() as second:
        product(gradient, weights)
    forwards = [args for name, args in second.made if name == "convolution"]
    backwards = [args for name, args in second.made if name == "convolution_backward"]
    assert (len(forwards), len(backwards), len(second)) == (5, 9, 6 * 2 + 2)
    assert {(x.shape, w.shape) for x, w, *_ in forwards} == shapes
    assert {(x.shape, w.shape) for _, x, w, *_ in backwards} == shapes
    assert not any(args[6] for args in forwards)
    assert not any(args[7] for args in backwards)
    assert all(sum(args[-1]) == 1 for args in backwards)


def test_a_product_with_the_jacobian_and_its_transpose_takes_four_a_layer() -> None:
    """As a Gauss-Newton matrix does: each gradient is differentiated in the output's gradient only."""
    model, x = net(), normal(ROWS, 3, 9, 9)
    weights = list(model.parameters())
    output = inside(model, x)
    cotangent = torch.zeros_like(output, requires_grad=True)
    pulled = grad(output, weights, cotangent, create_graph=True)
    along = [normal(*w.shape, seed=20 + i) for i, w in enumerate(weights)]
    with Calls() as calls:
        (pushed,) = grad(pulled, cotangent, along, retain_graph=True)
        found = grad(output, weights, pushed)
    assert len(calls) == 4 * 2 + 2
    output = model(x)
    pulled = grad(output, weights, cotangent, create_graph=True)
    close(found, grad(output, weights, grad(pulled, cotangent, along, retain_graph=True)))


def test_six_calls_where_the_data_of_the_first_layer_ask_too() -> None:
    x, weight, _ = Layer().tensors()
    y = inside(torch.conv2d, x, weight).square()
    gradient = grad(y.sum(), [x, weight], create_graph=True)
    with Calls() as calls:
        grad(gradient, [x, weight], [x.detach(), weight.detach()])
    assert len(calls) == 6


@pytest.mark.parametrize("asking", [(0,), (1,), (2,), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("others_ask_too", [False, True])
def test_what_needs_no_gradient_costs_nothing(asking: tuple[int, ...], others_ask_too: bool) -> None:
    """Neither tensors without a gradient, nor those whose gradient is not wanted this time."""
    tensors = [t.requires_grad_(others_ask_too or i in asking) for i, t in enumerate(Layer().tensors())]
    y = inside(Layer(), *tensors)
    assert taken(y)
    wanted = [tensors[i] for i in asking]
    with Calls() as calls:
        first = grad(y.square().sum(), wanted, create_graph=True)
    assert len(calls) == len({0, 1} & set(asking))
    with Calls() as calls:
        second = grad(first, wanted, wanted)
    assert len(calls) <= 2 * 3
    theirs = Layer()(*tensors)
    expected = grad(theirs.square().sum(), wanted, create_graph=True)
    close((list(first), list(second)), (list(expected), list(grad(expected, wanted, wanted))))


def test_backward_fills_every_leaf_and_grad_stops_at_what_is_between() -> None:
    model, x = net(), normal(ROWS, 3, 9, 9)
    expected = grad(loss(model, x), list(model.parameters()))
    inside(loss, model, x).backward()
    close([w.grad for w in model.parameters()], list(expected))
    first, second, _ = model.convolutions
    between = inside(first, x)
    y = inside(second, between)
    with Calls() as calls:
        (found,) = grad(y.sum(), between)
    assert len(calls) == 1
    close(found, grad(second(between).sum(), between)[0])


class Drops(torch.autograd.Function):
    """The sum of two, of which the first gets no gradient."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return a.sum() + b.sum()

    @staticmethod
    def backward(ctx: Any, *by: Tensor) -> Any:
        return None, by[0].expand(1)


@pytest.mark.parametrize("which", [None, 0, 1])
def test_no_gradient_in_means_none_out(which: int | None) -> None:
    """Of the convolution, of its gradient in the data, and of that in the weights."""
    x, weight, _ = Layer().tensors()
    y = inside(torch.conv2d, x, weight)
    up = torch.ones_like(y, requires_grad=True)
    dropped = y if which is None else grad(y, [x, weight], up, create_graph=True)[which]
    end = Drops.apply(dropped, torch.ones(1, dtype=F64, requires_grad=True))
    with Calls() as calls:
        assert grad(end, [x, weight, up], allow_unused=True) == (None, None, None)
    assert not len(calls)


def test_the_graph_holds_no_more_than_that_of_torch() -> None:
    model, x = net(), normal(ROWS, 3, 9, 9)

    @contextmanager
    def weighed(held: dict[int, Any]) -> Iterator[None]:
        def note(t: Tensor) -> Tensor:
            held[t.untyped_storage().data_ptr()] = t.untyped_storage()
            return t

        with saved_tensors_hooks(note, lambda t: t):
            yield

    sizes = []
    for mode in (PlainConvolutions(), nullcontext()):
        held: dict[int, Any] = {}
        with weighed(held):
            both(model, x, mode)
        sizes.append(sum(s.nbytes() for s in held.values()))
    assert 0 < sizes[0] <= sizes[1]


def test_derivatives_outlive_the_mode_in_another_thread() -> None:
    model, x = net(), normal(ROWS, 3, 9, 9)
    weights = list(model.parameters())
    with PlainConvolutions():
        value = loss(model, x)
    found: list[Any] = []

    def differentiate() -> None:
        with Calls() as calls:
            gradient = grad(value, weights, create_graph=True)
            found.extend([product(gradient, weights), len(calls)])

    thread = Thread(target=differentiate)
    thread.start()
    thread.join()
    close(found[0], both(model, x, nullcontext())[1])
    assert found[1] == 5 + 14


@pytest.mark.parametrize("checkpointed_twice", [False, True])
def test_recomputed_layers_agree(checkpointed_twice: bool) -> None:
    """Activation checkpointing runs the forward pass again, within the mode or after it."""
    layer, tensors = Layer(2, 5, 3, padding=1), Layer(2, 5, 3, padding=1).tensors()
    with PlainConvolutions():
        y = checkpoint(layer, *tensors, use_reentrant=False)
        first = grad(y.tanh().sum(), tensors, create_graph=True) if checkpointed_twice else None
    first = first or grad(y.tanh().sum(), tensors, create_graph=True)
    ours = grad(first, tensors, tensors)
    expected = grad(layer(*tensors).tanh().sum(), tensors, create_graph=True)
    close((list(first), list(ours)), (list(expected), list(grad(expected, tensors, tensors))))


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_several_directions_at_once() -> None:
    """The vmap of torch.autograd.grad works, also where a graph of its results is asked for."""
    model, x = net(), normal(ROWS, 3, 9, 9)
    weights = list(model.parameters())
    gradient, found = both(model, x, PlainConvolutions())
    along = [normal(*w.shape, seed=20 + i) for i, w in enumerate(weights)]
    stacks = [torch.stack([a, -2 * a]) for a in along]
    stacked = grad(gradient, weights, stacks, is_grads_batched=True, create_graph=True)
    close([s[0] for s in stacked], found)
    close([s[1] for s in stacked], [-2 * f for f in found])
    thirds = [grad([s[0] for s in stacked], weights, along)]
    theirs, _ = both(model, x, nullcontext())
    thirds.append(grad(grad(theirs, weights, along, create_graph=True), weights, along))
    close(*thirds)


X, W, B = Layer(2, 6, 3).tensors()
CALLS = {
    "by position": ((X, W, B, (2, 1), (1, 0), (1, 2), 1), {}),
    "by name": (
        (),
        {"input": X, "weight": W, "bias": B, "stride": [2, 1], "padding": 1, "dilation": (1,), "groups": 1},
    ),
    "mixed": ((X, W), {"stride": [2], "padding": torch.Size([1, 2])}),
    "no bias": ((X, W, None), {"groups": 1}),
    "no gradient but in the bias": ((X.detach(), W.detach(), B), {}),
}


@pytest.mark.parametrize("call", CALLS)
def test_every_way_to_call_is_understood(call: str) -> None:
    args, kwargs = CALLS[call]
    ours, theirs = inside(torch.conv2d, *args, **kwargs), torch.conv2d(*args, **kwargs)
    assert taken(ours)
    assert torch.equal(ours, theirs)
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.requires_grad]
    close(grad(ours.square().sum(), tensors), grad(theirs.square().sum(), tensors))


class Own(Tensor):
    """A subclass, which may mean anything."""


ALONE = {
    "words": lambda: torch.conv2d(X, W, padding="same"),
    "no batch": lambda: torch.conv2d(X[0], W),
    "complex": lambda: torch.conv2d(X.to(torch.complex128), W.to(torch.complex128)),
    "integers": lambda: torch.conv2d(X.long(), W.long()),
    "no gradient asked": lambda: torch.conv2d(X.detach(), W.detach()),
    "a subclass": lambda: torch.conv2d(X, W.as_subclass(Own)),
    "a step in a tensor": lambda: torch.conv2d(X, W, None, torch.tensor(2)),
    "another function": lambda: torch.conv_transpose2d(X, W.transpose(0, 1)),
    "func": lambda: torch.func.grad(lambda w: torch.conv2d(X.detach(), w).square().sum())(W.detach()),
    "func, nothing wrapped": lambda: torch.func.grad(lambda t: t * torch.conv2d(X, W).sum())(torch.ones(())),
    "vmap": lambda: torch.func.vmap(lambda x: torch.conv2d(x[None], W))(X),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONE)
def test_what_it_does_not_know_is_left_to_torch(case: str) -> None:
    if case == "a step in a tensor" and torch.__version__ < (2, 7):
        pytest.skip("torch before 2.7 takes no stride in a tensor")
    ours, theirs = inside(ALONE[case]), ALONE[case]()
    assert not taken(ours)
    assert torch.equal(ours, theirs)
    assert type(ours) is type(theirs)
    assert ours.requires_grad == theirs.requires_grad


@pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")  # torch's own
def test_without_gradients_or_in_forward_mode_it_is_left_to_torch() -> None:
    with torch.no_grad():
        assert inside(torch.conv2d, X, W).grad_fn is None
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X.detach(), torch.ones_like(X))
        pushed = forward_ad.unpack_dual(inside(torch.conv2d, dual, W)).tangent
    assert torch.equal(pushed, torch.conv2d(torch.ones_like(X), W))


def test_shapes_alone_have_gradients() -> None:
    x, weight = X.detach().to("meta"), W.detach().to("meta").requires_grad_()
    y = inside(torch.conv2d, x, weight)
    assert taken(y)
    assert grad(y.sum(), weight)[0].shape == W.shape


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: torch.conv2d(X, W.float()),
        lambda: torch.conv2d(X, W, B.float()),
        lambda: torch.conv2d(X, W[:, :1]),
        lambda: torch.conv2d(X, W, stride=(1, 1, 1)),
        lambda: torch.conv2d(X, W, padding=-1),
        lambda: torch.conv2d(X, W, groups=3),
        lambda: torch.conv2d(X, W, step=2),
        lambda: torch.conv1d(X, W),
        lambda: torch.conv2d(X),
    ],
)
def test_mistakes_raise_what_torch_raises(wrong: Any) -> None:
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        wrong()
    with pytest.raises(theirs.type) as ours:
        inside(wrong)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


@pytest.mark.parametrize("backward_too", [False, True])
def test_autocast_casts_as_torch_does(backward_too: bool) -> None:
    model, x = net(torch.float32), normal(ROWS, 3, 9, 9, dtype=torch.float32)
    weights, found = list(model.parameters()), []
    for mode in (PlainConvolutions(), nullcontext()):
        with torch.autocast("cpu", torch.bfloat16), mode:
            output = model.convolutions[0](x)
            value = loss(model, x)
        assert output.dtype is torch.bfloat16
        assert taken(output) == isinstance(mode, PlainConvolutions)
        with torch.autocast("cpu", torch.bfloat16, enabled=backward_too):
            gradient = grad(value, weights, create_graph=True)
            found.append([output, value, *gradient, *product(gradient, weights)])
    for ours, theirs in zip(*found, strict=True):
        assert ours.dtype is theirs.dtype
        assert (ours - theirs).norm() <= 0.03 * theirs.norm()
    assert torch.equal(found[0][0], found[1][0])


def test_autocast_leaves_double_alone() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert inside(torch.conv2d, X, W).dtype is F64


def test_a_graph_without_autocast_is_not_rounded_by_a_backward_pass_within(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only on a GPU does autocast round this kernel's arguments, so what counts here is that it is off."""
    tensors = [t.detach().float().requires_grad_() for t in Layer().tensors()]
    expected = orders(Layer()(*tensors), tensors, 3)
    y, kernel, lowered = inside(Layer(), *tensors), torch.convolution, []

    def noted(*args: Any) -> Tensor:
        lowered.append(torch.is_autocast_enabled("cpu"))
        return kernel(*args)

    monkeypatch.setattr(torch, "convolution", noted)
    with torch.autocast("cpu", torch.bfloat16):
        found = orders(y, tensors, 3)
    assert lowered
    assert not any(lowered)
    close(found, expected, 1e-4)


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1)])
def test_memory_formats_are_those_of_torch(which: tuple[int, ...]) -> None:
    tensors = [normal(2, 4, 6, 6, dtype=torch.float32), normal(8, 4, 3, 3, seed=1, dtype=torch.float32)]
    for i in which:
        tensors[i] = tensors[i].to(memory_format=torch.channels_last)
    tensors = [t.requires_grad_() for t in tensors]
    found = []
    for y in (inside(torch.conv2d, *tensors, padding=1), torch.conv2d(*tensors, padding=1)):
        first = grad(y.square().sum(), tensors, create_graph=True)
        found.append((y, *first))
        again = grad(first, tensors, tensors)
        assert 0 not in which or again[0].is_contiguous(memory_format=torch.channels_last)
    for ours, theirs in zip(*found, strict=True):
        assert ours.stride() == theirs.stride()
        close(ours, theirs, 1e-4)
