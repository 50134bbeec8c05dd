"""`steppe measure`: flatness measures of runs and checkpoints, in one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.formats import csv_text
from .._util.measure_names import DEFAULT
from .options import command
from .output import (
    FAILED,
    STOPPED,
    Output,
    UsageError,
    message,
    print_traceback,
    table,
    to_json,
    usage_errors,
    write_text,
)  # fmt: skip
from .subjects import Found, On, find

if TYPE_CHECKING:
    from ..core.estimate import Estimate
    from ..measures.run import Results

COLUMNS = (
    "run", "measure", "value", "stderr", "n", "kind", "note", "complete", "losses", "gradients", "products", "seconds",
)  # fmt: skip


@dataclass(frozen=True)
class What:
    """What to measure, and where to write the numbers."""

    what: list[str] = field(default_factory=list, metadata={"metavar": "RUN|CHECKPOINT", "nargs": "*"})
    """folders of runs, or files of weights: .safetensors, or .pt and .pth with nothing but weights"""
    measures: list[str] = field(default_factory=lambda: list(DEFAULT))
    """measures by name, with a radius and options as in worst_linf@0.002[m=64,rows=test]; `steppe measures` lists
    them"""
    out: str | None = field(default=None, metadata={"metavar": "FILE"})
    """also write the numbers to a .json or .csv file"""
    dry_run: bool = False
    """show what would be measured, and stop"""


@dataclass
class Measurements:
    """Numbers so far, and failures."""

    estimates: list[tuple[str, str, Estimate]] = field(default_factory=list)  # by run and measure
    failures: list[dict[str, str]] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)  # folders without a run in them
    stopped: bool = False

    def take(self, run: str, results: Results) -> None:
        from ..measures.run import STOPPED as INTERRUPTED

        for name, e in results.estimates.items():
            self.estimates.append((run, name, e))
            self.stopped |= not e.complete
        for name, why in results.failures.items():
            self.failures.append({"run": run, "measure": name, "why": why})
            self.stopped |= why == INTERRUPTED

    def fail(self, run: str, error: Exception) -> None:
        print_traceback(error)
        self.failures.append({"run": run, "measure": "", "why": message(error)})

    def data(self) -> dict[str, Any]:
        """Return the numbers and failures as JSON values."""
        return {"results": self.rows(), "failures": self.failures}

    def rows(self) -> list[dict[str, Any]]:
        """Return the numbers with their runs and measures."""
        return [{"run": r, "measure": m, **asdict(e), "interval": e.interval()} for r, m, e in self.estimates]

    def error_lines(self) -> list[str]:
        """Return one line per skipped folder and per failure, with the name of the run once."""
        lines = [f"{run} was skipped: no run has started in it" for run in self.skipped]
        for run, name, why in (failure.values() for failure in self.failures):
            lines.append(why if why.startswith(run) else f"{f'{run} {name}'.strip()}: {why}")
        return [f"steppe measure: {line}" for line in lines]


@command("measure", takes_file=True)
def measure(what: What, on: On) -> Output:
    """Measure how flat runs and checkpoints are: every number with its error, its kind and its cost.

    Examples
    --------
    steppe measure runs/* --measures lambda_max,trace,adaptive_worst_linf
    steppe measure weights.safetensors --model resnet18 --data cifar10 --normalise cifar10

    """
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
    found, measured = _found(what, on)
    if what.dry_run:
        return _dry(what, on, found, measured)
    for where, one in found.items():
        try:
            loaded = one.subject(on)
            results = measure_objective(loaded.objective(on), plan, on.seed, on=partial(loaded.objective, on))
            measured.take(where, results)
        except KeyboardInterrupt:
            measured.stopped = True
        except Exception as error:
            measured.fail(where, error)
        if measured.stopped:
            break
    if what.out is not None:
        write_results(Path(what.out), measured)
    code = STOPPED if measured.stopped else FAILED if measured.failures else 0
    shown = [_table(measured.estimates)] if measured.estimates else []
    return Output(measured.data(), shown, measured.error_lines(), code)


def _found(what: What, on: On) -> tuple[dict[str, Found], Measurements]:
    """Find all subjects before the first measurement starts."""
    from ..training.folder import is_empty

    empty = [where for where in what.what if is_empty(Path(where))]
    if len(empty) == len(what.what):
        raise FileNotFoundError(f"{empty[0]} holds no run yet: a start in it failed, or has just begun")
    found, measured = {}, Measurements(skipped=empty)
    for where in what.what:
        if where in empty:
            continue
        try:
            found[where] = find(where, on)
        except UsageError:
            raise
        except (OSError, ValueError) as error:
            measured.fail(where, error)
    return found, measured


def _table(estimates: Sequence[tuple[str, str, Estimate]]) -> Any:
    from ..measures.run import HEADS, NARROW, NUMBERS, SENTENCES, cells_of

    cells: list[tuple[object, ...]] = []
    before = None
    for run, name, e in estimates:
        if run != before:
            cells.append((run,))  # a heading of the measures below it
        cells.append(cells_of(f"  {name}", e))
        before = run
    return table(HEADS, cells, right=NUMBERS, fold=SENTENCES, drop=NARROW)


def write_results(path: Path, measured: Measurements) -> None:
    """Write the numbers to a .json or .csv file."""
    rows = (row | row["cost"] for row in measured.rows())
    write_text(path, to_json(measured.data()) if path.suffix == ".json" else csv_text(COLUMNS, rows))


def _dry(what: What, on: On, found: Mapping[str, Found], measured: Measurements) -> Output:
    configs = {where: one.config for where, one in found.items()}
    plans = [{"run": where, "data": c.data, "model": c.model, "method": c.method} for where, c in configs.items()]
    data = {"runs": plans, "measures": what.measures, "rows": on.rows, "batch": on.batch, "split": on.split}
    data |= {"failures": measured.failures}
    shown = table(("run", "data", "model"), ((row["run"], row["data"], row["model"]) for row in plans))
    where = f"{on.rows} {on.split} rows, or as many as there are, in batches of {on.batch}"
    words = f"{', '.join(what.measures)} on {where}; nothing was measured"
    return Output(data, [shown, words], measured.error_lines(), FAILED if measured.failures else 0)
