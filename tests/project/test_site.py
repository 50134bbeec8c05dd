"""The docs context: every public name has a docstring and a place in the API reference, every page is in the menu."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ["", "comparison", "data", "ensembles", "extend", "measures", "nn", "studies", "testing", "training"]


def public_names(package: str) -> list[tuple[str, str]]:
    """Modules and names of the `from .module import name as name` lines of a package."""
    folder = ROOT / "src/steppe" / package
    stub = folder / "__init__.pyi"
    lines = ast.parse((stub if stub.exists() else folder / "__init__.py").read_text()).body
    module = f"steppe.{package}".rstrip(".")
    return [(module, a.name) for line in lines if isinstance(line, ast.ImportFrom) for a in line.names]


NAMES = [pair for package in PACKAGES for pair in public_names(package)]


@cache
def described() -> dict[str, str]:
    """What the API pages describe: directive by full name."""
    found = {}
    for page in (DOCS / "api").glob("*.md"):
        module = ""
        for directive, name in re.findall(r"^\.\. ([\w:]+):: ([\w.]+)$", page.read_text(), flags=re.MULTILINE):
            if directive == "currentmodule":
                module = name
            else:
                found[name if name.startswith("steppe") else f"{module}.{name}"] = directive
    return found


def test_there_are_public_names_of_all_packages() -> None:
    assert len(NAMES) > 200
    assert {module for module, _ in NAMES} == {f"steppe.{p}".rstrip(".") for p in PACKAGES}


def undocumented(module: str, name: str) -> str:
    """What a public name lacks."""
    public = getattr(import_module(module), name)
    homes = [f"{module}.{name}", f"steppe.{name}"]
    if module == "steppe" and name in (*PACKAGES, "integrations"):  # whose modules need packages: docs/integrations.md
        return "" if public.__doc__ else f"{name} has no docstring"
    directive = next((described()[home] for home in homes if home in described()), None)
    if not directive:
        return f"add {module}.{name} to a page of docs/api"
    if inspect.isclass(public):
        own = public.__dict__.get("__doc__") or ""
        only = f"{name} has only the docstring that dataclass makes" if own.startswith(f"{name}(") else ""
        return only if own else f"{name} has no docstring"
    if inspect.isroutine(public) or inspect.ismodule(public):
        return "" if public.__doc__ else f"{name} has no docstring"
    # a value has no docstring: the page describes it
    return "" if directive == "py:data" else f"describe {name} on its page: .. py:data:: {name}"


def test_public_names_are_documented() -> None:
    assert [lack for module, name in NAMES if (lack := undocumented(module, name))] == []


def test_the_reference_has_only_names_that_exist() -> None:
    assert described()
    assert [name for name in described() if resolve_name(name) is None] == []  # raises for most that are not there


def test_every_page_is_in_the_menu() -> None:
    menus = [DOCS / "index.md", DOCS / "api/index.md"]
    listed = set()
    for menu in menus:
        for block in re.findall(r"^:::\{toctree\}\n(.*?)^:::$", menu.read_text(), flags=re.MULTILINE | re.DOTALL):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            targets = [re.sub(r".*<(.+)>", r"\1", entry) for entry in entries]
            listed |= {(menu.parent / f"{target}.md").resolve() for target in targets}
    assert all(page.exists() for page in listed), listed
    pages = {page.resolve() for page in [*DOCS.glob("*.md"), *(DOCS / "api").glob("*.md")]}
    assert pages - {DOCS / "index.md"} <= listed


def test_code_of_pages_is_not_cut() -> None:
    """What the site shows of a line; compare.md has the outputs of its records."""
    pages = [ROOT / "README.md", ROOT / "papers/README.md", *DOCS.glob("*.md"), *DOCS.glob("papers/results.md")]
    for page in (page for page in pages if page.name != "compare.md"):
        for block in re.findall(r"^```\w+\n(.*?)^```$", page.read_text(), flags=re.MULTILINE | re.DOTALL):
            assert [line for line in block.splitlines() if len(line) > 88] == [], page


def test_no_line_of_a_page_is_a_comment_to_myst() -> None:
    """A line of prose that begins with a percent sign is not on the site, and is on GitHub."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("papers/**/*.md"), *DOCS.rglob("*.md"), *ROOT.glob("benchmarks/**/*.md")]
    assert len(pages) > 50
    assert [page for page in pages if re.search(r"^ *%", page.read_text(encoding="utf-8"), flags=re.MULTILINE)] == []


def test_every_result_is_in_the_table_of_benchmarks() -> None:
    folder = ROOT / "benchmarks/results"
    links = set(re.findall(r"\]\(([\w.-]+\.md)\)", (folder / "README.md").read_text()))
    assert links == {page.name for page in folder.glob("*.md")} - {"README.md"}


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None or find_spec("furo") is None, reason="`make docs` installs sphinx")
@pytest.mark.timeout(900)
def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "sphinx", "-q", "-E", "-W", "--keep-going", "-d", str(tmp_path / "trees")]
    words += ["-b", "html", "-c", "docs", ".", str(tmp_path / "html")]
    built = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    first = (tmp_path / "html/docs/index.html").read_text()
    assert not re.findall(r'<(?:script|link|img)[^>]+(?:src|href)="https?://', first)  # works offline
