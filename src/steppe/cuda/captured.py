"""A step that is recorded after a few calls and replayed from then on."""

from __future__ import annotations

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.graph_inputs import GraphInputs
from ..core.probe import pattern_of
from ..optim.base import STEP
from ..optim.engine import SharpnessAware
from ..optim.finite import DeviceGuard
from ..optim.interrupts import interrupts_deferred
from ..optim.step import mark_left_gradients
from .device_options import DeviceOptions, fixed
from .recording import Recording, StepRecorder

EAGER = 2  # steps of a kind before it is recorded: lazily made handles and state have to be there
MOST = 8  # recordings; what comes in yet another shape is run as it is
LOOSE = ("lr", "rho", "theta")  # options that schedules and methods move

Rows = Sequence[Tensor]
Passes = Callable[[Rows, Rows | None], Tensor]  # runs a step on a batch and held-out rows, and returns its first loss


@final
class Captured:
    """A step that is taken by calling it on a batch; recorded after a few calls, and replayed from then on.

    `why` says what keeps it from being recorded, and is None where nothing does.
    """

    def __init__(
        self,
        opt: SharpnessAware,
        passes: Passes,
        model: nn.Module | None,
        recorder: StepRecorder | str,
        prepare: Callable[[], str | None] = lambda: None,  # makes the optimizer recordable, or says why it cannot
    ):
        self.opt, self._passes, self._prepare = opt, passes, prepare
        self._layers = list(model.modules()) if model is not None else []
        self.device = opt.param_groups[0]["params"][0].device
        self.why = recorder if isinstance(recorder, str) else None
        self._seen: Counter[Hashable] = Counter()
        self._tapes: dict[Hashable, GraphInputs] = {}  # of rehearsals
        self._recordings: dict[Hashable, Recording] = {}
        self._shown: Recording | None = None  # whose gradients stand in `p.grad`
        self._device_options: DeviceOptions | None = None
        self._layout: Any = None  # what all recordings stand on
        self._shifts = 0  # how often that has changed since the last one
        self._guard = DeviceGuard(self.device, stop=opt.on_nonfinite == "raise")
        if not isinstance(recorder, str):
            self._recorder = recorder
            me = weakref.ref(self)  # an optimizer that outlives this step does not keep its graphs
            opt.register_state_dict_pre_hook(lambda _: None if (step := me()) is None else step.settle())
        elif self.device.type == "cuda":
            self._say()

    def __call__(self, *batch: Tensor, held_out: Rows | None = None) -> Tensor:
        """Takes a step on these rows and returns its first loss, on the device."""
        if self.why is not None:
            return self._plain(batch, held_out)
        self._listen(wait=False)
        rows, n = (*batch, *(held_out or ())), len(batch)
        kind = self._kind(rows, n)
        known = self._recordings.get(kind) if kind is not None else None
        if known is None:
            self._listen(wait=True)  # what comes now moves the weights, whatever the device has refused
            if kind is None:
                return self._plain(batch, held_out)
            self._seen[kind] += 1
            if self._seen[kind] < EAGER or len(self._recordings) >= MOST:
                return self._plain(batch, held_out)
        with interrupts_deferred():  # a step that is launched is counted, and no recording is left half made
            if known is None and kind not in self._tapes:
                return self._rehearsed(kind, batch, held_out)
            known = known or self._recorded(kind, rows, n)
            return self._replayed(known, rows) if known is not None else self._plain(batch, held_out)

    def settle(self) -> None:
        """Waits for the device; raises what a recorded step met, and puts numbers where the groups hold memory."""
        if self.why is None and self._device_options is not None:
            self._listen(wait=True)
            self._device_options.read()

    @property
    def skipped(self) -> int:
        """How many recorded steps were refused because a number was not finite; waits for the device."""
        return self._guard.counted()

    def _kind(self, rows: Rows, n: int) -> Hashable:
        """What a recording must have in common with this step; None where no recording serves."""
        opt = self.opt
        pattern = pattern_of(opt.method, step) if (step := opt.param_groups[0][STEP]) else None
        if pattern is None:
            return None
        layout = (opt._param_layout(), opt.base.state, self._addresses())
        if (
            self._device_options is None
            or not self._device_options.fits(opt.param_groups)
            or not _same(layout, self._layout)
        ):
            self._forget()
            why = self._prepare()  # a state that was loaded may have brought other kernels
            self._device_options, self._layout = DeviceOptions(opt.param_groups, LOOSE, self.device), layout
            self._shifts += 1
            if self._shifts > MOST:
                why = "the model puts other tensors in the place of its weights or statistics at every step"
            if why is not None:
                self._give_up(why)
                return None
        shapes = tuple((t.shape, t.stride(), t.dtype) for t in rows)
        modes = tuple(m.training for m in self._layers)
        return (pattern, n, shapes, modes, fixed(opt.param_groups, LOOSE), opt.record, opt.same_noise)

    def _addresses(self) -> list[int]:
        """Where the weights and running statistics are: a graph holds addresses."""
        return [t.data_ptr() for t in (*self.opt._param_layout().space.params, *self.opt._statistics.tensors())]

    def _plain(self, batch: Rows, held_out: Rows | None) -> Tensor:
        self._shown = None
        loss = self._passes([t.to(self.device, non_blocking=True) for t in batch], _moved(held_out, self.device))
        return loss.clone()

    def _rehearsed(self, kind: Hashable, batch: Rows, held_out: Rows | None) -> Tensor:
        """A step as it will be recorded, which makes the memory that the recording reads."""
        batch, held_out = [t.to(self.device) for t in batch], _moved(held_out, self.device)
        assert self._device_options is not None
        self._device_options.turn()
        self._shown = None
        tape = GraphInputs()
        with self._recorder.rehearsing(), tape.rehearsing(), self._on_device():
            loss = self._passes(batch, held_out)
        self._tapes[kind] = tape
        self._device_options.leave(self._guard.sets)
        return loss.clone()

    def _recorded(self, kind: Hashable, rows: Rows, n: int) -> Recording | None:
        opt, step = self.opt, self.opt.param_groups[0][STEP]
        grads = [(p, p.grad) for g in opt.param_groups for p in g["params"]]

        def take(static: Rows) -> Tensor:
            return self._passes(static[:n], static[n:] or None)

        try:
            with self._on_device():
                known = Recording(opt, rows, take, self._tapes.pop(kind), self._recorder)
        except RuntimeError as error:
            self._give_up(f"recording failed: {error}")
            for p, grad in grads:
                p.grad = grad
            return None
        finally:
            for group in opt.param_groups:  # nothing has run yet
                group[STEP] = step
        self._recordings[kind], self._shifts = known, 0
        return known

    def _replayed(self, known: Recording, rows: Rows) -> Tensor:
        opt, step = self.opt, self.opt.param_groups[0][STEP]
        assert self._device_options is not None
        self._device_options.turn()
        loss = known.replay(rows, step)
        for group in opt.param_groups:
            group[STEP] = step + 1
        if known is not self._shown or not known.shown:
            self._shown = known
            known.show()
            mark_left_gradients(opt._param_layout().space.params)
        opt._last = known.report
        self._device_options.leave(self._guard.sets)
        return loss

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Within, a step reads its numbers from the device and is refused there."""
        assert self._device_options is not None
        self.opt.applying = self._guard
        try:
            with self._device_options.installed():
                yield
        finally:
            self.opt.applying = None

    def _listen(self, wait: bool) -> None:
        """Raises what a recorded step met, with everything as it was before that step."""
        if self.opt.on_nonfinite == "raise":
            self._guard.check(self.opt.param_groups, wait)

    def _forget(self) -> None:
        self._tapes, self._recordings, self._shown, self._device_options, self._layout = {}, {}, None, None, None
        self._seen.clear()

    def _give_up(self, why: str) -> None:
        self.why = why
        self._forget()
        self._say()

    def _say(self) -> None:
        warnings.warn(f"steps are not captured and run as they are: {self.why}", stacklevel=3)


def _moved(rows: Rows | None, device: torch.device) -> Rows | None:
    return None if rows is None else [t.to(device, non_blocking=True) for t in rows]


def _same(a: Any, b: Any) -> bool:
    return b is not None and a[0] is b[0] and a[1] is b[1] and a[2] == b[2]
