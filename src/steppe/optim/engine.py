"""The engine: runs a method's plan as a torch optimizer."""

from __future__ import annotations

import inspect
import sys
import weakref
from collections.abc import Callable, Generator
from contextlib import nullcontext
from functools import partial
from operator import attrgetter, is_
from types import FunctionType
from typing import Any, Literal, NoReturn, Self, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.arguments import InitSignature, check_no_parameters
from ..core.fields import checked
from ..core.probe import Method, check_method
from . import misuse
from .base import LEFT, STEP, OptimizerContext, forget_defaults, interrupts_deferred
from .finite import DeviceGuard, enabled, read_overflow_from_optimizers
from .forward_state import ForwardState, Noise, SameNoise
from .report import Report
from .step import Pass, Step
from .unfinished import guard_pending
from .weights import ParamLayout, check_not_complex, outside_inference_mode

KEPT = ("base", "method", "model", "scaler", "seed", "on_nonfinite", "same_noise", "record")

R = TypeVar("R")

_grad, _version = attrgetter("grad"), attrgetter("_version")
_frame_callback = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", lambda: None)  # not in old torch


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
    >>> for pass_ in opt.passes():
    ...     pass_.backward(w.square().sum() / 2)
    >>> w.grad  # at w + 0.5 w / |w|
    tensor([3.3000, 4.4000])
    >>> opt.step()  # torch's step, on that gradient; returns the loss of the first pass
    tensor(12.5000)

    """

    planned: Step | None  # whose gradient waits in `p.grad`

    __signature__ = InitSignature()

    def __new__(cls, *args: Any, **options: Any) -> Self:
        check_no_parameters(cls.__name__, args, options)
        return super().__new__(cls)

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
        misuse.check_base(base)
        misuse.check_not_a_name(method)
        check_method(method)
        misuse.check_options(base, method.options())
        check_not_complex([p for g in base.param_groups for p in g["params"]])
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
        self.close_unfinished()
        getattr(self.base, "eval", lambda: None)()

    def __getstate__(self) -> dict[str, Any]:
        self.close_unfinished()
        return {name: self.__dict__[name] for name in KEPT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "base" in state:
            self.__dict__.update(state)
            self._prepare()
        else:  # torch's load_state_dict passes groups and state, which are the base's
            self.planned = None  # computed from another state
            self.base.__setstate__(state)
            self._set_default_options()

    def _prepare(self) -> None:
        self._layout: ParamLayout | None = None
        self.forward_state = ForwardState(self.model)
        self.planned = None
        self._running: weakref.ref[Generator[Pass]] | None = None
        self._ended = False  # whether something has closed the last loop over `passes()`
        self._remove_hooks = guard_pending(self, self.model, getattr(self, "_remove_hooks", None))
        self.report: Report | None = None  # what `last` returns
        self.passes_run = 0  # by the last step
        self.checked = 0  # the last walk of the model after which graphs were searched for batch normalisation
        self.warned = False  # of batch normalisation that no pass can restore
        self.rounding_checked = False  # whether weights of low precision have moved as far as they should
        with outside_inference_mode():
            self._overflow = torch.zeros((), dtype=torch.float32, device="cpu")  # read by the scaler
            if self.scaler is not None:
                device = next(p.device for g in self.param_groups for p in g["params"])
                read_overflow_from_optimizers(self.scaler, device)
        self.device_guard: DeviceGuard | None = None  # while a step is captured: applies it on the device
        self.pass_noise: SameNoise | None = None  # while a step is captured: replaces the global generators
        super().__setstate__({})  # installs the hooks, touches no state
        self._set_default_options()

    @property
    def first_step(self) -> NoReturn:
        """Raises, because a step has any number of passes, not two halves."""
        raise AttributeError(misuse.NO_FIRST_STEP)

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
        self._groups = list(self.param_groups)

    @property
    def last(self) -> Report:
        """Losses, norms and cosine of the last step; `.read()` turns them into floats."""
        if self.report is None:
            raise RuntimeError("nothing was recorded: build with SharpnessAware(..., record=True) and take a step")
        return self.report

    def step(
        self,
        closure: Callable[..., Any] | None = None,
        *,
        held_out: Callable[..., Any] | None = None,
        mask: Tensor | None = None,
    ) -> Any:
        """Runs all passes, applies the result and returns the loss of the first pass (with micro-batches, their sum).

        Parameters
        ----------
        closure
            Computes the loss and its gradient, and returns the loss. None applies the gradient of `passes()`.
        held_out
            A closure for held-out data, for methods that use them.
        mask
            A bool tensor over the samples of the batch, for methods that treat some of them in another way.

        """
        if torch.compiler.is_compiling() or callable(_frame_callback()):
            raise RuntimeError(misuse.COMPILED)
        self.close_unfinished()
        if closure is None:
            return self._apply_unplanned() if self.planned is None else self.planned.apply()
        waiting = self.planned is not None and self.planned.wanted
        if waiting or isinstance(closure, partial) or "accelerate.optimizer" in sys.modules:
            misuse.check_closure(self, closure, waiting)
        self._check_nothing_accumulated()
        try:
            losses = self.run_passes(lambda pass_: run_closure(pass_, closure, held_out), mask=mask)
            if self.planned is not None:
                self.planned.apply()
            else:  # the closure has closed its own loop
                self._apply_unplanned()
        except BaseException:
            if self.planned is not None:  # it will not be applied
                self.zero_grad()
            raise
        return losses[0] if losses else None

    def _check_nothing_accumulated(self) -> None:
        """Raises if `p.grad` holds gradients that no finished step left there: a closure clears them."""
        params = [p for g in self.base.param_groups for p in g["params"] if p.requires_grad]
        grads: list[Tensor] = [g for g in map(_grad, params) if g is not None]
        if [getattr(g, LEFT, None) for g in grads] == list(map(_version, grads)):
            return
        if any(bool(torch.count_nonzero(g.coalesce().values() if g.is_sparse else g)) for g in grads):
            raise RuntimeError(misuse.ACCUMULATED)

    def run_passes(self, run: Callable[[Pass], R], *, mask: Tensor | None = None) -> list[R]:
        """Calls `run` on every pass, with `mask` as in `passes`; an exception restores everything."""
        passes = self.passes(mask=mask)
        try:
            try:
                return [run(pass_) for pass_ in passes]
            finally:
                passes.close()
        finally:  # again, in case Ctrl-C hits the line above and the traceback keeps the generator open
            passes.close()

    def passes(self, *, accumulate: bool = False, mask: Tensor | None = None) -> Generator[Pass]:
        """Yields once per probe, then leaves the planned gradient, unscaled, in `p.grad`.

        Parameters
        ----------
        accumulate
            Whether to add it to the gradient that is there, as a plain backward pass would.
        mask
            A bool tensor over the samples of the batch, for methods that treat some of them in another way.

        """
        if "base" not in vars(self):
            raise misuse.wrapped_error(self)
        if torch.compiler.is_compiling() or callable(_frame_callback()):
            raise RuntimeError(misuse.COMPILED)
        self.close_unfinished()
        if not accumulate:
            self.check_no_pending_plan()
        self._ended = False
        self._running = weakref.ref(running := Step.passes(self, accumulate, mask))
        return running

    def check_no_pending_plan(self) -> None:
        """Raises if a gradient of `passes()` would be lost; a scaler does not apply one that is not finite."""
        if self.planned is not None and self.planned.wanted:
            misuse.check_no_skipped_step()
            raise RuntimeError(misuse.PASSES_PENDING)

    def close_unfinished(self) -> None:
        """Restores the weights if a loop over `passes()` was left and its iterator is still referenced."""
        if self._running is not None and (unfinished := self._running()) is not None:
            noise = Noise(list({p.device for g in self.param_groups for p in g["params"]}))
            self._ended |= inspect.getgeneratorstate(unfinished) == inspect.GEN_SUSPENDED
            unfinished.close()
            noise.restart()  # closing set the generators back to that step

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """False; a GradScaler asks for it before it steps, and no other scaler may have scaled the losses."""
        if enabled(self.scaler) is None and self.planned is not None:
            raise RuntimeError(misuse.UNKNOWN_SCALER)
        return False

    @property
    def displaced(self) -> bool:
        """Whether the weights are away from where they were at the start of the step."""
        return self._layout is not None and self._layout.keeper.displaced

    def state_dict(self) -> dict[str, Any]:
        """The state of the base optimizer and the method; closes an unfinished loop over `passes()` first."""
        self.close_unfinished()
        return super().state_dict()

    def found_inf_(self) -> Tensor:
        """1.0 if the planned step has an overflow, for which the scaler skips it, else 0.0."""
        return self._overflow.fill_(float(self.planned is not None and self.planned.overflow))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients, by `set_to_none` or to zero, and discards a plan that was not applied."""
        self.discard()
        self.base.zero_grad(set_to_none)

    def discard(self) -> None:
        """Discards a plan that was not applied: running statistics return to before its passes."""
        if (planned := self.planned) is not None:
            with interrupts_deferred():
                if planned.current:
                    planned.before.restore()
                self.planned = None

    def param_layout(self) -> ParamLayout:
        """The layout of the parameters that require a gradient, made again when groups or memory have changed."""
        groups = self.param_groups
        if len(groups) != len(self._groups) or not all(map(is_, groups, self._groups)):
            self._set_default_options()  # the base has new groups, or those of a state that was loaded into it
        if self._layout is None or not self._layout.matches(groups):
            self._layout = ParamLayout.of(self.model, groups)
        return self._layout

    def _apply_unplanned(self) -> Tensor | None:
        if torch.is_inference_mode_enabled():
            raise RuntimeError(misuse.INFERENCE_MODE)
        if any(float(g.get("lr", 1)) for g in self.param_groups):
            raise misuse.unplanned(type(self.method).__name__, self._ended)
        # torch.distributed.checkpoint steps at lr = 0 to create state before it loads
        self.base.step()
        OptimizerContext(self.base, self.param_layout(), self.seed, None).create_slots(self.method.slots)
        return None


