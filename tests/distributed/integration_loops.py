"""The problem of the tests of integrations on two workers, its solution by hand, and steps that they share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe

from .pair import WORLD

LR, MOMENTUM, GAMMA, RHO, CLIP, EPOCHS, MICRO = 0.3, 0.9, 0.8, 0.2, 0.1, 2, 2
Rows = tuple[Tensor, Tensor]
State = dict[str, Tensor]


def batches(rank: int) -> list[Rows]:
    """Five micro-batches of a worker: steps of two, and one of the remainder."""
    g = torch.Generator().manual_seed(1 + rank)
    x = torch.randn(5, 8, 5, generator=g, dtype=torch.float64)
    return list(zip(x, torch.randint(3, (5, 8), generator=g), strict=True))


def steps_of(rank: int, micro: int) -> list[list[Rows]]:
    mine = batches(rank)
    return [mine[i : i + micro] for i in range(0, len(mine), micro)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()


def by_hand(micro: int, clip: float, own: bool = False) -> State:
    """SAM as in Foret et al. 2021; `own`: each worker perturbs along its own gradient, as in their code."""
    net = network()
    params = list(net.parameters())
    base = torch.optim.SGD(params, lr=LR, momentum=MOMENTUM)
    for number, step in enumerate([*range(len(steps_of(0, micro)))] * EPOCHS):
        base.param_groups[0]["lr"] = LR * GAMMA**number
        each = [steps_of(rank, micro)[step] for rank in range(WORLD)]
        first = [gradient(net, rows, micro, keep=rank == 0) for rank, rows in enumerate(each)]
        up = first if own else [[sum(g) / WORLD for g in zip(*first, strict=True)]] * WORLD
        tops = []
        for rows, direction in zip(each, up, strict=True):
            moved = deepcopy(net)
            norm = torch.cat([g.flatten() for g in direction]).norm()
            with torch.no_grad():
                for p, g in zip(moved.parameters(), direction, strict=True):
                    p += RHO * g / norm
            tops.append(gradient(moved, rows, micro, keep=False))
        for p, *grads in zip(params, *tops, strict=True):
            p.grad = sum(grads) / WORLD  # type: ignore[arg-type, assignment]
        if clip:
            nn.utils.clip_grad_norm_(params, clip)
        base.step()
    return net.state_dict()


def gradient(net: nn.Module, rows: list[Rows], micro: int, keep: bool) -> list[Tensor]:
    """Of one worker; `keep`: its running statistics are those of the first worker, which DDP broadcasts."""
    net = net if keep else deepcopy(net)
    loss = torch.stack([cross_entropy(net(x), y) / micro for x, y in rows]).sum()
    return list(torch.autograd.grad(loss, list(net.parameters())))


def engine(net: nn.Module, method: steppe.Method | None = None, **options: Any) -> steppe.SharpnessAware:
    base = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    return steppe.SharpnessAware(base, method or steppe.SAM(rho=RHO), **options)


def assert_close(state: State, expected: State) -> None:
    assert max(float((p - expected[name]).abs().max()) for name, p in state.items()) < 1e-12


def needs(package: str) -> None:
    """Skips the test if a package is missing; importing one takes seconds, which the workers spend already."""
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")


@contextmanager
def launched(rank: int) -> Iterator[None]:
    """The environment that torchrun sets; the process group is there already."""
    names = {
        "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": WORLD, "LOCAL_WORLD_SIZE": WORLD, "GROUP_RANK": 0,
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "TORCHELASTIC_RUN_ID": "tests", "OMP_NUM_THREADS": 1,
    }  # fmt: skip
    before = dict(os.environ)
    os.environ.update({name: str(value) for name, value in names.items()})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the other libraries
            yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# -- Lightning ---------------------------------------------------------------------------------------------------------


def lightning_nets() -> tuple[type, type]:
    """Classes of a function: workers of other tests do not import Lightning, which takes seconds."""
    import lightning.pytorch as pl

    from steppe.integrations.lightning import SharpnessAwareSteps, passes, step

    class Net(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, method: steppe.Method | None = None) -> None:
            super().__init__()
            self.net, self.method = network(), method

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)  # type: ignore[no-any-return]

        def configure_optimizers(self) -> Any:
            opt = engine(self.net, self.method)
            return [opt], [{"scheduler": torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA), "interval": "step"}]

    class Automatic(SharpnessAwareSteps, Net):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return cross_entropy(self.net(batch[0]), batch[1])

    class Manual(Net):
        automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            opt = self.optimizers()
            for pass_ in passes(opt):
                x, y = batch
                pass_.backward(cross_entropy(self.net(x), y))
            self.clip_gradients(opt, gradient_clip_val=CLIP, gradient_clip_algorithm="norm")
            step(opt)
            self.lr_schedulers().step()

    return Automatic, Manual


def forget() -> None:
    """Accelerate keeps its state per process."""
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def accelerate_step(made: Any, opt: Any, model: Any, rows: list[Rows], micro: int, clip: float, closures: bool) -> None:
    """One step of an Accelerator on micro-batches, by a closure or by `passes`."""
    from steppe.integrations.accelerate import micro_batches, passes

    def closure() -> Tensor:
        opt.zero_grad()
        [(x, y)] = rows
        loss = cross_entropy(model(x), y)
        made.backward(loss)
        return loss

    if closures:
        opt.step(closure)
        return
    for pass_ in passes(opt, model=model):
        for x, y in micro_batches(rows, model):
            pass_.backward(cross_entropy(model(x), y) / micro)
    if clip:
        made.clip_grad_norm_(model.parameters(), clip)
    opt.step()
