"""Recipes by name: a folder with study.yaml, paper.csv (the printed numbers) and notes.md."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from steppe.extend import read_mapping, unknown
from steppe.studies import Study
from steppe.studies.compared import Printed

Budget = Literal["smoke", "short", "paper"]
BUDGETS: tuple[Budget, ...] = ("smoke", "short", "paper")
STUDY, PAPER, NOTES = "study.yaml", "paper.csv", "notes.md"
COLUMNS = ("row", "column", "value", "error", "place")
ROOT = Path(__file__).parent


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper as data: its name, such as universal/table2, and the folder with its files."""

    name: str
    folder: Path

    @cached_property
    def content(self) -> dict[str, Any]:
        """The content of study.yaml."""
        return read_mapping(str(self.folder / STUDY))

    @property
    def notes(self) -> str:
        """The text of notes.md."""
        return (self.folder / NOTES).read_text(encoding="utf-8").strip()

    def study(self, budget: str | None, out: str | None = None) -> Study:
        """The study at a budget; None for the study without changes, as the checks of paper.csv read it."""
        try:
            study = Study.of(self.content, self.name, budget)
        except ValueError as error:
            raise ValueError(f"{self.folder / STUDY}: {error}") from error
        errors = self.folder / study.errors if study.errors else None
        own = str(errors) if errors is not None and errors.is_file() else study.errors
        return replace(study, file=str(self.folder / STUDY), out=out or study.out, errors=own)

    @cached_property
    def printed(self) -> Mapping[tuple[str, str, str], Printed]:
        """The paper's numbers by table, row and column."""
        file, numbers = self.folder / PAPER, {}
        tables = self.study(None).table
        if not tables:
            raise ValueError(f"{self.folder / STUDY} has no `table`, which {PAPER} needs")
        with file.open(newline="", encoding="utf-8") as opened:
            reader = csv.DictReader(opened)
            wrong = [c for c in COLUMNS if c not in (reader.fieldnames or [])]
            if wrong:
                raise ValueError(f"{file} has no column {wrong[0]}: it has {', '.join(COLUMNS)}, and may have table")
            for number, line in enumerate(reader, start=2):
                key = (line.get("table") or tables[0].name, line["row"], line["column"])
                if key in numbers:
                    raise ValueError(f"{file}, line {number}: {' '.join(key)} is there twice")
                try:
                    error = float(line["error"]) if line["error"] else None
                    numbers[key] = Printed(float(line["value"]), error, line["place"])
                except (TypeError, ValueError):
                    raise ValueError(
                        f"{file}, line {number}: value and error are numbers, not {line['value']!r}, {line['error']!r}"
                    ) from None
        return numbers


def names() -> list[str]:
    """All recipes that come with steppe-papers."""
    return sorted(file.parent.relative_to(ROOT).as_posix() for file in ROOT.glob(f"*/*/{STUDY}"))


def recipe(name: str) -> Recipe:
    """The recipe of a name, or in a folder of your own."""
    folder = Path(name)
    if name in names():
        if (folder / STUDY).is_file() and folder.resolve() != (ROOT / name).resolve():
            raise ValueError(
                f"{name} is a recipe of steppe-papers and a folder here: write ./{name} for the folder, or rename it"
            )
        return Recipe(name, ROOT / name)
    if (folder / STUDY).is_file():
        return Recipe("/".join(folder.resolve().parts[-2:]), folder)
    raise ValueError(unknown("recipe", name, names()))
