"""Work that a GPU may do at the same time, on several streams: branches of the graph, where it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, final

import torch

R = TypeVar("R")
MOST = 8  # at once: more small kernels than that wait for the same multiprocessors


@final
class Branches:
    """Does several things of which none waits for another; elsewhere than on a GPU one after the other."""

    def __init__(self, device: torch.device):
        self._device = device
        many = MOST if device.type == "cuda" else 0
        self._streams: list[Any] = [torch.cuda.Stream(device) for _ in range(many)]  # type: ignore[no-untyped-call]

    def __call__(self, tasks: Sequence[Callable[[], R]]) -> list[R]:
        """What every task returns, there for the stream that asks."""
        if not self._streams:
            return [task() for task in tasks]
        here, used = torch.cuda.current_stream(self._device), self._streams[: len(tasks)]
        for stream in used:
            stream.wait_stream(here)
        found = []
        for i, task in enumerate(tasks):
            with torch.cuda.stream(used[i % len(used)]):
                found.append(task())
        for stream in used:
            here.wait_stream(stream)
        return found
