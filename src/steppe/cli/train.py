"""`steppe train`: one run in one folder, which goes on when the same command is given again."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ..training.config import Config
from ..training.validate import refuse_unknown
from .answer import Answer, add, table
from .command import Command, File, Origins
from .trouble import STOPPED, asking


@dataclass(frozen=True)
class How:
    """How a run is followed."""

    progress: bool | None = None
    """bars on a terminal, elsewhere a line an epoch; by default bars, and nothing elsewhere"""
    dry_run: bool = False
    """say what would be trained and written, and stop"""


def run(config: Config, how: How, file: File, origins: Origins) -> Answer:
    """Trains, or says what training would be."""
    with asking():
        refuse_unknown(config, origins.spelled)
    if how.dry_run:
        return dry(config, origins)
    from ..training import Stopped, train
    from ..training.progress import summary

    try:
        done = train(config, how.progress)
    except Stopped as stop:
        code = STOPPED if "SIGINT" in str(stop) else stop.exit_code
        return Answer({"out": str(stop.path), "finished": False}, trouble=[f"steppe train: {stop}"], code=code)
    data = {"out": str(done.path), "finished": done.finished, "epochs": len(done.records), "last": done.result}
    return Answer(data, [f"{done.path}: {len(done.records)} epochs, {summary(done.result)}"])


def dry(config: Config, origins: Origins) -> Answer:
    """Everything that a run would begin with; nothing is written."""
    import torch

    from ..core.process_group import Workers
    from ..training.checkpoint import PREVIOUS, RECORDS, WEIGHTS
    from ..training.folder import RUN, folder_of, read_run_yaml
    from ..training.loop import Training
    from ..training.problem import data_of, task_of
    from ..training.resume import resume_point
    from .methods import passes

    path, splits = folder_of(config), data_of(config)
    training = Training(config, path, splits, task_of(splits), Workers(), torch.device("cpu"))
    opt, course = training.state.opt, training.course
    resolved = {name: {"value": value, "from": origins.of[name]} for name, value in asdict(config).items()}
    if config.rho is None and "rho" in opt.param_groups[0]:
        resolved["rho"] = {"value": opt.param_groups[0]["rho"], "from": f"{config.method}'s own default"}
    resolved["out"] = {"value": str(path), "from": origins.of["out"]}
    done = resume_point(path, read_run_yaml(path), config) if path.exists() else None
    plan: dict[str, Any] = {
        "parameters": sum(p.numel() for p in training.state.module.parameters()),
        "rows": {part: len(rows) for part, rows in vars(splits).items() if rows is not None},
        "steps": course.steps,
        "steps_per_epoch": course.per_epoch,
        "passes_a_step": passes(opt.method),
        "would_write": [str(path / name) for name in (RUN, RECORDS, WEIGHTS, PREVIOUS, "state-*.safetensors")],
        "goes_on_from": None if done is None else "its end" if done.about.finished else str(done.about.position),
    }
    return Answer({"config": resolved, **plan}, _shown(resolved, plan))


def _shown(resolved: dict[str, Any], plan: dict[str, Any]) -> list[Any]:
    settings = table("setting", "value", "from", fold=("value",))
    for name, row in resolved.items():
        add(settings, name, row["value"], row["from"])
    rows = ", ".join(f"{n:,} {part}" for part, n in plan["rows"].items())
    return [
        settings,
        f"\n{plan['parameters']:,} parameters, {rows} rows, {plan['steps']:,} steps ({plan['steps_per_epoch']:,} an "
        f"epoch), passes a step: {plan['passes_a_step']}",
        *(
            [f"{resolved['out']['value']} has a run: it would go on from {plan['goes_on_from']}"]
            * bool(plan["goes_on_from"])
        ),
        f"would write {', '.join(plan['would_write'])}; nothing was trained or written",
    ]


COMMANDS = {
    "train": Command(
        "train",
        "Train a model by one of the methods; the same command goes on with a run that was stopped.",
        (Config, How, File, Origins),
        run,
        [
            "steppe train --data digits --model mlp --method sam --rho 0.05 --epochs 30 --seed 0 --out runs/sam",
            "steppe train --data cifar10 --data-root data --model resnet18 --method agnostic-sam --label-noise 0.4",
            "steppe train --config run.yaml --lr 0.05",
        ],
    )
}
