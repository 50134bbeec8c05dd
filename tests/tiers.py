"""Two tiers of tests: `make test` leaves out those marked slow, `make test-all` runs everything.

Slow are tests that repeat in more cases what a quick one shows in one, and long statistics of coverage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import Any

import pytest


def slow_unless(quick: Callable[[Any], bool], cases: Iterable[Any]) -> list[Any]:
    """The cases of a parametrized test, of which those that are not quick are slow."""
    return [_param(case, () if quick(case) else (pytest.mark.slow,)) for case in cases]


def _param(case: Any, marks: tuple[Any, ...]) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks)


CASES = 8  # of a parametrized test in the quick tier, unless its mark `sampled` has another number


def mark_unsampled(items: Sequence[pytest.Item]) -> None:
    """Mark all but some cases of each parametrized test as slow; their names decide which."""
    for _, group in groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        cases = [item for item in group if item.get_closest_marker("slow") is None]
        mark = cases[0].get_closest_marker("sampled") if cases else None
        for case in sorted(cases, key=_digest)[mark.args[0] if mark else CASES :]:
            case.add_marker("slow")


def _digest(item: pytest.Item) -> bytes:
    return blake2b(item.name.encode()).digest()
