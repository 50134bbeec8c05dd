"""Which pictures a study's report shows, and of which runs; without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._util.names import unknown

WHICH = {
    "best": "the lowest value of the first target",
    "worst": "the highest value of the first target",
    "flattest": "the lowest value of the first measure",
    "sharpest": "the highest value of the first measure",
}
"""Runs that pictures can show, among those that count."""

PICTURES = ("spectrum", "landscape", "ensembles")
USUAL_RUNS = {"spectrum": ("best", "worst"), "landscape": ("flattest", "sharpest")}


@dataclass(frozen=True)
class Show:
    """Pictures for the report, computed when all runs are measured; none by default.

    Parameters
    ----------
    spectrum, landscape : sequence of str
        The runs (keys of `WHICH`) whose Hessian spectra, or whose losses around the weights, are compared.
    ensembles : bool
        Whether runs that differ in their seed alone are scored as ensembles.

    """

    spectrum: Sequence[str] = ()
    landscape: Sequence[str] = ()
    ensembles: bool = False

    @classmethod
    def of(cls, value: Any) -> Show:
        """Parse `[spectrum, ensembles]` or `{spectrum: [best, flattest], ensembles: true}`."""
        pictures = {value: None} if isinstance(value, str) else value
        if isinstance(pictures, list) and all(isinstance(name, str) for name in pictures):
            pictures = dict.fromkeys(pictures)
        if not isinstance(pictures, Mapping):
            raise ValueError(f"show takes a list of {', '.join(PICTURES)}, or a mapping of them, not {value!r}")
        for name in pictures:
            if name not in PICTURES:
                raise ValueError(f"show: {unknown('picture', str(name), PICTURES)}")
        ensembles = pictures.get("ensembles", "ensembles" in pictures)
        if ensembles is not None and not isinstance(ensembles, bool):
            raise ValueError(f"show.ensembles takes true or false, not {ensembles!r}")
        spectrum, landscape = (_which(n, pictures.get(n, n in pictures)) for n in ("spectrum", "landscape"))
        return cls(spectrum, landscape, ensembles is not False)

    def words(self) -> list[str]:
        """Each picture with its runs."""
        of_runs = {"spectrum": self.spectrum, "landscape": self.landscape}
        lines = [f"{name} of {', '.join(which)}" for name, which in of_runs.items() if which]
        return [*lines, *(["ensembles"] if self.ensembles else [])]


def _which(name: str, value: Any) -> tuple[str, ...]:
    if value is None or isinstance(value, bool):
        return () if value is False else USUAL_RUNS[name]
    runs = [value] if isinstance(value, str) else value
    if not isinstance(runs, list) or not all(isinstance(run, str) for run in runs):
        raise ValueError(f"show.{name} takes a list of {', '.join(WHICH)}, not {value!r}")
    for run in runs:
        if run not in WHICH:
            raise ValueError(f"show.{name}: {unknown('choice of runs', run, WHICH)}")
    return tuple(dict.fromkeys(runs))
