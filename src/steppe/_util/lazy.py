"""Lazy exports: a package's public names, each imported on first use.

`import torch` takes seconds, and `steppe --help` should not. The stub beside the package lists its names once, for
type checkers and editors too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from .extras import explained
from .names import nearest


def lazy_exports(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`, from the `from .module import name as name` lines of its stub."""
    homes = _homes(file)

    def get(name: str) -> Any:
        if name not in homes:
            hint = "" if name.startswith("_") else _found_below(package, file, homes, name) or nearest(name, homes, 0.6)
            raise AttributeError(f"module {package!r} has no attribute {name!r}.{hint}")
        home = homes[name]
        with explained():  # `from . import name`: a module of the package
            found = import_module(f"{package}.{name}") if home is None else getattr(import_module(home, package), name)
        return vars(sys.modules[package]).setdefault(name, found)  # the next look-up finds it there

    return get, lambda: sorted(homes)


def _found_below(package: str, file: str, homes: dict[str, str | None], name: str) -> str:
    """Where a package below has the name, in a sentence."""
    for part, home in homes.items():
        inner = Path(file).parent / part / "__init__.pyi"
        if home is None and inner.exists() and name in _homes(str(inner)):
            return f" There is {package}.{part}.{name}."
    return ""


def names_of(file: str) -> list[str]:
    """Return the names that the stub beside a package takes from its modules, without the modules: its `__all__`."""
    return sorted(name for name, home in _homes(file).items() if home is not None)


def _homes(file: str) -> dict[str, str | None]:
    """Return the module of each name of a stub; None for a module of the package itself."""
    lines = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    return {
        a.name: line.module and "." * line.level + line.module
        for line in lines
        if isinstance(line, ast.ImportFrom)
        for a in line.names
    }
