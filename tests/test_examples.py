"""Every example runs by itself, without a warning, and its assertions hold."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
LIMIT = 120  # seconds: an example takes less than 30 on an idle CPU, and this one may be busy


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_its_claim_holds(path: Path, tmp_path: Path) -> None:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", str(path)]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip(), "an example says what it found"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.stem)
def test_it_claims_something_and_asserts_it(path: Path) -> None:
    tree = ast.parse(path.read_text())
    claim = (ast.get_docstring(tree) or "").split("\n")[0]
    assert claim.endswith("."), "the first line of an example is its claim, a sentence"
    at_module_level = [n for n in tree.body for n in ast.walk(n) if isinstance(n, ast.Assert)]
    assert at_module_level, "an example that asserts nothing cannot fail"


def test_all_of_them_were_found() -> None:
    assert {
        "agnostic_held_out",
        "own_the_loop",
        "rescaling",
        "sam_in_ten_lines",
        "sharpbalance_step",
        "universal_triple",
        "your_own_method",
    } <= {p.stem for p in EXAMPLES}
