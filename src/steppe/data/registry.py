"""Data sets by name, for configurations and commands; importing this module does not import torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.names import unknown
from .catalogue import DATASETS

if TYPE_CHECKING:
    from .dataset import Splits

OWN = {
    "folder:PATH": "class folders of pictures",
    "folder:PATH@SIZE": "the same, resized to one size",
    "npz:PATH": "arrays in a NumPy file",
}
"""Forms of names for data sets of the user's own."""
OTHERS = "Some of the papers (flowers102, stanford-cars, oxford-pets, sparse-regression, ...) come with steppe-papers."
LARGEST = 4096  # pixels of a side


def check_name(name: str) -> tuple[str, int | None]:
    """Return a data set's name and the size behind it; raise ValueError for unknown names and impossible sizes."""
    if name.startswith(("folder:", "npz:")):
        return name, split_name(name)[2]
    base, size = _sized(name)
    if base not in DATASETS:
        for kind, found in (("npz", name.endswith(".npz")), ("folder", Path(name).expanduser().is_dir())):
            if found:
                raise ValueError(f"there is no data set {name!r}: for your own, write {kind}:{name}")
        raise ValueError(f"{unknown('data set', name, [*DATASETS, *OWN])} {OTHERS}")
    if size is not None and not DATASETS[base].sized:
        sized = ", ".join(name for name, one in DATASETS.items() if one.sized) or "folder:PATH"
        raise ValueError(f"{name}: images of {base} have one size; @SIZE is for {sized}")
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
    sized = re.fullmatch(r"(.+)@(\d+)", name)
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
        With `@SIZE` behind it, pictures of a folder, or of a data set with pictures of many sizes, are resized.
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
    return kept("set", (name, absolute(root)), lambda: _read(name, root))


def absolute(root: Path | str) -> Path:
    """Return the folder that holds the data sets, whatever the working folder is later."""
    return Path(root).expanduser().absolute()


_last: list[dict[str, tuple[object, Splits]]] = []  # by use, with its key; one dictionary for all blocks


def kept(use: str, key: object, make: Callable[[], Splits]) -> Splits:
    """Return the rows that `make` returns; in a block of `loaded_once`, those of the last call with the same key."""
    if not _last:
        return make()
    last = _last[0]
    before, rows = last.pop(use, (None, None))  # another thread may ask for others meanwhile
    if rows is None or before != key:
        rows = None  # one at a time: data sets are large
        rows = make()
    last[use] = key, rows
    return rows


@contextmanager
def loaded_once() -> Iterator[None]:
    """Within the block, keep the data set that was read last, and the rows that were last made of one.

    For code that loads a data set several times while its files stay the same. Blocks may be nested.
    """
    _last.append(_last[0] if _last else {})
    try:
        yield
    finally:
        _last.pop()


def keep_loaded() -> None:
    """Do the same to the end of this process, as workers do that compute many jobs on the same data."""
    if not _last:
        _last.append({})


def _read(name: str, root: Path | str) -> Splits:
    from . import folders, npz

    kind, place, size = split_name(name)
    if kind == "npz":
        return npz.read(place)
    if kind == "folder":
        return folders.read(place, size)
    base, size = check_name(name)
    return DATASETS[base](Path(root).expanduser(), *([] if size is None else [size]))


CHOICES = (
    "a data set, for the means and deviations of its training samples; MEANS/STDS of the channels, such as "
    "0.49,0.48,0.45/0.25,0.24,0.26 for pixels from 0 to 1; or none"
)
"""Values of `normalise`: how inputs of a bare checkpoint were normalised in training, which its file does not say."""


def declared(text: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Parse `normalise`: return means and standard deviations, empty for `none`; None if it names a data set."""
    if text == "none":
        return (), ()
    try:
        mean, std = (tuple(map(float, part.split(","))) for part in text.split("/"))
    except ValueError:
        try:
            check_name(text)
        except ValueError as reason:
            raise ValueError(f"normalise takes {CHOICES}. It is {text!r}, and {reason}") from None
        return None
    if len(mean) != len(std):
        raise ValueError(f"normalise is {text!r}: {len(mean)} means and {len(std)} standard deviations")
    if not all(map(isfinite, mean)) or not all(0 < s < inf for s in std):
        raise ValueError(f"normalise is {text!r}; means have to be finite and standard deviations above 0")
    return mean, std
