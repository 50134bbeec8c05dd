"""Runs the plan of one step: every probe becomes a pass of the caller, gradients go in and out of `p.grad`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..core.probe import Plan, Probe, Reading
from ..core.rows import Rows, held_out, select, whole
from ..core.shards import local, shard_like
from ..core.vector import Space, Vector, scale_
from .buffers import RunningStatistics
from .finite import FiniteCheck
from .report import Report
from .rng import SameNoise
from .weights import WeightKeeper
from .workers import Replicas


class Pass:
    """What `passes()` yields: compute the loss on `rows(...)` of the batch, then call `backward` on it."""

    def __init__(self, probe: Probe, scaler: Any = None, look: bool = False):
        self.probe, self._scaler, self._look = probe, scaler, look
        self.graph: Tensor | None = None  # a loss with its graph, for a look at what it went through
        self.loss: Tensor | None = None
        self.losses: Tensor | None = None
        self.batch: int | None = None  # rows of the whole batch, where `rows` was asked
        self.ran = False
        self.ran_backward = False  # by `backward`; a plain closure may have gone back too, unseen

    @property
    def held_out(self) -> bool:
        """Whether this pass is on the held-out data instead of the batch."""
        return self.probe.rows is held_out

    def rows(self, *tensors: Any) -> Any:
        """The rows of the batch that this pass is on: `x, y = turn.rows(x, y)`."""
        picked, batch = select(self.probe.rows, tensors)
        if not self.held_out:
            self.batch = batch if self.batch is None else self.batch + batch
        return picked

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a loss; of its mean, if it holds one number a row."""
        each, loss = (loss.detach().flatten(), loss.mean()) if loss.ndim else (None, loss)
        self._note(loss, each)
        if self.probe.grad:
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            self.ran_backward = True

    def run(self, closure: Callable[..., Any], held: Callable[..., Any] | None) -> Any:
        """Answers the probe by a closure: a plain torch one, or one that takes this pass."""
        if self.held_out:
            if held is None:
                raise RuntimeError("the method looks at held-out data too: opt.step(closure, held_out=closure_for_it)")
            closure = held
        takes_turn = _takes_the_pass(closure)
        if not takes_turn and (self._partial or not self.probe.grad):
            raise TypeError(
                "the method looks at parts of the batch, so its closure takes the pass as argument:\n"
                "    def closure(turn):\n        a, b = turn.rows(x, y)\n"
                "        loss = loss_fn(model(a), b)\n        turn.backward(loss)\n        return loss"
            )
        with torch.enable_grad() if self.probe.grad else nullcontext():
            loss = closure(self) if takes_turn else closure()
        if not self.ran and loss is not None:
            loss_of_all = torch.as_tensor(loss)
            self._note(loss_of_all.mean() if loss_of_all.ndim else loss_of_all, None)
        self.ran = True
        # without its graph, which would otherwise live through the next pass
        return loss.detach() if isinstance(loss, Tensor) else loss

    def finish(self) -> None:
        """Refuses a pass that was not run as the method asked."""
        if not self.ran:
            raise RuntimeError(
                "a pass ended without a loss: call turn.backward(loss) in every `for turn in opt.passes()`"
            )
        if self._partial and self.batch is None:
            raise RuntimeError("this pass is on some rows of the batch only: take them with x, y = turn.rows(x, y)")

    @property
    def _partial(self) -> bool:
        rows: Rows = self.probe.rows
        return rows is not whole and rows is not held_out

    def _note(self, loss: Tensor, each: Tensor | None) -> None:
        self.graph, loss = loss if self._look else None, loss.detach()
        self.loss = loss if self.loss is None else self.loss + loss
        if each is not None:
            self.losses = each if self.losses is None else torch.cat([self.losses, each])
        self.ran = True


def _takes_the_pass(f: Callable[..., Any]) -> bool:
    """Whether a closure wants the pass: its first parameter has no default, or is called turn."""
    if isinstance(f, FunctionType) and not vars(f):  # nearly always; asking for a signature takes ten times as long
        code, optional = f.__code__, len(f.__defaults__ or ())
        return code.co_argcount > optional or code.co_varnames[: code.co_argcount][:1] == ("turn",)
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return bool(positional) and (positional[0].default is inspect.Parameter.empty or positional[0].name == "turn")


_grad = attrgetter("grad")


