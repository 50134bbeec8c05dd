"""Runs the plan of one step: every probe becomes a pass of the training loop, gradients go in and out of `p.grad`."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import nullcontext
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.probe import Probe, Reading
from ..core.rows import held_out, select, whole
from ..core.shards import local_gradient, shard_like
from ..core.vector import Space, Vector, scale_
from .base import OptimizerContext
from .finite import FiniteCheck, Planned, enabled, is_scaled
from .forward_state import Noise
from .misuse import SCALED_TWICE, check_no_inference_mode, warn_of_unreachable_statistics
from .weights import maximizes, warn_of_rounding

if TYPE_CHECKING:
    from .engine import SharpnessAware


class Pass:
    """What `passes()` yields: compute the loss on `rows(...)` of the batch, then call `backward` on it.

    Attributes
    ----------
    held_out
        Whether this pass is on the held-out data instead of the batch.

    """

    def __init__(self, probe: Probe, scaler: Any = None, keep_graph: bool = False):
        self.probe, self.scaler, self._keep_graph = probe, scaler, keep_graph
        self.graph: Tensor | None = None  # the loss with its graph, if it is kept
        self.loss: Tensor | None = None
        self.losses: Tensor | None = None
        self.batch: int | None = None  # rows of the whole batch, if `rows` was called
        self.ran = False
        self.ran_backward = False  # by `backward`; a plain closure may have run one too
        self.run_backward: Callable[[Tensor], Any] | None = None  # of a training library, which scales losses itself
        self.held_out = probe.rows is held_out
        self.partial = probe.rows is not whole and not self.held_out

    def rows(self, *tensors: Any) -> Any:
        """The rows of the batch that this pass is on: `x, y = pass_.rows(x, y)`."""
        picked, batch = select(self.probe.rows, tensors)
        if not self.held_out:
            self.batch = batch if self.batch is None else self.batch + batch
        return picked

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a loss, or of its mean if it has one number per row."""
        if self.scaler is not None and is_scaled(loss, self.scaler):
            raise RuntimeError(SCALED_TWICE)
        each, loss = (loss.detach().flatten(), loss.mean()) if loss.ndim else (None, loss)
        self.add_loss(loss, each)
        if self.probe.grad:
            if self.run_backward is not None:
                self.run_backward(loss)
            else:
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            self.ran_backward = True

    def finish(self) -> None:
        """Raises if the pass did not run, or ran on other rows than the probe's."""
        if not self.ran:
            raise RuntimeError(
                "a pass ended without a loss: call pass_.backward(loss) in every `for pass_ in opt.passes()`"
            )
        if self.partial and self.batch is None:
            raise RuntimeError("this pass is on some rows of the batch only: take them with x, y = pass_.rows(x, y)")

    def add_loss(self, loss: Tensor, each: Tensor | None = None) -> None:
        """Adds a loss, and its values per row if they are known, to those of this pass."""
        self.graph, loss = loss if self._keep_graph else None, loss.detach()
        self.loss = loss if self.loss is None else self.loss + loss
        if each is not None:
            self.losses = each if self.losses is None else torch.cat([self.losses, each])
        self.ran = True


_grad = attrgetter("grad")


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
        self._whole = False
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
                "pass_.backward(loss), on a loss that depends on them, and leave requires_grad on"
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

    def is_last(self, direction: Vector) -> bool:
        """Whether a direction is the gradient of the last pass as `collect` returned it."""
        return direction is self._last and direction.intact

    def deliver(self, direction: Vector, untouched: bool) -> None:
        """Writes the direction, unscaled, into `p.grad`; a parameter that no pass reached has none.

        `untouched` says whether it is the gradient of the last pass, which may be there already.
        """
        if self._maximize:
            scale_(direction.tensors, -1.0)
        if untouched and self._whole:
            return
        self._last = None  # its memory is free, unless it is the direction
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


