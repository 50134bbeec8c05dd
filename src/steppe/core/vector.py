"""Weights and gradients as vectors: formulas once, fast on many small tensors, exact on shards.

A `Space` stores same-shaped small tensors stacked in one chunk and every other tensor as a chunk of
its own, so that the algebra below costs one kernel a chunk instead of one a tensor. This is the only
module that spells `torch._foreach_*`; everything else reads as algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from math import inf, nan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .chunk import Chunk
from .foreach import copies
from .inner import dot, joined
from .roles import Role
from .shards import local, over_ranks, sharding_of

STACK_BELOW = 1 << 14  # elements: a larger tensor costs more to copy than one more operation costs to call
TINY = 1e-24  # sums of powers below this may have lost entries that are too small for float32


class Space:
    """The space that the given parameters live in: their storage in chunks and their inner product."""

    def __init__(self, params: Sequence[Tensor], groups: Sequence[int] = (), roles: Sequence[Role] = ()):
        self.params = list(params)
        kinds: dict[Hashable, list[int]] = {}
        for i, p in enumerate(self.params):
            group, role = groups[i] if groups else 0, roles[i] if roles else Role()
            # on a GPU, foreach takes many tensors in one kernel, and putting them together would be one more
            alone = i if p.numel() > STACK_BELOW or p.device.type == "cuda" else -1
            key = (str(p.device), p.dtype, p.shape, local(p).shape, group, role, sharding_of(p), alone)
            kinds.setdefault(key, []).append(i)
        # ordered by device, so that each device's coordinates are one range (see draw.py)
        self.chunks = [
            Chunk(tuple(members), key[4], key[5], key[6], key[2])  # type: ignore[index]
            for key, members in sorted(kinds.items(), key=lambda kv: kv[0][0])  # type: ignore[index]
        ]
        self._one_by_one = [c.members for c in self.chunks] == [(i,) for i in range(len(self.params))]
        self._meshes = {c.sharding for c in self.chunks if c.sharding}
        firsts = [self.params[c.members[0]] for c in self.chunks]
        self.devices = list(dict.fromkeys(p.device for p in firsts))
        self.precision = torch.float64 if any(p.dtype is torch.float64 for p in firsts) else torch.float32

    @property
    def device(self) -> torch.device:
        """Where inner products are added up."""
        return self.devices[0]

    @property
    def sharded(self) -> bool:
        return bool(self._meshes)

    def locals(self) -> list[Tensor]:
        """Every parameter as far as this rank holds it, sharing its memory."""
        return [local(p) for p in self.params] if self._meshes else self.params

    def pack(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One tensor a parameter, as chunks: stacked ones are copies, the others the tensors themselves."""
        if self._one_by_one:
            return list(tensors)
        return [
            torch.stack([tensors[i] for i in c.members]) if c.stacked else tensors[c.members[0]] for c in self.chunks
        ]

    def unpack(self, chunks: Sequence[Tensor]) -> list[Tensor]:
        """Chunks as one tensor a parameter, sharing their memory."""
        if self._one_by_one:
            return list(chunks)
        tensors: list[Tensor] = [chunks[0]] * len(self.params) if chunks else []
        for c, chunk in zip(self.chunks, chunks, strict=True):
            for i, t in zip(c.members, chunk.unbind(0) if c.stacked else (chunk,), strict=True):
                tensors[i] = t
        return tensors

    def vector(self, tensors: Sequence[Tensor]) -> Vector:
        """The vector with these components, one tensor a parameter."""
        return Vector(self, tensors=list(tensors))

    def weights(self) -> Vector:
        return self.vector(self.locals())

    def zeros(self) -> Vector:
        return Vector(self, [torch.zeros_like(x) for x in self.weights().chunks])

    def total(
        self,
        parts: Sequence[Tensor],
        combine: Callable[[Tensor], Tensor],
        op: Any = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """`combine` of one number per chunk, over all ranks that hold a shard; counts stay integers."""
        dtype = dtype or self.precision
        if not parts:
            return torch.zeros((), dtype=dtype)
        dtype = dtype if parts[0].is_floating_point() else parts[0].dtype
        settled = len(self.devices) == 1 and parts[0].dtype is dtype  # parts are of one type, where their chunks are
        numbers = list(parts) if settled else [x.to(self.device, dtype) for x in parts]
        if self._meshes:
            return over_ranks(numbers, [c.sharding for c in self.chunks], combine, op)
        return combine(torch.stack(numbers))


class Vector:
    """A point or direction in a `Space`; a trailing underscore means in place, as in torch."""

    __slots__ = ("_chunks", "_length", "_tensors", "space")

    def __init__(self, space: Space, chunks: list[Tensor] | None = None, tensors: list[Tensor] | None = None):
        self.space, self._chunks, self._tensors = space, chunks, tensors
        self._length: Tensor | None = None  # the Euclidean norm, once somebody has asked

    @property
    def chunks(self) -> list[Tensor]:
        """Packed on first use: a gradient that nobody touches is never copied."""
        if self._chunks is None:
            if self._tensors is None:
                raise RuntimeError("this vector was consumed by a Probe: clone() it first if you need it afterwards")
            self._chunks = self.space.pack(self._tensors)
        return self._chunks

    @property
    def tensors(self) -> list[Tensor]:
        """One tensor a parameter, sharing this vector's memory."""
        return self._tensors if self._tensors is not None else self.space.unpack(self.chunks)

    @property
    def intact(self) -> bool:
        """Whether these are still the very tensors that the vector was made of."""
        return self._tensors is not None

    def _writable(self) -> list[Tensor]:
        chunks, self._tensors, self._length = self.chunks, None, None
        return chunks

    def release(self) -> None:
        """Frees the memory, whoever else holds this vector."""
        self._chunks = self._tensors = self._length = None

    def clone(self) -> Vector:
        return Vector(self.space, copies(self.chunks))

    def mul_(self, factor: Any) -> Vector:
        """Multiplies by a number, a 0-dim tensor, one number a chunk, or another vector entry by entry."""
        chunks = self._writable()
        if isinstance(factor, Vector):
            torch._foreach_mul_(chunks, factor.chunks)
        elif isinstance(factor, Tensor):
            if factor.dtype is torch.float64 and self.space.precision is torch.float32:
                factor = factor.float()  # as it is rounded anyway, and foreach goes one by one where types differ
            for part, here in self._by_device(chunks, factor):
                torch._foreach_mul_(part, here)
        else:
            torch._foreach_mul_(chunks, factor)
        return self

    def add_(self, other: Vector, alpha: Any = 1.0) -> Vector:
        """Adds `alpha * other`; alpha is a number or a 0-dim tensor."""
        chunks = self._writable()
        if not isinstance(alpha, Tensor):
            torch._foreach_add_(chunks, other.chunks, alpha=alpha)
        elif alpha.device.type == "cpu":  # reading it waits for nothing
            torch._foreach_add_(chunks, other.chunks, alpha=float(alpha))
        else:
            torch._foreach_add_(chunks, (other * alpha).chunks)
        return self

    def __add__(self, other: Vector) -> Vector:
        return Vector(self.space, list(torch._foreach_add(self.chunks, other.chunks)))

    def __sub__(self, other: Vector) -> Vector:
        return Vector(self.space, list(torch._foreach_sub(self.chunks, other.chunks)))

    def __mul__(self, factor: Any) -> Vector:
        if isinstance(factor, Tensor):
            return self.clone().mul_(factor)
        return Vector(
            self.space, list(torch._foreach_mul(self.chunks, factor.chunks if isinstance(factor, Vector) else factor))
        )

    def sign_(self) -> Vector:
        torch._foreach_sign_(self._writable())
        return self

    def map(self, f: Callable[[Tensor], Tensor]) -> Vector:
        """`f` of every chunk: for what foreach does not have, at one call a chunk."""
        return Vector(self.space, [f(x) for x in self.chunks])

    def norm(self, p: float = 2.0) -> Tensor:
        """The p-norm over all entries on all ranks, accumulated in float32 or better."""
        if p == 2 and self._length is not None:
            return self._length
        space, chunks = self.space, self.chunks
        if p == inf:  # not by foreach: it is slow there, and refuses the empty shards of uneven sharding
            peaks = [x.abs().amax() if x.numel() else x.new_zeros(()) for x in chunks]
            return space.total(peaks, torch.max, dist.ReduceOp.MAX)
        if not chunks:
            return torch.zeros((), dtype=space.precision)
        if space.device.type == "cuda":  # double precision costs nothing there, and looking would wait for the device
            length = self._norm(p, torch.float64).to(space.precision)
        else:
            length = self._norm(p, space.precision)
            # squares of float32 numbers overflow from 2e19 on and vanish below 1e-23; summing in double precision
            # always would take 30 times as long on a CPU
            if space.device.type == "cpu" and space.precision is torch.float32 and not TINY ** (1 / p) < length < inf:
                length = self._norm(p, torch.float64).float()
        self._length = length if p == 2 else self._length
        return length

    def _norm(self, p: float, dtype: torch.dtype) -> Tensor:
        space, chunks = self.space, self.chunks
        norms = torch._foreach_norm(chunks, p, dtype=dtype)
        if space.sharded:
            return space.total([n.pow(p) for n in norms], torch.sum, dtype=dtype).pow(1 / p)
        return space.total(norms, lambda x: torch.linalg.vector_norm(x, p), dtype=dtype)

    def along(self, other: Vector) -> Tensor:
        """How many times `other` fits into the projection of this vector onto it, <self, other> / ||other||^2."""
        scale = other.norm().reciprocal().nan_to_num_(nan=nan, posinf=0.0)  # squares would overflow or vanish
        return self.dot(other * scale) * scale

    def dot(self, other: Vector) -> Tensor:
        """The inner product over all entries on all ranks, accumulated in float32 or better."""
        space, pairs = self.space, list(zip(self.chunks, other.chunks, strict=True))
        if not space.sharded:
            pairs = joined(pairs, STACK_BELOW)
        return space.total([dot(x, y, space.precision) for x, y in pairs], torch.sum)

    def _by_device(self, chunks: list[Tensor], number: Tensor) -> list[tuple[list[Tensor], Tensor]]:
        if len(self.space.devices) == 1 or number.device.type == "cpu":
            return [(chunks, number)]
        return [([x for x in chunks if x.device == d], number.to(d, non_blocking=True)) for d in self.space.devices]
