"""SAM by two calls, a rewrite of davda54/sam's procedure, which is not on PyPI; docs/coming_from.md uses it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class SAM:
    def __init__(
        self, params: Iterable[Tensor], base_optimizer: type, rho: float = 0.05, adaptive: bool = False, **options: Any
    ):
        self.base = base_optimizer(params, **options)
        self.params = [p for group in self.base.param_groups for p in group["params"]]
        self.rho, self.adaptive = rho, adaptive
        self.before: list[Tensor] = []

    @torch.no_grad()
    def first_step(self, zero_grad: bool = False) -> None:
        scales = [p.abs() if self.adaptive else torch.ones_like(p) for p in self.params]
        norm = torch.cat([(s * p.grad).flatten() for s, p in zip(scales, self.params, strict=True)]).norm()
        self.before = [p.clone() for p in self.params]
        for p, s in zip(self.params, scales, strict=True):
            p.add_(self.rho * s.square() * p.grad / (norm + 1e-12))
        if zero_grad:
            self.base.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad: bool = False) -> None:
        for p, old in zip(self.params, self.before, strict=True):
            p.copy_(old)
        self.base.step()
        if zero_grad:
            self.base.zero_grad()
