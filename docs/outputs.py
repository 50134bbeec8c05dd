"""Outputs of README, docs and notebooks: `python docs/outputs.py` writes them, a test compares them.

On a page, an output is the block of text after a snippet, below `<!-- output -->`. Every snippet of Python that prints
has one; commands have one where the page shows it. In an output `...` stands for any words: what depends on the
machine, or is too long. It stays as long as the rest is what the snippet prints.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import shlex
import sys
import tempfile
from contextlib import chdir, redirect_stderr, redirect_stdout
from itertools import pairwise
from math import isclose
from pathlib import Path
from typing import Any

import torch

from steppe.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOT_HERE = {"compare.md"}  # its outputs are those of a record
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
COLUMNS = "84"  # of the terminal: what the docs site shows of a line
ENVIRONMENT = {  # of `torchrun` with one process, for the guides
    "COLUMNS": COLUMNS,
    "RANK": "0",
    "WORLD_SIZE": "1",
    "MASTER_ADDR": "localhost",
    "MASTER_PORT": "0",
}
MARK = "\n<!-- output -->\n\n```text\n"
SNIPPET = re.compile(
    rf"^```(?P<language>python|sh)\n(?P<code>.*?)^```\n(?:{MARK}(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL
)
FILE = re.compile(r"^```\w+\n(?P<text># (?P<name>[\w-]+\.(?:py|yaml))\n.*?)^```$", re.MULTILINE | re.DOTALL)
CLOSE = 0.05  # relative: other processors round differently, and a Lanczos run stops at 0.1 %
TRAINED = 0.4  # of networks that were trained: rounding grows from step to step


def same(shown: str, printed: str, close: float = CLOSE) -> bool:
    """Whether two outputs have the same words and nearly the same numbers, whatever the times and what `...` is for."""
    words, at = _words(printed), 0
    parts = [_words(part) for part in re.split(r"(?<!\S)\.\.\.(?!\S)", shown)]
    for number, part in enumerate(parts):
        last = len(words) - len(part)
        starts = [*range(at, last + 1)]
        if number == 0:
            starts = starts[:1]
        if number == len(parts) - 1:
            starts = [start for start in starts if start == last]
        found = (s for s in starts if all(_alike(a, b, close) for a, b in zip(part, words[s:], strict=False)))
        start = next(found, None)
        if start is None:
            return False
        at = start + len(part)
    return True


def _words(text: str) -> list[str]:
    """The words of a text, without times in seconds."""
    words = text.split()
    return [word for word, after in pairwise([*words, ""]) if after.rstrip(".,;") != "s"]


def _alike(shown: str, printed: str, close: float) -> bool:
    try:
        return isclose(*(float(text.strip(",.:()")) for text in (shown, printed)), rel_tol=close)
    except ValueError:
        return shown == printed or {*shown, *printed} == {"\N{BOX DRAWINGS LIGHT HORIZONTAL}"}


def current(page: Path) -> str:
    """The page with the outputs as they are now."""
    names: dict[str, Any] = {"__name__": "__main__"}
    torch.manual_seed(0)

    def run(snippet: re.Match[str]) -> str:
        code, shown = snippet["code"], snippet["output"]
        commands = snippet["language"] == "sh"
        if code.startswith("# not run in the tests") or (commands and shown is None):
            return snippet[0]
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()):
            if commands:
                for line in code.replace("\\\n", " ").splitlines():
                    assert main(shlex.split(line, comments=True)[1:]) == 0, line
            else:
                exec(compile(code, page.name, "exec"), names)
        printed = "".join(f"{line.rstrip()}\n" for line in out.getvalue().strip("\n").splitlines())
        if same(shown or "", printed):
            return snippet[0]
        return f"```{snippet['language']}\n{code}```\n{MARK}{printed}```\n"

    text = page.read_text(encoding="utf-8")
    if page.name in NOT_HERE or not (MARK in text or "print(" in text):
        return text
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for file in FILE.finditer(text):
            Path(file["name"]).write_text(file["text"], encoding="utf-8")
        return SNIPPET.sub(run, text)


def executed(notebook: Path) -> dict[str, Any]:
    """The notebook with the outputs of its cells as they are now: what is printed, and the value of a last line."""
    content: dict[str, Any] = json.loads(notebook.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    torch.manual_seed(0)
    number = 0
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        for cell in (c for c in content["cells"] if c["cell_type"] == "code"):
            number += 1
            body = ast.parse("".join(cell["source"])).body
            last = body.pop() if isinstance(body[-1], ast.Expr) else None
            with redirect_stdout(io.StringIO()) as out:
                exec(compile(ast.Module(body, []), notebook.name, "exec"), names)
                value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names) if last else None
            cell["execution_count"], cell["outputs"] = number, []
            if out.getvalue():
                lines = out.getvalue().splitlines(keepends=True)
                cell["outputs"].append({"output_type": "stream", "name": "stdout", "text": lines})
            if value is not None:
                data = {"text/plain": [repr(value)]}
                if hasattr(value, "_repr_html_"):
                    data["text/html"] = [value._repr_html_()]
                result = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}
                cell["outputs"].append(result)
    return content


def texts(content: dict[str, Any]) -> list[str]:
    """The outputs of a notebook as text, cell by cell."""
    cells = [cell for cell in content["cells"] if cell["cell_type"] == "code"]
    found = [[o.get("text") or o["data"]["text/plain"] for o in cell["outputs"]] for cell in cells]
    return ["".join(line for output in outputs for line in output) for outputs in found]


if __name__ == "__main__":
    os.environ.update(ENVIRONMENT)
    chosen = [Path(word).resolve() for word in sys.argv[1:]]
    for page in (page for page in PAGES if not chosen or page in chosen):
        page.write_text(current(page), encoding="utf-8")
    for notebook in (notebook for notebook in NOTEBOOKS if not chosen or notebook in chosen):
        text = json.dumps(executed(notebook), indent=1, ensure_ascii=False)
        notebook.write_text(f"{text}\n", encoding="utf-8")
