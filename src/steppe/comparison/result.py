"""The result of a comparison: one frozen object, from which terminal, JSON and page take every number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from math import inf, isfinite, sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from .._util.formats import json_safe
from ..core.laws import Choice, LogUniform, Uniform
from .border import at_border
from .design import EPOCHS, Design
from .recommend import REPEATS, choice, finalists
from .sequential import Contrast
from .statistics import LARGE, curve, detectable, estimate, quantile, row_floor, trials_for
from .store import Comparison

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

PLAIN = "the plain optimizer"
OFF = 0.05  # relative deviation of counted from planned passes that is worth a warning


@dataclass(frozen=True)
class Answer:
    """One contender against the reference. Differences are in points (per cent of test rows); below 0 is better.

    `low` to `high` is the repeated confidence interval at `level`, valid at this look although there were others.
    `detectable` is the difference that this many trials show with a power of 80 %; `needed` trials would show `worth`,
    in `needed_seconds` on the same machine.
    """

    method: str
    verdict: str
    why: str
    difference: float
    low: float
    high: float
    worth: float
    level: float
    p: float
    trials: int
    detectable: float
    needed: float
    needed_seconds: float
    row_limit: float
    edges: Sequence[str]
    sentence: str


@dataclass(frozen=True)
class Row:
    """One method: errors in per cent of the run that validation selects among 1, T and N / 2 trials, and its cost."""

    method: str
    trials: int
    failed: int
    passes: float
    counted: float
    seconds: float
    untuned: float
    tuned: float
    half: float
    curve: Sequence[tuple[int, float, float, float]]  # trials of tuning, error, ends of its 95 % interval
    learning: Sequence[Mapping[str, float]]
    best: Mapping[str, Any]


@dataclass(frozen=True)
class Recommended:
    """The recommended configuration, and its error in per cent from fresh seeds; NaN before they ran."""

    method: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    epochs: int
    validation_error: float
    error: float
    sd: float
    seeds: int
    why: str


@dataclass(frozen=True)
class Result:
    """What a comparison shows; `print(result)` writes its sentences.

    Examples
    --------
    >>> def train(trial):
    ...     random = torch.Generator().manual_seed(trial.seed)
    ...     return torch.rand(200, generator=random) < 0.8, torch.rand(500, generator=random) < 0.8
    >>> result = steppe.compare(train, space={"lr": 0.1, "epochs": 2}, tuning=4, trials=8, progress=False)
    >>> result.state, result.recommended.method
    ('decided', 'none')

    """

    methods: Sequence[str]
    """the methods, the reference first"""
    state: str
    """decided; stopped, where the budget ended before; or open"""
    tuning: int
    """trials of tuning that the claim is about"""
    trials: int
    """trials per method at most"""
    axis: str
    """equal passes or equal epochs"""
    space: Mapping[str, str]
    """the laws of all settings, in words"""
    test_rows: int
    """number of test rows"""
    validation_rows: int
    """number of validation rows"""
    seconds: float
    """time of all trials together"""
    contrasts: Sequence[Answer]
    """the answer for each contender"""
    rows: Sequence[Row]
    """errors, curves and cost of each method"""
    recommended: Recommended | None
    """a configuration, which is a decision and not a claim; None before the verdicts"""
    caveats: Sequence[str]
    """what the answers hold for, and what disturbs them"""
    yaml: str = ""
    """the recommended configuration for `steppe train`"""
    python: str = ""
    """the same as lines of Python"""
    folder: str = ""
    """the folder of the record"""
    task: Mapping[str, Any] = field(default_factory=dict)
    """what was trained"""

    @cached_property
    def sentences(self) -> list[str]:
        """The answers, the recommendation, and what they hold for."""
        found = [a.sentence for a in self.contrasts] or ["No look yet: resume it."]
        if self.state == "stopped":
            found.append("The budget ended before this was decided; resume continues.")
        if (r := self.recommended) is not None:
            settings = ", ".join(f"{k}={_short(v)}" for k, v in {**r.settings, **r.options, EPOCHS: r.epochs}.items())
            error = f": {r.error:.1f} % test error over {r.seeds} fresh seeds" if isfinite(r.error) else ""
            found.append(f"Recommended: {r.method} with {settings}{error} ({r.why}).")
        return [*found, *self.caveats]

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        heads = ("method", "error, one trial %", f"error, best of {self.tuning} %", "trials", "failed")
        cells = [(r.method, f"{r.untuned:.2f}", f"{r.tuned:.2f}", r.trials, r.failed) for r in self.rows]
        table = "".join(f"<tr>{''.join(f'<td>{escape(str(c))}</td>' for c in row)}</tr>" for row in cells)
        head = "".join(f"<th>{escape(h)}</th>" for h in heads)
        return f"{''.join(f'<p>{escape(s)}</p>' for s in self.sentences)}<table><tr>{head}</tr>{table}</table>"

    def to_dict(self) -> dict[str, Any]:
        """Return the result in JSON's types, with its sentences."""
        values: dict[str, Any] = json_safe({**asdict(self), "sentences": self.sentences}, str)
        return values

    def figure(self) -> Figure:
        """Return the differences, the tuning curves and the learning curves as a figure of plotly."""
        from plotly.graph_objects import Figure

        from .page import figure_of

        return Figure(figure_of(self))

    def write_page(self, path: str | Path) -> Path:
        """Write the page: one HTML file that requests nothing."""
        from .page import write

        return write(self, Path(path))


