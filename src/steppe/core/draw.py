"""Random vectors that are a function of their key and of the coordinate, never of hidden generator state.

Coordinates are numbered over all parameters and drawn in blocks, each block from a generator that is seeded by
(key, block). So a resumed run repeats its draws bit for bit, and a sharded parameter gets the same numbers as an
unsharded one while each rank draws only the blocks that it holds.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import torch
from torch import Generator, Tensor

from .graph_inputs import from_host
from .shards import distributed, local
from .vector import Space, Vector

BLOCK = 1 << 20

Key = tuple[int, ...]  # of the draws of a step: the seed, the number of the step, and what tells its draws apart
Fill = Callable[[Tensor, Generator], object]


def seed_of(*key: int) -> int:
    """A 63-bit seed that depends on every number of the key, the same on every machine."""
    digest = hashlib.blake2b(struct.pack(f"<{len(key)}q", *key), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def seed_torch(seed: int) -> None:
    """Seeds torch's generators; `torch.manual_seed` takes a millisecond where CUDA is available but not initialized."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.manual_seed(seed)
    else:
        torch.default_generator.manual_seed(seed)


def permutation(n: int, *key: int) -> Tensor:
    """A random order of n rows, on the CPU."""
    return torch.randperm(n, generator=Generator("cpu").manual_seed(seed_of(*key)), device="cpu")


def at_step(key: Key, step: int | None) -> Key:
    """The key of the same draw at another step; None keeps the step."""
    return key if step is None else (key[0], step, *key[2:])


@dataclass(frozen=True)
class Draw:
    """The inputs of a law of random directions: random entries, the weights and the gradient at the weights.

    Parameters
    ----------
    space
        The space of the direction.
    key
        Seed, step and number of the draw; equal keys give equal entries.
    weights
        The weights.
    grad
        The gradient at the weights.

    Examples
    --------
    >>> space = steppe.Space([torch.zeros(2)])
    >>> draw = steppe.Draw(space, key=(0, 0, 0), weights=space.weights(), grad=space.zeros())

    >>> draw.signs().tensors[0].abs()
    tensor([1., 1.])

    """

    space: Space
    key: Key
    weights: Vector
    grad: Vector

    def normal(self) -> Vector:
        """Independent standard Gaussian entries."""
        return self._entries(lambda x, g: x.normal_(generator=g))

    def uniform(self, low: float, high: float) -> Vector:
        """Independent entries, uniform between low and high."""
        return self._entries(lambda x, g: x.uniform_(low, high, generator=g))

    def signs(self) -> Vector:
        """Independent entries, -1 or 1 with equal chance."""
        return self._entries(lambda x, g: x.random_(0, 2, generator=g).mul_(2).sub_(1))

    def _entries(self, fill: Fill) -> Vector:
        space = self.space
        chunks: list[Tensor] = []
        for d, device in enumerate(space.devices):
            mine = [c for c in space.chunks if space.params[c.members[0]].device == device]
            sizes = [len(c.members) * prod(c.shape) for c in mine]
            stream = _Stream(device, space.precision, sum(sizes), (*self.key, d), fill)
            whole = None if any(c.sharding for c in mine) else stream.read(0, stream.total)
            start = 0
            for c, size in zip(mine, sizes, strict=True):
                first = space.params[c.members[0]]
                if whole is not None:
                    part = whole[start : start + size].to(first.dtype)
                    entries = part.view(len(c.members), *c.shape) if c.stacked else _laid_out(part.view(c.shape), first)
                else:
                    parts = [stream.shard(space.params[i], start + j * prod(c.shape)) for j, i in enumerate(c.members)]
                    entries = torch.stack(parts) if c.stacked else parts[0]
                chunks.append(entries.to(first.dtype))
                start += size
        return Vector(space, chunks)


def _laid_out(entries: Tensor, like: Tensor) -> Tensor:
    """The same numbers in the memory format of `like`: foreach is slow on tensors of different strides."""
    if entries.stride() == like.stride() or not like.is_cuda:
        return entries
    return torch.empty_like(like).copy_(entries)


@dataclass(frozen=True)
class _Stream:
    """The coordinates on one device: `total` random numbers, of which any range can be read."""

    device: torch.device
    dtype: torch.dtype
    total: int
    key: Key
    fill: Fill

    def read(self, start: int, stop: int) -> Tensor:
        return from_host(
            lambda: torch.empty(stop - start, dtype=self.dtype, device=self.device),
            lambda out, step: self._read_into(out, start, stop, at_step(self.key, step)),
        )

    def _read_into(self, out: Tensor, start: int, stop: int, key: Key) -> None:
        generator = Generator(self.device)
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            low, high = block * BLOCK, min((block + 1) * BLOCK, self.total)
            generator.manual_seed(seed_of(*key, block))
            if start <= low and high <= stop:
                self.fill(out[low - start : high - start], generator)
            else:
                entire = torch.empty(high - low, dtype=self.dtype, device=self.device)
                self.fill(entire, generator)
                a, b = max(low, start), min(high, stop)
                out[a - start : b - start] = entire[a - low : b - low]

    def shard(self, p: Tensor, start: int) -> Tensor:
        """The entries of this rank's shard of `p`, whose first coordinate over all ranks is `start`."""
        dtensor = distributed(p)
        if dtensor is None:
            return self.read(start, start + p.numel()).view(p.shape)
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        shape, offset = compute_local_shape_and_global_offset(p.shape, dtensor.device_mesh, dtensor.placements)
        if 0 in shape:
            return torch.empty(local(p).shape, dtype=self.dtype, device=self.device)
        if tuple(shape[1:]) == tuple(p.shape[1:]):  # whole rows: one range
            row = prod(p.shape[1:])
            return self.read(start + offset[0] * row, start + (offset[0] + shape[0]) * row).view(shape)
        entire = self.read(start, start + p.numel()).view(p.shape)
        for dim, (o, n) in enumerate(zip(offset, shape, strict=True)):
            entire = entire.narrow(dim, o, n)
        return entire.contiguous()
