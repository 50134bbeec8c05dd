"""Data sets by name, for configurations and commands; importing this module does not import torch."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
OTHERS = "Some of the papers (flowers102, stanford-cars, fgvc-aircraft, oxford-pets) come with steppe-papers."
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
    if not _last_loaded:
        return _read(name, root)
    key = name, str(Path(root).expanduser().absolute())
    if key not in _last_loaded[0]:
        _last_loaded[0].clear()  # one at a time: data sets are large
        _last_loaded[0][key] = _read(name, root)
    return _last_loaded[0][key]


_last_loaded: list[dict[tuple[str, str], Splits]] = []  # one and the same dictionary for each block of `loaded_once`


@contextmanager
def loaded_once() -> Iterator[None]:
    """Within the block, `load` keeps the data set that it read last, and returns it if it is loaded again.

    For code that loads a data set several times while its files stay the same. Blocks may be nested.
    """
    _last_loaded.append(_last_loaded[0] if _last_loaded else {})
    try:
        yield
    finally:
        _last_loaded.pop()


def keep_loaded() -> None:
    """Do the same to the end of this process, as workers do that compute many jobs on the same data."""
    if not _last_loaded:
        _last_loaded.append({})


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
