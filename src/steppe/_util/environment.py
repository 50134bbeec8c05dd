"""Environment variables for the processes that a block starts."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SAFE_PATH: Mapping[str, str] = {"PYTHONSAFEPATH": "1"}
"""Makes a Python that `python -c` or `python -m` starts not search the working folder for modules.

`multiprocessing` starts its workers, its resource tracker and its fork server with `python -c`.
"""


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in this block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
