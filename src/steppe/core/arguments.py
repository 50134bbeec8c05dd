"""Checks of arguments that several classes share; an error says what was passed and what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Sized
from numbers import Real
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer


def described(x: Any) -> str:
    """An argument in words, on one line."""
    if isinstance(x, type):
        return f"the class {x.__name__}"
    if inspect.isroutine(x):
        return f"the function {x.__name__}"
    if inspect.isgenerator(x) or (isinstance(x, list | tuple) and x and isinstance(x[0], Tensor | dict)):
        return "parameters"
    if isinstance(x, nn.Module | Optimizer):
        return f"{type(x).__name__}"  # its own text has many lines
    if isinstance(x, Sized) and not isinstance(x, str):
        return f"{type(x).__name__} of {len(x)}"
    return f"{type(x).__name__} {' '.join(repr(x).split())}"[:80]


def refuse_class(what: str, x: Any) -> None:
    """Raise for a class in the place of an instance of it."""
    if isinstance(x, type):
        raise TypeError(f"{what} is the class {x.__name__}: give one made of it, {x.__name__}()")


def refuse_negative(numbers: Any, what: str = "a radius rho") -> None:
    """Raise for a number below 0, or one of several; does not read tensors, which would synchronize."""
    for x in numbers if isinstance(numbers, list | tuple) else [numbers]:
        if not isinstance(x, Tensor) and not (isinstance(x, Real) and float(x) >= 0):
            raise ValueError(f"{what} is a number, 0 or more, not {x!r}")
