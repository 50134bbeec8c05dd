"""What is known of parameters by their names, and of models by their graphs."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from ..chunk import Role


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


def warn_of_unreachable_statistics(loss: Tensor) -> None:
    """Says so if a loss went through batch normalisation in training mode that nobody handed us."""
    todo, seen = [loss.grad_fn], set()
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if "BatchNorm" in node.name() and getattr(node, "_saved_training", True):
            warnings.warn(
                "the model has batch normalisation, and its running statistics will move at perturbed weights too: "
                "pass the model, SharpnessAware(..., model=model), and they move once a step, at the weights.",
                stacklevel=6,
            )
            return
        todo += [n for n, _ in node.next_functions]
