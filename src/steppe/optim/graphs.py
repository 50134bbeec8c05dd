"""CUDA graphs as the recorder of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Generator, Tensor

from .recording import RecordedNoise


class PassGenerators:
    """A generator for every pass of a recorded step, all set alike before a replay."""

    def __init__(self, device: torch.device, passes: int):
        self._own: Any = torch.cuda.default_generators[device.index or 0]
        self._first = self._own.graphsafe_get_state()
        self.others: list[Generator] = [self._own.clone_state() for _ in range(passes)]
        self._next = iter(self.others)

    def rewind(self) -> None:
        self._own.graphsafe_set_state(next(self._next))

    def resume(self) -> None:
        self._own.graphsafe_set_state(self._first)

    def replay(self) -> None:
        state = self._own.get_state()
        for other in self.others:
            other.set_state(state)


class CudaGraphs:
    """Records on a stream of its own; all graphs share one pool of memory, for no two run at once."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        here, before = torch.cuda.current_stream(self._device), torch.cuda.get_sync_debug_mode()
        self._stream.wait_stream(here)
        torch.cuda.set_sync_debug_mode("error")
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            torch.cuda.set_sync_debug_mode(before)
            here.wait_stream(self._stream)

    def noise(self, passes: int) -> PassGenerators:
        return PassGenerators(self._device, passes)

    def record(self, work: Callable[[], Tensor], noise: RecordedNoise | None) -> tuple[Tensor, Callable[[], None]]:
        graph = torch.cuda.CUDAGraph()
        for state in noise.others if isinstance(noise, PassGenerators) else ():
            graph.register_generator_state(state)
        try:
            # other threads, such as a loader's, may go on talking to the device meanwhile
            with torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode="thread_local"):
                result = work()
        finally:
            if noise is not None:
                noise.resume()
        return result, graph.replay
