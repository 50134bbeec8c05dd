"""What test rows can show at best, whatever is spent on training."""

from __future__ import annotations

from math import sqrt


def row_floor(error: float, rows: int, share: float = 0.3) -> float:
    """The smallest difference that a test set can show, however long the training.

    Parameters
    ----------
    error
        The expected error.
    rows
        The number of test rows.
    share
        The part of a sample's variance that belongs to the method, and that more runs do not average out: 0.1 to 0.5
        before the first look.

    Examples
    --------
    >>> round(100 * steppe.comparison.row_floor(0.1, 1000, 0.1), 1)  # points
    1.5

    """
    return 3.6 * sqrt(2 * error * (1 - error) * share / rows)


def before(error: float, rows: int, worth: float | None) -> tuple[float, float, str]:
    """Return what test rows can show at best, in points for methods that differ little and much, and a sentence."""
    low, high = (100 * row_floor(error, rows, share) for share in (0.1, 0.5))
    text = f"These {rows} test rows can show {low:.1f} to {high:.1f} points at best, at an error of {100 * error:.0f} %"
    if worth is not None and low > worth:
        text += f': "no difference" within {worth:g} points is out of reach; give more test rows, or a larger --worth'
    return low, high, text + "."
