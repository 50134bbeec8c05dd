"""What a step reads from and writes to the base optimizer: options, state, gradients and fused kernels."""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]  # `signal` turns handlers into enums: 8 us, not 0.6
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from ..core.draw import Draw
from ..core.shards import local, local_gradient, shard_like
from ..core.vector import Space, Vector, add_, copy_, scale_
from .weights import ParamLayout

if TYPE_CHECKING:
    from .engine import SharpnessAware

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
        if hasattr(self._base, "eval"):
            raise ValueError(
                f"{type(self._base).__name__} makes the weights of others that it keeps, as schedule-free ones do, "
                "and would undo what the method adds to them: use another base, or WSAM(decouple=False)"
            )
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

    @contextmanager
    def settings_applied(self) -> Iterator[None]:
        """A context that sets the options of the plan in the groups, and puts the old ones back if it raises."""
        set_ = [{name: g[name] for name in self.settings if name in g} for g in self._base.param_groups]
        before = [{k: v.clone() if isinstance(v, Tensor) else v for k, v in old.items()} for old in set_]
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

    def apply(self) -> None:
        """Steps the base optimizer, moves the weights, and stores the plan's vectors and options."""
        with self.settings_applied() if self.settings else nullcontext():
            self._base.step()
        if self.moves:
            self.apply_moves()
        self.commit()

    @torch.no_grad()
    def apply_moves(self) -> None:
        """Moves the weights, once the base optimizer has stepped."""
        while self.moves:
            vector = self.moves.pop()
            add_(vector.space.locals(), vector.tensors)

    def commit(self, steps: int = 1) -> None:
        """Stores the plan's vectors, after the base optimizer has created its own state."""
        if self._remembered:
            self._store()
        for group in self._base.param_groups:
            group[STEP] = self.step + steps

    @torch.no_grad()
    def _store(self) -> None:
        for slot, vector in self._remembered.items():
            old = [self._base.state.get(p, {}).get(PREFIX + slot) for p in self.space.params]
            if all(t is not None for t in old):
                copy_([local(t) for t in old], vector.tensors)
                continue
            for p, x in zip(self.space.params, vector.tensors, strict=True):
                # Adam initialises only parameters without any state: add none to those that it skipped
                if p.grad is not None or self._base.state.get(p):
                    self._base.state[p][PREFIX + slot] = shard_like(p, x.clone())


class StepsTheBase:
    """A hook of a base optimizer that refuses a step while the gradient of `passes()` waits for that of the engine."""

    def __init__(self, engine: SharpnessAware):
        self._engine = ref(engine)

    def __call__(self, *_: Any) -> None:
        if (engine := self._engine()) is not None and engine.planned is not None and engine.planned.wanted:
            raise RuntimeError(
                "the base optimizer was stepped while the gradient of passes() waits in p.grad: call opt.step() of the "
                "SharpnessAware, which also keeps what the method remembers, or drop the gradient by opt.zero_grad()"
            )


_grad = attrgetter("grad")
LEFT = "_left_at_version"  # on a gradient: its version when a step ended


def mark_left(params: Sequence[Tensor]) -> None:
    """Marks the gradients in `p.grad` as those of a finished step: a closure may overwrite them."""
    for grad in map(_grad, params):
        if grad is not None:
            setattr(grad, LEFT, grad._version)


