"""A recorder on the CPU, for tests without a GPU: it replays operations below autograd in the memory of the capture.

As with a CUDA graph, Python code runs only during the capture: its decisions and numbers are fixed, and only the
contents of memory can change between replays.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from steppe.core.vector import Vector


def tensors(tree):
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def in_a_norm():
    """Whether a norm is being computed, which reads a number on the CPU only."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not Vector.norm.__code__:
        frame = frame.f_back
    return frame is not None


class Operations(TorchDispatchMode):
    """The operations in order, and the contents of older memory before they wrote to it."""

    def __init__(self):
        super().__init__()
        self.calls, self.before, self.new = [], {}, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and not in_a_norm():
            raise RuntimeError("a synchronizing operation: a number was read")
        declared = zip(args, func._schema.arguments, strict=False)
        written = [a for a, d in declared if d.alias_info and d.alias_info.is_write]
        if func is torch.ops.aten.native_batch_norm.default:  # its schema does not declare that it writes statistics
            written += args[3:5]
        for t in tensors(written):
            key = t.untyped_storage().data_ptr()
            if key not in self.new and key not in self.before:
                self.before[key] = (t.untyped_storage(), t.untyped_storage().clone())
        out = func(*args, **kwargs)
        fresh = [r.alias_info is None for r in func._schema.returns]
        results = list(out) if isinstance(out, (tuple, list)) and len(fresh) == len(out) else [out] * len(fresh)
        kept = [t for r, new in zip(results, fresh, strict=True) if new for t in tensors([r])]
        self.new |= {t.untyped_storage().data_ptr() for t in kept}
        if "empty" not in func.__name__:  # allocated once, at the capture
            self.calls.append((func, args, kwargs, kept, fresh, out))
        return out

    def undo(self):
        for storage, values in self.before.values():
            storage.copy_(values)

    def replay(self):
        for entry in self.calls:
            if callable(entry):
                entry()
                continue
            func, args, kwargs, kept, fresh, _ = entry
            with torch.no_grad():
                out = func(*args, **kwargs)
                results = list(out) if isinstance(out, (tuple, list)) and len(fresh) == len(out) else [out] * len(fresh)
                new = [t for r, yes in zip(results, fresh, strict=True) if yes for t in tensors([r])]
                for memory, values in zip(kept, new, strict=True):
                    memory.detach().copy_(values)


class PassNoise:
    """The same noise in every pass of a step, and new noise in every replay."""

    def __init__(self, calls):
        self._calls, self.start, self.after = calls, None, None

    def rewind(self):
        self._record(self._rewind)

    def resume(self):
        self._record(self._resume)

    restart = resume

    def restart_passes(self):
        self.start, self.after = torch.get_rng_state(), None

    def _record(self, host):
        host()
        self._calls.append(host)

    def _rewind(self):
        if self.after is None:
            self.after = torch.get_rng_state()
        torch.set_rng_state(self.start)

    def _resume(self):
        if self.after is not None:
            torch.set_rng_state(self.after)


class CpuRecorder:
    """Captures and replays on the CPU."""

    @contextmanager
    def on_stream(self):
        yield

    def capture(self, work, passes=0):
        state, operations = torch.get_rng_state(), Operations()
        noise = PassNoise(operations.calls) if passes else None
        if noise is not None:
            noise.restart_passes()
        try:
            with operations:
                result = work(noise)
        finally:
            operations.undo()
            torch.set_rng_state(state)

        def replay():
            if noise is not None:
                noise.restart_passes()
            operations.replay()

        return result, replay
