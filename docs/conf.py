"""The docs site: `make docs`. The source folder is the repository, so links are the same here and on GitHub."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import steppe  # noqa: E402  (found through the line above)

list(steppe.METHODS)  # now, with the defaults that the signatures have: autodoc replaces them by their source

project = "steppe"
author = copyright = "The steppe contributors"
version = release = steppe.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "docs/index"
PAGES = [
    "docs/*.md",
    "docs/api/*.md",
    "docs/papers/*.md",
    "benchmarks/results/*.md",
    "papers/README.md",
    "papers/src/steppe_papers/recipes/*/*/notes.md",
]
include_patterns = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *PAGES, "papers/results/*/*/*/table.md"]
exclude_patterns = [".*", "build", "data", "dist", "docs/_build", "runs", "tests"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4  # the anchors that GitHub makes
suppress_warnings = ["myst.header"]  # results go from their title to tables

default_role = "code"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_class_signature = "mixed"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
add_module_names = False
nitpicky = True
# types in signatures: of other packages, whose pages are not reachable offline, and steppe's own that are not public
nitpick_ignore_regex = [("py:.*", r"(?!steppe\.).*|steppe(\.\w+){3,}(\[.*)?")]

html_theme = "furo"
html_title = f"steppe {release}"
html_theme_options = {"navigation_with_keys": True}
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sphinx = False

FOLDER = re.compile(r"(\]\((?:\.\./)*benchmarks/results)(?=\))")
NOT_RUN = re.compile(r"^# (?:not run in the tests: .*|tests/\S+ (?:runs|makes) .*)\n", re.MULTILINE)
# pages that others link to, not part of the menu
LISTED = ("benchmarks/results/", "papers/src/steppe_papers/recipes/", "papers/results/")
CODE = re.compile(r"(`[^`]*`)")
ATTRIBUTES: dict[str, list[str]] = {}


def adapt(app: Sphinx, name: str, source: list[str]) -> None:
    """GitHub shows the README of a linked folder, a site needs the file; results are in the table of their README.

    Remarks for the tests are not for readers who copy the code.
    """
    source[0] = NOT_RUN.sub("", FOLDER.sub(r"\1/README.md", source[0]))
    if name.startswith(LISTED) and name != "benchmarks/results/README":
        source[0] = f"---\norphan: true\n---\n{source[0]}"


def escape(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Docstrings write |w| and 2 * x in plain text, which are markup in reStructuredText."""
    for i, line in enumerate(lines):
        if re.fullmatch(r"\s*\*+\w+", line):  # **options: a parameter's name, which napoleon escapes
            continue
        if line.lstrip().startswith((">>> ", "... ")):  # an example, which is shown as it is
            continue
        parts = CODE.split(line)
        parts[::2] = [re.sub(r"([|*])", r"\\\1", part) for part in parts[::2]]
        lines[i] = "".join(parts)
    if what == "attribute":
        ATTRIBUTES[name] = lines.copy()


def restore_attributes(app: Sphinx, what: str, name: str, of: object, options: object, lines: list[str]) -> None:
    """Napoleon takes what stands before the first colon of an attribute's docstring for its type."""
    if what == "attribute":
        lines[:] = ATTRIBUTES[name]


def write_start_page(app: Sphinx, error: Exception | None) -> None:
    """The address of the site's folder leads to the first page."""
    if error is None and app.builder.name == "html":
        text = '<!doctype html><title>steppe</title><meta http-equiv="refresh" content="0; url=docs/index.html">'
        (Path(app.outdir) / "index.html").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> None:
    """Register the functions above."""
    app.connect("source-read", adapt)
    app.connect("autodoc-process-docstring", escape, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", restore_attributes, priority=600)  # after it
    app.connect("build-finished", write_start_page)
