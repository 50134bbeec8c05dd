"""Runs several measures of one model; spectral measures of one operator share its products."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from html import escape
from math import isfinite
from typing import Any

from torch import Tensor, nn

from .._util.extras import explained
from .._util.formats import json_safe
from .._util.measure_names import DEFAULT
from .._util.terminal import bar, columns_of, console, line, say, style, table, wrapped
from .combinators import OnData
from .curvature.measures import Eigenvalue, SpectralMeasure
from .curvature.operator import Curvature
from .curvature.spectrum import Spectrum
from .estimate import Cost, Estimate, Measure, with_cost
from .objective import Objective
from .objective import objective as make_objective
from .registry import resolve_measures
from .session import session
from .sharpness import Loss

STOPPED = "not measured: stopped"  # the failure of measures after a Ctrl-C
Watch = Callable[[str, Estimate | None], None]  # the name of a measure, and its estimate so far


HEADS = ("measure", "value", "error", "n", "kind", "cost", "time")
NUMBERS, SENTENCES = ("value", "error", "n", "time"), ("kind", "cost")  # their columns: aligned right, and folded
NARROW = ("time", "cost", "n")  # what a narrow terminal leaves out
WIDTH = 110  # columns of a printed table without a terminal
COLUMNS = ["value", "stderr", "low", "high", "n", "kind", "note", "complete"]
COLUMNS += ["losses", "gradients", "products", "seconds", "failure"]


def cells_of(name: str, e: Estimate) -> tuple[str, ...]:
    """The cells of an estimate below `HEADS`."""
    kind = ", ".join(filter(None, [e.kind, e.note, "" if e.complete else "stopped early"]))
    error = f"{e.stderr:.2g}" if isfinite(e.stderr) and e.stderr else ""
    return name, f"{e.value:.5g}", error, str(e.n), kind, str(e.cost), f"{e.cost.seconds:.2f} s"


@dataclass(frozen=True)
class Results(Mapping[str, Estimate]):
    """Estimates by name, as a mapping, as a table and as JSON.

    Parameters
    ----------
    estimates
        By the name of the measure.
    failures
        Error messages of the measures that failed; indexing one of these raises KeyError with its message.
    cost
        The total cost of all measures.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)

    >>> results = steppe.measure(model, nn.functional.mse_loss, data, "loss, grad_norm")
    >>> list(results)
    ['loss', 'grad_norm']
    >>> results.to_dict()["estimates"]["loss"]["value"]
    1.0

    """

    estimates: Mapping[str, Estimate]
    failures: Mapping[str, str] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)

    def __repr__(self) -> str:
        values = [f"{name}: {e.value:.4g}" for name, e in self.estimates.items()]
        return f"Results({', '.join([*values, *(f'{name}: failed' for name in self.failures)])})"

    def __getitem__(self, name: str) -> Estimate:
        if name in self.failures:
            raise KeyError(f"{name} has no value: {self.failures[name]}")
        if name not in self.estimates:
            raise KeyError(f"{name} was not measured: there are {', '.join(self.estimates) or 'no estimates'}")
        return self.estimates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def table(self) -> Any:
        """A table for rich consoles, with one row per measure: value, error, kind, cost and time."""
        return table(HEADS, self._rows(), right=NUMBERS, fold=SENTENCES, drop=NARROW)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        """The cells of a table below `HEADS`."""
        yield from (cells_of(name, e) for name, e in self.estimates.items())
        for name, why in self.failures.items():
            yield name, "none", "", "", why, "", ""

    def _total(self) -> str:
        seconds = f"{self.cost.seconds:.1f} s"
        return f"Total cost: {self.cost}, {seconds}; work that measures share is counted once."

    def _repr_html_(self) -> str:
        """The table, for notebooks."""

        def cells(tag: str, row: tuple[str, ...]) -> str:
            sides = ("left" if head in ("measure", "kind", "cost") else "right" for head in HEADS)
            texts = (f'<{tag} style="text-align: {s}">{escape(t)}</{tag}>' for s, t in zip(sides, row, strict=True))
            return f"<tr>{''.join(texts)}</tr>"

        body = "".join(cells("td", row) for row in self._rows())
        caption = f'<caption style="caption-side: bottom">{escape(self._total())}</caption>'
        return f"<table>{caption}<thead>{cells('th', HEADS)}</thead><tbody>{body}</tbody></table>"

    def __str__(self) -> str:
        columns = columns_of(WIDTH)
        page = console(width=columns, no_color=True, highlight=False)
        with page.capture() as capture:
            page.print(self.table(), crop=False)
        lines = [one.rstrip() for one in capture.get().splitlines()]
        return "\n".join([*lines, "", wrapped(self._total(), columns)])

    def to_json(self) -> str:
        """All fields as JSON; numbers that are not finite become null."""
        return json.dumps(self.to_dict(), indent=2)

    def to_dict(self) -> dict[str, Any]:
        """All fields as values that JSON can hold: numbers that are not finite become None."""
        rows = {name: e.to_dict() for name, e in self.estimates.items()}
        return dict(json_safe({"estimates": rows, "failures": self.failures, "cost": asdict(self.cost)}))

    def to_frame(self) -> Any:
        """A pandas DataFrame with one row per measure; rows of measures that failed have a `failure` and no value.

        The columns are value, stderr, low and high (the 95 % interval), n, kind, note, complete, losses, gradients,
        products, seconds and failure.
        """
        with explained():
            import pandas as pd
        rows: dict[str, dict[str, Any]] = {}
        for name, e in self.estimates.items():
            fields = {k: v for k, v in asdict(e).items() if k != "cost"}
            low, high = e.interval()
            rows[name] = {**fields, "low": low, "high": high, **asdict(e.cost), "failure": ""}
        rows |= {name: {"failure": why} for name, why in self.failures.items()}
        frame = pd.DataFrame.from_dict(rows, orient="index", columns=COLUMNS)
        return frame.rename_axis("measure")

    def plot(self) -> Any:
        """A plotly figure of definitions over their radii, such as worst_linf@0.001 and worst_linf@0.002."""
        from .charts import over_radii

        return over_radii(self)


def measure(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor] | None,
    data: Any,
    measures: Iterable[str] | Mapping[str, Measure] | str = DEFAULT,
    *,
    seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> Results:
    """Measure the sharpness of a model.

    Parameters
    ----------
    model, loss_fn, data
        As in `objective`.
    measures
        Names from `MEASURES`, as a list or a comma-separated string, or a mapping of your own names to measures.
        "worst_linf@0.002[m=64,steps=50]" is a definition at another radius and with options: docs/measures.md.
    seed
        All random draws are a function of it.
    progress
        Shows the running estimates; None shows them on a terminal only.
    **options
        Other arguments of `objective`.

    Returns
    -------
    Results
        Measures that fail are listed in `failures`. Ctrl-C returns the results so far.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)

    >>> results = steppe.measure(model, nn.functional.mse_loss, data, "loss, lambda_max")
    >>> print(results["loss"])
    1 (exact)
    >>> round(float(results["lambda_max"]), 4)  # the Hessian is the identity
    1.0

    """
    return measure_objective(
        make_objective(model, data, loss_fn, **options), resolve_measures(measures), seed, progress
    )


def measure_objective(
    objective: Objective,
    plan: Mapping[str, Measure],
    seed: int = 0,
    progress: bool | None = None,
    on: Callable[[OnData], Objective] | None = None,
) -> Results:
    """Measure an existing objective.

    Parameters
    ----------
    objective
        The loss and the data.
    plan
        Measures by name.
    seed, progress
        As in `measure`.
    on
        Makes the objective of measures on other data (`OnData`); by default from `objective`, without other rows.

    """
    groups: dict[OnData | None, dict[str, Measure]] = {}  # spectral measures on the same data share products
    for name, one in plan.items():
        data = replace(one, measure=Loss()) if isinstance(one, OnData) else None
        groups.setdefault(data, {})[name] = one.measure if isinstance(one, OnData) else one
    estimates: dict[str, Estimate] = {}
    failures: dict[str, str] = {}
    cost = Cost()
    with _watching(len(plan), progress) as watch, session(objective.model, objective.statistics):
        if plan:
            objective.check()
        for data, measures in groups.items():
            if STOPPED in failures.values() or not all(e.complete for e in estimates.values()):
                failures |= dict.fromkeys(measures, STOPPED)
                continue
            try:
                where = objective if data is None else on(data) if on is not None else data.applied(objective)
                where.check()
            except Exception as error:
                if objective.group is not None:  # workers that did not fail would wait for this one
                    raise
                failures |= dict.fromkeys(measures, str(error))
                continue
            results = _measure_together(where, measures, seed, watch)
            estimates |= results.estimates
            failures |= results.failures
            cost += results.cost
    kept = {name: estimates[name] for name in plan if name in estimates}
    return Results(kept, failures, cost)


def _measure_together(objective: Objective, plan: Mapping[str, Measure], seed: int, watch: Watch) -> Results:
    """The results of measures of one objective."""
    before = objective.spent()
    estimates: dict[str, Estimate] = {}
    failures: dict[str, str] = {}
    spectra: dict[Any, Spectrum] = {}
    # eigenvalues first: traces deflate the vectors that they compute
    order = sorted(plan, key=lambda name: not isinstance(plan[name], Eigenvalue))
    with session(objective.model, objective.statistics):
        for name in order:
            watch(name, None)
            try:
                one = plan[name]
                running = one.running(objective, seed)
                if isinstance(one, SpectralMeasure):
                    key = (one.form, one.metric, one.by)
                    if key not in spectra:
                        spectra[key] = one.by(Curvature(objective, one.form, one.metric), seed)
                    running = one.estimates(spectra[key])
                for estimate in with_cost(running, objective):
                    estimates[name] = estimate
                    watch(name, estimate)
            except KeyboardInterrupt:
                if objective.group is not None:  # the other workers would wait for this one
                    raise
                if name in estimates:
                    estimates[name] = replace(estimates[name], complete=False)
                failures |= {other: STOPPED for other in order if other not in estimates | failures}
                break
            except Exception as error:
                if objective.group is not None:  # workers that did not fail would wait for this one
                    raise
                estimates.pop(name, None)
                failures[name] = str(error)
    return Results(estimates, failures, objective.spent() - before)


@contextmanager
def _watching(measures: int, progress: bool | None) -> Iterator[Watch]:
    """Yield a function that shows the running estimate: as a bar on a terminal, as one line per measure in a log."""
    if (how := style(progress)) == "nothing":
        yield lambda name, estimate: None
        return
    if how == "lines":
        yield lambda name, estimate: say(f"{name} ...", error=True) if estimate is None else None
        return
    with bar() as shown:
        task = shown.add_task("", total=measures, now="")
        seen: list[str] = []

        def watch(name: str, estimate: Estimate | None) -> None:
            if name not in seen:
                seen.append(name)
            now = f"{estimate}, {estimate.cost}" if estimate is not None else ""
            shown.update(task, description=line(name), completed=len(seen) - 1, now=now)

        yield watch
