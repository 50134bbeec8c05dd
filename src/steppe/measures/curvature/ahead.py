"""The same forms in forward mode: many directions are pushed through one pass, and no graph outlives it.

Forward over reverse, which agrees with differences of gradients; reverse over forward does not everywhere. Not every
layer has forward derivatives, or such that are right, so what uses these compares them with reverse mode first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.overrides import TorchFunctionMode

from ..batches import Batch
from ..elsewhere import twice_differentiable, undisturbed
from ..objective import Objective
from .forms import Form, gauss_newton, hessian

# untyped: the annotations of torch leave out what comes with has_aux
grad, jvp, vjp, vmap = (cast(Any, getattr(torch.func, name)) for name in ("grad", "jvp", "vjp", "vmap"))

Ahead = Callable[[Objective, Batch, Sequence[Tensor]], list[Tensor]]  # one stack of directions a parameter, in and out


def hessian_ahead(objective: Objective, batch: Batch, columns: Sequence[Tensor]) -> list[Tensor]:
    """The Hessian of the batch's mean loss times every direction: how its gradient changes along each."""

    def loss(places: list[Tensor]) -> Any:
        def task(model: nn.Module) -> Tensor:
            return objective.loss_fn(*objective.forward(model, batch)).mean()

        return objective.evaluate(places, task)

    def along(*direction: Tensor) -> Any:
        return jvp(grad(loss), (objective.here(),), (list(direction),))[1]

    with _transformed(objective):
        return list(vmap(along, randomness="same")(*columns))


def gauss_newton_ahead(objective: Objective, batch: Batch, columns: Sequence[Tensor]) -> list[Tensor]:
    """J' C J times every direction: outputs pushed along it, bent by the loss, and pulled back."""

    def outputs(places: list[Tensor]) -> Any:
        return objective.evaluate(places, lambda model: objective.forward(model, batch))

    def along(*direction: Tensor) -> Any:
        _, pushed, _ = jvp(outputs, (objective.here(),), (list(direction),), has_aux=True)
        return pull(jvp(slope, (output,), (pushed,))[1])[0]

    def slope(out: Tensor) -> Any:
        return grad(lambda out: objective.loss_fn(out, target).mean())(out)

    with _transformed(objective):
        output, pull, target = vjp(outputs, objective.here(), has_aux=True)
        return list(vmap(along, randomness="same")(*columns))


AHEAD: dict[Form, Ahead] = {hessian: hessian_ahead, gauss_newton: gauss_newton_ahead}


@contextmanager
def _transformed(objective: Objective) -> Iterator[None]:
    """Around a transformation: no graph outside it, also not of parameters that stay where they are."""
    with (
        torch.no_grad(),
        undisturbed(objective.model, objective.statistics),
        twice_differentiable(objective.model),
        _SquaresByFormula(),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", "There is a performance drop")  # where an operation goes one by one
        warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)  # torch's own, in jvp
        yield


class _SquaresByFormula(TorchFunctionMode):
    """Spells the squared loss out, whose own gradient has no forward derivative where the target is fixed (2.13)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        said = {name: value for name, value in (kwargs or {}).items() if value is not None}
        if func is not mse_loss or len(args) != 2 or said.keys() != {"reduction"}:
            return func(*args, **(kwargs or {}))
        squares = (args[0] - args[1]).square()
        return squares if said["reduction"] == "none" else getattr(squares, said["reduction"])()
