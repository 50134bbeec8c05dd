"""Running statistics on two workers: they move once a step, as the wrapper moves them without us."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import steppe
from steppe import Method, PerWorker, SharpnessAware

from .pair import WORLD, Pair
from .problems import STEPS, WHOLE_BATCH, WRAPPERS, batch, losses, make, with_batch_norm

METHODS: dict[str, Method] = {
    **{name: WHOLE_BATCH[name]() for name in ("none", "sam", "frob-sam", "gsam")},
    "esam": steppe.ESAM(),
    "per-worker": PerWorker(),
}


def buffers(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name.removeprefix("module."): b.clone() for name, b in model.named_buffers()}


def statistics(rank: int, name: str, wrapper: str) -> dict[str, Tensor]:
    model = WRAPPERS[wrapper](make(with_batch_norm))
    # no step size: the weights, and so the statistics by hand, are known
    opt = SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.0), METHODS[name], model=model)
    for step in range(STEPS):
        x, y = batch(step, rank, WORLD)
        opt.step(lambda pass_: pass_.backward(losses(model, *pass_.rows(x, y))))
    return buffers(model)


def by_hand(rank: int, broadcast: bool) -> dict[str, Tensor]:
    """BatchNorm's formula on the first layer's output, each step from worker 0's statistics if they are broadcast."""
    model = make(with_batch_norm)
    mean, var = torch.zeros(WORLD, 4, dtype=torch.float64), torch.ones(WORLD, 4, dtype=torch.float64)
    for step in range(STEPS):
        if broadcast:
            mean, var = mean[:1].repeat(WORLD, 1), var[:1].repeat(WORLD, 1)
        with torch.no_grad():
            seen = torch.stack([model[0](batch(step, r, WORLD)[0]) for r in range(WORLD)])
        mean, var = 0.9 * mean + 0.1 * seen.mean(1), 0.9 * var + 0.1 * seen.var(1)
    return {"1.running_mean": mean[rank], "1.running_var": var[rank], "1.num_batches_tracked": torch.tensor(STEPS)}


@pytest.mark.parametrize(
    ("name", "wrapper"),
    [*((name, "ddp") for name in METHODS), ("sam", "fsdp-layers"), ("esam", "fsdp-layers")],
)
def test_statistics_move_once_a_step_at_the_unperturbed_weights(pair: Pair, name: str, wrapper: str) -> None:
    # DDP broadcasts buffers before a forward that follows a synchronised one: never, if each worker goes its own way
    broadcast = wrapper == "ddp" and name != "per-worker"
    for rank, moved in enumerate(pair.run(statistics, name, wrapper)):
        for key, value in by_hand(rank, broadcast).items():
            torch.testing.assert_close(moved[key], value, msg=lambda m, key=key: f"worker {rank}, {key}: {m}")
