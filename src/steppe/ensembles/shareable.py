"""Which members may be moved by one plan and one optimizer, and which method of theirs it is."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import Any

from ..ball import Ball, Slope, ball
from ..metric import Elementwise
from ..optim.engine import SharpnessAware
from ..optim.gsam import GSAM
from ..optim.sam import SAM, Plain
from ..optim.sharpbalance import OnSomeRows, SharpBalance
from ..probe import Method
from ..training.config import Config
from ..training.loop import Training

OWN: dict[str, Any] = {"seed": 0, "data_seed": None, "out": None, "rho": None}


def method_of(opt: SharpnessAware) -> Method:
    """The method itself, whichever rows it is for."""
    return opt.method.method if isinstance(opt.method, (OnSomeRows, SharpBalance)) else opt.method


def alike(a: Config, b: Config) -> bool:
    """Whether two runs differ by nothing but what members of an ensemble may differ by."""
    return replace(a, **OWN) == replace(b, **OWN)


def shareable(training: Training) -> bool:
    """Whether members like this one may: their method is one whose numbers may be one a member, and they skip no steps.

    Methods beyond these draw at random, remember vectors, or choose rows by what they read.
    """
    opt = training.trainee.opt
    kinds = {(p.dtype, p.device) for g in opt.param_groups for p in g["params"]}
    method: Any = method_of(opt)
    simple = isinstance(method, Plain) or (isinstance(method, SAM | GSAM) and _member_by_member(ball(method.rho)))
    return simple and len(opt.param_groups) == len(kinds) == 1 and training.config.on_nonfinite != "skip"


def _member_by_member(ascent: Any) -> bool:
    if isinstance(ascent, Ball) and ascent.p not in (2, inf):
        return False
    return isinstance(ascent, Ball | Slope) and (ascent.metric is None or isinstance(ascent.metric, Elementwise))
