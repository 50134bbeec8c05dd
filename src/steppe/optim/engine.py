"""The engine: a plan of probes, run as a torch optimizer."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from ..probe import Method
from .fused import Kernels
from .gradients import Gradients
from .ground import Ground, refuse_complex
from .hooks import hooked, settle_before_saving
from .later import HeardLater
from .noise import Noise, SameNoise
from .planned import Applying, Checked, Planned, unplanned
from .report import Report
from .scaling import step_by
from .site import STEP, OptimizerSite
from .statistics import RunningStatistics
from .trouble import Trouble
from .turn import Pass
from .unreachable import warn_of_unreachable_statistics
from .walk import Walk

KEPT = ("base", "method", "model", "scaler", "seed", "on_nonfinite", "same_noise", "record")

# the options that a wrapper put into its base's groups, so that the next one can tell them from the user's
_GIVEN: weakref.WeakKeyDictionary[Optimizer, dict[str, Any]] = weakref.WeakKeyDictionary()


class SharpnessAware(Optimizer):
    """Computes `p.grad` by a method's plan and applies it by `base`, whose groups and state it shares."""

    def __init__(
        self,
        base: Optimizer,
        method: Method,
        *,
        model: nn.Module | None = None,  # its running statistics move once a step; its DDP wrapper is obeyed
        scaler: Any = None,  # a torch.amp.GradScaler: every pass is unscaled, an overflow in any leaves no trace
        seed: int = 0,
        on_nonfinite: Literal["raise", "skip"] | None = "raise",  # where a GPU can refuse it, a later step raises
        same_noise: bool = True,  # all passes of a step see the same dropout masks (Foret et al.'s own code)
        record: bool = False,  # fill `last`
    ):
        if isinstance(base, LBFGS | SharpnessAware):
            raise TypeError(
                f"{type(base).__name__} cannot be the base: it evaluates the closure at points of its own, and a "
                "sharpness-aware step does too. Use a first-order optimizer such as torch.optim.SGD or AdamW."
            )
        refuse_complex([p for g in base.param_groups for p in g["params"]])
        if on_nonfinite not in ("raise", "skip", None):
            raise ValueError(f"on_nonfinite is 'raise', 'skip' or None, not {on_nonfinite!r}")
        self.base, self.method, self.model, self.scaler = base, method, model, scaler
        self.seed, self.on_nonfinite, self.same_noise, self.record = seed, on_nonfinite, same_noise, record
        for group in base.param_groups:
            for name, value in _GIVEN.get(base, {}).items():
                if group.get(name) == value:
                    del group[name]
        _GIVEN[base] = dict(method.options())
        self._prepare()

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        return self.base.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.base.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        return self.base.defaults

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return {name: self.__dict__[name] for name in KEPT}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "base" in state:
            self.__dict__.update(state)
            self._prepare()
        else:  # torch's load_state_dict hands in groups and state: they are the base's
            self._later = HeardLater(self.base)  # what it might say is of another state
            self.base.__setstate__(state)
            self._set_default_options()

    def _prepare(self) -> None:
        self._ground: Ground | None = None
        self._statistics = RunningStatistics(self.model)
        self._planned: Planned | None = None
        self._running: weakref.ref[Generator[Pass]] | None = None
        self._last: Report | None = None
        self._looked = False
        self._later, self._kernels = HeardLater(self.base), Kernels(self.base)
        self.applying: Applying | None = None  # in place of the engine's own ways to apply a step
        self.noise: Callable[[Sequence[torch.device]], SameNoise] | None = None  # in place of the global generators
        super().__setstate__({})  # installs the hooks, touches no state
        settle_before_saving(self, self.base)
        self._set_default_options()

    def __repr__(self) -> str:
        return f"SharpnessAware({self.method!r}, base={self.base!r})"

    def add_param_group(self, param_group: dict[str, Any]) -> None:
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
        if self._last is None:
            raise RuntimeError("nothing was recorded: build with SharpnessAware(..., record=True) and take a step")
        return self._last

    def step(
        self,
        closure: Callable[..., Any] | None = None,
        *,
        held_out: Callable[..., Any] | None = None,
        mask: Tensor | None = None,
    ) -> Any:
        """Runs every pass by the closure, applies the result and returns the first loss; without a closure, applies."""
        if closure is None:
            self._apply()
            return None
        with closing(self.passes(mask=mask)) as turns:
            losses = [turn.run(closure, held_out) for turn in turns]
        if self.scaler is None or not self.scaler.is_enabled():
            self._apply()
        else:
            step_by(self.scaler, self)
        return losses[0] if losses else None

    def passes(self, *, accumulate: bool = False, mask: Tensor | None = None) -> Generator[Pass]:
        """Yields once a probe, then leaves the planned gradient in `p.grad`, added to what is there if `accumulate`."""
        if self._running is not None and (unfinished := self._running()) is not None:
            unfinished.close()  # the caller left the loop and kept the iterator: put the weights back first
        running = self._passes(accumulate, mask)
        self._running = weakref.ref(running)
        return running

    def _passes(self, accumulate: bool, mask: Tensor | None) -> Generator[Pass]:
        if self._later.open and not (accumulate and self._planned is not None):
            self.settle()  # a step was given up
        earlier, self._planned = self._planned if accumulate else None, None
        ground = self._survey()
        space, replicas, excursion = ground.space, ground.replicas, ground.excursion()
        scaler = self.scaler if self.scaler is not None and self.scaler.is_enabled() else None
        unit = scaler.scale(torch.ones((), device=space.device)) if scaler is not None else None
        gradients = Gradients(space, keep=accumulate, own=replicas.recycles_gradients, unit=unit)
        noise = (self.noise or Noise)(space.devices) if self.same_noise else None
        site = OptimizerSite(self.base, space, excursion, replicas, self.seed, mask)
        report = Report() if self.record else None
        flag = self._later.flag(space.device) if self._hears_later and not scaler and earlier is None else None
        trouble = Trouble(space, flag) if self.on_nonfinite is not None or scaler is not None else None
        plan = self.method.plan(site)
        look = self.model is None and not self._looked
        walk = Walk(plan, excursion, gradients, self._statistics, replicas, noise, scaler, report, trouble, look)
        try:
            direction = yield from walk.passes()
        except BaseException:
            self._planned = earlier
            raise
        if walk.graph is not None and walk.taken > 1:
            self._looked = True
            warn_of_unreachable_statistics(walk.graph)
        with torch.no_grad():
            found = trouble.total(site.settings.values(), replicas) if trouble is not None else None
            gradients.deliver(direction, found)
        if not gradients.dense:
            self._kernels.give_up()
        planned = Planned(site, walk.before, gradients, found if scaler is None else None)
        self._planned = planned if earlier is None else planned.after(earlier)
        if report is not None:
            settings = {**self.param_groups[0], **site.settings}
            report.lr, report.rho = settings.get("lr"), settings.get("rho")
            self._last = report

    def _survey(self) -> Ground:
        if self._ground is None or not self._ground.holds(self.param_groups):
            self._set_default_options()  # groups may have been added to the base
            self._ground = Ground.of(self.model, self.param_groups)
            self._kernels.choose()
        return self._ground

    def settle(self) -> None:
        """Waits for the device and raises if a step was refused there, which else a later step does."""
        try:
            self._later.listen(wait=True)
        except FloatingPointError:
            planned, self._planned = self._planned, None
            if planned is not None:
                self._statistics.restore(planned.statistics)
            raise

    @property
    def _hears_later(self) -> bool:
        """Whether a step may be refused on the device, unseen, where that can be."""
        return self.on_nonfinite == "raise" and self.applying is None and not hooked(self, self.base)

    def _apply(self) -> None:
        """Steps the base optimizer on the planned gradient; a step that is refused leaves no trace."""
        planned, self._planned = self._planned, None
        if planned is None:
            return self._apply_unplanned()
        guard = self._later.serving(planned) if self._hears_later else None
        apply: Applying = self.applying or guard or Checked(self.on_nonfinite)
        try:
            self._later.listen(wait=guard is None)
            apply(self.base, planned, self._statistics)
        except FloatingPointError:
            self._statistics.restore(planned.statistics)
            raise
        finally:
            self._later.applied(served=guard is not None)

    def _apply_unplanned(self) -> None:
        self.settle()
        if any(float(g.get("lr", 1)) for g in self.param_groups):
            raise unplanned(type(self.method).__name__)
        # torch.distributed.checkpoint steps at lr = 0 to create state before it loads
        self.base.step()
        ground = self._survey()
        site = OptimizerSite(self.base, ground.space, ground.excursion(), ground.replicas, self.seed, None)
        for slot in self.method.slots:
            site.remember(slot, ground.space.zeros())
        site.commit(steps=0)
