"""A module whose optimizer Lightning's command line makes; annotations are objects, as jsonargparse needs them."""

from typing import Any

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from lightning_loops import batches, network
from torch import Tensor, nn

import steppe
from steppe.integrations.lightning import SharpnessAwareSteps


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


class Plain(SharpnessAwareSteps, LightningModule):  # type: ignore[misc]
    """Without `configure_optimizers`: the optimizer is that of `--optimizer`."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def training_step(self, batch: Any, index: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def train_dataloader(self) -> Any:
        return torch.utils.data.DataLoader(batches(12), batch_size=None)