def run_closure(pass_: Pass, closure: Callable[..., Any], held_out: Callable[..., Any] | None = None) -> Any:
    """Runs a closure in a pass: a plain torch one, or one that takes the pass as its argument."""
    if pass_.held_out:
        if held_out is None:
            raise RuntimeError(misuse.NO_HELD_OUT)
        closure = held_out
    takes_pass = _takes_the_pass(closure)
    if not takes_pass and (pass_.partial or not pass_.probe.grad):
        raise TypeError(misuse.TAKES_NO_PASS)
    if pass_.scaler is not None:
        pass_.scaler.has_scaled = False
    with torch.enable_grad() if pass_.probe.grad and not torch.is_grad_enabled() else nullcontext():
        loss = closure(pass_) if takes_pass else closure()
    if not pass_.ran and loss is not None:
        losses = loss if isinstance(loss, Tensor) else torch.as_tensor(loss, device="cpu")
        pass_.add_loss(losses.mean() if losses.ndim else losses)
    if pass_.scaler is not None and pass_.probe.grad and not pass_.scaler.has_scaled:
        raise RuntimeError(misuse.NOT_SCALED)
    pass_.ran = True
    # detached: its graph would live through the next pass
    return loss.detach() if isinstance(loss, Tensor) else loss


def _takes_the_pass(f: Callable[..., Any]) -> bool:
    """Whether a closure takes the pass: its first parameter has no default, or is called pass_."""
    if isinstance(f, FunctionType) and not vars(f):  # nearly always; inspect.signature takes ten times as long
        code, optional = f.__code__, len(f.__defaults__ or ())
        return code.co_argcount > optional or code.co_varnames[: code.co_argcount][:1] == ("pass_",)
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return bool(positional) and (positional[0].default is inspect.Parameter.empty or positional[0].name == "pass_")