class Gradients:
    """The `p.grad` of all parameters of a space, and which of them any pass of the step has reached."""

    def __init__(self, space: Space, *, keep: bool, own: bool, unit: Tensor | None, maximize: bool = False):
        self.space = space
        self._kept = [p.grad for p in space.params] if keep else [None] * len(space.params)
        self._keep = keep
        self._own = own  # the next backward pass may write into what this one leaves
        self._unit = unit  # what the loss was multiplied by
        self._maximize = maximize  # plans see the gradient of minus the loss
        self._reached = [False] * len(space.params)
        self._last: Vector | None = None  # the last pass's gradient
        self._whole = False  # whether `p.grad` is just that
        self._looked_up: dict[int, list[Tensor]] = {}  # rows of sparse gradients, by parameter

    def clear(self) -> None:
        for p in self.space.params:
            p.grad = None

    def undo(self) -> None:
        """As before the step."""
        for p, g in zip(self.space.params, self._kept, strict=True):
            p.grad = g

    def collect(self, ran_backward: bool) -> Vector:
        """What the pass left, unscaled, with zeros where it left nothing; a pass that did go back may leave nothing."""
        found: list[Tensor | None] = list(map(_grad, self.space.params))
        tensors: list[Tensor] = [g for g in found if g is not None and not g.is_sparse]  # usually all of them
        whole = len(tensors) == len(found)
        if whole:
            self._reached = [True] * len(found)
        else:
            tensors = [self._dense(i, g) for i, g in enumerate(found)]
        if all(g is None for g in found) and not (ran_backward and any(self._reached)):
            raise RuntimeError(
                "no parameter of the optimizer has a gradient after this pass: call loss.backward() in the closure, or "
                "turn.backward(loss), on a loss that depends on them, and leave requires_grad on"
            )
        if self.space.sharded:
            tensors = [local(g) for g in tensors]
        if self._own:
            tensors = [g.clone() for g in tensors]
        if self._unit is not None or self._maximize:
            factor = -1.0 if self._maximize else 1.0
            scale_(tensors, factor if self._unit is None else factor / self._unit)
        self._last = self.space.vector(tensors)
        self._whole = whole and not (self._own or self._keep or self.space.sharded)
        return self._last

    def deliver(self, direction: Vector) -> None:
        """Writes the direction, unscaled, into `p.grad`; a parameter that no pass reached keeps none."""
        tensors = direction.tensors
        if self._maximize:
            scale_(tensors, -1.0)
        untouched = direction is self._last and direction.intact
        if untouched and self._whole:
            return
        self._last = None  # its memory is free, unless it is the direction
        for i, (p, g, kept) in enumerate(zip(self.space.params, tensors, self._kept, strict=True)):
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
        """`g` at the rows that any pass looked up, as sparse optimizers want it."""
        rows = torch.unique(torch.cat(self._looked_up[i], dim=1), dim=1)
        return torch.sparse_coo_tensor(rows, g[tuple(rows)], g.shape, is_coalesced=True, check_invariants=False)


@dataclass
class PlanRunner:
    """One step's way through a plan; whatever happens, the weights come back bitwise."""

    plan: Plan
    keeper: WeightKeeper
    gradients: Gradients
    statistics: RunningStatistics
    replicas: Replicas
    noise: SameNoise | None
    scaler: Any
    maximize: bool
    report: Report | None
    check: FiniteCheck | None  # sees every loss and gradient
    look: bool  # the first loss's graph goes into `graph`

    def __post_init__(self) -> None:
        self.graph: Tensor | None = None  # the first loss, for a look at what it went through
        self.before = self.statistics.save()  # what a step that fails or is refused goes back to
        self.taken = 0  # passes
        self._grad_enabled = torch.is_grad_enabled()
        self._abandoned = False
        self._last: Vector | None = None  # the last pass's gradient

    def passes(self) -> Generator[Pass, None, Vector]:
        """Yields a pass for every probe of the plan and returns its direction; `end` or `abandon` must follow."""
        marks = self.statistics.marks()
        turn: Pass | None = None
        while True:
            with torch.no_grad():
                try:
                    probe = self.plan.send(None if turn is None else self._read(turn))  # type: ignore[arg-type]
                except StopIteration as done:
                    return self._checked(done.value)
                if self.taken == 1:
                    self.statistics.hold()
                self._set_out(probe)
            turn = Pass(probe, self.scaler, look=self.look and not self.taken)
            with self.replicas.passing(probe.sync, probe.grad):
                yield turn
            turn.finish()
            self.taken += 1
            if self.taken == 1:
                self.statistics.learn(marks)
                self.graph = turn.graph
            if self.noise is not None:
                self.noise.rewind()
            self.statistics.again()

    def end(self) -> None:
        """Puts the weights back. May be interrupted and called again."""
        self.statistics.let_go()
        with torch.no_grad():
            self.replicas.let_go()
            self.keeper.end()
        if self.noise is not None:
            self.noise.resume()
        torch.clear_autocast_cache()  # or the next forward pass under an outer autocast sees displaced weights

    def abandon(self, error: BaseException) -> None:
        """Puts everything back as before the step. May be interrupted and called again."""
        if self._abandoned:
            return
        self.replicas.recover()
        self.statistics.restore(self.before)
        self.gradients.undo()
        self.end()
        if self.noise is not None:
            self.noise.restart()
        if not isinstance(error, GeneratorExit):  # which may come at any time and leaves no block half-way
            torch.set_grad_enabled(self._grad_enabled)
        self._abandoned = True

    def _set_out(self, probe: Probe) -> None:
        self.gradients.clear()
        if self.report is not None:
            self.report.moved(probe.at)
        self.replicas.let_go()
        self.keeper.go(probe.at)
        # an outer autocast, even a disabled one, keeps the cast weights of the pass before
        torch.clear_autocast_cache()

    def _read(self, turn: Pass) -> Reading:
        self._last = grad = self.gradients.collect(turn.ran_backward) if turn.probe.grad else None
        loss, losses = turn.loss, turn.losses
        if self.check is not None:
            self.check.see(loss, grad)
        if self.maximize:
            loss, losses = -loss if loss is not None else None, -losses if losses is not None else None
        reading = Reading(grad, loss, self.replicas.mean if turn.probe.sync else _itself, losses, turn.batch)
        if self.report is not None:
            self.report.took(reading, turn.loss)
        return reading

    def _checked(self, direction: Vector) -> Vector:
        """A direction that is not the last gradient itself may have overflowed on its own."""
        if self.check is not None and not (direction is self._last and direction.intact):
            self.check.see(None, direction)
        return direction


def _itself(x: Tensor) -> Tensor:
    return x
