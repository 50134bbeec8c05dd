"""What a step reads from and writes to the base optimizer: options, state, gradients and fused kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..core.draw import Draw
from ..core.shards import local, shard_like
from ..core.vector import Space, Vector, copy_
from .weights import WeightKeeper
from .workers import Replicas

FUSED = (SGD, Adam, AdamW)  # exactly these: a subclass may step in its own way


def put_steps_on_device(base: Optimizer, params: Sequence[Tensor]) -> None:
    """Moves the counts that Adam keeps on the host, unless told otherwise, to where fused kernels read them."""
    for p in params:
        step = base.state.get(p, {}).get("step")
        if isinstance(step, Tensor) and step.device != p.device:
            base.state[p]["step"] = step.to(p.device, torch.float32)


def step_unless(base: Optimizer, refused: Tensor) -> None:
    """One step of a fused optimizer, which leaves everything alone where the flag, 0.0 or 1.0, is set."""
    base.found_inf = refused  # type: ignore[attr-defined]
    try:
        base.step()
    finally:
        del base.found_inf  # type: ignore[attr-defined]


_grad = attrgetter("grad")
MARK = "_left_at_version"  # on a gradient: how often it had been written to when a step ended


def mark_left_gradients(base: Optimizer) -> None:
    """Marks what stands in `p.grad` as the remains of a step: a closure may overwrite it."""
    grad: Any
    for grad in _gradients(base):
        grad._left_at_version = grad._version


def refuse_accumulated(base: Optimizer) -> None:
    """Raises if `p.grad` holds anything that no step left there."""
    grads = _gradients(base)
    if all(getattr(g, MARK, None) == g._version for g in grads):
        return
    if any(bool(torch.count_nonzero(g.coalesce().values() if g.is_sparse else g)) for g in grads):
        raise RuntimeError(
            "p.grad holds gradients that the last step did not leave there, and step(closure) would lose them: a "
            "sharpness-aware step runs every micro-batch in every pass. To accumulate, write\n"
            "    for turn in opt.passes():\n        for x, y in micro_batches:\n"
            "            turn.backward(loss_fn(model(x), y) / len(micro_batches))\n    opt.step()\n"
            "or call opt.zero_grad() first, if they are not wanted."
        )


def _gradients(base: Optimizer) -> list[Tensor]:
    params = [p for group in base.param_groups for p in group["params"]]
    return [g for p, g in zip(params, map(_grad, params), strict=True) if g is not None and p.requires_grad]


PREFIX = "steppe."  # of our keys in the base optimizer's state and groups
STEP = PREFIX + "step"
BUFFERS = ("momentum_buffer", "exp_avg")  # where torch's optimizers keep their momentum


class OptimizerSite:
    """One step's view of the base optimizer: nothing that a plan does here lasts until `commit`."""

    def __init__(
        self, base: Optimizer, space: Space, keeper: WeightKeeper, replicas: Replicas, seed: int, mask: Tensor | None
    ):
        self.space, self.mask, self.seed = space, mask, seed
        self.step: int = base.param_groups[0][STEP]
        self._remembered: dict[str, Vector] = {}
        self.settings: dict[str, Any] = {}
        self.average_, self.mean, self.alone = replicas.average_, replicas.mean, replicas.alone
        self._base, self._keeper = base, keeper

    @property
    def weights(self) -> Vector:
        return self._keeper.weights

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
