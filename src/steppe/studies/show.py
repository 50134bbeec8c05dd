"""Which pictures a study was asked for, beside its numbers: spectra, landscapes, and ensembles of its runs."""

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
"""Runs of which pictures can be asked for, among those that count."""

USUAL = ("best", "worst")


@dataclass(frozen=True)
class Show:
    """Pictures that are made when all runs are measured; none unless they are asked for."""

    spectrum: Sequence[str] = ()
    """the density of the Hessian's eigenvalues, of these runs"""
    landscape: Sequence[str] = ()
    """the loss in a random plane through the weights, of these runs"""
    ensembles: bool = False
    """ensembles of the runs that differ in their seed alone: how often members disagree, beside how sharp they are"""

    @classmethod
    def of(cls, given: Any) -> Show:
        """What `[spectrum, ensembles]` or `{spectrum: [best, flattest], ensembles: true}` says."""
        asked = {given: None} if isinstance(given, str) else given
        if isinstance(asked, list) and all(isinstance(name, str) for name in asked):
            asked = dict.fromkeys(asked)
        if not isinstance(asked, Mapping):
            raise ValueError(f"show takes a list of {', '.join(NAMES)}, or a mapping of them, not {given!r}")
        for name in asked:
            if name not in NAMES:
                raise ValueError(f"show: {unknown('picture', str(name), NAMES)}")
        spectrum, landscape = (_which(n, asked[n]) if n in asked else () for n in ("spectrum", "landscape"))
        return cls(spectrum, landscape, _switch(asked["ensembles"]) if "ensembles" in asked else False)

    def words(self) -> list[str]:
        """Each picture with the runs that it is of."""
        of_runs = {"spectrum": self.spectrum, "landscape": self.landscape}
        said = [f"{name} of {', '.join(which)}" for name, which in of_runs.items() if which]
        return [*said, *(["ensembles"] if self.ensembles else [])]


NAMES = ("spectrum", "landscape", "ensembles")


def _which(name: str, given: Any) -> tuple[str, ...]:
    if given is None or given is True:
        return USUAL
    if given is False:
        return ()
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"show.{name} takes a list of {', '.join(WHICH)}, not {given!r}")
    for one in names:
        if one not in WHICH:
            raise ValueError(f"show.{name}: {unknown('choice of runs', one, WHICH)}")
    return tuple(dict.fromkeys(names))


def _switch(given: Any) -> bool:
    if given not in (None, True, False):
        raise ValueError(f"show.ensembles takes true or false, not {given!r}")
    return given is not False
