"""Squared norms of every row's gradient in one backward pass, without the gradients themselves.

Layers are watched from outside: what goes into them and the gradient that comes back tell the norms. No gradient
of a weight is computed, so that the pass costs about what one ordinary gradient of the batch does.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import nan
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from ..core.modules import is_compiled
from .batches import Batch, rows_of
from .elsewhere import elsewhere
from .ghost_layers import LAYERS, Layer
from .ghost_taps import INSTEAD, Covered, Taps, Unsuitable, first_line
from .passes import replayed

if TYPE_CHECKING:
    from .objective import Objective


def ghost_squares(objective: Objective, batch: Batch) -> Tensor:
    """The squared gradient norm of every row (down) in every moving parameter (across)."""

    def work(none: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        return [_squares(objective, _layers(objective), batch)]

    try:
        # at the weights where they are: what is given would be copied
        return replayed(objective, "ghost", work, (), batch)[0]
    except (RuntimeError, NotImplementedError) as error:
        raise Unsuitable(f"the model does not run with watched layers: {first_line(error)}; {INSTEAD}") from error


def _squares(objective: Objective, layers: dict[nn.Module, Covered], batch: Batch) -> Tensor:
    n = rows_of(batch)
    token = torch.zeros((), device=objective.space.device, requires_grad=True)
    taps = Taps(n, token, layers)
    weights = {name: p.detach() for name, p in objective.model.named_parameters()}
    weights |= {name: taps.watched(p.detach(), name) for name, p in objective.params.items()}

    def task(model: nn.Module) -> Tensor:
        with torch.enable_grad(), taps.attached():
            outputs, grads = _at_the_outputs(objective, n, *objective.forward(model, batch))
        seeds, scale = _scaled(grads)
        torch.autograd.grad(outputs, [token], seeds, allow_unused=True)
        none = torch.zeros(n, device=token.device)
        return torch.stack([taps.found.get(name, none).double() for name in objective.params], 1) * scale.unsqueeze(1)

    return elsewhere(objective.model, weights, task, objective.statistics, objective.precision)


def _layers(objective: Objective) -> dict[nn.Module, Covered]:
    """The layers that own the moving parameters, if all of them are covered."""
    model = objective.model
    compiled = [n for n, m in model.named_modules() if is_compiled(m)]
    if compiled:
        raise Unsuitable(f"{compiled[0] or 'the model'} is compiled, so that its layers cannot be watched; {INSTEAD}")
    owners: dict[int, dict[nn.Module, str]] = {}
    for name, module in model.named_modules():
        for p in module._parameters.values():
            owners.setdefault(id(p), {})[module] = name
    found: dict[nn.Module, Covered] = {}
    for name, p in objective.params.items():
        home, _, attribute = name.rpartition(".")
        module = model.get_submodule(home)
        label = f"{home or 'the model'} ({type(module).__name__})"
        layer = _rule(module)
        if layer is None or attribute not in ("weight", "bias") or p.is_complex():
            raise Unsuitable(f"{label} owns {name}, and no rule covers it; {INSTEAD}")
        sharing = owners[id(module._parameters.get(attribute, p))]  # another one may be in its place by now
        if len(sharing) > 1:
            raise Unsuitable(f"{name} is shared by {', '.join(sorted(sharing.values()))}; {INSTEAD}")
        found.setdefault(module, Covered(label, layer, {})).moving[attribute] = name
    return found


def _rule(module: nn.Module) -> Layer | None:
    """The rule of a layer that computes as its kind does: heirs may, unless they say how themselves."""
    if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
        return None
    for kind, layer in LAYERS.items():
        same = (getattr(type(module), f, None) is getattr(kind, f, None) for f in ("forward", "_conv_forward"))
        if isinstance(module, kind) and all(same) and "forward" not in vars(module):
            return layer
    return None


def _at_the_outputs(objective: Objective, n: int, output: Any, target: Any) -> tuple[list[Tensor], list[Tensor]]:
    """The outputs that depend on the parameters, and the gradients there of every row's own loss."""
    leaves, spec = tree_flatten((output, target))
    strange = [x for x in leaves if not isinstance(x, (Tensor, int, float, str, bytes, type(None)))]
    if strange:
        raise Unsuitable(f"the output or target holds a {type(strange[0]).__name__}, which has no rows; {INSTEAD}")
    carrying = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
    rows = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.ndim and len(x) == n]
    if not carrying or not set(carrying) <= set(rows):
        shapes = [tuple(leaves[i].shape) for i in carrying]
        raise Unsuitable(f"the outputs that depend on the parameters are {shapes}, not {n} rows each; {INSTEAD}")
    carried = [leaves[i].detach().requires_grad_() for i in carrying]
    rested = [leaves[i] for i in rows if i not in carrying]
    order = carrying + [i for i in rows if i not in carrying]

    def loss(*tensors: Tensor) -> Tensor:
        given = dict(zip(order, tensors, strict=True))
        return objective.loss_fn(*tree_unflatten([given.get(i, x) for i, x in enumerate(leaves)], spec))

    def alone(*tensors: Tensor) -> Tensor:
        return loss(*(x.unsqueeze(0) for x in tensors)).mean()

    losses = loss(*carried, *rested)
    if losses.shape != (n,):  # not yet one loss a row
        try:
            losses = torch.func.vmap(alone, randomness="different")(*carried, *rested)
        except Unsuitable:
            raise
        except Exception as error:
            said = first_line(error)
            raise Unsuitable(f"the loss of one row alone fails under vmap: {said}; {INSTEAD}") from error
    grads = torch.autograd.grad(losses.sum(), carried, materialize_grads=True)
    finite = losses.isfinite()  # an infinite loss may have a finite gradient, and is no loss all the same
    return [leaves[i] for i in carrying], [torch.where(finite.view(-1, *[1] * (g.ndim - 1)), g, nan) for g in grads]


def _scaled(grads: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Every row divided by a power of two, so that no square of its gradients vanishes in single precision."""
    sizes = torch.stack([g.flatten(1).abs().amax(1).double() for g in grads]).amax(0)
    usual = (sizes > 0) & sizes.isfinite()
    scale = torch.where(usual, torch.ldexp(torch.ones_like(sizes), torch.frexp(sizes).exponent), 1.0)
    scaled = [(g.double() / scale.view(-1, *[1] * (g.ndim - 1))).to(g.dtype) for g in grads]
    return scaled, scale.square()
