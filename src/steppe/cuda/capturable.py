"""What a captured step needs of its optimizer: kernels that can be captured, and options in device memory."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ..core.probe import pattern_of
from ..optim.base import FUSED, STEP, StepsTheBase, put_steps_on_device
from ..optim.engine import SharpnessAware
from ..optim.finite import enabled

Groups = list[dict[str, Any]]


def prepare(opt: SharpnessAware) -> str | None:
    """Prepares an optimizer for capture, or returns why its steps cannot be captured."""
    params = [p for g in opt.param_groups for p in g["params"]]
    devices = {p.device for p in params}
    if len(devices) > 1 or params[0].device.type != "cuda":
        return (
            f"the weights are on {', '.join(sorted(map(str, devices)))}, and a CUDA graph needs all of them on one GPU"
        )
    method = type(opt.method).__name__
    obstacles = {
        "several processes share the step, and their communication is not captured": torch.distributed.is_available()
        and torch.distributed.is_initialized(),
        "a GradScaler decides on the host after every step; bfloat16 needs none": enabled(opt.scaler) is not None,
        "the optimizer has step hooks, which a replay would not call": has_step_hooks(opt, opt.base),
        f"{method} decides something on the host, or has no pattern(step) that says which steps are alike": all(
            pattern_of(opt.method, step) is None for step in (1, 2)
        ),
    }
    reason = next((reason for reason, applies in obstacles.items() if applies), None)
    return reason or make_capturable(opt.base, guarded=opt.on_nonfinite is not None)


def has_step_hooks(*optimizers: Optimizer) -> bool:
    """Whether a step of these optimizers runs hooks that a replay would leave out."""
    own = [
        hook
        for o in optimizers
        for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")
        for hook in getattr(o, name, {}).values()
    ]
    known = all(isinstance(hook, StepsTheBase) for hook in own)  # which a replay need not ask
    return bool(_global_optimizer_pre_hooks or _global_optimizer_post_hooks) or not known


def make_capturable(base: Optimizer, *, guarded: bool) -> str | None:
    """Switches a base optimizer to kernels that can be captured, or returns why there are none.

    Parameters
    ----------
    base
        The optimizer; its groups are changed in place.
    guarded
        Whether the device skips non-finite steps, which fused kernels alone support.

    """
    params = [p for g in base.param_groups for p in g["params"]]
    name = type(base).__name__
    fused = type(base) in FUSED and all(p.is_floating_point() and not p.is_sparse for p in params)
    if not fused and not all("capturable" in g for g in base.param_groups):
        return f"{name} has neither a fused nor a capturable form: torch's SGD, Adam and AdamW have"
    if not fused and guarded:
        return f"{name} cannot skip a step on the device: give on_nonfinite=None, or SGD, Adam or AdamW as base"
    if any(g.get("differentiable") for g in base.param_groups):
        return f"{name} is differentiable, and a graph keeps no derivatives"
    for group in base.param_groups:
        if fused:
            group["fused"], group["foreach"] = True, False
        if "capturable" in group:
            group["capturable"] = True
    put_steps_on_device(base, params)
    return None


class DeviceOptions:
    """Scheduled options of the parameter groups as scalars on the device, which a captured step reads.

    Groups with equal values share a scalar.
    """

    def __init__(self, groups: Groups, names: Sequence[str], device: torch.device):
        self._groups, self._members = groups, list(groups)  # a group may be added to the list later
        self._names = [n for n in names if any(n in g for g in groups)]
        self._indices = {name: _indices(groups, name) for name in self._names}
        self._scalars = {
            (name, index): torch.empty((), device=device)  # float32: fused optimizers support no other dtype
            for name, indices in self._indices.items()
            for index in indices
            if index is not None
        }
        self._written: dict[tuple[str, int], float] = {}  # the last value that the host wrote into a scalar

    def matches(self, groups: Groups) -> bool:
        """Whether these are the same groups, and those that shared a value still do."""
        return groups is self._groups and all(_indices(groups, name) == i for name, i in self._indices.items())

    def upload(self) -> None:
        """Writes the current options into the scalars; does not wait for the device."""
        for name, group, index in self._entries():
            if not self._on_device(group[name]):
                value = float(group[name])
                if self._written.get((name, index)) != value:
                    self._scalars[name, index].fill_(value)
                    self._written[name, index] = value

    @contextmanager
    def installed(self) -> Iterator[None]:
        """A context in which the groups hold the scalars instead of numbers."""
        before = [(group, name, group[name]) for name, group, _ in self._entries()]
        try:
            for name, group, index in self._entries():
                if not self._on_device(group[name]):  # a tensor on the device is changed in place
                    group[name] = self._scalars[name, index]
            yield
        finally:
            for group, name, value in before:
                group[name] = value

    def leave_on_device(self, names: Collection[str]) -> None:
        """Puts the scalars of some options into the groups: the options that steps set, whose values only they hold."""
        for name, group, index in self._entries():
            if name in names and not self._on_device(group[name]):
                group[name] = self._scalars[name, index]
                self._written.pop((name, index), None)

    def download(self) -> None:
        """Replaces scalars that were left in the groups by numbers; waits for the device."""
        for name, group, index in self._entries():
            if group[name] is self._scalars[name, index]:
                group[name] = float(group[name])

    def _on_device(self, value: Any) -> bool:
        """Whether a group holds a scalar of ours, or a tensor of the user's on the device."""
        return any(value is t for t in self._scalars.values()) or _is_device_tensor(value)

    def _entries(self) -> Iterator[tuple[str, dict[str, Any], int]]:
        for name in self._names:
            for group, index in zip(self._members, self._indices[name], strict=True):
                if index is not None:
                    yield name, group, index


def fixed_options(groups: Groups, names: Sequence[str]) -> Hashable:
    """All options but the scheduled ones: a graph is valid for these values only."""
    excluded = {*names, "params", STEP}
    return tuple(tuple((k, _hashable(v)) for k, v in g.items() if k not in excluded) for g in groups)


def _hashable(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return id(value)
    return tuple(value) if isinstance(value, list) else value


def _indices(groups: Groups, name: str) -> list[int | None]:
    """Per group, the index of its value among the distinct values of an option; None if it is not a number."""
    values: list[Any] = []
    indices: list[int | None] = []
    for group in groups:
        value = group.get(name)
        if not isinstance(value, (int, float, Tensor)):
            indices.append(None)
            continue
        index = next((i for i, v in enumerate(values) if v is value or _equal(v, value)), None)
        if index is None:
            index = len(values)
            values.append(value)
        indices.append(index)
    return indices


def _equal(a: Any, b: Any) -> bool:
    return not _is_device_tensor(a) and not _is_device_tensor(b) and bool(a == b)


def _is_device_tensor(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"
