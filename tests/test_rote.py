"""What is done again and again: plainly on a CPU; on a GPU recorded at the third time, and replayed from then on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from steppe import rote
from steppe.graphs import replay_of
from steppe.rote import EAGER, Rote

GPU = torch.device("cuda", 0)
on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Device:
    """Stands for a GPU: says what was recorded, and replays where autograd does not see it, as a graph does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, records: bool = True):
        self.recordings = self.replays = 0
        self._capturing, self._records = False, records
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self._capturing)
        monkeypatch.setattr(rote, "replay_of", self._replay_of)

    def _replay_of(self, work: Callable[[], object], device: torch.device) -> Callable[[], None] | None:
        assert device == GPU
        self.recordings += 1
        return self._replay if self._records else None

    def _replay(self) -> None:
        self.replays += 1

    @contextmanager
    def capturing(self) -> Iterator[None]:
        self._capturing = True
        yield
        self._capturing = False


class Counting:
    """An action that counts its calls where it writes."""

    def __init__(self) -> None:
        self.calls, self.memory = 0, [torch.zeros(3), torch.zeros(2)]

    def __call__(self) -> None:
        self.calls += 1
        for t in self.memory:
            t.add_(1)


def test_a_cpu_acts_at_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rote, "replay_of", lambda *_: pytest.fail("there is nothing to record on"))
    action = Counting()
    again = Rote(action, torch.device("cpu"), action.memory)
    for n in range(1, EAGER + 4):
        again()
        assert action.calls == n
        assert all((t == n).all() for t in action.memory)


def test_it_acts_a_few_times_is_recorded_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    device, action = Device(monkeypatch), Counting()
    again = Rote(action, GPU, action.memory)
    for n in range(1, EAGER + 5):
        again()
        assert action.calls == min(n, EAGER)
        assert device.recordings == (n > EAGER)
        assert device.replays == max(0, n - EAGER)  # what was recorded has not been done yet


def test_autograd_hears_of_every_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    device, action = Device(monkeypatch), Counting()
    again = Rote(action, GPU, action.memory)
    for _ in range(EAGER + 3):
        before = [t._version for t in action.memory]
        again()
        assert all(t._version > version for t, version in zip(action.memory, before, strict=True))
    weight = torch.ones(3, requires_grad=True)
    product = (weight * action.memory[0]).sum()
    again()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        torch.autograd.backward(product)
    assert device.replays == 4


def test_memory_that_autograd_never_sees_need_not_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    device, action = Device(monkeypatch), Counting()
    again = Rote(action, GPU)
    for _ in range(EAGER + 2):
        again()
    assert (action.calls, device.replays) == (EAGER, 2)
    assert [t._version for t in action.memory] == [EAGER, EAGER]


def test_it_is_part_of_a_larger_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    device, action = Device(monkeypatch), Counting()
    again = Rote(action, GPU, action.memory)
    with device.capturing():
        for _ in range(EAGER + 3):
            again()
    assert (action.calls, device.recordings) == (EAGER + 3, 0)
    for _ in range(EAGER):  # what was only recorded counts for nothing
        again()
    assert (action.calls, device.recordings) == (2 * EAGER + 3, 0)
    again()
    with device.capturing():
        again()
    assert (action.calls, device.recordings, device.replays) == (2 * EAGER + 4, 1, 1)
    again()
    assert (action.calls, device.recordings, device.replays) == (2 * EAGER + 4, 1, 2)


def test_what_cannot_be_recorded_is_tried_once_and_acts_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    device, action = Device(monkeypatch, records=False), Counting()
    again = Rote(action, GPU, action.memory)
    for n in range(1, EAGER + 5):
        again()
        assert action.calls == n
    assert (device.recordings, device.replays) == (1, 0)


# -- on a GPU -------------------------------------------------------------------------------------------------


def copying() -> tuple[list[Tensor], list[Tensor], Rote]:
    """Tensors of several shapes and types, memory for them, and what copies them there by rote."""
    torch.manual_seed(0)
    kinds = [((7, 3), torch.float32), ((), torch.float64), ((5,), torch.int64), ((1000, 33), torch.bfloat16)]
    sources = [(100 * torch.randn(shape, device=GPU)).to(dtype) for shape, dtype in kinds]
    targets = [torch.zeros_like(t) for t in sources]
    return sources, targets, Rote(lambda: torch._foreach_copy_(targets, sources), GPU, targets)


def follows(sources: list[Tensor], targets: list[Tensor], again: Rote) -> None:
    """What is copied is what the sources hold at each call, and stays until the next one."""
    for i in range(6):
        before = [t._version for t in targets]
        again()
        expected = [t.clone() for t in sources]  # plain copies
        for t in sources:
            t.mul_(3).sub_(i)
        for target, wanted, version in zip(targets, expected, before, strict=True):
            assert torch.equal(target, wanted)
            assert target._version > version
    assert again._again is not None  # it was recorded


@on_a_gpu
def test_copies_are_bitwise_those_of_now() -> None:
    follows(*copying())


@on_a_gpu
def test_it_works_on_a_side_stream() -> None:
    sources, targets, again = copying()
    side: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        follows(sources, targets, again)  # recorded and replayed there
    torch.cuda.current_stream().wait_stream(side)
    follows(sources, targets, again)  # and replayed here


@on_a_gpu
def test_it_is_recorded_in_a_larger_recording_before_and_after_its_own() -> None:
    sources, targets, again = copying()
    for calls in (EAGER, EAGER):
        for _ in range(calls):
            again()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again()
        for t in sources:
            t.add_(1)
        graph.replay()
        assert all(map(torch.equal, targets, sources))


@on_a_gpu
def test_recording_does_nothing_yet() -> None:
    x = torch.zeros(3, device=GPU)
    replay = replay_of(lambda: x.add_(1), x.device)
    assert replay is not None
    assert x.tolist() == [0, 0, 0]
    replay()
    replay()
    assert x.tolist() == [2, 2, 2]


@on_a_gpu
@pytest.mark.parametrize("waits", [lambda x: x.sum().item(), lambda x: torch.cuda.synchronize(), lambda x: x.nonzero()])
def test_what_waits_for_the_device_is_not_recorded_and_does_no_harm(waits: Callable[[Tensor], object]) -> None:
    x = torch.ones(3, device=GPU)
    drawn = torch.randn(3, device=GPU, generator=torch.Generator(GPU).manual_seed(5))
    assert replay_of(lambda: (x.mul(2), waits(x)), x.device) is None
    assert x.sum().item() == 3
    torch.cuda.synchronize()
    torch.cuda.manual_seed(5)
    assert torch.equal(torch.randn(3, device=GPU), drawn)  # the generator does not take itself for recorded
    again = Rote(lambda: (x.add_(1), waits(x)), GPU, [x])
    for n in range(EAGER + 3):
        again()
        assert x.tolist() == [n + 2.0] * 3
    follows(*copying())  # and others are recorded still
