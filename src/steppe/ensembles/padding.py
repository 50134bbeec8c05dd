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
    sizes, device = [len(x) for x, _ in asked], asked[0][0].device
    places = torch.arange(longest, device=device)
    index = [None if n == longest else places.clamp(max=n - 1) for n in sizes]
    x, y = (
        torch.stack([t if i is None else t[i] for t, i in zip(ts, index, strict=True)])
        for ts in zip(*asked, strict=True)
    )
    lengths = torch.tensor(sizes).unsqueeze(1).to(device, non_blocking=True)  # no pass waits for the device
    return x, y, (places < lengths) / lengths, sizes
