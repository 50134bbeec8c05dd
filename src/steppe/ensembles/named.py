"""Strategies by name: how the configurations of an ensemble's members differ from the one that they come from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .._util.names import unknown
from ..training.config import Config
from ..training.exchange import Exchange
from .settings import Ensemble

Weights = Literal["last", "ema", "swa"]
Changes = Callable[[Config, Ensemble, int, int], dict[str, Any]]  # of member i in a run of so many epochs

START = 0.75  # of a run, after which weights are averaged: Izmailov et al. 2018, section 4.1


def _deep(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    return {"method": "none", "rho": None, "method_options": {}}


def _flat(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    return {}


def _own_radius(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    if len(ensemble.member_radii) != ensemble.members:
        raise ValueError(
            f"sam+ has a radius for every member, and there are {ensemble.members} members and "
            f"{len(ensemble.member_radii)} member_radii: give as many"
        )
    return {"rho": ensemble.member_radii[i]}


def _balanced(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    if ensemble.members < 2:
        raise ValueError("sharpbalance takes a member's sharp rows from the other members: take 2 members or more")
    if config.method == "none":
        raise ValueError("sharpbalance needs a method for the sharp rows, and none was given: take sam or another")
    at = max(1, epochs // 2) if ensemble.exchange_at is None else ensemble.exchange_at
    if at >= epochs:
        raise ValueError(
            f"members exchange scores after epoch {at}, and the run has {epochs}: nothing would come of it. Take "
            "exchange_at below the number of epochs"
        )
    return {"sharp_rows": str(Exchange(at, ensemble.exchange_every))}


def _averaged(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    swa = START if config.swa is None and config.ema is None else config.swa
    return {**_deep(config, ensemble, i, epochs), "swa": swa, "swa_every": "step"}


@dataclass(frozen=True)
class Strategy:
    """What it does, where it comes from, what it changes in the members' configurations, and which weights count."""

    about: str
    source: str
    changes: Changes
    averages: bool = False

    def weights(self, config: Config) -> Weights:
        """Which of a member's weights predict."""
        if not self.averages:
            return "last"
        return "swa" if config.swa is not None else "ema"


STRATEGIES: Mapping[str, Strategy] = {
    "deep": Strategy("members differ by their seeds, without a method", "Lakshminarayanan et al. 2017", _deep),
    "deep+sam": Strategy("members differ by their seeds, with the method", "Lu et al. 2024, section 4.4", _flat),
    "sam+": Strategy("every member has a radius of its own", "Lu et al. 2024, appendix F.4", _own_radius),
    "sharpbalance": Strategy(
        "the method on the rows that are sharp for the other members, plain steps on the rest",
        "Lu et al. 2024, section 4.3",
        _balanced,
    ),
    "eoa": Strategy("averages of the weights of members without a method", "Arpit et al. 2022", _averaged, True),
}


def strategy(name: str) -> Strategy:
    """The strategy of that name, or an error with the nearest ones."""
    if name not in STRATEGIES:
        raise ValueError(unknown("strategy", name, STRATEGIES))
    return STRATEGIES[name]
