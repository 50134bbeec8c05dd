"""The engine: runs a method's plan as a torch optimizer."""

from __future__ import annotations

import atexit
import sys
import weakref
from collections.abc import Callable, Generator
from functools import partial
from typing import Any, Literal, NoReturn, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.probe import Method
from ..methods.options import checked, refuse_method
from .base import STEP, OptimizerSite, forget_defaults
from .finite import (
    DeviceGuard,
    FiniteCheck,
    HostCheck,
    Planned,
    ask_optimizers,
    enabled,
    report_overflow,
    unplanned,
)
from .forward_state import ForwardState, Noise, RunningStatistics, SameNoise, warn_of_unreachable_statistics
from .interrupts import interrupts_deferred
from .misuse import NO_FIRST_STEP, refuse_base, refuse_closure, refuse_name, refuse_options, wrapped_error
from .step import Gradients, Pass, PlanRunner, Report, mark_left_gradients, refuse_accumulated
from .weights import ParamLayout, maximizes, refuse_complex

KEPT = ("base", "method", "model", "scaler", "seed", "on_nonfinite", "same_noise", "record")

_ENGINES: weakref.WeakSet[SharpnessAware] = weakref.WeakSet()

R = TypeVar("R")


def _of_base(name: str) -> Any:
    """A property that reads and writes an attribute of the base optimizer."""

    def set_(engine: Any, value: Any) -> None:
        setattr(engine.base, name, value)
        engine._layout = None  # of the old groups; the next step gives new ones their options

    return property(lambda engine: getattr(engine.base, name), set_)