def result_of(
    current: Comparison, folder: Path | None = None, spent: bool = False, history: Sequence[str] = ()
) -> Result:
    """Return the result of a comparison as far as it is: a function of its record."""
    design, seconds = current.design, sum(done.seconds for done in current.done.values())
    answers = [_answer(current, c) for c in current.contrasts.values()]
    rows = [_row(current, m) for m in design.methods if len(current.outcomes(m)) > design.tuning]
    decided = bool(current.most) and not current.undecided
    recommended = _recommended(current) if decided and finalists(current) else None
    yaml, python = ("", "") if recommended is None else _snippets(design, recommended)
    first = next((done for done in current.done.values() if not done.failed), None)
    return Result(
        design.methods,
        "decided" if decided else "stopped" if spent else "open",
        design.tuning,
        current.most,
        design.axis,
        {name: _law(law) for name, law in _laws(design).items()},
        current.rows,
        int(first.validation.partition(":")[0]) if first is not None else 0,
        seconds,
        answers,
        rows,
        recommended,
        [*_caveats(current, rows), *history],
        yaml,
        python,
        "" if folder is None else str(folder),
        design.task,
    )


def words_of(time: float) -> str:
    """Return a time in words, such as 5.1 h."""
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if time >= 1.5 * size:
            return f"{time / size:.1f} {unit}"
    return f"{time:.0f} s"


def _answer(current: Comparison, c: Contrast) -> Answer:
    design, d = current.design, c.difference
    level = design.alpha / max(len(design.families[0]) - 1, 1)
    needed = trials_for(d, c.worth, level) if d.points > 0 else float(d.trials)
    pair = (c.method, design.reference)
    times = [done.seconds for (kind, m, *_), done in current.done.items() if kind == "trial" and m in pair]
    limit = (quantile(LARGE, level / 2) + quantile(LARGE, 0.2)) * sqrt(d.rows)
    answer = Answer(
        c.method, c.verdict, c.why, 100 * d.value, 100 * c.low, 100 * c.high, 100 * c.worth, c.level, d.p, d.trials,
        100 * detectable(d, d.trials, level), needed, 2 * needed * fmean(times), 100 * limit, list(c.edges), "",
    )  # fmt: skip
    return replace(answer, sentence=_sentence(current, answer))


