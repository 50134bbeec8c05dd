"""Spectra, loss landscapes and ensembles that a study keeps beside its runs, as notes in its store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from ..store import Store

if TYPE_CHECKING:
    from ...measures.curvature.density import Density
    from ...measures.slices import Slice

SPECTRUM, LANDSCAPE, ENSEMBLE = "spectrum/", "landscape/", "ensemble/"
GRID = 240  # points of a spectrum's curve: as many as a chart has pixels to tell apart, about


def keep_spectrum(store: Store, key: str, density: Density, title: str = "") -> None:
    """Keeps the spectral density of a run's Hessian for the report."""
    room = 0.05 * ((density.largest - density.smallest) or 1.0)
    grid = np.linspace(density.smallest - room, density.largest + room, GRID)
    curve, error = density.curve(grid)
    value = {"x": _short(grid), "density": _short(curve), "error": _short(error), "title": title}
    store.note(SPECTRUM + key, value)


def keep_landscape(store: Store, key: str, slice_: Slice, title: str = "") -> None:
    """Keeps the loss on a line or in a plane through a run's weights for the report."""
    axes = [_short(axis) for axis in slice_.axes]
    losses = [_short(row) for row in slice_.losses] if len(axes) == 2 else _short(slice_.losses)
    note = "" if slice_.complete else "stopped before all points were reached"
    value = {"x": axes[0], "y": axes[1] if len(axes) == 2 else None, "losses": losses, "names": list(slice_.names)}
    store.note(LANDSCAPE + key, value | {"title": title, "note": note})


def keep_ensemble(store: Store, name: str, values: Mapping[str, float], *, members: int, kind: str = "") -> None:
    """Keeps what an ensemble of runs came to, such as its error, its members' sharpness and their diversity."""
    store.note(ENSEMBLE + name, {"name": name, "kind": kind, "members": members, "values": dict(values)})


def attached(notes: Mapping[str, Any], number: Mapping[str, int]) -> dict[str, list[Any]]:
    """What was kept, run by run; of runs that the study no longer has, nothing."""

    def of_runs(prefix: str) -> list[Any]:
        found = [(number.get(name.removeprefix(prefix)), v) for name, v in notes.items() if name.startswith(prefix)]
        return [{**value, "run": run} for run, value in found if run is not None]

    ensembles = [value for name, value in notes.items() if name.startswith(ENSEMBLE)]
    return {"spectra": of_runs(SPECTRUM), "landscapes": of_runs(LANDSCAPE), "ensembles": ensembles}


def _short(numbers: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(f"{x:.5g}") if isfinite(x) else None for x in map(float, numbers)]
