"""Everything that changes during a run, which is what a checkpoint stores: weights, optimizer, averages, sums.

An exponential average (EMA) also averages BatchNorm's running statistics. For an even average (SWA) they are estimated
on the training rows before it is used, as in Izmailov et al. 2018 (section 3.2): the mean of the statistics is not the
statistic of the mean weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isnan
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.optim import swa_utils

from ..core.process_group import Workers
from ..core.shards import local, shard_like
from ..measures.functional import unwrap
from ..optim.engine import SharpnessAware
from .config import Config
from .distributed import gathered, placed

NamedTensors = Mapping[str, Tensor]
Tree = TypeVar("Tree")


class Average:
    """A running average of tensors by name; integer tensors are copied from the latest."""

    def __init__(self, rule: Callable[[Any, Any, int], None], every_step: bool, start: float = 0.0):
        self._rule, self.every_step = rule, every_step
        self.start = start  # the fraction of the run after which it begins
        self.tensors: dict[str, Tensor] = {}
        self.n = 0

    @torch.no_grad()
    def update(self, now: NamedTensors) -> None:
        """Add the current tensors to the average."""
        if not self.n:
            self.tensors = {k: t.detach().clone() for k, t in now.items()}
        for floating, update in ((True, self._rule), (False, _copy)) if self.n else ():
            names = [k for k, t in now.items() if t.is_floating_point() == floating]
            if names:
                update([self.tensors[k] for k in names], [now[k].detach() for k in names], self.n)
        self.n += 1

    @contextmanager
    def swapped_in(self, live: Callable[[], NamedTensors]) -> Iterator[None]:
        """Copy the average into the model for a block, and restore the model's tensors bitwise afterwards."""
        now = live()
        saved = {k: t.detach().clone() for k, t in now.items()}
        try:
            _copy([now[k] for k in self.tensors], list(self.tensors.values()))
            yield
        finally:
            now = live()  # a layer may have assigned another tensor to a buffer
            _copy([now[k] for k in saved], list(saved.values()))

    def update_buffers(self, now: NamedTensors) -> None:
        """Store the running statistics that were estimated while the average was swapped in."""
        _copy([self.tensors[k] for k in now], list(now.values()))


def averages_of(config: Config) -> dict[str, Average]:
    """Return the averages of a configuration by name."""
    untyped: Any = swa_utils
    averages = {}
    if config.ema is not None:
        averages["ema"] = Average(untyped.get_ema_multi_avg_fn(config.ema), every_step=True)
    if config.swa is not None:
        averages["swa"] = Average(untyped.get_swa_multi_avg_fn(), config.swa_every == "step", config.swa)
    return averages


@torch.no_grad()
def _copy(to: list[Tensor], of: list[Tensor], n: int = 0) -> None:
    for a, b in zip(to, of, strict=True):
        a.copy_(b)


class Sums:
    """Sums of losses, of correct rows and of rows, kept on the device until they are read."""

    def __init__(self, device: torch.device):
        precision = torch.float32 if device.type == "mps" else torch.float64  # mps has no float64
        self.totals = torch.zeros(3, dtype=precision, device=device)

    @torch.no_grad()
    def add(self, losses: Tensor, right: Tensor | None, weight: float = 1.0) -> None:
        """Add the rows of one batch: their losses, and which are classified correctly, where targets are classes."""
        rows = torch.full((), len(losses), dtype=self.totals.dtype, device=self.totals.device)
        right_sum = rows.new_full((), float("nan")) if right is None else right.sum().to(rows.dtype)
        self.totals += weight * torch.stack([losses.detach().to(rows.dtype).sum(), right_sum, rows])

    def read(self, workers: Workers | None = None) -> dict[str, float]:
        """Return mean loss and accuracy, over all workers if given. This synchronises with the device."""
        totals = self.totals if workers is None else workers.all_reduce(self.totals.clone())
        loss, right, rows = totals.tolist()
        means = {"loss": loss / rows if rows else float("nan")}
        return means | ({"accuracy": right / rows} if rows and not isnan(right) else {})


KERNELS = ("foreach", "fused", "capturable")  # options of a torch optimizer that choose kernels, not results


