"""Learning rates and radii as numbers on the device, so that a recorded step obeys a schedule."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..optim.base import STEP

Groups = list[dict[str, Any]]


class DeviceOptions:
    """The scheduled options of all groups; groups that have the same value share its memory."""

    def __init__(self, groups: Groups, names: Sequence[str], device: torch.device):
        self._groups, self._names = groups, [n for n in names if any(n in g for g in groups)]
        self._shared = {name: _sharing(groups, name) for name in self._names}
        self._tensors = {
            (name, number): torch.empty((), device=device)  # float32: fused optimizers take no other
            for name, numbers in self._shared.items()
            for number in numbers
            if number is not None
        }
        self._shown: dict[tuple[str, int], float] = {}

    def fits(self, groups: Groups) -> bool:
        """Whether the same groups still share the same values."""
        return groups is self._groups and all(_sharing(groups, name) == s for name, s in self._shared.items())

    def turn(self) -> None:
        """Sets the memory to what the groups say now; nothing waits for the device."""
        for name, group, number in self._places():
            if not self._is_memory(group[name]):
                value = float(group[name])
                if self._shown.get((name, number)) != value:
                    self._tensors[name, number].fill_(value)
                    self._shown[name, number] = value

    @contextmanager
    def installed(self) -> Iterator[None]:
        """The groups hold the memory itself; afterwards what they held before."""
        before = [(group, name, group[name]) for name, group, _ in self._places()]
        try:
            for name, group, number in self._places():
                if not self._is_memory(group[name]):  # what is there already changes in its own memory
                    group[name] = self._tensors[name, number]
            yield
        finally:
            for group, name, value in before:
                group[name] = value

    def leave(self, names: Collection[str]) -> None:
        """Leaves the memory of some options in the groups: a step sets them itself."""
        for name, group, number in self._places():
            if name in names and not self._is_memory(group[name]):
                group[name] = self._tensors[name, number]
                self._shown.pop((name, number), None)

    def read(self) -> None:
        """Puts numbers in the place of the memory; this is where the device is waited for."""
        for name, group, number in self._places():
            if group[name] is self._tensors[name, number]:
                group[name] = float(group[name])

    def _is_memory(self, value: Any) -> bool:
        """Whether a group holds memory of the device already, ours or the user's."""
        return any(value is t for t in self._tensors.values()) or _on_device(value)

    def _places(self) -> Iterator[tuple[str, dict[str, Any], int]]:
        for name in self._names:
            for group, number in zip(self._groups, self._shared[name], strict=True):
                if number is not None:
                    yield name, group, number


def fixed(groups: Groups, names: Sequence[str]) -> Hashable:
    """Everything else that the groups say: where it changes, a recorded step no longer holds."""
    moving = {*names, "params", STEP}
    return tuple(tuple((k, _frozen(v)) for k, v in g.items() if k not in moving) for g in groups)


def _frozen(value: Any) -> Hashable:
    if isinstance(value, Tensor):
        return id(value)
    return tuple(value) if isinstance(value, list) else value


def _sharing(groups: Groups, name: str) -> list[int | None]:
    """Which distinct value each group has, by number; None where it has none."""
    values: list[Any] = []
    numbers: list[int | None] = []
    for group in groups:
        value = group.get(name)
        if not isinstance(value, (int, float, Tensor)):
            numbers.append(None)
            continue
        found = next((i for i, v in enumerate(values) if v is value or _equal(v, value)), None)
        if found is None:
            found = len(values)
            values.append(value)
        numbers.append(found)
    return numbers


def _equal(a: Any, b: Any) -> bool:
    return not _on_device(a) and not _on_device(b) and bool(a == b)


def _on_device(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type != "cpu"
