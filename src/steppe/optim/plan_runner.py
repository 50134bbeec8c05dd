"""Driving a plan from outside: every probe becomes a pass that the caller runs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.probe import Plan, Probe, Reading
from ..core.vector import Vector
from .buffers import RunningStatistics
from .finite import FiniteCheck
from .gradients import Gradients
from .passes import Pass
from .report import Report
from .rng import SameNoise
from .weights import Excursion
from .workers import Replicas


@dataclass
class Walk:
    """One step's way through a plan; whatever happens, the weights come back bitwise."""

    plan: Plan
    excursion: Excursion
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
            self.excursion.end()
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
        self.excursion.go(probe.at)
        # an outer autocast, even a disabled one, keeps the cast weights of the pass before
        torch.clear_autocast_cache()

    def _read(self, turn: Pass) -> Reading:
        self._last = grad = self.gradients.collect(turn.went_back) if turn.probe.grad else None
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
