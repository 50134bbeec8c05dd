"""Runs that a signal stops, or that crash, at a given step."""

from __future__ import annotations

import os
import signal

import pytest

from steppe.training import Config, Stopped, loop, train


def stopping_at(step: int, monkeypatch: pytest.MonkeyPatch, by: int = signal.SIGTERM) -> None:
    """A signal arrives in the middle of the step-th step."""
    taken = loop.Training._begin_step

    def with_signal(self: loop.Training) -> int:
        if self.timeline.taken(self.position) == step:
            os.kill(os.getpid(), by)
        return taken(self)

    monkeypatch.setattr(loop.Training, "_begin_step", with_signal)


def crashing_at(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process dies in the step-th step: what is on disk is all that is left."""
    taken = loop.Training._begin_step

    def with_crash(self: loop.Training) -> int:
        if self.timeline.taken(self.position) == step:
            raise ZeroDivisionError
        return taken(self)

    monkeypatch.setattr(loop.Training, "_begin_step", with_crash)


def stopped(settings: Config, step: int, by: int = signal.SIGTERM) -> Stopped:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Stopped) as told:
        stopping_at(step, patch, by)
        train(settings)
    return told.value


def crashed(settings: Config, step: int) -> None:
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ZeroDivisionError):
        crashing_at(step, patch)
        train(settings)
