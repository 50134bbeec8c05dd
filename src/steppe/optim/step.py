"""Runs the plan of one step: every probe becomes a pass of the training loop, gradients go in and out of `p.grad`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..core.probe import Plan, Probe, Reading
from ..core.rows import held_out, select, whole
from ..core.shards import local_gradient, shard_like
from ..core.vector import Space, Vector, scale_
from .finite import FiniteCheck
from .forward_state import ForwardState
from .weights import ParamLayout


class Pass:
    """What `passes()` yields: compute the loss on `rows(...)` of the batch, then call `backward` on it."""

    def __init__(self, probe: Probe, scaler: Any = None, keep_graph: bool = False):
        self.probe, self._scaler, self._keep_graph = probe, scaler, keep_graph
        self.graph: Tensor | None = None  # the loss with its graph, if it is kept
        self.loss: Tensor | None = None
        self.losses: Tensor | None = None
        self.batch: int | None = None  # rows of the whole batch, if `rows` was called
        self.ran = False
        self.ran_backward = False  # by `backward`; a plain closure may have run one too
        self.run_backward: Callable[[Tensor], Any] | None = None  # of a training library, which scales losses itself
        self._partial = probe.rows is not whole and probe.rows is not held_out

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
        """Adds the gradient of a loss, or of its mean if it has one number per row."""
        each, loss = (loss.detach().flatten(), loss.mean()) if loss.ndim else (None, loss)
        self._note(loss, each)
        if self.probe.grad:
            if self.run_backward is not None:
                self.run_backward(loss)
            else:
                (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            self.ran_backward = True

    def run(self, closure: Callable[..., Any], held: Callable[..., Any] | None) -> Any:
        """Runs a closure: a plain torch one, or one that takes this pass as its argument."""
        if self.held_out:
            if held is None:
                raise RuntimeError("the method uses held-out data too: opt.step(closure, held_out=closure_for_it)")
            closure = held
        takes_turn = _takes_the_pass(closure)
        if not takes_turn and (self._partial or not self.probe.grad):
            raise TypeError(
                "the method uses parts of the batch, so its closure takes the pass as argument:\n"
                "    def closure(turn):\n        a, b = turn.rows(x, y)\n"
                "        loss = loss_fn(model(a), b)\n        turn.backward(loss)\n        return loss"
            )
        with torch.enable_grad() if self.probe.grad else nullcontext():
            loss = closure(self) if takes_turn else closure()
        if not self.ran and loss is not None:
            loss_of_all = torch.as_tensor(loss)
            self._note(loss_of_all.mean() if loss_of_all.ndim else loss_of_all, None)
        self.ran = True
        # detached: its graph would live through the next pass
        return loss.detach() if isinstance(loss, Tensor) else loss

    def finish(self) -> None:
        """Raises if the pass did not run, or ran on other rows than the probe's."""
        if not self.ran:
            raise RuntimeError(
                "a pass ended without a loss: call turn.backward(loss) in every `for turn in opt.passes()`"
            )
        if self._partial and self.batch is None:
            raise RuntimeError("this pass is on some rows of the batch only: take them with x, y = turn.rows(x, y)")

    def _note(self, loss: Tensor, each: Tensor | None) -> None:
        self.graph, loss = loss if self._keep_graph else None, loss.detach()
        self.loss = loss if self.loss is None else self.loss + loss
        if each is not None:
            self.losses = each if self.losses is None else torch.cat([self.losses, each])
        self.ran = True


def _takes_the_pass(f: Callable[..., Any]) -> bool:
    """Whether a closure takes the pass: its first parameter has no default, or is called turn."""
    if isinstance(f, FunctionType) and not vars(f):  # nearly always; inspect.signature takes ten times as long
        code, optional = f.__code__, len(f.__defaults__ or ())
        return code.co_argcount > optional or code.co_varnames[: code.co_argcount][:1] == ("turn",)
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return bool(positional) and (positional[0].default is inspect.Parameter.empty or positional[0].name == "turn")


