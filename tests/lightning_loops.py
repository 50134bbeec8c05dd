"""Modules of Lightning, data, and hand-written loops that they equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe
from steppe.integrations.lightning import SharpnessAwareSteps

LR, MOMENTUM, GAMMA, EPOCHS = 0.3, 0.9, 0.8, 2


def batches(n: int = 5, rows: int = 8) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, rows, 5, generator=g, dtype=torch.float64)
    return list(zip(x, torch.randint(3, (n, rows), generator=g), strict=True))


def network(norm: bool = False) -> nn.Module:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(6) if norm else nn.LayerNorm(6)
    return nn.Sequential(nn.Linear(5, 6), middle, nn.Tanh(), nn.Linear(6, 3)).double()


class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self, method: steppe.Method, net: nn.Module | None = None) -> None:
        super().__init__()
        self.net, self.method, self.logged = net or network(), method, []

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)  # type: ignore[no-any-return]

    def configure_optimizers(self) -> Any:
        base = torch.optim.SGD(self.parameters(), lr=LR, momentum=MOMENTUM)
        engine = steppe.SharpnessAware(base, self.method)
        return [engine], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(engine, GAMMA), "interval": "step"}]


class Automatic(SharpnessAwareSteps, Net):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = cross_entropy(self(batch[0]), batch[1])
        self.log("loss", loss, on_step=True)
        return loss

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.logged.append(float(outputs["loss"]))


def fit(
    model: Any, folder: Path, data: Any = None, epochs: int = EPOCHS, resume: str | None = None, **options: Any
) -> Any:
    trainer = pl.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **({"enable_checkpointing": False} | options),
    )  # fmt: skip
    trainer.fit(model, data or torch.utils.data.DataLoader(batches(), batch_size=None), ckpt_path=resume)
    return trainer


def by_hand(method: steppe.Method, net: nn.Module, accumulate: int = 1, clip: float = 0.0) -> list[float]:
    """A plain loop over `passes()`; SAM by its own formula, so that the engine is not its own oracle."""
    params = list(net.parameters())
    base = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM)
    opt = None if isinstance(method, steppe.SAM) else steppe.SharpnessAware(base, method, model=net)
    schedule = torch.optim.lr_scheduler.ExponentialLR(base, GAMMA)
    data, losses = batches(), []
    for _ in range(EPOCHS):
        for i in range(0, len(data), accumulate):
            micro = data[i : i + accumulate]
            if opt is None:
                losses.append(sam_gradient(net, micro, accumulate))
            else:
                for pass_ in opt.passes():
                    for x, y in micro:
                        x, y = pass_.rows(x, y)
                        pass_.backward(cross_entropy(net(x), y) / accumulate)
            if clip:
                nn.utils.clip_grad_norm_(params, clip)
            (opt or base).step()
            if len(micro) == accumulate or i + accumulate >= len(data):
                schedule.step()
    return losses


def sam_gradient(net: nn.Module, micro: list[tuple[Tensor, Tensor]], accumulate: int) -> float:
    params = list(net.parameters())

    def grads() -> tuple[float, list[Tensor]]:
        loss = torch.stack([cross_entropy(net(x), y) / accumulate for x, y in micro]).sum()
        return loss.item(), list(torch.autograd.grad(loss, params))

    loss, first = grads()
    norm = torch.cat([g.flatten() for g in first]).norm()
    before = [p.detach().clone() for p in params]
    buffers = [b.clone() for b in net.buffers()]
    with torch.no_grad():
        for p, g in zip(params, first, strict=True):
            p += 0.2 * g / norm
    _, second = grads()
    with torch.no_grad():
        for p, w, g in zip(params, before, second, strict=True):
            p.copy_(w)
            p.grad = g
        for b, kept in zip(net.buffers(), buffers, strict=True):
            b.copy_(kept)
    return loss


def distance(a: nn.Module, b: nn.Module) -> float:
    tensors = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((p.double() - q.double()).abs().max()) for p, q in tensors)
