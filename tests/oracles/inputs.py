"""Random inputs that a step and its rewrite share: which numbers were drawn, never what is made of them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from steppe import Draw, SharpnessAware
from steppe.core.draw import seed_of
from steppe.core.rows import Split


class Chance:
    """What an optimizer draws at (step, sample), as flat vectors in the order of the model."""

    def __init__(self, opt: SharpnessAware, model: nn.Module):
        self.space, self.seed = opt.param_layout().space, opt.seed
        self.order = [id(p) for p in model.parameters()]

    def draw(self, step: int, sample: int) -> Draw:
        return Draw(self.space, (self.seed, step, sample), self.space.weights(), self.space.zeros())

    def from_law(self, law: Callable[[Draw], Any], step: int, sample: int) -> Tensor:
        by_parameter = dict(zip(map(id, self.space.params), law(self.draw(step, sample)).tensors, strict=True))
        return torch.cat([by_parameter[i].reshape(-1) for i in self.order])

    def normal(self, step: int) -> Tensor:
        return self.from_law(lambda draw: draw.normal(), step, 0)

    def uniform(self, step: int) -> Tensor:
        return self.from_law(lambda draw: draw.uniform(0.0, 1.0), step, 0)

    def tensor_chances(self, step: int) -> list[float]:
        """A number in [0, 1) for every parameter."""
        generator = torch.Generator().manual_seed(seed_of(self.seed, step, 0))
        return torch.rand(len(self.order), generator=generator).tolist()

    def split(self, step: int, n: int, share: float) -> tuple[Tensor, Tensor]:
        """Positions of the rows in the two parts of a batch of n."""
        key = (self.seed, step, 0)
        return Split(share, key).index(n), Split(share, key, rest=True).index(n)
