"""A module whose optimizer Lightning's command line makes; annotations are objects, as jsonargparse needs them."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

import steppe


class Net(LightningModule):  # type: ignore[misc]
    def __init__(self, optimizer: OptimizerCallable = steppe.optimizer) -> None:
        super().__init__()
        self.net, self.make = nn.Linear(3, 2), optimizer

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch), torch.zeros(len(batch), dtype=torch.long))

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(torch.ones(8, 3), batch_size=8)
