"""Two workers on half a batch each take the step that one process takes on the whole batch."""

from functools import cache

import pytest
import torch
from tiers import slow_unless
from torch import Tensor

from . import problems
from .pair import WORLD, Pair
from .problems import WHOLE_BATCH, assert_bitwise, assert_same, train

FEW = ("sam", "asam", "frob-sam", "rsam", "ssam-d", "looksam")


@cache
def alone(method: str, model: str) -> dict[str, Tensor]:
    return train(method, model=getattr(problems, model))


def on_worker(rank: int, method: str, wrapper: str, model: str) -> dict[str, Tensor]:
    return train(method, wrapper, getattr(problems, model), rank, WORLD)


CASES = [
    *((m, w, "network") for w in ("ddp", "ddp-bucket-each", "fsdp-layers") for m in WHOLE_BATCH),
    *((m, "ddp-bucket-view", "single_parameter") for m in WHOLE_BATCH),
    *((m, w, "network") for w in ("ddp-bucket-view", "ddp-unused", "ddp-static", "fsdp-root") for m in FEW),
    *((m, w, "network") for w in ("fsdp-kept-after-forward", "hsdp-replicated", "hsdp-sharded") for m in FEW),
    *((m, "fsdp-columns", "even_matrices") for m in FEW if m != "rsam"),
]


def quick(case: tuple[str, str, str]) -> bool:
    """All methods in the usual wrappers, and two methods in the others."""
    return case[1] in ("ddp", "fsdp-layers") or case[0] in ("sam", "sa-sam")


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("method", "wrapper", "model"), slow_unless(quick, CASES))
def test_two_workers_equal_one(pair: Pair, method: str, wrapper: str, model: str) -> None:
    first, second = pair.run(on_worker, method, wrapper, model)
    assert_bitwise(first, second)
    assert_same(first, alone(method, model))


def norms_of_cut_filters(rank: int) -> dict[str, Tensor] | str:
    try:
        return on_worker(rank, "rsam", "fsdp-columns", "even_matrices")
    except (ValueError, RuntimeError) as refusal:
        return str(refusal)


def test_filters_cut_across_workers_have_their_whole_norm_or_are_refused(pair: Pair) -> None:
    """R-SAM's noise scales with the norm of each row, of which a worker may hold a part only."""
    for outcome in pair.run(norms_of_cut_filters):
        if isinstance(outcome, str):
            assert "Filterwise" in outcome
        else:
            assert_same(outcome, alone("rsam", "even_matrices"))


def test_the_methods_differ_from_each_other() -> None:
    """Equality with one process would prove little if a method here did nothing."""
    results = {name: torch.cat([w.flatten() for w in alone(name, "network").values()]) for name in WHOLE_BATCH}
    names = list(results)
    alike = [
        (a, b)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
        if {a, b} != {"sam", "universal-sam"} and torch.allclose(results[a], results[b], rtol=1e-6, atol=1e-9)
    ]
    assert alike == []
