"""Squared gradient norms of every row from one backward pass, without the gradients themselves.

Hooks read the input of each layer and the gradient at its output, which determine the norms (`ghost_layers`). No weight
gradient is computed, so the pass costs about as much as one ordinary gradient of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import nan
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from ..core.modules import is_compiled
from .batches import Batch, rows_of
from .functional import replay
from .ghost_layers import LAYER_RULES, LayerRule, wide
from .session import session

if TYPE_CHECKING:
    from .objective import Objective

HINT = 'pass way=None or way="vmap"'


class UnsupportedModel(ValueError):
    """The inputs and output gradients of the layers do not determine every row's gradient of this model."""


def first_line(error: Exception) -> str:
    """The first line of an error message: torch appends pages of advice."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__


@dataclass(frozen=True)
class HookedLayer:
    """A layer, its rule, and the names of its parameters that move."""

    name: str
    rule: LayerRule
    moving: dict[str, str]  # "weight" or "bias" to the parameter's name in the model


@dataclass
class LayerHooks:
    """Hooks on layers for one forward pass, and the squared norms that its backward pass computes."""

    rows: int
    token: Tensor  # the backward pass ends here: every hooked output depends on it
    layers: dict[nn.Module, HookedLayer]
    norms: dict[str, Tensor] = field(default_factory=dict)
    inside: list[nn.Module] = field(default_factory=list)
    used: set[nn.Module] = field(default_factory=set)

    def track(self, weight: Tensor, name: str) -> Tensor:
        """The parameter as a tensor that raises when it is used outside its layer."""
        tracked = weight.as_subclass(_TrackedParameter)
        tracked.hooks, tracked.name_in_model = self, name
        return tracked

    def in_own_layer(self, name: str) -> bool:
        return bool(self.inside) and name in self.layers[self.inside[-1]].moving.values()

    @contextmanager
    def attached(self) -> Iterator[None]:
        with ExitStack() as stack:
            for module in self.layers:
                # inside other hooks, which may replace the input and must not replace the output
                stack.callback(module.register_forward_pre_hook(lambda m, args: self.inside.append(m)).remove)
                stack.callback(module.register_forward_hook(self._leave, prepend=True, with_kwargs=True).remove)
            yield

    def _leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Any:
        self.inside.pop()
        if not torch.is_grad_enabled():
            return None
        layer = self.layers[module]
        if module in self.used:
            raise UnsupportedModel(f"{layer.name} is used more than once in a forward pass; {HINT}")
        self.used.add(module)
        x: Tensor = args[0] if args else kwargs["input"]
        if any(not t.ndim or len(t) != self.rows for t in (x, output)):
            shapes = f"{tuple(x.shape)} -> {tuple(output.shape)}"
            raise UnsupportedModel(f"{layer.name} maps {shapes}, not {self.rows} rows first; {HINT}")
        inputs, version = [x] if "weight" in layer.moving else [], x._version

        def receive(grad: Tensor) -> None:
            grad = wide(grad)
            if inputs:
                x = inputs.pop()  # frees its memory after this call
                if x._version != version:
                    raise UnsupportedModel(f"the input of {layer.name} is overwritten later; {HINT}")
                self.norms[layer.moving["weight"]] = layer.rule.weight(module, wide(x), grad)
            if "bias" in layer.moving:
                self.norms[layer.moving["bias"]] = layer.rule.bias(module, grad)

        return _GradientTap.apply(output, self.token, receive)  # type: ignore[no-untyped-call]


class _GradientTap(torch.autograd.Function):
    """The identity, which depends on the token and passes its gradient on; the output may be overwritten."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, token: Tensor, receive: Callable[[Tensor], None]) -> Tensor:
        ctx.receive = receive
        return x.new_empty(0).set_(x)  # type: ignore[call-overload, no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None, None]:
        ctx.receive(grads[0])
        return grads[0] if ctx.needs_input_grad[0] else None, None, None


class _TrackedParameter(Tensor):
    """A moving parameter that raises when it is used outside its layer, where no hook is."""

    hooks: LayerHooks
    name_in_model: str

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            # numbers and shapes that are read off a parameter carry no gradient
            if torch.is_grad_enabled() and any(isinstance(x, Tensor) for x in tree_leaves(result)):
                for x in tree_leaves((args, kwargs)):
                    if isinstance(x, _TrackedParameter) and not x.hooks.in_own_layer(x.name_in_model):
                        used_by = getattr(func, "__name__", str(func))
                        raise UnsupportedModel(f"{x.name_in_model} is used by {used_by} outside its layer; {HINT}")
        return result


