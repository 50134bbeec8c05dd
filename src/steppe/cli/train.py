"""`steppe train`: one training run in one folder; rerun the command to resume."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..methods.facts import run_settings
from ..training.config import Config, check_config
from .options import DEFAULT, Parsed, command
from .output import Output, stop_code, table, usage_errors


@dataclass(frozen=True)
class How:
    """How progress is shown."""

    progress: bool | None = None
    """bars on a terminal, one line per epoch elsewhere; defaults to bars, and to nothing elsewhere"""
    dry_run: bool = False
    """show what would be trained and written, and stop"""


@command("train", takes_file=True)
def train(config: Config, how: How, parsed: Parsed) -> Output:
    """Train a model by one of the methods; rerun the command to resume a run that was stopped.

    Examples
    --------
    steppe train --data digits --model mlp --method sam --rho 0.05 --epochs 30 --seed 0 --out runs/sam
    steppe train --data cifar10 --data-root data --model resnet18 --method agnostic-sam --label-noise 0.4
    steppe train --config run.yaml --lr 0.05

    """
    with usage_errors():
        check_config(config, parsed.spelled)
    if how.dry_run:
        return _dry(config, parsed)
    from ..training import entry
    from ..training.progress import summary
    from ..training.stopping import Stopped

    try:
        done = entry.train_checked(config, how.progress)
    except Stopped as stop:
        unfinished = {"out": str(stop.path), "finished": False}
        return Output(unfinished, errors=[f"steppe train: {stop}"], code=stop_code(stop))
    data = {"out": str(done.path), "finished": done.finished, "epochs": len(done.records), "last": done.result}
    lines = [started(done.about["init"])] if "init" in done.about else []
    return Output(data, [*lines, f"{done.path}: {len(done.records)} epochs, {summary(done.result)}"])


def started(init: dict[str, Any]) -> str:
    """Return the line about the initial weights of a run."""
    new = f"new, with random weights: {', '.join(init['replaced'])}" if init["replaced"] else "all tensors loaded"
    return f"started from {init['file']}; {new}"


def _dry(config: Config, parsed: Parsed) -> Output:
    """Return everything that a run would start with; write nothing."""
    import torch

    from ..core.process_group import Workers
    from ..methods.registry import METHODS
    from ..training.checkpoint import PREVIOUS, RECORDS, WEIGHTS
    from ..training.entry import Opened
    from ..training.folder import RUN, folder_of
    from ..training.loop import Training
    from ..training.problem import data_of, options_of

    path, splits = folder_of(config), data_of(config)
    training = Training(config, path, splits, Workers(), torch.device("cpu"))
    opt, timeline = training.state.opt, training.timeline
    resolved = {name: {"value": value, "from": parsed.sources[name]} for name, value in asdict(config).items()}
    if config.rho is None and "rho" in opt.param_groups[0]:
        resolved["rho"] = {"value": opt.param_groups[0]["rho"], "from": f"{config.method}'s own default"}
    for name in run_settings(config.method):
        if parsed.sources[name] == DEFAULT:
            resolved[name]["from"] = f"{config.method}'s own default"
    resolved["out"] = {"value": str(path), "from": parsed.sources["out"]}
    done = Opened.of(path, config).done if path.exists() else None
    plan: dict[str, Any] = {
        "parameters": sum(p.numel() for p in training.state.module.parameters()),
        "rows": {part: len(rows) for part, rows in splits.parts.items()},
        "steps": timeline.steps,
        "steps_per_epoch": timeline.per_epoch,
        "passes_per_step": METHODS[config.method].usual_passes(**options_of(config, timeline)),
        "would_write": [str(path / name) for name in (RUN, RECORDS, WEIGHTS, PREVIOUS, "state-*.safetensors")],
        "init": None if training.init is None else asdict(training.init),
        "resumes_from": None if done is None else "its end" if done.about.finished else str(done.about.position),
    }
    cells = ((name, row["value"], row["from"]) for name, row in resolved.items())
    rows = ", ".join(f"{n:,} {part}" for part, n in plan["rows"].items())
    resumes = [f"{path} has a run: it would resume from {plan['resumes_from']}"]
    shown = [
        table(("setting", "value", "from"), cells, fold=("value",)),
        f"\n{plan['parameters']:,} parameters, {rows} rows, {plan['steps']:,} steps ({plan['steps_per_epoch']:,} per "
        f"epoch), passes per step: {plan['passes_per_step']}",
        *(resumes if plan["resumes_from"] else []),
        *([started(plan["init"])] if plan["init"] else []),
        f"would write {', '.join(plan['would_write'])}; nothing was trained or written",
    ]
    return Output({"config": resolved, **plan}, shown)
