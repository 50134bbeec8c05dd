"""What a study would cost on this machine: cells, passes over batches, and hours, before anything is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heapreplace
from math import ceil
from statistics import fmean, median
from time import perf_counter
from typing import Any

from ..methods.registry import METHODS
from ..training.config import Config
from ..training.distributed import device_of
from .check import check_names
from .engines.engine import engine_of
from .plan import Study
from .run import Planned
from .selection import choices
from .table import Table

PROBED = 3  # timed passes per model
WARM = 1, 8  # passes before them, on a CPU and on a GPU, where the first ones choose and capture kernels
BEGIN = 8.0  # seconds of a run on a GPU before its first step: imports, data, capture
FORWARD = 1 / 3  # of a pass, which has a backward pass too
STEPS = 64  # of a method whose steps differ: the mean number of passes is over these


@dataclass(frozen=True)
class Stage:
    """One stage of a study: cells, those that are still open, and their passes and hours."""

    name: str
    cells: int
    open: int
    passes: float
    hours: float


@dataclass(frozen=True)
class Projection:
    """The cost of what is missing of a study, and what the hours are computed from."""

    stages: Sequence[Stage]
    basis: Sequence[str]

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def project(study: Study) -> Projection:
    """Project the cost of the cells that a study still has to train; measures are in it where runs like them ended."""
    before = Planned.of(study)
    planned = before.cells
    check_names(study, planned)
    missing = {task.cell.key for task in before.tasks}
    rows: dict[str, tuple[int, int]] = {}
    stored, speeds, basis = _stored_speeds(before.table), {}, []
    passes: dict[str, float] = {}
    seconds: dict[str, float] = {}
    device = study.base.get("device")
    engine = engine_of(study.engine, device)
    at_once = (study.engine.workers or 1) if study.engine.name == "ray" else engine.workers  # a cluster is not asked
    begin = BEGIN if device_of(device).type == "cuda" else 0.0
    for cell in planned:
        if cell.key not in missing or cell.checkpoint is not None:
            continue
        config, ensemble = cell.parts
        like = _model_of(cell.config)
        if like not in speeds:
            speeds[like] = stored[like] if like in stored else probe(config)
            source = "the median of stored runs" if like in stored else f"the median of {PROBED} passes timed now"
            speed = f"{speeds[like]:.3g} s per pass of {config.batch_size} rows"
            basis.append(f"{config.model} on {config.data}: {speed}, {source}.")
        method, members = METHODS[config.method], ensemble.members if ensemble else 1
        passes_per_step = fmean(method.passes_at(step, **config.method_options) for step in range(1, 1 + STEPS))
        train, evaluated = _rows_of(config, rows)
        passes[cell.key] = _steps(config, train) * passes_per_step * members
        if like in stored:  # which ran side by side, and were evaluated and measured
            seconds[cell.key] = passes[cell.key] * speeds[like]
        else:
            forward = members * evaluated / config.batch_size * FORWARD
            seconds[cell.key] = begin + (passes[cell.key] + forward) * speeds[like] * engine.slowdown
    stages = []
    for name in dict.fromkeys(cell.stage for cell in planned):
        of_one = [cell for cell in planned if cell.stage == name]
        hours = _makespan([seconds.get(cell.key, 0.0) for cell in of_one], at_once) / 3600
        total = sum(passes.get(cell.key, 0.0) for cell in of_one)
        stages.append(Stage(name or "runs", len(of_one), sum(c.key in missing for c in of_one), total, hours))
    what = f"Hours on this machine, {at_once} at a time; measures come on top of what was timed now."
    guessed = study.select is not None and any(one.cell is None for one in choices(study, before.table))
    more = " Where no winner is known yet, its final runs are projected with a first configuration." if guessed else ""
    return Projection(stages, [*basis, what + more])


def _makespan(seconds: Sequence[float], at_once: int) -> float:
    """When the last of some cells ends, if they begin one after the other, as soon as there is a place."""
    ends = [0.0] * at_once
    for one in seconds:
        heapreplace(ends, ends[0] + one)
    return max(ends)


def _rows_of(config: Config, known: dict[str, tuple[int, int]]) -> tuple[int, int]:
    """How many rows a run trains on, and evaluates in all; `known` keeps them."""
    names = ("data", "data_root", "fraction", "per_class", "validation", "held_out", "epochs", "evaluate_every",
             "corruptions", "severities")  # fmt: skip
    key = json.dumps([getattr(config, name) for name in names])
    if key not in known:
        from ..data.corruptions import selected
        from ..training.problem import data_of

        splits = data_of(config)
        test, validation = len(splits.test), len(splits.validation or ())
        corrupted = len(selected(config.corruptions)) * len(config.severities) if config.corruptions else 0
        evaluations = ceil(config.epochs / config.evaluate_every)
        known[key] = len(splits.train), evaluations * (test + validation) + corrupted * test
    return known[key]


def _steps(config: Config, rows: int) -> int:
    return config.steps if config.steps is not None else config.epochs * max(1, rows // config.batch_size)


def probe(config: Config) -> float:
    """Seconds per forward and backward pass of one batch, captured as in a run on a GPU, the median of a few."""
    import torch

    from ..cuda.capture import capture
    from ..optim.build import build
    from ..training.distributed import threads
    from ..training.model import channels_last, model_of
    from ..training.problem import data_of, task_of

    device = device_of(config.device)
    splits = data_of(config)
    task = task_of(splits)
    size = min(config.batch_size, len(splits.train))

    def loss(model: torch.nn.Module, rows: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
            output: torch.Tensor = model(rows)
            return output.float().square().mean()

    with threads(config.threads):
        model = model_of(config, task.shape, task.outputs).to(device).train()
        if channels_last(config, task.shape, device):
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        inputs = torch.randn(size, *task.shape, device=device)
        opt = build("none", torch.optim.SGD(model.parameters(), lr=0.0), model=model)
        captured = capture(opt, loss, model, (inputs,)) if config.capture else None
        seconds = []
        warm = WARM[device.type == "cuda"]
        for _ in range(warm + PROBED):
            start = perf_counter()
            if captured is not None:
                captured(inputs)
            else:
                opt.step(lambda: loss(model, inputs))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(perf_counter() - start)
    return median(seconds[warm:])


def _stored_speeds(table: Table) -> dict[str, float]:
    """Seconds per pass in finished runs, all that a run does included, by model."""
    runs = [run for run in table.runs if run.meta.get("passes") and "seconds" in run.meta]
    by_model: dict[str, list[float]] = {}
    for run in runs:
        by_model.setdefault(_model_of(run.config), []).append(run.meta["seconds"] / run.meta["passes"])
    return {model: median(values) for model, values in by_model.items()}


def _model_of(config: Mapping[str, Any]) -> str:
    names = ("data", "model", "model_options", "batch_size", "precision", "device")
    return json.dumps([config.get(name) for name in names], sort_keys=True)
