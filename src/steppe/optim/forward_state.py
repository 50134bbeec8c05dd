"""State that a forward pass changes: running statistics and random generators.

A step has several passes, and its state changes as if it had one: running statistics change in the first pass alone,
every pass starts from the same random numbers (so dropout masks are equal), and the generators continue from where the
first pass left them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import is_
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..core.modules import is_compiled
from ..core.vector import copy_
from .interrupts import interrupts_deferred

Place = tuple[dict[str, Any], str]  # a module's buffers, and a name among them

RUNNING = ("running_", "num_batches")  # how normalisation layers name their statistics
TRACKED = ("running_mean", "running_var", "num_batches_tracked")  # what torch's BatchNorm tracks
WORD = torch.int32  # buffers are copied bitwise, as words
CPU = torch.device("cpu")


class Buffers:
    """The tensors at some places, flattened and grouped by device and word size: one kernel copies each group."""

    def __init__(self, places: list[Place], tensors: list[Tensor]):
        self.places, self.tensors = places, tensors
        self._addresses = [t.data_ptr() for t in tensors]
        groups: dict[Any, list[Tensor]] = {}
        for words in map(_words, tensors):
            groups.setdefault((words.device, words.dtype), []).append(words)
        self._groups = [(group, [t.numel() for t in group]) for group in groups.values()]

    def at(self, places: list[Place]) -> Buffers:
        """The buffers at some places: this object if they are the same tensors in the same memory."""
        current = [buffers.get(name) for buffers, name in places]
        tensors = [t for t in current if t is not None]
        same = len(tensors) == len(self.tensors) and all(map(is_, tensors, self.tensors))
        if same and list(map(Tensor.data_ptr, tensors)) == self._addresses:
            return self
        return Buffers([p for p, t in zip(places, current, strict=True) if t is not None], tensors)

    def versions(self) -> list[int]:
        """How often each buffer has been written to."""
        return [0 if t.is_inference() else t._version for t in self.tensors]

    def save(self) -> Saved:
        """The values that the buffers have now."""
        return Saved(self, self._values())

    def set(self, values: list[Tensor]) -> None:
        """Writes saved values."""
        for (group, sizes), flat in zip(self._groups, values, strict=True):
            parts = flat.split_with_sizes(sizes)
            copy_(group, [x if t.ndim == 1 else x.view(t.shape) for x, t in zip(parts, group, strict=True)])

    def set_where(self, flag: Tensor, values: list[Tensor]) -> None:
        """Writes saved values if a flag on the device is not 0, without a host synchronization."""
        if self._groups:
            mask = flag != 0
            self.set([torch.where(mask, old, new) for old, new in zip(values, self._values(), strict=True)])

    def _values(self) -> list[Tensor]:
        return [torch.cat([t if t.ndim == 1 else t.reshape(-1) for t in group]) for group, _ in self._groups]


@dataclass(frozen=True)
class Saved:
    """Buffers, and the values that they had."""

    buffers: Buffers
    values: list[Tensor]


class RunningStatistics:
    """The running statistics of a model: buffers named like BatchNorm's, and all others that a first pass changes.

    Between `freeze` and `unfreeze` they keep their values: torch's BatchNorm layers stop tracking, which is cheaper
    than restoring, and `restore_frozen` restores the rest after every pass.
    """

    def __init__(self, model: nn.Module | None):
        modules = list(model.modules()) if model is not None else []
        places = [(m._buffers, name) for m in modules for name in m._buffers]
        self._moving = [p for p in places if p[1].startswith(RUNNING)]
        self._others = [p for p in places if not p[1].startswith(RUNNING)]
        shared = any(map(_depends_on_layers, modules))
        self._tracking = [m for m in modules if not shared and _can_stop_tracking(m)]
        self._trusted: set[int] = set()  # ids of layers whose statistics did not change while tracking was off
        self._learned = False  # before a first pass, any buffer may be one that passes change
        self._current = self._restored = Buffers([], [])
        self._stopped: list[nn.Module] = []
        self._untested: list[tuple[nn.Module, list[Tensor]]] = []
        self._frozen: Saved | None = None
        self._sort()

    def tensors(self) -> list[Tensor]:
        """The statistics, in the order of their places."""
        return self._now().tensors

    def memory(self) -> Any:
        """The buffers that passes write: a captured graph keeps them alive, because it writes there at every replay."""
        return self._current, self._restored

    def track_always(self) -> None:
        """Keeps tracking on in every layer: a compiled model would be compiled twice."""
        self._tracking = []
        self._sort()

    def _now(self) -> Buffers:
        self._current = self._current.at(self._moving if self._learned else self._moving + self._others)
        return self._current

    def save(self) -> Saved:
        """The statistics and their values."""
        return self._now().save()

    def restore(self, saved: Saved) -> None:
        """Puts saved statistics back, also where a pass has replaced the tensors."""
        for (buffers, name), tensor in zip(saved.buffers.places, saved.buffers.tensors, strict=True):
            buffers[name] = tensor
        saved.buffers.set(saved.values)

    def marks(self) -> list[tuple[int, int]]:
        """Identities and versions of the buffers that no pass has changed so far."""
        return [_mark(_at(p)) for p in self._others]

    def learn(self, marks: list[tuple[int, int]]) -> None:
        """Counts the buffers that have changed since `marks` as running statistics from now on."""
        changed = [_mark(_at(p)) != mark for p, mark in zip(self._others, marks, strict=True)]
        if any(changed):
            pairs = list(zip(self._others, changed, strict=True))
            more, rest = [p for p, yes in pairs if yes], [p for p, yes in pairs if not yes]
            with interrupts_deferred():
                self._moving, self._others = self._moving + more, rest
                self._sort()
        self._learned = True

    def freeze(self) -> None:
        """Stops tracking in BatchNorm layers and saves what changes nevertheless."""
        self._stopped = [m for m in self._tracking if m.track_running_stats]
        for module in self._stopped:
            module.__dict__["track_running_stats"] = False
        untested = [m for m in self._stopped if m.training and id(m) not in self._trusted]
        self._untested = [(m, [t.clone() for t in _tracked(m)]) for m in untested]
        if self._loose:
            self._restored = self._restored.at(self._loose)
            self._frozen = self._restored.save()

    def restore_frozen(self) -> None:
        """After a pass: restores what changed although it was frozen."""
        for module, before in self._untested:  # a hook may change them, or a function that has a reference
            if not all(map(torch.equal, _tracked(module), before)):
                self._tracking = [m for m in self._tracking if m is not module]
            self._trusted.add(id(module))
        if self._frozen is not None:
            self.restore(self._frozen)
        if self._untested:
            self._untested = []
            self._sort()

    def unfreeze(self) -> None:
        """Lets passes change the statistics again."""
        for module in self._stopped:
            module.__dict__["track_running_stats"] = True
        self._stopped, self._frozen, self._untested = [], None, []

    def _sort(self) -> None:
        """Lists the statistics that change although their layers stop tracking."""
        still = {id(m._buffers) for m in self._tracking if id(m) in self._trusted}
        self._loose = [p for p in self._moving if p[1] not in TRACKED or id(p[0]) not in still]


class SameNoise(Protocol):
    """Makes every pass of a step start from the same random numbers."""

    def rewind(self) -> None: ...
    def resume(self) -> None: ...
    def restart(self) -> None: ...


class Noise:
    """The states of torch's global generators at the start of a step."""

    def __init__(self, devices: Sequence[torch.device]):
        self._generators = [_generator(CPU), *[_generator(d) for d in devices if d.type != "cpu"]]
        self._start = [get() for get, _ in self._generators]
        self._after_first: list[Any] | None = None

    def rewind(self) -> None:
        """After a pass: the next one starts from the same random numbers."""
        if self._after_first is None:
            self._after_first = [get() for get, _ in self._generators]
        self.restart()

    def resume(self) -> None:
        """After the last pass: continues from the end of the first."""
        if self._after_first is not None:
            self._set(self._after_first)

    def restart(self) -> None:
        """Returns to the start of the step."""
        self._set(self._start)

    def _set(self, states: list[Any]) -> None:
        for (_, put), state in zip(self._generators, states, strict=True):
            put(state)


