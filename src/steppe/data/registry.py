"""Data sets by name, for configurations and commands; importing this module does not import torch."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.names import unknown
from .catalogue import CATALOGUE

if TYPE_CHECKING:
    from .dataset import Splits

Reader = Callable[..., "Splits"]  # from the root and, for pictures of many sizes, the size in pixels


def _built_in(function: str) -> Reader:
    def make(root: Path) -> Splits:
        splits: Splits = getattr(import_module(".built_in", __package__), function)()
        return splits

    return make


def _published(module: str, name: str, function: str = "read") -> Reader:
    def read(root: Path, *size: int) -> Splits:
        splits: Splits = getattr(import_module(f".{module}", __package__), function)(root, name, *size)
        rows = (len(splits.train), len(splits.test))
        if rows != CATALOGUE[name].rows:
            warnings.warn(
                f"{name} under {root} has {rows[0]} training rows and {rows[1]} test rows, "
                f"and the published set has {CATALOGUE[name].rows[0]} and {CATALOGUE[name].rows[1]}",
                stacklevel=3,
            )
        return splits

    return read


PICTURES = ("flowers102", "stanford-cars", "fgvc-aircraft", "oxford-pets")
"""Published data sets of pictures of many sizes, whose names take a size: `flowers102@64`."""

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
    **{name: _published("listed", name) for name in PICTURES},
}
OWN = ("folder:PATH", "folder:PATH@SIZE", "npz:PATH")
"""Forms of names for data sets of the user's own."""
SIZED = re.compile(r"(.+)@(\d+)")
LARGEST = 4096  # pixels of a side


def check_name(name: str) -> tuple[str, int | None]:
    """Return a data set's name and the size behind it; raise ValueError for unknown names and impossible sizes."""
    if name.startswith(("folder:", "npz:")):
        return name, split_name(name)[2]
    base, size = _sized(name)
    if base not in DATASETS:
        raise ValueError(unknown("data set", name, [*DATASETS, *OWN]))
    if size is not None and base not in PICTURES:
        raise ValueError(f"{name}: images of {base} have one size; @SIZE is for {', '.join(PICTURES)}")
    return base, size


def split_name(name: str) -> tuple[str, Path, int | None]:
    """Return the kind, the path and the size of `folder:PATH@SIZE`, `folder:PATH` or `npz:PATH`; other kinds are ""."""
    kind, _, place = name.partition(":")
    if not place or kind not in ("folder", "npz"):
        return "", Path(), None
    if kind == "npz" or Path(place).expanduser().exists():  # a folder's name may end like a size
        return kind, Path(place).expanduser(), None
    base, size = _sized(place)
    return kind, Path(base).expanduser(), size


def _sized(name: str) -> tuple[str, int | None]:
    """Return what stands before and behind `@`, if that is a size."""
    sized = SIZED.fullmatch(name)
    if not sized:
        return name, None
    if not 1 <= int(sized[2]) <= LARGEST:
        raise ValueError(f"{name}: images of {sized[2]} x {sized[2]} are not possible; give 1 to {LARGEST}")
    return sized[1], int(sized[2])


def load(name: str, root: Path | str = "data") -> Splits:
    """Load a data set by name.

    Parameters
    ----------
    name
        A name in `DATASETS`; `folder:PATH` for a folder of class folders of images; or `npz:PATH` for a file of arrays.
        With `@SIZE` behind it, pictures of a folder or of a name in `PICTURES` are resized to SIZE x SIZE.
    root
        The folder that holds the published data sets.

    Returns
    -------
    Splits
        Training and test rows, and validation rows where the data set has them.

    Examples
    --------
    >>> splits = steppe.data.load("digits")
    >>> splits.train.inputs.shape, len(splits.test), splits.train.classes[:3]
    (torch.Size([1200, 1, 8, 8]), 597, ('0', '1', '2'))

    """
    if not _memory.blocks:
        return _read(name, root)
    key = name, str(Path(root).expanduser().absolute())
    if key not in _memory.kept:
        _memory.kept.clear()  # one at a time: data sets are large
        _memory.kept[key] = _read(name, root)
    return _memory.kept[key]


@dataclass
class _Memory:
    """The data set that `load` read last, and the number of open blocks of `loaded_once`."""

    blocks: int = 0
    kept: dict[tuple[str, str], Splits] = field(default_factory=dict)


_memory = _Memory()


@contextmanager
def loaded_once() -> Iterator[None]:
    """Within the block, `load` keeps the data set that it read last, and returns it if it is loaded again.

    For code that loads a data set several times while its files stay the same. Blocks may be nested.
    """
    _memory.blocks += 1
    try:
        yield
    finally:
        _memory.blocks -= 1
        if not _memory.blocks:
            _memory.kept.clear()


def _read(name: str, root: Path | str) -> Splits:
    kind, place, size = split_name(name)
    if kind == "npz":
        from . import npz

        return npz.read(place)
    if kind == "folder":
        from . import folders

        return folders.read(place, size)
    base, size = check_name(name)
    root = Path(root).expanduser()
    return DATASETS[base](root) if size is None else DATASETS[base](root, size)


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
        try:
            check_name(text)
        except ValueError as reason:
            raise ValueError(f"normalise takes {CHOICES}. It is {text!r}, and {reason}") from None
        return None
    if len(mean) != len(std):
        raise ValueError(f"normalise is {text!r}: {len(mean)} means and {len(std)} standard deviations")
    if not all(isfinite(m) for m in mean) or not all(0 < s < inf for s in std):
        raise ValueError(f"normalise is {text!r}; means have to be finite and standard deviations above 0")
    return mean, std
