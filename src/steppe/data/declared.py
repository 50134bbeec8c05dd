"""How the inputs of a bare checkpoint were standardised in training: its file does not say, so its user does."""

from __future__ import annotations

from math import inf, isfinite

from .._util.names import unknown
from .named import DATASETS, OWN

CHOICES = (
    "a data set, whose training rows standardise as they do in `steppe train`; MEANS/STDS of the channels, for pixels "
    "from 0 to 1, such as 0.49,0.48,0.45/0.25,0.24,0.26; or none, for inputs as they are, pixels from 0 to 255"
)
Numbers = tuple[tuple[float, ...], tuple[float, ...]]


def declared(words: str) -> Numbers | None:
    """The means and standard deviations that are given, without any for `none`; None if words name a data set."""
    if words == "none":
        return (), ()
    means, _, stds = words.partition("/")
    try:
        mean, std = (tuple(float(number) for number in part.split(",")) for part in (means, stds))
    except ValueError:
        if words not in DATASETS and not words.startswith(("folder:", "npz:")):
            there = unknown("data set", words, [*DATASETS, *OWN])
            raise ValueError(f"standardise takes {CHOICES}. It is {words!r}, and {there}") from None
        return None
    if len(mean) != len(std):
        raise ValueError(f"standardise is {words!r}: {len(mean)} means and {len(std)} standard deviations")
    if not all(isfinite(m) for m in mean) or not all(0 < s < inf for s in std):
        raise ValueError(f"standardise is {words!r}, and means are finite and standard deviations above 0")
    return mean, std
