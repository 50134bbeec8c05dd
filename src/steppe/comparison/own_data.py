"""Data from a user's own factory, saved as arrays so that every run, process and machine reads the same rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .._util.digests import digest
from .._util.files import atomic_write
from .._util.user_code import imported

if TYPE_CHECKING:
    from ..data.dataset import Splits


def saved(place: str, folder: Path) -> tuple[str, str]:
    """Call the factory `package.module:factory`, write its rows into a folder; return a name for them and their place.

    The name has the factory and a digest: other rows are other data, and so another comparison.
    """
    from ..data.dataset import Splits

    made = imported(place, "data factory")()
    if not isinstance(made, Splits):
        raise TypeError(f"{place} returned {type(made).__name__}: a data factory returns steppe.data.Splits")
    arrays = _arrays(made)
    content = digest(part for name, array in arrays.items() for part in (name, np.ascontiguousarray(array).tobytes()))
    file = folder / f"data-{content[:8]}.npz"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(file) as opened:
            np.savez_compressed(opened, **arrays)
    return f"{place}@{content[:8]}", f"npz:{file}"


def moved(where: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return where the data are of a comparison that lies in this folder now."""
    if "data" not in where:
        return dict(where)
    return {**where, "data": f"npz:{folder / Path(where['data'].removeprefix('npz:')).name}"}


def _arrays(splits: Splits) -> dict[str, Any]:
    arrays: dict[str, Any] = {"classes": np.array(splits.train.classes)} if splits.train.classes else {}
    for name, part in (("train", splits.train), ("test", splits.test), ("val", splits.validation)):
        if part is None:
            continue
        inputs = part.inputs.cpu().numpy()
        if part.fields:
            arrays |= {f"{field}_{name}": inputs[:, k] for k, field in enumerate(part.fields)}
        else:
            tokens = inputs.dtype == np.int64
            arrays[f"{'tokens' if tokens else 'x'}_{name}"] = inputs
        arrays[f"y_{name}"] = part.targets.cpu().numpy()
    return arrays
