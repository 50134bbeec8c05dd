"""Steps that nobody waits for: refused on the device, heard of later, with everything as before the refused one.

That is how eager steps on a GPU are taken; here the CPU's fused kernels refuse, with rooms as on a GPU and without.
"""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import test_engine_held
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from registry import ENTRIES, Entry, Run, copied, obeying, same
from test_engine_fused import BASES
from test_engine_nonfinite import KINDS, passes_to_spoil, spoiled
from torch import Tensor, nn

import steppe
from steppe.optim import fused
from steppe.optim.guard import Guarded
from steppe.optim.planned import Checked
from steppe.optim.site import STEP

rooms = test_engine_held.rooms
NAMED = {e.name: e for e in ENTRIES}
SETS_OPTIONS = {"sa-sam", "sa-sgd"}  # numbers in the groups, for which a step waits anyway


@pytest.fixture(autouse=True, params=["without rooms", "in rooms"])
def _refusing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU steps are refused as on a GPU: in rooms by what the passes themselves have flagged."""
    monkeypatch.setattr(fused, "DEVICES", ("cpu",))
    if request.param == "in rooms":
        request.getfixturevalue("rooms")


@pytest.fixture
def _deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host finds out nothing unless it waits, as where the device is behind."""
    monkeypatch.setattr(Guarded, "heard", 0)


def started(name: str = "sam", base: str = "adamw", steps: int = 2, **engine: Any) -> Run:
    """A run whose next step may be refused unseen."""
    run = Run(NAMED[name], base, dtype=torch.float32, **engine)
    for number in range(steps):
        run.step(number)
    return run


def taken(run: Run, *numbers: int) -> Any:
    """Everything after some more steps."""
    for number in numbers:
        run.step(number)
    run.opt.settle()
    return run.everything()


def nan(number: int, loss: Tensor) -> Tensor:
    return loss * torch.nan


def step_of(run: Run) -> set[int]:
    return {g[STEP] for g in run.base.param_groups}


def unsettled(run: Run) -> Any:
    """Weights, buffers and state, without a question to the device."""
    return [run.weights(), copied(list(run.base.state.values()))]


def refused(step: int, later: bool | None = True) -> Any:
    """The error that names a step, and says that it was heard later, or at once; None: either."""
    ends = {
        True: r" \(No step waits .* heard only now; settle\(\) after a step hears at once\.\)$",
        False: "$",
        None: "",
    }
    return pytest.raises(FloatingPointError, match=rf"step {step} is not finite.*on_nonfinite='skip'\)\.{ends[later]}")


@obeying()
def test_any_pass_that_is_not_finite_is_heard_by_the_next_step_and_leaves_no_trace(entry: Entry) -> None:
    run, twin = started(entry.name), started(entry.name)
    assert all(g["fused"] for g in run.base.param_groups)
    before = run.everything()
    for kind in KINDS:
        for at in passes_to_spoil(run, kind):
            with refused(2, later=None if entry.name in SETS_OPTIONS else True):
                run.step(2, meddle=spoiled(run, at, kind))
                run.step(3)
            same(run.everything(), before)
    same(taken(run, 2, 3), taken(twin, 2, 3))


@pytest.mark.usefixtures("_deaf")
@obeying(only=lambda e: e.name not in SETS_OPTIONS)
def test_nothing_moves_until_somebody_hears(entry: Entry) -> None:
    run, twin = started(entry.name), started(entry.name)
    before, everything = unsettled(run), run.everything()
    run.step(2, by="passes", meddle=nan)
    for number in (3, 4, 5):
        run.step(number, meddle=nan if number == 4 else None)
        same(unsettled(run), before)
    assert step_of(run) == {6}
    with refused(2):
        run.opt.settle()
    same(run.everything(), everything)
    same(taken(run, 2, 3), taken(twin, 2, 3))


@pytest.mark.usefixtures("_deaf")
@pytest.mark.parametrize("hears", [lambda opt: opt.settle(), lambda opt: opt.state_dict(), copy.deepcopy, pickle.dumps])
def test_whoever_copies_the_optimizer_hears_once(hears: Callable[[Any], object]) -> None:
    run, twin = started(), started()
    before = run.everything()
    run.step(2, meddle=nan)
    with refused(2):
        hears(run.opt)
    hears(run.opt)
    same(run.everything(), before)
    same(taken(run, 2), taken(twin, 2))


