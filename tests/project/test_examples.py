"""Every example runs by itself, without a warning, and its assertions hold."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiers import slow_unless

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
# packages of examples, beside torch
NEEDS = {"compare_lightning": "lightning", "compare_transformers": "transformers", "compare_optuna_points": "optuna"}
NEEDS |= {"kfac_of_curvlinops": "curvlinops", "llm_lora": "trl", "optuna_rho": "optuna", "ray_rho": "ray"}
SLOW = {"llm_lora", "compare_transformers", "ray_rho", "torchrun_two_workers"}  # other tests show these in less
LIMIT = 120  # seconds: an example takes less than 30 on an idle CPU, and this one may be busy

# importing torch takes seconds, so one process imports it and forks a child per example
SERVER = """
import os, runpy, sys, tempfile
import torch._dynamo  # the first step of any optimizer imports it
import steppe
for line in sys.stdin:
    path = line.strip()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        if not (child := os.fork()):
            os.chdir(folder)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv[:] = [path]
            sys.path[0] = os.path.dirname(path)
            try:
                runpy.run_path(path, run_name="__main__")
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            finally:
                sys.stdout.flush()
            os._exit(0)
        failed = os.waitpid(child, 0)[1]
        output.seek(0)
        print(repr((failed, output.read())), flush=True)
os._exit(0)  # torch takes half a second to leave
"""


@pytest.fixture(scope="module")
def server() -> Iterator[subprocess.Popen[str]]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "error", "-c", SERVER]
    with subprocess.Popen(command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


@pytest.mark.timeout(LIMIT)
@pytest.mark.sampled(len(EXAMPLES))
@pytest.mark.parametrize("path", slow_unless(lambda p: p.stem not in SLOW, EXAMPLES), ids=lambda p: p.stem)
def test_its_claim_holds(path: Path, server: subprocess.Popen[str]) -> None:
    if path.stem in NEEDS and find_spec(NEEDS[path.stem]) is None:
        pytest.skip(f"needs {NEEDS[path.stem]}")
    server.stdin.write(f"{path}\n")
    server.stdin.flush()
    failed, output = ast.literal_eval(server.stdout.readline())
    assert not failed, output
    assert output.strip(), "an example prints what it found"


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
        "compare_lightning",
        "compare_optuna_points",
        "compare_plain_loop",
        "compare_transformers",
        "kfac_of_curvlinops",
        "llm_lora",
        "lookahead_and_loss_scaler",
        "optuna_rho",
        "own_the_loop",
        "ray_rho",
        "rescaling",
        "sam_in_ten_lines",
        "sharpbalance_step",
        "torchrun_two_workers",
        "universal_triple",
        "your_own_method",
    } <= {p.stem for p in EXAMPLES}
