"""Laws that tie a method to its base optimizer: radius 0 changes nothing, and a step costs what it says."""

from __future__ import annotations

import copy

import pytest
import torch
from registry import (
    MICRO_BATCHES,
    RADIUS_0,
    RADIUS_0_BITWISE,
    ROWS,
    STATEFUL,
    STATISTICS,
    Entry,
    Run,
    batch,
    obeying,
    same,
)
from torch.nn import functional as F

STEPS = 4


def beside_the_base(entry: Entry, base: str, dropout: float) -> tuple[Run, Run]:
    """A run at radius 0, and the base optimizer alone on the rows that the run's last pass saw."""
    run, alone = (Run(entry, base, options=entry.still, dropout=dropout) for _ in range(2))
    for i in range(STEPS):
        run.step(i)
        ours = torch.get_rng_state()
        torch.default_generator.manual_seed(i)
        x, y = (run.seen[-1].x, run.seen[-1].y) if dropout else batch(i)
        alone.base.zero_grad()
        F.cross_entropy(alone.model(x), y).backward()
        alone.base.step()
        assert torch.equal(ours, torch.get_rng_state())
    return run, alone


@pytest.mark.parametrize("base", STATEFUL)
@obeying(RADIUS_0_BITWISE)
def test_radius_0_is_the_base_optimizer_bitwise(entry: Entry, base: str) -> None:
    """Weights, running statistics and the global generator, through dropout and normalisation."""
    run, alone = beside_the_base(entry, base, dropout=0.2)
    same(run.weights(), alone.weights())


@obeying(RADIUS_0, only=lambda e: RADIUS_0_BITWISE in e.excused)
def test_radius_0_is_the_base_optimizer_up_to_rounding(entry: Entry) -> None:
    """Also for methods that add up parts: on the whole batch unless the last pass was on a random part of it."""
    run, alone = beside_the_base(entry, "sgd", dropout=0.0)
    for name, w in alone.weights().items():
        torch.testing.assert_close(run.weights()[name], w, rtol=1e-10, atol=1e-13)


@obeying(only=lambda e: e.name != "none")
def test_a_radius_is_not_ignored(entry: Entry) -> None:
    """The options of the registry do move the training: otherwise the other laws would hold for nothing."""
    plain = Run(entry, dropout=0.0)
    run = Run(entry, dropout=0.0)
    for i in range(2):
        run.step(i)
        plain.base.zero_grad()
        x, y = batch(i)
        F.cross_entropy(plain.model(x), y).backward()
        plain.base.step()
    pairs = zip(run.model.parameters(), plain.model.parameters(), strict=True)
    assert max(float((a - b).detach().norm()) for a, b in pairs) > 1e-4


@obeying()
def test_a_step_takes_its_declared_number_of_passes(entry: Entry) -> None:
    run = Run(entry)
    for i in range(7):
        run.step(i)
        assert len(run.seen) == run.opt.passes_run, f"step {i}"
        if entry.registered is not None:
            assert len(run.seen) == entry.registered.passes_at(i, **entry.options), f"step {i}"


@obeying()
def test_closure_and_passes_agree_bitwise(entry: Entry) -> None:
    by_closure, by_passes = Run(entry), Run(entry)
    for i in range(STEPS):
        by_closure.step(i)
        by_passes.step(i, by="passes")
    same(by_closure.everything(), by_passes.everything())


@obeying(MICRO_BATCHES)
def test_micro_batches_equal_the_full_batch(entry: Entry) -> None:
    """Losses and gradients add up over `pass_.backward` calls; without BatchNorm and dropout the result is the same."""
    whole, pieces = (Run(entry, norm="layer", dropout=0.0) for _ in range(2))
    for i in range(STEPS):
        whole.step(i)
        for pass_ in pieces.opt.passes(**pieces.extras(i)):
            x, y = batch(i + 500) if pass_.held_out else batch(i)
            for start in range(0, ROWS, 2):
                piece = slice(start, start + 2)
                pass_.backward(F.cross_entropy(pieces.model(x[piece]), y[piece]) * 2 / ROWS)
        pieces.opt.step()
    for name, w in whole.weights().items():
        torch.testing.assert_close(pieces.weights()[name], w, rtol=1e-9, atol=1e-11)


@obeying()
def test_step_returns_the_first_loss(entry: Entry) -> None:
    """The loss at the unperturbed weights, unless even the method's first pass is elsewhere."""
    run = Run(entry, norm="layer", dropout=0.0)
    run.step(0)
    first: list[float] = []

    def closure(pass_) -> torch.Tensor:
        loss = run.loss(pass_, 1)
        first.append(float(loss.detach().mean()))
        pass_.backward(loss)
        return loss.mean()

    before = copy.deepcopy(run.model)
    returned = run.opt.step(closure, held_out=closure, **run.extras(1))
    assert float(returned.detach()) == first[0]
    if STATISTICS not in entry.excused:
        rows = run.seen[-len(first)]
        assert first[0] == pytest.approx(float(F.cross_entropy(before(rows.x), rows.y).detach()), rel=1e-12)
