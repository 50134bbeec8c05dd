"""Memory for one more vector, which a step on a GPU uses again and again instead of asking for it tensor by tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .many import copy_, flag_nonfinite_

ALIGNED = 16  # entries: kernels on many tensors read several at once where each tensor begins at such a place


class Room:
    """Space for a copy of some tensors, all of one type end to end, so that one operation reaches them all."""

    def __init__(self, tensors: Sequence[Tensor], aligned: int = ALIGNED):
        self._like, self._aligned = tensors, aligned
        self.views: list[Tensor] = []  # where the tensors are copied to, once that has been asked for
        self.flats: list[Tensor] = []  # the memory, one tensor for each type
        self._one: Tensor | None = None
        self.taken = False  # by what must not be written over
        self.single = all(t.dtype is torch.float32 for t in tensors)

    @classmethod
    def for_copies_of(cls, tensors: Sequence[Tensor], aligned: int = ALIGNED) -> Room | None:
        """Room on a GPU; None on a CPU, which is quickly asked for memory, and for tensors that are not plain ones."""
        plain = all(type(t) in (Tensor, nn.Parameter) and t.is_cuda and _dense(t) for t in tensors)
        return cls(tensors, aligned) if plain and len({t.device for t in tensors}) == 1 else None

    @property
    def made(self) -> bool:
        """Whether the memory has been asked for."""
        return bool(self.views)

    def make(self) -> Room:
        """Asks for the memory, unless somebody has."""
        if not self.made:
            self._make()
        return self

    def copies(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors copied to here, bitwise."""
        copy_(self.make().views, tensors)
        return list(self.views)

    def norm(self, tensors: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The Euclidean norm of all entries of the tensors, which are copied to here."""
        self.copies(tensors)
        norms: list[Tensor] = [torch.linalg.vector_norm(flat, dtype=dtype) for flat in self.flats]
        return norms[0] if len(norms) == 1 else torch.stack(norms).norm()

    def flag_(self, flag: Tensor, tensors: Sequence[Tensor]) -> None:
        """Sets a flag to 1 where an entry of tensors that are all of single precision is not finite."""
        if self._one is None:
            self._one = torch.ones((), device=self._like[0].device)
        flag_nonfinite_(flag, tensors, self._one)

    def _make(self) -> None:
        ends: dict[torch.dtype, int] = {}
        starts: list[int] = []
        for t in self._like:
            starts.append(ends.get(t.dtype, 0))
            ends[t.dtype] = starts[-1] + -(-t.numel() // self._aligned) * self._aligned
        # what lies between the tensors stays zero
        flats = {dtype: torch.zeros(end, dtype=dtype, device=self._like[0].device) for dtype, end in ends.items()}
        pairs = zip(self._like, starts, strict=True)
        self.flats = list(flats.values())
        self.views = [flats[t.dtype].as_strided(t.shape, t.stride(), start) for t, start in pairs]


def _dense(t: Tensor) -> bool:
    """Whether a tensor's entries fill the memory from its first to its last one, each once."""
    size = 1
    for step, n in sorted(zip(t.stride(), t.shape, strict=True)):
        if n != 1 and step != size:
            return False
        size *= n
    return size > 0