def _sentence(current: Comparison, a: Answer) -> str:
    """The sentence of an answer; its numbers are the answer's."""
    design = current.design
    reference = PLAIN if design.reference == "none" else design.reference
    equal = "at equal passes"
    if design.axis == "epochs":
        equal = f"at equal epochs (at {design.passes(a.method) / design.passes(design.reference):.3g} times the cost)"
    count = len(design.methods) - 1
    effort = f"each with {design.tuning} trials of tuning; {a.trials} trials, {count} contender{'s' * (count > 1)}"
    worth, shows, difference = (_points(a, x) for x in (a.worth, a.detectable, abs(a.difference)))
    ends = f"{_points(a, a.low, '+')} to {_points(a, a.high, '+')}"
    known = f"{a.method} against {reference}: {_points(a, a.difference, '+')} points ({ends}) {equal}"
    edges = f"the selected trials lie at the edge of {', '.join(a.edges)}"
    at_edge = edges if a.edges else ""
    low, high = (_points(a, x) for x in sorted((abs(a.low), abs(a.high))))
    longer = f"; deciding {worth} takes about {a.needed:.0f} ({words_of(a.needed_seconds)})"
    failed = " and ".join(m for m in (design.reference, a.method) if current.outcomes(m).all_failed)
    found = {
        "better": f"{a.method} is better than {reference} {equal}, by {difference} points ({low} to {high}), {effort}.",
        "worse": f"{a.method} is worse than {reference} {equal}, by {difference} points ({low} to {high}), {effort}.",
        "no difference": f"{a.method} and {reference} differ by less than {worth} points ({ends}) {equal}, {effort}.",
        "cannot tell": f"Cannot tell whether {a.method} is better than {reference} (search space): {edges}. Widen it.",
        "failed": f"Cannot tell: {failed} failed in all {a.trials} trials. Give a space with lower learning rates.",
        "open": f"Not decided yet: {known}, after {a.trials} of {current.most} trials{'; ' * bool(a.edges)}{at_edge}.",
        "described": f"Described only: {known}. {a.method} came when the level was used: a new comparison decides it.",
        "rows": f"Undecided, and more training cannot decide it: {known}. These {current.rows} test rows show "
        f"{_points(a, a.row_limit)} at best, and {worth} would be worth a change.",
        "undecided": f"Undecided: {known}, {effort}. This many trials show {shows}"
        f"{longer if a.trials < a.needed < inf else ''}.",
    }
    if a.verdict == "undecided":
        return found["rows" if a.why == "rows" else "undecided" if a.level else "described"]
    return found["failed" if a.why == "failed" else a.verdict]


def _points(a: Answer, x: float, sign: str = "") -> str:
    """Write a difference with as many decimals as `worth` needs, and with a minus sign."""
    return f"{x + 0.0:{sign}.{1 if a.worth >= 0.1 else 2}f}".replace("-", "\u2212") if isfinite(x) else "any"


def _row(current: Comparison, method: str) -> Row:
    design, outcomes = current.design, current.outcomes(method)
    trials = [current.done["trial", method, i, 0] for i in range(len(outcomes))]
    points = [
        (e.tuning, 100 * e.value, 100 * (e.value - e.half_width(0.05)), 100 * (e.value + e.half_width(0.05)))
        for e in curve(outcomes)
    ]
    chosen = int(np.argmin(outcomes.validation))
    trial = design.trial(method, chosen)
    return Row(
        method,
        len(outcomes),
        sum(bool(done.failed) for done in trials),
        design.passes(method),
        fmean([done.passes for done in trials if done.passes] or [0.0]),
        fmean(done.seconds for done in trials),
        points[0][1],
        100 * estimate(outcomes, None, design.tuning).value,
        points[-1][1],
        points,
        trials[chosen].curve,
        {**trial.settings, **trial.options},
    )


def _recommended(current: Comparison) -> Recommended:
    chosen = choice(current)
    trial = current.design.trial(chosen.method, chosen.index)
    keys = [("fresh", chosen.method, chosen.index, k) for k in range(REPEATS["fresh"])]
    errors = [100 * (1 - float(d.rows.mean())) if not d.failed else 100.0 for k in keys if (d := current.done.get(k))]
    settings = {k: v for k, v in trial.settings.items() if k != EPOCHS}
    error, sd = (fmean(errors), float(np.std(errors, ddof=1)) if len(errors) > 1 else inf) if errors else (inf, inf)
    return Recommended(
        chosen.method,
        settings,
        trial.options,
        trial.epochs,
        100 * chosen.validation,
        error,
        sd,
        len(errors),
        chosen.why,
    )