def test_a_state_that_is_loaded_knows_of_no_refusal() -> None:
    run, twin = started(), started()
    saved = run.everything()
    run.step(2)
    run.step(3, meddle=nan)
    run.model.load_state_dict(saved["model"])
    run.opt.load_state_dict(saved["optimizer"])
    same(taken(run, 2, 3), taken(twin, 2, 3))
    run.step(4, meddle=nan)
    with refused(4):
        run.opt.settle()


def fails(run: Run) -> None:
    with pytest.raises(ZeroDivisionError):
        run.step(7, meddle=lambda number, loss: loss * (torch.nan if number == 0 else 1 / 0))


def is_left(run: Run) -> None:
    for number, turn in enumerate(run.opt.passes()):
        turn.backward(run.loss(turn, 7) * torch.nan)
        if number == 1:
            break


def is_never_applied(run: Run) -> None:
    for turn in run.opt.passes():
        turn.backward(run.loss(turn, 7) * torch.nan)


ABANDONED = {step.__name__: step for step in (fails, is_left, is_never_applied)}


@pytest.mark.usefixtures("_deaf")
@pytest.mark.parametrize("abandon", ABANDONED.values(), ids=ABANDONED.keys())
def test_a_step_that_is_abandoned_spoils_no_other_and_hides_no_refusal(abandon: Callable[[Run], None]) -> None:
    run, twin = started(), started()
    for _ in range(2):
        abandon(run)
        run.opt.settle()
    if abandon is is_never_applied:  # then they have moved, as by any forward pass
        run.model.load_state_dict(twin.model.state_dict())
    same(taken(run, 2), taken(twin, 2))
    run.step(3, meddle=nan)
    abandon(run)
    with refused(3):
        run.step(4)
    assert step_of(run) == {3}
    taken(run, 3)


def accumulated(run: Run, number: int, bad: int | None = None) -> None:
    """A step of three micro-batches."""
    torch.manual_seed(number)
    run.opt.zero_grad()
    for micro in range(3):
        for turn in run.opt.passes(accumulate=True):
            turn.backward(run.loss(turn, 10 * number + micro) * (torch.nan if micro == bad else 1))
    run.opt.step()


@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("name", ["sam", "sam-3-steps", "looksam"])
def test_one_bad_micro_batch_refuses_the_whole(name: str, bad: int) -> None:
    run, twin = started(name), started(name)
    before = run.everything()
    accumulated(run, 2, bad)
    with refused(2):
        accumulated(run, 3)
    same(run.everything(), before)
    for r in (run, twin):
        accumulated(r, 2)
    same(taken(run, 3), taken(twin, 3))


@pytest.mark.parametrize("whose", ["base", "opt"])
def test_hooks_do_not_hear_of_a_refused_step(whose: str) -> None:
    run, heard = started(), []
    getattr(run, whose).register_step_post_hook(lambda *_: heard.append(1))
    before = run.everything()
    with refused(2, later=False):
        run.step(2, meddle=nan)
    same(run.everything(), before)
    taken(run, 2)
    assert heard == [1]


def test_what_is_to_be_skipped_is_skipped_at_once() -> None:
    run, twin = (started(on_nonfinite="skip") for _ in range(2))
    run.step(2, meddle=nan)
    assert step_of(run) == {2}
    same(taken(run), taken(twin))
    same(taken(run, 2), taken(twin, 2))


CHANGES: dict[str, Callable[[Run], object]] = {
    "to be skipped": lambda run: setattr(run.opt, "on_nonfinite", "skip"),
    "not looked at": lambda run: setattr(run.opt, "on_nonfinite", None),
    "another group": lambda run: run.opt.add_param_group({"params": [nn.Parameter(torch.ones(3))]}),
    "another group of the base": lambda run: run.base.add_param_group({"params": [nn.Parameter(torch.ones(3))]}),
    "other kernels": lambda run: run.base.param_groups[0].update(fused=None, foreach=True),
    "a hook": lambda run: run.opt.register_step_post_hook(lambda *_: None),
    "a frozen layer": lambda run: run.model.first.requires_grad_(False),
    "other memory": lambda run: run.model._apply(torch.clone),  # type: ignore[no-untyped-call]
    "another precision": lambda run: vars(run).update(model=run.model.double(), dtype=torch.float64),
}


