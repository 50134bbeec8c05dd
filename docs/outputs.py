"""Outputs of README, docs and notebooks: `python docs/outputs.py` writes them, a test compares them.

On a page, an output is the block of text after a snippet of Python, below `<!-- output -->`.
"""

from __future__ import annotations

import ast
import io
import json
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
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
COLUMNS = "100"  # of the terminal
MARK = "\n<!-- output -->\n\n```text\n"
SNIPPET = re.compile(rf"^```python\n(?P<code>.*?)^```\n(?:{MARK}(?P<output>.*?)^```\n)?", re.MULTILINE | re.DOTALL)
CLOSE = 0.05  # relative: other processors round differently, and a Lanczos run stops at 0.1 %
TRAINED = 0.4  # of networks that were trained: rounding grows from step to step


def same(shown: str, printed: str, close: float = CLOSE) -> bool:
    """Whether two outputs have the same words and nearly the same numbers, whatever the times."""
    found = [_words(text) for text in (shown, printed)]
    return len(found[0]) == len(found[1]) and all(_alike(a, b, close) for a, b in zip(*found, strict=True))


def _words(text: str) -> list[str]:
    """The words of a text, without times in seconds."""
    words = text.split()
    return [word for word, after in pairwise([*words, ""]) if after.rstrip(".,") != "s"]


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
        with redirect_stdout(io.StringIO()) as out:
            exec(compile(snippet["code"], page.name, "exec"), names)
        if snippet["output"] is None:
            return snippet[0]
        printed = "".join(f"{line.rstrip()}\n" for line in out.getvalue().rstrip().splitlines())
        return f"```python\n{snippet['code']}```\n{MARK}{printed}```\n"

    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        return SNIPPET.sub(run, page.read_text(encoding="utf-8"))


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
    os.environ["COLUMNS"] = COLUMNS
    for name in PAGES:
        page = ROOT / name
        if MARK in page.read_text(encoding="utf-8"):
            page.write_text(current(page), encoding="utf-8")
    for notebook in NOTEBOOKS:
        text = json.dumps(executed(notebook), indent=1, ensure_ascii=False)
        notebook.write_text(f"{text}\n", encoding="utf-8")
