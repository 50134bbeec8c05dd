"""Functions of tensors that are replayed give what they would give if they were called."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
import torch
from again import Again, Operations
from torch import nn

from steppe.cuda.graphed_calls import CHANCES, EAGER, MOST, GraphedCalls
from steppe.measures import Objective

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def replays():
    return GraphedCalls() if CUDA else GraphedCalls(Again())


class Counted:
    def __init__(self):
        self.calls = 0

    def __call__(self, x, y):
        self.calls += 1
        return [(x @ y).sin(), x * 2]


def pairs(n, rows=3):
    draws = torch.Generator().manual_seed(0)
    return [tuple(torch.randn(rows, rows, generator=draws).to(DEVICE) for _ in range(2)) for _ in range(n)]


def test_replays_are_what_calls_would_be_and_leave_earlier_results_alone():
    function, again = Counted(), replays()
    given = pairs(6)
    found = [again("key", function, *pair) for pair in given]
    assert function.calls == EAGER + 1  # the last one was recorded
    for (x, y), (sines, doubles) in zip(given, found, strict=True):
        assert torch.equal(sines, (x @ y).sin())
        assert torch.equal(doubles, x * 2)


def test_other_keys_and_shapes_are_other_functions():
    again, given = replays(), pairs(5)
    for x, y in given:
        assert torch.equal(again("sum", lambda a, b: [a + b], x, y)[0], x + y)
        assert torch.equal(again("difference", lambda a, b: [a - b], x, y)[0], x - y)
    for x, y in pairs(5, rows=4):
        assert torch.equal(again("sum", lambda a, b: [a + b], x, y)[0], x + y)


def test_no_more_than_a_few_are_kept():
    again, functions = replays(), [Counted() for _ in range(MOST + 1)]
    for x, y in pairs(6):
        for i, function in enumerate(functions):
            again(i, function, x, y)
    assert [f.calls for f in functions] == [EAGER + 1] * MOST + [6]


def test_what_cannot_be_recorded_is_called():
    again, function = replays(), Counted()

    def waits(x, y):
        assert x.sum().item() is not None  # a number is read
        return function(x, y)

    for x, y in pairs(5):
        assert torch.equal(again("key", waits, x, y)[1], x * 2)
    assert again.why is not None
    assert "synchronizing" in again.why
    for x, y in pairs(5):  # others are
        assert torch.equal(again("other", function, x, y)[1], x * 2)
    assert len(again._recordings) == 1
    assert function.calls <= 5 + CHANCES + EAGER + 1


def test_what_waits_only_the_first_time_is_recorded():
    again, seen = replays(), []

    def lazy(x, y):
        if not seen:
            seen.append(x.sum().item())
        return [x + y]

    @contextmanager
    def rehearsing():
        with Operations():
            yield lambda: True

    if not CUDA:
        again._recorder.rehearsing = rehearsing  # numbers that are read are noticed there too
    for x, y in pairs(5):
        assert torch.equal(again("key", lazy, x, y)[0], x + y)
    assert again._recordings


def test_what_the_host_does_not_hold_up_is_not_recorded():
    again, function = replays(), Counted()

    @contextmanager
    def rehearsing():
        yield lambda: False

    again._recorder_on(torch.device(DEVICE)).rehearsing = rehearsing
    for x, y in pairs(5):
        assert torch.equal(again("key", function, x, y)[1], x * 2)
    assert function.calls == 5
    assert not again._recordings
    assert again.why is None


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_long_kernels_are_not_recorded_and_many_short_ones_are():
    long, short = GraphedCalls(), GraphedCalls()
    big, small = torch.randn(8192, 8192, device=DEVICE), torch.randn(4, device=DEVICE)

    def many(x):
        for _ in range(100):
            x = x + 1
        return [x]

    assert (big @ big).sum().isfinite()  # what the first product sets up is no part of it
    for _ in range(4):
        long("long", lambda x: [x @ x @ x], big)
        short("short", many, small)
    assert not long._recordings
    assert short._recordings


def test_errors_of_the_function_are_the_callers():
    again = replays()

    def fails(x):
        raise RuntimeError("no such loss")

    for _ in range(4):
        with pytest.raises(RuntimeError, match="no such loss"):
            again("key", fails, torch.ones(1, device=DEVICE))


def test_without_a_gpu_nothing_is_recorded():
    function, again = Counted(), GraphedCalls()
    for x, y in pairs(5):
        again("key", function, x.cpu(), y.cpu())
    assert function.calls == 5


@pytest.mark.skipif(not CUDA, reason="needs a CUDA device")
def test_an_objectives_passes_are_replayed_and_stay_what_they_were():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5)).cuda()
    data = [(torch.randn(8, 3, 8, 8), torch.randint(0, 5, (8,))) for _ in range(3)]

    def loss(output, target):
        return nn.functional.cross_entropy(output, target, reduction="none")

    watched = Objective(model, loss, data)
    before = torch.cuda.get_rng_state()
    for i in range(6):
        at = watched.draw(0, i).normal() * 0.1
        fresh = Objective(model, loss, data)  # records nothing yet
        value, slope = watched.gradient(at)
        expected, other = fresh.gradient(at)
        assert value == pytest.approx(expected, rel=1e-6)
        assert float((slope - other).norm()) <= 1e-5 * float(other.norm())
        assert watched.loss(at) == pytest.approx(expected, rel=1e-6)
    assert watched.replays._recordings
    assert watched.replays.why is None
    assert torch.equal(before, torch.cuda.get_rng_state())
    with torch.no_grad():
        model[0].weight.mul_(0.5)  # in place: the recording sees it
    assert watched.loss() == pytest.approx(Objective(model, loss, data).loss(), rel=1e-6)
    model[1].running_mean = torch.ones(4, device="cuda")  # elsewhere: another recording
    assert watched.loss() == pytest.approx(Objective(model, loss, data).loss(), rel=1e-6)