class TrainState:
    """The model, its optimizer, its averages, and the sums of the current epoch."""

    def __init__(self, model: nn.Module, opt: SharpnessAware, averages: dict[str, Average], workers: Workers):
        self.model, self.opt, self.averages, self.workers = model, opt, averages, workers
        self.module = unwrap(model)  # without DDP's wrapper
        names, own = dict(self.module.named_parameters(remove_duplicate=False)), self.module.state_dict()
        # kept from here: FSDP replaces parameters by gathered ones during a forward pass
        self._params = {k: t for k, t in own.items() if k in names}
        others = [k for k, t in own.items() if not isinstance(t, Tensor)]
        if others:
            raise TypeError(f"the model's state has {others[0]}, which is no tensor; a checkpoint holds only tensors")
        self.sums = Sums(next(self.module.parameters()).device)
        self.start_epoch()

    def start_epoch(self) -> None:
        """Set the sums and counters of the epoch to zero."""
        self.sums.totals.zero_()
        self.passes, self.skipped, self.seconds = 0, 0, 0.0
        self.marks: list[list[float]] = []

    def mark(self, step: int) -> None:
        """Keep the sums so far and the learning rate of a step, for a record of it; every worker takes part."""
        totals = self.workers.all_reduce(self.sums.totals.clone()).tolist()
        self.marks.append([step, float(self.opt.param_groups[0]["lr"]), *totals])

    def marked(self) -> list[dict[str, float]]:
        """Return a record of each marked step: means over the steps since the one before it."""
        records, before = list[dict[str, float]](), [0.0, 0.0, 0.0]
        for step, lr, *totals in self.marks:
            loss, right, count = (now - then for now, then in zip(totals, before, strict=True))
            before = totals
            if count:  # not if all steps were skipped
                accuracy = {} if isnan(right) else {"accuracy": right / count}
                records.append({"step": int(step), "lr": lr, "loss": loss / count, **accuracy})
        return records

    @property
    def _own(self) -> dict[str, Tensor]:
        """The current tensors; a layer may assign another tensor to a buffer at any time."""
        return {k: self._params.get(k, t) for k, t in self.module.state_dict().items()}

    def tensors(self) -> dict[str, Tensor]:
        """Return this worker's weights and buffers, to read and to write in place."""
        return {k: local(t) for k, t in self._own.items()}

    def buffers(self) -> dict[str, Tensor]:
        """Return the buffers alone."""
        return {k: t for k, t in self.module.state_dict().items() if k not in self._params}

    def reshard(self) -> None:
        """Free the weights that FSDP has gathered for a forward pass."""
        reshard: Any = getattr(self.module, "reshard", None)
        if reshard is not None:
            reshard()

    def has_nonfinite(self) -> bool:
        """Return whether a loss of this epoch or a weight is not finite."""
        weights = [local(p).isfinite().all() for p in self.module.parameters()]
        return not bool(torch.stack([*weights, self.sums.totals[0].isfinite()]).all())

    def weights(self) -> dict[str, Tensor]:
        """Return the model's state dict, unsharded; every worker takes part."""
        return self._unsharded(self._own)

    def snapshot(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return what a checkpoint stores: `weights()`, and everything else, unsharded; every worker takes part."""
        own = self._own
        averages = {
            name: {"n": a.n, "tensors": self._unsharded({k: shard_like(own[k], t) for k, t in a.tensors.items()})}
            for name, a in self.averages.items()
        }
        totals = torch.zeros(self.workers.count, 3, dtype=self.sums.totals.dtype, device=self.sums.totals.device)
        totals[self.workers.rank] = self.sums.totals
        return self._unsharded(own), {
            "optimizer": self._unsharded(self.opt.state_dict()),
            "averages": averages,
            "sums": self.workers.all_reduce(totals),  # one row per worker: another order of addition rounds differently
            "passes": self.passes,
            "skipped": self.skipped,
            "seconds": self.seconds,
            **({"marks": self.marks} if self.marks else {}),
        }

    def _unsharded(self, tree: Tree) -> Tree:
        return tree if self.workers.group is None else cast(Tree, gathered(tree))

    @torch.no_grad()
    def load(self, weights: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore what `snapshot` returned."""
        own = self._own
        if weights.keys() != own.keys():
            unmatched = sorted(weights.keys() ^ own.keys())
            names = ", ".join(unmatched[:3])
            raise ValueError(f"the checkpoint belongs to another model: {names} is in one of them only")
        for k, t in own.items():
            if weights[k].shape != t.shape:
                raise ValueError(
                    f"the checkpoint belongs to another model: {k} has the shape {tuple(weights[k].shape)} in the "
                    f"checkpoint and {tuple(t.shape)} in the model"
                )
            local(t).copy_(local(placed(weights[k], t)))
        kernels = [{k: g[k] for k in KERNELS if k in g} for g in self.opt.param_groups]
        params = [p for g in self.opt.param_groups for p in g["params"]]
        for i, slots in state["optimizer"]["state"].items():
            slots |= {k: placed(t, params[i]) for k, t in slots.items() if isinstance(t, Tensor)}
        self.opt.load_state_dict(state["optimizer"])
        for group, own_kernels in zip(self.opt.param_groups, kernels, strict=True):
            group.update(own_kernels)  # this machine's, not those of the machine that wrote the checkpoint
        for name, stored in state["averages"].items():
            average = self.averages[name]
            average.n = stored["n"]
            average.tensors = {k: local(placed(t, own[k])).to(own[k].device) for k, t in stored["tensors"].items()}
        totals = state["sums"].to(self.sums.totals)
        if len(totals) == self.workers.count:
            self.sums.totals.copy_(totals[self.workers.rank])
        elif self.workers.rank == 0:  # resumed with another number of processes
            self.sums.totals.copy_(totals.sum(0))
        self.passes, self.skipped, self.seconds = state["passes"], state["skipped"], state["seconds"]
        self.marks = state.get("marks", [])
