"""What a configuration needs to know of a method before torch is imported, which takes seconds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .._util.names import unknown
from .._util.registry import declared, plugins


def run_settings(name: str) -> Mapping[str, Any]:
    """The settings of a training run that differ with a method; raises ValueError for an unknown name."""
    return _fact(name, "run") or {}


def sets_lr(name: str) -> bool:
    """Whether a method sets the learning rate itself."""
    return bool(_fact(name, "sets_lr"))


def _fact(name: str, fact: str) -> Any:
    own: Mapping[str, Mapping[str, Any]] = declared(__package__)
    if not isinstance(name, str) or name in own:  # the type is checked with those of the other settings
        return own.get(name, {}).get(fact)
    if plugins("steppe.methods"):
        from .registry import METHODS

        if name in METHODS:
            return getattr(METHODS[name], fact)
        own = {other: {} for other in METHODS}
    raise ValueError(unknown("method", name, own))
