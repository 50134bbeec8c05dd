"""Several directions as one stack a parameter, and stacks of products one by one again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...vector import Vector

Products = list[list[Tensor]]  # one tensor a parameter for every vector


def columns_of(vectors: Sequence[Vector]) -> list[Tensor]:
    """One stack of directions a parameter."""
    return [torch.stack(ts) for ts in zip(*(v.tensors for v in vectors), strict=True)]


def rows_of_columns(columns: Sequence[Tensor]) -> Products:
    """One tensor a parameter for every direction."""
    return [list(ts) for ts in zip(*columns, strict=True)]
