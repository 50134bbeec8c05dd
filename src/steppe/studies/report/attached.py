"""Spectra, loss landscapes and ensembles that a study keeps beside its runs, as notes in its store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from ..pictures import ENSEMBLE, LANDSCAPE, SPECTRUM
from ..store import Store

if TYPE_CHECKING:
    from ...measures.curvature.density import Density
    from ...measures.estimate import Estimate
    from ...measures.landscape import Slice

GRID = 240  # points of a spectrum's curve: as many as a chart has pixels to tell apart, about

Note = dict[str, Any]


def keep_spectrum(store: Store, key: str, density: Density, title: str = "") -> None:
    """Keeps the spectral density of a run's Hessian for the report."""
    store.note(SPECTRUM + key, spectrum_note(density, title))


def keep_landscape(store: Store, key: str, slice_: Slice, title: str = "") -> None:
    """Keeps the loss on a line or in a plane through a run's weights for the report."""
    store.note(LANDSCAPE + key, landscape_note(slice_, title))


def keep_ensemble(store: Store, name: str, values: Mapping[str, float], *, members: int, kind: str = "") -> None:
    """Keeps what an ensemble of runs came to, such as its error, its members' sharpness and their diversity."""
    store.note(ENSEMBLE + name, {"name": name, "kind": kind, "members": members, "values": dict(values)})


def spectrum_note(density: Density, title: str = "") -> Note:
    """A density as a curve, with its error."""
    room = 0.05 * ((density.largest - density.smallest) or 1.0)
    grid = np.linspace(density.smallest - room, density.largest + room, GRID)
    curve, error = density.curve(grid)
    return {"x": _short(grid), "density": _short(curve), "error": _short(error), "title": title}


def landscape_note(slice_: Slice, title: str = "") -> Note:
    """Losses on a line or in a plane, with their axes."""
    axes = [_short(axis) for axis in slice_.axes]
    losses = [_short(row) for row in slice_.losses] if len(axes) == 2 else _short(slice_.losses)
    note = "" if slice_.complete else "stopped before all points were reached"
    value = {"x": axes[0], "y": axes[1] if len(axes) == 2 else None, "losses": losses, "names": list(slice_.names)}
    return value | {"title": title, "note": note}


def ensemble_note(scores: Mapping[str, Estimate], keys: Sequence[str]) -> Note:
    """What an ensemble of a study's own runs came to; the runs themselves know how sharp they are."""
    values, errors = ({name: getattr(e, part) for name, e in scores.items()} for part in ("value", "stderr"))
    return {"members": len(keys), "keys": list(keys), "values": values, "errors": errors}


def attached(notes: Mapping[str, Any], number: Mapping[str, int], roles: Mapping[str, Sequence[str]]) -> Note:
    """Spectra and landscapes that were kept, of runs that the study has: first those of runs that stand out.

    `roles` says how, as in "best"; a run that stood out among fewer runs is there too, and says nothing of it.
    """

    def of_runs(prefix: str) -> list[Any]:
        kept = {name.removeprefix(prefix): value for name, value in notes.items() if name.startswith(prefix)}
        keys = [key for key in (*roles, *(k for k in kept if k not in roles)) if key in kept and key in number]
        return [{**kept[key], "run": number[key], "roles": list(roles.get(key, ()))} for key in keys]

    return {"spectra": of_runs(SPECTRUM), "landscapes": of_runs(LANDSCAPE)}


def _short(numbers: Sequence[float] | np.ndarray) -> list[float | None]:
    return [float(f"{x:.5g}") if isfinite(x) else None for x in map(float, numbers)]
