"""Averages of the weights along the run, evaluated beside the weights themselves.

An exponential average (EMA) averages BatchNorm's running statistics as it does the weights. An even average (SWA) has
them estimated anew on the training rows before it is used, as Izmailov et al. 2018 (section 3.2) do, because statistics
of the weights on the way are not those of their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import swa_utils

from .config import Config

Named = Mapping[str, Tensor]


class Average:
    """A running average of tensors by name; tensors of whole numbers are the latest."""

    def __init__(self, rule: Callable[[Any, Any, int], None], every_step: bool, start: float = 0.0):
        self._rule, self.every_step = rule, every_step
        self.start = start  # the fraction of the run after which it begins
        self.tensors: dict[str, Tensor] = {}
        self.n = 0

    @torch.no_grad()
    def take(self, now: Named) -> None:
        """Counts the tensors as they are now."""
        if not self.n:
            self.tensors = {k: t.detach().clone() for k, t in now.items()}
        elif kinds := {(t.dtype, t.device) for t in now.values()}:
            for kind in sorted(kinds, key=str):
                mine = [k for k, t in now.items() if (t.dtype, t.device) == kind]
                before, latest = [self.tensors[k] for k in mine], [now[k].detach() for k in mine]
                if kind[0].is_floating_point:
                    self._rule(before, latest, self.n)
                else:
                    _copy(before, latest)
        self.n += 1

    @contextmanager
    def standing_in(self, live: Callable[[], Named]) -> Iterator[None]:
        """The model with the average in the place of its own tensors, which come back bitwise."""
        now = live()
        kept = {k: t.detach().clone() for k, t in now.items()}
        try:
            _copy([now[k] for k in self.tensors], list(self.tensors.values()))
            yield
        finally:
            now = live()  # a layer may have put another tensor in the place of a buffer
            _copy([now[k] for k in kept], list(kept.values()))

    def learn(self, now: Named) -> None:
        """Takes over what was estimated while the average stood in: running statistics."""
        _copy([self.tensors[k] for k in now], list(now.values()))


def averages_of(config: Config) -> dict[str, Average]:
    """The averages that a configuration asks for, by name."""
    torch_has: Any = swa_utils  # without types
    found = {}
    if config.ema is not None:
        found["ema"] = Average(torch_has.get_ema_multi_avg_fn(config.ema), every_step=True)
    if config.swa is not None:
        found["swa"] = Average(torch_has.get_swa_multi_avg_fn(), config.swa_every == "step", config.swa)
    return found


@torch.no_grad()
def _copy(to: list[Tensor], of: list[Tensor]) -> None:
    for a, b in zip(to, of, strict=True):
        a.copy_(b)
