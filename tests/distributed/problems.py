"""One training run, the same code for one process on the whole batch and for workers on their shares of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.nn.parallel import DistributedDataParallel

import steppe
from steppe import Every, Method, SharpnessAware, Triple, UniversalSAM, method
from steppe.core.triple import identity, uphill

ROWS = 8
FEATURES = 3
STEPS = 4

# Methods whose step depends on the batch through averaged losses and gradients only.
WHOLE_BATCH: dict[str, Callable[[], Method]] = {
    "none": lambda: method("none"),
    "sam": lambda: method("sam", rho=0.1),
    "sam-l1": lambda: method("sam", rho=0.1, p=1.0),
    "sam-l3-two-steps": lambda: method("sam", rho=0.1, p=3.0, steps=2),
    "sam-linf": lambda: method("sam", rho=0.02, p=inf),
    "sam-unnormalised": lambda: method("sam", rho=0.1, normalized=False, decay_in_ascent=True),
    "asam": lambda: method("asam"),
    "asam-filterwise": lambda: method("asam", filterwise=True, everywhere=True),
    "sam-on": lambda: method("sam-on"),
    "sa-sam": lambda: method("sa-sam"),
    "sa-sgd": lambda: method("sa-sgd"),
    "universal-sam": lambda: UniversalSAM(Triple(identity, identity, (uphill,)), rho=0.1),
    "trace-sam": lambda: method("trace-sam", rho=0.1, n=2),
    "frob-sam": lambda: method("frob-sam", rho=0.05, n=2),
    "det-sam": lambda: method("det-sam", n=2, strength=0.1),
    "agnostic-sam": lambda: method("agnostic-sam", share=None),  # the held-out batch is shared out like the other
    "agnostic-sam-simple": lambda: method("agnostic-sam-simple", share=None),
    "ssam-d": lambda: method("ssam-d", every=2, steps=6),
    "gsam": lambda: method("gsam"),
    "looksam": lambda: method("looksam", k=3),
    "rsam": lambda: method("rsam"),
    "msam": lambda: method("msam"),
    "every": lambda: Every(2, steppe.SAM(0.1), method("gsam", rho=0.1, alpha=0.2)),
}
PARTS = ("esam", "m-sam", "sharpbalance", "ssam-f")  # choose among the rows of each worker
WHOLE_BATCH |= {name: partial(method, name) for name in steppe.METHODS if name not in (*WHOLE_BATCH, *PARTS)}


def network() -> nn.Module:
    """Same-shaped layers (stacked chunks), row counts that two workers cannot halve, and tensors of a single row."""
    return nn.Sequential(
        nn.Linear(FEATURES, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(), nn.Linear(5, 5), nn.Tanh(),
        nn.Linear(5, 1),
    )  # fmt: skip


def single_parameter() -> nn.Module:
    """A bucket of DDP holds exactly its one tensor."""
    return nn.Sequential(nn.Linear(FEATURES, 1, bias=False), nn.Tanh())


def even_matrices() -> nn.Module:
    """Both dimensions can be halved, as sharding along columns requires."""
    return nn.Sequential(nn.Linear(FEATURES, 4, bias=False), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def with_batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))


def channels_last() -> nn.Module:
    """A weight whose memory order is not its index order."""
    layers = nn.Linear(FEATURES, 32), nn.Unflatten(1, (2, 4, 4)), nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(16, 1)).to(memory_format=torch.channels_last)


def make(model: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return model().double()


def batch(step: int, rank: int = 0, world: int = 1) -> tuple[Tensor, Tensor]:
    """The rank-th of `world` equal shares of a step's batch."""
    random = torch.Generator().manual_seed(100 + step)
    x = torch.randn(ROWS, FEATURES, dtype=torch.float64, generator=random)
    y = torch.randn(ROWS, dtype=torch.float64, generator=random)
    mine = slice(rank * ROWS // world, (rank + 1) * ROWS // world)
    return x[mine], y[mine]


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """One loss a row."""
    return (model(x).sum(-1) - y).square()


def _columns(p: nn.Parameter) -> Shard:
    return Shard(1) if p.ndim == 2 and p.shape[1] % 2 == 0 else Shard(0)


def shard(model: nn.Module, mesh: Any = None, **options: Any) -> nn.Module:
    """FSDP2 on every other layer, and on the root, to which the remaining ones belong."""
    mesh = mesh or init_device_mesh("cpu", (dist.get_world_size(),))
    layers = [layer for layer in model if next(layer.parameters(), None) is not None]  # type: ignore[attr-defined]
    for layer in layers[::2]:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _hybrid(replicas: int, shards: int) -> Callable[[nn.Module], nn.Module]:
    return lambda m: shard(m, init_device_mesh("cpu", (replicas, shards), mesh_dim_names=("replicate", "shard")))


WRAPPERS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "alone": lambda m: m,
    "ddp": DistributedDataParallel,
    "ddp-bucket-view": lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True),
    "ddp-bucket-each": lambda m: DistributedDataParallel(m, gradient_as_bucket_view=True, bucket_cap_mb=1e-6),
    "ddp-unused": lambda m: DistributedDataParallel(m, find_unused_parameters=True),
    "ddp-static": lambda m: DistributedDataParallel(m, static_graph=True),
    "fsdp-root": lambda m: fully_shard(m, mesh=init_device_mesh("cpu", (dist.get_world_size(),))),
    "fsdp-layers": shard,
    "fsdp-columns": lambda m: shard(m, shard_placement_fn=_columns),
    "fsdp-kept-after-forward": lambda m: shard(m, reshard_after_forward=False),
    "hsdp-replicated": _hybrid(2, 1),
    "hsdp-sharded": _hybrid(1, 2),
}

