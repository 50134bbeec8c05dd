"""Layers watched from outside during one forward and backward pass, and parameters that refuse to leave them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .ghost_layers import Layer, wide

INSTEAD = 'leave the way open (way=None) or ask for way="vmap"'


class Unsuitable(ValueError):
    """What layers see does not tell every row's gradient of this model."""


def first_line(error: Exception) -> str:
    """What an error says, without the pages that torch adds."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


@dataclass(frozen=True)
class Covered:
    """A layer whose moving parameters are covered."""

    name: str
    layer: Layer
    moving: dict[str, str]  # "weight" or "bias" to the parameter's name in the model


@dataclass
class Taps:
    """What the watched layers of one forward pass saw, and the norms that its backward pass leaves."""

    rows: int
    token: Tensor  # where the backward pass ends: every watched output is made to depend on it
    layers: dict[nn.Module, Covered]
    found: dict[str, Tensor] = field(default_factory=dict)
    inside: list[nn.Module] = field(default_factory=list)
    used: set[nn.Module] = field(default_factory=set)

    def watched(self, weight: Tensor, name: str) -> Tensor:
        watched = weight.as_subclass(_Watched)
        watched.taps, watched.name_in_model = self, name
        return watched

    def at_home(self, name: str) -> bool:
        return bool(self.inside) and name in self.layers[self.inside[-1]].moving.values()

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self.layers:
                # before other hooks, which may replace what goes in and must not replace what came out
                stack.callback(module.register_forward_pre_hook(self._enter).remove)
                stack.callback(module.register_forward_hook(self._leave, prepend=True, with_kwargs=True).remove)
            yield

    def _enter(self, module: nn.Module, args: Any) -> None:
        self.inside.append(module)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Any:
        self.inside.pop()
        if not torch.is_grad_enabled():
            return None
        covered = self.layers[module]
        if module in self.used:
            raise Unsuitable(f"{covered.name} is used more than once in a forward pass; {INSTEAD}")
        self.used.add(module)
        entered: Tensor = args[0] if args else kwargs["input"]
        if any(not x.ndim or len(x) != self.rows for x in (entered, output)):
            shapes = f"{tuple(entered.shape)} -> {tuple(output.shape)}"
            raise Unsuitable(f"{covered.name} sees {shapes}, not {self.rows} rows first; {INSTEAD}")
        return _Tap.apply(output, self.token, self._receiver(module, entered))  # type: ignore[no-untyped-call]

    def _receiver(self, module: nn.Module, entered: Tensor) -> Callable[[Tensor], None]:
        covered = self.layers[module]
        kept, version = [entered] if "weight" in covered.moving else [], entered._version

        def receive(g: Tensor) -> None:
            g = wide(g)
            if kept:
                a = kept.pop()  # its memory is free from here on
                if a._version != version:
                    raise Unsuitable(f"the input of {covered.name} is written over later on; {INSTEAD}")
                self.found[covered.moving["weight"]] = covered.layer.weight(module, wide(a), g)
            if "bias" in covered.moving:
                self.found[covered.moving["bias"]] = covered.layer.bias(module, g)

        return receive


class _Tap(torch.autograd.Function):
    """The identity, which depends on the token, owns no copy and may be written over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        ctx.receive = receive
        return x.new_empty(0).set_(x)  # type: ignore[call-overload, no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        ctx.receive(grads[0])
        return grads[0] if ctx.needs_input_grad[0] else None, None, None


class _Watched(Tensor):
    """A moving parameter that refuses to be used outside its layer, where no tap sees it."""

    taps: Taps
    name_in_model: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
            # numbers and shapes that are read off a parameter carry no gradient
            if torch.is_grad_enabled() and any(isinstance(x, Tensor) for x in tree_leaves(found)):
                for x in tree_leaves((args, kwargs)):
                    if isinstance(x, _Watched) and not x.taps.at_home(x.name_in_model):
                        what = getattr(func, "__name__", str(func))
                        raise Unsuitable(f"{x.name_in_model} is used by {what} outside its layer; {INSTEAD}")
        return found
