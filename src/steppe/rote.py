"""What a step does again and again between memory that stays where it is, recorded as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from .graphs import replay_of

EAGER = 2  # times before it is recorded: what is asked for once never is


@final
class Rote:
    """An action on memory that is there; a GPU is told once, then does all of it at one call.

    A call that copies many small tensors takes longer than the copies themselves, and a launch of its recording does
    not. The tensors have to stay where they are.
    """

    def __init__(self, action: Callable[[], object], device: torch.device, seen: Sequence[Tensor] = ()):
        self._action, self._device = action, device
        self._seen = [t for t in seen if not t.is_inference()]  # what is written to and autograd counts the versions of
        self._recordable = device.type == "cuda"
        self._times = 0
        self._again: Callable[[], None] | None = None

    def __call__(self) -> None:
        if not self._recordable or torch.cuda.is_current_stream_capturing():  # then it is part of a larger recording
            self._action()
            return
        if self._again is None and self._times >= EAGER:
            self._again = replay_of(self._action, self._device)
            self._recordable = self._again is not None
        if self._again is None:
            self._action()
            self._times += 1
            return
        self._again()
        if self._seen:
            increment_version(self._seen)
