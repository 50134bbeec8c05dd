"""Options of `steppe compare`, in the order of its help page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal


@dataclass(frozen=True)
class What:
    """What is compared."""

    heading: ClassVar[str] = "what to compare"
    file: str | None = field(default=None, metadata={"metavar": "FILE", "nargs": "?", "options": True})
    """a YAML file of these options, with `data_root: data` for `--data-root data`; flags override it"""
    data: str = "digits"
    """data set by name, `folder:PATH`, `npz:PATH`, or `package.module:factory`, which returns steppe.data.Splits"""
    model: str = "mlp"
    """model by name, or `package.module:factory`"""
    methods: list[str] = field(default_factory=lambda: ["none", "sam"])
    """the reference first, and its contenders; `steppe methods` lists them"""
    train: str | None = field(default=None, metadata={"metavar": "FUNCTION"})
    """`package.module:function` in place of data and model, as steppe.compare takes it"""


@dataclass(frozen=True)
class Effort:
    """How much is spent, and for which claim."""

    heading: ClassVar[str] = "how much"
    budget: str | None = field(default=None, metadata={"metavar": "TIME"})
    """time to spend now, such as 10m, 2h or 1h30m; it sets the largest number of trials per method"""
    worth: float | None = field(default=None, metadata={"metavar": "POINTS"})
    """smallest difference that would change your choice; defaults to 5 % of the reference's error"""
    tuning: int = 8
    """trials of tuning per method that the claim is about"""
    trials: int | None = None
    """most trials per method; defaults to what the budget allows, or to six times --tuning"""
    once: bool = False
    """one look at the end instead of several on the way"""


@dataclass(frozen=True)
class Space:
    """The search space."""

    heading: ClassVar[str] = "search space"
    fix: dict[str, Any] = field(default_factory=dict, metadata={"metavar": "A=X,B=Y", "instead_of": ("space", "base")})
    """settings with one value, such as those of a tuned baseline: lr=0.1,weight_decay=5e-4"""
    space: dict[str, Any] = field(default_factory=dict, metadata={"metavar": "A=LAW,..", "instead_of": ("fix", "base")})
    """laws of settings: lr=1e-3..1 (evenly in the logarithm), momentum=0..0.9 (evenly), epochs=10/30/90 (one of
    these), sam.rho=0.01..0.5"""
    base: dict[str, Any] = field(default_factory=dict, metadata={"metavar": "A=X,B=Y", "instead_of": ("fix", "space")})
    """other settings of `steppe train` for all runs, such as label_noise=0.4,batch_size=64"""
    halving: bool = False
    """stop a method's later trials after a third of their epochs if they are behind the better half of the first"""
    axis: Literal["passes", "epochs", "seconds"] = "passes"
    """what is equal: passes over the rows, epochs (most methods then cost more), or seconds on this machine"""
    seed: int = 0
    """seed of the points and of the seeds of trials"""


@dataclass(frozen=True)
class How:
    """How it runs."""

    heading: ClassVar[str] = "how it runs"
    yes: bool = False
    """start without asking"""
    dry_run: bool = False
    """say what this budget can show and what it takes, and stop"""
    out: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    """folder of the record and the page; defaults to comparisons/ and a name; the same command resumes there"""
    measures: list[str] = field(default_factory=list, metadata={"metavar": "A,B"})
    """flatness measures of every run's last weights, such as trace,lambda_max"""
    workers: int | None = None
    """runs at a time; defaults to the number of cores, or of places on GPUs"""
    engine: Literal["local", "serial", "ray"] = "local"
    """processes of this machine, this process, or a Ray cluster"""
    address: str | None = field(default=None, metadata={"metavar": "ADDRESS"})
    """of the Ray cluster"""
    data_root: str = field(default="data", metadata={"metavar": "FOLDER"})
    """folder of the data sets"""
    progress: bool | None = None
    """a bar on a terminal, a line per look elsewhere; defaults to the bar, and to nothing elsewhere"""


@dataclass(frozen=True)
class Folder:
    """Which comparison."""

    folder: str | None = field(default=None, metadata={"metavar": "FOLDER", "nargs": "?"})
    """the folder of a comparison"""


@dataclass(frozen=True)
class Again:
    """How to resume a comparison."""

    budget: str | None = field(default=None, metadata={"metavar": "TIME"})
    """time to spend now; defaults to that of the last start"""
    workers: int | None = None
    """runs at a time; defaults to those of the last start"""
    data_root: str | None = field(default=None, metadata={"metavar": "FOLDER"})
    """folder of the data sets; defaults to that of the last start"""
    trust: bool = False
    """import the code that the record names as its model or function"""
    progress: bool | None = None
    """a bar on a terminal, a line per look elsewhere; defaults to the bar, and to nothing elsewhere"""
