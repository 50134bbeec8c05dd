"""Spectra, loss landscapes and ensembles: notes in a study's store, and what the page shows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core.fields import fits
from ..pictures import COMPARISON, ENSEMBLE, LANDSCAPE, SPECTRUM
from ..statistics.design import SEEDS
from ..store import Store
from ..table import Run, Table

if TYPE_CHECKING:
    from ...measures.curvature.lanczos import Density
    from ...measures.estimate import Estimate
    from ...measures.landscape import Slice

GRID = 480  # points of a spectrum's curve: about as many as a chart has pixels
WIDTH = 0.005  # of the Gaussians that smooth spectra, relative to the range of all spectra of the study
SHARPNESS = "sharpness"  # the members' sharpness in ensembles that `keep_ensemble` stored
SCORES = ("disagreement", "der", "variance", "kl", "eir", "accuracy", "member_accuracy", "nll", "member_nll")  # first

Note = dict[str, Any]


def keep_spectrum(store: Store, key: str, density: Density, title: str = "") -> None:
    """Store the spectral density of a run's Hessian for the report.

    Parameters
    ----------
    store : Store
        The study's store, open for writing.
    key : str
        The run's key.
    density : Density
        From `steppe.measures.spectral_density`.
    title : str
        Shown in place of the run's name.

    """
    store.note(SPECTRUM + key, spectrum_note(density, title))


def keep_landscape(store: Store, key: str, slice_: Slice, title: str = "") -> None:
    """Store the loss on a line or in a plane through a run's weights for the report.

    Parameters
    ----------
    store : Store
        The study's store, open for writing.
    key : str
        The run's key.
    slice_ : Slice
        From `steppe.measures.slice_1d`, `slice_2d` or `slice_along`.
    title : str
        Shown in place of the run's name.

    """
    store.note(LANDSCAPE + key, landscape_note(slice_, title))


def keep_ensemble(store: Store, name: str, values: Mapping[str, float], *, members: int, kind: str = "") -> None:
    """Store numbers of an ensemble of runs for the report.

    Parameters
    ----------
    store : Store
        The study's store, open for writing.
    name : str
        The ensemble's name.
    values : mapping of str to float
        Numbers by name, such as `sharpness`, `diversity` and `error`.
    members : int
        Number of members.
    kind : str
        Ensembles of the same kind share a colour and a slope.

    """
    store.note(ENSEMBLE + name, {"name": name, "kind": kind, "members": members, "values": dict(values)})


def spectrum_note(density: Density, title: str = "") -> Note:
    """The quadrature rules of a spectral density: the page smooths the spectra of all runs by one width."""
    nodes, weights = ([_rounded(getattr(run, part)) for run in density.runs] for part in ("values", "weights"))
    return {"nodes": nodes, "weights": weights, "dimension": density.dimension, "title": title}


def landscape_note(slice_: Slice, title: str = "") -> Note:
    """Losses on a line or in a plane with their axes."""
    x, y = (*map(_rounded, slice_.axes), None)[:2]
    note = "" if slice_.complete else "stopped before all points were computed"
    value = {"x": x, "y": y, "losses": _rounded(slice_.losses), "names": list(slice_.names)}
    return value | {"title": title, "note": note}


def comparison_note(kind: str, keys: Sequence[str], slices: Sequence[Slice]) -> Note:
    """The rise of the loss around several runs, as `comparable_slices` computes it."""
    runs = [
        {
            "key": key,
            "x": _rounded(one.axes[0]),
            "y": _rounded(one.axes[1]),
            "rises": _rounded(one.excess),
            "loss": one.baseline,
            "names": list(one.names),
            "own_radius": one.notes["own_radius"],
        }
        for key, one in zip(keys, slices, strict=True)
    ]
    return {"directions": kind, "radius": slices[0].notes["radius"], "rise": slices[0].notes["rise"], "runs": runs}


def ensemble_note(scores: Mapping[str, Estimate], keys: Sequence[str]) -> Note:
    """The scores of an ensemble of a study's own runs; the runs themselves hold their sharpness."""
    values, errors = ({name: getattr(e, part) for name, e in scores.items()} for part in ("value", "stderr"))
    return {"members": len(keys), "keys": list(keys), "values": values, "errors": errors}


