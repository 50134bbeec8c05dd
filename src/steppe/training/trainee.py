"""Everything that moves while a run goes on, which is what a checkpoint keeps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..core.process_group import Workers
from ..core.shards import local, shard_like
from ..measures.functional import unwrap
from ..optim.engine import SharpnessAware
from .averages import Average
from .distributed import gathered, placed
from .sums import Sums

KERNELS = ("foreach", "fused", "capturable")  # how an optimizer of torch computes, not what


class Trainee:
    """The model, its optimizer, its averages, and what the epoch under way has added up to."""

    def __init__(self, model: nn.Module, opt: SharpnessAware, averages: dict[str, Average], workers: Workers):
        self.model, self.opt, self.averages, self.workers = model, opt, averages, workers
        self.bare = unwrap(model)  # without DDP's wrapper
        trained = dict(self.bare.named_parameters(remove_duplicate=False))
        self._params = {k: t for k, t in self.bare.state_dict().items() if k in trained}  # gathered ones are others
        strange = [k for k, t in self.bare.state_dict().items() if not isinstance(t, Tensor)]
        if strange:
            raise TypeError(f"the model keeps {strange[0]}, which is no tensor, and a checkpoint keeps only those")
        self.sums = Sums(next(self.bare.parameters()).device)
        self.start_epoch()

    def start_epoch(self) -> None:
        self.sums.totals.zero_()
        self.passes, self.skipped, self.seconds = 0, 0, 0.0

    @property
    def _own(self) -> dict[str, Tensor]:
        """The tensors themselves; a layer may put another tensor in the place of a buffer at any time."""
        return {k: self._params.get(k, t) for k, t in self.bare.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """The weights and buffers that this worker has, to be read and written in place."""
        return {k: local(t) for k, t in self._own.items()}

    def buffers(self) -> dict[str, Tensor]:
        return {k: t for k, t in self.bare.state_dict().items() if k not in self._params}

    def let_go(self) -> None:
        """Frees weights that a sharded model has gathered for a forward pass."""
        reshard: Any = getattr(self.bare, "reshard", None)
        if reshard is not None:
            reshard()

    def broken(self) -> bool:
        """Whether a loss of this epoch or a weight is not finite."""
        weights = [local(p).isfinite().all() for p in self.bare.parameters()]
        return not bool(torch.stack([*weights, self.sums.totals[0].isfinite()]).all())

    def weights(self) -> dict[str, Tensor]:
        """The model's state dict, whole; every worker takes part."""
        return {k: gathered(t) for k, t in self._own.items()}

    def state(self) -> dict[str, Any]:
        """Everything else, whole; every worker takes part."""
        own = self._own
        averages = {
            name: {"n": a.n, "tensors": {k: gathered(shard_like(own[k], t)) for k, t in a.tensors.items()}}
            for name, a in self.averages.items()
        }
        totals = torch.zeros(self.workers.count, 3, dtype=self.sums.totals.dtype, device=self.sums.totals.device)
        totals[self.workers.rank] = self.sums.totals
        return {
            "optimizer": gathered(self.opt.state_dict()),
            "averages": averages,
            "sums": self.workers.all_reduce(totals),  # each worker's apart: added in another order they would differ
            "passes": self.passes,
            "skipped": self.skipped,
            "seconds": self.seconds,
        }

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Goes back to what `weights` and `state` returned."""
        own = self._own
        if weights.keys() != own.keys():
            strange = sorted(weights.keys() ^ own.keys())
            raise ValueError(f"the checkpoint is of another model: {', '.join(strange[:3])} is in one of them only")
        for k, t in own.items():
            if weights[k].shape != t.shape:
                raise ValueError(
                    f"the checkpoint is of another model: {k} has the shape {tuple(weights[k].shape)} in the "
                    f"checkpoint and {tuple(t.shape)} in the model"
                )
            local(t).copy_(local(placed(weights[k], t)))
        kernels = [{k: g[k] for k in KERNELS if k in g} for g in self.opt.param_groups]
        self.opt.load_state_dict(self._placed(state["optimizer"]))
        for group, own_kernels in zip(self.opt.param_groups, kernels, strict=True):
            group.update(own_kernels)  # those of this machine, whatever the last one had
        for name, kept in state["averages"].items():
            average = self.averages[name]
            average.n = kept["n"]
            average.tensors = {k: local(placed(t, own[k])).to(own[k].device) for k, t in kept["tensors"].items()}
        totals = state["sums"].to(self.sums.totals)
        if len(totals) == self.workers.count:
            self.sums.totals.copy_(totals[self.workers.rank])
        elif self.workers.rank == 0:  # another number of processes goes on
            self.sums.totals.copy_(totals.sum(0))
        self.passes, self.skipped, self.seconds = state["passes"], state["skipped"], state["seconds"]

    def _placed(self, optimizer: dict[str, Any]) -> dict[str, Any]:
        params = [p for g in self.opt.param_groups for p in g["params"]]
        for i, slots in optimizer["state"].items():
            optimizer["state"][i] = {k: placed(t, params[i]) if isinstance(t, Tensor) else t for k, t in slots.items()}
        return optimizer
