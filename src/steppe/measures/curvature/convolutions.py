"""Convolutions whose derivatives of every order are plain kernels again.

Torch differentiates the gradient of a convolution by convolutions of transposed tensors, which on a GPU take several
times as long as the kernels that a first gradient runs. A convolution, its gradient in the data and its gradient in
the weights are each linear in two tensors, and the derivative of each is made of the other two, so those are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.overrides import TorchFunctionMode

_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}  # what functions and modules of torch call


class PlainConvolutions(TorchFunctionMode):
    """Within it, convolutions that ask for a gradient are differentiated by plain kernels, also after it has ended.

    What it does not know goes to torch as it is: padding in words, inputs without a batch, complex numbers,
    subclasses of tensors, forward mode and the transformations of torch.func.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = _given(_DIMENSIONS[func], args, kwargs or {}) if func in _DIMENSIONS else None
        return func(*args, **(kwargs or {})) if given is None else _Convolution.apply(*given)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Kernels:
    """A convolution and its two gradients, each one call; `like` gives its shape and memory format only."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def convolution(self, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        kind = x.device.type
        # a backward pass may run under autocast, which on a GPU would round here what was saved as it should be
        with torch.autocast(kind, enabled=False) if _lowers(kind) else nullcontext():
            return torch.convolution(
                x, weight, bias, self.stride, self.padding, self.dilation, False, self._none, self.groups
            )

    def data(self, up: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        return self._backward(up, like, weight, [True, False, False])[0]  # type: ignore[no-any-return]

    def weight(self, up: Tensor, x: Tensor, like: Tensor) -> Tensor:
        return self._backward(up, x, like, [False, True, False])[1]  # type: ignore[no-any-return]

    def _backward(self, up: Tensor, x: Tensor, weight: Tensor, wanted: list[bool]) -> Any:
        return torch.ops.aten.convolution_backward(
            up, x, weight, None, self.stride, self.padding, self.dilation, False, self._none, self.groups, wanted
        )

    @property
    def _none(self) -> tuple[int, ...]:
        return (0,) * len(self.stride)  # output padding, which transposed convolutions have


class _Convolution(torch.autograd.Function):
    """Linear in the data and in the weights."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, kernels: _Kernels) -> Tensor:
        _keep(ctx, kernels, x, weight)
        return kernels.convolution(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *ups: Tensor | None) -> Any:
        (up,), (x, weight), wanted = ups, ctx.saved_tensors, _wanted(ctx)
        if up is None:
            return None, None, None, None
        return (
            _data(up, weight, x, ctx.kernels) if wanted[0] else None,
            _weight(up, x, weight, ctx.kernels) if wanted[1] else None,
            up.sum((0, *range(2, up.ndim))) if wanted[2] else None,
            None,
        )


class _Data(torch.autograd.Function):
    """The gradient in the data, linear in the output's gradient and in the weights."""

    @staticmethod
    def forward(ctx: Any, up: Tensor, weight: Tensor, like: Tensor, kernels: _Kernels) -> Tensor:
        _keep(ctx, kernels, up, weight)
        return kernels.data(up, weight, like)

    @staticmethod
    def backward(ctx: Any, *along: Tensor | None) -> Any:
        (x,), (up, weight), wanted = along, ctx.saved_tensors, _wanted(ctx)
        if x is None:
            return None, None, None, None
        return (
            _convolution(x, weight, ctx.kernels) if wanted[0] else None,
            _weight(up, x, weight, ctx.kernels) if wanted[1] else None,
            None,
            None,
        )


class _Weight(torch.autograd.Function):
    """The gradient in the weights, linear in the output's gradient and in the data."""

    @staticmethod
    def forward(ctx: Any, up: Tensor, x: Tensor, like: Tensor, kernels: _Kernels) -> Tensor:
        _keep(ctx, kernels, up, x)
        return kernels.weight(up, x, like)

    @staticmethod
    def backward(ctx: Any, *along: Tensor | None) -> Any:
        (weight,), (up, x), wanted = along, ctx.saved_tensors, _wanted(ctx)
        if weight is None:
            return None, None, None, None
        return (
            _convolution(x, weight, ctx.kernels) if wanted[0] else None,
            _data(up, weight, x, ctx.kernels) if wanted[1] else None,
            None,
            None,
        )