def _rounded(numbers: Any) -> list[Any]:
    """Five digits of each number, null where it is not finite; nested lists for a matrix."""
    if np.ndim(numbers) > 1:
        return [_rounded(row) for row in numbers]
    return [float(f"{x:.5g}") if isfinite(x) else None for x in map(float, numbers)]


def pictures(notes: Mapping[str, Any], table: Table, roles: Mapping[str, Sequence[str]]) -> Note:
    """Stored spectra and landscapes of the table's runs, those of runs with a role ("best") first.

    A run that had a role among fewer runs is included without one.
    """
    number = {run.key: i for i, run in enumerate(table.runs)}

    def named(key: str, value: Mapping[str, Any]) -> Note:
        return {**value, "run": number[key], "roles": list(roles.get(key, ()))}

    def of_runs(prefix: str) -> dict[str, Any]:
        stored = {name.removeprefix(prefix): value for name, value in notes.items() if name.startswith(prefix)}
        keys = [key for key in (*roles, *(k for k in stored if k not in roles)) if key in stored and key in number]
        return {key: stored[key] for key in keys}

    spectra = of_runs(SPECTRUM)
    sets = [
        {**one, "runs": [named(run["key"], run) for run in one["runs"]]} for one in _comparisons(notes, number, roles)
    ]
    single = [named(key, _risen(value)) for key, value in of_runs(LANDSCAPE).items()]
    sets += [{"directions": "stored", "radius": None, "rise": None, "runs": single}] if single else []
    return {
        "spectra": [named(key, value) for key, value in zip(spectra, _smoothed([*spectra.values()]), strict=True)],
        "landscapes": sets,
    }


def _comparisons(notes: Mapping[str, Any], number: Mapping[str, int], roles: Mapping[str, Any]) -> list[Note]:
    """Per kind of directions the compared landscapes whose runs have the most roles now; of these, the last."""
    stored = [value for name, value in notes.items() if name.startswith(COMPARISON)]
    current = [one for one in stored if all(run["key"] in number for run in one["runs"])]
    current.sort(key=lambda one: sum(run["key"] in roles for run in one["runs"]))
    best = {one["directions"]: one for one in current}
    return [best[kind] for kind in sorted(best)]


def _risen(note: Mapping[str, Any]) -> Note:
    """A single landscape, stored with its losses, as the rise above the loss at the weights, or above the lowest."""
    losses = np.array(note["losses"], dtype=np.float64)  # null is nan
    axes = [np.array(axis, dtype=np.float64) for axis in (note["x"], note.get("y")) if axis is not None]
    zeros = [np.flatnonzero(axis == 0) for axis in axes]
    at_weights = float(losses[tuple(z[0] for z in zeros)]) if all(len(z) for z in zeros) else float("nan")
    finite = losses[np.isfinite(losses)]
    loss = at_weights if isfinite(at_weights) else float(finite.min()) if len(finite) else 0.0
    others = {k: v for k, v in note.items() if k != "losses"}
    return {**others, "loss": loss, "rises": _rounded(losses - loss), "own_radius": None}


