"""Modules that torch.compile has been asked to compile."""

from __future__ import annotations

from torch import nn


def is_compiled(module: nn.Module) -> bool:
    """Whether a module is what torch.compile returned, or compiles itself when it is called."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