_grad = attrgetter("grad")
_version = attrgetter("_version")
MARK = "_left_at_version"  # on a gradient: its version when a step ended


def mark_left_gradients(params: Sequence[Tensor]) -> None:
    """Marks the gradients in `p.grad` as those of a finished step: a closure may overwrite them."""
    for grad in [g for g in map(_grad, params) if g is not None]:
        setattr(grad, MARK, grad._version)


def refuse_accumulated(groups: Sequence[Mapping[str, Any]]) -> None:
    """Raises if `p.grad` holds gradients that no finished step left there."""
    params = [p for g in groups for p in g["params"] if p.requires_grad]
    grads: list[Tensor] = [g for g in map(_grad, params) if g is not None]
    if [getattr(g, MARK, None) for g in grads] == list(map(_version, grads)):
        return
    if any(bool(torch.count_nonzero(g.coalesce().values() if g.is_sparse else g)) for g in grads):
        raise RuntimeError(
            "p.grad holds gradients that the last step did not leave there, and step(closure) would lose them: a "
            "sharpness-aware step runs every micro-batch in every pass. To accumulate, write\n"
            "    for turn in opt.passes():\n        for x, y in micro_batches:\n"
            "            turn.backward(loss_fn(model(x), y) / len(micro_batches))\n    opt.step()\n"
            "or call opt.zero_grad() first, if they are not wanted."
        )


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
        self._last: Vector | None = None  # the last pass's gradient
        self._whole = False  # whether `p.grad` is that gradient
        self._looked_up: dict[int, list[Tensor]] = {}  # rows of sparse gradients, by parameter

    def clear(self) -> None:
        for p in self.space.params:
            p.grad = None

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
                "turn.backward(loss), on a loss that depends on them, and leave requires_grad on"
            )
        if self.space.sharded:
            tensors = [local_gradient(g, p) for g, p in zip(tensors, self.space.params, strict=True)]
        if self._own:
            tensors = [g.clone() for g in tensors]
        if self._unit is not None or self._maximize:
            factor = -1.0 if self._maximize else 1.0
            scale_(tensors, factor if self._unit is None else factor / self._unit)
        self._last = Vector(self.space, tensors=tensors)
        self._whole = whole and not (self._own or self._keep or self.space.sharded)
        return self._last

    def deliver(self, direction: Vector) -> None:
        """Writes the direction, unscaled, into `p.grad`; a parameter that no pass reached has none."""
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
        """`g` at the rows that any pass looked up, as sparse optimizers need it."""
        rows = torch.unique(torch.cat(self._looked_up[i], dim=1), dim=1)
        return torch.sparse_coo_tensor(rows, g[tuple(rows)], g.shape, is_coalesced=True, check_invariants=False)


@dataclass
class Report:
    """Diagnostics of one step; device tensors until they are read, so that recording never waits."""

    losses: list[Tensor] = field(default_factory=list)  # L(w) first, L(w + e) last
    displacements: list[Tensor] = field(default_factory=list)  # ||e||, 0 where a probe stayed at w
    grad_norms: list[Tensor] = field(default_factory=list)
    cosines: list[Tensor] = field(default_factory=list)  # of each probe's gradient with the first one's
    lr: Any = None
    rho: Any = None
    _first: Vector | None = field(default=None, repr=False)
    _next: Tensor | None = field(default=None, repr=False)  # how far the probe under way has moved

    def moved(self, displacement: Vector | None) -> None:
        self._next = displacement.norm() if displacement is not None else None

    def took(self, reading: Reading, loss: Tensor | None) -> None:
        if loss is not None:
            self.losses.append(loss)
        if reading._grad is None:
            return
        norm = reading.grad.norm()
        self.displacements.append(norm * 0 if self._next is None else self._next)
        self.grad_norms.append(norm)
        if self._first is None:
            self._first = reading.grad.clone()
        self.cosines.append(self._first.dot(reading.grad) / (self.grad_norms[0] * norm))

    def read(self) -> dict[str, float]:
        """The numbers, as Python floats: this is where a GPU is waited for."""
        numbers = {
            "loss": self.losses[0] if self.losses else None,
            "perturbed_loss": self.losses[-1] if self.losses else None,
            "displacement": self.displacements[-1],
            "grad_norm": self.grad_norms[0],
            "perturbed_grad_norm": self.grad_norms[-1],
            "cosine": self.cosines[-1],
            "lr": self.lr,
            "rho": self.rho,
        }
        return {k: float(v) for k, v in numbers.items() if v is not None}


