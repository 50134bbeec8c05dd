"""`steppe ensemble`: trains ensembles, scores them, and draws sharpness against diversity over radii."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .._util.numbers import with_error
from ..ensembles.strategies import SHARPNESS, Ensemble, strategy
from ..training.config import Config, check_config
from .options import Parsed, command
from .output import Output, stop_code, table, to_json, usage_errors, write_text
from .train import How

if TYPE_CHECKING:
    from ..ensembles.summary import Report
    from ..measures.estimate import Estimate

NUMBERS, PAGE = "ensembles.json", "tradeoff.html"


@dataclass(frozen=True)
class Scoring:
    """Ensembles to train, and scores to report."""

    repeats: int = 1
    """ensembles per strategy and radius, with seeds from --seed on; the tables have means and errors over them. With
    --seeds, the first ensemble takes the first --members of them, and so on"""
    radii: list[float] = field(default_factory=list)
    """train one ensemble per radius, and draw sharpness against diversity over them"""
    sharpness: str | None = field(default=None, metadata={"metavar": "MEASURE"})
    """the measure of the members' sharpness on training rows, by name; defaults to the paper's with --radii and --plot,
    adaptive_worst_l2@0.5[count=500,m=5], and to none"""
    diversity: Literal["der", "variance", "logit_variance", "kl", "disagreement"] = (
        "der"  # SharpBalance paper, section 4.2
    )
    """the diversity in the plot"""
    average: Literal["logits", "probabilities"] = "logits"  # SharpBalance paper, section 2
    """what the ensemble averages over members"""
    plot: str | None = field(default=None, metadata={"metavar": "FILE"})
    """the page with the plot; with --radii it defaults to tradeoff.html in the folder of the ensembles"""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise ValueError(f"repeats is {self.repeats}, and has to be 1 or more")
        if self.sharpness is None and (self.radii or self.plot):
            object.__setattr__(self, "sharpness", SHARPNESS)
        if not all(0 <= radius < inf for radius in self.radii):
            raise ValueError(f"radii is {self.radii}, and has to be a list of radii, 0 or more")


@command("ensemble", takes_file=True)
def ensemble(settings: Ensemble, scoring: Scoring, config: Config, how: How, parsed: Parsed) -> Output:
    """Train the members of an ensemble, and report their accuracy and diversity; on request, their sharpness.

    Examples
    --------
    steppe ensemble --data digits --members 3 --strategy sharpbalance --rho 0.2 --out runs/three
    steppe ensemble --strategy deep,deep+sam,sam+,sharpbalance,eoa --epochs 30 --out runs/all
    steppe ensemble --strategy deep,sharpbalance --repeats 3 --validation 0.1 --out runs/repeated
    steppe ensemble --strategy deep+sam,sharpbalance --radii 0.02,0.05,0.1,0.2 --out runs/radii

    """
    from ..measures.registry import resolve_measures

    with usage_errors():
        resolve_measures([scoring.sharpness] if scoring.sharpness else [])
        plans = list(_plans(settings, scoring, config, parsed))
    if how.dry_run:
        return _dry(plans)
    if scoring.radii or scoring.plot:
        import plotly.graph_objects  # noqa: F401  a missing plotly raises before training
    from ..data.registry import loaded_once
    from ..ensembles.summary import report
    from ..ensembles.train import train_ensemble
    from ..training import Stopped

    reports: list[Report] = []
    with loaded_once():
        for member_config, one in plans:
            try:
                trained = train_ensemble(member_config, one, how.progress)
            except Stopped as stop:
                done = {"out": str(_root(config)), "finished": False, "ensembles": [r.to_dict() for r in reports]}
                return Output(done, errors=[f"steppe ensemble: {stop}"], code=stop_code(stop))
            reports.append(report(trained, scoring.average, scoring.sharpness))
    return _output(reports, scoring, _root(config))


def _root(config: Config) -> Path:
    """Return the folder of the ensembles of one command."""
    from ..training.folder import folder_of

    return folder_of(config, "ensemble")


def _plans(ensemble: Ensemble, scoring: Scoring, config: Config, parsed: Parsed) -> Iterator[tuple[Config, Ensemble]]:
    """Yield the settings of every ensemble, each in a folder named after its strategy, its radius and its number."""
    from ..ensembles.members import members_of

    needed = scoring.repeats * ensemble.members
    if ensemble.seeds and len(ensemble.seeds) != needed:
        raise ValueError(
            f"--seeds has {len(ensemble.seeds)} numbers, and {scoring.repeats} x {ensemble.members} members need "
            f"{needed}: set --repeats or --members, or give other seeds"
        )
    for name in dict.fromkeys(n.strip() for n in ensemble.strategy.split(",")):
        strategy(name)
        radii: Sequence[float | None] = scoring.radii or [config.rho]
        for rho, number in product(radii, range(scoring.repeats)):
            inside = name + (f",rho={rho:g}" if scoring.radii else "") + (f",repeat={number + 1}" if number else "")
            seed = config.seed if ensemble.seeds else config.seed + number
            seeds = ensemble.seeds[number * ensemble.members : (number + 1) * ensemble.members]
            plan = (
                replace(config, rho=rho, seed=seed, out=str(_root(config) / inside)),
                replace(ensemble, strategy=name, seeds=seeds),
            )
            for member in members_of(*plan):
                check_config(member, parsed.spelled)
            yield plan


def _dry(plans: Sequence[tuple[Config, Ensemble]]) -> Output:
    from ..ensembles.members import exchanges, members_of

    rows: list[dict[str, Any]] = []
    cells = []
    for config, ensemble in plans:
        for m in members_of(config, ensemble):
            after = exchanges(m)
            row = {"out": m.out, "method": m.method, "rho": m.rho, "seed": m.seed, "exchanges_after": after}
            rows.append({"strategy": ensemble.strategy, **row})
            rho = m.rho if m.rho is not None else "" if m.method == "none" else "its own"
            cells.append((m.out, m.method, rho, m.seed, ", ".join(f"epoch {e}" for e in after)))
    heads = ("member", "method", "rho", "seed", "exchanges after")
    shown = table(heads, cells, fold=("exchanges after",))
    return Output({"members": rows}, [shown, f"{len(rows)} members; nothing was trained or written"])


def _output(reports: Sequence[Report], scoring: Scoring, root: Path) -> Output:
    from ..ensembles.summary import averaged
    from ..ensembles.tradeoff import ROWS, by_strategy, kinds_of, slopes, write_page

    data: dict[str, Any] = {"out": str(root), "finished": True, "ensembles": [r.to_dict() for r in reports]}
    shown, n = reports, scoring.repeats
    if n > 1:
        shown = [averaged(reports[i : i + n]) for i in range(0, len(reports), n)]
        data["means"] = [{k: v for k, v in r.to_dict().items() if k not in ("members", "matrices")} for r in shown]
    lines: list[Any] = [_ensembles(shown), _members(reports, scoring.sharpness)]
    lines += [_other_rows(shown)] if any(r.severities or r.validation for r in shown) else []
    lines += [
        f"{r.path.name}: accuracy {100 * r.corrupted['accuracy'].value:.2f} % on corrupted rows (cACC; "
        f"{r.corrupted_source})"
        for r in shown
        if r.corrupted
    ]
    lines += [f"Means and standard errors over {n} ensembles each"] if n > 1 else []
    if scoring.radii or scoring.plot:
        page = Path(scoring.plot) if scoring.plot else root / PAGE
        page.parent.mkdir(parents=True, exist_ok=True)
        series = by_strategy(reports)
        title = f"Sharpness and diversity of the ensembles in {root}"
        write_page(series, page, title, scoring.diversity, scoring.sharpness or "")
        data["plot"] = str(page)
        for rows in kinds_of(series):
            fitted = slopes(series, scoring.diversity, rows)
            data["slopes" if rows == "test" else f"{rows}_slopes"] = {name: _slope(e) for name, e in fitted.items()}
            what = f"log {scoring.diversity} on {ROWS[rows]} over log sharpness"
            lines += [f"{name}: {what} has slope {_slope_text(e)}" for name, e in fitted.items()]
        lines.append(f"{page}: the plot")
    write_text(root / NUMBERS, to_json(data))
    return Output(data, lines)


def _slope(e: Estimate) -> dict[str, float]:
    """Return a slope with its error and its interval."""
    from ..ensembles.tradeoff import slope_interval

    low, high = slope_interval(e)
    return {"value": e.value, "stderr": e.stderr, "low": low, "high": high}


def _slope_text(e: Estimate) -> str:
    fitted = _slope(e)
    within = f", 95 % interval {fitted['low']:.3g} to {fitted['high']:.3g}" if isfinite(fitted["low"]) else ""
    return f"{_number(e, '.3g')} ({e.n} ensembles{within})"


COLUMNS = {  # of the table: score, scale and format
    "members %": ("member_accuracy", 100, ".2f"),
    "ensemble %": ("accuracy", 100, ".2f"),
    "EIR": ("eir", 1, ".3f"),
    "DER": ("der", 1, ".3f"),
    "variance": ("variance", 1, ".4f"),
    "KL": ("kl", 1, ".3f"),
    "NLL": ("nll", 1, ".3f"),
    "ECE %": ("calibration_error", 100, ".2f"),
    "sharpness": ("sharpness", 1, ".3g"),
}


def _ensembles(reports: Sequence[Report]) -> Any:
    heads = [head for head in COLUMNS if head != "sharpness" or reports[0].sharpness]
    return _table(("ensemble",), heads, (((r.path.name,), {**r.scores, "sharpness": r.sharpness}) for r in reports))


def _members(reports: Sequence[Report], sharpness: str | None) -> Any:
    heads = ("member", "accuracy %", "NLL", "ECE %", *([sharpness] if sharpness else []))
    cells = (
        (m["run"], f"{100 * m['accuracy']:.2f}", f"{m['nll']:.4f}", f"{100 * m['calibration_error']:.2f}",
         *([_number(m["sharpness"], ".4g")] if sharpness else []))
        for r in reports for m in r.members
    )  # fmt: skip
    return table(heads, cells, right=heads[1:], fold=("member",))


def _other_rows(reports: Sequence[Report]) -> Any:
    """Return scores on validation rows and under corruptions."""
    rows = []
    for r in reports:
        parts = {"validation": r.validation, **{f"severity {s}": scores for s, scores in r.severities.items()}}
        parts["all severities"] = r.corrupted
        rows += [((r.path.name, name), scores) for name, scores in parts.items() if scores]
    return _table(("ensemble", "rows"), list(COLUMNS)[:4], rows)


def _table(labels: Sequence[str], heads: Sequence[str], rows: Iterable[tuple[Sequence[str], Mapping[str, Any]]]) -> Any:
    """Return a table of scores, whose rows have labels, and estimates by name."""
    cells = ((*row, *(_score(scores, *COLUMNS[head]) for head in heads)) for row, scores in rows)
    return table((*labels, *heads), cells, right=heads, fold=labels[:1])


def _score(scores: Mapping[str, Estimate], name: str, scale: float, form: str) -> str:
    e = scores.get(name)
    return "" if e is None else _number(replace(e, value=scale * e.value, stderr=scale * e.stderr), form)


def _number(e: Estimate, form: str) -> str:
    """Return a number with its error, if both are finite."""
    if not isfinite(e.value):
        return "-"
    if isfinite(e.stderr) and e.stderr:
        return with_error(e.value, e.stderr)
    return f"{e.value + 0.0 if round(e.value, 9) else 0.0:{form}}"
