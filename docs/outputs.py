"""Outputs below the snippets of README and docs: `python docs/outputs.py` writes them, a test compares them.

An output is the block of text after a snippet of Python, below `<!-- output -->`.
"""

from __future__ import annotations

import io
import os
import re
import tempfile
from contextlib import chdir, redirect_stdout
from itertools import pairwise
from math import isclose
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/index.md", "docs/start.md", "docs/choosing.md", "docs/measures.md")
COLUMNS = "100"  # of the terminal
MARK = "\n<!-- output -->\n\n```text\n"
SNIPPET = re.compile(rf"^```python\n(?P<code>.*?)^```\n(?:{MARK}(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
CLOSE = 0.05  # relative: other processors round differently, and a Lanczos run stops at 0.1 %


def same(shown: str, printed: str) -> bool:
    """Whether two outputs have the same words and nearly the same numbers, whatever the times."""
    found = [_words(text) for text in (shown, printed)]
    return len(found[0]) == len(found[1]) and all(map(_alike, *found))


def _words(text: str) -> list[str]:
    """The words of a text, without times in seconds."""
    words = text.split()
    return [word for word, after in pairwise([*words, ""]) if after.rstrip(".,") != "s"]


def _alike(shown: str, printed: str) -> bool:
    try:
        return isclose(float(shown.rstrip(",.:")), float(printed.rstrip(",.:")), rel_tol=CLOSE)
    except ValueError:
        return shown == printed or {*shown, *printed} == {"\N{BOX DRAWINGS LIGHT HORIZONTAL}"}


def current(page: Path) -> str:
    """The page with the outputs as they are now."""
    names: dict[str, Any] = {"__name__": "__main__"}
    torch.manual_seed(0)

    def run(snippet: re.Match[str]) -> str:
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(snippet["code"], page.name, "exec"), names)
        if snippet["output"] is None:
            return snippet[0]
        printed = "".join(f"{line.rstrip()}\n" for line in out.getvalue().rstrip().splitlines())
        return f"```python\n{snippet['code']}```\n{MARK}{printed}```\n"

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return SNIPPET.sub(run, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    os.environ["COLUMNS"] = COLUMNS
    for name in PAGES:
        page = ROOT / name
        if MARK in page.read_text(encoding="utf-8"):
            page.write_text(current(page), encoding="utf-8")
