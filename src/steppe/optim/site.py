"""What a plan sees when an optimizer runs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..core.draw import Draw
from ..core.shards import local, shard_like
from ..core.vector import Space, Vector, copy_
from .weights import Excursion
from .workers import Replicas

PREFIX = "steppe."  # of our keys in the base optimizer's state and groups
STEP = PREFIX + "step"
BUFFERS = ("momentum_buffer", "exp_avg")  # where torch's optimizers keep their momentum


class OptimizerSite:
    """One step's view of the base optimizer: nothing that a plan does here lasts until `commit`."""

    def __init__(
        self, base: Optimizer, space: Space, excursion: Excursion, replicas: Replicas, seed: int, mask: Tensor | None
    ):
        self.space, self.mask, self.seed = space, mask, seed
        self.step: int = base.param_groups[0][STEP]
        self._remembered: dict[str, Vector] = {}
        self.settings: dict[str, Any] = {}
        self.average_, self.mean, self.alone = replicas.average_, replicas.mean, replicas.alone
        self._base, self._excursion = base, excursion

    @property
    def weights(self) -> Vector:
        return self._excursion.weights

    def option(self, name: str) -> Any:
        """A group option: its one value, or one a chunk where the groups differ."""
        groups = self._base.param_groups
        values = [g[name] for g in groups]
        if all(v is values[0] or (isinstance(v, float | int) and v == values[0]) for v in values):
            return values[0]
        return [values[c.group] for c in self.space.chunks]

    def key(self, sample: int) -> tuple[int, ...]:
        return (self.seed, self.step, sample)

    def draw(self, sample: int, grad: Vector) -> Draw:
        return Draw(self.space, self.key(sample), self.weights, grad)

    def momentum(self) -> Vector | None:
        """The base optimizer's momentum, or None before its first step."""
        found = (self._in_state(name, None) for name in BUFFERS)
        return next((vector for vector in found if vector is not None), None)

    def recall(self, slot: str, missing: Vector | None = None) -> Vector | None:
        """What was remembered at an earlier step; `missing`, or zeros, where a parameter is new since."""
        return self._in_state(PREFIX + slot, missing)

    def remember(self, slot: str, vector: Vector) -> None:
        """Keeps a vector for later steps, if this one is taken."""
        self._remembered[slot] = vector

    def _in_state(self, name: str, missing: Vector | None) -> Vector | None:
        kept = [self._base.state.get(p, {}).get(name) for p in self.space.params]
        if all(t is None for t in kept):
            return None
        gaps = missing.tensors if missing is not None else self.space.zeros().tensors
        return self.space.vector([gap if t is None else local(t) for t, gap in zip(kept, gaps, strict=True)])

    @property
    def begun(self) -> bool:
        """Whether there is an older one of everything that the plan wants kept."""
        slots = [PREFIX + slot for slot in self._remembered]
        return not slots or all(slot in self._base.state.get(p, {}) for p in self.space.params for slot in slots)

    def refuse_where(self, flag: Tensor) -> None:
        """Takes back what the plan wants kept where a flag on the device is not 0, without looking at it."""
        if not self._remembered and not self.settings:
            return
        flag = flag != 0
        for slot, new in self._remembered.items():
            old = self.recall(slot)
            if old is not None:
                pairs = zip(old.chunks, new.chunks, strict=True)
                self._remembered[slot] = Vector(self.space, [torch.where(flag, a, b) for a, b in pairs])
        for name, value in self.settings.items():
            self.settings[name] = torch.where(flag, self.option(name), value)

    def settings_applied(self) -> AbstractContextManager[None]:
        """The groups with the options that the plan set, for good unless the block fails."""
        return self._settings_applied() if self.settings else nullcontext()

    @contextmanager
    def _settings_applied(self) -> Iterator[None]:
        before = [{name: _kept(g[name]) for name in self.settings if name in g} for g in self._base.param_groups]
        try:
            for group in self._base.param_groups:
                for name, value in self.settings.items():
                    if isinstance(there := group.get(name), Tensor):
                        there.copy_(value)  # in its own memory, which a recorded step reads again
                    else:  # a float option costs one wait for the device, a tensor in the group none
                        group[name] = float(value)
            yield
        except BaseException:
            for group, old in zip(self._base.param_groups, before, strict=True):
                for name in self.settings:
                    group.pop(name, None)
                group.update(old)
            raise

    @torch.no_grad()
    def commit(self, steps: int = 1) -> None:
        """Keeps what the plan wants kept, after the base optimizer has made its own state."""
        for slot, vector in self._remembered.items():
            old = [self._base.state.get(p, {}).get(PREFIX + slot) for p in self.space.params]
            if all(t is not None for t in old):
                copy_([local(t) for t in old], vector.tensors)
                continue
            for p, x in zip(self.space.params, vector.tensors, strict=True):
                # Adam takes a parameter with any state for one that it has started on: leave those it skipped alone
                if p.grad is not None or self._base.state.get(p):
                    self._base.state[p][PREFIX + slot] = shard_like(p, x.clone())
        for group in self._base.param_groups:
            group[STEP] = self.step + steps


def _kept(option: Any) -> Any:
    return option.clone() if isinstance(option, Tensor) else option
