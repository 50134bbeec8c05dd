"""One step: every probe of the plan becomes a pass of the training loop, and its gradient waits to be applied."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator
from contextlib import nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.probe import NO_GRADIENT, Probe, Reading
from ..core.rows import held_out, select, whole
from ..core.vector import Vector
from .base import Gradients, OptimizerContext, interrupts_deferred, mark_left
from .finite import enabled, is_scaled, nonfinite, nonfinite_flag, report_overflow
from .forward_state import Noise
from .misuse import INFERENCE_MODE, SCALED_TWICE, warn_of_unreachable_statistics, wrong_plan
from .report import Report
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
        """The samples of the batch that this pass is on: `x, y = pass_.rows(x, y)`."""
        picked, batch = select(self.probe.rows, tensors)
        if not self.held_out:
            self.batch = batch if self.batch is None else self.batch + batch
        return picked

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a loss, or of its mean if it has one number per sample."""
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


class Step:
    """One step of an engine: a pass for every probe of the plan, then a gradient in `p.grad`, or everything as before.

    Parameters
    ----------
    engine
        The optimizer.
    accumulate
        Whether the gradient is added to the one that is there.
    mask
        A bool tensor over the rows of the batch, or None.

    Attributes
    ----------
    context
        The step's view of the base optimizer.
    before
        The forward state from before the step, or from before the first one that this step accumulates on.
    loss
        Of the first pass.
    total
        0 if every loss and gradient of the step is finite, else NaN or more than 0; None without a check.
    overflow
        Whether the GradScaler skips this step.

    """

    def __init__(self, engine: SharpnessAware, accumulate: bool, mask: Tensor | None):
        if torch.is_inference_mode_enabled():
            raise RuntimeError(INFERENCE_MODE)
        layout, groups = engine.param_layout(), engine.base.param_groups
        if accumulate:
            layout.replicas.check_synchronized()
        else:
            if engine.planned is not None:
                engine.discard()
            for group in groups:
                for p in group["params"]:
                    if not p.requires_grad:
                        p.grad = None  # from before it was frozen: the base would apply it at every step
        layout.keeper.begin()
        self.engine, self.space, self.keeper, self.replicas = engine, layout.space, layout.keeper, layout.replicas
        self._earlier = engine.planned  # on which this step accumulates
        self._was_current = self._earlier is not None and self._earlier.current
        if self._earlier is not None:
            self._earlier._earlier = None  # or all of them would live
        self.scaler = engine.scaler and enabled(engine.scaler)
        self._maximize = maximizes(groups)
        self.context = OptimizerContext(engine.base, layout, engine.seed, mask)
        unit = self.scaler.scale(torch.ones((), device=self.space.device)) if self.scaler is not None else None
        own = self.replicas.recycles_gradients
        self.gradients = Gradients(self.space, keep=accumulate, own=own, unit=unit, maximize=self._maximize)
        noise = (engine.pass_noise or Noise(self.space.devices)) if engine.same_noise else None
        self.state = engine.forward_state
        self.before = self._start = self.state.begin(self.space, noise, everywhere=engine.device_guard is not None)
        self.report = Report() if engine.record else None
        self.loss: Tensor | None = None
        self.total: Tensor | float | None = None
        self.overflow = False
        self._checked = engine.on_nonfinite is not None or self.scaler is not None
        self._numbers: list[Tensor] = []  # losses and norms of gradients, all of which must be finite
        self._flag: Tensor | None = None  # 1.0 if a gradient was not finite
        self._versions: list[int] = []  # of the forward state after the passes
        self._graph: Tensor | None = None  # of the first loss, until its layers are checked
        self._count = 0  # passes that have run
        self._thread, self._grad_enabled = get_ident(), torch.is_grad_enabled()
        # cleared before the garbage collector closes a loop; without a callback, later than that (Python 3.14)
        self._reference = weakref.ref(self, id)
        self._graphless = False  # whether gradients are off, in a pass without one
        self._elsewhere: bool | None = None  # whether this step is abandoned in the middle of other code
        self._abandoned = False

    @classmethod
    def passes(cls, engine: SharpnessAware, accumulate: bool, mask: Tensor | None) -> Generator[Pass]:
        """Yields every pass of a step, which is then the engine's planned one; an exception restores everything."""
        step = cls(engine, accumulate, mask)
        try:
            try:
                engine.planned = None
                direction = yield from step._run_plan()
                step.keeper.end(step.replicas)
                step.state.end()
                step._versions = step.before.tensors.versions()
                step._finish(direction)
                torch.set_grad_enabled(step._grad_enabled)
            except BaseException as error:
                step._abandon(error)
                raise
        except BaseException as error:  # again: an interrupt may have hit the lines above
            step._abandon(error)
            raise

    def _run_plan(self) -> Generator[Pass, None, Vector]:
        """Yields a pass for every probe of the plan and returns its direction, with gradients off."""
        plan, pass_ = self.engine.method.plan(self.context), None
        if not hasattr(plan, "send"):
            raise wrong_plan(self.engine.method, plan, gradient=False)
        while True:
            torch.set_grad_enabled(False)  # no block: a loop that is collected would end it in the middle of other code
            try:
                probe = plan.send(None if pass_ is None else self._read(pass_))  # type: ignore[arg-type]
            except StopIteration as done:
                if not isinstance(done.value, Vector):
                    raise wrong_plan(self.engine.method, done.value, gradient=True) from None
                return done.value
            if self._count:
                self.state.next_pass()
            unchecked = not self._count and self.engine.checked != self.state.walked
            pass_ = Pass(probe, self.scaler, keep_graph=unchecked)
            self._move(probe)
            plain = self.replicas.alone and probe.sync and probe.grad
            with nullcontext() if plain else self.replicas.run_pass(probe.sync, probe.grad):
                self._graphless = not probe.grad
                torch.set_grad_enabled(self._grad_enabled and probe.grad)
                yield pass_
            if probe.grad:
                self._grad_enabled = torch.is_grad_enabled()
            pass_.finish()
            if not self._count:
                self._graph, self.loss = pass_.graph, pass_.loss
            self._count += 1

    def _move(self, probe: Probe) -> None:
        self.gradients.whole = False
        for p in self.space.params:
            p.grad = None
        engine, asked = self.engine, None
        if self.keeper.coarse and probe.at is not None and not (engine.rounding_checked or engine.device_guard):
            asked = probe.at.norm()
        if self.replicas.sharded:
            self.replicas.reshard()
        self.keeper.move_to(probe.at)
        if self.report is not None:
            self.report.distance = None if probe.at is None else self.keeper.displacement().norm()
        if asked is not None and asked > 0:
            engine.rounding_checked = True
            warn_of_rounding(asked, self.keeper.displacement())
        # an outer autocast, even a disabled one, keeps the cast weights of the pass before
        torch.clear_autocast_cache()

    def _read(self, pass_: Pass) -> Reading:
        grad = self.gradients.collect(pass_.ran_backward) if pass_.probe.grad else None
        loss, losses = pass_.loss, pass_.losses
        if self._checked:
            if loss is not None:
                self._numbers.append(loss)
            # most methods need the norm of the first gradient anyway; one of many tensors takes long on a GPU
            if grad is not None and (self._count == 1 or self.space.device.type != "cuda"):
                self._numbers.append(grad.norm())
            elif grad is not None:
                self._flag = nonfinite_flag(grad.chunks, self._flag)
        if self._maximize:
            loss, losses = -loss if loss is not None else None, -losses if losses is not None else None
        mean = self.replicas.mean if pass_.probe.sync else lambda numbers: numbers
        reading = Reading(NO_GRADIENT if grad is None else grad, loss, mean, losses, pass_.batch)
        if self.report is not None:
            self.report.add(reading, pass_.loss)
        return reading

    def _finish(self, direction: Vector) -> None:
        """Writes the direction into `p.grad`, and makes this the planned step of the engine."""
        engine, settings = self.engine, self.context.settings
        if self._graph is not None and self._count > 1:
            engine.checked = self.state.walked
            if not engine.warned and not self.space.sharded:
                engine.warned = warn_of_unreachable_statistics(self._graph, engine.model)
        if self.report is not None:
            options = {**engine.param_groups[0], **settings}
            self.report.lr, self.report.rho = options.get("lr"), options.get("rho")
        untouched = direction is self.gradients.last and direction.intact
        if self._checked:
            for vector in [*([] if untouched else [direction]), *self.context.moves]:  # may overflow on their own
                if self.space.device.type == "cuda":
                    self._flag = nonfinite_flag(vector.chunks, self._flag)
                else:
                    self._numbers.append(vector.norm())
            self._add_up(settings)
        self.gradients.deliver(direction, untouched)
        if self.scaler is not None:  # checked here, because a scaler that skips a step does not call step()
            self.overflow, self.total = not self.finite, None
        if (earlier := self._earlier) is not None:
            self.before, self.overflow = earlier.before, self.overflow or earlier.overflow
            self.total = None if self.total is None or earlier.total is None else self.total + earlier.total
            self.loss = self.loss if self.loss is None or earlier.loss is None else earlier.loss + self.loss
            self.context.moves += earlier.context.moves
        if self.overflow:
            self.before.restore()
        if self.overflow or earlier is not None:
            self._versions = self.before.tensors.versions()
        self._graph = None
        engine.planned, engine.report, engine.passes_run = self, self.report or engine.report, self._count

    def _add_up(self, settings: dict[str, Any]) -> None:
        """Sets the total; of the settings only NaN counts: SA-SAM's theta starts at infinity."""
        device, precision = self.space.device, self.space.precision
        numbers = self._numbers + [torch.where(v.isinf(), 0, v) for v in settings.values() if isinstance(v, Tensor)]
        if device.type == "cpu" and self.replicas.alone and self.engine.device_guard is None:
            self.total = sum(0.0 * float(x) for x in numbers)
            return
        together = torch.stack([x.to(device, precision) for x in numbers])
        # times 0 first: a sum of large finite numbers may overflow
        total = together.mul_(0).sum() if self._flag is None else nonfinite_flag([together], self._flag)
        self.total = total if self.replicas.alone else self.replicas.agreed(total)

    @property
    def current(self) -> bool:
        """Whether nobody has written to the forward state since the passes."""
        return self.before.tensors.versions() == self._versions

    @property
    def wanted(self) -> bool:
        """Whether the gradient is still there and could be applied; a scaler skips others. Synchronizes."""
        return any(p.grad is not None for p in self.space.params) and self.finite

    @property
    def finite(self) -> bool:
        """Whether the step may be applied; synchronizes with the device."""
        return not self.overflow and (self.total is None or not self.total)  # NaN is true

    def apply(self) -> Tensor | None:
        """Steps the base optimizer, unless the step is skipped or raises, and returns the loss of the first pass."""
        if torch.is_inference_mode_enabled():
            raise RuntimeError(INFERENCE_MODE)
        engine, params = self.engine, self.space.params
        before, skipped = [p._version for p in params], engine.device_guard is None and not self.finite
        with interrupts_deferred():
            try:
                if self.scaler is not None:
                    engine.found_inf_()  # a scaler that called unscale_ already holds this tensor
                    report_overflow(self.scaler, engine)
                engine.planned = None  # applied now: `base.step()` by anybody else is an error before
                if engine.device_guard is not None:
                    engine.device_guard(engine.base, self)
                elif not skipped:
                    self.context.apply()
                else:
                    self.before.restore()
                    if not self.overflow and engine.on_nonfinite != "skip":
                        raise nonfinite(self.context.step)
            except BaseException:
                if [p._version for p in params] == before:  # the base did not step
                    self.before.restore()
                else:  # what failed comes after it
                    self.context.apply_moves()
                raise
            finally:
                engine.planned = None
                mark_left(params)
                torch.clear_autocast_cache()  # an outer autocast keeps the cast weights from before the step
        return self.loss

    def _abandon(self, error: BaseException) -> None:
        """Restores everything as before the step. May be interrupted and called again.

        The garbage collector may close a loop in the middle of other code, whose grad mode and random numbers stay.
        """
        if self._elsewhere is None:
            closed = GeneratorExit in (type(error), type(error.__context__))
            elsewhere = closed and (self._reference() is None or get_ident() != self._thread)
            if elsewhere or (closed and not self._graphless):  # the caller may be about to leave a block of its own
                self._grad_enabled = torch.is_grad_enabled()
            self._elsewhere = elsewhere
        if not self._abandoned:
            torch.set_grad_enabled(False)
            try:  # nothing can be written while the capture of a graph fails
                self.replicas.recover()
                self.state.undo(self._start, noise=not self._elsewhere)
                self.gradients.undo()
                self.keeper.end(self.replicas)
            finally:
                torch.set_grad_enabled(self._grad_enabled)
            self._abandoned = True
        if self._earlier is not None and self._was_current:
            self._earlier._versions = self._earlier.before.tensors.versions()
        self.engine.planned = self._earlier
