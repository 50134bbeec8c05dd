"""A recorder of steps on the CPU: operations below autograd, run again in the memory that they used the first time.

As with a CUDA graph, Python runs only once: whatever it decided, computed or read is fixed, and only what stands in
memory can change. That is what the tests of captured steps need, where there is no GPU.
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


def looks_on_a_cpu_only():
    """Whether a norm is being computed, which reads a number where that waits for nothing."""
    frame = sys._getframe()
    while frame is not None and frame.f_code is not Vector.norm.__code__:
        frame = frame.f_back
    return frame is not None


class Operations(TorchDispatchMode):
    """What was done, in order, and what memory that was there before looked like before it was written to."""

    def __init__(self):
        super().__init__()
        self.done, self.before, self.made = [], {}, set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and not looks_on_a_cpu_only():
            raise RuntimeError("a synchronizing operation: a number was read")
        said = zip(args, func._schema.arguments, strict=False)
        written = [a for a, s in said if s.alias_info and s.alias_info.is_write]
        if func is torch.ops.aten.native_batch_norm.default:  # moves its statistics and does not say so
            written += args[3:5]
        for t in tensors(written):
            key = t.untyped_storage().data_ptr()
            if key not in self.made and key not in self.before:
                self.before[key] = (t.untyped_storage(), t.untyped_storage().clone())
        out = func(*args, **kwargs)
        fresh = [r.alias_info is None for r in func._schema.returns]
        results = list(out) if isinstance(out, (tuple, list)) and len(fresh) == len(out) else [out] * len(fresh)
        kept = [t for r, new in zip(results, fresh, strict=True) if new for t in tensors([r])]
        self.made |= {t.untyped_storage().data_ptr() for t in kept}
        if "empty" not in func.__name__:  # such memory is made once
            self.done.append((func, args, kwargs, kept, fresh, out))
        return out

    def undo(self):
        for storage, values in self.before.values():
            storage.copy_(values)

    def again(self):
        for entry in self.done:
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


class Noise:
    generators = ()

    def __init__(self, recorder):
        self.recorder, self.start, self.after = recorder, None, None

    def rewind(self):
        self.note(self._rewind)

    def resume(self):
        if self.recorder.mode is not None:
            self.note(self._resume)

    restart = resume

    def note(self, host):
        host()
        self.recorder.mode.done.append(host)

    def _rewind(self):
        if self.after is None:
            self.after = torch.get_rng_state()
        torch.set_rng_state(self.start)

    def _resume(self):
        if self.after is not None:
            torch.set_rng_state(self.after)

    def replay(self):
        self.start, self.after = torch.get_rng_state(), None


class Again:
    """Records and replays on the CPU."""

    def __init__(self):
        self.mode, self._noise = None, None

    @contextmanager
    def aside(self):
        yield

    @contextmanager
    def rehearsing(self):
        yield lambda: True

    def noise(self, passes):
        self._noise = Noise(self)
        return self._noise

    def record(self, work, noise=()):
        state = torch.get_rng_state()
        if self._noise is not None:
            self._noise.replay()
        self.mode = mode = Operations()
        try:
            with mode:
                result = work()
        finally:
            self.mode, self._noise = None, None
            mode.undo()
            torch.set_rng_state(state)
        return result, mode.again