@dataclass
class Report:
    """Diagnostics of one step: tensors on the device, so that recording does not synchronize."""

    losses: list[Tensor] = field(default_factory=list)  # L(w) first, L(w + e) last
    displacements: list[Tensor] = field(default_factory=list)  # ||e|| after rounding, 0 where a probe stayed at w
    grad_norms: list[Tensor] = field(default_factory=list)
    cosines: list[Tensor] = field(default_factory=list)  # of each probe's gradient with the first one's
    lr: Any = None
    rho: Any = None
    _first: Vector | None = field(default=None, repr=False)
    _distance: Tensor | None = field(default=None, repr=False)  # ||e|| of the current probe

    def start_probe(self, displacement: Vector | None) -> None:
        self._distance = displacement.norm() if displacement is not None else None

    def add(self, reading: Reading, loss: Tensor | None) -> None:
        if loss is not None:
            self.losses.append(loss)
        if reading._grad is None:
            return
        norm = reading.grad.norm()
        self.displacements.append(norm * 0 if self._distance is None else self._distance)
        self.grad_norms.append(norm)
        if self._first is None:
            self._first = reading.grad.clone()
        self.cosines.append(self._first.dot(reading.grad) / (self.grad_norms[0] * norm))

    def read(self) -> dict[str, float]:
        """The numbers as Python floats; synchronizes with the device."""
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


