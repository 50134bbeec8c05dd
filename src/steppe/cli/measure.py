"""`steppe measure`: flatness measures of runs and checkpoints, in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.formats import csv_text
from ..training.config import Config
from .errors import FAILED, STOPPED, UsageError, message, print_traceback, usage_errors
from .options import Command, File
from .output import Output, add_row, table, to_json
from .subjects import On, config_of, subject

if TYPE_CHECKING:
    from ..measures.run import Results

DEFAULT_MEASURES = "loss,grad_norm,lambda_max,trace,frobenius_squared,adaptive_worst_linf"
COLUMNS = (
    "run", "measure", "value", "stderr", "n", "kind", "note", "complete", "losses", "gradients", "products", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class What:
    """What to measure, and where to write the numbers."""

    what: list[str] = field(default_factory=list, metadata={"metavar": "RUN|CHECKPOINT", "nargs": "*"})
    """folders of runs, or files of weights: .safetensors, or .pt and .pth with nothing but weights"""
    measures: list[str] = field(default_factory=lambda: DEFAULT_MEASURES.split(","))
    """measures by name, with a radius and options as in worst_linf@0.002[m=64,rows=test]; `steppe measures` lists
    them"""
    out: str | None = field(default=None, metadata={"metavar": "FILE"})
    """also write the numbers to a .json or .csv file"""
    dry_run: bool = False
    """show what would be measured, and stop"""


@dataclass
class Measurements:
    """Numbers so far, and failures."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # folders without a run in them
    stopped: bool = False

    def take(self, run: str, results: Results) -> None:
        from ..measures.run import STOPPED as INTERRUPTED

        for name, e in results.estimates.items():
            self.rows.append({"run": run, "measure": name, **asdict(e), "interval": e.interval()})
            self.stopped |= not e.complete
        for name, why in results.failures.items():
            self.failures.append({"run": run, "measure": name, "why": why})
            self.stopped |= why == INTERRUPTED

    def fail(self, run: str, error: Exception) -> None:
        print_traceback(error)
        self.failures.append({"run": run, "measure": "", "why": message(error)})

    def error_lines(self) -> list[str]:
        """Return one line per skipped folder and per failure, with the name of the run once."""
        rows = [(f["run"], f["measure"], f["why"]) for f in self.failures]
        places = ["" if why.startswith(run) else f"{run} {name}".strip() + ": " for run, name, why in rows]
        skipped = [f"steppe measure: {run} was skipped: no run has started in it" for run in self.skipped]
        failed = [f"steppe measure: {place}{why}" for place, (_, _, why) in zip(places, rows, strict=True)]
        return [*skipped, *failed]


def run(what: What, on: On, file: File) -> Output:
    """Measure one subject after the other; failures are listed at the end, after the numbers of the others."""
    from ..measures.registry import resolve_measures
    from ..measures.run import measure_objective
    from ..training.config import known_device

    if not what.what:
        raise UsageError("name what to measure: folders of runs, or a checkpoint with --model and --data")
    if what.out is not None and Path(what.out).suffix not in (".json", ".csv"):
        raise UsageError(f"--out takes a file that ends in .json or .csv, not {what.out!r}")
    with usage_errors():
        plan = resolve_measures(what.measures)
        known_device(on.device)
    configs, measured = _configs(what, on)
    if what.dry_run:
        return _dry(what, on, configs, measured)
    for where in configs:
        try:
            loaded = subject(where, on)
            measured.take(
                where, measure_objective(loaded.objective(on), plan, on.seed, on=partial(loaded.objective, on))
            )
        except KeyboardInterrupt:
            measured.stopped = True
        except Exception as error:
            measured.fail(where, error)
        if measured.stopped:
            break
    return _output(what, measured)


def _configs(what: What, on: On) -> tuple[dict[str, Config], Measurements]:
    """Return the configurations of all subjects, read before the first measurement starts."""
    configs, measured = {}, Measurements()
    from ..training.runs import is_empty

    empty = [where for where in what.what if is_empty(Path(where))]
    if len(empty) == len(what.what):
        raise FileNotFoundError(f"{empty[0]} holds no run yet: a start in it failed, or has just begun")
    measured.skipped += empty
    for where in what.what:
        if where in empty:
            continue
        try:
            configs[where] = config_of(where, on)
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            measured.fail(where, error)
    return configs, measured


def _output(what: What, measured: Measurements) -> Output:
    if what.out is not None:
        _write(Path(what.out), measured)
    data = {"results": measured.rows, "failures": measured.failures}
    code = STOPPED if measured.stopped else FAILED if measured.failures else 0
    return Output(data, [_table(measured.rows)] if measured.rows else [], measured.error_lines(), code)


def _table(rows: Sequence[dict[str, Any]]) -> Any:
    from ..measures.estimate import Cost

    heads = ("run", "measure", "value", "error", "n", "kind", "cost", "time")
    shown = table(*heads, right=("value", "error", "n", "time"), fold=("run", "kind", "cost"))
    before = ""
    for row in rows:
        error = f"{row['stderr']:.2g}" if isfinite(row["stderr"]) and row["stderr"] else ""
        kind = ", ".join([row["kind"], *filter(None, [row["note"]]), *([] if row["complete"] else ["stopped early"])])
        cost, again = Cost(**row["cost"]), row["run"] == before
        cells = (row["measure"], f"{row['value']:.5g}", error, row["n"], kind, cost, f"{cost.seconds:.2f} s")
        add_row(shown, "" if again else row["run"], *cells)
        before = row["run"]
    return shown


def _write(path: Path, measured: Measurements) -> None:
    from .._util.files import atomic_write

    if path.suffix == ".json":
        text = to_json({"results": measured.rows, "failures": measured.failures})
    else:
        text = csv_text(COLUMNS, (row | row["cost"] for row in measured.rows))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as file:
        file.write(text.encode())


def _dry(what: What, on: On, configs: Mapping[str, Config], measured: Measurements) -> Output:
    plans = [{"run": where, "data": c.data, "model": c.model, "method": c.method} for where, c in configs.items()]
    shown = table("run", "data", "model")
    for row in plans:
        add_row(shown, row["run"], row["data"], row["model"])
    data = {"runs": plans, "measures": what.measures, "rows": on.rows, "batch": on.batch, "split": on.split}
    data |= {"failures": measured.failures}
    where = f"{on.rows} {on.split} rows, or as many as there are, in batches of {on.batch}"
    words = f"{', '.join(what.measures)} on {where}; nothing was measured"
    return Output(data, [shown, words], measured.error_lines(), FAILED if measured.failures else 0)


COMMANDS = {
    "measure": Command(
        "measure",
        "Measure how flat runs and checkpoints are: every number with its error, its kind and its cost.",
        (What, On, File),
        run,
        [
            "steppe measure runs/* --measures lambda_max,trace,adaptive_worst_linf",
            "steppe measure weights.safetensors --model resnet18 --data cifar10 --normalise cifar10",
        ],
    )
}
