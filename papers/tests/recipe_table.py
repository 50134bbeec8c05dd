"""The list of tables, figures and theorems in papers/README.md. `python papers/tests/recipe_table.py` writes it.

papers/contents.csv says which command shows what; the state of a command is that of its committed records.
"""

from __future__ import annotations

import csv
import sys
from itertools import groupby
from pathlib import Path

from steppe_papers.tables.states import State, states

PAPERS = Path(__file__).parents[1]
PAGE, CONTENTS = PAPERS / "README.md", PAPERS / "contents.csv"
BEGIN, END = "<!-- recipes: python papers/tests/recipe_table.py -->\n", "<!-- end of recipes -->\n"
NO_PAPER = "none"


def contents() -> list[dict[str, str]]:
    """One row per item of a paper and command."""
    with CONTENTS.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def state_of(row: dict[str, str], ran: dict[str, State]) -> str:
    """How far the command of a row has been run, in words."""
    if not row["command"]:
        return row["note"]
    state = ran[row["command"]]
    done = f"run ({', '.join(filter(None, (state.state, state.cells and f'{state.cells} runs', state.date)))})"
    if not state.date and row["note"].startswith("needs "):
        return f"not possible here: {row['note']}"
    return "; ".join(filter(None, [done if state.date else "recipe only", row["note"]]))


def recipe_table() -> str:
    """One table per paper, with a line per table, figure and theorem."""
    ran = {state.name: state for state in states([PAPERS / "results"])}
    lines = []
    for paper, rows in groupby(contents(), key=lambda row: row["paper"]):
        lines += [f"### {paper if paper != NO_PAPER else 'Of no paper'}", ""]
        lines += ["| what | shows | `steppe reproduce` | state |", "|---|---|---|---|"]
        for row in rows:
            name = f"`{row['command']}`" if row["command"] else ""
            cells = (row["item"], row["shows"].replace("|", "\\|"), name, state_of(row, ran))
            lines.append(f"| {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def written_table() -> str:
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + recipe_table() + END + rest.partition(END)[2], encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
