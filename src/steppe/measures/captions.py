"""Captions of slices and paths: the radius, the cost, the directions, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .paths import Path
from .slices import Slice


def caption(drawn: Slice | Path | Sequence[Slice], names: Sequence[str] = ()) -> str:
    """A description of the data: the radius and the rise, points, cost, directions, and what is missing.

    Parameters
    ----------
    drawn
        As in `figure`.
    names
        Of several slices.

    """
    slices = slices_of(drawn)
    labels = names if len(names) == len(slices) else [f"panel {i}" for i in range(1, len(slices) + 1)]
    if isinstance(drawn, Path) or len(slices) == 1:
        return "; ".join([*_radius(slices, labels), *_about(slices[0], drawn)]) + "."
    each = [f"{label}: {'; '.join(_about(shown, shown))}" for label, shown in zip(labels, slices, strict=True)]
    return ". ".join(["; ".join([*_radius(slices, labels), "one scale for all"]), *each]) + "."


def _radius(slices: Sequence[Slice], labels: Sequence[str]) -> list[str]:
    """The stated radius, and the rise that it was chosen for."""
    notes = slices[0].notes
    if "rise" not in notes:
        return []
    own = [shown.notes["own_radius"] for shown in slices]
    sharpest = min(range(len(own)), key=lambda i: own[i] if own[i] is not None else np.inf)
    who = labels[sharpest] if len(slices) > 1 else "the loss"
    parts = [f"radius {notes['radius']:.3g}: {who} rises by {notes['rise']:g} at the end of an axis"]
    for i, reached in enumerate(own):
        if i != sharpest:
            where = f"at {reached:.3g}" if reached is not None else "nowhere"
            parts.append(f"{labels[i]} rises by as much {where}")
    return parts


def _about(shown: Slice, drawn: Slice | Path | Sequence[Slice]) -> list[str]:
    parts = [] if isinstance(drawn, Path) else [f"loss at the weights {shown.baseline:.4g}"]
    if not isinstance(drawn, Path) and (shown.centre is None or not np.isfinite(shown.losses[shown.centre])):
        parts = [f"rise above the lowest loss of the grid, {shown.baseline:.4g}"]
    parts.append(" by ".join(str(n) for n in shown.losses.shape) + f" points, {shown.cost}")
    letters = "t" if isinstance(drawn, Path) else "xy"
    for letter, name, length in zip(letters, shown.names, shown.lengths, strict=False):
        way = name if name.startswith("towards") else f"along {name}"
        parts.append(f"one unit of {letter} is a length of {length:.4g} {way}")
    if shown.cosine is not None:
        parts.append(f"cosine between the two {shown.cosine:.3f}")
    if isinstance(drawn, Path):
        parts.append(f"floating-point buffers: {drawn.buffers}")
        parts += [f"{len(drawn.kept)} tensors that differ were kept, such as {drawn.kept[0]}"] if drawn.kept else []
    parts += [f"{shown.nonfinite} losses infinite or not a number"] if shown.nonfinite else []
    parts += [] if shown.complete else [f"stopped early, after {int(shown.filled.sum())} points"]
    return parts


def slices_of(drawn: Slice | Path | Sequence[Slice]) -> list[Slice]:
    """The slices of anything that can be drawn."""
    return [drawn.along] if isinstance(drawn, Path) else [drawn] if isinstance(drawn, Slice) else list(drawn)
