"""What `steppe compare` prints: what a budget can show, how far a comparison is, and its answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .output import Output, table

if TYPE_CHECKING:
    from ..comparison.design import Design
    from ..comparison.result import Result
    from ..comparison.runs import Probe
    from ..comparison.store import Comparison


def plan_of(
    design: Design,
    rows: Mapping[str, int],
    probed: Probe | None,
    budget: float | None,
    workers: int,
    folder: Path,
    error: float,
) -> Output:
    """What a comparison would take and what its test rows can show, before it starts."""
    from ..comparison.progress import needed
    from ..comparison.result import law_words, laws_of
    from ..comparison.sentences import words_of
    from ..comparison.sequential import LOOKS
    from ..core.floor import before

    space = {name: law_words(law) for name, law in laws_of(design).items()}
    what = str(design.task["train"]) if "train" in design.task else f"{design.task['model']} on {design.task['data']}"
    tuned = "one trial" if design.tuning == 1 else f"{design.tuning} trials"
    shown: list[Any] = [
        f"{' or '.join(design.methods[1:])}, or {design.methods[0]}? {what}, at equal {design.axis}, each with {tuned} "
        f"of tuning; space: {'; '.join(f'{name} {law}' for name, law in space.items())}."
    ]
    data: dict[str, Any] = {
        "out": folder, "methods": design.methods, "axis": design.axis, "tuning": design.tuning, "space": space,
        "task": design.task, "rows": dict(rows), "workers": workers, "looks": [], "budget": budget,
    }  # fmt: skip
    if rows:
        worth = None if design.worth is None else 100 * design.worth
        low, high, sentence = before(error, rows["test"], worth)
        data |= {"row_floor": [low, high], "row_floor_at_error": 100 * error}
        counts = ", ".join(f"{n:,} {name}" for name, n in rows.items())
        shown.append(f"{counts} rows. {sentence}")
    plans = [n * design.tuning for n in LOOKS] if not design.most else list(design.with_most(design.most).looks)
    if probed is not None:
        times = [needed(design, n, probed.seconds, workers) for n in plans]
        data["looks"] = [{"trials": n, "seconds": t} for n, t in zip(plans, times, strict=True)]
        heads = ("trials per method, at most", *map(str, plans))
        cells = [
            ("runs", *(n * len(design.methods) for n in plans)),
            ("time on this machine", *map(words_of, times)),
        ]
        shown += [table(heads, cells, right=heads[1:]), ""]
        shown.append(_promise(data, design, probed, budget, workers, times[-1]))
    shown.append(f"The record and the page: {folder}")
    return Output(data, shown)


def _promise(
    data: dict[str, Any], design: Design, probed: Probe, budget: float | None, workers: int, longest: float
) -> str:
    """What the budget is enough for, in a sentence; the number of trials goes to the data."""
    from ..comparison.progress import affordable
    from ..comparison.run import DEFAULT
    from ..comparison.sentences import words_of

    able = DEFAULT * design.tuning if budget is None else affordable(design, budget, probed.seconds, workers)
    data["most"] = most = design.most or able
    alone = f", {workers} runs at a time" if workers > 1 else ""
    if budget is None:
        return f"It ends after {most} trials of each method at most, and as soon as it is decided."
    if not able:
        return (
            f"{words_of(budget)} does not reach the first look{alone}: raise --budget, compare fewer methods, lower "
            "--tuning, or --fix epochs."
        )
    if design.most:
        return f"{words_of(budget)} is {'enough' if longest <= budget else 'less than it may take: resume continues'}."
    return (
        f"{words_of(budget)} is enough for about {most} trials of each method{alone}. The number is fixed before the "
        "first look, by the time that the trials took. The comparison stops as soon as it is decided."
    )


def state_of(current: Comparison, result: Result) -> Output:
    """How far a comparison is."""
    from ..comparison.progress import time_left
    from ..comparison.sentences import words_of

    design = current.design
    counts = {m: len(current.outcomes(m)) for m in design.methods}
    at_once = current.start.get("at_once", 1)
    left = time_left(current, at_once)
    looks = design.with_most(current.most).looks if current.most else ()
    done = max((a.trials for a in result.contrasts), default=0)
    shown: list[Any] = [
        f"{result.folder}: {result.state}, {', '.join(f'{n} trials of {m}' for m, n in counts.items())}"
        + (f", at most {current.most} each; looks at {', '.join(map(str, looks))}" if looks else "")
    ]
    if current.undecided:
        shown.append(f"{words_of(left)} {'at most' if current.most else 'to the first look'}, {at_once} at a time.")
    shown += [a.sentence for a in result.contrasts]
    data = {"folder": result.folder, "state": result.state, "trials": counts, "most": current.most}
    data |= {"looks": list(looks), "last_look": done, "seconds_left": left}
    data |= {"verdicts": {a.method: a.verdict for a in result.contrasts}}
    return Output(data, shown)


def answer(result: Result, files: Sequence[Path]) -> Output:
    """The sentences and tables of a result."""
    from ..comparison.sentences import table_of

    shown: list[Any] = []
    for text in result.sentences[: len(result.sentences) - len(result.caveats)]:
        shown += [text, ""]
    if result.rows:
        heads, cells = table_of(result)
        shown += [table(heads, cells, right=heads[1:]), ""]
    shown += [f"- {text}" for text in result.caveats]
    shown += ["", *(f"{'The page' if f.suffix == '.html' else 'For steppe train --config'}: {f}" for f in files)]
    if result.recommended is not None and (runs := Path(result.folder, "runs")).is_dir():
        shown.append(f"The runs of the recommended configuration, with their weights: {runs}")
    return Output(result.to_dict() | {"files": list(files)}, shown)
