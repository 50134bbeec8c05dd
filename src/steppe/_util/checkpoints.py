"""Names in state dicts."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TypeVar

T = TypeVar("T")


def without_prefix(state: Mapping[str, T], own: Set[str], prefix: str | None = None) -> dict[str, T]:
    """A state dict without the prefixes that wrappers put on all of its names.

    Parameters
    ----------
    state
        Values by name.
    own
        The model's own names. As many prefixes are left out as makes most names of the state some of these.
    prefix
        The one prefix to leave out, such as DistributedDataParallel's "module". By default any that all names share.

    """
    names = dict(state)
    readings = [names]
    while names and all("." in name for name in names):
        shared = {name.partition(".")[0] for name in names}
        if len(shared) > 1 or prefix not in (None, *shared):
            break
        names = {name.partition(".")[2]: value for name, value in names.items()}
        readings.append(names)
    return max(readings, key=lambda reading: len(own & reading.keys()))
