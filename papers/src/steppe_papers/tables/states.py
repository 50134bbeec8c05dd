"""How far each recipe has been run, from the records of its budgets."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from steppe.extend import from_json
from steppe.studies.records import RECORDS, number_of_cells, read_records

from ..figures.registry import NAMED, RUN
from ..recipes.recipe import BUDGETS, Recipe, names, recipe

STATES = {"smoke": "smoke", "short": "short", "paper": "full"}
THEORY = "theory/"  # before the names of `steppe theory`
_PACKAGE = Path(__file__).parents[1]
# records that come with the code: beside it in a checkout, and in a wheel inside of it
COMMITTED = next((d for d in (_PACKAGE / "results", _PACKAGE.parents[1] / "results") if d.is_dir()), _PACKAGE)
ROOTS = (Path("studies"), COMMITTED)


@dataclass(frozen=True)
class State:
    """The largest budget of a recipe that has records; `cells` are finished and planned runs."""

    name: str
    title: str
    state: str = "no records"
    date: str = ""
    cells: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def states(roots: Sequence[Path]) -> Iterator[State]:
    """The state of every recipe and every study of `steppe theory`, from the first root that has a file of it."""
    for name in names():
        one = recipe(name)
        ran = (state for root in roots if (state := _of_recipe(one, root)) is not None)
        yield next(ran, State(name, _title(one)))
    for study, entry in NAMED.items():
        name = entry.recipe or THEORY + study
        ran = (state for root in roots if (state := _of_theory(name, entry.about, root / name / f"{study}.json")))
        yield next(ran, State(name, entry.about))


def _of_theory(name: str, about: str, file: Path) -> State | None:
    run = from_json(file.read_text(encoding="utf-8"), str(file)).get(RUN) if file.is_file() else None
    if run is None:
        return None
    return State(name, about, "smoke" if run["quick"] else "short" if run["sizes"] else "full", run["date"])


def _title(one: Recipe) -> str:
    return str(one.content.get("title") or "")


def _of_recipe(one: Recipe, root: Path) -> State | None:
    """The state of the largest budget that has ROOT/NAME/BUDGET/records.csv."""
    for budget in reversed(BUDGETS):
        file = root / one.name / budget / RECORDS
        if not file.is_file():
            continue
        rows = read_records([str(file)]).values()
        done = sum(row["state"] == "done" for row in rows)
        days = sorted(json.loads(row["origin"] or "{}").get("date", "") for row in rows)
        try:
            planned = number_of_cells(one.study(budget))
        except FileNotFoundError:  # a pool whose checkpoints are elsewhere
            planned = len(rows)
        partly = "" if done >= planned else ", in part"
        return State(one.name, _title(one), STATES[budget] + partly, days[-1] if days else "", f"{done} of {planned}")
    return None
