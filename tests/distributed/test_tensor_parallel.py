"""Tensor and sequence parallelism: layers split over two workers take the steps of one process."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import steppe

from .pair import Pair
from .problems import BASES, WHOLE_BATCH, assert_same, make, weights

METHODS = ["sam", "asam", "gsam", "looksam", "sa-sam"]  # random ones draw by layout: another draw than one process


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())


def split(model: nn.Module, also_fsdp: bool) -> nn.Module:
    """Each worker has some columns of a layer or rows of the next, and part of the sequence in the norm between."""
    mesh = init_device_mesh("cpu", (1, dist.get_world_size()), mesh_dim_names=("data", "tensor"))
    parallelize_module(
        model,
        mesh["tensor"],
        {
            "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1), use_local_output=False),
            "1": SequenceParallel(),
            "2": ColwiseParallel(input_layouts=Shard(1)),
            "4": RowwiseParallel(),
        },
    )
    return fully_shard(model, mesh=mesh["data"]) if also_fsdp else model


def loss_of(model: nn.Module, step: int) -> Tensor:
    random = torch.Generator().manual_seed(step)
    x, y = torch.randn(2, 3, 8, 6, dtype=torch.float64, generator=random)
    found = model(x)
    return ((found.full_tensor() if isinstance(found, DTensor) else found) - y).square().mean()


def train(model: nn.Module, name: str) -> dict[str, Tensor]:
    opt = steppe.SharpnessAware(BASES["sgd"](model), WHOLE_BATCH[name](), model=model)
    for step in range(4):
        for pass_ in opt.passes():
            pass_.backward(loss_of(model, step))
        opt.step()
    return weights(model)


def trained(rank: int, also_fsdp: bool) -> dict[str, dict[str, Tensor]]:
    model = split(make(network), also_fsdp)
    loss_of(model, 0).backward()
    norm = model[1].weight.grad  # type: ignore[index]
    assert also_fsdp or norm.placements != model[1].weight.placements  # type: ignore[index]
    return {name: train(split(make(network), also_fsdp), name) for name in METHODS}


@pytest.mark.parametrize("also_fsdp", [False, True], ids=["alone", "with-fsdp"])
def test_workers_that_split_layers_equal_one_process(pair: Pair, also_fsdp: bool) -> None:
    expected = {name: train(make(network), name) for name in METHODS}
    for found in pair.run(trained, also_fsdp):
        for name in METHODS:
            assert_same(found[name], expected[name])
