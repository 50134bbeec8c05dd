"""Buffers that a forward pass changes, such as BatchNorm statistics: they change once per step, in its first pass."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.modules import is_compiled
from ..core.vector import copy_
from .interrupts import interrupts_deferred

Place = tuple[dict[str, Any], str]  # a module's buffers, and a name among them

RUNNING = ("running_", "num_batches")  # how normalisation layers name their statistics
TRACKED = ("running_mean", "running_var", "num_batches_tracked")  # what torch's BatchNorm tracks
WORD = torch.int32  # what entries are copied as, bitwise


class Tensors:
    """The tensors at some places, and their entries by device and size: foreach takes in one kernel what is alike."""

    def __init__(self, places: list[Place], tensors: list[Tensor]):
        self.places, self.tensors = places, tensors
        self._addresses = [t.data_ptr() for t in tensors]
        kinds: dict[Any, list[Tensor]] = {}
        for entries in map(_entries, tensors):
            kinds.setdefault((entries.device, entries.dtype), []).append(entries)
        self._alike = [(own, [t.numel() for t in own]) for own in kinds.values()]

    def now_at(self, places: list[Place]) -> Tensors:
        """The tensors at some places: these, if they still are, and in the same memory."""
        found = [buffers.get(name) for buffers, name in places]
        tensors = [t for t in found if t is not None]
        same = len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))
        if same and list(map(Tensor.data_ptr, tensors)) == self._addresses:
            return self
        return Tensors([p for p, t in zip(places, found, strict=True) if t is not None], tensors)

    def versions(self) -> list[int]:
        """How often each of them has been written to."""
        return [_mark(t)[1] for t in self.tensors]

    def values(self) -> list[Tensor]:
        """What they hold: all that is alike end to end."""
        return [torch.cat([t if t.ndim == 1 else t.reshape(-1) for t in own]) for own, _ in self._alike]

    def saved(self) -> Saved:
        """What they hold now, to be restored later."""
        return Saved(self, self.values())

    def set_where(self, flag: Tensor, values: list[Tensor]) -> None:
        """Sets them where a flag on the device is not 0, without looking at it."""
        if self._alike:
            mask = flag != 0
            self.set([torch.where(mask, old, new) for old, new in zip(values, self.values(), strict=True)])

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
    """The running statistics of a model: those of any class that names them so, and whatever else a pass moves.

    From `hold` to `let_go` they stay: torch's BatchNorm layers do not track them meanwhile, which costs less than to
    let them move, and what else moves is put back by `again`.
    """

    def __init__(self, model: nn.Module | None):
        modules = list(model.modules()) if model is not None else []
        places = [(m._buffers, name) for m in modules for name in m._buffers]
        self._moving = [p for p in places if p[1].startswith(RUNNING)]
        self._others = [p for p in places if not p[1].startswith(RUNNING)]
        shared = any(map(_sees_layers, modules))
        self._tracking = [m for m in modules if not shared and _can_stop_tracking(m)]
        self._trusted: set[int] = set()  # layers whose statistics did stay when they were stopped, by id
        self._learned = False  # until a first pass has shown what it moves, anything might
        self._known = self._rest = Tensors([], [])
        self._stopped: list[nn.Module] = []
        self._doubted: list[tuple[nn.Module, list[Tensor]]] = []
        self._held: Saved | None = None
        self._sort()

    def tensors(self) -> list[Tensor]:
        """The statistics themselves, in the order of their places."""
        return self._now().tensors

    def memory(self) -> Any:
        """The buffers that passes write: a captured graph keeps them alive, because it writes there at every replay."""
        return self._known, self._rest

    def track_always(self) -> None:
        """Has no layer stop tracking: what compiles them would see two models."""
        self._tracking = []
        self._sort()

    def hold(self) -> None:
        """From now on passes move nothing, as far as that is not left to `again`."""
        self._stopped = [m for m in self._tracking if m.track_running_stats]
        for module in self._stopped:
            module.__dict__["track_running_stats"] = False
        doubted = [m for m in self._stopped if m.training and id(m) not in self._trusted]
        self._doubted = [(m, [t.clone() for t in _present(m)]) for m in doubted]
        if self._loose:
            self._rest = self._rest.now_at(self._loose)
            self._held = self._rest.saved()

    def again(self) -> None:
        """After a pass that was held: puts back what it did move."""
        for module, before in self._doubted:  # a hook may move them, or a function that was given them
            if not all(map(torch.equal, _present(module), before)):
                self._tracking = [m for m in self._tracking if m is not module]
            self._trusted.add(id(module))
        if self._held is not None:
            self.restore(self._held)
        if self._doubted:
            self._doubted = []
            self._sort()

    def let_go(self) -> None:
        """Lets passes move everything again."""
        for module in self._stopped:
            module.__dict__["track_running_stats"] = True
        self._stopped, self._held, self._doubted = [], None, []

    def _places(self) -> list[Place]:
        return self._moving if self._learned else self._moving + self._others

    def _now(self) -> Tensors:
        self._known = self._known.now_at(self._places())
        return self._known

    def save(self) -> Saved:
        return self._now().saved()

    def restore(self, saved: Saved) -> None:
        for (buffers, name), tensor in zip(saved.at.places, saved.at.tensors, strict=True):
            buffers[name] = tensor
        saved.at.set(saved.values)

    def marks(self) -> list[tuple[int, int]]:
        """A fingerprint of the other buffers, cheap enough to take every step."""
        return [_mark(_at(p)) for p in self._others]

    def learn(self, before: list[tuple[int, int]]) -> None:
        """Counts the buffers that have moved since `before` as running statistics from now on."""
        moved = [_mark(_at(p)) != mark for p, mark in zip(self._others, before, strict=True)]
        if any(moved):
            pairs = list(zip(self._others, moved, strict=True))
            more, rest = [p for p, yes in pairs if yes], [p for p, yes in pairs if not yes]
            with interrupts_deferred():
                self._moving, self._others = self._moving + more, rest
                self._sort()
        self._learned = True

    def _sort(self) -> None:
        still = {id(m._buffers) for m in self._tracking if id(m) in self._trusted}
        # what moves although they stop
        self._loose = [p for p in self._moving if p[1] not in TRACKED or id(p[0]) not in still]


def _present(module: nn.Module) -> list[Tensor]:
    return [t for name in TRACKED if (t := module._buffers.get(name)) is not None]


def _sees_layers(module: nn.Module) -> bool:
    """Whether a module compiles its layers, for which one that stops is another, or writes their statistics, as DDP."""
    return is_compiled(module) or bool(getattr(module, "broadcast_buffers", False))


def _can_stop_tracking(module: nn.Module) -> bool:
    """Whether a layer runs as torch's own BatchNorm does, which leaves its statistics alone where it does not track."""
    own = getattr(type(module), "forward", None) in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    return isinstance(module, _BatchNorm) and own and "forward" not in vars(module)


def _entries(t: Tensor) -> Tensor:
    """A tensor's memory as one row of words, where it is that of a plain tensor without gaps."""
    t = t.detach()
    if not t.is_contiguous():
        return t
    flat = t.view(-1)
    return flat.view(WORD) if type(t) is Tensor and t.element_size() % WORD.itemsize == 0 else flat


def _at(place: Place) -> Tensor | None:
    buffers, name = place
    return buffers.get(name)


def _mark(t: Tensor | None) -> tuple[int, int]:
    return (0, 0) if t is None or t.is_inference() else (id(t), t._version)


def warn_of_unreachable_statistics(loss: Tensor) -> None:
    """Says so if a loss went through batch normalisation in training mode that nobody handed us."""
    todo, seen = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "BatchNorm" in node.name() and getattr(node, "_saved_training", True):
            warnings.warn(
                "the model has batch normalisation, and its running statistics will move at perturbed weights too: "
                "pass the model, SharpnessAware(..., model=model), and they move once a step, at the weights.",
                stacklevel=5,
            )
            return
        todo += [n for n, _ in node.next_functions]
