"""Buffers that a forward pass moves, such as BatchNorm's: they move once a step, on its first pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..vector import copy_

Place = tuple[dict[str, Any], str]  # a module's buffers, and a name among them

RUNNING = ("running_", "num_batches")  # how normalisation layers name their statistics


@dataclass(frozen=True)
class Saved:
    """The tensors that stood at some places, and what they held."""

    places: list[Place]
    tensors: list[Tensor]
    values: list[Tensor]  # all that is of one kind, end to end


class RunningStatistics:
    """The running statistics of a model: those of any class that names them so, and whatever else a pass moves."""

    def __init__(self, model: nn.Module | None):
        places = [(m._buffers, name) for m in (model.modules() if model is not None else ()) for name in m._buffers]
        self._moving = [p for p in places if p[1].startswith(RUNNING)]
        self._others = [p for p in places if not p[1].startswith(RUNNING)]
        self._learned = False  # until a first pass has shown what it moves, anything might

    def tensors(self) -> list[Tensor]:
        """The statistics themselves, in the order of their places."""
        return [t for p in self._places() if (t := _at(p)) is not None]

    def _places(self) -> list[Place]:
        return [p for p in (self._moving if self._learned else self._moving + self._others) if _at(p) is not None]

    def save(self) -> Saved:
        places, tensors = self._places(), self.tensors()
        return Saved(places, tensors, _end_to_end(tensors))

    def restore(self, saved: Saved) -> None:
        for (buffers, name), tensor in zip(saved.places, saved.tensors, strict=True):
            buffers[name] = tensor
        _put_back(saved.tensors, saved.values)

    def restore_where(self, flag: Tensor, saved: Saved) -> None:
        """Goes back to what was saved where a flag on the device is set, without looking at it."""
        pairs = zip(saved.values, _end_to_end(saved.tensors), strict=True)
        _put_back(saved.tensors, [torch.where(flag, old, new) for old, new in pairs])

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


def _kinds(tensors: list[Tensor]) -> list[list[Tensor]]:
    """The tensors by device and type: foreach takes them in one kernel only if they are alike."""
    kinds: dict[Any, list[Tensor]] = {}
    for t in tensors:
        kinds.setdefault((t.device, t.dtype), []).append(t)
    return list(kinds.values())


def _end_to_end(tensors: list[Tensor]) -> list[Tensor]:
    return [torch.cat([t.reshape(-1) for t in alike]) for alike in _kinds(tensors)]


def _put_back(tensors: list[Tensor], values: list[Tensor]) -> None:
    for alike, flat in zip(_kinds(tensors), values, strict=True):
        parts = flat.split_with_sizes([t.numel() for t in alike])
        copy_(alike, [x if t.ndim == 1 else x.view(t.shape) for x, t in zip(parts, alike, strict=True)])


def _at(place: Place) -> Tensor | None:
    buffers, name = place
    return buffers.get(name)


def _mark(t: Tensor | None) -> tuple[int, int]:
    return (0, 0) if t is None or t.is_inference() else (id(t), t._version)
