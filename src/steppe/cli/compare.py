"""`steppe compare`: which method is better at equal cost, by how much, and with which settings."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TYPE_CHECKING, Any

from .._util.terminal import say
from .compare_options import Again, Effort, Folder, How, Space, What
from .compare_output import answer, plan_of
from .options import Parsed, command
from .output import Output, UsageError, print_output, stop_code, usage_errors

if TYPE_CHECKING:
    from ..comparison.design import Design
    from ..comparison.functions import Execute
    from ..comparison.result import Result
    from ..comparison.store import Comparison
    from ..studies.engines.engine import Engine
    from ..training.stopping import StopRequest

PAGE, YAML = "report.html", "recommended.yaml"
LIVE = 10.0  # seconds between two versions of the page of a comparison that runs
EXPECTED = 0.1  # the error of which the row floor is stated before anything has been trained


@command("compare")
def compare(what: What, effort: Effort, space: Space, how: How, parsed: Parsed) -> Output:
    """Compare methods at equal cost and equal tuning, until the answer is clear; rerun the command to resume.

    Examples
    --------
    steppe compare --data digits --model mlp --methods none,sam --budget 10m
    steppe compare --data cifar10 --model resnet18 --methods none,sam,asam --budget 2h --worth 0.5
    steppe compare compare.yaml --dry-run
    steppe compare --fix lr=0.1,weight_decay=5e-4 --space sam.rho=0.01..0.5
    steppe compare report comparisons/digits-mlp

    """
    from ..comparison.run import seconds
    from ..comparison.store import NAME, Record

    folder = Path(how.out) if how.out is not None else _folder(what)
    with TemporaryDirectory() as spare, usage_errors():  # a dry run writes nothing that stays
        design, where = _design(what, effort, space, how, Path(spare) if how.dry_run else folder)
        start: dict[str, Any] = {"budget": seconds(effort.budget), "measures": how.measures, "where": where}
        start |= {name: getattr(how, name) for name in ("workers", "engine", "address")}
        if space.axis == "seconds" and (what.train is not None or _workers(design, start) > 1):
            raise ValueError(
                "equal seconds need runs that have the device to themselves, on the data and model of a command: add "
                "--workers 1, or compare at equal passes"
            )
        if how.dry_run:
            return _plan(design, start, folder)[1]
    record = Record(folder / NAME)
    goes_on = record.current is not None and record.current.done and not _changed(record, design)
    if not (how.yes or goes_on or sys.stdin.isatty()):
        raise UsageError(
            "this asks before it starts, and there is no terminal to answer: add --yes to start it, or --dry-run to "
            "see what it would take"
        )
    if not goes_on:
        design, plan = _plan(design, start, folder)
        if not parsed.values["json"]:
            print_output(replace(plan, data=None), as_json=False)
        if not how.yes and not _agreed():
            return Output({**plan.data, "started": False}, ["nothing was started"])
    return _run(design, start, folder, how.progress)


def _plan(design: Design, start: Mapping[str, Any], folder: Path) -> tuple[Design, Output]:
    """The design with measured costs; what would be run and what it could show."""
    from ..comparison.runs import check_runs, probe

    rows, probed = dict[str, int](), None
    if "train" not in design.task and start["engine"] != "ray":  # where others read the rows
        with usage_errors(ValueError):
            splits = check_runs(design, start["where"])
        rows = {name: len(part) for name, part in splits.parts.items()}
        probed = probe(design, start["where"], _engine(start).slowdown)
        if design.axis == "seconds":
            own = probed.epoch[design.reference]
            design = replace(design, costs={m: round(probed.epoch[m] / own, 3) for m in design.methods})
    return design, plan_of(design, rows, probed, start["budget"], _workers(design, start), folder, EXPECTED)


@command("compare status")
def status(folder: Folder) -> Output:
    """Show the progress of a comparison.

    Examples
    --------
    steppe compare status comparisons/digits-mlp

    """
    from ..comparison.result import result_of
    from .compare_output import state_of

    current, place = _current(folder)
    return state_of(current, result_of(current, place))


@command("compare report")
def report(folder: Folder) -> Output:
    """Print the answer of a comparison so far, and write its page.

    Examples
    --------
    steppe compare report comparisons/digits-mlp

    """
    from ..comparison.result import result_of

    current, place = _current(folder)
    result = result_of(current, place, history=[current.why] if current.why else [])
    return answer(result, _written(result, place))


@command("compare resume")
def resume(folder: Folder, again: Again) -> Output:
    """Resume a comparison that was stopped or killed, or whose budget ended.

    Examples
    --------
    steppe compare resume comparisons/digits-mlp --budget 1h

    """
    from .._util.user_code import is_factory
    from ..comparison.own_data import moved
    from ..comparison.run import seconds
    from ..comparison.store import NAME

    current, place = _current(folder)
    task = current.design.task
    for name in ("model", "train"):
        if is_factory(task.get(name, "")) and not again.trust:
            raise ValueError(
                f"{place / NAME} names the {name} {task[name]!r}, which is code outside steppe: if you trust it, add "
                "--trust, or rerun the command that began the comparison"
            )
    where = moved(current.start.get("where", {}), place)
    where |= {"data_root": again.data_root} if again.data_root is not None else {}
    changes = {"budget": seconds(again.budget), "workers": again.workers, "where": where}
    start = {**current.start, **{name: value for name, value in changes.items() if value is not None}}
    return _run(current.design, start, place, again.progress)


def _folder(what: What) -> Path:
    """The folder of a comparison without --out, by its file or by data and model."""
    if what.file is not None:
        return Path("comparisons") / Path(what.file).stem
    names = [what.train] if what.train else [what.data, what.model]
    return Path("comparisons") / "-".join(n.replace(":", "_").replace("/", "_").strip("._") for n in names)


def _design(what: What, effort: Effort, space: Space, how: How, folder: Path) -> tuple[Design, dict[str, Any]]:
    """The design that the options describe, and where it runs; raises ValueError for what no trial can use."""
    from .._util.user_code import imported, is_factory
    from ..comparison.design import EPOCHS, Design, divided
    from ..comparison.runs import OF_MACHINE, VALIDATION, checked_settings, usual_space
    from ..core.laws import law_in

    laws = {name: law_in(value) for name, value in space.space.items()}
    for name in space.base:
        if name == "model":
            raise ValueError("model cannot be given in base: give `model` beside it")
        if name in laws or name in space.fix:
            raise ValueError(f"{name} is in base and in {'space' if name in laws else 'fix'}: keep one of them")
    task: dict[str, Any]
    where: dict[str, Any] = {}
    if what.train is not None:
        imported(what.train, "train function")
        shared, own = divided(what.methods, laws, space.fix)
        if EPOCHS not in shared:
            raise ValueError("the space has no epochs: add epochs=30 to --fix, or epochs=10/30/90 to --space")
        task = {"train": what.train}
        if space.base:
            raise ValueError("base is for runs of data and model; a train function has settings of its own")
    else:
        usual = usual_space(str({**space.base, **space.fix}.get("optimizer", "sgd")))
        known = {k: v for k, v in usual.items() if k not in space.base}
        shared, own = divided(what.methods, {**known, **laws}, space.fix)
        base = {"threads": 1, **checked_settings(space.base, shared)}
        task = {"data": what.data, "model": what.model, **{k: v for k, v in base.items() if k not in OF_MACHINE}}
        where = {"data_root": how.data_root, **{k: v for k, v in base.items() if k in OF_MACHINE}}
        if is_factory(what.data) and what.data.partition(":")[0] not in ("folder", "npz"):
            from ..comparison.own_data import saved

            task["data"], where["data"] = saved(what.data, folder)
        if "validation" not in {**task, **shared} and how.engine != "ray":
            from ..data.registry import load

            splits = load(where.get("data", task["data"]), how.data_root)
            task |= {} if splits.validation is not None else {"validation": VALIDATION}
    design = Design(
        (tuple(what.methods),), shared, own, effort.tuning, Design.most_of(effort.trials),
        None if effort.worth is None else effort.worth / 100, once=effort.once, seed=space.seed, axis=space.axis,
        halving=space.halving, task=task,
    )  # fmt: skip
    return design, where


def _workers(design: Design, start: Mapping[str, Any]) -> int:
    """How many runs there are at a time."""
    if "train" in design.task or start["engine"] == "ray":
        return start["workers"] or 1
    return _engine(start).workers


def _engine(start: Mapping[str, Any]) -> Engine:
    from ..studies.engines.engine import EngineSettings, engine_of

    settings = EngineSettings(start.get("engine", "local"), start.get("workers"), None, 2, start.get("address"))
    return engine_of(settings, start.get("where", {}).get("device"))


def _changed(record: Any, design: Design) -> bool:
    """Whether this design would begin another comparison in the record, or change it before its first look."""
    from ..comparison.store import Record

    copy = Record(None)
    copy.comparisons = list(record.comparisons)
    return bool(copy.begin(design))


def _run(design: Design, start: Mapping[str, Any], folder: Path, progress: bool | None) -> Output:
    from ..comparison.result import BUDGET
    from ..comparison.run import run
    from ..training.stopping import stop_signals

    with stop_signals() as stop:
        execute, workers = _executor(design, start, folder, stop)
        start = {**start, "at_once": workers}
        result = run(
            design, execute, folder, start.get("budget"), progress, workers, lambda: stop.why, _live(folder), start
        )
    output = answer(result, _written(result, folder))
    if result.state != "stopped":
        return output
    hint = f"steppe compare: stopped ({result.stopped}); `steppe compare resume {folder}` continues"
    return replace(output, errors=[hint], code=stop_code("" if result.stopped == BUDGET else result.stopped))


def _executor(design: Design, start: Mapping[str, Any], folder: Path, stop: StopRequest) -> tuple[Execute, int]:
    if "train" in design.task:
        from .._util.user_code import imported
        from ..comparison.functions import in_process, in_processes

        place, workers = design.task["train"], start.get("workers") or 1
        if workers == 1:
            return in_process(imported(place, "train function"), lambda: stop.why), 1
        return in_processes(place, workers, lambda: stop.why), workers
    from ..comparison.runs import by_engine

    engine, task = _engine(start), {**design.task, **start.get("where", {})}
    return by_engine(task, engine, folder, stop, start.get("measures", ())), engine.workers


def _live(folder: Path) -> Callable[[Comparison], None]:
    """A function that writes the page of a comparison that runs, not more often than a reader reloads it."""
    from ..comparison.page import write
    from ..comparison.result import result_of

    last = [-LIVE]

    def watch(current: Comparison) -> None:
        if monotonic() - last[0] >= LIVE:
            write(result_of(current, folder), folder / PAGE, reload=int(LIVE))
            last[0] = monotonic()

    return watch


def _written(result: Result, folder: Path) -> list[Path]:
    """Write the page and the recommended configuration; return the files."""
    from .output import write_text

    files = [result.write_page(folder / PAGE)]
    if result.yaml:
        write_text(folder / YAML, result.yaml)
        files.append(folder / YAML)
    return files


def _current(folder: Folder) -> tuple[Comparison, Path]:
    from ..comparison.store import NAME, Record

    if folder.folder is None:
        raise UsageError("name the folder of the comparison, such as comparisons/digits-mlp")
    place = Path(folder.folder)
    current = Record(place / NAME).current
    if current is None:
        places = (*place.glob(f"*/{NAME}"), *Path("comparisons").glob(f"*/{NAME}"))
        found = ", ".join(sorted({str(file.parent) for file in places}))
        raise FileNotFoundError(
            f"there is no comparison in {place}: it has no {NAME}. "
            + (f"There are: {found}" if found else "`steppe compare` begins one")
        )
    return current, place


def _agreed() -> bool:
    say("Start? [y/N] ", error=True, end="")
    return sys.stdin.readline().strip().lower() in ("y", "yes")