def _smoothed(notes: Sequence[Mapping[str, Any]]) -> list[Note]:
    """Spectral densities with their errors, on one grid and smoothed by one width.

    A spectrum that was stored as a curve stays as it is, without a width: it was smoothed by 1 % of its own range.
    """
    if not notes:  # the next lines import torch
        return []
    from ...measures.curvature.lanczos import Density, Ritz

    densities = {}
    for i, note in enumerate(notes):
        rules = zip(note.get("nodes", ()), note.get("weights", ()), strict=True)
        if runs := [Ritz(np.array(x), np.sqrt(np.array([w])), np.zeros(len(x))) for x, w in rules]:
            densities[i] = Density(runs, int(note.get("dimension", 0)))
    curves: list[Note] = [{**note, "width": None} for note in notes]
    low = min((one.smallest for one in densities.values()), default=0.0)
    high = max((one.largest for one in densities.values()), default=0.0)
    width = WIDTH * ((high - low) or abs(high) or 1.0)
    grid = np.linspace(low - 10 * width, high + 10 * width, GRID)
    for i, density in densities.items():
        curve, error = density.curve(grid, width)
        curves[i] = {
            "x": _rounded(grid), "density": _rounded(curve), "error": _rounded(error), "width": width,
            "title": notes[i].get("title", ""), "lambda_max": density.largest, "dimension": density.dimension,
        }  # fmt: skip
    return curves


def ensembles(
    notes: Mapping[str, Any], table: Table, settings: Mapping[str, Sequence[Any]], measures: Sequence[str]
) -> Note:
    """Ensembles with the names and measured sharpness of their members, and the slopes per kind."""
    number = {run.key: i for i, run in enumerate(table.runs)}
    stored = [value for name, value in notes.items() if name.startswith(ENSEMBLE)]
    stored.sort(key=lambda one: min((number.get(key, 0) for key in one.get("keys", ())), default=0))  # as planned
    rows: list[Note] = []
    for one in stored:
        keys = one.get("keys")
        if keys is None:
            rows.append({"errors": {}, **one})
        elif set(keys) <= set(number) and not any(set(keys) < set(other.get("keys", ())) for other in stored):
            values = {name: values[number[keys[0]]] for name, values in settings.items() if name not in SEEDS}
            rows.append({**_name(values), **_numbers(one, [table.runs[number[key]] for key in keys], measures)})
    return {"ensembles": rows, "slopes": _slopes(rows, measures)}


def _name(values: Mapping[str, Any]) -> Note:
    """An ensemble's name: its method, and the other settings that differ between runs."""
    kind = values.get("method")
    others = {k: v for k, v in values.items() if k != "method" and v is not None}
    words = [f"{k}={v:g}" if fits(v, float) else f"{k}={v}" for k, v in others.items()]
    return {"name": " ".join([*([str(kind)] if kind else []), *words]), "kind": str(kind or "")}


def _numbers(one: Mapping[str, Any], runs: Sequence[Run], measures: Sequence[str]) -> Note:
    """The mean of each measure over the members with its error, and the ensemble's own scores."""
    from torch import float64, tensor

    from ...measures.estimate import summarise

    values, errors = {}, {}
    for name in measures:
        if all(name in run.measures for run in runs):
            mean = summarise(tensor([run.measures[name].value for run in runs], dtype=float64), "unbiased")
            values[name], errors[name] = mean.value, mean.stderr
    order = [*SCORES, *(name for name in one["values"] if name not in SCORES)]
    values |= {name: one["values"][name] for name in order if name in one["values"]}
    return {"members": one["members"], "values": values, "errors": errors | one["errors"]}


def _slopes(rows: Sequence[Mapping[str, Any]], measures: Sequence[str]) -> list[Note]:
    """Per kind, the slope of log diversity over log sharpness, from three ensembles on."""
    if not rows:
        return []
    from ...ensembles.tradeoff import DIVERSITIES, slope, slope_interval

    slopes = []
    for kind in dict.fromkeys(str(e.get("kind", "")) for e in rows):
        same = [e["values"] for e in rows if str(e.get("kind", "")) == kind]
        for x in (*measures, SHARPNESS):
            for y in (*DIVERSITIES, "diversity"):
                pairs = [(v[x], v[y]) for v in same if fits(v.get(x), float) and fits(v.get(y), float)]
                if len(pairs) > 2:  # two points have a slope, and no error
                    e = slope(*zip(*pairs, strict=True))
                    low, high = slope_interval(e)
                    slopes.append({"kind": kind, "x": x, "y": y, "slope": e.value, "low": low, "high": high, "n": e.n})
    return slopes
