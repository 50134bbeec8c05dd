"""steppe-papers uses the public names of steppe alone, and its own are described like those of steppe."""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path

import pytest
import torch
from test_public_names import documented, parameters, sections

import steppe
import steppe_papers
from steppe_papers import figures

ROOT = Path(steppe.__file__).parent
FILES = sorted(Path(steppe_papers.__file__).parent.rglob("*.py"))
ASSUMED = {"torch": torch, "steppe": steppe, "figures": figures}
EXAMPLES = [(name, x) for name, x in inspect.getmembers(figures) if name in dir(figures) and callable(x)]


def lines_of(package: str) -> list[ast.ImportFrom]:
    """The `from ... import name as name` lines of a public package; none for a module."""
    folder = ROOT.joinpath(*package.split(".")[1:])
    files = [f for f in (folder / "__init__.pyi", folder / "__init__.py") if f.exists()]
    return [n for n in ast.parse(files[0].read_text()).body if isinstance(n, ast.ImportFrom)] if files else []


def is_public_module(module: str) -> bool:
    """Whether every part of its path is a module that the package above lists."""
    above, _, name = module.rpartition(".")
    if not above:
        return module == "steppe"
    listed = {a.name for line in lines_of(above) if line.module is None for a in line.names}
    return name in listed and is_public_module(above)


def own_names(module: str) -> set[str]:
    """What a module defines itself, without what it imports."""
    found: set[str] = set()
    for node in ast.parse(ROOT.joinpath(*module.split(".")[1:]).with_suffix(".py").read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}
    return found


def private(source: str) -> list[str]:
    """The names of steppe that a source takes and that are not public."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [a.name for a in node.names if a.name.split(".")[0] == "steppe" and not is_public_module(a.name)]
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "steppe":
            module = str(node.module)
            offered = {a.name for line in lines_of(module) for a in line.names} or own_names(module)
            usable = {n for n in offered if not n.startswith("_")} if is_public_module(module) else set()
            found += [f"{module}.{a.name}" for a in node.names if a.name not in usable]
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            found += [f".{node.attr}"] if not (isinstance(node.value, ast.Name) and node.value.id == "self") else []
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.name)
def test_only_public_names_are_used(file: Path) -> None:
    assert private(file.read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "from steppe.core.vector import Vector",
        "from steppe._util.files import atomic_write",
        "from steppe.studies.schema import text_of",
        "from steppe.studies.records import Store",
        "from steppe.studies.records import _write",
        "from steppe.extend import SKY",
        "import steppe.core.vector",
        "study._check()",
    ],
)
def test_a_private_name_is_found(line: str) -> None:
    assert len(private(line)) == 1


def test_a_public_name_is_not() -> None:
    lines = "from steppe import SAM\nfrom steppe.studies import Study, run\nfrom steppe.studies.run import run\n"
    assert private(f"{lines}import steppe\nimport steppe.studies\nself._x\n") == []


@pytest.mark.parametrize(("name", "x"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_every_name_of_the_figures_is_described_and_its_example_runs(name: str, x: object) -> None:
    assert documented(x) == parameters(x)
    assert ">>> " in sections(x)["Examples"]
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(recurse=False).find(x, name, globs=dict(ASSUMED)):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
