"""The record of a comparison: one file of lines, to which trials are appended; all decisions are functions of it.

A line is a design, how it was started, N_max as found from the budget, or a trial with one bit per validation and test
row. A line that a kill left incomplete is dropped. After the first look the methods may only grow; any other change
begins a new comparison in the same file, with points of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from .._util import files
from .._util.digests import packed_bits, unpacked_bits
from .._util.formats import json_safe
from .border import at_border
from .design import Design, Key, Trial
from .halving import Halved, limit, rung_of
from .sequential import Contrast, decide
from .statistics import Outcomes

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

NAME = "comparison.jsonl"


@dataclass(frozen=True)
class Done:
    """The outcome of a trial: which rows are classified correctly, or why it failed; what it cost; its curve.

    The rows of a failed trial are those of a constant prediction, or none where the labels are unknown.
    `curve` has the validation error after some passes and seconds; `rung` is the one at the rung of halving, where the
    trial may have `stopped`; `measures` are of its last weights.
    """

    validation: str = ""
    test: str = ""
    failed: str = ""
    seconds: float = 0.0
    passes: float = 0.0
    curve: Sequence[Mapping[str, float]] = ()
    rung: float | None = None
    stopped: bool = False
    measures: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, validation: ArrayLike, test: ArrayLike, **more: Any) -> Done:
        """Return the outcome with these rows correct."""
        return cls(packed_bits(validation), packed_bits(test), **more)

    @cached_property
    def rows(self) -> NDArray[np.bool_]:
        """Whether each test row is classified correctly."""
        return unpacked_bits(self.test)

    @cached_property
    def validation_rows(self) -> NDArray[np.bool_]:
        """Whether each validation row is classified correctly."""
        return unpacked_bits(self.validation)

    @property
    def validation_error(self) -> float:
        """The error on validation rows; 1 for a failure without rows: it counts as wrong everywhere."""
        return 1 - float(self.validation_rows.mean()) if self.validation else 1.0


@dataclass(frozen=True)
class Comparison:
    """One comparison of a record: its design, N_max if it is known, its trials."""

    design: Design
    most: int = 0
    done: Mapping[Key, Done] = field(default_factory=dict)
    why: str = ""  # it replaces an earlier one
    start: Mapping[str, Any] = field(default_factory=dict)  # how it was last started: budget, workers and so on

    @cached_property
    def _outcomes(self) -> dict[str, Outcomes]:
        return {m: self._read(m) for m in self.design.methods}

    def outcomes(self, method: str) -> Outcomes:
        """The outcomes of the first trials of a method, as far as there is none missing."""
        return self._outcomes[method]

    def _read(self, method: str) -> Outcomes:
        found = list[Done]()
        while (key := ("trial", method, len(found), 0)) in self.done:
            found.append(self.done[key])
        wrong = np.ones((len(found), self.rows or 2), dtype=bool)
        for k, one in enumerate(found):
            if one.test:
                wrong[k] = ~one.rows
        validation = np.array([one.validation_error for one in found])
        failed, halved = np.array([bool(one.failed) for one in found], dtype=bool), None
        if self.design.halving and found:
            rung = np.array([1.0 if one.rung is None else one.rung for one in found])
            halved = Halved(validation, rung, self.design.first)
            validation = halved.ranked()
        return Outcomes(validation, wrong.mean(1), wrong, failed, halved)

    def limit(self, method: str) -> float:
        """The error at the rung above which the later trials of a method stop; infinite before its first look."""
        halved = self.outcomes(method).halved
        if halved is None or len(halved.rung) < halved.first:
            return inf
        return limit(halved.rung[: halved.first])

    @cached_property
    def rows(self) -> int:
        """The number of test rows; 0 before the first trial."""
        return next((len(one.rows) for one in self.done.values() if one.test), 0)

    @cached_property
    def validation_rows(self) -> int:
        """The number of validation rows; 0 before the first trial."""
        return next((len(one.validation_rows) for one in self.done.values() if one.validation), 0)

    def edges(self, method: str, n: int) -> list[str]:
        """Return the shared settings whose edge has much of the tuning weight of a method's first n trials."""
        if self.design.points:
            return []
        quantiles = np.array([self.design.quantiles(i) for i in range(n)])
        return at_border(self.outcomes(method).validation[:n], quantiles, self.design.space, self.design.tuning)

    @cached_property
    def history(self) -> list[dict[str, Contrast]]:
        """The contrasts at each look so far, of all families together: a function of the trials alone."""
        if not self.most:
            return []
        found: list[list[dict[str, Contrast]]] = []
        alpha = self.design.alpha
        for k, family in enumerate(self.design.families):
            members = [*([] if k == 0 else [self.design.reference]), *family]
            rules = replace(self.design.with_most(self.most), alpha=alpha)
            found.append(decide({m: self.outcomes(m) for m in members}, rules, self.edges))
            last = found[-1][-1] if found[-1] else {}
            alpha = alpha if last and all(c.verdict in ("better", "worse") for c in last.values()) else 0.0
        looks = max(map(len, found))
        return [{m: c for one in found if one for m, c in one[min(k, len(one) - 1)].items()} for k in range(looks)]

    @property
    def alone(self) -> bool:
        """Whether one run was computed at a time."""
        return bool(self.start.get("at_once", self.start.get("workers", 1)) == 1)

    @property
    def contrasts(self) -> Mapping[str, Contrast]:
        """The last contrast of each contender that has had a look."""
        return self.history[-1] if self.history else {}

    @property
    def undecided(self) -> list[str]:
        """The contenders that need further trials."""
        return [m for m in self.design.methods[1:] if m not in self.contrasts or self.contrasts[m].verdict == "open"]


