"""Buffers that a forward pass moves, such as BatchNorm's: they move once a step, on its first pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..vector import copy_

Place = tuple[dict[str, Any], str]  # a module's buffers, and a name among them
Saved = list[tuple[Place, Tensor, Tensor]]  # where, which tensor stood there, and a copy of it


class RunningStatistics:
    """The running statistics of a model: those of any class that names them so, and whatever else a pass moves."""

    def __init__(self, model: nn.Module | None):
        places = [(m._buffers, name) for m in (model.modules() if model else ()) for name in m._buffers]
        self._moving = [p for p in places if p[1].startswith(("running_", "num_batches")) and _at(p) is not None]
        self._others = [p for p in places if p not in self._moving and _at(p) is not None]

    def save(self) -> Saved:
        return [(p, t, t.clone()) for p in self._moving if (t := _at(p)) is not None]

    def restore(self, saved: Saved) -> None:
        for (buffers, name), tensor, _ in saved:
            buffers[name] = tensor
        copy_([t for _, t, _ in saved], [copy for _, _, copy in saved])

    def marks(self) -> list[tuple[int, int]]:
        """A fingerprint of the other buffers, cheap enough to take every step."""
        return [_mark(_at(p)) for p in self._others]

    def learn(self, before: list[tuple[int, int]]) -> None:
        """Counts the buffers that have moved since `before` as running statistics from now on."""
        moved = [p for p, mark in zip(self._others, before, strict=True) if _mark(_at(p)) != mark]
        if moved:
            self._moving += moved
            self._others = [p for p in self._others if p not in moved]


def _at(place: Place) -> Tensor | None:
    buffers, name = place
    return buffers.get(name)


def _mark(t: Tensor | None) -> tuple[int, int]:
    return (0, 0) if t is None or t.is_inference() else (id(t), t._version)
