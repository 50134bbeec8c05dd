"""Data sets by name, for configurations and commands; importing this module does not import torch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from importlib import import_module
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.names import unknown
from .catalogue import CATALOGUE

if TYPE_CHECKING:
    from .dataset import Splits

Reader = Callable[[Path], "Splits"]


def _built_in(function: str) -> Reader:
    def make(root: Path) -> Splits:
        splits: Splits = getattr(import_module(".built_in", __package__), function)()
        return splits

    return make


def _published(module: str, name: str, function: str = "read") -> Reader:
    def read(root: Path) -> Splits:
        splits: Splits = getattr(import_module(f".{module}", __package__), function)(root, name)
        rows = (len(splits.train), len(splits.test))
        if rows != CATALOGUE[name].rows:
            warnings.warn(
                f"{name} under {root} has {rows[0]} training rows and {rows[1]} test rows, "
                f"and the published set has {CATALOGUE[name].rows[0]} and {CATALOGUE[name].rows[1]}",
                stacklevel=3,
            )
        return splits

    return read


DATASETS: dict[str, Reader] = {
    "digits": _built_in("digits"),
    "spirals": _built_in("spirals"),
    "teacher-student": _built_in("teacher_student"),
    "sparse-regression": _built_in("sparse_regression"),
    "mnist": _published("mnist", "mnist"),
    "fashion-mnist": _published("mnist", "fashion-mnist"),
    "cifar10": _published("cifar", "cifar10"),
    "cifar100": _published("cifar", "cifar100"),
    "svhn": _published("svhn", "svhn"),
    "tiny-imagenet": _published("folders", "tiny-imagenet", "read_tiny_imagenet"),
}
OWN = ("folder:PATH", "folder:PATH@SIZE", "npz:PATH")
"""Forms of names for data sets of the user's own."""


def load(name: str, root: Path | str = "data") -> Splits:
    """Load a data set by name.

    Parameters
    ----------
    name
        A name in `DATASETS`; `folder:PATH` for a folder of class folders of images, with `@SIZE` behind it resized to
        SIZE x SIZE; or `npz:PATH` for a file of arrays.
    root
        The folder that holds the published data sets.

    Returns
    -------
    Splits
        Training and test rows, and validation rows where the data set has them.

    """
    kind, place, size = split_name(name)
    if kind == "npz":
        from . import npz

        return npz.read(place)
    if kind == "folder":
        from . import folders

        return folders.read(place, size)
    if name not in DATASETS:
        raise ValueError(unknown("data set", name, [*DATASETS, *OWN]))
    return DATASETS[name](Path(root).expanduser())


def split_name(name: str) -> tuple[str, Path, int | None]:
    """Return the kind, the path and the size of `folder:PATH@SIZE`, `folder:PATH` or `npz:PATH`; other kinds are ""."""
    kind, _, place = name.partition(":")
    if not place or kind not in ("folder", "npz"):
        return "", Path(), None
    path, sized = Path(place).expanduser(), re.fullmatch(r"(.+)@(\d+)", place)
    if kind == "npz" or not sized or path.exists():
        return kind, path, None
    if not 1 <= int(sized[2]) <= 4096:
        raise ValueError(f"{name}: images of {sized[2]} x {sized[2]} are not possible; give 1 to 4096")
    return kind, Path(sized[1]).expanduser(), int(sized[2])


CHOICES = (
    "a data set, whose training rows determine means and standard deviations as in `steppe train`; MEANS/STDS of the "
    "channels, for pixels from 0 to 1, such as 0.49,0.48,0.45/0.25,0.24,0.26, in a study also {mean: [...], "
    "std: [...]}; or none, for unchanged inputs, with pixels from 0 to 255"
)
"""Values of `normalise`: how inputs of a bare checkpoint were normalised in training, which its file does not say."""


def declared(text: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Parse `normalise`: return means and standard deviations, empty for `none`; None if it names a data set."""
    if text == "none":
        return (), ()
    means, _, stds = text.partition("/")
    try:
        mean, std = (tuple(float(number) for number in part.split(",")) for part in (means, stds))
    except ValueError:
        if text not in DATASETS and not text.startswith(("folder:", "npz:")):
            reason = unknown("data set", text, [*DATASETS, *OWN])
            raise ValueError(f"normalise takes {CHOICES}. It is {text!r}, and {reason}") from None
        return None
    if len(mean) != len(std):
        raise ValueError(f"normalise is {text!r}: {len(mean)} means and {len(std)} standard deviations")
    if not all(isfinite(m) for m in mean) or not all(0 < s < inf for s in std):
        raise ValueError(f"normalise is {text!r}; means have to be finite and standard deviations above 0")
    return mean, std
