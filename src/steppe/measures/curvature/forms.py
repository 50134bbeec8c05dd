"""Hessian, Gauss-Newton and Fisher matrix of a loss on one batch, as linear maps by reverse mode through a kept graph.

Reverse mode works for every layer that trains, recurrent ones included. Reverse over forward mode is silently wrong
for some normalisation layers of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..batches import Batch, own_loss, rows_of
from ..checks import raise_constant
from ..fisher import check_no_batch_statistics
from ..functional import second_derivatives
from ..objective import Objective
from ..reductions import row_weights
from .convolutions import PlainConvolutions


class Apply(Protocol):
    """A symmetric operator on one tensor per parameter; `stacked` directions have a leading dimension."""

    def __call__(self, direction: Sequence[Tensor], stacked: bool = False) -> list[Tensor]: ...


@dataclass(frozen=True)
class BatchForm:
    """Products with a form of the loss on one batch, the gradient, and the loss, from a kept graph."""

    apply: Apply
    gradient: Callable[[], list[Tensor]]
    loss: Tensor


Form = Callable[[Objective, Sequence[Tensor], Batch], BatchForm]


def hessian(objective: Objective, leaves: Sequence[Tensor], batch: Batch) -> BatchForm:
    """The Hessian of the batch's mean loss, by differentiating its gradient's graph again.

    Parameters
    ----------
    objective, leaves, batch
        The loss, the weights as tensors that require gradients, and one of the objective's batches.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> _ = [nn.init.ones_(p) for p in model.parameters()]
    >>> data = torch.ones(1, 1), torch.zeros(1, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> operator = steppe.measures.Curvature(objective, steppe.measures.hessian)
    >>> steppe.measures.Dense(operator).matrix  # of (a b) ** 2 at a = b = 1
    tensor([[2., 4.],
            [4., 2.]], dtype=torch.float64)

    """

    def task(model: nn.Module) -> tuple[Tensor, list[Tensor]]:
        losses = objective.loss_fn(*objective.forward(model, batch))
        if not getattr(losses, "requires_grad", False):
            raise_constant(objective)
        loss = losses.mean() if losses.ndim else losses  # a node less in the graph of every product
        return loss.detach(), _grad([loss], leaves, create_graph=True)

    twice = _second_derivatives(objective)
    with torch.enable_grad(), twice():
        loss, gradient = objective.evaluate(leaves, task)
    _check_twice_differentiable(gradient)
    curved = [i for i, g in enumerate(gradient) if g.requires_grad]

    def apply(direction: Sequence[Tensor], stacked: bool = False) -> list[Tensor]:
        if not curved:  # the loss is linear
            return [torch.zeros_like(d) for d in direction]

        def task(model: nn.Module) -> list[Tensor]:
            return _grad([gradient[i] for i in curved], leaves, [direction[i] for i in curved], stacked=stacked)

        with twice():  # activation checkpointing runs layers again
            return objective.evaluate(leaves, task)

    return BatchForm(apply, lambda: [g.detach() for g in gradient], loss)


def gauss_newton(objective: Objective, leaves: Sequence[Tensor], batch: Batch) -> BatchForm:
    """J' C J with the Jacobian J of the outputs and the Hessian C of the loss in the outputs (Schraudolph 2002).

    Parameters
    ----------
    objective, leaves, batch
        The loss, the weights as tensors that require gradients, and one of the objective's batches.

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    >>> _ = [nn.init.ones_(p) for p in model.parameters()]
    >>> data = torch.ones(1, 1), torch.zeros(1, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> operator = steppe.measures.Curvature(objective, steppe.measures.gauss_newton)
    >>> steppe.measures.Dense(operator).matrix  # of (a b) ** 2 at a = b = 1: 2 J' J with J = (b, a)
    tensor([[2., 2.],
            [2., 2.]], dtype=torch.float64)

    """

    def curve(output: Tensor, target: Any) -> _OfOutputs:
        loss = objective.loss_fn(output, target).mean()
        slope = _grad([loss], [output], create_graph=True)[0]

        def times(jvp: Tensor, stacked: bool) -> Tensor:
            return _grad([slope], [output], [jvp], stacked=stacked)[0]

        return loss.detach(), slope.detach(), times if slope.requires_grad else None

    return _through_outputs(objective, leaves, batch, curve)


def empirical_fisher(objective: Objective, leaves: Sequence[Tensor], batch: Batch) -> BatchForm:
    """The mean of g g' over samples, with g the gradient of a sample's loss: its trace is `FisherTrace`.

    Samples are weighted as in the mean loss; a sum over samples gives the sum.

    Parameters
    ----------
    objective, leaves, batch
        The loss, the weights as tensors that require gradients, and one of the objective's batches.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> operator = steppe.measures.Curvature(objective, steppe.measures.empirical_fisher)
    >>> steppe.measures.Dense(operator).matrix  # the gradients are (2, 0) and (0, 8)
    tensor([[ 2.,  0.],
            [ 0., 32.]], dtype=torch.float64)

    """
    check_no_batch_statistics(objective, list(objective.model.modules()))
    n = rows_of(batch)
    factors = row_weights(objective, batch, n)[1]

    def curve(output: Tensor, target: Any) -> _OfOutputs:
        if not output.ndim or len(output) != n:
            raise ValueError(f"the Fisher form needs outputs of {n} rows in the first dimension: {tuple(output.shape)}")
        losses = objective.loss_fn(output, target)
        if not losses.ndim and objective.weight is not None:
            raise ValueError("a mean loss with weight= does not determine the rows' losses: return one loss per row")
        slope = _grad([losses.mean()], [output])[0]
        # of slopes s_i of the batch's loss, a row's own is c_i s_i, and it weighs 1 / c_i
        c = torch.where(factors > 0, n**2 / factors, 0.0) if losses.ndim else factors
        c = c.to(slope).view(-1, *[1] * (slope.ndim - 1))

        def times(jvp: Tensor, stacked: bool) -> Tensor:
            along = (slope * jvp).flatten(2 if stacked else 1).sum(-1)
            return c * slope * along.view(*along.shape, *[1] * (slope.ndim - 1))

        return losses.detach().mean(), slope, times

    return _through_outputs(objective, leaves, batch, curve)


# the loss, its gradient in the outputs, and products with the form in the outputs, of which there may be none
_OfOutputs = tuple[Tensor, Tensor, Callable[[Tensor, bool], Tensor] | None]


def _through_outputs(
    objective: Objective, leaves: Sequence[Tensor], batch: Batch, curve: Callable[[Tensor, Any], _OfOutputs]
) -> BatchForm:
    """The form J' C J, with J the Jacobian of the outputs and C a form in these."""

    def task(model: nn.Module) -> tuple[_OfOutputs, Tensor, list[Tensor], Tensor]:
        output, target = objective.forward(model, batch)
        if objective.loss_fn is own_loss:
            raise TypeError("this form needs a loss of the logits: pass loss_fn, such as cross-entropy")
        if not isinstance(output, Tensor):
            raise TypeError(
                f"this form needs the model's output as one tensor, not {type(output).__name__}: let forward= return "
                "(output, target) with the tensor that the loss is computed from"
            )
        if not getattr(output, "requires_grad", False):
            raise_constant(objective)
        cotangent = torch.zeros_like(output, requires_grad=True)  # J' u is linear in u: its derivative gives J v
        vjp = _grad([output], leaves, [cotangent], create_graph=True)
        return curve(output.detach().requires_grad_(), target), output, vjp, cotangent

    twice = _second_derivatives(objective)
    with torch.enable_grad(), twice():
        (loss, slope, times), output, vjp, cotangent = objective.evaluate(leaves, task)
    linear = [i for i, p in enumerate(vjp) if p.requires_grad]

    def apply(direction: Sequence[Tensor], stacked: bool = False) -> list[Tensor]:
        if times is None or not linear:  # the loss is linear in the outputs
            return [torch.zeros_like(d) for d in direction]

        def task(model: nn.Module) -> list[Tensor]:
            jvp = _grad([vjp[i] for i in linear], [cotangent], [direction[i] for i in linear], stacked=stacked)
            return _grad([output], leaves, [times(jvp[0], stacked)], stacked=stacked)

        with twice():
            return objective.evaluate(leaves, task)

    def gradient() -> list[Tensor]:
        return objective.evaluate(leaves, lambda model: _grad([output], leaves, [slope]))

    return BatchForm(apply, gradient, loss)


def _second_derivatives(objective: Objective) -> Callable[[], AbstractContextManager[None]]:
    """What makes contexts of second derivatives; on a CPU torch's own ones of convolutions are as fast."""
    of_layers = second_derivatives(objective.model)
    if objective.device.type != "cuda":
        return of_layers

    @contextmanager
    def of_convolutions_too() -> Iterator[None]:
        with of_layers(), PlainConvolutions():
            yield

    return of_convolutions_too


def _check_twice_differentiable(gradient: Sequence[Tensor]) -> None:
    """Raise if a function in the graph is not twice differentiable: autograd.grad would omit its contribution."""
    waiting = [g.grad_fn for g in gradient if g.grad_fn is not None]
    seen = set(waiting)
    while waiting:
        node = waiting.pop()
        if "Error" in node.name():
            raise ValueError(
                "the loss cannot be differentiated twice: one of its functions is marked once_differentiable. "
                "Compute it by other operations, or choose measures that need gradients only"
            )
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                waiting.append(following)


def _grad(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    weights: Sequence[Tensor] | None = None,
    *,
    create_graph: bool = False,
    stacked: bool = False,
) -> list[Tensor]:
    graph = {"retain_graph": True, "create_graph": create_graph}
    grads = torch.autograd.grad(outputs, inputs, weights, **graph, allow_unused=True, is_grads_batched=stacked)
    # materialize_grads ignores is_grads_batched
    lead = weights[0].shape[:1] if stacked and weights else ()
    return [x.new_zeros(*lead, *x.shape) if g is None else g for g, x in zip(grads, inputs, strict=True)]
