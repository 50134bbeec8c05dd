"""Progress of a run on a terminal, in a log and in a pipe."""

from __future__ import annotations

import re
import sys
from io import StringIO
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from rich.progress import Progress, TextColumn
from training_runs import config

from steppe.training import progress, train
from steppe.training.progress import Bars, summary
from steppe.training.schedule import Position, Timeline
from steppe.training.state import Sums


def test_a_log_has_a_line_an_epoch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(config(tmp_path, epochs=3), progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1 of 3", "epoch 2 of 3", "epoch 3 of 3"]
    last = run.result
    assert f"train loss {last['train_loss']:.4f}, train accuracy {last['train_accuracy']:.2%}" in lines[-1]
    assert f"test accuracy {last['test_accuracy']:.2%}" in lines[-1]


@pytest.mark.parametrize("asked", [None, False])
def test_a_pipe_gets_no_progress_unless_requested(
    asked: bool | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(config(tmp_path, epochs=1), progress=asked)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_has_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    screen = Console(file=StringIO(), force_terminal=True, width=120)
    bars = Progress(TextColumn("{task.description} {task.completed}/{task.total} {task.fields[now]}"), console=screen)
    watcher = Bars(bars, Timeline(100, 20), Position(1, 2), batch=64)
    sums = Sums(torch.device("cpu"))
    sums.totals += torch.tensor([32.0, 48.0, 64.0])
    for step in range(3, 7):
        watcher.stepped(Position(1, step), sums)
    run, epoch = bars.tasks
    assert (run.completed, run.total, epoch.completed, epoch.total) == (26, 100, 6, 20)
    assert epoch.description == "epoch 2/5"
    assert re.fullmatch(r"train loss 0\.5000, train accuracy 75\.00%, [\d,]+ images/s", epoch.fields["now"])
    monkeypatch.setattr(progress, "PAUSE", inf)
    unreadable: Any = None  # within the pause sums are not read: reading them synchronises with the device
    watcher.stepped(Position(1, 7), unreadable)
    assert epoch.completed == 6


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_bars_come_and_go_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    train(config(tmp_path))
    shown = screen.getvalue()
    assert "epoch 2/2" in shown
    assert "images/s" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the last that it does is to clear its lines


def test_only_recorded_values_are_shown() -> None:
    assert summary({"train_loss": 0.25, "test_accuracy": None, "other": 1}) == "train loss 0.2500"
