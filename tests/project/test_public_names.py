"""The public names of steppe: what `dir` shows, what is imported on access, and docstrings that are true."""

from __future__ import annotations

import doctest
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from docstrings import documented, parameters, sections
from torch import nn

import steppe

PACKAGES = {
    "comparison", "data", "ensembles", "extend", "integrations", "measures", "nn", "studies", "testing", "training",
}  # fmt: skip
NAMES = {name: getattr(steppe, name) for name in steppe.__all__}
DESCRIBED = {name: x for name, x in NAMES.items() if inspect.isclass(x) or inspect.isroutine(x)}
MEASURES = {name: getattr(steppe.measures, name) for name in dir(steppe.measures)}
EXEMPT = {
    "measures.NotFinite",  # an exception, which users catch and do not build
}
DESCRIBED |= {f"measures.{name}": x for name, x in MEASURES.items() if inspect.isclass(x) or inspect.isroutine(x)}
# values that users pass on are described by their class
DESCRIBED |= {f"measures.{name}": type(MEASURES[name]) for name in ("FILTERS", "LAYERS", "UNSCALED")}
DESCRIBED = {name: x for name, x in DESCRIBED.items() if name not in EXEMPT}
# of these, every public method too
CLASSES = [steppe.SharpnessAware, steppe.Objective, steppe.Estimate, steppe.measures.Results]
ASSUMED = {"torch": torch, "nn": nn, "steppe": steppe}  # that docs/api/index.md tells readers to import
FINISHED = ["comparison", "data", "ensembles", "nn", "studies", "training"]  # all their classes and functions
UNSIGNED = {"data.DataError"}  # without parameters of their own: an exception that takes a message
DESCRIBED |= {
    f"{package}.{name}": x
    for package in FINISHED
    for name, x in inspect.getmembers(getattr(steppe, package))
    if name in dir(getattr(steppe, package)) and (inspect.isclass(x) or inspect.isroutine(x))
}


def test_dir_shows_names_and_packages_and_no_internals() -> None:
    """Before anything is imported, which takes a new process, and when everything is."""
    code = "import sys, steppe; print(*dir(steppe)); assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for name in (*steppe.__all__, *PACKAGES):
        getattr(steppe, name)
    assert set(done.stdout.split()) == set(dir(steppe)) == {*steppe.__all__, *PACKAGES}


def test_a_star_import_takes_no_package() -> None:
    """`nn` is torch's in most scripts."""
    names: dict[str, object] = {"nn": "torch.nn"}
    exec("from steppe import *", names)
    assert names["nn"] == "torch.nn"
    assert set(steppe.__all__) <= set(names)
    assert names["SAM"] is steppe.SAM


def methods() -> Iterator[tuple[str, Any]]:
    for cls in CLASSES:
        for name, x in vars(cls).items():
            if inspect.isfunction(x) and x.__name__ == name and not name.startswith("_"):
                yield f"{cls.__name__}.{name}", x


def test_every_docstring_describes_all_parameters_and_has_an_example() -> None:
    for name, x in DESCRIBED.items():
        assert documented(x) == (set() if name in UNSIGNED else parameters(x)), name
        assert ">>> " in sections(x).get("Examples", ""), name


@pytest.mark.parametrize(("name", "method"), list(methods()))
def test_a_method_of_the_main_classes_names_all_its_parameters(name: str, method: Any) -> None:
    assert method.__doc__, name  # its own, not one of torch
    text = method.__doc__
    named = documented(method) | set(re.findall(r"`(\*{0,2}\w+)`", text))
    assert parameters(method) <= named


@pytest.mark.parametrize("name", [n for n, x in DESCRIBED.items() if inspect.isclass(x) and steppe.Method in x.__mro__])
def test_a_method_names_its_paper(name: str) -> None:
    if name not in ("Method", "Plain", "Every"):  # from no paper
        assert re.search(r"\b20\d\d\b", inspect.getdoc(DESCRIBED[name]) or "")


def test_all_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    finder, runner = doctest.DocTestFinder(recurse=False), doctest.DocTestRunner(verbose=False)
    count = 0
    for name, x in [*DESCRIBED.items(), *methods()]:
        for test in finder.find(x, name, globs=dict(ASSUMED)):
            count += bool(test.examples)
            runner.run(test)
    said = capsys.readouterr().out
    assert runner.summarize(verbose=False).failed == 0, said
    assert count >= len(DESCRIBED)
