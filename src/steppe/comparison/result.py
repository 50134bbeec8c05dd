"""The result of a comparison: one frozen object, from which terminal, JSON and page take every number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from html import escape
from math import inf, sqrt
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from .._util.formats import json_safe
from ..core.laws import Choice, Integers, LogUniform, Uniform
from .border import at_border
from .design import EPOCHS, Design
from .recommend import REPEATS, choice, finalists, snippets
from .sentences import caveats_of, recommendation, sentence_of
from .sequential import ORDINARY, Contrast
from .statistics import LARGE, Estimated, Outcomes, curve, detectable, estimate, quantile, trials_for, weights
from .store import Comparison, Done

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

BUDGET = "budget"
PLANNED = (24, 48, 96)  # trials of which the detectable difference is stated


@dataclass(frozen=True)
class Answer:
    """One contender against the reference. Differences are in points (per cent of test rows); below 0 is better.

    `low` to `high` is the repeated confidence interval at `level`, valid at this look although there were others;
    `inner_low` to `inner_high` is the narrower one of two one-sided tests, which "no difference" has within `worth`.
    `detectable` is the difference that this many trials show with a power of 80 %; `needed` trials would show `worth`,
    in `needed_seconds` on the same machine. `forecast` has, for numbers of trials, the difference that they would show
    and the seconds that they would take.
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
    inner_low: float
    inner_high: float
    forecast: Sequence[tuple[int, float, float]] = ()
    sentence: str = ""


@dataclass(frozen=True)
class Reached:
    """How often the selected run reaches the target, and when; infinite where fewer than half of the tunings do.

    Seconds are infinite too where runs shared the machine.
    """

    share: float
    share_low: float
    share_high: float
    passes: float
    passes_low: float
    passes_high: float
    seconds: float


