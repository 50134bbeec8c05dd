"""Driving a plan from outside: every probe becomes a pass that the caller runs."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..probe import Plan, Probe, Reading
from ..vector import Vector
from .excursion import Excursion
from .gradients import Gradients
from .noise import SameNoise
from .replicas import Replicas
from .report import Report
from .statistics import RunningStatistics
from .trouble import Trouble
from .turn import Pass


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
    report: Report | None
    trouble: Trouble | None  # sees every loss and gradient
    look: bool  # the first loss's graph goes into `graph`

    def __post_init__(self) -> None:
        self.graph: Tensor | None = None  # the first loss, for a look at what it went through
        self.before = self.statistics.save()  # what a step that fails or is refused goes back to
        self.taken = 0  # passes

    def passes(self) -> Generator[Pass, None, Vector]:
        """Yields a pass for every probe of the plan and returns its direction."""
        marks = self.statistics.marks()
        turn: Pass | None = None
        try:
            while True:
                with torch.no_grad():
                    try:
                        probe = self.plan.send(None if turn is None else self._read(turn))  # type: ignore[arg-type]
                    except StopIteration as done:
                        return done.value  # type: ignore[no-any-return]
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
        except BaseException:
            self.replicas.recover()
            self.statistics.restore(self.before)
            self.gradients.undo()
            raise
        finally:
            self.statistics.let_go()
            with torch.no_grad():
                self.replicas.let_go()
                self.excursion.end()
            if self.noise is not None:
                self.noise.resume()

    def _set_out(self, probe: Probe) -> None:
        self.gradients.clear()
        if self.report is not None:
            self.report.moved(probe.at)
        self.replicas.let_go()
        self.excursion.go(probe.at)

    def _read(self, turn: Pass) -> Reading:
        grad = self.gradients.collect(turn.went_back) if turn.probe.grad else None
        reading = Reading(grad, turn.loss, self.replicas.mean if turn.probe.sync else _itself, turn.losses, turn.batch)
        if self.trouble is not None:
            self.trouble.see(turn.loss, grad)
        if self.report is not None:
            self.report.took(reading, turn.loss)
        return reading


def _itself(x: Tensor) -> Tensor:
    return x
