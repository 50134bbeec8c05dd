"""How far each recipe has been run: read from records.csv in the folders of its budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._util.formats import from_json
from ..studies.selection import previewed_cells
from ..theory.result import RUN
from .recipe import BUDGETS, names, recipe
from .records import RECORDS, read_records

STATES = {"smoke": "smoke", "short": "short", "paper": "full"}


@dataclass(frozen=True)
class State:
    """The largest budget of a recipe that has records; `cells` are finished and planned runs."""

    name: str
    title: str
    state: str = "never run"
    date: str = ""
    cells: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def theory_state(name: str, study: str, about: str, root: str) -> State:
    """The state of a study of `steppe theory` that `steppe reproduce` calls NAME, from ROOT/NAME/STUDY.json."""
    file = Path(root) / name / f"{study}.json"
    run = from_json(file.read_text(encoding="utf-8"), str(file)).get(RUN) if file.is_file() else None
    if run is None:
        return State(name, about)
    return State(name, about, "smoke" if run["quick"] else "short" if run["sizes"] else "full", run["date"])


def states(root: str) -> Iterator[State]:
    """The state of every recipe, from ROOT/NAME/BUDGET/records.csv."""
    for name in names():
        one = recipe(name)
        state = State(name, str(one.content.get("title") or ""))
        for budget in BUDGETS:
            file = Path(root) / name / budget / RECORDS
            if not file.is_file():
                continue
            rows = read_records([str(file)]).values()
            done = sum(row["state"] == "done" for row in rows)
            days = sorted(json.loads(row["origin"] or "{}").get("date", "") for row in rows)
            try:
                planned = len(previewed_cells(one.study(budget)))
            except FileNotFoundError:  # a pool whose checkpoints are elsewhere
                planned = len(rows)
            partly = "" if done >= planned else ", in part"
            state = State(name, state.title, STATES[budget] + partly, days[-1] if days else "", f"{done} of {planned}")
        yield state
