"""Curvature of the loss around each input: the Hessian of a row's loss with respect to its input.

Garg and Roy (2023) order rows by it. Lu et al. (SharpBalance, 2024, Figure 13) compare that order with the order by
Fisher traces (`fisher.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Generator, Tensor, nn

from ..core.draw import seed_of
from ..core.fields import Count
from .batches import Batch, row, to_device
from .estimate import Estimate, Measure, summarise
from .fisher import check_no_batch_statistics, fisher_traces, mean_over_rows
from .functional import twice_differentiable
from .reductions import row_weights
from .registration import register
from .session import session

if TYPE_CHECKING:
    from .objective import Objective

Power = Literal[1, 2]


def input_curvatures(objective: Objective, power: Power = 2, draws: int = 10, seed: int = 0) -> Tensor:
    """The curvature of the loss around every input.

    Parameters
    ----------
    objective
        The loss and the data: batches of (inputs, targets). Inputs are as the model takes them, standardised.
    power, draws, seed
        As in `InputCurvature`.

    Returns
    -------
    Tensor
        One estimate per row in the order of the batches, on the CPU in float64. With a process group, every worker gets
        the rows of its own batches.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> steppe.measures.input_curvatures(objective)  # the Hessian of x_1 ** 2 is diag(2, 0)
    tensor([4., 4.], dtype=torch.float64)

    """
    with session(objective.model, objective.statistics):
        batches = _by_batch(objective, InputCurvature(power, draws), seed)
        return torch.cat([torch.zeros(0, dtype=torch.float64), *(x for _, x, _ in batches)])


@register(
    "input_trace", kind="unbiased", cost="1 gradient and 10 products", label="trace of the input Hessian",
    does="the mean over samples of tr H, H the Hessian of a sample's loss in its input",
    args=(1,),
)  # fmt: skip
@register(
    "input_curvature", kind="unbiased", cost="1 gradient and 10 products", paper="Garg and Roy 2023",
    label="input curvature", does="the mean over samples of tr H^2, H the Hessian of a sample's loss in its input",
)  # fmt: skip
@dataclass(frozen=True)
class InputCurvature(Measure):
    """The mean over samples of tr H^power, H the Hessian of a sample's loss with respect to its input.

    tr H is estimated by v'Hv, and tr H^2, the curvature of Garg and Roy (2023), by ||Hv||^2, with random signs v.

    Parameters
    ----------
    power
        1 for the trace, 2 for the squared Frobenius norm.
    draws
        Random vectors per sample. The error is over samples and contains the noise of the draws.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> float(steppe.measures.InputCurvature(power=1).estimate(objective))  # the Hessian of x_1 ** 2 is diag(2, 0)
    2.0

    """

    power: Power = 2
    draws: Count = 10

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        yield from mean_over_rows(objective, _by_batch(objective, self, seed))


@register(
    "fisher_input_correlation", kind="plug-in", cost="2 gradients and 10 products", paper="Lu et al. 2024",
    label="rank correlation of Fisher trace and input curvature",
    does="Spearman's rank correlation over samples of the squared gradient norm and the input curvature",
)  # fmt: skip
@dataclass(frozen=True)
class FisherInputCorrelation(Measure):
    """Spearman's rank correlation over samples of the squared gradient norm and the input curvature.

    Near 1, both order the rows alike (Lu et al. 2024, Figure 13). The noise of few draws pulls it towards 0. The error
    is the jackknife over rows, which takes quadratic time in their number.

    Parameters
    ----------
    power, draws
        As in `InputCurvature`.

    Examples
    --------
    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.tensor([[1.0], [2.0], [3.0]]), torch.zeros(3, 1)
    >>> objective = steppe.Objective(model, lambda output, target: ((output - target) ** 4).mean(), data)

    >>> round(float(steppe.measures.FisherInputCorrelation().estimate(objective)), 4)  # of 16 x ** 8 and 144 x ** 4
    1.0

    """

    power: Power = 2
    draws: Count = 10

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        sizes = zip(objective.batches, objective.sizes, strict=True)
        weights = [torch.zeros(0, dtype=torch.float64), *(row_weights(objective, *each)[0] for each in sizes)]
        curvatures = input_curvatures(objective, self.power, self.draws, seed)
        columns = torch.stack([fisher_traces(objective), curvatures, torch.cat(weights)], 1)
        gathered = objective.workers.all_gather([(objective.workers.rank, columns.flatten().tolist())])
        rows = torch.tensor([x for _, triples in gathered for x in triples], dtype=torch.float64).view(-1, 3)
        yield summarise(rows[rows[:, 2] > 0, :2], "plug-in", _spearman, note=f"{self.draws} draws per row")


def _spearman(pairs: Tensor) -> Tensor:
    from scipy.stats import rankdata

    return torch.corrcoef(torch.from_numpy(rankdata(pairs.numpy(), axis=0)).T)[0, 1]


def _by_batch(objective: Objective, measure: InputCurvature, seed: int) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Per batch: a note, the curvature of every row, and the rows' weights."""
    check_no_batch_statistics(objective, list(objective.model.modules()))
    objective.check()
    for i, (batch, size) in enumerate(zip(objective.batches, objective.sizes, strict=True)):
        local = to_device(batch, objective.device)
        if i == 0 and size > 1:
            among, alone = (_gradient_of_first(objective, part) for part in (local, row(local, 0)))
            if float((among - alone).norm()) > torch.finfo(alone.dtype).eps ** 0.25 * float(alone.norm()):
                raise ValueError("a row has another gradient by itself than among others: the model mixes rows")
        draws = Generator().manual_seed(seed_of(seed, objective.first + i * objective.stride))
        weights, factors = row_weights(objective, batch, size)
        curvatures = _curvatures(objective, local, measure, draws, factors)
        objective.meter["gradients"] += size
        objective.meter["products"] += size * measure.draws
        yield f"{measure.draws} draws per row", curvatures, weights


