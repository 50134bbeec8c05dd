"""What an ensemble is beside the configuration of its members, as one value without torch in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal, get_type_hints

from .._util.types import fits, words

End = Literal["sharpest", "flattest"]
Rest = Literal["normal", "own-share", "other-shares"]
How = Literal["sequence", "processes"]


@dataclass(frozen=True)
class Ensemble:
    """How many members, how they are made to differ, what they tell one another, and how they are trained."""

    members: int = 3  # SharpBalance paper, section 4.4
    """runs of the ensemble; member i has the seed 1000 seed + i"""
    strategy: str = "sharpbalance"
    """deep, deep+sam, sam+, sharpbalance or eoa; several with commas between make an ensemble each"""
    member_radii: list[float] = field(default_factory=lambda: [0.05, 0.1, 0.2])  # SharpBalance paper, appendix F.4
    """sam+: the radius of every member"""
    exchange_at: int | None = None  # SharpBalance paper, Table 1: 100 of 200
    """sharpbalance: epochs with all rows sharpness-aware before scores are exchanged (T_d); by default half of them"""
    exchange_every: int | None = None
    """sharpbalance: epochs between later exchanges; by default there is one only"""
    share: float = 0.5  # SharpBalance's released scripts; its paper's grid is 0.2 to 0.6
    """sharpbalance: the part of the rows that every member names to the others (k %)"""
    named: End = "sharpest"
    """sharpbalance: which end of the scores that is; flattest, as in the released code"""
    rest: Rest = "normal"
    """sharpbalance: what rows are that nobody named: plain steps, or dealt out, with a member's own share
    sharpness-aware or all but that, as in the released code"""
    how: How = "sequence"
    """members one after the other, or in several processes"""
    processes: int | None = None
    """how many, with --how processes; by default one a member, and no more than there are cores"""

    def __post_init__(self) -> None:
        if str(self.how) == "stacked":
            raise ValueError("how is 'stacked', which was removed: take 'sequence' (faster on a GPU) or 'processes'")
        for name, kind in get_type_hints(Ensemble).items():
            if not fits(getattr(self, name), kind):
                raise ValueError(f"{name} is {getattr(self, name)!r}, and has to be {words(kind)}")
        for name in ("members", "exchange_at", "exchange_every", "processes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value!r}, and has to be 1 or more")
        if not 0 < self.share <= 1:
            raise ValueError(f"share is {self.share!r}, and has to be more than 0 and at most 1")
        if not all(0 <= radius < inf for radius in self.member_radii):
            raise ValueError(f"member_radii is {self.member_radii}, and has to be a list of radii, 0 or more")
