"""Settings of an ensemble, and strategies by name: how its members' configurations differ. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from .._util.names import unknown
from ..core.fields import Count, Gt, Le, NonNegative, check_fields
from ..training.config import Config, Weights
from ..training.schedule import Exchange

End = Literal["sharpest", "flattest"]
Rest = Literal["normal", "own-share", "other-shares"]
How = Literal["sequence", "processes"]
BALANCE = ("exchange_at", "exchange_every", "share", "named", "rest")  # settings of SharpBalance
OF_STRATEGIES = ("member_radii", *BALANCE)  # settings that some strategies read


@dataclass(frozen=True)
class Ensemble:
    """Settings of an ensemble: its members, how they differ, what they exchange, and how they are trained.

    Each field has its description below it, which `steppe ensemble --help` shows too.

    Examples
    --------
    >>> ensemble = steppe.ensembles.Ensemble(members=2, strategy="sam+", member_radii=[0.05, 0.1])
    >>> [member.rho for member in steppe.ensembles.members_of(steppe.training.Config(), ensemble)]
    [0.05, 0.1]

    """

    headings: ClassVar[Mapping[str, tuple[str, ...]]] = {  # of the help page
        "strategies of ensembles": OF_STRATEGIES,
    }
    members: Count = 3  # SharpBalance paper, section 4.4
    """number of runs"""
    seeds: list[int] = field(default_factory=list)
    """seeds of the members; by default member i has the seed 1000 seed + i"""
    strategy: str = "sharpbalance"
    """deep, deep+sam, sam+, sharpbalance or eoa; several with commas between train one ensemble each"""
    member_radii: list[NonNegative] = field(default_factory=lambda: [0.05, 0.1, 0.2])  # SharpBalance paper, F.4
    """sam+: one radius per member"""
    exchange_at: Count | None = None  # SharpBalance paper, Table 1: 100 of 200
    """sharpbalance: epochs with all rows sharpness-aware before scores are exchanged (T_d); defaults to half"""
    exchange_every: Count | None = None
    """sharpbalance: epochs between later exchanges; defaults to a single exchange"""
    share: Annotated[float, Gt(0), Le(1)] = 0.5  # SharpBalance's released scripts; its paper's grid is 0.2 to 0.6
    """sharpbalance: the fraction of the rows that every member reports to the others (k %)"""
    named: End = "sharpest"
    """sharpbalance: which end of the scores it reports; the released code has flattest"""
    rest: Rest = "normal"
    """sharpbalance: rows that no member reports: normal takes plain steps on them; the others deal them out, and a
    member takes sharpness-aware steps on its own share or on all but its own, as in the released code"""
    how: How = "sequence"
    """members one after the other, or in several processes"""
    processes: Count | None = None
    """number of processes, with --how processes; defaults to one per member, at most one per core"""

    def __post_init__(self) -> None:
        check_fields(self, "")


SHARPNESS = "adaptive_worst_l2@0.5[count=500,m=5]"  # SharpBalance paper: section 4.1 and appendix D.2
RHO = 0.2  # of SAM in ensembles: SharpBalance paper, Table 1, for all three data sets
Changes = Callable[[Config, Ensemble, int, int], dict[str, Any]]  # for member i in a run of that many epochs

START = 0.75  # fraction of a run after which weights are averaged: Izmailov et al. 2018, section 4.1


def _deep(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    return {"method": "none", "rho": None, "method_options": {}}


def _flat(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    own = config.rho is not None or "rho" in config.method_options or config.method != "sam"
    return {} if own else {"rho": RHO}


def _own_radius(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    if len(ensemble.member_radii) != ensemble.members:
        raise ValueError(
            f"sam+ needs one radius per member, and there are {ensemble.members} members and "
            f"{len(ensemble.member_radii)} member_radii: give one radius per member"
        )
    return {"rho": ensemble.member_radii[i]}


def _balanced(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    if ensemble.members < 2:
        raise ValueError("sharpbalance takes a member's sharp rows from the other members: use 2 members or more")
    if config.method == "none":
        raise ValueError("sharpbalance needs a method for the sharp rows, and the method is none: use sam or another")
    at = max(1, epochs // 2) if ensemble.exchange_at is None else ensemble.exchange_at
    if at >= epochs:
        raise ValueError(
            f"members exchange scores after epoch {at}, and the run has {epochs}: no epoch would use them. Set "
            "exchange_at below the number of epochs"
        )
    rows = {"sharp_rows": str(Exchange(at, ensemble.exchange_every))}
    return _flat(config, ensemble, i, epochs) | rows


def _averaged(config: Config, ensemble: Ensemble, i: int, epochs: int) -> dict[str, Any]:
    swa = START if config.swa is None and config.ema is None else config.swa
    return {**_deep(config, ensemble, i, epochs), "swa": swa, "swa_every": "step"}


@dataclass(frozen=True)
class Strategy:
    """A way to make members differ.

    Parameters
    ----------
    about
        What it does, in one line.
    source
        The paper.
    changes
        The settings that it changes in a member's configuration.
    reads
        The settings that only some strategies read, and that this one does.
    averages
        Whether averages of the weights predict, and not the last weights.

    Examples
    --------
    >>> strategy = steppe.ensembles.STRATEGIES["eoa"]
    >>> strategy.about, strategy.source
    ('averages of the weights of members without a method', 'Arpit et al. 2022')

    """

    about: str
    source: str
    changes: Changes
    reads: tuple[str, ...] = ()
    averages: bool = False

    def weights(self, config: Config) -> Weights:
        """Which of a member's weights predict."""
        if not self.averages:
            return "last"
        return "swa" if config.swa is not None else "ema"


METHOD = ("method", "rho", "method_options")

STRATEGIES: Mapping[str, Strategy] = {
    "deep": Strategy("members differ by their seeds, without a method", "Lakshminarayanan et al. 2017", _deep),
    "deep+sam": Strategy(
        "members differ by their seeds, with the method", "Lu et al. 2024, section 4.4", _flat, METHOD
    ),
    "sam+": Strategy(
        "every member has a radius of its own",
        "Lu et al. 2024, appendix F.4",
        _own_radius,
        ("method", "method_options", "member_radii"),
    ),
    "sharpbalance": Strategy(
        "the method on the rows that are sharp for the other members, plain steps on the rest",
        "Lu et al. 2024, section 4.3",
        _balanced,
        (*METHOD, *BALANCE),
    ),
    "eoa": Strategy(
        "averages of the weights of members without a method", "Arpit et al. 2022", _averaged, averages=True
    ),
}


def strategy(name: str) -> Strategy:
    """Return the strategy of that name; raise ValueError with the nearest names."""
    if name not in STRATEGIES:
        raise ValueError(unknown("strategy", name, STRATEGIES))
    return STRATEGIES[name]


def unread(name: str) -> set[str]:
    """Return the settings that some strategies read and the one of that name does not."""
    return {*METHOD, *OF_STRATEGIES} - {*strategy(name).reads}
