"""Runs a comparison: the trials that its next look needs, until it is decided or its budget is spent."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import Any

from .._util.files import FolderLocked, lock_folder
from .._util.terminal import complain
from .design import EPOCHS, TUNING, Axis, Design, Kind, Trial, divided
from .functions import Execute, in_process
from .progress import SPARE, Shown, affordable, needed, pace
from .recommend import REPEATS, choice, finalists
from .result import BUDGET, Result, result_of
from .sentences import words_of
from .store import NAME, Comparison, Record, missing

PILOTS = 2  # trials of each method, which show whether the budget is enough for the first look
DEFAULT = 6  # N_max in units of T without a budget


def compare(
    train: Callable[[Trial], Any],
    methods: Sequence[str] = ("none", "sam"),
    space: Mapping[str, Any] | None = None,
    budget: str | float | None = None,
    *,
    fix: Mapping[str, Any] | None = None,
    tuning: int = TUNING,
    trials: int | None = None,
    worth: float | None = None,
    once: bool = False,
    halving: bool = False,
    axis: Axis = "passes",
    seed: int = 0,
    points: Sequence[Mapping[str, Any]] = (),
    out: Path | str | None = None,
    progress: bool | None = None,
) -> Result:
    """Compare methods at equal cost and with equal tuning, and stop when the answer is clear.

    Parameters
    ----------
    train
        `train(trial)` trains a model with `trial.optimizer(model)`, from `trial.seed`, for `trial.epochs` epochs, and
        returns two arrays of true and false: which validation and which test samples the model classifies correctly.
        A trial that raises FloatingPointError fails, and counts as wrong on every sample.
    methods
        Names of `steppe.METHODS`; the first is the reference.
    space
        Laws of the settings: `{"lr": steppe.LogUniform(1e-3, 1e0), "epochs": 30}`. A method's radius spans two decades
        around its default unless the space has `rho`, or `sam.rho`.
    budget
        Such as "2h", or seconds. With the time of the first trials, it sets the largest number of trials.
    fix
        Settings with one value, such as those of a tuned baseline.
    tuning
        The trials of tuning that the claim is about.
    trials
        The most trials per method; by default six times `tuning`, or what the budget allows.
    worth
        The smallest difference that would change the choice, in points; by default 5 % of the reference's error.
    once
        One look at the end instead of several on the way.
    halving
        Stop a method's later trials after a third of their epochs if they are behind the better half of its first:
        `train` calls `trial.report(validation_error, epoch)` and ends where `trial.should_prune()`.
    axis
        Equal passes, or equal epochs: with those, most methods cost more. Equal seconds are for `steppe compare`, which
        measures them.
    seed
        The seed of the comparison; points and seeds of trials follow from it.
    points
        Settings of the trials, such as those that Optuna tried, for all methods alike. Points that were chosen by
        earlier results are not independent, so there is no verdict: the comparison is descriptive.
    out
        A folder for the record: a comparison that was killed resumes there. By default it stays in memory.
    progress
        Show progress; by default where stderr is a terminal.

    Examples
    --------
    >>> x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    >>> y = (x[:, 0] > 0).long()
    >>> def train(trial):
    ...     torch.manual_seed(trial.seed)
    ...     model = nn.Linear(4, 2)
    ...     opt = trial.optimizer(model)
    ...     for _ in range(trial.epochs):
    ...         opt.step(lambda pass_: pass_.backward(nn.functional.cross_entropy(model(x[:100]), y[:100])))
    ...     right = model(x).argmax(1) == y
    ...     return right[100:200], right[200:]
    >>> space = {"lr": steppe.LogUniform(1e-1, 1e0), "epochs": 8}
    >>> result = steppe.compare(train, ["none", "sam"], space, tuning=4, trials=8, worth=40, progress=False)
    >>> result.contrasts[0].verdict  # they do not differ by 40 points
    'no difference'

    """
    shared, own = divided(methods, space or {}, fix)
    if EPOCHS not in shared:
        raise ValueError('the space has no epochs: add {"epochs": 30}; methods of more passes have fewer')
    if axis == "seconds":
        raise ValueError("equal seconds are measured by the command `steppe compare`; give axis passes or epochs")
    if not callable(train):
        raise TypeError(f"train is {train!r}: give a function that takes a trial and returns which rows are correct")
    design = Design(
        (tuple(methods),), shared, own, tuning, len(points) or Design.most_of(trials),
        None if worth is None else worth / 100, 0.0 if points else 0.05, once or bool(points), seed, axis,
        halving=halving, points=points, task={"train": _name(train)},
    )  # fmt: skip
    return run(design, in_process(train), out, seconds(budget), progress)


def run(
    design: Design,
    execute: Execute,
    out: Path | str | None,
    budget: float | None = None,
    progress: bool | None = None,
    workers: int = 1,
    stopped: Callable[[], str] = str,
    watch: Callable[[Comparison], object] = lambda current: None,
    start: Mapping[str, Any] | None = None,
) -> Result:
    """Run a comparison of this design in a folder, from where it stands, and return its result.

    `stopped` returns the name of a signal that asks to stop, or an empty text; `watch` is called after every trial;
    `start` is noted in the record.
    """
    started, folder, why = monotonic(), None if out is None else Path(out), ""
    with ExitStack() as stack:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(lock_folder(folder, "comparison"))
            except FolderLocked as owner:
                raise RuntimeError(f"{folder} is being compared in by {owner}: wait, or choose another out") from None
        record = Record(None if folder is None else folder / NAME)
        if changed := record.begin(design):
            complain(f"steppe compare: {changed}")
        record.start(start or {})
        shown = stack.enter_context(Shown(progress, workers))
        timed = bool(_current(record).most)
        while not why:
            current = _current(record)
            if not current.most and budget is None:
                record.plan(DEFAULT * design.tuning)
                continue
            if not current.most and budget is not None and not missing(current, design.methods, design.first):
                # from times alone, before the first look: its outcome has no part in N_max
                left = budget - (monotonic() - started)
                record.plan(affordable(design, left, pace(current), workers, current.done) or design.first)
                continue
            if not (todo := next_trials(current)):
                break
            outcomes = execute(todo)
            try:
                for trial, done in outcomes:
                    record.add(trial, done)
                    now = _current(record)
                    shown.update(now)
                    watch(now)
                    if budget is not None and not missing(now, design.methods, PILOTS):
                        if not timed:
                            _check(now, budget, monotonic() - started, workers)
                        timed = True
                        why = BUDGET if monotonic() - started > budget else ""
                    if why := stopped() or why:
                        break
            finally:
                outcomes.close()
            why = why or stopped()
        return result_of(_current(record), folder, why, [c.why for c in record.comparisons if c.why])


def next_trials(current: Comparison) -> list[Trial]:
    """Return the trials that are missing for the next step: the next look, and then the recommendation."""
    design = current.design
    if not current.most:
        return missing(current, design.methods, design.first)
    if undecided := current.undecided:
        looked = {m: current.contrasts[m].difference.trials if m in current.contrasts else 0 for m in undecided}
        looks = design.with_most(current.most).looks
        ahead = {m: next(look for look in looks if look > n) for m, n in looked.items()}
        n = min(ahead.values())
        methods = [design.reference, *(m for m in undecided if ahead[m] == n)]
        # the first trials of a method determine where halving stops the later ones
        return (missing(current, methods, design.first) if design.halving else []) or missing(current, methods, n)
    best = finalists(current)
    if again := _repeats(current, "again", best):
        return again
    return _repeats(current, "fresh", [(choice(current).method, choice(current).index)] if best else [])


def _repeats(current: Comparison, kind: Kind, configurations: Sequence[tuple[str, int]]) -> list[Trial]:
    """Further seeds of configurations that are missing."""
    trials = (current.design.trial(m, i, kind, k) for m, i in configurations for k in range(REPEATS[kind]))
    return [trial for trial in trials if trial.key not in current.done]


def seconds(budget: str | float | None) -> float | None:
    """Return a time such as 90, "90s", "10m", "2h" or "1h30m" in seconds.

    Examples
    --------
    >>> from steppe.comparison.run import seconds
    >>> seconds("1h30m")
    5400.0

    """
    if budget is None or isinstance(budget, int | float):
        found = budget
    else:
        units = {"d": 86400, "h": 3600, "m": 60, "s": 1, "": 1}
        parts = re.fullmatch(r"(?:(\d+(?:\.\d+)?)\s*([dhms]?)\s*)+", budget.strip())
        pairs = re.findall(r"(\d+(?:\.\d+)?)\s*([dhms]?)", budget) if parts else []
        found = sum(float(n) * units[u] for n, u in pairs) if pairs else 0.0
    if found is not None and not found > 0:
        raise ValueError(f"a budget is a time such as 10m, 2h or 1h30m, not {budget!r}")
    return None if found is None else float(found)


def _current(record: Record) -> Comparison:
    assert record.current is not None
    return record.current


def _check(current: Comparison, budget: float, spent: float, workers: int) -> None:
    """Raise ValueError if the first look is out of the budget's reach, by the time of the first trials."""
    design = current.design
    need = spent + needed(design, design.first, pace(current), workers, current.done)
    if need > SPARE * budget:
        raise ValueError(
            f"a budget of {words_of(budget)} is enough for {int(budget / need * design.first)} trials of each method, "
            f"and the first look needs {design.first} ({words_of(need)} here): raise the budget, compare fewer "
            "methods, or tune less"
        )


def _name(train: Callable[..., Any]) -> str:
    """The name of a function and a digest of its text: with other code, trials are others."""
    try:
        text = sha256(inspect.getsource(train).encode()).hexdigest()[:12]
    except (OSError, TypeError):
        text = "without source"
    return f"{getattr(train, '__qualname__', type(train).__qualname__)} ({text})"
