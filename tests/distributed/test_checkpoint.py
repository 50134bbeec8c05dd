"""torch.distributed.checkpoint: a run that was saved and loaded into fresh objects goes on bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp
from tiers import slow_unless
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import steppe
from steppe import Method, SharpnessAware

from .pair import WORLD, Pair
from .problems import BASES, WRAPPERS, advance, assert_bitwise, assert_same, make, network, weights

SAVED_AT, END = 3, 5

# At step 3 each of them must remember something: a vector of an earlier step, a step size, or the number of the step.
METHODS: dict[str, Callable[[], Method]] = {
    "sam": lambda: steppe.SAM(0.1),
    "looksam": lambda: steppe.LookSAM(0.1, k=2),
    "sa-sam": steppe.SASAM,
    "ssam-d": lambda: steppe.DynamicSparseSAM(every=2, steps=6),
    "ssam-f": lambda: steppe.FisherSparseSAM(samples=2, every=5),
    "frob-sam": lambda: steppe.FrobSAM(rho=0.05),
    "msam": steppe.MomentumSAM,
}


def fresh(name: str, wrapper: str, base: str, seed: int) -> tuple[nn.Module, SharpnessAware]:
    model = WRAPPERS[wrapper](make(network, seed))
    return model, SharpnessAware(BASES[base](model), METHODS[name](), model=model)


def save(model: nn.Module, opt: SharpnessAware, directory: str, options: StateDictOptions) -> None:
    model_state, optimizer_state = get_state_dict(model, opt, options=options)
    dcp.save({"model": model_state, "optimizer": optimizer_state}, checkpoint_id=directory)


def load(model: nn.Module, opt: SharpnessAware, directory: str, options: StateDictOptions) -> None:
    model_state, optimizer_state = get_state_dict(model, opt, options=options)
    state = {"model": model_state, "optimizer": optimizer_state}
    dcp.load(state, checkpoint_id=directory)
    set_state_dict(model, opt, model_state_dict=state["model"], optim_state_dict=state["optimizer"], options=options)


def resumed(rank: int, name: str, wrapper: str, base: str, flat: bool, directory: str) -> list[dict[str, Tensor]]:
    """The weights of the run that went on after saving, and of the one that was loaded."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    model, opt = fresh(name, wrapper, base, seed=0)
    advance(opt, model, range(SAVED_AT), rank, WORLD)
    save(model, opt, directory, options)
    other, other_opt = fresh(name, wrapper, base, seed=1)
    load(other, other_opt, directory, options)
    for m, o in ((model, opt), (other, other_opt)):
        advance(o, m, range(SAVED_AT, END), rank, WORLD)
    return [weights(model), weights(other)]


CASES = [
    *(
        (name, wrapper, ("sgd", "adamw")[(i + k) % 2], False)
        for i, name in enumerate(("sam", "looksam", "sa-sam", "ssam-d", "frob-sam"))
        for k, wrapper in enumerate(("ddp", "fsdp-layers"))
    ),
    ("ssam-f", "ddp", "sgd", False),
    ("msam", "fsdp-layers", "adamw", False),
    ("looksam", "fsdp-layers", "adamw", True),
    ("sa-sam", "ddp", "sgd", True),
]


def quick(case: tuple[str, str, str, bool]) -> bool:
    """One method in either wrapper, and flat files."""
    return case[:2] in (("sam", "ddp"), ("sa-sam", "fsdp-layers")) or case[3]


@pytest.mark.parametrize(("name", "wrapper", "base", "flat"), slow_unless(quick, CASES))
def test_a_loaded_run_goes_on_bit_for_bit(
    pair: Pair, tmp_path: Path, name: str, wrapper: str, base: str, flat: bool
) -> None:
    outcomes = pair.run(resumed, name, wrapper, base, flat, str(tmp_path))
    for went_on, loaded in outcomes:
        assert_bitwise(loaded, went_on)
    assert_bitwise(outcomes[0][1], outcomes[1][1])


def saved_at_the_start(rank: int, name: str, directory: str) -> list[dict[str, Tensor]]:
    """A checkpoint before the first step makes torch create the state with a step of size 0."""
    finals = []
    for saves in (True, False):
        # without weight decay, which that step of torch's would put into the momentum
        model, opt = fresh(name, "ddp", "sgd-without-decay", seed=0)
        if saves:
            save(model, opt, directory, StateDictOptions())
        advance(opt, model, range(SAVED_AT), rank, WORLD)
        finals.append(weights(model))
    return finals


@pytest.mark.parametrize("name", METHODS)
def test_a_checkpoint_before_the_first_step_changes_nothing(pair: Pair, tmp_path: Path, name: str) -> None:
    for saved, never in pair.run(saved_at_the_start, name, str(tmp_path)):
        assert_bitwise(saved, never)


def save_shards(rank: int, name: str, directory: str) -> dict[str, Tensor]:
    model, opt = fresh(name, "fsdp-layers", "sgd", seed=0)
    advance(opt, model, range(SAVED_AT), rank, WORLD)
    save(model, opt, directory, StateDictOptions())
    advance(opt, model, range(SAVED_AT, END), rank, WORLD)
    return weights(model)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("name", ["looksam", "sa-sam", "ssam-d", "frob-sam"])
def test_shards_of_two_workers_are_loaded_by_one_process(pair: Pair, tmp_path: Path, name: str) -> None:
    went_on = pair.run(save_shards, name, str(tmp_path))
    model, opt = fresh(name, "alone", "sgd", seed=1)
    load(model, opt, str(tmp_path), StateDictOptions())
    advance(opt, model, range(SAVED_AT, END))
    never_saved, never_saved_opt = fresh(name, "alone", "sgd", seed=0)
    advance(never_saved_opt, never_saved, range(END))
    for sharded in went_on:
        assert_same(sharded, weights(model))
        assert_same(sharded, weights(never_saved))
