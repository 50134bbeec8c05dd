"""Trouble on one worker only, and workers that nobody told us about."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiers import slow_unless
from torch import Tensor
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import steppe
from steppe import SAM, Method, PerWorker, SharpnessAware

from .pair import WORLD, Pair, join
from .problems import (
    BASES,
    STEPS,
    WHOLE_BATCH,
    WRAPPERS,
    advance,
    assert_bitwise,
    assert_same,
    batch,
    losses,
    make,
    network,
    state_of,
    statistics_of,
    train,
    weights,
    with_batch_norm,
)

POISONED: dict[str, Callable[[], Method]] = {
    "sam": lambda: SAM(0.1),
    "frob-sam": WHOLE_BATCH["frob-sam"],
    "sa-sam": WHOLE_BATCH["sa-sam"],
    "per-worker": lambda: PerWorker(SAM(0.1)),
}


def poisoned(rank: int, name: str, wrapper: str, policy: str, bad_pass: int, culprit: int) -> dict[str, Any]:
    model = WRAPPERS[wrapper](make(with_batch_norm))
    opt = SharpnessAware(BASES["sgd"](model), POISONED[name](), model=model, on_nonfinite=policy)
    advance(opt, model, range(2), rank, WORLD)
    seen = {"raised": "", "before": state_of(opt, model), "statistics before": statistics_of(model)}
    x, y = batch(9, rank, WORLD)
    try:
        for number, pass_ in enumerate(opt.passes()):
            bad = rank == culprit and number == bad_pass
            pass_.backward(losses(model, x * float("nan") if bad else x, y).mean())
        opt.step()
    except FloatingPointError as error:
        seen["raised"] = str(error)
    seen |= {"after": state_of(opt, model), "statistics after": statistics_of(model)}
    advance(opt, model, range(2, STEPS), rank, WORLD)
    return seen | {"final": weights(model)}


CULPRITS = [
    *((name, "ddp", bad_pass, 1) for name in POISONED for bad_pass in (0, 1)),
    ("sam", "ddp", 0, 0),
    ("sam", "fsdp-layers", 0, 1),
    ("frob-sam", "fsdp-layers", 2, 0),
]


@pytest.mark.sampled(8)
@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize(("name", "wrapper", "bad_pass", "culprit"), CULPRITS)
def test_a_nonfinite_loss_on_one_worker_stops_both(
    pair: Pair, name: str, wrapper: str, bad_pass: int, culprit: int, policy: str
) -> None:
    outcomes = pair.run(poisoned, name, wrapper, policy, bad_pass, culprit)
    for seen in outcomes:
        assert ("not finite" in seen["raised"]) == (policy == "raise")
        assert_bitwise(seen["after"], seen["before"])
        assert all(x.isfinite().all() for x in seen["final"].values())
    assert_bitwise(outcomes[0]["final"], outcomes[1]["final"])


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("wrapper", ["ddp", "fsdp-layers"])
def test_statistics_are_as_before_a_refused_step_on_both_workers(pair: Pair, wrapper: str, policy: str) -> None:
    for seen in pair.run(poisoned, "sam", wrapper, policy, 0, 0):
        assert_bitwise(seen["statistics after"], seen["statistics before"])


def constant_offset(rank: int, wrapper: str) -> bool:
    """An infinite loss with finite gradients: only its own worker can see it."""
    model = WRAPPERS[wrapper](make(network))
    opt = SharpnessAware(BASES["sgd"](model), SAM(0.1), model=model)
    x, y = batch(0, rank, WORLD)
    try:
        opt.step(lambda pass_: pass_.backward(losses(model, x, y).mean() + (float("inf") if rank else 0.0)))
    except FloatingPointError:
        return True
    return False


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp-layers"])
def test_an_infinite_loss_with_finite_gradients_stops_both(pair: Pair, wrapper: str) -> None:
    assert pair.run(constant_offset, wrapper) == [True, True]


def overflowing(rank: int, name: str) -> tuple[dict[str, Tensor], dict[str, Tensor], float]:
    model = WRAPPERS["ddp"](make(network).float())
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    opt = SharpnessAware(BASES["sgd"](model), POISONED[name](), model=model, scaler=scaler)
    before = weights(model)
    x, y = (t.float() for t in batch(0, rank, WORLD))
    x = x * float("inf") if rank == 1 else x
    opt.step(lambda pass_: pass_.backward(losses(model, x, y).mean()))
    scaler.update()
    return before, weights(model), scaler.get_scale()


@pytest.mark.parametrize("name", ["sam", "per-worker"])
def test_an_overflow_on_one_worker_lowers_the_scale_on_both(pair: Pair, name: str) -> None:
    for before, after, scale in pair.run(overflowing, name):
        assert_bitwise(after, before)
        assert scale == 4.0


# -- nobody said how the model is wrapped -------------------------------------------------------------

NEED_THE_WRAPPER: dict[str, Callable[[], Method]] = {
    **{name: WHOLE_BATCH[name] for name in ("universal-sam", "trace-sam", "frob-sam", "det-sam")},
    "m-sam": lambda: steppe.method("m-sam", over_workers=True),
    "m-sam-in-parts": lambda: steppe.method("m-sam"),  # the weight of a part depends on the others' rows
    "sharpbalance": lambda: steppe.method("sharpbalance"),
    "ssam-f": lambda: steppe.method("ssam-f", samples=2),
}


def untold(rank: int, name: str, inner: bool) -> tuple[str, dict[str, Tensor], dict[str, Tensor]]:
    model = DistributedDataParallel(make(network))
    told = model.module if inner else None
    opt = SharpnessAware(BASES["sgd"](model), NEED_THE_WRAPPER[name](), model=told)
    before = weights(model)
    x, y = batch(0, rank, WORLD)
    message = ""
    try:
        opt.step(lambda pass_: pass_.backward(losses(model, *pass_.rows(x, y))), mask=torch.arange(len(x)) > 1)
    except RuntimeError as refusal:
        message = str(refusal)
    return message, before, weights(model)


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("name", NEED_THE_WRAPPER)
def test_methods_that_average_themselves_ask_for_the_wrapped_model(pair: Pair, name: str, inner: bool) -> None:
    for message, before, after in pair.run(untold, name, inner):
        assert "model=" in message
        assert "wrapped" in message
        assert_bitwise(after, before)


def untold_offset(rank: int, wrappers: int, policy: str) -> tuple[bool, int, dict[str, Tensor]]:
    """An infinite loss with finite gradients on one worker; without a wrapper each worker trains a model of its own."""
    models = [DistributedDataParallel(make(network)) for _ in range(wrappers)] or [make(network)]
    base = torch.optim.SGD([p for model in models for p in model.parameters()], lr=0.1)
    opt, refused = SharpnessAware(base, SAM(0.1), on_nonfinite=policy), False
    for number in range(3):
        x, y = batch(number, rank, WORLD)
        offset = float("inf") if rank and number == 1 else 0.0
        try:
            opt.step(lambda pass_: pass_.backward(sum(losses(m, x, y).mean() for m in models) + offset))
        except FloatingPointError:
            refused = True
    return refused, opt.param_groups[0]["steppe.step"], weights(models[0])


@pytest.mark.parametrize("policy", ["raise", "skip"])
@pytest.mark.parametrize("wrappers", [1, 2])
def test_a_nonfinite_loss_on_one_worker_stops_both_without_model(pair: Pair, wrappers: int, policy: str) -> None:
    first, second = pair.run(untold_offset, wrappers, policy)
    assert first[:2] == second[:2] == (policy == "raise", 2)
    assert_bitwise(first[2], second[2])


def test_workers_with_models_of_their_own_do_not_wait_for_each_other(pair: Pair) -> None:
    assert [seen[:2] for seen in pair.run(untold_offset, 0, "raise")] == [(False, 3), (True, 2)]


def accumulated_alone(rank: int, told: bool) -> str:
    """What Accelerate's `accumulate()` does to the micro-batches before the last."""
    model = WRAPPERS["ddp"](make(network))
    opt = SharpnessAware(BASES["sgd"](model), SAM(0.1), model=model if told else None)
    x, y = batch(0, rank, WORLD)
    try:
        with model.no_sync():
            for pass_ in opt.passes(accumulate=True):
                pass_.backward(losses(model, x, y).mean())
    except RuntimeError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("told", [True, False])