def _caveats(current: Comparison, rows: Sequence[Row]) -> list[str]:
    design = current.design
    space = "; ".join(f"{name} {_law(law)}" for name, law in _laws(design).items())
    found = [f"Space: {space}. Differences are in points of test error; intervals hold for all looks and contenders."]
    for row in rows:
        if row.failed:
            found.append(f"{row.method}: {row.failed} of {row.trials} trials failed, and count as wrong on every row.")
        reference = rows[0].counted
        if row.counted and reference and abs(row.counted / reference / row.passes * rows[0].passes - 1) > OFF:
            found.append(
                f"{row.method} took {row.counted / reference:.2f} times the passes of {rows[0].method} per step, and "
                f"{row.passes:.2f} were planned: the cost is not equal."
            )
        trials = [design.trial(row.method, i) for i in range(row.trials)]
        cost = sum(t.epochs * t.passes for t in trials) / sum(t[EPOCHS] for t in trials)
        if design.axis == "passes" and abs(cost - 1) > OFF:
            found.append(f"{row.method} has {cost:.2f} times the passes: choose epochs that {row.passes:g} divides.")
        laws, shared = design.own.get(row.method, {}), len(design.space)
        quantiles = np.array([design.quantiles(i)[shared : shared + len(laws)] for i in range(row.trials)])
        edges = at_border(current.outcomes(row.method).validation, quantiles, laws, design.tuning)
        found += [f"{row.method} is selected at the edge of its own space: {', '.join(edges)}."] if edges else []
    return found


def before(error: float, rows: int, worth: float | None) -> tuple[float, float, str]:
    """Return what test rows can show at best, in points for methods that differ little and much, and a sentence."""
    low, high = (100 * row_floor(error, rows, share) for share in (0.1, 0.5))
    text = f"These {rows} test rows can show {low:.1f} to {high:.1f} points at best, at an error of {100 * error:.0f} %"
    if worth is not None and low > worth:
        text += f': "no difference" within {worth:g} points is out of reach; give more test rows, or a larger --worth'
    return low, high, text + "."


def _snippets(design: Design, r: Recommended) -> tuple[str, str]:
    """The recommended configuration as YAML for `steppe train`, and in Python."""
    import json

    fixed = {k: v for k, v in design.task.items() if k != "train"}
    options = {k: v for k, v in r.options.items() if k != "rho"}
    values: dict[str, Any] = {**fixed, "method": r.method, **r.settings, EPOCHS: r.epochs}
    values |= {"rho": r.options["rho"]} if "rho" in r.options else {}
    values |= {"method_options": options} if options else {}
    yaml = "".join(f"{k}: {json.dumps(_number(v))}\n" for k, v in values.items())
    base = {k: v for k, v in r.settings.items() if k in ("lr", "momentum", "weight_decay")}
    words = ", ".join(f"{k}={_short(v)}" for k, v in base.items())
    more = "".join(f", {k}={_short(v)}" for k, v in r.options.items())
    python = (
        f"import steppe\nbase = torch.optim.SGD(model.parameters(), {words})\n"
        f'opt = steppe.build("{r.method}", base, model=model{more})\n'
        f"for epoch in range({r.epochs}):\n    ...  # opt.step(closure) for every batch\n"
    )
    return yaml, python


def _laws(design: Design) -> dict[str, Any]:
    return {**design.space, **{f"{m}.{k}": law for m, laws in design.own.items() for k, law in laws.items()}}


def _law(law: Any) -> str:
    if isinstance(law, Choice):
        return " or ".join(map(_short, law.values))
    assert isinstance(law, LogUniform | Uniform)
    return f"{law.low:g} to {law.high:g}" + (" (log)" if isinstance(law, LogUniform) else "")


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _number(value: Any) -> Any:
    return float(f"{value:.6g}") if isinstance(value, float) else value
