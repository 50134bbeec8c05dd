"""One pass of all members, on weights that are stacked; on a GPU recorded, and replayed, where that is asked for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.conv import _ConvNd

from ..replays import Replays
from ..training.evaluate import autocast
from ..training.loop import Training
from .branches import Branches
from .counts import counted
from .memberwise import Places


class Passed(NamedTuple):
    """What a pass gives, all members stacked."""

    output: Tensor
    losses: Tensor  # one a row
    means: Tensor  # of every member
    grad: Tensor  # of every member's mean, in rows as the weights are
    counts: Tensor | None = None  # for what members count of an epoch; None: they count themselves


class PassOfAll:
    """A function of weights and rows that launches all members' kernels at once when it is replayed.

    Models whose forward pass draws numbers or moves buffers are never stacked, so nothing else changes between two
    passes. Counting goes with what is recorded: ten small kernels a member cost more than such a member's pass.
    """

    def __init__(
        self,
        first: Training,
        names: Sequence[str],  # of the parameters that are trained
        places: Places,
        still: Mapping[str, Tensor],  # everything else that the models have, stacked
        replays: Replays | None = None,
    ):
        self._config, self._device, self._loss = first.config, first.device, first.loss
        self._model, self._names, self._places, self._still = first.trainee.bare, names, places, still
        recorded = first.config.capture and first.device.type == "cuda"
        self.replays = Replays() if replays is None and recorded else replays
        self._branches = Branches(first.device) if self.replays is not None and side_by_side(self._model) else None
        self._told = False  # why nothing is recorded

    def __call__(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Passed:
        """At weights that are one row a member, on inputs and targets of each, with the rows' weights in its mean."""
        if self.replays is None:
            return Passed(*self._stacked(rows, x, y, weights))
        # a recording of another function, or of memory elsewhere, is not this one
        memory = tuple(t.data_ptr() for t in self._still.values())
        key = (id(self._model), self._model.training, self._config.precision, memory)
        passed = Passed(*self.replays(key, self._recorded, rows, x, y, weights))
        if self.replays.why is not None and not self._told:
            self._told = True
            warnings.warn(f"passes of stacked members are not recorded: {self.replays.why}", stacklevel=2)
        return passed

    def _recorded(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> list[Tensor]:
        if self._branches is None:
            found = self._stacked(rows, x, y, weights)
        else:
            alone = self._branches([lambda i=i: self._alone(i, rows, x, y, weights) for i in range(len(rows))])  # type: ignore[misc]
            found = [torch.stack(each) for each in zip(*alone, strict=True)]
        return [*found, counted(found[0], found[1], y, weights, self._loss)]

    def _stacked(self, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> list[Tensor]:
        """All members in every kernel."""
        point = rows.detach().requires_grad_()
        stacks = {**dict(zip(self._names, self._places.cut(point), strict=True)), **self._still}
        with autocast(self._config, self._device):
            output = vmap(lambda w, inputs: functional_call(self._model, w, (inputs,)))(stacks, x)
        losses = self._loss(output.flatten(0, 1), y.flatten(0, 1)).view(weights.shape)
        means = (losses * weights).sum(1)
        (grad,) = torch.autograd.grad(means.sum(), point)
        return [output.detach(), losses.detach(), means.detach(), grad]

    def _alone(self, i: int, rows: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> list[Tensor]:
        """One member by itself."""
        point = rows[i : i + 1].detach().requires_grad_()
        own = {k: part[0] for k, part in zip(self._names, self._places.cut(point), strict=True)}
        with autocast(self._config, self._device):
            output = functional_call(self._model, {**own, **{k: t[i] for k, t in self._still.items()}}, (x[i],))
        losses = self._loss(output, y[i])
        mean = (losses * weights[i]).sum()
        (grad,) = torch.autograd.grad(mean, point)
        return [output.detach(), losses.detach(), mean.detach(), grad[0]]


def side_by_side(model: nn.Module) -> bool:
    """Whether recorded passes of members go beside one another instead of being one.

    Convolutions with weights that differ by member are grouped ones, which GPUs are slow at. A rule, not a trial run:
    the same run takes the same way every time, and so ends bitwise the same.
    """
    return any(isinstance(m, _ConvNd) for m in model.modules())