class Step:
    """One step of an engine: a pass for every probe of the plan, and a planned gradient or everything as before.

    Parameters
    ----------
    engine
        The optimizer.
    accumulate
        Whether the planned gradient is added to the one that is there.
    mask
        A bool tensor over the rows of the batch, or None.

    """

    def __init__(self, engine: SharpnessAware, accumulate: bool, mask: Tensor | None):
        check_no_inference_mode()
        layout = engine.param_layout()
        if accumulate:
            layout.replicas.check_synchronized()
        else:
            engine.discard()
            for p in [p for g in engine.param_groups for p in g["params"] if not p.requires_grad]:
                p.grad = None  # from before it was frozen: the base would apply it at every step
        layout.keeper.begin()
        self.engine, self.space, self.keeper, self.replicas = engine, layout.space, layout.keeper, layout.replicas
        self.earlier = engine.planned  # on which this step accumulates
        self._was_current = self.earlier is not None and self.earlier.current
        self.scaler = engine.scaler and enabled(engine.scaler)
        self.maximize = maximizes(engine.base.param_groups)
        self.context = OptimizerContext(engine.base, layout, engine.seed, mask)
        self.report = Report() if engine.record else None
        checked = engine.on_nonfinite is not None or self.scaler is not None
        self.check = FiniteCheck(self.space) if checked else None
        noise = (engine.pass_noise or Noise(self.space.devices)) if engine.same_noise else None
        self.state = engine.forward_state
        self.before = self.state.begin(self.space, noise, everywhere=engine.device_guard is not None)
        unit = self.scaler.scale(torch.ones((), device=self.space.device)) if self.scaler is not None else None
        own = self.replicas.recycles_gradients
        self.gradients = Gradients(self.space, keep=accumulate, own=own, unit=unit, maximize=self.maximize)
        self._graph: Tensor | None = None  # of the first loss, until its layers are checked
        self._loss: Tensor | None = None  # of the first pass
        self._count = 0  # passes that have run
        self._grad_enabled = torch.is_grad_enabled()
        self._abandoned = False

    def passes(self) -> Generator[Pass]:
        """Yields every pass, then sets the engine's planned gradient; an exception restores everything."""
        try:
            try:
                self.engine.planned = None
                direction = yield from self._run_plan()
                self.state.end()
                self._restore_weights()
                self._finish(direction)
            except BaseException as error:
                self._abandon(error)
                raise
        except BaseException as error:  # again: an interrupt may have hit the lines above
            self._abandon(error)
            raise

    def _run_plan(self) -> Generator[Pass, None, Vector]:
        """Yields a pass for every probe of the plan and returns its direction."""
        plan, pass_ = self.engine.method.plan(self.context), None
        while True:
            with torch.no_grad():
                try:
                    probe = plan.send(None if pass_ is None else self._read(pass_))  # type: ignore[arg-type]
                except StopIteration as done:
                    return done.value  # type: ignore[no-any-return]
                if self._count:
                    self.state.next_pass()
                self._move(probe)
            pass_ = Pass(probe, self.scaler, keep_graph=not self._count and self.engine.checked != self.state.walked)
            plain = self.replicas.alone and probe.sync and probe.grad
            with nullcontext() if plain else self.replicas.run_pass(probe.sync, probe.grad):
                yield pass_
            pass_.finish()
            if not self._count:
                self._graph, self._loss = pass_.graph, pass_.loss
            self._count += 1

    def _move(self, probe: Probe) -> None:
        self.gradients.clear()
        engine, asked = self.engine, None
        if self.keeper.coarse and probe.at is not None and not (engine.rounding_checked or engine.device_guard):
            asked = probe.at.norm()
        if self.replicas.sharded:
            self.replicas.reshard()
        self.keeper.move_to(probe.at)
        if self.report is not None:
            self.report.start_probe(None if probe.at is None else self.keeper.displacement())
        if asked is not None and asked > 0:
            engine.rounding_checked = True
            warn_of_rounding(asked, self.keeper.displacement())
        # an outer autocast, even a disabled one, keeps the cast weights of the pass before
        torch.clear_autocast_cache()

    def _read(self, pass_: Pass) -> Reading:
        grad = self.gradients.collect(pass_.ran_backward) if pass_.probe.grad else None
        loss, losses = pass_.loss, pass_.losses
        if self.check is not None:
            self.check.add(loss, grad)
        if self.maximize:
            loss, losses = -loss if loss is not None else None, -losses if losses is not None else None
        mean = self.replicas.mean if pass_.probe.sync else lambda numbers: numbers
        reading = Reading(grad, loss, mean, losses, pass_.batch)
        if self.report is not None:
            self.report.add(reading, pass_.loss)
        return reading

    def _finish(self, direction: Vector) -> None:
        """Writes the direction into `p.grad`, as the planned gradient of the engine."""
        engine, settings = self.engine, self.context.settings
        if self._graph is not None and self._count > 1:
            engine.checked = self.state.walked
            if not engine.warned and not self.space.sharded:
                engine.warned = warn_of_unreachable_statistics(self._graph, engine.model)
        if self.report is not None:
            options = {**engine.param_groups[0], **settings}
            self.report.lr, self.report.rho = options.get("lr"), options.get("rho")
        untouched, total = self.gradients.is_last(direction), None
        with torch.no_grad():
            if self.check is not None:
                if not untouched:  # it may have overflowed on its own
                    self.check.add(None, direction)
                for vector in self.context.moves:
                    self.check.add(None, vector)
                total = self.check.total(settings.values(), self.replicas)
            self.gradients.deliver(direction, untouched)
        planned = Planned(self.context, self.before, self.gradients, total, loss=self._loss)
        if self.scaler is not None:  # checked here, because a scaler that skips a step does not call step()
            planned.overflow, planned.total = not planned.finite, None
        planned = planned if self.earlier is None else planned.after(self.earlier)
        if planned.overflow:
            planned.before.restore()
        planned.versions = planned.before.tensors.versions()
        engine.planned, engine.report, engine.passes_run = planned, self.report or engine.report, self._count

    def _abandon(self, error: BaseException) -> None:
        """Restores everything as before the step. May be interrupted and called again."""
        if not self._abandoned:
            self.replicas.recover()
            self.state.undo(self.before)
            self.gradients.undo()
            self._restore_weights()
            if not isinstance(error, GeneratorExit):  # which can come at any time and leaves no block unfinished
                torch.set_grad_enabled(self._grad_enabled)
            self._abandoned = True
        if self.earlier is not None and self._was_current:
            self.earlier.versions = self.earlier.before.tensors.versions()
        self.engine.planned = self.earlier

    def _restore_weights(self) -> None:
        with torch.no_grad():
            if self.replicas.sharded:
                self.replicas.reshard()
            self.keeper.end()
        torch.clear_autocast_cache()  # or the next forward pass under an outer autocast sees displaced weights


def run_step(engine: SharpnessAware, accumulate: bool, mask: Tensor | None) -> Generator[Pass]:
    """The passes of a step, which begins with the first of them."""
    yield from Step(engine, accumulate, mask).passes()
