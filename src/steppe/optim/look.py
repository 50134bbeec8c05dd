"""A look at a number on a device that waits for the number, and not for the work that was handed over after it."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor


@final
class Look:
    """Asked for a number, it is told later; memory and event are made once."""

    def __init__(self) -> None:
        self._asked: Tensor | None = None
        self._here: Tensor | None = None
        self._there: Any = None

    def ask(self, number: Tensor) -> None:
        """Has a number brought here; the device goes on."""
        self._asked = number
        if not number.is_cuda:
            return
        if self._here is None or self._here.dtype is not number.dtype:
            event: Any = torch.cuda.Event
            self._here, self._there = torch.empty_like(number, device="cpu", pin_memory=True), event()
        self._here.copy_(number, non_blocking=True)
        self._there.record(torch.cuda.current_stream(number.device))

    def told(self) -> float:
        """The number that was asked for, when it is there."""
        asked, self._asked = self._asked, None
        if asked is None:
            raise RuntimeError("no number was asked for")
        if self._here is None or not asked.is_cuda:
            return float(asked)
        self._there.synchronize()
        return float(self._here)
