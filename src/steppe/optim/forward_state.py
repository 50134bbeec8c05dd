"""What a forward pass changes besides gradients: buffers, other parameters, metrics and random generators.

A step has several passes, and all of these change as if it had one: the first pass alone counts, every pass starts from
the same random numbers (so dropout masks are equal), and the generators continue from where the first pass left them.
Values are compared and put back: `x.data.mul_()`, fused kernels and NumPy views write without raising `_version`.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from operator import attrgetter, is_
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..core.shards import distributed
from ..core.vector import Space, copy_

Attributes = tuple[dict[str, Any], list[tuple[str, tuple[Any, Any]]]]  # of an object, and values with copies
Place = tuple[Any, str]  # a module's dictionary of buffers, parameters or attributes, and a name in it

WORD = torch.int32  # tensors are copied and compared bitwise, as words
CPU = torch.device("cpu")
SHARE, SPARE = 4, 1 << 26  # what is copied: as much as four times the weights and 64 MiB, the smallest tensors first

DICTIONARIES = (dict, defaultdict, Counter, OrderedDict)  # not the outputs of a model, which refuse to be changed
LARGEST = 1 << 24  # elements of a tensor that may be a count; kept outputs of a model may have more
OF_MODULES = frozenset(vars(nn.Module()))  # attributes that every module has: its parts, buffers and hooks

_version = attrgetter("_version")


class Tensors:
    """The tensors at some places, flattened and grouped by device and word size: one kernel copies each group.

    Parameters
    ----------
    places
        Where the tensors are.
    there
        What is at each place: its tensor, or None where a pass may put one.
    moving
        The places whose tensors passes have changed; this object adds to them.

    """

    def __init__(self, places: list[Place], there: list[Any], moving: set[tuple[int, str]]):
        found = [(place, t) for place, t in zip(places, there, strict=True) if isinstance(t, Tensor)]
        self.places, self.tensors, self._moving = [place for place, _ in found], [t for _, t in found], moving
        self._empty = [place for place, t in zip(places, there, strict=True) if t is None]
        self._known = len(moving)
        self._addresses = list(map(Tensor.data_ptr, self.tensors))
        self._memory = [t.data for t in self.tensors]
        groups: dict[Any, list[tuple[Tensor, tuple[int, str]]]] = {}
        for (table, name), words in zip(self.places, map(_words, self.tensors), strict=True):
            key = id(table), name
            # comparing synchronizes with a GPU; on a CPU what never moves is never written, and may be read-only
            always = words.device != CPU or key in moving
            groups.setdefault((words.device, words.dtype, type(words), always), []).append((words, key))
        self._groups = [(always, [t for t, _ in g], [k for _, k in g]) for (*_, always), g in groups.items()]
        self._sizes = [[t.numel() for t in group] for _, group, _ in self._groups]

    def current(self, places: list[Place]) -> Tensors:
        """The tensors that are at the places now: this object if they are the same ones in the same memory."""
        there = [table.get(name) for table, name in places]
        tensors = [t for t in there if isinstance(t, Tensor)]
        if (
            len(tensors) == len(self.tensors)
            and len(there) == len(tensors) + len(self._empty)
            and len(self._moving) == self._known
            and all(map(is_, tensors, self.tensors))
            and list(map(Tensor.data_ptr, tensors)) == self._addresses
        ):
            return self
        return Tensors(places, there, self._moving)

    def values(self) -> list[Tensor]:
        """The words of each group."""
        return [torch.cat([t if t.ndim == 1 else t.reshape(-1) for t in group]) for _, group, _ in self._groups]

    def set(self, values: list[Tensor], everywhere: bool) -> None:
        """Puts the tensors back to their places, and writes saved values: everywhere, or where they differ."""
        for table, name in self._empty:
            table[name] = None
        if not all(map(is_, [table.get(name) for table, name in self.places], self.tensors)):
            for (table, name), tensor in zip(self.places, self.tensors, strict=True):
                table[name] = tensor
        if list(map(Tensor.data_ptr, self.tensors)) != self._addresses:  # `p.data = ...`
            for tensor, memory in zip(self.tensors, self._memory, strict=True):
                tensor.data = memory
        for (always, group, keys), sizes, flat in zip(self._groups, self._sizes, values, strict=True):
            parts = flat.split_with_sizes(sizes)
            if not (always or everywhere):
                if torch.equal(torch.cat([t if t.ndim == 1 else t.reshape(-1) for t in group]), flat):
                    continue
                moved = [not torch.equal(t.reshape(-1), x) for t, x in zip(group, parts, strict=True)]
                self._moving.update(k for k, yes in zip(keys, moved, strict=True) if yes)
                group = [t for t, yes in zip(group, moved, strict=True) if yes]
                parts = tuple(x for x, yes in zip(parts, moved, strict=True) if yes)
            copy_(group, [x if t.ndim == 1 else x.view(t.shape) for x, t in zip(parts, group, strict=True)])

    def versions(self) -> list[int]:
        """How often each tensor has been written to."""
        return list(map(_version, self.tensors))


@dataclass(slots=True)  # not frozen: every step makes two, and that takes three times as long
class Snapshot:
    """Tensors, and the values that they had; other attributes of metrics, and copies of them."""

    tensors: Tensors
    values: list[Tensor]
    attributes: list[Attributes]
    everywhere: bool = False  # in a captured step, which compares nothing

    def restore(self) -> None:
        """Puts everything back. May be interrupted and called again."""
        self.tensors.set(self.values, self.everywhere)
        put_back(self.attributes)

    def restore_where(self, flag: Tensor) -> None:
        """Writes the values if a flag on the device is not 0, without a host synchronization."""
        if self.values:
            mask, now = flag != 0, self.tensors.values()
            self.tensors.set([torch.where(mask, old, new) for old, new in zip(self.values, now, strict=True)], True)


class SameNoise(Protocol):
    """Makes every pass of a step start from the same random numbers."""

    def rewind(self) -> None:
        """Before a later pass: it starts from the same random numbers as the first one."""
        ...

    def resume(self) -> None:
        """After the last pass: continues from the end of the first."""
        ...

    def restart(self) -> None:
        """Returns to the start of the step."""
        ...


class Noise:
    """The states of torch's global generators at the start of a step; only those that the first pass used are set.

    Another thread that draws from a generator while passes with dropout draw from it is rewound with them.
    """

    def __init__(self, devices: Sequence[torch.device]):
        self._generators = [_generator(CPU), *[_generator(d) for d in devices if d.type != "cpu"]]
        self._start = [get() for get, _ in self._generators]
        self._used: list[tuple[Callable[[Any], Any], Any, Any]] | None = None  # with states before and after it

    def rewind(self) -> None:
        if self._used is None:
            used = zip(self._generators, self._start, strict=True)
            self._used = [(put, start, end) for (get, put), start in used if not _equal(start, end := get())]
        for put, start, _ in self._used:
            put(start)

    def resume(self) -> None:
        for put, _, end in self._used or ():
            put(end)

    def restart(self) -> None:
        for (get, put), start in zip(self._generators, self._start, strict=True):
            if not _equal(start, get()):
                put(start)


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else a == b


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
    """The forward state of a model, from step to step: what passes start from, and how to undo them.

    Everything that the model holds is saved and put back by value, except the weights of the optimizer: buffers,
    parameters that are frozen or in no group, and the states of torchmetrics. What exceeds four times the weights (a
    large frozen backbone) is copied only after a pass has replaced it or raised its version.
    """

    def __init__(self, model: nn.Module | None):
        self._model = model
        self._space: Space | None = None  # of the weights at the last walk
        self._places: list[Place] = []
        self._large: list[Place] = []  # what is not copied, and watched
        self._moving: set[tuple[int, str]] = set()
        self._tensors = Tensors([], [], self._moving)
        self._first: Snapshot | None = None  # after the first pass, until the step ends
        self._noise: SameNoise | None = None
        self._everywhere = False
        self.walked = 0  # how often the model was walked: it is again when its structure changes

    def begin(self, space: Space, noise: SameNoise | None, everywhere: bool) -> Snapshot:
        """Starts a step on these weights: the state before it. In a captured step, all tensors count as changed."""
        self._noise, self._everywhere, self._first = noise, everywhere, None
        self.held(space)
        self._marks = [_mark(p) for p in self._large]
        return self._save()

    def next_pass(self) -> None:
        """Before a later pass: state as after the first one, and the random numbers of its start."""
        if self._first is None:
            self._moving.update((id(p[0]), p[1]) for p, mark in zip(self._large, self._marks, strict=True)
                                if _mark(p) != mark)  # fmt: skip
            self._places += [p for p in self._large if (id(p[0]), p[1]) in self._moving]
            self._large = [p for p in self._large if (id(p[0]), p[1]) not in self._moving]
            assert self._space is not None
            self.held(self._space)  # the first pass may have registered buffers
            self._first = self._save()
        else:
            self._first.restore()
        if self._noise is not None:
            self._noise.rewind()

    def end(self) -> None:
        """After the last pass: state as after the first one."""
        if self._noise is not None:
            self._noise.resume()
        if self._first is not None:
            self._first.restore()
        self._first = None

    def undo(self, before: Snapshot, *, noise: bool) -> None:
        """State as before the step, with its random numbers or without. May be interrupted and called again."""
        before.restore()
        if noise and self._noise is not None:
            self._noise.restart()
        self._first = None

    def held(self, space: Space) -> Tensors:
        """The tensors that passes may change: a captured graph keeps them alive, because it writes there."""
        if self._space is not space or not self._as_walked():
            self._walk(space)
        self._tensors = self._tensors.current(self._places)
        return self._tensors

    def _save(self) -> Snapshot:
        attributes = [kept_attributes(m, tensors=False) for m in self._metrics]
        return Snapshot(self._tensors, self._tensors.values(), attributes, self._everywhere)

    def _as_walked(self) -> bool:
        """Whether the model has the parts and parameters that it had when it was walked."""
        parts = list(chain.from_iterable(map(dict.values, self._tables)))
        return (
            not any(self._empty)
            and len(parts) == len(self._parts)
            and all(map(is_, parts, self._parts))
            and list(map(len, self._buffers)) == self._counts
        )

    def _walk(self, space: Space) -> None:
        """Lists the places of everything that passes may change."""
        self.walked += 1
        modules = list(self._model.modules()) if self._model is not None else []
        scripted = [m for m in modules if isinstance(m, torch.jit.ScriptModule)]
        plain = [m for m in modules if not isinstance(m, torch.jit.ScriptModule)]
        structure: list[dict[str, Any]] = [m._modules for m in plain]
        if not space.sharded:  # FSDP2 puts gathered weights in the place of shards
            structure += [m._parameters for m in plain]
        buffers: list[Any] = [m._buffers for m in plain]
        self._empty = [t for t in (*structure, *buffers) if not t]
        self._tables, self._buffers = [t for t in structure if t], [t for t in buffers if t]
        self._parts = list(chain.from_iterable(map(dict.values, self._tables)))
        self._counts = list(map(len, self._buffers))
        metric = getattr(sys.modules.get("torchmetrics"), "Metric", ())
        self._metrics: list[Any] = [m for m in plain if isinstance(m, metric)]
        tables = [*self._buffers, *(_Scripted(m._buffers) for m in scripted)]
        if not space.sharded:
            tables += [*(m._parameters for m in plain), *(_Scripted(m._parameters) for m in scripted)]
        there = [(table, name, t) for table in tables for name, t in table.items() if t is not None]
        empty = [(table, name) for table in self._buffers for name, t in table.items() if t is None]
        if any(is_lazy(t) for *_, t in there):
            self._parts = []  # walked again, until they have shapes
        weights, addresses = set(map(id, space.params)), {p.data_ptr() for p in space.locals() if p.numel()}
        there = [
            (a, n, t) for a, n, t in there if id(t) not in weights and _is_plain(t) and t.data_ptr() not in addresses
        ]
        room = SHARE * sum(p.nbytes for p in space.params) + SPARE
        self._places, self._large = [*empty, *((vars(m), name) for m in self._metrics for name in m._defaults)], []
        for table, name, t in sorted(there, key=lambda x: x[2].nbytes):
            room -= t.nbytes
            (self._places if room >= 0 or (id(table), name) in self._moving else self._large).append((table, name))
        self._space = space


class _Scripted:
    """The buffers or parameters of a module of TorchScript, as the dictionary that other modules have."""

    def __init__(self, table: Any):
        self._table = table

    def items(self) -> Any:
        return self._table.items()

    def get(self, name: str) -> Tensor | None:
        return next((t for n, t in self._table.items() if n == name), None)

    def __setitem__(self, name: str, tensor: Tensor) -> None:
        self._table[name] = tensor


def kept_attributes(owner: Any, *, tensors: bool) -> Attributes:
    """The attributes of an object but those of every module: counts, flags and lists, and on request its tensors."""
    own = [(k, v) for k, v in vars(owner).items() if k not in OF_MODULES and (tensors or not isinstance(v, Tensor))]
    return vars(owner), [(k, copied(v)) for k, v in own]


def put_back(kept: list[Attributes]) -> None:
    """Gives attributes the values that they had when they were kept."""
    for attributes, values in kept:
        attributes.update((name, restored(*value)) for name, value in values)


def copied(value: Any) -> tuple[Any, Any]:
    """A value, and a copy of what may change in place."""
    if isinstance(value, Tensor):
        return value, value.clone() if not value.requires_grad and value.numel() <= LARGEST else None
    if type(value) in DICTIONARIES:
        return value, {k: copied(v) for k, v in value.items()}
    return value, list(value) if isinstance(value, list) else None


def restored(value: Any, copy: Any) -> Any:
    """The same object with the contents of the copy: metrics of a collection share their states."""
    if copy is None:
        return value
    if isinstance(value, Tensor):
        value.copy_(copy)
    elif isinstance(value, dict):
        contents = {k: restored(*v) for k, v in copy.items()}
        value.clear()
        value.update(contents)
    else:
        value[:] = copy
    return value


def _is_plain(t: Tensor) -> bool:
    """Whether a tensor has memory of its own that can be saved and written to."""
    if is_lazy(t) or t.is_inference() or t.is_meta or t.is_quantized or t.layout is not torch.strided:
        return False
    whole = type(t) in (Tensor, nn.Parameter) or not isinstance(t, nn.Parameter)  # quantized weights are subclasses
    return whole and distributed(t) is None and torch._debug_has_internal_overlap(t) != 1


def _words(t: Tensor) -> Tensor:
    """The memory of a contiguous plain tensor as one row of words; other tensors as they are.

    Through `.data`: values that are put back are no writes to a graph that somebody keeps.
    """
    t = t.data
    if not t.is_contiguous():
        return t
    flat = t.view(-1)
    return flat.view(WORD) if type(t) is Tensor and t.element_size() % WORD.itemsize == 0 else flat


def _mark(place: Place) -> tuple[int, int, int]:
    """What changes if a tensor is replaced, written to or moved."""
    t = place[0].get(place[1])
    return (id(t), t._version, t.data_ptr()) if isinstance(t, Tensor) else (0, 0, 0)
