"""Registries: names and parts of one kind, such as methods, to which installed packages add theirs.

A package declares an entry point in the group of the registry, whose value is a module that registers its parts when
it is imported:

    [project.entry-points."steppe.methods"]
    my-package = "my_package.methods"

Where nothing is installed, as in a checkout on a borrowed machine, the variable STEPPE_PLUGINS lists such modules,
or packages that have one for each kind: my_package.methods, my_package.models and so on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar

from .names import unknown

PLUGINS = "STEPPE_PLUGINS"  # modules, separated by commas: each may register parts of any kind

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """The parts of one kind by name, in the order in which they were registered.

    Parameters
    ----------
    kind
        What a part is called in errors, such as "method".
    group
        The group of entry points, such as "steppe.methods".
    own
        The modules of steppe that register parts of this kind; they and the plugins are imported at the first look-up.

    """

    def __init__(self, kind: str, group: str, own: tuple[str, ...] = ()):
        self.kind, self.group = kind, group
        self._own, self._parts = own, dict[str, T]()
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


def plugins(group: str) -> list[str]:
    """The modules that installed packages and the variable STEPPE_PLUGINS name for a group."""
    installed = [point.module for point in entry_points(group=group) if not _lies_here(point)]
    named = os.environ.get(PLUGINS, "").split(",")
    listed = (_part(module.strip(), group.rpartition(".")[2]) for module in named if module.strip())
    return list(dict.fromkeys([*installed, *listed]))


def _part(module: str, kind: str) -> str:
    """The module of a package that registers parts of a kind, or where it has none, itself."""
    try:
        return f"{module}.{kind}" if find_spec(f"{module}.{kind}") is not None else module
    except ModuleNotFoundError:  # it is no package, or it is not there: importing it says so
        return module


def _lies_here(point: EntryPoint) -> bool:
    """Whether a package's metadata lies in the working folder: a received folder must not choose code that runs."""
    return point.dist is not None and Path(str(point.dist.locate_file(""))).resolve() == Path.cwd().resolve()
