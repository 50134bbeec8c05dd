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
_OPEN: list[Precision] = []  # precisions of the open blocks
_ORIGINAL: list[_Settings] = []  # settings before the first of them


@contextmanager
def computing_in(precision: Precision, devices: Iterable[str] = ()) -> Iterator[None]:
    """Compute with a precision on these types of devices, whatever is set outside the block."""
    if precision not in get_args(Precision):
        raise ValueError(f"the precision of passes is one of {get_args(Precision)}, not {precision!r}")
    with ExitStack() as stack:
        _open(precision)
        stack.callback(_close, precision)
        for device in sorted({"cpu", "cuda", *devices}):
            enabled = precision == "bf16" and device in devices
            on = torch.is_autocast_enabled(device)
            if enabled and not (on and torch.get_autocast_dtype(device) is torch.bfloat16):
                # no cache: it would keep all displaced weights until the outermost block ends
                stack.enter_context(torch.autocast(device, torch.bfloat16, cache_enabled=False))
            elif on and not enabled:
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _open(precision: Precision) -> None:
    with _LOCK:
        if not _OPEN:
            _ORIGINAL.append(_Settings())
        if not _OPEN or _OPEN[-1] != precision:
            _ORIGINAL[0].change(precision == "tf32")
        _OPEN.append(precision)


def _close(precision: Precision) -> None:
    with _LOCK:
        last = max(i for i, p in enumerate(_OPEN) if p == precision)
        del _OPEN[last]
        if not _OPEN:
            _ORIGINAL.pop().restore()
        elif last == len(_OPEN) and _OPEN[-1] != precision:
            _ORIGINAL[0].change(_OPEN[-1] == "tf32")


class _Settings:
    """The settings at construction, to change and to restore exactly.

    A setting that was never made differs from every value that can be set, because it inherits later changes of the
    level above. So only operations that do not follow their backend, which must have been set, are written. The old
    setting of cuDNN cannot be written alone: inside a block it contradicts the new one, and reading it raises.
    """

    def __init__(self) -> None:
        self._written: set[tuple[str, str]] = set()
        self._above: dict[tuple[str, str], str] = {}
        self._own: dict[tuple[str, str], str] = {}
        if _SET is not None:
            everything = _GET("generic", "all")
            _SET("generic", "all", "none")
            for backend in _BACKENDS:
                self._above[backend, "all"] = _GET(backend, "all")
                _SET(backend, "all", "none")
                self._own |= {(backend, name): _GET(backend, name) for name in _OPERATIONS}
            _SET("generic", "all", everything)
            self._change_new(False)  # reading the old setting raises while it contradicts a new one
        with _quiet():
            self._matmul = torch.get_float32_matmul_precision()  # highest, high or medium
            self._cudnn = torch.backends.cudnn.allow_tf32 if _SET is None else None
        self._old = self._matmul != "highest"  # current value of the old setting for matrix products

    def change(self, fast: bool) -> None:
        """Switch TF32 in the new settings and in the old one for matrix products, which torch.compile reads."""
        self._change_new(fast)
        if fast != self._old:
            with _quiet():
                torch.backends.cuda.matmul.allow_tf32 = self._old = fast
            self._written.add(("cuda", "old"))
        if self._cudnn is not None:
            torch.backends.cudnn.allow_tf32 = fast

    def _change_new(self, fast: bool) -> None:
        for backend, _ in self._above:
            wanted = "tf32" if fast and backend == "cuda" else "ieee"
            _SET(backend, "all", wanted)
            for name in _OPERATIONS:
                if _GET(backend, name) != wanted:
                    _SET(backend, name, wanted)
                    self._written.add((backend, name))

    def restore(self) -> None:
        """Restore the settings at construction."""
        if ("cuda", "old") in self._written:
            with _quiet():
                torch.set_float32_matmul_precision(self._matmul)
            self._written |= {(backend, "matmul") for backend, _ in self._above}
        if self._cudnn is not None:
            torch.backends.cudnn.allow_tf32 = self._cudnn
        for key in self._written & self._own.keys():
            _SET(*key, self._own[key])
        for key, value in self._above.items():
            _SET(*key, value)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the deprecation warnings of torch 2.9 and later: there is no other way to read the old settings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
