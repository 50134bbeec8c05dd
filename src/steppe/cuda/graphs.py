"""Work on a GPU recorded as a CUDA graph, all of whose kernels are launched at once when it is done again."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import perf_counter
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import torch
from torch import Generator

R = TypeVar("R")
Gains = Callable[[], bool]  # whether replays take less time than what was rehearsed; waits until that is done
MODE = "thread_local"  # other threads, such as a loader's, may go on talking to the device during a recording
BOUND = 0.2  # of the device's time: a host that takes less to launch the work does not hold it up


class Recorder(Protocol):
    """What records on a device: operations in the memory they use, to be run again there."""

    def aside(self) -> AbstractContextManager[None]:
        """Within, operations run where they are recorded later."""
        ...

    def rehearsing(self) -> AbstractContextManager[Gains]:
        """Within, operations run on the stream where they are recorded later."""
        ...

    def record(self, work: Callable[[], R], noise: Sequence[Generator] = ()) -> tuple[R, Callable[[], None]]:
        """What the work returns, in memory of its own, and a function that does the work again."""
        ...


class CudaGraphs:
    """Records on a stream of its own; all graphs share one pool of memory, for no two run at once."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: WeakSet[Any] = WeakSet()
        self._pool: Any = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        here = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(here)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            here.wait_stream(self._stream)

    @contextmanager
    def rehearsing(self) -> Iterator[Gains]:
        event: Any = torch.cuda.Event
        start, end = event(enable_timing=True), event(enable_timing=True)
        began, took = perf_counter(), 0.0

        def gains() -> bool:
            end.synchronize()
            return bool(1e3 * took > BOUND * start.elapsed_time(end))

        with self.aside():
            start.record(self._stream)
            yield gains
            end.record(self._stream)
            took = perf_counter() - began

    def record(self, work: Callable[[], R], noise: Sequence[Generator] = ()) -> tuple[R, Callable[[], None]]:
        if not self._graphs:  # a pool goes with the last graph that uses it
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        for generator in noise:
            graph.register_generator_state(generator)
        cause: RuntimeError | None = None
        try:
            with _recording(self._device), torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=MODE):
                try:
                    result = work()
                except RuntimeError as error:  # the end of the recording raises another one, which says less
                    cause = error
                    raise
        except RuntimeError as error:
            why = str(cause or error).splitlines()[0]
            raise RuntimeError(f"a synchronizing operation, or another that no CUDA graph can hold: {why}") from error
        self._graphs.add(graph)
        return result, graph.replay


@contextmanager
def _recording(device: torch.device) -> Iterator[None]:
    """Within, something is recorded; if that fails, random numbers can be drawn all the same."""
    default: Any = torch.cuda.default_generators[device.index or 0]
    first, collecting = default.graphsafe_get_state(), gc.isenabled()
    gc.disable()  # a graph that is destroyed meanwhile ends the recording of another
    try:
        yield
    except BaseException:
        default.graphsafe_set_state(first)
        default.graphsafe_set_state(default.clone_state())  # the first still takes itself for recorded
        raise
    finally:
        if collecting:
            gc.enable()
