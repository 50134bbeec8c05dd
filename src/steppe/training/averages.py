"""Averages of the weights along a run, evaluated beside the weights themselves.

An exponential average (EMA) also averages BatchNorm's running statistics. For an even average (SWA) they are estimated
on the training rows before it is used, as in Izmailov et al. 2018 (section 3.2): the mean of the statistics is not the
statistic of the mean weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import swa_utils

from .config import Config

NamedTensors = Mapping[str, Tensor]


class Average:
    """A running average of tensors by name; integer tensors are copied from the latest."""

    def __init__(self, rule: Callable[[Any, Any, int], None], every_step: bool, start: float = 0.0):
        self._rule, self.every_step = rule, every_step
        self.start = start  # the fraction of the run after which it begins
        self.tensors: dict[str, Tensor] = {}
        self.n = 0

    @torch.no_grad()
    def update(self, now: NamedTensors) -> None:
        """Add the current tensors to the average."""
        if not self.n:
            self.tensors = {k: t.detach().clone() for k, t in now.items()}
        elif kinds := {(t.dtype, t.device) for t in now.values()}:
            for kind in sorted(kinds, key=str):
                names = [k for k, t in now.items() if (t.dtype, t.device) == kind]
                before, latest = [self.tensors[k] for k in names], [now[k].detach() for k in names]
                if kind[0].is_floating_point:
                    self._rule(before, latest, self.n)
                else:
                    _copy(before, latest)
        self.n += 1

    @contextmanager
    def swapped_in(self, live: Callable[[], NamedTensors]) -> Iterator[None]:
        """Copy the average into the model for a block, and restore the model's tensors bitwise afterwards."""
        now = live()
        saved = {k: t.detach().clone() for k, t in now.items()}
        try:
            _copy([now[k] for k in self.tensors], list(self.tensors.values()))
            yield
        finally:
            now = live()  # a layer may have assigned another tensor to a buffer
            _copy([now[k] for k in saved], list(saved.values()))

    def update_buffers(self, now: NamedTensors) -> None:
        """Store the running statistics that were estimated while the average was swapped in."""
        _copy([self.tensors[k] for k in now], list(now.values()))


def averages_of(config: Config) -> dict[str, Average]:
    """Return the averages of a configuration by name."""
    untyped: Any = swa_utils
    averages = {}
    if config.ema is not None:
        averages["ema"] = Average(untyped.get_ema_multi_avg_fn(config.ema), every_step=True)
    if config.swa is not None:
        averages["swa"] = Average(untyped.get_swa_multi_avg_fn(), config.swa_every == "step", config.swa)
    return averages


@torch.no_grad()
def _copy(to: list[Tensor], of: list[Tensor]) -> None:
    for a, b in zip(to, of, strict=True):
        a.copy_(b)
