"""Weights and gradients as vectors: formulas written once, fast on many small tensors, exact on shards.

A `Space` stores small tensors of one shape stacked in one chunk and every other tensor as a chunk of its own, so
that the algebra below costs one kernel per chunk instead of one per tensor. This is the only module that calls
`torch._foreach_*`; everything else reads as algebra.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, nan
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from .modules import Role
from .shards import Sharding, local, over_ranks, sharding_of

STACK_BELOW = 1 << 14  # elements: copying a larger tensor costs more than one more kernel launch
TINY = 1e-24  # sums of powers below this may have lost entries that are too small for float32


@dataclass(frozen=True)
class Chunk:
    """The parameters that are stored together, and what they have in common."""

    members: tuple[int, ...]
    group: int
    role: Role
    sharding: Sharding | None
    shape: torch.Size  # of one member, over all ranks

    @cached_property
    def stacked(self) -> bool:
        return len(self.members) > 1


class Space:
    """The vector space of some parameters: their storage in chunks and their inner product.

    Parameters
    ----------
    params
        The parameters, DTensors included.
    groups
        The parameter group of each parameter; all 0 by default.
    roles
        The role of each parameter in its layer; unknown by default.

    Examples
    --------
    >>> space = steppe.Space([torch.tensor([3.0]), torch.tensor([4.0])])
    >>> space.weights().norm()
    tensor(5.)

    """

    def __init__(self, params: Sequence[Tensor], groups: Sequence[int] = (), roles: Sequence[Role] = ()):
        self.params = list(params)
        kinds: dict[Hashable, list[int]] = {}
        for i, p in enumerate(self.params):
            group, role = groups[i] if groups else 0, roles[i] if roles else Role()
            # on a GPU, foreach handles many tensors in one kernel, and stacking them would cost one more
            alone = i if p.numel() > STACK_BELOW or p.device.type == "cuda" else -1
            key = (str(p.device), p.dtype, p.shape, local(p).shape, group, role, sharding_of(p), alone)
            kinds.setdefault(key, []).append(i)
        # ordered by device, so that the coordinates on each device are one range (see draw.py)
        self.chunks = [
            Chunk(tuple(members), key[4], key[5], key[6], key[2])  # type: ignore[index]
            for key, members in sorted(kinds.items(), key=lambda kv: kv[0][0])  # type: ignore[index]
        ]
        self._one_by_one = [c.members for c in self.chunks] == [(i,) for i in range(len(self.params))]
        firsts = [self.params[c.members[0]] for c in self.chunks]
        self.sharded = any(c.sharding for c in self.chunks)  # over ranks
        self.devices = list(dict.fromkeys(p.device for p in firsts))
        self.device = self.devices[0] if firsts else torch.device("cpu")  # where inner products are accumulated
        self.precision = torch.float64 if any(p.dtype is torch.float64 for p in firsts) else torch.float32

    def locals(self) -> list[Tensor]:
        """The part of every parameter that this rank holds, sharing its memory."""
        return [local(p) for p in self.params] if self.sharded else self.params

    def pack(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Converts one tensor per parameter to chunks: stacked chunks are copies, the others are the tensors."""
        if self._one_by_one:
            return list(tensors)
        return [
            torch.stack([tensors[i] for i in c.members]) if c.stacked else tensors[c.members[0]] for c in self.chunks
        ]

    def unpack(self, chunks: Sequence[Tensor]) -> list[Tensor]:
        """Converts chunks to one tensor per parameter, sharing their memory."""
        if self._one_by_one:
            return list(chunks)
        tensors: list[Tensor] = [chunks[0]] * len(self.params) if chunks else []
        for c, chunk in zip(self.chunks, chunks, strict=True):
            for i, t in zip(c.members, chunk.unbind(0) if c.stacked else (chunk,), strict=True):
                tensors[i] = t
        return tensors

    def vector(self, tensors: Sequence[Tensor]) -> Vector:
        """The vector with these components, one tensor per parameter."""
        return Vector(self, tensors=list(tensors))

    def weights(self) -> Vector:
        """The parameters as a vector, sharing their memory."""
        return self.vector(self.locals())

    def zeros(self) -> Vector:
        """The zero vector."""
        return Vector(self, [torch.zeros_like(x) for x in self.weights().chunks])

    def total(
        self,
        parts: Sequence[Tensor],
        combine: Callable[[Tensor], Tensor],
        op: Any = None,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        """Combines one number per chunk, over all ranks that hold a shard; counts stay integers."""
        dtype = dtype or self.precision
        if not parts:
            return torch.zeros((), dtype=dtype, device=self.device)
        dtype = dtype if parts[0].is_floating_point() else parts[0].dtype
        in_place = len(self.devices) == 1 and parts[0].dtype is dtype  # all parts have one dtype
        numbers = list(parts) if in_place else [x.to(self.device, dtype) for x in parts]
        if self.sharded:
            return over_ranks(numbers, [c.sharding for c in self.chunks], combine, op)
        return combine(torch.stack(numbers))


class Vector:
    """A point or direction in a `Space`; a trailing underscore means in place, as in torch.

    Make one with `Space.vector`, `Space.weights` or `Space.zeros`. A vector packs its tensors into chunks on first use.

    Parameters
    ----------
    space
        The space.
    chunks
        The entries by chunk of the space.
    tensors
        The entries as one tensor per parameter, if there are no chunks.

    Examples
    --------
    >>> space = steppe.Space([torch.tensor([3.0]), torch.tensor([4.0])])
    >>> v = space.vector([torch.tensor([1.0]), torch.tensor([2.0])])
    >>> (space.weights() + v * 2.0).tensors
    [tensor([5.]), tensor([8.])]
    >>> v.dot(space.weights())
    tensor(11.)

    """

    __slots__ = ("_chunks", "_length", "_tensors", "intact", "space")

    def __init__(self, space: Space, chunks: list[Tensor] | None = None, tensors: list[Tensor] | None = None):
        self.space, self._chunks, self._tensors = space, chunks, tensors
        self._length: Tensor | None = None  # the Euclidean norm, computed once
        self.intact = tensors is not None  # whether `tensors` are still the tensors that the vector was made of

    @property
    def chunks(self) -> list[Tensor]:
        """The entries by chunk, packed on first use: a gradient that is only passed on is never copied."""
        if self._chunks is None:
            if self._tensors is None:
                raise RuntimeError("this vector was consumed by a Probe: clone() it first if you need it afterwards")
            self._chunks = self.space.pack(self._tensors)
        return self._chunks

    @property
    def tensors(self) -> list[Tensor]:
        """The entries as one tensor per parameter, sharing this vector's memory."""
        return self._tensors if self._tensors is not None else self.space.unpack(self.chunks)

    def _writable(self) -> list[Tensor]:
        chunks, self._tensors, self._length, self.intact = self.chunks, None, None, False
        return chunks

    def __repr__(self) -> str:
        return f"Vector({sum(p.numel() for p in self.space.params):,} entries in {len(self.space.params)} tensors)"

    def release(self) -> None:
        """Frees the memory; reading the vector afterwards raises."""
        self._chunks = self._tensors = self._length = None
        self.intact = False

    def clone(self) -> Vector:
        """A copy with memory of its own."""
        return Vector(self.space, copies(self.chunks))

    def mul_(self, factor: Any) -> Vector:
        """Multiplies by a number, a 0-dim tensor, one number per chunk, or another vector entry by entry."""
        chunks = self._writable()
        if isinstance(factor, Vector):
            torch._foreach_mul_(chunks, factor.chunks)
        elif isinstance(factor, Tensor):
            if factor.dtype is torch.float64 and self.space.precision is torch.float32:
                factor = factor.float()  # the result is rounded anyway, and foreach is slow on mixed dtypes
            if len(self.space.devices) == 1 or factor.device.type == "cpu":
                torch._foreach_mul_(chunks, factor)
            else:
                for group in by_device_and_dtype(chunks):
                    torch._foreach_mul_(group, factor.to(group[0].device, non_blocking=True))
        else:
            torch._foreach_mul_(chunks, factor)
        return self

    def add_(self, other: Vector, alpha: Any = 1.0) -> Vector:
        """Adds `alpha * other`; alpha is a number or a 0-dim tensor."""
        chunks = self._writable()
        if not isinstance(alpha, Tensor):
            torch._foreach_add_(chunks, other.chunks, alpha=alpha)
        elif alpha.device.type == "cpu":  # reading it synchronizes with no device
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
        if self._chunks is None and self._tensors and not isinstance(factor, Vector):  # packing may never be needed
            return Vector(self.space, tensors=list(torch._foreach_mul(self._tensors, factor)))
        return Vector(
            self.space, list(torch._foreach_mul(self.chunks, factor.chunks if isinstance(factor, Vector) else factor))
        )

    def __truediv__(self, number: float) -> Vector:
        return Vector(self.space, list(torch._foreach_div(self.chunks, number)))

    def __neg__(self) -> Vector:
        return self * -1.0

    def sign_(self) -> Vector:
        """Replaces every entry by its sign."""
        torch._foreach_sign_(self._writable())
        return self

    def map(self, f: Callable[[Tensor], Tensor]) -> Vector:
        """Applies `f` to every chunk: for operations that foreach lacks, at one call per chunk."""
        return Vector(self.space, [f(x) for x in self.chunks])

    def norm(self, p: float = 2.0) -> Tensor:
        """The p-norm over all entries on all ranks, accumulated in float32 or better."""
        if p == 2 and self._length is not None:
            return self._length
        space, chunks = self.space, self.chunks
        if p == inf:  # foreach is slow here, and raises on the empty shards of uneven sharding
            peaks = [x.abs().amax() if x.numel() else x.new_zeros(()) for x in chunks]
            return space.total(peaks, torch.max, dist.ReduceOp.MAX)
        if not chunks:
            return torch.zeros((), dtype=space.precision, device=space.device)
        if space.device.type == "cuda":  # float64 costs nothing there, and a check would synchronize
            length = self._norm(p, torch.float64).to(space.precision)
        else:
            length = self._norm(p, space.precision)
            # squares of float32 numbers overflow above 2e19 and vanish below 1e-23; always accumulating in float64
            # would take 30 times as long on a CPU
            wide = space.device.type != "cpu" or space.precision is not torch.float32
            if not (wide or TINY ** (1 / p) < float(length) < inf):
                length = self._norm(p, torch.float64).float()
        self._length = length if p == 2 else self._length
        return length

    def _norm(self, p: float, dtype: torch.dtype) -> Tensor:
        space, chunks = self.space, self.chunks
        if space.sharded:
            powers = [n.pow(p) for n in torch._foreach_norm(chunks, p, dtype=dtype)]
            return space.total(powers, torch.sum, dtype=dtype).pow(1 / p)
        if space.device.type == "cuda":  # foreach allocates every norm by itself: joining biases takes less time
            flat = by_device_and_dtype([x for x in chunks if x.ndim == 1])
            chunks = [torch.cat(group) for group in flat] + [x for x in chunks if x.ndim != 1]
        norms = torch._foreach_norm(chunks, p, dtype=dtype)
        return space.total(norms, lambda x: torch.linalg.vector_norm(x, p), dtype=dtype)

    def along(self, other: Vector) -> Tensor:
        """The coefficient of the projection onto `other`: <self, other> / ||other||^2, and 0 if `other` is zero."""
        scale = inverse(other.norm())  # squares could overflow or vanish
        return self.dot(other * scale) * scale

    def dot(self, other: Vector) -> Tensor:
        """The inner product over all entries on all ranks, accumulated in float32 or better."""
        space, pairs = self.space, list(zip(self.chunks, other.chunks, strict=True))
        if not space.sharded:
            pairs = join_small(pairs)
        return space.total([dot(x, y, space.precision) for x, y in pairs], torch.sum)


def inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 where that is infinite: a zero gradient moves nothing."""
    return x.reciprocal().nan_to_num_(nan=nan, posinf=0.0, neginf=0.0)


def copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    """A bitwise copy of every tensor."""
    if tensors and all(x.is_cuda and x.is_floating_point() for x in tensors):
        return list(torch._foreach_mul(list(tensors), 1))  # one call; allocating one by one takes longer
    new = [torch.empty_like(x) for x in tensors]
    copy_(new, tensors)
    return new


def copy_(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copies every source into its target, bitwise."""
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


def sums(ones: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """The sum of each pair of tensors."""
    return list(torch._foreach_add(list(ones), list(others)))


def magnitudes(tensors: Sequence[Tensor], plus: float) -> list[Tensor]:
    """|x| + plus of every tensor."""
    if not tensors:
        return []
    new = list(torch._foreach_abs(list(tensors)))
    torch._foreach_add_(new, plus)
    return new


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


def dot(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """The inner product, accumulated in `dtype`; copies nothing where both have the same memory format."""
    if x.ndim == 4 and x.stride() == y.stride() and x.is_contiguous(memory_format=torch.channels_last):
        x, y = x.permute(0, 2, 3, 1), y.permute(0, 2, 3, 1)
    return torch.dot(x.reshape(-1).to(dtype), y.reshape(-1).to(dtype))


def join_small(pairs: Sequence[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """The same pairs, the small ones of one kind concatenated: one kernel each would cost more."""
    kinds: dict[Hashable, list[tuple[Tensor, Tensor]]] = {}
    for x, y in pairs:
        if x.numel() <= STACK_BELOW:
            kinds.setdefault((x.device, x.dtype, y.dtype), []).append((x.reshape(-1), y.reshape(-1)))
    small = [(torch.cat([x for x, _ in kind]), torch.cat([y for _, y in kind])) for kind in kinds.values()]
    return [(x, y) for x, y in pairs if x.numel() > STACK_BELOW] + small


def by_device_and_dtype(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """The tensors, grouped by device and dtype."""
    groups: dict[Hashable, list[Tensor]] = {}
    for x in tensors:
        groups.setdefault((x.get_device(), x.dtype), []).append(x)  # hashing `x.device` takes longer
    return list(groups.values())
