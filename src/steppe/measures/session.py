"""A session: a model as measurements need it, for as long as they last, and as it was before at their end."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, Literal, TypeVar, get_args

import numpy as np
import torch
from torch import Tensor, nn

from ..optim.base import interrupts_deferred

# float32: TF32 and autocast are off; tf32: matrix products and convolutions on a GPU use 10 bits of their factors;
# bf16: autocast. docs/measures.md shows the effect on a Hessian.
Precision = Literal["float32", "tf32", "bf16"]

# torch 2.9 and later: a global setting, one per backend and one per operation; "none" inherits from the level above
_GET: Any = getattr(torch._C, "_get_fp32_precision_getter", None)
_SET: Any = getattr(torch._C, "_set_fp32_precision_setter", None)
_BACKENDS = ("cuda", "mkldnn")
_OPERATIONS = ("matmul", "conv", "rnn")

_LOCK = Lock()  # the settings are global to the process, and threads may measure several models at once
_ALLOWED: list[bool] = []  # whether the open blocks allow TF32
_UNDO: list[ExitStack] = []  # of every change from one block to the next

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


@contextmanager
def computing_in(precision: Precision, devices: Iterable[str] = ()) -> Iterator[None]:
    """Compute with a precision on these types of devices, whatever is set outside the block."""
    if precision not in get_args(Precision):
        raise ValueError(f"the precision of passes is one of {get_args(Precision)}, not {precision!r}")
    with ExitStack() as stack:
        stack.enter_context(_tf32(precision == "tf32"))
        for device in sorted({"cpu", "cuda", *devices}):
            enabled = precision == "bf16" and device in devices
            on = torch.is_autocast_enabled(device)
            if enabled and not (on and torch.get_autocast_dtype(device) is torch.bfloat16):
                # no cache: it would keep all displaced weights until the outermost block ends
                stack.enter_context(torch.autocast(device, torch.bfloat16, cache_enabled=False))
            elif on and not enabled:
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


@contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    """Allow TF32 or not; the last of equal blocks, which threads may leave in any order, restores the settings."""
    with _LOCK, _quiet():
        if not _ALLOWED or _ALLOWED[-1] != allowed:
            _UNDO.append(_switched(allowed))
        _ALLOWED.append(allowed)
    try:
        yield
    finally:
        with _LOCK, _quiet():
            _ALLOWED.reverse()
            _ALLOWED.remove(allowed)
            _ALLOWED.reverse()
            if not _ALLOWED or _ALLOWED[-1] != allowed:
                _UNDO.pop().close()


def _switched(allowed: bool) -> ExitStack:
    """Switch TF32 in the new settings and in the old ones, which torch.compile reads; closing the result restores them.

    A setting that was never made differs from every value that can be set, because it inherits later changes of the
    level above. So only operations that do not follow their backend, which must have been set, are written. The old
    setting of cuDNN cannot be written alone: inside a block it contradicts the new one, and reading it raises.
    """
    undo, backends = ExitStack(), _BACKENDS if _SET is not None else ()
    own: dict[tuple[str, str], str] = {}
    if backends:
        everything = _GET("generic", "all")
        _SET("generic", "all", "none")
        for backend in backends:
            undo.callback(_SET, backend, "all", _GET(backend, "all"))
            _SET(backend, "all", "none")
            own |= {(backend, name): _GET(backend, name) for name in _OPERATIONS}
        _SET("generic", "all", everything)

    def write(backend: str, value: str) -> None:
        _SET(backend, "all", value)
        for name in _OPERATIONS:
            if _GET(backend, name) != value:
                undo.callback(_SET, backend, name, own[backend, name])
                _SET(backend, name, value)

    for backend in backends:
        write(backend, "ieee")  # also for TF32: reading an old setting raises while it contradicts a new one
    matmul = torch.get_float32_matmul_precision()  # highest, high or medium
    if allowed and backends:
        write("cuda", "tf32")
    if not backends:
        undo.callback(setattr, torch.backends.cudnn, "allow_tf32", torch.backends.cudnn.allow_tf32)
        torch.backends.cudnn.allow_tf32 = allowed
    if (matmul != "highest") != allowed:  # this writes new settings too
        for backend in backends:
            undo.callback(_SET, backend, "matmul", own[backend, "matmul"])
        undo.callback(torch.set_float32_matmul_precision, matmul)
        torch.backends.cuda.matmul.allow_tf32 = allowed
    return undo


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the deprecation warnings of torch 2.9 and later: there is no other way to read the old settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