def missing(current: Comparison, methods: Sequence[str], n: int) -> list[Trial]:
    """Return the trials that these methods lack among their first n."""
    return [
        replace(current.design.trial(m, i), limit=current.limit(m) if i >= current.design.first else inf)
        for i in range(n)
        for m in methods
        if ("trial", m, i, 0) not in current.done
    ]


class Record:
    """The file of a comparison, and what it says; without a path, in memory only.

    Examples
    --------
    >>> from steppe.comparison.store import Record
    >>> Record(None).current is None
    True

    """

    def __init__(self, path: Path | None):
        self.path = path
        self.comparisons: list[Comparison] = []
        self._whole = 0  # bytes of complete lines
        if path is not None and path.exists():
            self._read(path)

    @property
    def current(self) -> Comparison | None:
        return self.comparisons[-1] if self.comparisons else None

    def begin(self, design: Design) -> str:
        """Continue the comparison of this design or begin it; return how it differs from the one before, in words."""
        current = self.current
        if current is None:
            self._append({"design": design.plain(), "version": __version__})
            return ""
        was = current.design
        families = was.families if was.methods == design.methods else design.families
        costs = {**design.costs, **was.costs} if design.axis == was.axis else design.costs  # as first measured
        most = was.most if design.most in (0, current.most) else design.most  # the budget's, if none is asked for
        design = replace(design, number=was.number, families=families, most=most, costs=costs)
        if design.plain() == was.plain():
            return ""
        why = _changes(was, design)
        if not current.history:
            why = f"before its first look: {why}"
        elif added := was.added(design):
            design = replace(design, families=(*was.families, added), most=was.most)
            why = f"{', '.join(added)} came after a look: a family of its own, at what is left of the level"
        else:
            design = replace(design, number=was.number + 1)
            why = f"{why}: after a look, this is a new comparison with new trials and its own correction"
        self._append({"design": design.plain(), "why": why})
        return why

    def start(self, values: Mapping[str, Any]) -> None:
        """Note how the comparison is started, for those who resume it."""
        if self.current is not None and self.current.start != values:
            self._append({"start": dict(values)})

    def plan(self, most: int) -> None:
        """Fix N_max, which the budget determined."""
        self._append({"most": most})

    def add(self, trial: Trial, done: Done) -> None:
        """Append the outcome of a trial."""
        current = self.current
        if current is not None and done.test:
            of_both = ("test", done.rows, current.rows), ("validation", done.validation_rows, current.validation_rows)
            for part, rows, earlier in of_both:
                if earlier not in (0, len(rows)):
                    raise ValueError(
                        f"trial {trial.index} of {trial.method} has {len(rows)} {part} rows, and earlier ones have "
                        f"{earlier}: all trials need the same rows"
                    )
        if current is not None and current.design.halving and done.rung is None and not done.failed:
            raise ValueError(
                f"halving compares trials after a third of their epochs, and trial {trial.index} of {trial.method} "
                f"reported nothing from epoch {rung_of(trial.epochs, 1)} on: call trial.report(validation_error, epoch)"
            )
        values = {f.name: v for f in fields(Done) if (v := getattr(done, f.name)) or (f.name == "rung" and v == 0)}
        place = {"trial": trial.index, "method": trial.method, "kind": trial.kind, "repeat": trial.repeat}
        self._append({**place, "settings": {**trial.settings, **trial.options}, "seed": trial.seed, **values})

    def _append(self, line: Mapping[str, Any]) -> None:
        text = json.dumps(json_safe(line), separators=(",", ":")) + "\n"
        self._take(json.loads(text))
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            files.truncate(self.path, self._whole)  # what a kill left of a line
            self._whole = files.append(self.path, text.encode())

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        *lines, _ = content.split(b"\n")
        for number, line in enumerate(lines, start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path}, line {number}, is damaged: {error}. Restore it from a copy") from error
        self._whole = sum(len(line) + 1 for line in lines)

    def _take(self, line: dict[str, Any]) -> None:
        if "design" in line:
            design = Design.of(line["design"])
            before = self.current
            if before is not None and before.design.number == design.number:
                # trials stay whose settings are the same
                kept = {
                    k: d for k, d in before.done.items() if k[1] in design.methods and _same(before.design, design, k)
                }
                most = design.most or (before.most if before.design.most == design.most else 0)
                self.comparisons[-1] = Comparison(design, most, kept, line.get("why", ""), before.start)
            else:
                self.comparisons.append(Comparison(design, design.most, {}, line.get("why", "")))
            return
        current = self.comparisons[-1]
        if "most" in line:
            self.comparisons[-1] = replace(current, most=line["most"])
            return
        if "start" in line:
            self.comparisons[-1] = replace(current, start=line["start"])
            return
        key: Key = (line["kind"], line["method"], line["trial"], line["repeat"])
        done = Done(**{f.name: line[f.name] for f in fields(Done) if f.name in line})
        if done.test:
            done.rows, done.validation_error  # noqa: B018  checks the digests
        self.comparisons[-1] = replace(current, done={**current.done, key: done})


def _same(one: Design, other: Design, key: Key) -> bool:
    """Whether a trial is the same in two designs."""
    kind, method, index, _ = key
    if method not in other.methods or one.task != other.task:
        return False
    return kind == "trial" and one.trial(method, index) == other.trial(method, index)


def _changes(then: Design, now: Design) -> str:
    one, other = then.plain(), now.plain()
    names = [k for k in other if one[k] != other[k] and k != "number"]
    return "; ".join(f"{name} was {one[name]} and is now {other[name]}" for name in names)
