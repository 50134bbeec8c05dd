"""Buffers that a forward pass moves, such as BatchNorm's: they move once a step, on its first pass."""

from __future__ import annotations

from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn

from ..many import copy_

Place = tuple[dict[str, Any], str]  # a module's buffers, and a name among them

RUNNING = ("running_", "num_batches")  # how normalisation layers name their statistics


class Tensors:
    """The tensors at some places, and their entries by device and type: foreach takes in one kernel what is alike."""

    def __init__(self, places: list[Place], tensors: list[Tensor]):
        self.places, self.tensors = places, tensors
        self._addresses = [t.data_ptr() for t in tensors]
        kinds: dict[Any, list[Tensor]] = {}
        for t in tensors:
            flat = t.detach().view(-1) if t.is_contiguous() else t.detach()
            kinds.setdefault((t.device, t.dtype), []).append(flat)
        self._alike = [(own, [t.numel() for t in own]) for own in kinds.values()]

    def are(self, tensors: list[Tensor]) -> bool:
        """Whether these are the same ones, and in the same memory."""
        same = len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))
        return same and [t.data_ptr() for t in tensors] == self._addresses

    def values(self) -> list[Tensor]:
        """What they hold: all that is alike end to end."""
        return [torch.cat([t if t.ndim == 1 else t.reshape(-1) for t in own]) for own, _ in self._alike]

    def set(self, values: list[Tensor]) -> None:
        for (own, sizes), flat in zip(self._alike, values, strict=True):
            parts = flat.split_with_sizes(sizes)
            copy_(own, [x if t.ndim == 1 else x.view(t.shape) for x, t in zip(parts, own, strict=True)])


@dataclass(frozen=True)
class Saved:
    """The tensors that stood at some places, and what they held."""

    at: Tensors
    values: list[Tensor]


class RunningStatistics:
    """The running statistics of a model: those of any class that names them so, and whatever else a pass moves."""

    def __init__(self, model: nn.Module | None):
        places = [(m._buffers, name) for m in (model.modules() if model is not None else ()) for name in m._buffers]
        self._moving = [p for p in places if p[1].startswith(RUNNING)]
        self._others = [p for p in places if not p[1].startswith(RUNNING)]
        self._learned = False  # until a first pass has shown what it moves, anything might
        self._known = Tensors([], [])

    def tensors(self) -> list[Tensor]:
        """The statistics themselves, in the order of their places."""
        return self._now().tensors

    def _now(self) -> Tensors:
        places = self._moving if self._learned else self._moving + self._others
        found = [buffers.get(name) for buffers, name in places]
        tensors = [t for t in found if t is not None]
        if not self._known.are(tensors):
            self._known = Tensors([p for p, t in zip(places, found, strict=True) if t is not None], tensors)
        return self._known

    def save(self) -> Saved:
        now = self._now()
        return Saved(now, now.values())

    def restore(self, saved: Saved) -> None:
        for (buffers, name), tensor in zip(saved.at.places, saved.at.tensors, strict=True):
            buffers[name] = tensor
        saved.at.set(saved.values)

    def restore_where(self, flag: Tensor, saved: Saved) -> None:
        """Goes back to what was saved where a flag on the device is set, without looking at it."""
        pairs = zip(saved.values, saved.at.values(), strict=True)
        saved.at.set([torch.where(flag, old, new) for old, new in pairs])

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
