"""Methods made of methods: choices of rows inside choices of rows, and memories that start late."""

import pytest
import torch
from oracles.follow import BASES, Run
from problems import mlp_problem

from steppe import (
    ESAM,
    SAM,
    SASAM,
    SASGD,
    AgnosticSAM,
    DynamicSparseSAM,
    Every,
    FisherSparseSAM,
    LookSAM,
    PerPart,
    Plain,
    SharpBalance,
    SharpnessAware,
)

PROBLEM = mlp_problem(rows=12)
SHARP = torch.tensor([True, False, False] * 4)  # four of twelve

NESTED = {
    "m-sam of agnostic-sam": (lambda: PerPart(AgnosticSAM(share=2 / 3), 2), [4, 2, 2, 4] * 2),
    "m-sam of esam": (lambda: PerPart(ESAM(beta=1.0, gamma=0.5), 2), [6, 6, 3] * 2),
    "m-sam of m-sam": (lambda: PerPart(PerPart(SAM(), 3), 2), [2, 2] * 6),
    "m-sam of now and then agnostic-sam": (lambda: PerPart(Every(1, AgnosticSAM(share=2 / 3)), 2), [4, 2, 2, 4] * 2),
    "sharpbalance of agnostic-sam": (lambda: SharpBalance(AgnosticSAM(share=0.5)), [8, 2, 2, 2, 2]),
    "sharpbalance of esam": (lambda: SharpBalance(ESAM(beta=1.0, gamma=0.5)), [8, 4, 4, 2]),
    "sharpbalance of m-sam": (lambda: SharpBalance(PerPart(SAM(), 2)), [8, 2, 2, 2, 2]),
    "sharpbalance of ssam-f": (lambda: SharpBalance(FisherSparseSAM(samples=3, every=1)), [8, 4, 1, 1, 1, 4]),
}


@pytest.mark.parametrize("case", NESTED)
def test_a_choice_of_rows_inside_a_choice_of_rows_is_kept_or_refused(case):
    """Both choices hold, or the pair is refused, but never half of it."""
    make, rows = NESTED[case]
    model = PROBLEM.fresh_model()
    mask = SHARP if case.startswith("sharpbalance") else None
    try:
        opt = SharpnessAware(BASES["sgd"][0](model.parameters()), make(), model=model)
        followed = Run(PROBLEM, model, opt, lambda t: {"mask": mask})
    except (TypeError, ValueError) as refusal:
        assert "rows" in str(refusal) or "parts" in str(refusal)  # noqa: PT017
    else:
        assert followed.rows == [rows] * 5


REMEMBERING = {  # passes of the first step
    SASAM(): 2, SASGD(): 1, LookSAM(k=7): 2, FisherSparseSAM(samples=3, every=7): 5, DynamicSparseSAM(every=7): 2,
}  # fmt: skip


@pytest.mark.parametrize(("method", "first"), REMEMBERING.items(), ids=lambda m: type(m).__name__)
def test_a_method_with_a_memory_may_start_late(method, first):
    """At its first turn, here the second step, it has nothing to remember yet: as at any first step."""
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES["sgd"][0](model.parameters()), Every(2, Plain(), method), model=model)
    passes = [len(places) for places in Run(PROBLEM, model, opt).visited]
    assert passes[:2] == [1, first]


@pytest.mark.parametrize("method", [SASAM(), LookSAM(k=7)], ids=lambda m: type(m).__name__)
def test_the_first_sharp_rows_may_come_late(method):
    model = PROBLEM.fresh_model()
    opt = SharpnessAware(BASES["sgd"][0](model.parameters()), SharpBalance(method), model=model)
    followed = Run(PROBLEM, model, opt, lambda t: {"mask": SHARP if t else torch.zeros(12, dtype=torch.bool)})
    assert followed.rows[:2] == [[12], [8, 4, 4]]


@pytest.mark.parametrize(("method", "first"), REMEMBERING.items(), ids=lambda m: type(m).__name__)
def test_a_run_may_go_on_with_another_method(method, first):
    """A warm-up by the base optimizer alone, then a method with a memory around the same base."""
    model = PROBLEM.fresh_model()
    base = BASES["sgd"][0](model.parameters())
    Run(PROBLEM, model, SharpnessAware(base, Plain(), model=model))
    followed = Run(PROBLEM, model, SharpnessAware(base, method, model=model))
    assert len(followed.visited[0]) == first