def _curvatures(
    objective: Objective, batch: Batch, measure: InputCurvature, draws: Generator, factors: Tensor
) -> Tensor:
    x = _inputs(batch)

    def task(model: nn.Module) -> Tensor:
        grad = _gradient(objective, model, batch, x, factors)
        total = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for _ in range(measure.draws):
            v = torch.randint(0, 2, x.shape, generator=draws).mul_(2).sub_(1).to(x)
            product = torch.zeros_like(x)
            if grad.requires_grad:  # not where the loss is linear in its inputs
                (product,) = torch.autograd.grad(grad, x, v, retain_graph=True, materialize_grads=True)
            other = v if measure.power == 1 else product
            total += (other.double() * product.double()).flatten(1).sum(1)
        return total.div(measure.draws).cpu()

    with torch.enable_grad(), twice_differentiable(objective.model):
        return objective.evaluate(objective.weight_tensors(), task)


def _inputs(batch: Batch) -> Tensor:
    x = batch[0] if isinstance(batch, (tuple, list)) else None
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise ValueError(
            "input curvature needs batches (inputs, targets) whose inputs are a tensor of floating-point numbers"
        )
    return x.detach().requires_grad_()


def _gradient(objective: Objective, model: nn.Module, batch: Batch, x: Tensor, factors: Tensor) -> Tensor:
    """The gradient of every row's loss with respect to its input, with a graph for second derivatives.

    That of a batch's loss is as many times smaller as `factors` say.
    """
    losses = objective.loss_fn(*objective.forward(model, (x, *batch[1:])))
    if not losses.ndim and objective.weight is not None:
        raise ValueError("a mean loss with weight= does not determine the rows' losses: return one loss per row")
    (grad,) = torch.autograd.grad(losses.sum(), x, create_graph=True, materialize_grads=True)
    return grad if losses.ndim else grad * factors.to(grad).view(-1, *[1] * (x.ndim - 1))


def _gradient_of_first(objective: Objective, batch: Batch) -> Tensor:
    """The gradient of the first row's loss in its input."""
    x = _inputs(batch)
    factors = row_weights(objective, batch, len(x))[1]
    with torch.enable_grad(), twice_differentiable(objective.model):
        weights = objective.weight_tensors()
        return objective.evaluate(weights, lambda model: _gradient(objective, model, batch, x, factors)[0].detach())
