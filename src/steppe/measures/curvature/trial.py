"""Two ways to multiply several vectors by one operator, of which the faster one is found by trying both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import ceil, inf
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor

from ...replays import EAGER
from ...vector import Vector
from .stacks import Products

Way = Callable[[Sequence[Vector]], Products]

FIRST = 2  # directions in the chunk by which memory is weighed: one alone gains nothing over a kept graph
AT_ONCE = 8  # directions in one pass: more gained little (curvature benchmarks)
PATIENCE = 32  # directions that go the way behind before the way ahead is tried: a trial takes as long as many of them
WARM = EAGER + 1  # calls before a way is timed: by then it is recorded, if it is at all
SHARE = 0.5  # of the free memory that a chunk may take: kept graphs have a quarter, and sizes of batches differ
LIGHT = 1 / 8  # of the free memory
SURELY = 3  # times faster than a first product, which also builds a graph, needs no second look
# how far two ways may be apart, as a share of a product's norm: what roundings leave, and less than a wrong formula
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "tf32": 1e-2, "bf16": 5e-2}


class Bench(Protocol):
    """A device whose clock and memory can be read."""

    def now(self) -> float:
        """Seconds, read when all work that was handed over is done."""
        ...

    def held(self) -> float:
        """Bytes that tensors take now."""
        ...

    def most(self) -> float:
        """The most bytes that they ever took."""
        ...

    def taken(self) -> float:
        """Bytes that were ever asked for, given back or not."""
        ...

    def free(self) -> float:
        """Bytes that further ones may take."""
        ...


class Gpu:
    """A CUDA device, read without resetting any of its statistics."""

    def __init__(self, device: torch.device):
        self.device = device

    def now(self) -> float:
        torch.cuda.synchronize(self.device)
        return perf_counter()

    def held(self) -> float:
        return float(torch.cuda.memory_allocated(self.device))

    def most(self) -> float:
        return float(torch.cuda.max_memory_allocated(self.device))

    def taken(self) -> float:
        return float(torch.cuda.memory_stats(self.device)["allocated_bytes.all.allocated"])

    def free(self) -> float:
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return float(torch.cuda.mem_get_info(self.device)[0] + cached)


class Trial:
    """Takes a way ahead in chunks that fit into memory if it is right and faster than the way behind, else that one.

    Found out from products that were asked for: one more is made, to compare. The way ahead is timed when chunks of one
    size have come so often that it is as fast as it gets. A way ahead that fails is not asked again, and where few
    products are asked for none is.
    """

    def __init__(self, bench: Bench, tolerance: float):
        self.bench, self.tolerance = bench, tolerance
        self._patience = PATIENCE
        self.ahead: bool | None = None  # whether it is taken, once that is known
        self.chunk = FIRST
        self._bound, self._known = inf, False  # bytes that a direction takes at most, and whether it takes them
        self._seen: Counter[int] = Counter()  # chunks, by their sizes
        self._fast: float | None = None  # seconds a product of the way ahead
        self._slow = 0.0  # and at most of the way behind

    def products(self, ahead: Way, behind: Way, vectors: Sequence[Vector]) -> tuple[Products, int]:
        """The products, and how many more than these were made."""
        found: Products = []
        more = 0
        if self._patience > 0 and self.ahead is None:
            self._patience -= len(vectors)
            return behind(vectors), 0
        while len(found) < len(vectors) and self.ahead is not False:
            left = vectors[len(found) :]
            some = left[: ceil(len(left) / ceil(len(left) / self.chunk))]  # even ones: small chunks are slower
            try:
                part, extra = self._one(ahead, behind, some)
            except torch.OutOfMemoryError:
                if len(some) == 1:
                    self.ahead = False
                self.chunk, self._known = max(1, len(some) // 2), True
            else:
                found, more = found + part, more + extra
        return found + (behind(vectors[len(found) :]) if len(found) < len(vectors) else []), more

    def light(self, n: int) -> bool:
        """Whether so many directions take little memory: a recording keeps it, and where it is much gains nothing.

        True as long as nobody knows: what is asked for once is not recorded yet.
        """
        return self._bound == inf or self._bound * n <= LIGHT * self.bench.free()

    def _one(self, ahead: Way, behind: Way, some: Sequence[Vector]) -> tuple[Products, int]:
        if self.ahead is None and self._fast is not None:
            if SURELY * self._fast < self._slow:
                self.ahead = True
                return self._one(ahead, behind, some)
            began = self.bench.now()
            found = behind(some)
            self.ahead = self._fast < (self.bench.now() - began) / len(some)
            return found, 0
        timed = self.ahead is None and self._seen[len(some)] == WARM
        began = self.bench.now() if timed else 0.0
        try:
            found = self._weighed(ahead, some)
        except torch.OutOfMemoryError:
            raise
        except Exception:  # if it is not only forward mode that fails, the other way does too
            self.ahead = False
            return [], 0
        if timed:
            self._fast = (self.bench.now() - began) / len(some)
        first, self._seen[len(some)] = not self._seen, self._seen[len(some)] + 1
        if self.ahead or not first:
            return found, 0
        began = self.bench.now()
        checked = behind(some[:1])
        self._slow = self.bench.now() - began
        if agree(found[0], checked[0], self.tolerance):
            return found, 1
        self.ahead = False
        return checked, len(some)

    def _weighed(self, ahead: Way, some: Sequence[Vector]) -> Products:
        """One chunk, from which the size of further ones follows; a peak hidden by an earlier one only bounds it."""
        if self._known:
            return ahead(some)
        held, most, free, taken = self.bench.held(), self.bench.most(), self.bench.free(), self.bench.taken()
        found = ahead(some)
        peak = self.bench.most()
        self._known = peak > most
        self._bound = min(self._bound, (peak - held) / len(some), (self.bench.taken() - taken) / len(some))
        fits = SHARE * free / self._bound if self._known and self._bound else 2 * self.chunk
        self.chunk = max(FIRST, min(AT_ONCE, int(fits)))
        return found


def agree(one: Sequence[Tensor], two: Sequence[Tensor], tolerance: float) -> bool:
    """Whether two products differ by no more than that share of the second one's norm."""
    apart = sum(float((a - b).double().square().sum()) for a, b in zip(one, two, strict=True))
    return apart <= tolerance**2 * sum(float(b.double().square().sum()) for b in two) < inf