def ghost_squares(objective: Objective, batch: Batch) -> Tensor:
    """The squared gradient norm of every row (down) in every moving parameter (across)."""

    def work(none: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        return [_squares(objective, _layers(objective), batch)]

    try:
        # the weights are not passed as inputs: a replay would copy them
        return replay(objective, "ghost", work, (), batch)[0]
    except (RuntimeError, NotImplementedError) as error:
        raise UnsupportedModel(f"the model does not run with layer hooks: {first_line(error)}; {HINT}") from error


def _squares(objective: Objective, layers: dict[nn.Module, HookedLayer], batch: Batch) -> Tensor:
    n = rows_of(batch)
    token = torch.zeros((), device=objective.device, requires_grad=True)
    hooks = LayerHooks(n, token, layers)
    weights = {name: p.detach() for name, p in objective.model.named_parameters()}
    weights |= {name: hooks.track(p.detach(), name) for name, p in objective.params.items()}

    def task(model: nn.Module) -> Tensor:
        with torch.enable_grad(), hooks.attached():
            outputs, grads = _output_gradients(objective, n, *objective.forward(model, batch))
        # every row divided by a power of two: squares of small gradients underflow in single precision
        sizes = torch.stack([g.flatten(1).abs().amax(1).double() for g in grads]).amax(0)
        usual = (sizes > 0) & sizes.isfinite()
        scale = torch.where(usual, torch.ldexp(torch.ones_like(sizes), torch.frexp(sizes).exponent), 1.0)
        seeds = [(g.double() / scale.view(-1, *[1] * (g.ndim - 1))).to(g.dtype) for g in grads]
        torch.autograd.grad(outputs, [token], seeds, allow_unused=True)
        none = torch.zeros(n, device=token.device)
        return torch.stack(
            [hooks.norms.get(name, none).double() for name in objective.params], 1
        ) * scale.square().unsqueeze(1)

    with session(objective.model, objective.statistics) as opened:
        return opened.call(weights, task, objective.precision)


def _layers(objective: Objective) -> dict[nn.Module, HookedLayer]:
    """The layers that own the moving parameters; raises unless a rule covers each of them."""
    model = objective.model
    compiled = [n for n, m in model.named_modules() if is_compiled(m)]
    if compiled:
        raise UnsupportedModel(f"{compiled[0] or 'the model'} is compiled and cannot be hooked; {HINT}")
    owners: dict[int, dict[nn.Module, str]] = {}
    for name, module in model.named_modules():
        for p in module._parameters.values():
            owners.setdefault(id(p), {})[module] = name
    layers: dict[nn.Module, HookedLayer] = {}
    for name, p in objective.params.items():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        label = f"{owner or 'the model'} ({type(module).__name__})"
        rule = _rule(module)
        if rule is None or attribute not in ("weight", "bias") or p.is_complex():
            raise UnsupportedModel(f"{label} owns {name}, and no rule covers it; {HINT}")
        sharing = owners[id(module._parameters.get(attribute, p))]  # the module may hold another parameter by now
        if len(sharing) > 1:
            raise UnsupportedModel(f"{name} is shared by {', '.join(sorted(sharing.values()))}; {HINT}")
        layers.setdefault(module, HookedLayer(label, rule, {})).moving[attribute] = name
    return layers


def _rule(module: nn.Module) -> LayerRule | None:
    """The rule of a layer, or of a subclass that does not override its forward pass."""
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        return None
    for kind, rule in LAYER_RULES.items():
        same = (getattr(type(module), f, None) is getattr(kind, f, None) for f in ("forward", "_conv_forward"))
        if isinstance(module, kind) and all(same) and "forward" not in vars(module):
            return rule
    return None


def _output_gradients(objective: Objective, n: int, output: Any, target: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that depend on the parameters, and the gradients of every row's own loss there."""
    leaves, spec = tree_flatten((output, target))
    unknown = [x for x in leaves if not isinstance(x, (Tensor, int, float, str, bytes, type(None)))]
    if unknown:
        kind = type(unknown[0]).__name__
        raise UnsupportedModel(f"the output or target holds a {kind}, which has no rows; {HINT}")
    carrying = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
    rows = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.ndim and len(x) == n]
    if not carrying or not set(carrying) <= set(rows):
        shapes = [tuple(leaves[i].shape) for i in carrying]
        raise UnsupportedModel(f"the outputs that depend on the parameters are {shapes}, not {n} rows each; {HINT}")
    constant = [i for i in rows if i not in carrying]
    outputs = [leaves[i].detach().requires_grad_() for i in carrying]

    def loss(*tensors: Tensor) -> Tensor:
        by_index = dict(zip(carrying + constant, tensors, strict=True))
        return objective.loss_fn(*tree_unflatten([by_index.get(i, x) for i, x in enumerate(leaves)], spec))

    def loss_of_row(*tensors: Tensor) -> Tensor:
        return loss(*(x.unsqueeze(0) for x in tensors)).mean()

    inputs = [*outputs, *(leaves[i] for i in constant)]
    losses = loss(*inputs)
    if losses.shape != (n,):  # not one loss per row
        try:
            losses = torch.func.vmap(loss_of_row, randomness="different")(*inputs)
        except UnsupportedModel:
            raise
        except Exception as error:
            reason = first_line(error)
            raise UnsupportedModel(f"the loss of one row alone fails under vmap: {reason}; {HINT}") from error
    grads = torch.autograd.grad(losses.sum(), outputs, materialize_grads=True)
    finite = losses.isfinite()  # an infinite loss may have a finite gradient; its row counts as nan all the same
    return [leaves[i] for i in carrying], [torch.where(finite.view(-1, *[1] * (g.ndim - 1)), g, nan) for g in grads]