def _keep(ctx: Any, kernels: _Kernels, *factors: Tensor) -> None:
    ctx.kernels = kernels
    ctx.save_for_backward(*factors)
    ctx.set_materialize_grads(False)  # a gradient that nothing asked for is left out, not convolved as zeros


def _wanted(ctx: Any) -> list[bool]:
    """Which of three inputs this backward pass goes on to: a function of Python is told only which could have one.

    The products of a Gauss-Newton matrix would otherwise take half as many kernels again.
    """
    reached = [node is not None and _executed(node) for node, _ in ctx.next_functions]  # one for each tensor given
    return [*reached, False][:3]


def _executed(node: Any) -> bool:
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # a leaf whose gradient is asked for, about which torch refuses to answer
        return True


def _convolution(x: Tensor, weight: Tensor, kernels: _Kernels) -> Tensor:
    if not _recorded(x, weight):
        return kernels.convolution(x, weight)
    return _Convolution.apply(x, weight, None, kernels)  # type: ignore[no-any-return, no-untyped-call]


def _data(up: Tensor, weight: Tensor, like: Tensor, kernels: _Kernels) -> Tensor:
    if not _recorded(up, weight):
        return kernels.data(up, weight, like)
    return _Data.apply(up, weight, like.detach(), kernels)  # type: ignore[no-any-return, no-untyped-call]


def _weight(up: Tensor, x: Tensor, like: Tensor, kernels: _Kernels) -> Tensor:
    if not _recorded(up, x):
        return kernels.weight(up, x, like)
    return _Weight.apply(up, x, like.detach(), kernels)  # type: ignore[no-any-return, no-untyped-call]


def _recorded(*tensors: Tensor) -> bool:
    """Whether a graph of these functions is wanted, and not vmap: only kernels know that, which torch differentiates.

    The vmap of torch.autograd.grad (is_grads_batched) is an older one, unknown to the first question.
    """
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return False
    return not any(torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)


def _given(dimensions: int, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor | None, _Kernels] | None:
    """The arguments of a convolution as its function here takes them, or None where torch shall have it."""
    try:
        x, weight, bias, *sizes, groups = _named(*args, **kwargs)
    except TypeError:  # torch says better what is wrong
        return None
    tensors = [x, weight] if bias is None else [x, weight, bias]
    strides, paddings, dilations = (_each(size, dimensions) for size in sizes)
    if strides is None or paddings is None or dilations is None or not isinstance(groups, int):
        return None
    if not all(_plain(t) for t in tensors) or not any(t.requires_grad for t in tensors) or not _recorded(*tensors):
        return None
    tensors = [_lowered(t) for t in tensors]
    if not x.ndim == weight.ndim == dimensions + 2 or len({(t.device, t.dtype) for t in tensors}) > 1:
        return None
    x, weight, *biases = tensors
    return x, weight, biases[0] if biases else None, _Kernels(strides, paddings, dilations, groups)


def _named(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
) -> tuple[Any, ...]:
    """The arguments of torch's convolutions by their names there."""
    return input, weight, bias, stride, padding, dilation, groups


def _plain(t: Any) -> bool:
    """Whether it is nothing but a tensor of real numbers, without a tangent."""
    return type(t) in (Tensor, nn.Parameter) and t.is_floating_point() and unpack_dual(t).tangent is None  # type: ignore[no-untyped-call]


def _each(size: Any, dimensions: int) -> tuple[int, ...] | None:
    """A size for each dimension of one for all, or of as many as there are."""
    sizes = (size,) if isinstance(size, int) else size
    if not isinstance(sizes, Sequence) or not all(isinstance(s, int) for s in sizes):
        return None
    sizes = tuple(sizes) * dimensions if len(sizes) == 1 else tuple(sizes)
    return sizes if len(sizes) == dimensions else None


def _lowered(t: Tensor) -> Tensor:
    """As autocast casts an argument of a convolution."""
    kind = t.device.type
    return t.to(torch.get_autocast_dtype(kind)) if _lowers(kind) and t.dtype is not torch.float64 else t


def _lowers(kind: str) -> bool:
    """Whether autocast is on for that kind of device, if it has one."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
