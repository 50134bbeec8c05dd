"""Tiny studies for tests: two spirals, a network of 8 units, two steps; and how two stores are compared."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from steppe.studies.cell import Outcome, Task
from steppe.studies.engines import Serial
from steppe.studies.plan import Study
from steppe.studies.store import Store
from steppe.training.evaluate import TIMINGS
from steppe.training.stopping import StopRequest

BASE: dict[str, Any] = {
    "data": "spirals", "fraction": 0.1, "model": "mlp", "model_options": {"width": 8, "depth": 1}, "epochs": 2,
    "batch_size": 50, "measure_rows": 64, "device": "cpu", "checkpoint_every": 3600.0,
}  # fmt: skip


def tiny(out: Path | str, **changes: Any) -> Study:
    """Four cells unless told otherwise."""
    given: dict[str, Any] = {
        "base": BASE,
        "grid": {"method": ["none", {"method": "sam", "rho": 0.1}], "seed": [0, 1]},
        "measures": ["lambda_max", "worst_l2@0.1"],
        "out": str(out),
    }
    return Study.of(given | changes, "tiny")


def contents(study: Study) -> dict[str, Any]:
    """Everything in a store but what a clock said, by cell."""
    with Store.reading(study.store) as store:
        table, versions = store.table(), store.versions()
        curves = {run.key: store.curves(run.key) for run in table.runs}
    return {"versions": versions} | {
        run.key: {
            "name": run.name,
            "config": run.config,
            "groups": run.groups,
            "state": run.state,
            "targets": run.targets,
            "errors": run.target_errors,
            "measures": {k: (m.value, m.stderr, m.n, m.kind, m.note, m.cost) for k, m in run.measures.items()},
            "failures": run.failures,
            "error": run.error,
            "rows": None if run.rows is None else run.rows.tolist(),
            "meta": {k: v for k, v in run.meta.items() if not k.endswith("seconds")},
            "curves": [{k: v for k, v in r.items() if k not in TIMINGS} for r in curves[run.key]],
        }
        for run in table.runs
    }


def deadly(shape: tuple[int, ...], outputs: int, marks: str, times: int = 1, spared: int = 0) -> nn.Module:
    """A network whose process is killed when it is first built, so many times over all processes but one."""
    died = len(list(Path(marks).glob("died-*")))
    if died < times and os.getpid() != spared:
        (Path(marks) / f"died-{died}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), outputs))


def full(shape: tuple[int, ...], outputs: int, marks: str, times: int = 1) -> nn.Module:
    """A network that cannot be built for want of space, so many times."""
    tried = len(list(Path(marks).glob("tried-*")))
    (Path(marks) / f"tried-{tried}").touch()
    if tried < times:
        raise OSError(28, "No space left on device")
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), outputs))


def marked(shape: tuple[int, ...], outputs: int, marks: str, width: int) -> nn.Module:
    """A network that leaves a file whenever it is built."""
    built = len(list(Path(marks).glob("built-*")))
    (Path(marks) / f"built-{built}").touch()
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), width), nn.Linear(width, outputs))


def noting_gpu(shape: tuple[int, ...], outputs: int, notes: str) -> nn.Module:
    """A linear model whose factory writes down which GPUs its process may use."""
    with Path(notes).open("a") as file:
        file.write(f"{os.environ['CUDA_VISIBLE_DEVICES']}\n")
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), outputs))


def broken(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A factory that fails."""
    raise ZeroDivisionError("no layers")


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """The processes below a process, with how each was started, from /proc."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents.setdefault(int(parent), []).append(int(entry.name))
    waiting = parents.get(pid, [])[:]
    while waiting:
        one = waiting.pop()
        waiting += parents.get(one, [])
        try:
            yield one, Path(f"/proc/{one}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue


class Counting:
    """The serial engine, which remembers what it was given."""

    workers = 1

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def outcomes(self, tasks: Sequence[Task], stop_request: StopRequest, begun: Any) -> Iterator[Outcome]:
        self.tasks += tasks
        yield from Serial().outcomes(tasks, stop_request, begun)