BASES: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01),
    "sgd-without-decay": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
}


def advance(opt: SharpnessAware, model: nn.Module, steps: range, rank: int = 0, world: int = 1) -> None:
    """Takes these steps on this worker's shares of their batches."""

    def closure_on(x: Tensor, y: Tensor) -> Callable[[Any], Tensor]:
        def closure(pass_: Any) -> Tensor:
            each = losses(model, *pass_.rows(x, y))
            pass_.backward(each)
            return each.mean()

        return closure

    for step in steps:
        here, there = closure_on(*batch(step, rank, world)), closure_on(*batch(1000 + step, rank, world))
        opt.step(here, held_out=there)


def weights(model: nn.Module) -> dict[str, Tensor]:
    """Every parameter by its name in the unwrapped model, put together from all shards."""
    with torch.no_grad():
        return {
            name.removeprefix("module."): (p.full_tensor() if isinstance(p, DTensor) else p).detach().clone()
            for name, p in model.named_parameters()
        }


def state_of(opt: SharpnessAware, model: nn.Module) -> dict[str, Tensor]:
    """Weights, optimizer state and numeric group options: what a refused step leaves unchanged."""
    state = weights(model)
    for i, entries in opt.state_dict()["state"].items():
        for key, value in entries.items():
            state[f"{i}.{key}"] = (value.full_tensor() if hasattr(value, "full_tensor") else value).clone()
    for i, group in enumerate(opt.param_groups):
        state.update({f"group {i}.{k}": torch.tensor(v) for k, v in group.items() if isinstance(v, float | int)})
    return state


def statistics_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: b.clone() for name, b in model.named_buffers()}


def train(
    the_method: str | Method,
    wrapper: str = "alone",
    model: Callable[[], nn.Module] = network,
    rank: int = 0,
    world: int = 1,
    told: bool = True,
) -> dict[str, Tensor]:
    """The weights after a few steps; `told` says whether the optimizer is handed the model."""
    wrapped = WRAPPERS[wrapper](make(model))
    chosen = WHOLE_BATCH[the_method]() if isinstance(the_method, str) else the_method
    opt = SharpnessAware(BASES["sgd"](wrapped), chosen, model=wrapped if told else None)
    advance(opt, wrapped, range(STEPS), rank, world)
    return weights(wrapped)


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Equal up to the order in which numbers were added."""
    assert list(actual) == list(expected)
    for name, x in expected.items():
        torch.testing.assert_close(actual[name], x, rtol=1e-9, atol=1e-11, msg=lambda m, name=name: f"{name}: {m}")


def assert_bitwise(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert list(actual) == list(expected)
    differing = [name for name, x in expected.items() if not torch.equal(actual[name], x)]
    assert not differing, f"these differ: {differing}"
