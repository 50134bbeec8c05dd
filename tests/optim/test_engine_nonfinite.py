"""Numbers that are not finite: raised or skipped, with weights, statistics and optimizer state bitwise as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from registry import Entry, Run, obeying, same
from torch import Tensor, nn

import steppe
from steppe.optim.finite import nonfinite_flag

KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "a NaN loss": lambda loss: loss * torch.nan,
    "an infinite loss with a finite gradient": lambda loss: loss + torch.inf,
    "a NaN gradient under a finite loss": lambda loss: loss + torch.sqrt(loss.sum() * 0),
}


def spoiled(run: Run, at: int, kind: str) -> Callable[[int, Tensor], Tensor]:
    return lambda number, loss: KINDS[kind](loss) if number == at else loss


def passes_to_spoil(run: Run, kind: str) -> list[int]:
    """All passes of the next step; only those with a backward pass can have a bad gradient."""
    forward_only = {1} if run.case.name == "esam" and "gradient under" in kind else set()
    return [i for i in range(run.case.passes(2)) if i not in forward_only]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("what", "kind"), list(zip(("raise", "skip", "raise"), KINDS, strict=True)))
@obeying()
def test_any_pass_that_is_not_finite_leaves_no_trace(entry: Entry, what: Any, kind: str) -> None:
    run, twin = (Run(entry, "adamw", norm="layer", on_nonfinite=what) for _ in range(2))
    for r in (run, twin):
        r.step(0)
        r.step(1)
    before = run.everything()
    by = "closure" if what == "raise" else "passes"
    for at in passes_to_spoil(run, kind):
        if what == "raise":
            with pytest.raises(FloatingPointError, match="not finite"):
                run.step(2, by=by, meddle=spoiled(run, at, kind))
        else:
            run.step(2, by=by, meddle=spoiled(run, at, kind))
        same(run.everything(), before)
    for r in (run, twin):
        r.step(2)
    same(run.everything(), twin.everything())


@pytest.mark.parametrize("what", ["raise", "skip"])
def test_a_bad_batch_does_not_poison_running_statistics(what: Any) -> None:
    """A NaN in the input would stay in BatchNorm's running mean for ever."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)).double()
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=model, on_nonfinite=what)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(5, 3, dtype=torch.float64)
    x[2, 1] = torch.nan

    def closure(pass_: Any) -> Tensor:
        loss = model(x).square().mean()
        pass_.backward(loss)
        return loss

    if what == "raise":
        with pytest.raises(FloatingPointError, match="statistics"):
            opt.step(closure)
    else:
        assert opt.step(closure).isnan()
    same(dict(model.state_dict()), before)


def test_the_message_names_the_step_and_the_ways_out() -> None:
    w = nn.Parameter(torch.ones(2))
    opt = steppe.sam(torch.optim.SGD([w], lr=0.1))
    opt.step(lambda pass_: pass_.backward(w.sum()))
    with pytest.raises(FloatingPointError, match=r"step 1 is not finite.*rho.*on_nonfinite='skip'"):
        opt.step(lambda pass_: pass_.backward(w.sum() * torch.nan))


def test_unwatched_numbers_pass_through() -> None:
    """on_nonfinite=None looks at nothing, so that no step waits for a device: the base sees what came out."""
    w = nn.Parameter(torch.ones(2))
    opt = steppe.sam(torch.optim.SGD([w], lr=0.1), on_nonfinite=None)
    opt.step(lambda pass_: pass_.backward(w.sum() * torch.nan))
    assert w.isnan().all()


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one of raise, skip.*not 'ignore'"):
        steppe.sam(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1), on_nonfinite="ignore")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), None])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_flag_of_several_dtypes(bad: float | None, place: int) -> None:
    tensors = [torch.randn(5), torch.randn(2, 3, dtype=torch.float64), torch.full((3,), 6e4, dtype=torch.float16)]
    if bad is not None:
        tensors[place].view(-1)[1] = bad
    before = [t.clone() for t in tensors]
    assert float(nonfinite_flag(tensors)) == float(bad is not None)
    assert float(nonfinite_flag(tensors[:1], torch.ones(()))) == 1.0  # it stays set
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(tensors, before, strict=True))