class SharpnessAware(Optimizer):
    """Computes `p.grad` by a method's plan and applies it with `base`, whose groups and state it shares.

    Parameters
    ----------
    base
        Any first-order torch optimizer. With `maximize=True` the method perturbs towards a smaller loss.
    method
        A sharpness-aware method such as `SAM(rho=0.05)`.
    model
        The model, with its DDP or FSDP2 wrapper: its running statistics change once per step.
    scaler
        A `torch.amp.GradScaler`: every pass is unscaled, and a step with an overflow in any pass is skipped.
    seed
        The seed of the method's random draws.
    on_nonfinite
        What to do if a loss or gradient is not finite: "raise", "skip" the step, or None for no check.
    same_noise
        Whether all passes of a step use the same dropout masks, as in Foret et al.'s code.
    record
        Whether to fill `last` with diagnostics of each step.

    Examples
    --------
    >>> w = nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), steppe.SAM(rho=0.5))
    >>> for turn in opt.passes():
    ...     turn.backward(w.square().sum() / 2)
    >>> w.grad  # at w + 0.5 w / |w|
    tensor([3.3000, 4.4000])
    >>> opt.step()

    """

    _planned: Planned | None

    def __init__(
        self,
        base: Optimizer,
        method: Method,
        *,
        model: nn.Module | None = None,
        scaler: Any = None,
        seed: int = 0,
        on_nonfinite: Literal["raise", "skip"] | None = "raise",
        same_noise: bool = True,
        record: bool = False,
    ):
        refuse_base(base)
        refuse_name(method)
        refuse_method(method)
        refuse_options(base, method.options())
        refuse_complex([p for g in base.param_groups for p in g["params"]])
        options = {"model": model, "seed": seed, "on_nonfinite": on_nonfinite, "same_noise": same_noise}
        checked(SharpnessAware.__init__, "SharpnessAware", {**options, "record": record})
        self.base, self.method, self.model, self.scaler = base, method, model, scaler
        self.seed, self.on_nonfinite, self.same_noise, self.record = seed, on_nonfinite, same_noise, record
        forget_defaults(base, method.options())
        self._prepare()

    param_groups: list[dict[str, Any]] = _of_base("param_groups")
    state: Any = _of_base("state")
    defaults: dict[str, Any] = _of_base("defaults")

    def train(self) -> None:
        """Switches a base with modes, such as a schedule-free one, to training; call it outside of `passes()`."""
        getattr(self.base, "train", lambda: None)()

    def eval(self) -> None:
        """Switches a base with modes, such as a schedule-free one, to evaluation."""
        self._close_unfinished()
        getattr(self.base, "eval", lambda: None)()

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in KEPT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "base" in state:
            self.__dict__.update(state)
            self._prepare()
        else:  # torch's load_state_dict passes groups and state, which are the base's
            self._planned = None  # computed from another state
            self.base.__setstate__(state)
            self._set_default_options()

    def _prepare(self) -> None:
        self._layout: ParamLayout | None = None
        self._statistics = RunningStatistics(self.model)
        self._planned = None
        _ENGINES.add(self)
        self._running: weakref.ref[Generator[Pass]] | None = None
        self.report: Report | None = None  # what `last` returns
        self._statistics_checked = self.model is not None
        self._overflow = torch.zeros((), dtype=torch.float32)  # read by the scaler
        if self.scaler is not None:
            ask_optimizers(self.scaler, next(p.device for g in self.param_groups for p in g["params"]))
        self.device_guard: DeviceGuard | None = None  # while a step is captured: applies it on the device
        self.pass_noise: SameNoise | None = None  # while a step is captured: replaces the global generators
        super().__setstate__({})  # installs the hooks, touches no state
        self._set_default_options()

    @property
    def first_step(self) -> NoReturn:
        """Raises: a step has any number of passes, not two halves."""
        raise AttributeError(NO_FIRST_STEP)

    second_step = first_step

    def __repr__(self) -> str:
        return f"SharpnessAware({self.method!r}, base={self.base!r})"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds `param_group` to the base, with the method's default options where it has none of its own."""
        self.base.add_param_group(param_group)
        self._set_default_options()

    def _set_default_options(self) -> None:
        defaults = {**self.method.options(), STEP: max(g.get(STEP, 0) for g in self.param_groups)}
        for group in self.param_groups:
            for name, value in defaults.items():
                group.setdefault(name, value)

    @property
    def last(self) -> Report:
        """Losses, norms and cosine of the last step; `.read()` turns them into floats."""
        if self.report is None:
            raise RuntimeError("nothing was recorded: build with SharpnessAware(..., record=True) and take a step")
        return self.report

    def step_memory(self) -> tuple[ParamLayout, RunningStatistics]:
        """The memory that steps read and write in place: a captured step holds it, and is valid while it stays."""
        return self._param_layout(), self._statistics

    def step(
        self,
        closure: Callable[..., Any] | None = None,
        *,
        held_out: Callable[..., Any] | None = None,
        mask: Tensor | None = None,
    ) -> Any:
        """Runs all passes with the closure, applies the result and returns the first loss.

        Parameters
        ----------
        closure
            Computes the loss and its gradient, and returns the loss. None applies the gradient of `passes()`.
        held_out
            A closure for held-out data, for methods that use them.
        mask
            A bool tensor over the rows of the batch, for methods that treat some rows in another way.

        """
        self._close_unfinished()
        if closure is None:
            return self._apply()
        waiting = self._planned is not None
        if waiting or isinstance(closure, partial) or "accelerate.optimizer" in sys.modules:
            refuse_closure(self, closure, waiting)
        refuse_accumulated(self.param_groups)  # a closure clears gradients
        try:
            losses = self.run_passes(partial(Pass.run, closure=closure, held=held_out), mask=mask)
            self._apply()
        except BaseException:
            if self._planned is not None:  # it will not be applied
                self.zero_grad()
            raise
        return losses[0] if losses else None

    def run_passes(self, run: Callable[[Pass], R], *, mask: Tensor | None = None) -> list[R]:
        """Calls `run` on every pass, with `mask` as in `passes`; an exception restores everything."""
        turns = self.passes(mask=mask)
        try:
            try:
                return [run(turn) for turn in turns]
            finally:
                turns.close()
        finally:  # again, in case Ctrl-C hits the line above and the traceback keeps the generator open
            turns.close()

    def passes(self, *, accumulate: bool = False, mask: Tensor | None = None) -> Generator[Pass]:
        """Yields once per probe, then leaves the planned gradient, unscaled, in `p.grad`.

        Parameters
        ----------
        accumulate
            Whether to add it to the gradient that is there, as a plain backward pass would.
        mask
            A bool tensor over the rows of the batch, for methods that treat some rows in another way.

        """
        if "base" not in vars(self):
            raise wrapped_error(self)
        self._close_unfinished()
        self._running = weakref.ref(running := self._passes(accumulate, mask))
        return running

    def _close_unfinished(self) -> None:
        """Restores the weights if a loop over `passes()` was left and its iterator is still referenced."""
        if self._running is not None and (unfinished := self._running()) is not None:
            noise = Noise(list({p.device for g in self.param_groups for p in g["params"]}))
            unfinished.close()
            noise.restart()  # closing set the generators back to that step

    def state_dict(self) -> dict[str, Any]:
        """The state of the base optimizer and the method; closes an unfinished loop over `passes()` first."""
        self._close_unfinished()
        return super().state_dict()

    def _passes(self, accumulate: bool, mask: Tensor | None) -> Generator[Pass]:
        if not accumulate:
            self._discard()
        earlier = self._planned
        was_current = earlier is not None and earlier.current
        scaler = self.scaler and enabled(self.scaler)
        layout, maximize = self._param_layout(), maximizes(self.base.param_groups)
        layout.keeper.begin()
        space, replicas = layout.space, layout.replicas
        site = OptimizerSite(self.base, layout, self.seed, mask)
        report = Report() if self.record else None
        check = FiniteCheck(space) if self.on_nonfinite is not None or scaler is not None else None
        noise = (self.pass_noise or Noise(space.devices)) if self.same_noise else None
        state = ForwardState(self._statistics, noise)
        unit = scaler.scale(torch.ones((), device=space.device)) if scaler is not None else None
        gradients = Gradients(space, keep=accumulate, own=replicas.recycles_gradients, unit=unit, maximize=maximize)
        plan, keep_graph = self.method.plan(site), not self._statistics_checked
        runner = PlanRunner(plan, layout, gradients, state, scaler, maximize, report, check, keep_graph)
        try:
            try:
                self._planned = None
                direction = yield from runner.passes()
                runner.end()
                if runner.graph is not None and runner.count > 1:
                    self._statistics_checked = True
                    warn_of_unreachable_statistics(runner.graph)
                if report is not None:
                    settings = {**self.param_groups[0], **site.settings}
                    report.lr, report.rho = settings.get("lr"), settings.get("rho")
                with torch.no_grad():
                    total = check.total(site.settings.values(), replicas) if check is not None else None
                    gradients.deliver(direction)
                planned = Planned(site, state.saved, gradients, total)
                if scaler is not None:  # checked here, because a scaler that skips a step does not call step()
                    planned.overflow, planned.total = not planned.finite, None
                planned = planned if earlier is None else planned.after(earlier)
                if planned.overflow:
                    self._statistics.restore(planned.statistics)
                planned.versions = planned.statistics.buffers.versions()
                self._planned, self.report = planned, report or self.report
            except BaseException as error:
                self._abandon(runner, error, earlier, was_current)
                raise
        except BaseException as error:  # again: an interrupt may have hit the lines above
            self._abandon(runner, error, earlier, was_current)
            raise

    def _abandon(self, runner: PlanRunner, error: BaseException, earlier: Planned | None, was_current: bool) -> None:
        runner.abandon(error)
        if earlier is not None and was_current:
            earlier.versions = earlier.statistics.buffers.versions()
        self._planned = earlier

    def found_inf_(self) -> Tensor:
        """1.0 if the planned step has an overflow, for which the scaler skips it, else 0.0."""
        return self._overflow.fill_(float(self._planned is not None and self._planned.overflow))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, by `set_to_none` or to zero, and discards a plan that was not applied."""
        self._discard()
        self.base.zero_grad(set_to_none)

    def _discard(self) -> None:
        """Discards a plan that was not applied: running statistics return to before its passes."""
        if (planned := self._planned) is not None:
            with interrupts_deferred():
                if planned.current:
                    self._statistics.restore(planned.statistics)
                self._planned = None

    def _param_layout(self) -> ParamLayout:
        if self._layout is None or not self._layout.matches(self.param_groups):
            self._set_default_options()  # groups may have been added to the base
            self._layout = ParamLayout.of(self.model, self.param_groups)
        return self._layout

    def _apply(self) -> None:
        """Steps the base optimizer on the planned gradient; a step that is skipped or raises changes nothing."""
        planned = self._planned
        if planned is None:
            return self._apply_unplanned()
        apply = self.device_guard or HostCheck("skip" if planned.overflow else self.on_nonfinite)
        params = planned.site.space.params
        before = [p._version for p in params]
        with interrupts_deferred():
            try:
                if self.scaler is not None and enabled(self.scaler):
                    self.found_inf_()
                    report_overflow(self.scaler, self)
                apply(self.base, planned, self._statistics)
            except BaseException:
                if [p._version for p in params] == before:  # the base did not step
                    self._statistics.restore(planned.statistics)
                raise
            finally:
                self._planned = None
                mark_left_gradients(params)
                torch.clear_autocast_cache()  # an outer autocast keeps the cast weights from before the step

    def _apply_unplanned(self) -> None:
        if any(float(g.get("lr", 1)) for g in self.param_groups):
            raise unplanned(type(self.method).__name__)
        # torch.distributed.checkpoint steps at lr = 0 to create state before it loads
        self.base.step()
        OptimizerSite(self.base, self._param_layout(), self.seed, None).create_slots(self.method.slots)


@atexit.register
def _close_all() -> None:
    """Closes unfinished loops before the interpreter shuts torch down, which would abort the process."""
    for opt in list(_ENGINES):
        opt._close_unfinished()
