"""Functions of tensors that a GPU is asked for again and again, replayed as CUDA graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from ..core.vector import copies, copy_
from .graphs import CudaGraphs, Gains, Recorder

EAGER = 1  # rehearsals, which are calls, before one is recorded: what is asked for once never is
CHANCES = 2  # rehearsals that may fail: in the first one something may wait for the device that never does again
MOST = 8  # recordings, each of which keeps the memory of all that is computed

Function = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class _Recording:
    given: list[Tensor]
    found: Sequence[Tensor]
    again: Callable[[], None]


@final
class GraphedCalls:
    """Recordings by a key: what is asked for a second time is recorded if that gains time, and replayed from then on.

    A function may depend on its tensors, on its key, and on memory that stays where it is. It is called again only
    while nothing is recorded. Whatever cannot be recorded is called every time.
    """

    def __init__(self, recorder: Recorder | None = None, most: int = MOST):
        self._recorder = recorder  # None: graphs of the device that the first tensor is on
        self._most = most
        self._rehearsed: Counter[Hashable] = Counter()
        self._failed: Counter[Hashable] = Counter()
        self._reasons: dict[Hashable, str] = {}
        self._gains: dict[Hashable, Gains] = {}
        self._useless: set[Hashable] = set()  # to record: the device, not the host, is what takes the time
        self._recordings: dict[Hashable, _Recording] = {}

    @property
    def why(self) -> str | None:
        """Why something that was asked for is not recorded; None where everything is, or will be."""
        return next((reason for kind, reason in self._reasons.items() if self._failed[kind] >= CHANCES), None)

    def __call__(self, key: Hashable, function: Function, *given: Tensor) -> Sequence[Tensor]:
        """`function(*given)`, in memory that is the caller's."""
        recorder = self._recorder_on(given[0].device)
        kind = (key, *((t.shape, t.stride(), t.dtype, t.device) for t in given))
        if recorder is None or kind in self._useless or self._failed[kind] >= CHANCES:
            return function(*given)
        known = self._recordings.get(kind)
        if known is None:
            try:
                if self._rehearsed[kind] < EAGER:
                    with recorder.rehearsing() as self._gains[kind]:
                        found = function(*given)
                    self._rehearsed[kind] += 1
                    return found
                if len(self._recordings) >= self._most:
                    return function(*given)
                if not self._gains.pop(kind)():
                    self._useless.add(kind)
                    return function(*given)
                known = self._recordings[kind] = _recorded(recorder, function, given)
            except RuntimeError as error:  # the function itself may be what fails: then it does so again
                self._failed[kind] += 1 if self._rehearsed[kind] < EAGER else CHANCES
                self._reasons[kind] = str(error)
        if known is None:  # only now: the error kept alive what had been computed
            return function(*given)
        copy_(known.given, given)
        known.again()
        return copies(known.found)

    def aside(self, device: torch.device) -> AbstractContextManager[None]:
        """Around what a function that is recorded later goes back through: a graph that outlives it."""
        recorder = self._recorder_on(device)
        return nullcontext() if recorder is None else recorder.aside()

    def _recorder_on(self, device: torch.device) -> Recorder | None:
        if self._recorder is None and device.type == "cuda":
            self._recorder = CudaGraphs(device)
        return self._recorder


def _recorded(recorder: Recorder, function: Function, given: Sequence[Tensor]) -> _Recording:
    memory = [torch.empty_like(t) for t in given]
    copy_(memory, given)
    found, again = recorder.record(lambda: function(*memory))
    return _Recording(memory, found, again)
