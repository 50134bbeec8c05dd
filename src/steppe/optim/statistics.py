"""Buffers that a forward pass moves, such as BatchNorm's: they move once a step, on its first pass."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from ..vector import Space, Vector, copy_

Place = tuple[dict[str, Any], str]  # a module's buffers, and a name among them

RUNNING = ("running_", "num_batches")  # how normalisation layers name their statistics


@dataclass(frozen=True)
class Saved:
    """The tensors that stood at some places, and what they held."""

    places: list[Place]
    tensors: list[Tensor]
    values: Vector


class RunningStatistics:
    """The running statistics of a model: those of any class that names them so, and whatever else a pass moves."""

    def __init__(self, model: nn.Module | None):
        places = [(m._buffers, name) for m in (model.modules() if model is not None else ()) for name in m._buffers]
        self._moving = [p for p in places if p[1].startswith(RUNNING)]
        self._others = [p for p in places if not p[1].startswith(RUNNING)]
        self._space = Space([])
        self._learned = False  # until a first pass has shown what it moves, anything might

    def tensors(self) -> list[Tensor]:
        """The statistics themselves, in the order of their places."""
        return [t for p in self._places() if (t := _at(p)) is not None]

    def _places(self) -> list[Place]:
        return [p for p in (self._moving if self._learned else self._moving + self._others) if _at(p) is not None]

    def save(self) -> Saved:
        places, tensors = self._places(), self.tensors()
        if len(tensors) != len(self._space.params) or not all(map(is_, tensors, self._space.params)):
            self._space = Space(tensors)
        alone = [k for k, c in enumerate(self._space.chunks) if not c.stacked]  # stacks are copies already
        return Saved(places, tensors, self._space.vector(tensors).unaliased(alone))

    def restore(self, saved: Saved) -> None:
        for (buffers, name), tensor in zip(saved.places, saved.tensors, strict=True):
            buffers[name] = tensor
        copy_(saved.tensors, saved.values.tensors)

    def restore_where(self, flag: Tensor, saved: Saved) -> None:
        """Goes back to what was saved where a flag on the device is set, without looking at it."""
        now = self._space.vector(saved.tensors)
        pairs = zip(saved.values.chunks, now.chunks, strict=True)
        copy_(saved.tensors, self._space.unpack([torch.where(flag, old, new) for old, new in pairs]))

    def marks(self) -> list[tuple[int, int]]:
        """A fingerprint of the other buffers, cheap enough to take every step."""
        return [_mark(_at(p)) for p in self._others]

    def learn(self, before: list[tuple[int, int]]) -> None:
        """Counts the buffers that have moved since `before` as running statistics from now on."""
        self._learned = True
        moved = [_mark(_at(p)) != mark for p, mark in zip(self._others, before, strict=True)]
        if any(moved):
            self._moving += [p for p, yes in zip(self._others, moved, strict=True) if yes]
            self._others = [p for p, yes in zip(self._others, moved, strict=True) if not yes]


def _at(place: Place) -> Tensor | None:
    buffers, name = place
    return buffers.get(name)


def _mark(t: Tensor | None) -> tuple[int, int]:
    return (0, 0) if t is None or t.is_inference() else (id(t), t._version)
