"""A session: a model as measurements need it, for as long as they last, and as it was before at their end."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ..optim.base import interrupts_deferred
from .precision import Precision, computing_in

Statistics = Literal["running", "batch"]  # of normalisation layers: as in eval mode, or of the batch as in training
R = TypeVar("R")
Place = tuple[dict[str, Any], str]  # parameters, buffers or attributes of a module, and a name among them

_OPEN: dict[tuple[int, str], Session] = {}  # by model and statistics
_FAST_PATH: list[bool] = []  # whether attention's fast path was enabled before the first of them


def session(model: nn.Module, statistics: Statistics = "running") -> Session:
    """The open session of a model, or a new one, to be entered."""
    return _OPEN.get((id(model), statistics)) or Session(model, statistics)


class Session:
    """A model in eval mode (or with batch statistics) and a process in float32; entered once per measurement.

    Inside, `call` runs a task with other weights in place of the model's own. Entering an open session again does
    nothing. At the end modes, random states, switches and plain tensor attributes are what they were, also after an
    error.
    """

    def __init__(self, model: nn.Module, statistics: Statistics):
        if statistics not in get_args(Statistics):
            raise ValueError(f"statistics of normalisation layers are {get_args(Statistics)}, not {statistics!r}")
        self.model, self.statistics = model, statistics
        self._depth = 0

    def __enter__(self) -> Session:
        if not self._depth:
            self._undo = ExitStack()
            try:
                with interrupts_deferred():
                    self._open(self._undo)
            except BaseException:
                self._undo.close()
                raise
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            with interrupts_deferred():
                self._undo.close()

    def _open(self, undo: ExitStack) -> None:
        self._places: dict[str, list[Place]] = {}  # of every parameter, by each of its names
        self._buffers: list[Place] = []
        self._overwritten: list[Place] = []  # weights that a forward pass writes into
        self._devices = {"cpu", "cuda"}
        self._swapped: list[tuple[Place, Any]] = []  # what the weights of an unfinished call are in place of
        plain: list[tuple[Place, Any]] = []
        modes: list[tuple[nn.Module, bool]] = []
        homes: dict[int, list[Place]] = {}
        recurrent = False
        for path, m in self.model.named_modules():
            attributes = vars(m)
            for name, p in m._parameters.items():
                if p is not None:  # one list for all modules that share a parameter
                    home = self._places[f"{path}.{name}" if path else name] = homes.setdefault(id(p), [])
                    home.append((m._parameters, name))
                    self._devices.add(p.device.type)
            self._buffers += [(m._buffers, name) for name, b in m._buffers.items() if b is not None]
            if getattr(m, "max_norm", None) is not None:  # such an embedding overwrites its weight
                self._overwritten.append((m._parameters, "weight"))
            plain += [((attributes, name), x) for name, x in attributes.items() if isinstance(x, Tensor)]
            if isinstance(m, nn.RNNBase):  # it caches the weights of its last call
                recurrent = True
                plain += [((attributes, name), attributes[name]) for name in ("_flat_weights", "_flat_weight_refs")]
            training = self.statistics == "batch" and "running_mean" in m._buffers
            if m.training != training:
                modes.append((m, training))

        undo.enter_context(preserved_rng())
        undo.enter_context(computing_in("float32", self._devices))  # also of arithmetic on losses and gradients
        if recurrent and any(p.is_cuda for p in self.model.parameters()):
            # cuDNN's recurrent layers have no backward pass in eval mode; torch's own context would enable TF32
            undo.callback(setattr, torch.backends.cudnn, "enabled", torch.backends.cudnn.enabled)
            torch.backends.cudnn.enabled = False

        def close() -> None:
            _OPEN.pop((id(self.model), self.statistics), None)
            put(self._swapped)
            put(plain)  # e.g. the weight that pruning computes before every pass
            for m, training in modes:
                m.training = not training
            if not _OPEN and _FAST_PATH:
                torch.backends.mha.set_fastpath_enabled(_FAST_PATH.pop())

        undo.callback(close)
        if not _OPEN:  # global to the process, and threads may measure several models at once
            _FAST_PATH.append(torch.backends.mha.get_fastpath_enabled())
        _OPEN[id(self.model), self.statistics] = self
        torch.backends.mha.set_fastpath_enabled(False)  # it makes losses with and without gradient differ
        for m, training in modes:
            m.training = training

    def call(self, weights: Mapping[str, Tensor], task: Callable[[nn.Module], R], precision: Precision) -> R:
        """`task(model)` with these weights in place of the model's own, and with copies of its buffers.

        The task may run a backward pass too: activation checkpointing then recomputes with the same weights.
        """
        new: list[tuple[Place, Any]] = [(place, w) for name, w in weights.items() for place in self._places[name]]
        if self._buffers:  # a forward pass may write into them; shared ones stay shared
            buffers = [place[0][place[1]] for place in self._buffers]
            copies = {id(b): b.clone() for b in buffers}
            new += [(place, copies[id(b)]) for place, b in zip(self._buffers, buffers, strict=True)]
        own = [(place, place[0][place[1]]) for place, _ in new]
        own += [(place, place[0][place[1]]) for place in self._overwritten]
        plain = precision == "float32" and not any(map(torch.is_autocast_enabled, self._devices))
        outermost = not self._swapped
        try:
            if outermost:
                self._swapped = own
            put(new)
            for values, name in self._overwritten:
                w = values[name]
                values[name] = (w.detach() if isinstance(w, nn.Parameter) else w).clone()
            if plain:
                return task(self.model)
            with computing_in(precision, {w.device.type for w in weights.values()}):
                return task(self.model)
        finally:
            put(own)
            if outermost:
                self._swapped = []


def put(values: Iterable[tuple[Place, Any]]) -> None:
    """Every value in its place."""
    for (home, name), value in values:
        home[name] = value


@contextmanager
def preserved_rng() -> Iterator[None]:
    """Restore the random states of torch, NumPy and Python at the end of the block."""
    python, arrays, host = random.getstate(), np.random.get_state(), torch.get_rng_state()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    states = [(i, torch.cuda.get_rng_state(i)) for i in devices]
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(host)
        for i, state in states:
            torch.cuda.set_rng_state(state, i)
