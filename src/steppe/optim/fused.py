"""Base optimizers with torch's fused kernels, which update all weights at once and wait for nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

FUSED = (SGD, Adam, AdamW)  # exactly these: a subclass may step in its own way
DEVICES = ("cuda",)  # where fused kernels are chosen unless somebody has chosen others

Group = dict[str, Any]


@final
class Kernels:
    """Chooses a base optimizer's kernels where nobody else has."""

    def __init__(self, base: Optimizer):
        self._base = base
        self._fused: list[Group] = []  # groups whose kernels were chosen here
        self._may = True

    def choose(self) -> None:
        """Chooses anew, for the groups as they are now."""
        self._undo()
        self._fused = fuse(self._base) if self._may else []

    def give_up(self) -> None:
        """Goes back for good to torch's own choice, whose kernels take any gradients."""
        self._undo()
        self._may = self._may and not self._fused
        self._fused = []

    def _undo(self) -> None:
        for group in self._fused:
            if group.get("foreach") is None and group.get("fused"):  # else somebody has chosen since
                group["fused"] = None


def fuse(base: Optimizer) -> list[Group]:
    """Switches the groups on a GPU for which nobody has chosen kernels to fused ones, and returns them."""
    groups = [g for g in base.param_groups if type(base) in FUSED and _open(g) and _even(base, g)]
    for group in groups:
        group["fused"] = True
        put_steps_on_device(base, group["params"])
    return groups


def put_steps_on_device(base: Optimizer, params: Sequence[Tensor]) -> None:
    """Moves the counts that Adam keeps on the host, unless told otherwise, to where fused kernels read them."""
    for p in params:
        step = base.state.get(p, {}).get("step")
        if isinstance(step, Tensor) and step.device != p.device:
            base.state[p]["step"] = step.to(p.device, torch.float32)


def obeys(base: Optimizer) -> bool:
    """Whether a step on a GPU that the base is told to refuse leaves everything alone."""
    if type(base) not in FUSED or not all(g.get("fused") for g in base.param_groups):
        return False
    kept, state = "momentum_buffer" if type(base) is SGD else "exp_avg", base.state
    # SGD's first momentum would be memory that nobody has written to
    moved = [p for g in base.param_groups if g.get("momentum", True) for p in g["params"] if p.requires_grad]
    return all(state.get(p, {}).get(kept) is not None for p in moved)


def step_unless(base: Optimizer, refused: Tensor) -> None:
    """One step of a fused optimizer, which leaves everything alone where the flag, 0.0 or 1.0, is set."""
    base.found_inf = refused  # type: ignore[attr-defined]
    try:
        base.step()
    finally:
        del base.found_inf  # type: ignore[attr-defined]


def _open(group: Group) -> bool:
    """Whether nobody has chosen kernels for a group, and there are fused ones for its weights."""
    chosen = any(group.get(name) is not None for name in ("fused", "foreach")) or group.get("differentiable")
    return not chosen and all(map(_fusible, group["params"]))


def _fusible(p: Tensor) -> bool:
    return type(p) in (Tensor, nn.Parameter) and p.device.type in DEVICES and p.is_floating_point()


def _even(base: Optimizer, group: Group) -> bool:
    """Whether all weights of a group have been moved before, or none: SGD's fused kernels begin with all at once."""
    started = {base.state.get(p, {}).get("momentum_buffer") is None for p in group["params"] if p.requires_grad}
    return type(base) is not SGD or len(started) < 2
