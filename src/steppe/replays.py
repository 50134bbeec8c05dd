"""Functions of tensors that a GPU is asked for again and again, replayed as CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from .graphs import CudaGraphs, Recorder
from .many import copies, copy_

EAGER = 2  # calls before one is recorded: the first makes handles and plans, the second is the rehearsal
MOST = 8  # recordings, each of which keeps the memory of all that is computed

Function = Callable[..., Sequence[Tensor]]


@dataclass(frozen=True)
class _Recording:
    given: list[Tensor]
    found: Sequence[Tensor]
    again: Callable[[], None]


@final
class Replays:
    """Recordings by a key: what is asked for a third time is recorded, and replayed from then on.

    A function may depend on its tensors, on its key, and on memory that stays where it is. It is called again only
    while nothing is recorded. Whatever cannot be recorded is called every time.
    """

    def __init__(self, recorder: Recorder | None = None):
        self._recorder = recorder  # None: graphs of the device that the first tensor is on
        self._calls: dict[Hashable, int] = {}
        self._recordings: dict[Hashable, _Recording] = {}
        self.why: str | None = None  # nothing is recorded

    def __call__(self, key: Hashable, function: Function, *given: Tensor) -> Sequence[Tensor]:
        """`function(*given)`, in memory that is the caller's."""
        recorder = self._recorder_on(given[0].device)
        if recorder is None:
            return function(*given)
        kind = (key, *((t.shape, t.stride(), t.dtype, t.device) for t in given))
        if kind not in self._recordings:
            self._calls[kind] = calls = self._calls.get(kind, 0) + 1
            if calls < EAGER or len(self._recordings) >= MOST:
                return function(*given)
            try:
                if calls == EAGER:
                    with recorder.rehearsing():
                        return function(*given)
                self._recordings[kind] = _recorded(recorder, function, given)
            except RuntimeError as error:  # the function itself may be what fails: then it does so again
                self.why = str(error)
                self._recordings.clear()  # memory may be what is missing
                return function(*given)
        known = self._recordings[kind]
        copy_(known.given, given)
        known.again()
        return copies(known.found)

    def _recorder_on(self, device: torch.device) -> Recorder | None:
        if self.why is None and self._recorder is None and device.type == "cuda":
            self._recorder = CudaGraphs(device)
        return self._recorder if self.why is None else None


def _recorded(recorder: Recorder, function: Function, given: Sequence[Tensor]) -> _Recording:
    memory = [torch.empty_like(t) for t in given]
    copy_(memory, given)
    found, again = recorder.record(lambda: function(*memory))
    return _Recording(memory, found, again)
