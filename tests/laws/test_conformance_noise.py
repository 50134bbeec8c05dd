"""Laws of randomness and running statistics: a step of several passes looks to the model like a step of one."""

from __future__ import annotations

from collections import defaultdict

import torch
from registry import STATISTICS, Entry, Run, obeying, same
from torch import Tensor

from steppe.testing import laws

DRAWING = {"agnostic-sam", "agnostic-sam-simple", "universal-sam", "trace-sam", "frob-sam", "det-sam", "ssam-d",
           "rsam", "bsam", "esam", "esam-all-rows"}  # fmt: skip


def masks_of(run: Run, number: int) -> list[Tensor]:
    """Takes a step and returns the dropout masks of every pass, stacked over the model's two dropouts."""
    masks: list[Tensor] = []
    hook = run.model.dropout.register_forward_hook(lambda module, inputs, output: masks.append(output != 0))
    run.step(number)
    hook.remove()
    return [torch.stack(masks[i : i + 2]) for i in range(0, len(masks), 2)]


def by_rows(masks: list[Tensor]) -> list[list[Tensor]]:
    """Masks of passes on equally many rows: only those can be equal."""
    groups: dict[torch.Size, list[Tensor]] = defaultdict(list)
    for m in masks:
        groups[m.shape].append(m)
    return list(groups.values())


@obeying()
def test_all_passes_of_a_step_see_the_same_masks(entry: Entry) -> None:
    run = Run(entry)
    steps = []
    for i in range(3):
        masks = masks_of(run, i)
        assert len(masks) == run.case.passes(i)
        assert all(torch.equal(group[0], m) for group in by_rows(masks) for m in group)
        steps.append(masks[0])
    assert not torch.equal(steps[0], steps[1])  # but each step has its own


@obeying(only=lambda e: e.name not in ("none", "msam"))  # of one pass
def test_without_same_noise_every_pass_has_its_own_masks(entry: Entry) -> None:
    run = Run(entry, same_noise=False)
    groups = [g for i in range(2) for g in by_rows(masks_of(run, i)) if len(g) > 1]
    assert groups
    assert all(not torch.equal(group[0], m) for group in groups for m in group[1:])


@obeying()
def test_the_global_generator_moves_as_in_one_pass(entry: Entry) -> None:
    laws.one_pass_for_the_generator(entry)


@obeying()
def test_draws_depend_on_the_seed_alone(entry: Entry) -> None:
    """The global generator never enters a method's own draws; the engine's seed does, where the method draws at all."""
    one, two, other = Run(entry, dropout=0.0), Run(entry, dropout=0.0), Run(entry, dropout=0.0, seed=1)
    for i in range(2):
        one.step(i)
        other.step(i)
    for i in range(2):
        torch.rand(7 + i)
        two.step(i)
    same(one.everything(), two.everything())
    moved = not torch.equal(one.model.first.weight, other.model.first.weight)
    assert moved == (entry.name in DRAWING)


@obeying(only=lambda e: e.name in DRAWING)
def test_every_step_draws_anew(entry: Entry) -> None:
    """On one batch, at weights that do not move, only the draws can change the gradient."""
    run = Run(entry, "bare", norm="layer", dropout=0.0)
    run.opt.param_groups[0]["lr"] = 0.0
    gradients = []
    for _ in range(3):
        run.step(0)
        gradients.append(run.model.first.weight.grad.clone())
    assert not all(torch.equal(gradients[0], g) for g in gradients[1:])


@obeying(STATISTICS, only=lambda e: e.norm == "batch")  # the others take single rows
def test_running_statistics_move_once_at_the_unperturbed_weights(entry: Entry) -> None:
    laws.one_pass_for_statistics(entry)


@obeying()
def test_a_model_in_eval_mode_keeps_its_statistics(entry: Entry) -> None:
    run = Run(entry, norm="batch")
    run.model.eval()
    before = {k: v.clone() for k, v in run.model.named_buffers()}
    run.step(0)
    same(dict(run.model.named_buffers()), before)