class Gradients:
    """The `p.grad` of all parameters of a space during one step.

    Parameters
    ----------
    space
        The parameters.
    keep
        Whether the result is added to the gradients that are there at the start.
    own
        Whether to copy what a pass leaves, because the next backward pass may overwrite it.
    unit
        The factor by which a scaler multiplies losses, or None.
    maximize
        Whether plans receive the gradient of minus the loss.

    """

    def __init__(self, space: Space, *, keep: bool, own: bool, unit: Tensor | None, maximize: bool = False):
        self.space = space
        self._kept = [p.grad for p in space.params] if keep else [None] * len(space.params)
        self._keep, self._own, self._unit, self._maximize = keep, own, unit, maximize
        self._reached = [False] * len(space.params)  # by any pass of the step
        self.last: Vector | None = None  # the last pass's gradient
        self.whole = False  # whether `p.grad` is that gradient
        self._looked_up: dict[int, list[Tensor]] = {}  # rows of sparse gradients, by parameter

    def undo(self) -> None:
        """Puts back the gradients from before the step."""
        for p, g in zip(self.space.params, self._kept, strict=True):
            p.grad = g

    def collect(self, ran_backward: bool) -> Vector:
        """The gradient of a pass, unscaled, with zeros for parameters that it did not reach."""
        grads: list[Tensor | None] = list(map(_grad, self.space.params))
        tensors: list[Tensor] = [g for g in grads if g is not None and not g.is_sparse]  # usually all of them
        whole = len(tensors) == len(grads)
        if whole:
            self._reached = [True] * len(grads)
        else:
            tensors = [self._dense(i, g) for i, g in enumerate(grads)]
        # a later pass, on other rows, may reach no parameter although it ran a backward pass
        if not whole and all(g is None for g in grads) and not (ran_backward and any(self._reached)):
            raise RuntimeError(
                "no parameter of the optimizer has a gradient after this pass: call loss.backward() in the closure, or "
                "pass_.backward(loss), on a loss that depends on them, and leave requires_grad on"
            )
        if self.space.sharded:
            tensors = [local_gradient(g, p) for g, p in zip(tensors, self.space.params, strict=True)]
        if self._own:
            tensors = [g.clone() for g in tensors]
        if self._unit is not None or self._maximize:
            factor = -1.0 if self._maximize else 1.0
            scale_(tensors, factor if self._unit is None else factor / self._unit)
        self.last = Vector(self.space, tensors=tensors)
        self.whole = whole and not (self._own or self._keep or self.space.sharded)
        return self.last

    def deliver(self, direction: Vector, untouched: bool) -> None:
        """Writes the direction, unscaled, into `p.grad`; a parameter that no pass reached has none.

        `untouched` says whether it is the gradient of the last pass, which may be there already.
        """
        if self._maximize:
            scale_(direction.tensors, -1.0)
        if untouched and self.whole:
            return
        self.last = None  # its memory is free, unless it is the direction
        for i, (p, g, kept) in enumerate(zip(self.space.params, direction.tensors, self._kept, strict=True)):
            if not self._reached[i]:
                p.grad = kept
                continue
            if i in self._looked_up:
                # the sparse gradient that the pass left still has the scaler's factor: only its dense copy was unscaled
                if not (untouched and self._unit is None and p.grad is not None and p.grad.is_sparse):
                    p.grad = self._sparse(i, g)
            elif p.grad is not g:
                p.grad = shard_like(p, g)
            if kept is not None:
                p.grad = kept if p.grad is None else p.grad + kept

    def _dense(self, i: int, g: Tensor | None) -> Tensor:
        if g is None:
            return torch.zeros_like(self.space.params[i])
        self._reached[i] = True
        if not g.is_sparse:
            return g
        self._looked_up.setdefault(i, []).append(g.coalesce().indices())
        return g.to_dense()

    def _sparse(self, i: int, g: Tensor) -> Tensor:
        """`g` at the rows that any pass looked up or where it is not 0, as sparse optimizers need it."""
        looked_up = self._looked_up[i]
        moved = g.flatten(len(looked_up[0])).any(-1) if g.ndim > len(looked_up[0]) else g  # a method may remember rows
        rows = torch.unique(torch.cat([*looked_up, moved.nonzero().T], dim=1), dim=1)
        return torch.sparse_coo_tensor(rows, g[tuple(rows)], g.shape, is_coalesced=True, check_invariants=False)


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Within, Ctrl-C waits until the end of the block; only the main thread is ever interrupted."""
    handler: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    pending: list[Any] = []
    signal.signal(signal.SIGINT, lambda *args: pending.append(args))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if pending:
            handler(*pending[0])
