"""A step recorded once and replayed on other rows, numbers and noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Generator, Tensor

from ..core.graph_inputs import GraphInputs
from ..core.vector import copy_
from ..optim.base import STEP
from ..optim.engine import SharpnessAware
from ..optim.forward_state import SameNoise
from .graphs import Recorder

Take = Callable[[Sequence[Tensor]], Tensor]  # takes a step on some rows and returns its first loss


class RecordedNoise(SameNoise, Protocol):
    """The same dropout masks in every pass of a recorded step, and new ones in every replay."""

    @property
    def generators(self) -> Sequence[Generator]:
        """What the recording has to know of."""
        ...

    def replay(self) -> None:
        """All passes start where the global generator is now."""
        ...


class StepRecorder(Recorder, Protocol):
    """What records steps."""

    def noise(self, passes: int) -> RecordedNoise: ...


class Recording:
    """One step, with the memory that it reads and leaves."""

    def __init__(
        self, opt: SharpnessAware, rows: Sequence[Tensor], take: Take, tape: GraphInputs, recorder: StepRecorder
    ):
        device = opt.param_groups[0]["params"][0].device
        passes = opt.method.cost(opt.param_groups[0][STEP])
        self._rows = [torch.empty_like(t, device=device).copy_(t) for t in rows]
        self._tape = tape
        self._noise = recorder.noise(passes) if opt.same_noise else None
        noise = self._noise
        opt.noise = None if noise is None else lambda devices: noise
        try:
            with self._tape.recording():
                generators = () if noise is None else noise.generators
                self._loss, self._again = recorder.record(lambda: take(self._rows), generators)
        finally:
            opt.noise = None
        self._stands_on = opt._param_layout(), opt._statistics.memory()  # held: the recording writes there
        self.report = opt._last
        self._grads = [(p, p.grad) for g in opt.param_groups for p in g["params"]]

    def replay(self, rows: Sequence[Tensor], step: int) -> Tensor:
        """Takes the step anew; the loss that it returns is the caller's."""
        if all(a.device == b.device for a, b in zip(rows, self._rows, strict=True)):
            copy_(self._rows, rows)
        else:
            for memory, values in zip(self._rows, rows, strict=True):
                memory.copy_(values, non_blocking=True)
        self._tape.replay(step)
        if self._noise is not None:
            self._noise.replay()
        self._again()
        return self._loss.clone()

    @property
    def shown(self) -> bool:
        """Whether nobody has put the gradients away since."""
        p, grad = self._grads[0]
        return p.grad is grad

    def show(self) -> None:
        """Puts this step's gradients where people look for them."""
        for p, grad in self._grads:
            p.grad = grad