@lru_cache
def _generator(device: torch.device) -> tuple[Callable[[], Any], Callable[[Any], Any]]:
    """Functions that get and set the state of a device's global generator."""
    if device == CPU:
        return torch.default_generator.get_state, torch.default_generator.set_state
    own: Any = torch.get_device_module(device).default_generators[device.index or 0]
    if device.type == "cuda":  # the offset of a counter: the key stays the same within a step
        return own.get_offset, own.set_offset
    return own.get_state, own.set_state


class ForwardState:
    """The forward state of one step: what its passes start from, and how to undo them."""

    def __init__(self, statistics: RunningStatistics, noise: SameNoise | None):
        self._statistics, self._noise = statistics, noise
        self.saved = statistics.save()
        self._marks = statistics.marks()
        self._first = True  # no pass has ended

    def after_pass(self) -> None:
        """Rewinds the generators; freezes the statistics after the first pass, restores them after later ones."""
        if self._first:
            self._statistics.learn(self._marks)
            self._statistics.freeze()
        else:
            self._statistics.restore_frozen()
        if self._noise is not None:
            self._noise.rewind()
        self._first = False

    def end(self) -> None:
        """After the last pass: state as after the first one. May be interrupted and called again."""
        self._statistics.unfreeze()
        if self._noise is not None:
            self._noise.resume()

    def undo(self) -> None:
        """State as before the step. May be interrupted and called again."""
        self._statistics.restore(self.saved)
        self._statistics.unfreeze()
        if self._noise is not None:
            self._noise.restart()


def _tracked(module: nn.Module) -> list[Tensor]:
    return [t for name in TRACKED if (t := module._buffers.get(name)) is not None]


def _depends_on_layers(module: nn.Module) -> bool:
    """Whether a module is compiled, or writes the statistics of its layers as DDP does: then tracking stays on."""
    return is_compiled(module) or bool(getattr(module, "broadcast_buffers", False))


def _can_stop_tracking(module: nn.Module) -> bool:
    """Whether a layer runs torch's own BatchNorm forward, which leaves the statistics alone if tracking is off."""
    own = getattr(type(module), "forward", None) in (_BatchNorm.forward, nn.SyncBatchNorm.forward)
    return isinstance(module, _BatchNorm) and own and "forward" not in vars(module)


def _words(t: Tensor) -> Tensor:
    """The memory of a contiguous plain tensor as one row of words; other tensors as they are."""
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
    """Warns if a loss went through batch normalisation in training mode and the optimizer has no model."""
    pending, seen = [loss.grad_fn], set()
    while pending:
        node = pending.pop()
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
        pending += [n for n, _ in node.next_functions]
