"""Registries: names and parts of one kind, such as methods, to which installed packages add theirs.

A package declares an entry point in the group of the registry, whose value is a module that registers its parts when
it is imported:

    [project.entry-points."steppe.methods"]
    my-package = "my_package.methods"

Where nothing is installed, as in a checkout on a borrowed machine, the variable STEPPE_PLUGINS lists such modules,
or packages that have one for each kind: my_package.methods, my_package.models and so on.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Generic, TypeVar

from .names import unknown

PLUGINS = "STEPPE_PLUGINS"  # modules, separated by commas: each may register parts of any kind

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """The parts of one kind by name: those of steppe, then those of other packages.

    Parameters
    ----------
    kind
        What a part is called in errors, such as "method".
    group
        The group of entry points, such as "steppe.methods".
    own
        The modules of steppe that register parts of this kind; they and the plugins are imported at the first look-up.
    order
        What sorts parts; of equal ones those of an earlier module, and then those registered first, are first.

    """

    def __init__(
        self, kind: str, group: str, own: tuple[str, ...] = (), order: Callable[[T], Any] = lambda part: None is part
    ):
        self.kind, self.group = kind, group
        self._own, self._order, self._parts = own, order, dict[str, T]()
        self._homes: dict[str, str] = {}  # the module that registered a name
        self._complete = False

    def add(self, name: str, part: T, home: str) -> None:
        """Registers a part; `home` is the module that defines it. Raises if another module has taken the name."""
        if self._homes.setdefault(name, home) != home:
            raise ValueError(f"{home} registers the {self.kind} {name!r}, which {self._homes[name]} has registered")
        self._parts[name] = part

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._parts:
            raise KeyError(unknown(self.kind, name, self._parts))
        return self._parts[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._parts

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._parts)

    def __repr__(self) -> str:
        return f"Registry({', '.join(self)})"

    def __len__(self) -> int:
        self._load()
        return len(self._parts)

    def _load(self) -> None:
        if self._complete:
            return
        self._complete = True  # first: a module that is imported here may look something up
        try:
            for module in self._own:
                import_module(module)
            for module in plugins(self.group):
                import_module(module)
        except BaseException:
            self._complete = False
            raise
        self._parts = dict(sorted(self._parts.items(), key=self._place))

    def _place(self, item: tuple[str, T]) -> tuple[Any, ...]:
        """The place of a part in listings, whichever module was imported first."""
        name, part = item
        home = self._homes[name]
        of_steppe = home.partition(".")[0] == __name__.partition(".")[0]
        return not of_steppe, self._order(part), self._own.index(home) if home in self._own else len(self._own)


def modules_of(package: str) -> tuple[str, ...]:
    """The modules of a package of steppe, by name; none is imported."""
    folder = Path(__file__).parents[1].joinpath(*package.split(".")[1:])
    return tuple(f"{package}.{file.stem}" for file in sorted(folder.glob("*.py")) if not file.stem.startswith("_"))


@cache
def declared(package: str) -> dict[str, dict[str, Any]]:
    """What the registrations of a package of steppe say, by name, read from its source.

    For checks before torch is imported, which takes seconds. Only values that are written out are here.
    """
    found: dict[str, dict[str, Any]] = {}
    for module in modules_of(package):
        file = Path(__file__).parents[1].joinpath(*module.split(".")[1:]).with_suffix(".py")
        text = file.read_text(encoding="utf-8")
        for node in ast.parse(text).body if "@register(" in text else ():
            for call in getattr(node, "decorator_list", ()):
                if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "register":
                    written = {k.arg: k.value for k in call.keywords if k.arg and _is_written_out(k.value)}
                    name = ast.literal_eval(call.args[0])
                    found[name] = {key: ast.literal_eval(value) for key, value in written.items()}
    return found


def _is_written_out(node: ast.expr) -> bool:
    return not any(isinstance(part, ast.Name | ast.Lambda | ast.Call | ast.JoinedStr) for part in ast.walk(node))


def plugins(group: str) -> list[str]:
    """The modules that installed packages and the variable STEPPE_PLUGINS name for a group."""
    points = _installed(tuple(sys.path)).select(group=group)
    installed = [point.module for point in points if not _lies_here(point)]
    named = os.environ.get(PLUGINS, "").split(",")
    listed = (_part(module.strip(), group.rpartition(".")[2]) for module in named if module.strip())
    return list(dict.fromkeys([*installed, *listed]))


@cache
def _installed(path: tuple[str, ...]) -> Any:  # EntryPoints, before Python 3.12 in a class of its own
    """All entry points of the packages on the import path; each look-up reads a file of every package."""
    return entry_points()


def _part(module: str, kind: str) -> str:
    """The module of a package that registers parts of a kind, or where it has none, itself."""
    try:
        return f"{module}.{kind}" if find_spec(f"{module}.{kind}") is not None else module
    except ModuleNotFoundError:  # it is no package, or it is not there: importing it says so
        return module


def _lies_here(point: EntryPoint) -> bool:
    """Whether a package's metadata lies in the working folder: a received folder must not choose code that runs."""
    return point.dist is not None and Path(str(point.dist.locate_file(""))).resolve() == Path.cwd().resolve()