@dataclass
class PlanRunner:
    """Runs the plan of one step; whatever happens, `end` or `abandon` restores the weights bitwise."""

    plan: Plan
    layout: ParamLayout
    gradients: Gradients
    state: ForwardState
    scaler: Any  # an enabled GradScaler, or None
    maximize: bool  # the plan receives minus the loss
    report: Report | None
    check: FiniteCheck | None
    keep_graph: bool  # of the first loss, in `graph`

    def __post_init__(self) -> None:
        self.keeper, self.replicas = self.layout.keeper, self.layout.replicas
        self.graph: Tensor | None = None
        self.count = 0  # passes that have run
        self._grad_enabled = torch.is_grad_enabled()
        self._abandoned = False
        self._last: Vector | None = None  # the last pass's gradient

    def passes(self) -> Generator[Pass, None, Vector]:
        """Yields a pass for every probe of the plan and returns its direction; `end` or `abandon` must follow."""
        turn: Pass | None = None
        while True:
            with torch.no_grad():
                try:
                    probe = self.plan.send(None if turn is None else self._read(turn))  # type: ignore[arg-type]
                except StopIteration as done:
                    return self._checked(done.value)
                self._move(probe)
            turn = Pass(probe, self.scaler, keep_graph=self.keep_graph and not self.count)
            plain = self.replicas.alone and probe.sync and probe.grad
            with nullcontext() if plain else self.replicas.run_pass(probe.sync, probe.grad):
                yield turn
            turn.finish()
            self.state.after_pass()
            if not self.count:
                self.graph = turn.graph
            self.count += 1

    def end(self) -> None:
        """Restores the weights. May be interrupted and called again."""
        self.state.end()
        self._restore_weights()

    def abandon(self, error: BaseException) -> None:
        """Restores everything as before the step. May be interrupted and called again."""
        if self._abandoned:
            return
        self.replicas.recover()
        self.state.undo()
        self.gradients.undo()
        self._restore_weights()
        if not isinstance(error, GeneratorExit):  # which can come at any time and leaves no block unfinished
            torch.set_grad_enabled(self._grad_enabled)
        self._abandoned = True

    def _restore_weights(self) -> None:
        with torch.no_grad():
            if self.replicas.sharded:
                self.replicas.reshard()
            self.keeper.end()
        torch.clear_autocast_cache()  # or the next forward pass under an outer autocast sees displaced weights

    def _move(self, probe: Probe) -> None:
        self.gradients.clear()
        if self.report is not None:
            self.report.moved(probe.at)
        if self.replicas.sharded:
            self.replicas.reshard()
        self.keeper.move_to(probe.at)
        # an outer autocast, even a disabled one, keeps the cast weights of the pass before
        torch.clear_autocast_cache()

    def _read(self, turn: Pass) -> Reading:
        self._last = grad = self.gradients.collect(turn.ran_backward) if turn.probe.grad else None
        loss, losses = turn.loss, turn.losses
        if self.check is not None:
            self.check.add(loss, grad)
        if self.maximize:
            loss, losses = -loss if loss is not None else None, -losses if losses is not None else None
        reading = Reading(grad, loss, self.replicas.mean if turn.probe.sync else _identity, losses, turn.batch)
        if self.report is not None:
            self.report.took(reading, turn.loss)
        return reading

    def _checked(self, direction: Vector) -> Vector:
        """Checks a direction that is not the last gradient itself: it may have overflowed on its own."""
        if self.check is not None and not (direction is self._last and direction.intact):
            self.check.add(None, direction)
        return direction


def _identity(x: Tensor) -> Tensor:
    return x
