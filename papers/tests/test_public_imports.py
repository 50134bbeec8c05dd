"""steppe-papers uses the public names of steppe alone, and its own are described like those of steppe."""

from __future__ import annotations

import ast
import doctest
import inspect
from pathlib import Path

import pytest
import torch
from docstrings import documented, parameters, sections

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


def offered(module: str) -> set[str]:
    """The public names of a module; none if the module is private."""
    if not is_public_module(module):
        return set()
    names = {a.name for line in lines_of(module) for a in line.names} or own_names(module)
    return {name for name in names if not name.startswith("_")}


def dotted(node: ast.AST) -> list[str]:
    """The parts of `a.b.c`; none for anything else."""
    if isinstance(node, ast.Name):
        return [node.id]
    parts = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*parts, node.attr] if parts and isinstance(node, ast.Attribute) else []


def private(source: str) -> list[str]:
    """The names of steppe that a source takes and that are not public, however it takes them."""
    tree, found, bound = ast.parse(source), [], {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for a in (a for a in node.names if a.name.split(".")[0] == "steppe"):
                found += [] if is_public_module(a.name) else [a.name]
                bound[a.asname or "steppe"] = a.name if a.asname else "steppe"
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "steppe":
            module = str(node.module)
            found += [f"{module}.{a.name}" for a in node.names if a.name not in offered(module)]
            bound |= {a.asname or a.name: f"{module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root, *path = dotted(node) or [""]
            if root in bound and is_public_module(bound[root]):
                # every prefix is a node of its own: this one answers for its last name
                module = ".".join([bound[root], *path[:-1]])
                found += (
                    [f"{module}.{path[-1]}"] if is_public_module(module) and path[-1] not in offered(module) else []
                )
            elif node.attr.startswith("_") and not node.attr.startswith("__") and dotted(node.value) != ["self"]:
                found.append(f".{node.attr}")
        elif isinstance(node, ast.Call) and (dotted(node.func) or [""])[-1] in (
            "getattr",
            "import_module",
            "__import__",
        ):
            texts = [str(a.value) for a in node.args if isinstance(a, ast.Constant)]
            found += [t for t in texts if t.startswith("steppe.") and not is_public_module(t)]
            found += [t for t in texts if t.startswith("_") and not t.startswith("__")]
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
        "import steppe.core.vector as v",
        "study._check()",
        "self.study._check()",
        "import steppe\nsteppe.core.vector",
        "import steppe\nsteppe.studies.schema.text_of(1)",
        "import steppe.studies as s\ns.schema",
        "from steppe import studies\nstudies.records.RECORDED",
        "from importlib import import_module\nimport_module('steppe._util.files')",
        "getattr(study, '_check')",
    ],
)
def test_a_private_name_is_found(line: str) -> None:
    assert len(private(line)) == 1


def test_a_public_name_is_not() -> None:
    lines = "from steppe import SAM\nfrom steppe.studies import Study, run\nfrom steppe.studies.run import run\n"
    lines += "import steppe\nimport steppe.studies\nself._x\nsteppe.SAM(0.1)\nsteppe.studies.records.read_records([])\n"
    lines += "from steppe import measures\nmeasures.Trace().estimate(o).value\ngetattr(x, '__doc__')\n"
    assert private(lines) == []


@pytest.mark.parametrize(("name", "x"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_every_name_of_the_figures_is_described_and_its_example_runs(name: str, x: object) -> None:
    assert documented(x) == parameters(x)
    assert ">>> " in sections(x)["Examples"]
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder(recurse=False).find(x, name, globs=dict(ASSUMED)):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
