"""Equality of values in which nan stands for a number that is missing."""

from __future__ import annotations

from dataclasses import fields
from math import isnan
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def compared(value: DataclassInstance) -> tuple[Any, ...]:
    """Return the fields by which a dataclass is compared, where nan equals nan.

    Dataclasses compare tuples of fields, in which the same nan equals itself, up to Python 3.12 only.
    """
    values = (getattr(value, f.name) for f in fields(value) if f.compare)
    return tuple("nan" if isinstance(x, float) and isnan(x) else x for x in values)
