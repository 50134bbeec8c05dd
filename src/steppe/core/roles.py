"""What a parameter is to its layer, told by its name or by the module that owns it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Role:
    """What a parameter is to its layer; None where nobody told us its name."""

    weight: bool | None = None
    norm: bool | None = None


def roles_of(model: nn.Module | None, groups: Sequence[Mapping[str, Any]]) -> Mapping[int, Role]:
    """The role of every parameter by its id: from the model's modules, else from the names in the groups."""
    roles: dict[int, Role] = defaultdict(Role)
    for group in groups:
        for name, p in zip(group.get("param_names", ()), group["params"], strict=False):
            *path, leaf = name.split(".")
            owner = path[-1].lower() if path else ""
            roles[id(p)] = Role("weight" in leaf, "norm" in owner or owner.startswith("bn"))
    for module in model.modules() if model is not None else ():
        for leaf, p in module.named_parameters(recurse=False):
            roles[id(p)] = Role("weight" in leaf, _normalises(module))
    return roles


def _normalises(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__ or "running_mean" in module._buffers
