"""Facts about the modules of a model: the role of each parameter, and whether torch.compile compiles them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Role:
    """Whether a parameter is named weight, and whether it belongs to a normalization layer; None if unknown."""

    weight: bool | None = None
    norm: bool | None = None


def roles_of(model: nn.Module | None, groups: Sequence[Mapping[str, Any]]) -> Mapping[int, Role]:
    """The role of every parameter by its id: from the modules of the model, else from the names in the groups."""
    roles: dict[int, Role] = defaultdict(Role)
    for group in groups:
        for name, p in zip(group.get("param_names", ()), group["params"], strict=False):
            *path, leaf = name.split(".")
            owner = path[-1].lower() if path else ""
            roles[id(p)] = Role("weight" in leaf, "norm" in owner or owner.startswith("bn"))
    for module in model.modules() if model is not None else ():
        for leaf, p in module.named_parameters(recurse=False):
            roles[id(p)] = Role("weight" in leaf, "Norm" in type(module).__name__ or "running_mean" in module._buffers)
    return roles


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile returned this module, or `module.compile()` was called on it."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
