"""Measures that a test registers for itself."""

from __future__ import annotations

from typing import Any

import pytest

import steppe
from steppe.measures.registration import Registered


def registered(monkeypatch: pytest.MonkeyPatch, name: str, measure: Any) -> None:
    """A measure by name until the end of the test."""
    assert name not in steppe.MEASURES
    one = Registered(name, lambda: measure, "a measure of a test", "", "exact", "nothing")
    monkeypatch.setitem(steppe.MEASURES._parts, name, one)
