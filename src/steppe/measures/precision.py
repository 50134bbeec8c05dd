"""The precision of float32 products: a setting of the process that a measurement changes and restores."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, Literal, get_args

import torch

# float32: TF32 and autocast are off; tf32: matrix products and convolutions on a GPU use 10 bits of their factors;
# bf16: autocast. docs/measures.md shows the effect on a Hessian.
Precision = Literal["float32", "tf32", "bf16"]

# torch 2.9 and later: a global setting, one per backend and one per operation; "none" inherits from the level above
_GET: Any = getattr(torch._C, "_get_fp32_precision_getter", None)
_SET: Any = getattr(torch._C, "_set_fp32_precision_setter", None)
_BACKENDS = ("cuda", "mkldnn")
_OPERATIONS = ("matmul", "conv", "rnn")

_LOCK = Lock()  # the settings are global to the process, and threads may measure several models at once
_OPEN: list[bool] = []  # whether the open blocks allow TF32
_UNDO: list[ExitStack] = []  # of every change from one block to the next


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
        if not _OPEN or _OPEN[-1] != allowed:
            _UNDO.append(_switched(allowed))
        _OPEN.append(allowed)
    try:
        yield
    finally:
        with _LOCK, _quiet():
            _OPEN.reverse()
            _OPEN.remove(allowed)
            _OPEN.reverse()
            if not _OPEN or _OPEN[-1] != allowed:
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