@pytest.mark.parametrize("deaf", [False, True], ids=["heard", "unheard"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_refusal_is_heard_whatever_changes(change: Callable[[Run], object], deaf: bool, request: Any) -> None:
    run = started("sam", "bare")
    before = {name: t.double() for name, t in run.weights().items()}
    run.step(2, meddle=nan)
    if deaf:
        request.getfixturevalue("_deaf")
    change(run)
    with refused(2):
        run.step(3)
        run.opt.settle()
    same({name: t.double() for name, t in run.weights().items()}, before)
    taken(run, 2)
    assert step_of(run) == {3}


@pytest.mark.parametrize(("name", "base"), [("sam", "sgd"), ("sam", "adamw"), ("looksam", "bare"), ("ssam-d", "bare")])
def test_a_first_step_is_waited_for_where_there_is_no_state_yet(name: str, base: str) -> None:
    run = started(name, base, steps=0)
    for _ in range(2):
        with refused(0, later=False):
            run.step(0, meddle=nan)
        assert not run.base.state


def test_so_is_the_first_step_of_weights_that_were_frozen() -> None:
    run = started(steps=0)
    run.model.first.requires_grad_(False)
    taken(run, 0, 1)
    run.model.first.requires_grad_()
    before = unsettled(run)
    with refused(2, later=False):
        run.step(2, meddle=nan)
    same(unsettled(run), before)


@pytest.mark.parametrize("chosen", [{"fused": True}, {"foreach": True}, {"foreach": False}])
@pytest.mark.parametrize("base", BASES)
def test_what_cannot_refuse_is_waited_for(base: str, chosen: dict[str, bool]) -> None:
    torch.manual_seed(0)
    model, unasked = nn.Linear(3, 2), nn.Linear(3, 2)
    opt = steppe.sam(BASES[base]([*model.parameters(), *unasked.parameters()], **chosen), model=model)

    def step(x: float) -> None:
        opt.step(lambda turn: turn.backward(model(torch.full((4, 3), x)).square().mean()))
        opt.settle()

    step(1.0)
    before = copied([model.state_dict(), opt.state_dict()])
    with refused(1, later=base == "sgd" and "fused" in chosen):  # the others have no state for the unasked weights
        step(torch.nan)
    same(copied([model.state_dict(), opt.state_dict()]), before)
    step(1.0)


@pytest.mark.parametrize("momenta", [(0.0, 0.9), (0.9, 0.0, 0.9)])
def test_momentum_that_is_switched_on_begins_with_what_was_written(momenta: tuple[float, ...]) -> None:
    run = started("sam", "bare", steps=0)
    for number, momentum in enumerate(momenta):
        run.base.param_groups[0]["momentum"] = momentum
        before = unsettled(run)
        begins = momentum > 0 and not run.base.state
        with refused(number, later=not begins):
            run.step(number, meddle=nan)
            run.opt.settle()
        same(unsettled(run), before)
        taken(run, number)
        assert all(s["momentum_buffer"].abs().max() < 10 for s in run.base.state.values())


Event = tuple[str, int | None]  # what is done, and the pass or micro-batch of it that is not finite
EVENTS = st.one_of(
    st.tuples(st.just("step"), st.sampled_from([None, None, None, 0, 1])),
    st.tuples(st.just("accumulated"), st.sampled_from([None, None, 0, 2])),
    st.tuples(st.sampled_from(["fails", "is_left"]), st.none()),
)


def driven(run: Run, events: list[Event], before_each: Callable[[int], None] = lambda number: None) -> Any:
    """Does what a caller can who catches the errors: leaves the refused batch out and repeats those after it."""
    number, began = 0, {}
    while True:
        try:
            if number == len(events):
                return taken(run)
            kind, bad = events[number]
            before_each(number)
            if kind in ABANDONED:
                ABANDONED[kind](run)
            else:
                began[min(step_of(run))] = number
                spoil = (lambda at, loss: loss * torch.nan if at == bad else loss) if bad is not None else None
                run.step(number, meddle=spoil) if kind == "step" else accumulated(run, number, bad)
            number += 1
        except FloatingPointError as error:
            step = int(re.findall(r"of step (\d+)", str(error))[0])
            assert step_of(run) == {step}
            assert events[began[step]][1] is not None
            number = began[step] + 1


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    history=st.lists(st.tuples(EVENTS, st.booleans()), max_size=8),
    name=st.sampled_from(["sam", "ssam-d", "frob-sam"]),
    base=st.sampled_from(["sgd", "adamw", "bare"]),
)
def test_any_history_ends_where_waiting_does(history: list[tuple[Event, bool]], name: str, base: str) -> None:
    events, hears = [event for event, _ in history], [True]
    run, twin = started(name, base, steps=0), started(name, base, steps=0)
    twin.opt.applying = Checked("raise")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Guarded, "heard", property(lambda guard: int(guard._heard) if hears[-1] else 0))
        same(driven(run, events, lambda number: hears.append(history[number][1])), driven(twin, events))
    assert step_of(run) == {sum(bad is None and kind not in ABANDONED for kind, bad in events)}
