"""Convolutions whose derivatives of every order run the kernels of the first gradient.

Torch differentiates the gradient of a convolution by convolutions of transposed tensors, which on a GPU take several
times as long as the kernels of a first gradient. On an H200, a product with the Hessian of a ResNet-18 takes 103 ms by
double backward and 18 ms here at width 16, and 179 and 75 ms at width 64, where capturing saves little
(benchmarks/results/curvature_h200_2026-11-17.md). On a CPU torch's own are as fast. A convolution, its gradient in the
data and its gradient in the weights are each linear in two tensors: the derivative of each consists of the other two.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.forward_ad import unpack_dual
from torch.nn.modules.utils import _ntuple
from torch.overrides import TorchFunctionMode

_DIMENSIONS = {torch.conv1d: 1, torch.conv2d: 2, torch.conv3d: 3}  # called by torch's functions and modules
# Roles of tensors: the output of a convolution or its gradient, the data or theirs, the weights or theirs. Each follows
# from the other two.
OUTPUT, DATA, WEIGHT = range(3)


class PlainConvolutions(TorchFunctionMode):
    """Convolutions of this context that need a gradient are differentiated by plain kernels, also after it ends.

    Torch handles the rest: padding as a string, inputs without a batch, complex numbers, tensor subclasses, forward
    mode and the transforms of torch.func.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        inputs = _parse(_DIMENSIONS[func], args, kwargs or {}) if func in _DIMENSIONS else None
        return func(*args, **(kwargs or {})) if inputs is None else _Convolution.apply(*inputs, OUTPUT)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class _Kernels:
    """A convolution and its two gradients, each one call."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int

    def __call__(self, role: int, a: Tensor, b: Tensor, extra: Tensor | None) -> Tensor:
        """The tensor of a role from the other two; `extra` is the bias, or shows a gradient's shape and format."""
        none = (0,) * len(self.stride)  # output padding, of transposed convolutions only
        options = (self.stride, self.padding, self.dilation, False, none, self.groups)
        if role == OUTPUT:
            kind = a.device.type
            # a backward pass under autocast would round the saved tensors on a GPU
            with torch.autocast(kind, enabled=False) if _autocast_enabled(kind) else nullcontext():
                return torch.convolution(a, b, extra, *options)
        x, weight = (extra, b) if role == DATA else (b, extra)
        needed = [role == DATA, role == WEIGHT, False]
        return torch.ops.aten.convolution_backward(a, x, weight, None, *options, needed)[role - 1]  # type: ignore[no-any-return]


class _Convolution(torch.autograd.Function):
    """The tensor of a role, linear in the tensors a and b of the other two roles."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, extra: Tensor | None, kernels: _Kernels, role: int) -> Tensor:
        ctx.kernels, ctx.role = kernels, role
        ctx.save_for_backward(a, b)
        ctx.set_materialize_grads(False)  # a missing gradient stays None instead of a convolution of zeros
        return kernels(role, a, b, extra)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Any:
        (grad,), (a_needed, b_needed, bias_needed) = grads, _needed(ctx)
        if grad is None:
            return (None,) * 5
        tensors = list(ctx.saved_tensors)
        tensors.insert(ctx.role, grad)  # by role
        a_role, b_role = (role for role in range(3) if role != ctx.role)
        return (
            _gradient(a_role, tensors, ctx.kernels) if a_needed else None,
            _gradient(b_role, tensors, ctx.kernels) if b_needed else None,
            grad.sum((0, *range(2, grad.ndim))) if bias_needed else None,
            None,
            None,
        )


def _gradient(role: int, tensors: list[Tensor], kernels: _Kernels) -> Tensor:
    """The gradient in the tensor of a role, which follows from the other two and has its shape and memory format."""
    a, b = (t for i, t in enumerate(tensors) if i != role)
    like = None if role == OUTPUT else tensors[role].detach()
    if not _builds_graph(a, b):
        return kernels(role, a, b, like)
    return _Convolution.apply(a, b, like, kernels, role)  # type: ignore[no-any-return, no-untyped-call]


def _needed(ctx: Any) -> list[bool]:
    """Which of three inputs need a gradient in this backward pass; needs_input_grad says only which could need one.

    Otherwise Gauss-Newton products would run 1.5 times as many kernels.
    """
    needed = [False] * 3
    for i, (node, _) in enumerate(ctx.next_functions):  # one per input tensor
        try:
            needed[i] = node is not None and torch._C._will_engine_execute_node(node)
        except RuntimeError:  # torch raises for a leaf whose gradient is requested
            needed[i] = True
    return needed


def _builds_graph(*tensors: Tensor) -> bool:
    """Whether autograd records these functions outside vmap, for which only torch's own kernels have rules.

    The vmap of torch.autograd.grad (is_grads_batched) is an older one that the first test does not detect.
    """
    if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
        return False
    return not any(torch._C._functorch.is_legacy_batchedtensor(t) for t in tensors)


def _parse(dimensions: int, args: Any, kwargs: Any) -> tuple[Tensor, Tensor, Tensor | None, _Kernels] | None:
    """The inputs of `_Convolution` from the arguments of a torch convolution, or None if torch must handle it."""
    try:
        x, weight, bias, *sizes, groups = _bind(*args, **kwargs)
        tuples = [_ntuple(dimensions)(size) for size in sizes]  # type: ignore[no-untyped-call]
    except TypeError:  # torch raises a better error
        return None
    stride, padding, dilation = (t * dimensions if len(t) == 1 else t for t in tuples)  # one size for all, or one each
    numbers = (*stride, *padding, *dilation, groups)
    if {len(stride), len(padding), len(dilation)} != {dimensions} or not all(isinstance(n, int) for n in numbers):
        return None
    tensors = [x, weight] if bias is None else [x, weight, bias]
    # plain ones of numbers without a tangent
    plain = all(type(t) in (Tensor, nn.Parameter) and t.is_floating_point() for t in tensors)
    if not plain or any(unpack_dual(t).tangent is not None for t in tensors):  # type: ignore[no-untyped-call]
        return None
    if not any(t.requires_grad for t in tensors) or not _builds_graph(*tensors):
        return None
    kind = x.device.type
    if _autocast_enabled(kind):  # cast as autocast does
        tensors = [t if t.dtype is torch.float64 else t.to(torch.get_autocast_dtype(kind)) for t in tensors]
    if not x.ndim == weight.ndim == dimensions + 2 or len({(t.device, t.dtype) for t in tensors}) > 1:
        return None
    x, weight, *biases = tensors
    return x, weight, biases[0] if biases else None, _Kernels(stride, padding, dilation, groups)


def _bind(
    input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: Any = 1
) -> tuple[Any, ...]:
    """The arguments of torch's convolutions in order."""
    return input, weight, bias, stride, padding, dilation, groups


def _autocast_enabled(kind: str) -> bool:
    """Whether autocast is enabled for this type of device."""
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)
