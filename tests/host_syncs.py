"""Synchronizations of host and GPU, as reported by torch.cuda.set_sync_debug_mode."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def host_syncs() -> Iterator[list[str]]:
    """Collects the warnings about operations in the block that wait for the GPU."""
    seen: list[str] = []
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield seen
        finally:
            torch.cuda.set_sync_debug_mode("default")
    seen += [str(w.message) for w in told if "called a synchronizing" in str(w.message)]
