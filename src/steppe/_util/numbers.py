"""Numbers as text, with the same digits in the terminal and on the page (words.js has the same two functions); NaN."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from math import floor, isfinite, isnan, log10
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LARGE, SMALL = 1e6, 1e-4  # from here on, and below, with an exponent
ENOUGH = 6  # significant digits of a value whose error is smaller than the last of them


def number(value: float, significant: int = 4) -> str:
    """Write a number with some significant digits, whole numbers below a million without an exponent.

    Parameters
    ----------
    value : float
        The number.
    significant : int
        Digits; zeros at the end are left out.

    Returns
    -------
    str
        A dash for a number that is not finite.

    """
    if not isfinite(value):
        return "-"
    whole = 10 ** (significant - 1) <= abs(value) < LARGE
    return f"{value + 0.0:.0f}" if whole else f"{value + 0.0:.{significant}g}"


def with_error(value: float, error: float) -> str:
    """Write a number with its error: two digits of the error, and as many decimals of the value.

    Parameters
    ----------
    value, error : float
        The number and its standard error; without a finite error above zero, the number is written alone.

    Returns
    -------
    str
        Such as "46 ± 14", "0.0413 ± 0.0031" or "(1.2346 ± 0.0089)e+06".

    """
    if not (isfinite(value) and isfinite(error) and error > 0):
        return number(value)
    if value and _exponent(value) - _exponent(error) > ENOUGH - 2:
        return f"{number(value, ENOUGH)} ± {number(error, 2)}"
    size = max(abs(value), error)
    power = 0 if SMALL <= size < LARGE else floor(log10(size))
    value, error = (x / 10.0**power for x in (value, error))
    decimals = max(0, 1 - _exponent(error))
    shown = f"{value:.{decimals}f}"
    shown = f"{shown if float(shown) else shown.removeprefix('-')} ± {error:.{decimals}f}"
    return f"({shown})e{power:+03d}" if power else shown


def _exponent(value: float) -> int:
    """The power of ten of a number that is rounded to two digits."""
    return int(f"{value:.1e}".partition("e")[2])


def compared(value: DataclassInstance) -> tuple[Any, ...]:
    """Return the fields by which a dataclass is compared, where nan equals nan.

    Dataclasses compare tuples of fields, in which the same nan equals itself, up to Python 3.12 only.
    """
    values = (getattr(value, f.name) for f in fields(value) if f.compare)
    return tuple("nan" if isinstance(x, float) and isnan(x) else x for x in values)


def span(numbers: Sequence[int]) -> str:
    """The lowest and the highest of whole numbers, "2 to 5"; one number where all are alike, and 0 without any."""
    low, high = min(numbers, default=0), max(numbers, default=0)
    return str(low) if low == high else f"{low} to {high}"


def read_plain(text: str) -> int | float | str:
    """A text as a number where it is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