@dataclass(frozen=True)
class Row:
    """One method: the error in per cent of the run that validation selects among T trials, and its cost.

    `curve` has the same for 1 to N / 2 trials of tuning, with the ends of its 95 % interval.
    `passes` per step were planned and `counted` ones ran; `stopped` trials ended at the rung of halving; `share` is the
    cost of its runs in that of the reference's.
    `edges` are own settings at the edge of their space. `measures` are means over selected runs, with the ends of their
    95 % intervals.
    """

    method: str
    trials: int
    failed: int
    passes: float
    counted: float
    seconds: float
    tuned: float
    curve: Sequence[tuple[int, float, float, float]]
    learning: Sequence[Mapping[str, float]]
    best: Mapping[str, Any]
    share: float = 1.0
    stopped: int = 0
    edges: Sequence[str] = ()
    reached: Reached | None = None
    measures: Mapping[str, tuple[float, float, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Recommended:
    """The recommended configuration, and its error in per cent from fresh seeds; NaN before they ran."""

    method: str
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    epochs: int
    error: float
    sd: float
    seeds: int
    why: str


@dataclass(frozen=True)
class Result:
    """The answer of a comparison; `print(result)` writes its sentences.

    Parameters
    ----------
    methods
        The methods, the reference first.
    state
        Decided; stopped, where the budget ended before; or open.
    tuning
        Trials of tuning that the claim is about.
    trials
        Trials per method at most.
    axis
        Equal passes or equal epochs.
    space
        The laws of all settings, in words.
    test_rows
        Number of test rows.
    validation_rows
        Number of validation rows.
    seconds
        Time of all trials together.
    contrasts
        The answer for each contender.
    rows
        Errors, curves and cost of each method.
    recommended
        A configuration, which is a decision and not a claim; None before the verdicts.
    caveats
        What the answers hold for, and what disturbs them.
    alone
        Whether runs had the machine to themselves, so that their seconds can be compared.
    points
        Whether the settings of trials are from elsewhere, and not random: such a comparison is descriptive.
    stopped
        Why it stopped before it was decided: budget, or a signal.
    target
        Validation error in per cent whose first passes `Row.reached` has: the reference's at its first look.
    yaml
        The recommended configuration for `steppe train`.
    python
        The same as lines of Python.
    folder
        The folder of the record.
    task
        What was trained.

    Examples
    --------
    >>> def train(trial):  # a real one steps the optimizer for trial.epochs epochs
    ...     opt, random = trial.optimizer(nn.Linear(2, 2)), torch.Generator().manual_seed(trial.seed + trial.epochs)
    ...     return torch.rand(200, generator=random) < 0.8, torch.rand(500, generator=random) < 0.8
    >>> result = steppe.compare(train, space={"lr": 0.1, "epochs": 2}, tuning=4, trials=8, progress=False)
    >>> result.state, result.recommended.method
    ('decided', 'none')

    """

    methods: Sequence[str]
    state: str
    tuning: int
    trials: int
    axis: str
    space: Mapping[str, str]
    test_rows: int
    validation_rows: int
    seconds: float
    contrasts: Sequence[Answer]
    rows: Sequence[Row]
    recommended: Recommended | None
    caveats: Sequence[str]
    alone: bool = True
    points: bool = False
    stopped: str = ""
    target: float = inf
    yaml: str = ""
    python: str = ""
    folder: str = ""
    task: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def sentences(self) -> list[str]:
        """The answers, the recommendation, and what they hold for."""
        found = [a.sentence for a in self.contrasts] or ["No verdict yet: the first look is still ahead."]
        if self.state == "stopped":
            why = "The budget ended" if self.stopped == BUDGET else f"{self.stopped} came"
            found.append(f"{why} before this was decided; resume continues.")
        if self.recommended is not None:
            found.append(recommendation(self.recommended))
        return [*found, *self.caveats]

    def __str__(self) -> str:
        return "\n".join(self.sentences)

    def __repr__(self) -> str:
        """One line, for interactive use."""
        verdicts = [f"{a.method}: {a.verdict}" for a in self.contrasts] or [self.state]
        return f"Result({', '.join(verdicts)}; {self.trials} trials of {len(self.methods)} methods)"

    def _repr_html_(self) -> str:
        heads = ("method", "error, one trial %", f"error, best of {self.tuning} %", "trials", "failed")
        cells = [(r.method, f"{r.curve[0][1]:.2f}", f"{r.tuned:.2f}", r.trials, r.failed) for r in self.rows]
        table = "".join(f"<tr>{''.join(f'<td>{escape(str(c))}</td>' for c in row)}</tr>" for row in cells)
        head = "".join(f"<th>{escape(h)}</th>" for h in heads)
        return f"{''.join(f'<p>{escape(s)}</p>' for s in self.sentences)}<table><tr>{head}</tr>{table}</table>"

    def to_dict(self) -> dict[str, Any]:
        """The result in JSON's types, with its sentences."""
        values: dict[str, Any] = json_safe({**asdict(self), "sentences": self.sentences}, str)
        return values

    def figure(self) -> Figure:
        """The differences, the tuning curves and the learning curves as a figure of plotly."""
        from plotly.graph_objects import Figure

        from .page import figure_of

        return Figure(figure_of(self))

    def write_page(self, path: str | Path) -> Path:
        """Write the page: one HTML file that requests nothing."""
        from .page import write

        return write(self, Path(path))


def result_of(
    current: Comparison, folder: Path | None = None, stopped: str = "", history: Sequence[str] = ()
) -> Result:
    """Return the result of a comparison as far as it is: a function of its record."""
    design, target = current.design, _target(current)
    decided = bool(current.most) and not current.undecided
    stopped = "" if decided else stopped
    recommended = _recommended(current) if decided and finalists(current) else None
    yaml, python = ("", "") if recommended is None else snippets(design, recommended, current.start.get("where", {}))
    found = Result(
        methods=design.methods,
        state="decided" if decided else "stopped" if stopped else "open",
        tuning=design.tuning,
        trials=current.most,
        axis=design.axis,
        space={name: law_words(law) for name, law in laws_of(design).items()},
        test_rows=current.rows,
        validation_rows=current.validation_rows,
        seconds=sum(done.seconds for done in current.done.values()),
        contrasts=[_answer(current, c) for c in current.contrasts.values()],
        rows=[_row(current, m, target) for m in design.methods if len(current.outcomes(m)) > design.tuning],
        recommended=recommended,
        caveats=[],
        alone=current.alone,
        points=bool(design.points),
        stopped=stopped,
        target=100 * target,
        yaml=yaml,
        python=python,
        folder="" if folder is None else str(folder),
        task=design.task,
    )
    answers = [replace(a, sentence=sentence_of(a, found)) for a in found.contrasts]
    return replace(found, contrasts=answers, caveats=[*caveats_of(found), *history])


def _answer(current: Comparison, c: Contrast) -> Answer:
    design, d = current.design, c.difference
    level = design.alpha / max(len(design.families[0]) - 1, 1)
    needed = trials_for(d, c.worth, level) if d.points > 0 else float(d.trials)
    pair = (c.method, design.reference)
    time = 2 * fmean(done.seconds for (kind, m, *_), done in current.done.items() if kind == "trial" and m in pair)
    time /= current.start.get("at_once") or 1
    limit = (quantile(LARGE, level / 2) + quantile(LARGE, 0.2)) * sqrt(d.lasting)
    return Answer(
        c.method, c.verdict, c.why, 100 * d.value, 100 * c.low, 100 * c.high, 100 * c.worth, c.level, d.p, d.trials,
        100 * detectable(d, d.trials, level), needed, needed * time, 100 * limit, list(c.edges), 100 * c.inner_low,
        100 * c.inner_high, [(n, 100 * detectable(d, n, level), n * time) for n in PLANNED if n > d.trials],
    )  # fmt: skip


def _row(current: Comparison, method: str, target: float) -> Row:
    design, outcomes = current.design, current.outcomes(method)
    done = [current.done["trial", method, i, 0] for i in range(len(outcomes))]
    trials = [design.trial(method, i) for i in range(len(done))]
    chosen = int(np.argmin(outcomes.validation))
    laws, shared = design.own.get(method, {}), len(design.space)
    quantiles = np.array([design.quantiles(i)[shared : shared + len(laws)] for i in range(len(done))])
    measures = dict.fromkeys(name for one in done for name in one.measures)
    return Row(
        method=method,
        trials=len(outcomes),
        failed=sum(bool(one.failed) for one in done),
        passes=design.passes(method),
        counted=fmean([one.passes for one in done if one.passes] or [0.0]),
        seconds=fmean(one.seconds for one in done),
        tuned=100 * estimate(outcomes, None, design.tuning).value,
        curve=[_percent(e) for e in curve(outcomes)],
        learning=done[chosen].curve,
        best={**trials[chosen].settings, **trials[chosen].options},
        share=sum(t.epochs * t.cost for t in trials) / sum(t[EPOCHS] for t in trials),
        stopped=sum(one.stopped for one in done),
        edges=[] if design.points else at_border(outcomes.validation, quantiles, laws, design.tuning),
        reached=_reached(outcomes, done, design.tuning, target, current.alone),
        measures={name: _measured(outcomes, done, design.tuning, name) for name in measures},
    )


def _percent(e: Estimated) -> tuple[int, float, float, float]:
    """A point of the tuning curve: trials, error in per cent, and the ends of its 95 % interval."""
    half = e.half_width(ORDINARY)
    low, high = max(e.value - half, 0.0), min(e.value + half, 1.0)
    return e.tuning, 100 * e.value, 100 * low, 100 * high


def _target(current: Comparison) -> float:
    """The validation error of the reference's selected run, fixed at its first look; infinite before."""
    if not current.history:
        return inf
    first = current.design.with_most(current.most).looks[0]
    ranks = current.outcomes(current.design.reference).first(first).validation
    errors = [current.done["trial", current.design.reference, i, 0].validation_error for i in range(first)]
    return float(weights(ranks, current.design.tuning) @ errors)


def _reached(outcomes: Outcomes, done: Sequence[Done], tuning: int, target: float, alone: bool) -> Reached | None:
    """When the selected run first has the target's error: its median inverts the distribution and its interval."""
    if not any(one.curve for one in done) or target == inf:
        return None
    first = [next((p for p in one.curve if p.get("validation_error", inf) <= target), None) for one in done]
    passes, seconds = (np.array([inf if p is None else p[name] for p in first]) for name in ("passes", "seconds"))

    def by(time: float) -> tuple[float, float, float]:
        e = estimate(Outcomes(outcomes.validation, (passes <= time).astype(np.float64)), None, tuning)
        half = e.half_width(ORDINARY)
        return e.value, max(e.value - half, 0.0), min(e.value + half, 1.0)

    times = sorted(set(passes[np.isfinite(passes)]))
    shares = [by(t) for t in times]
    middle, late, early = (next((t for t, s in zip(times, shares, strict=True) if s[k] >= 0.5), inf) for k in range(3))
    then = float(seconds[passes == middle][0]) if middle < inf and alone else inf
    return Reached(*by(LARGE), middle, early, late, then)


def _measured(outcomes: Outcomes, done: Sequence[Done], tuning: int, name: str) -> tuple[float, float, float]:
    """The mean of a measure over selected runs, with its interval; of the trials that have a value."""
    has = np.array([name in one.measures for one in done])
    values = np.array([one.measures[name] for one in done if name in one.measures])
    if has.sum() <= tuning:
        return inf, -inf, inf
    e = estimate(Outcomes(outcomes.validation[has], values), None, tuning)
    return e.value, e.value - e.half_width(ORDINARY), e.value + e.half_width(ORDINARY)


def _recommended(current: Comparison) -> Recommended:
    chosen = choice(current)
    trial = current.design.trial(chosen.method, chosen.index)
    keys = [("fresh", chosen.method, chosen.index, k) for k in range(REPEATS["fresh"])]
    errors = [100 * (1 - float(d.rows.mean())) if d.test else 100.0 for k in keys if (d := current.done.get(k))]
    settings = {k: v for k, v in trial.settings.items() if k != EPOCHS}
    error, sd = (fmean(errors), float(np.std(errors, ddof=1)) if len(errors) > 1 else inf) if errors else (inf, inf)
    return Recommended(chosen.method, settings, trial.options, trial.epochs, error, sd, len(errors), chosen.why)


def laws_of(design: Design) -> dict[str, Any]:
    """Return the laws of all settings by name."""
    return {**design.space, **{f"{m}.{k}": law for m, laws in design.own.items() for k, law in laws.items()}}


def law_words(law: Any) -> str:
    """Return a law in words, such as 0.001 to 1 (log)."""
    if isinstance(law, Choice):
        return " or ".join(f"{v:.3g}" if isinstance(v, float) else str(v) for v in law.values)
    assert isinstance(law, LogUniform | Uniform | Integers)
    return f"{law.low:g} to {law.high:g}" + (" (log)" if isinstance(law, LogUniform) else "")
