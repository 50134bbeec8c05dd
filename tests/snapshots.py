"""Snapshots of models and of the process, to check that a block changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedTensorMixin

from steppe.core.shards import local

OWNED = {"_parameters", "_buffers", "_modules"}  # attributes of a module whose content is looked at by itself


@dataclass(frozen=True, eq=False)
class Same:
    """Equal only to the same object."""

    it: object

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.it is self.it


def snapshot(*models: nn.Module) -> Mapping[str, Any]:
    """Values by what they say of the models and of the process, which compare equal only if nothing has changed."""
    seen = process()
    for i, model in enumerate(models):
        for path, module in model.named_modules(remove_duplicate=False):
            seen |= {f"model {i}: {path or 'the model'}{key}": value for key, value in _of_module(module).items()}
    return seen


@contextmanager
def assert_untouched(*models: nn.Module) -> Iterator[None]:
    """Fails unless the models and the process are after the block, however it ends, bitwise as they were before."""
    before = snapshot(*models)
    try:
        yield
    finally:
        assert_unchanged(before, snapshot(*models))


def assert_unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Fails with the names of what differs between two snapshots."""
    differing = [name for name in {**before, **after} if name not in before or name not in after]
    differing += [name for name in before if name in after and before[name] != after[name]]
    assert not differing, f"changed: {', '.join(differing)}"


def process() -> dict[str, Any]:
    """Random numbers and switches that are not the model's but everybody's."""
    name, keys, *rest = np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    return {
        "torch's random numbers": bits(torch.get_rng_state()),
        "CUDA's random numbers": [bits(state) for state in cuda],
        "numpy's random numbers": (name, bytes(keys), rest),
        "Python's random numbers": random.getstate(),
        "grad mode": torch.is_grad_enabled(),
        "inference mode": torch.is_inference_mode_enabled(),
        "anomaly mode": torch.is_anomaly_enabled(),
        "autocast": (torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda")),
        "default dtype": torch.get_default_dtype(),
        "default device": torch.get_default_device(),
        "determinism": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "fast path of attention layers": torch.backends.mha.get_fastpath_enabled(),
        "backends of attention": (
            torch.backends.cuda.flash_sdp_enabled(),
            torch.backends.cuda.mem_efficient_sdp_enabled(),
            torch.backends.cuda.math_sdp_enabled(),
            torch.backends.cuda.cudnn_sdp_enabled(),
        ),
        "cuDNN": (torch.backends.cudnn.enabled, torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic),
    }


def bits(t: Tensor) -> bytes:
    """The very bits, so that nan equals nan and -0 differs from 0."""
    return bytes(local(t.detach()).cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _of_module(module: nn.Module) -> dict[str, Any]:
    seen: dict[str, Any] = {" is": Same(module), "'s mode": module.training, "'s class": type(module)}
    seen["'s attributes"] = sorted(vars(module))
    seen["'s order"] = [list(module._parameters), list(module._buffers), list(module._modules)]
    for key, value in vars(module).items():
        if key.endswith("_hooks") and isinstance(value, Mapping):
            seen[f"'s {key}"] = [(k, Same(hook)) for k, hook in value.items()]
        elif isinstance(value, Tensor) and key not in OWNED:
            seen |= _of_tensor(f".{key}", value)
        elif isinstance(value, list) and value and all(isinstance(x, Tensor) for x in value):
            seen[f".{key}"] = [Same(x) for x in value]  # such as the weights that an LSTM hands to its kernel
    for name, t in (*module._parameters.items(), *module._buffers.items()):
        seen |= {f".{name}": None} if t is None else _of_tensor(f".{name}", t)
    return seen


def _of_tensor(name: str, t: Tensor) -> dict[str, Any]:
    hooks = [dict(h) for h in (t._backward_hooks, getattr(t, "_post_accumulate_grad_hooks", None)) if h]
    seen = {
        name: Same(t),
        f"{name} (its bits)": None if isinstance(t, UninitializedTensorMixin) else bits(t),
        f"{name} (writes)": t._version,  # a graph that was made before is void after a write, even one undone
        f"{name} (requires_grad)": t.requires_grad,
        f"{name} (hooks)": [(key, Same(hook)) for h in hooks for key, hook in h.items()],
    }
    if t.is_leaf:
        seen |= {f"{name}.grad": None} if t.grad is None else _of_tensor(f"{name}.grad", t.grad)
    return seen
