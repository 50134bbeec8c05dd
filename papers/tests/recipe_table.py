"""The table of all recipes in papers/README.md. `python papers/tests/recipe_table.py` writes it."""

from __future__ import annotations

import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from steppe.cli import main
from steppe_papers.recipes.recipe import names, recipe

PAGE = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- recipes: python papers/tests/recipe_table.py -->\n", "<!-- end of recipes -->\n"


def recipe_table() -> str:
    """One line per row of `steppe reproduce --list`; recipes also have their question."""
    with redirect_stdout(io.StringIO()) as printed:
        assert main(["reproduce", "--list", "--json"]) == 0
    recipes = names()
    lines = ["| command | shows |", "|---|---|"]
    for row in json.loads(printed.getvalue()):
        question = recipe(row["name"]).content.get("question", "") if row["name"] in recipes else ""
        shows = f"{row['title']}. {question}" if question else row["title"]
        lines.append(f"| `steppe reproduce {row['name']}` | {shows.replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def written_table() -> str:
    return PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]


if __name__ == "__main__":
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    PAGE.write_text(before + BEGIN + recipe_table() + END + rest.partition(END)[2], encoding="utf-8")
    sys.stdout.write(f"{PAGE}\n")
