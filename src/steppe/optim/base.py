"""What a step reads from and writes to the base optimizer: options, state and fused kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..core.draw import Draw
from ..core.shards import local, shard_like
from ..core.vector import Vector, add_, copy_
from .weights import ParamLayout

# the defaults that an engine wrote into its base's groups
_DEFAULTS: WeakKeyDictionary[Optimizer, dict[str, Any]] = WeakKeyDictionary()


def forget_defaults(base: Optimizer, options: Mapping[str, Any]) -> None:
    """Removes the defaults of an earlier engine from the base's groups; notes those of the next one."""
    for group in base.param_groups:
        for name, value in _DEFAULTS.get(base, {}).items():
            if group.get(name) == value:
                del group[name]
    _DEFAULTS[base] = dict(options)


FUSED = (SGD, Adam, AdamW)  # exactly these classes: a subclass may override step


def put_steps_on_device(base: Optimizer, params: Sequence[Tensor]) -> None:
    """Moves Adam's step counts from the host, where it keeps them by default, to the device for fused kernels."""
    for p in params:
        step = base.state.get(p, {}).get("step")
        if isinstance(step, Tensor) and step.device != p.device:
            base.state[p]["step"] = step.to(p.device, torch.float32)


def step_unless(base: Optimizer, skip: Tensor) -> None:
    """One step of a fused optimizer, which changes nothing if the flag, 0.0 or 1.0, is set."""
    base.found_inf = skip  # type: ignore[attr-defined]
    try:
        base.step()
    finally:
        del base.found_inf  # type: ignore[attr-defined]


PREFIX = "steppe."  # of our keys in the base optimizer's state and groups
STEP = PREFIX + "step"
BUFFERS = ("momentum_buffer", "exp_avg")  # where torch's optimizers keep their momentum


class OptimizerContext:
    """One step's view of the base optimizer: nothing that a plan does here takes effect before `commit`."""

    def __init__(self, base: Optimizer, layout: ParamLayout, seed: int, mask: Tensor | None):
        self.space, self.mask, self.seed = layout.space, mask, seed
        self.step: int = base.param_groups[0][STEP]
        self.settings: dict[str, Any] = {}
        replicas = layout.replicas
        self.average_, self.mean, self.alone = replicas.average_, replicas.mean, replicas.alone
        self._base, self._keeper = base, layout.keeper
        self._remembered: dict[str, Vector] = {}
        self.moves: list[Vector] = []  # what is added to the weights after the base has stepped

    @property
    def weights(self) -> Vector:
        return self._keeper.weights

    def option(self, name: str) -> Any:
        """A group option: one value, or one per chunk if the groups differ."""
        values = [g[name] for g in self._base.param_groups]
        first = values[0]
        if len(values) == 1 or all(v is first or (isinstance(v, float | int) and v == first) for v in values):
            return first
        return [values[c.group] for c in self.space.chunks]

    def key(self, sample: int) -> tuple[int, ...]:
        return (self.seed, self.step, sample)

    def draw(self, sample: int, grad: Vector) -> Draw:
        return Draw(self.space, self.key(sample), self.weights, grad)

    def momentum(self) -> Vector | None:
        """The base optimizer's momentum, or None before its first step."""
        vectors = (self._in_state(name, None) for name in BUFFERS)
        return next((vector for vector in vectors if vector is not None), None)

    def recall(self, slot: str, missing: Vector | None = None) -> Vector | None:
        """The vector that an earlier step kept in this slot; `missing` or 0 where a parameter is new since then."""
        return self._in_state(PREFIX + slot, missing)

    def create_slots(self, slots: Sequence[str]) -> None:
        """Creates the state of these slots, zeros, without a step."""
        for slot in slots:
            self.remember(slot, self.space.zeros())
        self.commit(steps=0)

    def remember(self, slot: str, vector: Vector) -> None:
        """Keeps a vector for later steps, once this step is applied."""
        self._remembered[slot] = vector

    def move(self, vector: Vector) -> None:
        """Adds a vector to the weights once this step is applied, after the base optimizer and not through it."""
        self.moves.append(vector)

    def _in_state(self, name: str, missing: Vector | None) -> Vector | None:
        kept = [self._base.state.get(p, {}).get(name) for p in self.space.params]
        if all(t is None for t in kept):
            return None
        gaps = missing.tensors if missing is not None else self.space.zeros().tensors
        return self.space.vector([gap if t is None else local(t) for t, gap in zip(kept, gaps, strict=True)])

    def revert_where(self, flag: Tensor) -> None:
        """Keeps the vectors and options of the last step if a flag on the device is not 0, without synchronizing."""
        if not (self._remembered or self.settings or self.moves):
            return
        flag = flag != 0
        self.moves = [vector.map(lambda x: torch.where(flag, 0, x)) for vector in self.moves]
        for slot, new in self._remembered.items():
            old = self.recall(slot)
            if old is not None:
                pairs = zip(old.chunks, new.chunks, strict=True)
                self._remembered[slot] = Vector(self.space, [torch.where(flag, a, b) for a, b in pairs])
        for name, value in self.settings.items():
            self.settings[name] = torch.where(flag, self.option(name), value)

    def settings_applied(self) -> AbstractContextManager[None]:
        """A context that sets the options of the plan in the groups, and puts the old ones back if it raises."""
        return self._settings_applied() if self.settings else nullcontext()

    @contextmanager
    def _settings_applied(self) -> Iterator[None]:
        before = [{name: _copied(g[name]) for name in self.settings if name in g} for g in self._base.param_groups]
        try:
            for group in self._base.param_groups:
                for name, value in self.settings.items():
                    if isinstance(there := group.get(name), Tensor):
                        there.copy_(value)  # in its own memory, which a captured step reads
                    else:  # a float option costs one synchronization, a tensor in the group none
                        group[name] = float(value)
            yield
        except BaseException:
            for group, old in zip(self._base.param_groups, before, strict=True):
                for name in self.settings:
                    group.pop(name, None)
                group.update(old)
            raise

    @torch.no_grad()
    def apply_moves(self) -> None:
        """Moves the weights, once the base optimizer has stepped."""
        while self.moves:
            vector = self.moves.pop()
            add_(vector.space.locals(), vector.tensors)

    @torch.no_grad()
    def commit(self, steps: int = 1) -> None:
        """Stores the plan's vectors, after the base optimizer has created its own state."""
        for slot, vector in self._remembered.items():
            old = [self._base.state.get(p, {}).get(PREFIX + slot) for p in self.space.params]
            if all(t is not None for t in old):
                copy_([local(t) for t in old], vector.tensors)
                continue
            for p, x in zip(self.space.params, vector.tensors, strict=True):
                # Adam initialises only parameters without any state: add none to those that it skipped
                if p.grad is not None or self._base.state.get(p):
                    self._base.state[p][PREFIX + slot] = shard_like(p, x.clone())
        for group in self._base.param_groups:
            group[STEP] = self.step + steps


def _copied(option: Any) -> Any:
    return option.clone() if isinstance(option, Tensor) else option
