"""A cache of CUDA graphs: replayed functions return what calls would return."""

from __future__ import annotations

import pytest
import torch
from cpu_recorder import CpuRecorder
from torch import nn

from steppe.cuda.graphs import LIMIT, CudaRecorder, GraphCache
from steppe.measures import Objective

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


CALLS = 2  # of a function: its warm-up and its capture


def new_recorder():
    return CudaRecorder(torch.device(DEVICE)) if CUDA else CpuRecorder()


def new_cache():
    return GraphCache(None if CUDA else new_recorder())


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
    function, cache = Counted(), new_cache()
    given = pairs(6)
    found = [cache("key", function, *pair) for pair in given]
    assert function.calls == CALLS
    for (x, y), (sines, doubles) in zip(given, found, strict=True):
        assert torch.equal(sines, (x @ y).sin())
        assert torch.equal(doubles, x * 2)


def test_other_keys_and_shapes_are_other_functions():
    cache, given = new_cache(), pairs(5)
    for x, y in given:
        assert torch.equal(cache("sum", lambda a, b: [a + b], x, y)[0], x + y)
        assert torch.equal(cache("difference", lambda a, b: [a - b], x, y)[0], x - y)
    for x, y in pairs(5, rows=4):
        assert torch.equal(cache("sum", lambda a, b: [a + b], x, y)[0], x + y)


def test_no_more_than_a_few_are_kept():
    cache, functions = new_cache(), [Counted() for _ in range(LIMIT + 1)]
    for x, y in pairs(6):
        for i, function in enumerate(functions):
            cache(i, function, x, y)
    assert [f.calls for f in functions] == [CALLS] * LIMIT + [6]


def test_functions_that_cannot_be_captured_are_called():
    cache, function = new_cache(), Counted()

    def waits(x, y):
        assert x.sum().item() is not None  # a number is read
        return function(x, y)

    for x, y in pairs(5):
        assert torch.equal(cache("key", waits, x, y)[1], x * 2)
    assert cache.why is not None
    assert "synchronizing" in cache.why
    for x, y in pairs(5):  # others are
        assert torch.equal(cache("other", function, x, y)[1], x * 2)
    assert cache.count == 1
    assert function.calls == 5 + CALLS


def test_functions_that_synchronise_only_in_the_warm_up_are_captured():
    cache, seen = new_cache(), []

    def lazy(x, y):
        if not seen:
            seen.append(x.sum().item())
        return [x + y]

    for x, y in pairs(5):
        assert torch.equal(cache("key", lazy, x, y)[0], x + y)
    assert cache.count


def test_errors_of_the_function_are_the_callers():
    cache = new_cache()

    def fails(x):
        raise RuntimeError("no such loss")

    for _ in range(4):
        with pytest.raises(RuntimeError, match="no such loss"):
            cache("key", fails, torch.ones(1, device=DEVICE))


def test_without_a_gpu_nothing_is_captured():
    function, cache = Counted(), GraphCache()
    for x, y in pairs(5):
        cache("key", function, x.cpu(), y.cpu())
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
        fresh = Objective(model, loss, data)  # captures nothing yet
        value, slope = watched.gradient(at)
        expected, other = fresh.gradient(at)
        assert value == pytest.approx(expected, rel=1e-6)
        assert float((slope - other).norm()) <= 1e-5 * float(other.norm())
        assert watched.loss(at) == pytest.approx(expected, rel=1e-6)
    assert watched.replays.count
    assert watched.replays.why is None
    assert torch.equal(before, torch.cuda.get_rng_state())
    with torch.no_grad():
        model[0].weight.mul_(0.5)  # in place: the replay reads it
    assert watched.loss() == pytest.approx(Objective(model, loss, data).loss(), rel=1e-6)
    model[1].running_mean = torch.ones(4, device="cuda")  # in other memory: another graph
    assert watched.loss() == pytest.approx(Objective(model, loss, data).loss(), rel=1e-6)
