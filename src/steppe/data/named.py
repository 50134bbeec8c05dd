"""Data sets by name, for configurations and commands."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.names import unknown
from .catalogue import CATALOGUE

if TYPE_CHECKING:
    from .dataset import Splits

Reader = Callable[[Path], "Splits"]


def _built_in(module: str, function: str) -> Reader:
    def make(root: Path) -> Splits:
        made: Splits = getattr(import_module(f".{module}", __package__), function)()
        return made

    return make


def _published(module: str, name: str) -> Reader:
    def read(root: Path) -> Splits:
        found: Splits = import_module(f".{module}", __package__).read(root, name)
        rows = (len(found.train), len(found.test))
        if rows != CATALOGUE[name].rows:
            warnings.warn(
                f"{name} under {root} has {rows[0]} rows to train on and {rows[1]} to test on, "
                f"and the published set has {CATALOGUE[name].rows[0]} and {CATALOGUE[name].rows[1]}",
                stacklevel=3,
            )
        return found

    return read


# What makes or reads each: modules are imported when they are needed, because torch takes seconds
DATASETS: dict[str, Reader] = {
    "digits": _built_in("digits", "digits"),
    "spirals": _built_in("synthetic", "spirals"),
    "teacher-student": _built_in("synthetic", "teacher_student"),
    "sparse-regression": _built_in("synthetic", "sparse_regression"),
    "mnist": _published("idx", "mnist"),
    "fashion-mnist": _published("idx", "fashion-mnist"),
    "cifar10": _published("cifar", "cifar10"),
    "cifar100": _published("cifar", "cifar100"),
    "svhn": _published("svhn", "svhn"),
    "tiny-imagenet": _published("tiny_imagenet", "tiny-imagenet"),
}
OWN = ("folder:PATH", "folder:PATH@SIZE", "npz:PATH")


def load(name: str, root: Path | str = "data") -> Splits:
    """The data set of that name; published ones are looked for under `root`.

    `folder:PATH` is a folder of class folders, with `@SIZE` behind it brought to pictures of that size; `npz:PATH` is
    a file of arrays.
    """
    kind, colon, place = name.partition(":")
    if colon and kind == "npz":
        from . import npz

        return npz.read(Path(place).expanduser())
    if colon and kind == "folder":
        from . import folders

        sized = re.fullmatch(r"(.+)@(\d+)", place)
        if sized and not Path(place).expanduser().exists():
            if not 1 <= int(sized[2]) <= 4096:
                raise ValueError(f"{name}: pictures of {sized[2]} x {sized[2]} were asked for; 1 to 4096 are possible")
            return folders.read(Path(sized[1]).expanduser(), int(sized[2]))
        return folders.read(Path(place).expanduser())
    if name not in DATASETS:
        raise ValueError(unknown("data set", name, [*DATASETS, *OWN]))
    return DATASETS[name](Path(root).expanduser())