def test_gradients_that_would_never_be_averaged_are_refused(pair: Pair, told: bool) -> None:
    for message in pair.run(accumulated_alone, told):
        assert "leave no_sync() out" in message


def saved_in_a_loop(rank: int, part: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    model = WRAPPERS["ddp"](make(network))
    opt = SharpnessAware(BASES["sgd"](model), SAM(0.1), model=model)
    saved = model if part == "wrapper" else model.module
    before = {k: v.clone() for k, v in saved.state_dict().items()}
    passes = opt.passes()
    next(passes).backward(losses(model, *batch(0, rank, WORLD)).mean())
    next(passes)
    return before, {k: v.clone() for k, v in saved.state_dict().items()}


@pytest.mark.parametrize("part", ["wrapper", "inner"])
def test_a_state_dict_closes_an_unfinished_loop(pair: Pair, part: str) -> None:
    for before, found in pair.run(saved_in_a_loop, part):
        assert_bitwise(found, before)


def untold_gradients(rank: int, name: str, wrapper: str) -> str | dict[str, Tensor]:
    try:
        return train(name, wrapper, rank=rank, world=WORLD, told=False)
    except RuntimeError as refusal:
        return str(refusal)


@pytest.mark.parametrize("wrapper", ["ddp", "ddp-bucket-view"])
@pytest.mark.parametrize("name", ["sam", "gsam", "looksam"])
def test_methods_on_averaged_gradients_need_no_model(pair: Pair, name: str, wrapper: str) -> None:
    first, second = pair.run(untold_gradients, name, wrapper)
    assert_bitwise(first, second)
    assert_same(first, train(name, told=False))


@pytest.mark.parametrize("name", ["sam", "frob-sam"])
def test_shards_without_their_model_are_stepped_right_or_refused(pair: Pair, name: str) -> None:
    for outcome in pair.run(untold_gradients, name, "fsdp-layers"):
        if isinstance(outcome, str):
            assert "model=" in outcome
        else:
            assert_same(outcome, train(name, told=False))


def older_sharding(rank: int, whole_tensors: bool, told: bool) -> str | list[Tensor]:
    model = FullyShardedDataParallel(make(network), use_orig_params=whole_tensors, device_id=torch.device("cpu"))
    try:
        opt = SharpnessAware(BASES["sgd"](model), SAM(0.1), model=model if told else None)
        advance(opt, model, range(STEPS), rank, WORLD)
    except (RuntimeError, TypeError, ValueError) as refusal:
        return str(refusal)
    with FullyShardedDataParallel.summon_full_params(model):
        return [p.detach().clone().flatten() for p in model.parameters()]


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("whole_tensors", [True, False])
def test_the_older_fsdp_is_right_or_refused(pair: Pair, whole_tensors: bool, told: bool) -> None:
    """Its shards are plain tensors, so a norm over them is this worker's alone unless somebody adds them up."""
    for outcome in pair.run(older_sharding, whole_tensors, told):
        if isinstance(outcome, str):
            assert "fully_shard" in outcome
        else:
            expected = torch.cat([x.flatten() for x in train("sam").values()])
            torch.testing.assert_close(torch.cat(outcome), expected, rtol=1e-9, atol=1e-11)


def one_worker_groups(rank: int, directory: str, name: str, told: bool) -> dict[str, Tensor]:
    """DDP as it runs when a launcher starts a single process."""
    dist.barrier()
    dist.destroy_process_group()
    join(f"{directory}/{rank}", 0, 1)
    try:
        return train(name, "ddp-bucket-view", told=told)
    finally:
        dist.destroy_process_group()
        join(f"{directory}/b", rank, WORLD)


VIEWED = [(name, told) for name in ("gsam", "looksam", "sa-sam", "frob-sam") for told in (True, False)]


@pytest.mark.parametrize(
    ("name", "told"), slow_unless(lambda case: case[1] == (case[0] in ("gsam", "sa-sam")), VIEWED)
)  # each method once
def test_bucket_views_of_a_single_worker(pair: Pair, tmp_path: Path, name: str, told: bool) -> None:
    for moved in pair.run(one_worker_groups, str(tmp_path), name, told):
        assert_same(moved, train(name, told=told))
