"""Rows of all members in one tensor, whatever the length of each member's part."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..training.supply import Rows


def padded(asked: Sequence[Rows], longest: int) -> tuple[Tensor, Tensor, Tensor, list[int]]:
    """Rows of all members in one tensor, and the weight of each in its member's mean: SharpBalance's parts differ in
    length, and shorter ones repeat their last row, which counts nothing.
    """
    sizes = [len(x) for x, _ in asked]
    places = torch.arange(longest)
    index = [None if n == longest else places.clamp(max=n - 1) for n in sizes]
    x, y = (
        torch.stack([t if i is None else t[i.to(t.device)] for t, i in zip(ts, index, strict=True)])
        for ts in zip(*asked, strict=True)
    )
    lengths = torch.tensor(sizes).unsqueeze(1)
    weights = (places < lengths) / lengths
    return x, y, weights.to(x.device), sizes
