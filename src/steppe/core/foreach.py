"""Operations on many tensors in one call: a GPU does each in one kernel."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A copy of every tensor, bitwise."""
    if tensors and all(x.is_cuda and x.is_floating_point() for x in tensors):
        return list(torch._foreach_mul(list(tensors), 1))  # one call; memory asked for one by one takes longer
    fresh = [torch.empty_like(x) for x in tensors]
    copy_(fresh, tensors)
    return fresh


def copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies every source into its target, bitwise."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def sums(ones: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Each tensor plus the other one."""
    return list(torch._foreach_add(list(ones), list(others)))


def magnitudes(tensors: Sequence[Tensor], plus: float) -> list[Tensor]:
    """|x| + plus of every tensor."""
    found = list(torch._foreach_abs(list(tensors))) if tensors else []
    if found:
        torch._foreach_add_(found, plus)
    return found


def add_(targets: Sequence[Tensor], increments: Sequence[Tensor]) -> None:
    """Adds every increment to its target."""
    if targets:
        torch._foreach_add_(list(targets), list(increments))


def scale_(targets: Sequence[Tensor], factor: Tensor | float) -> None:
    """Multiplies every target by a number or a 0-dim tensor."""
    if targets:
        torch._foreach_mul_(list(targets), factor)


def zero_(targets: Sequence[Tensor]) -> None:
    """Sets every target to zero."""
    if targets:
        torch._foreach_zero_(list(targets))
