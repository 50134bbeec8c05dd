"""Vectors of all members of an ensemble at once: an entry is one a member, and so is every number made of vectors.

They answer to what `steppe.vector.Vector` does, so that a method's plan, written for one member, runs as it is for all
of them: where it has a norm, here are the norms of all members, and a product with a number is one with each member's
own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod
from typing import Any

import torch
from torch import Tensor

from ..chunk import Chunk
from ..optim.site import STEP


@dataclass(frozen=True)
class Places:
    """Where the parameters of a member lie in its row, and what they are to their layers."""

    chunks: Sequence[Chunk]  # one a parameter

    def cut(self, rows: Tensor) -> list[Tensor]:
        """One tensor a parameter, all members stacked in it, sharing the memory of `rows`."""
        parts = torch.split(rows, [prod(c.shape) for c in self.chunks], dim=1)
        return [part.view(len(rows), *c.shape) for part, c in zip(parts, self.chunks, strict=True)]


class Vectors:
    """One vector a member, in the rows of one tensor; a trailing underscore means in place, as in torch."""

    __slots__ = ("rows", "space")

    def __init__(self, space: Places, rows: Tensor):
        self.space, self.rows = space, rows

    @property
    def chunks(self) -> list[Tensor]:
        """One tensor a parameter, sharing this vector's memory."""
        return self.space.cut(self.rows)

    def release(self) -> None:
        """Nothing to do: memory goes with the last that holds it."""

    def clone(self) -> Vectors:
        return Vectors(self.space, self.rows.clone())

    def mul_(self, factor: Any) -> Vectors:
        """Multiplies by a number, one number a member, or other vectors entry by entry."""
        self.rows.mul_(_wide(factor))
        return self

    def add_(self, other: Any, alpha: Any = 1.0) -> Vectors:
        """Adds `alpha * other`; alpha is a number, or one a member."""
        if isinstance(alpha, Tensor) and alpha.ndim:
            self.rows.addcmul_(_wide(other), _wide(alpha))
        else:
            self.rows.add_(_wide(other), alpha=float(alpha))
        return self

    def __add__(self, other: Any) -> Vectors:
        return Vectors(self.space, self.rows + _wide(other))

    def __sub__(self, other: Any) -> Vectors:
        return Vectors(self.space, self.rows - _wide(other))

    def __mul__(self, factor: Any) -> Vectors:
        return Vectors(self.space, self.rows * _wide(factor))

    def sign_(self) -> Vectors:
        self.rows.sign_()
        return self

    def map(self, f: Callable[[Tensor], Tensor]) -> Vectors:
        return Vectors(self.space, f(self.rows))

    def norm(self, p: float = 2.0) -> Tensor:
        """Every member's p-norm."""
        if p == inf:
            return self.rows.abs().amax(1)
        norms: Tensor = torch.linalg.vector_norm(self.rows, p, dim=1)
        return norms

    def dot(self, other: Any) -> Tensor:
        """Every member's inner product."""
        return torch.einsum("ij,ij->i", self.rows, _wide(other))


class AllMembers:
    """What a plan sees: all members, as if they were one."""

    mask, alone = None, True

    def __init__(self, weights: Vectors, groups: Sequence[Mapping[str, Any]], taking: int):
        self.weights, self.space, self._groups = weights, weights.space, groups
        self.step: int = groups[taking][STEP]
        self.settings: dict[str, Any] = {}

    def option(self, name: str) -> Any:
        """A group option: its one value, or one a member."""
        values = [g[name] for g in self._groups]
        if all(v == values[0] for v in values):
            return values[0]
        return torch.tensor(values).to(self.weights.rows, non_blocking=True)


def _wide(x: Any) -> Any:
    """What multiplies rows: other rows, or a column of one number a member."""
    if isinstance(x, Vectors):
        return x.rows
    if isinstance(x, Tensor):
        return x.unsqueeze(-1) if x.ndim == 1 else x
    if hasattr(x, "chunks"):  # a vector that a metric made, one chunk a parameter
        return torch.cat([chunk.flatten(1) for chunk in x.chunks], dim=1)
    return x
