"""CUDA graphs: calls that are warmed up, captured and replayed, for captured steps and for measures.

`CudaRecorder` captures work on a GPU. `GraphCache` decides for every key whether a call runs eagerly, as a warm-up, as
a capture or as a replay, and remembers what cannot be captured.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol, TypeVar, final
from weakref import WeakSet

import torch
from torch import Generator, Tensor

from ..core.graph_inputs import GraphInputs
from ..core.vector import copies, copy_
from ..optim.forward_state import SameNoise

R = TypeVar("R")
Stage = Literal["eager", "warm-up", "capture", "replay"]

LIMIT = 8  # graphs per cache: each keeps the memory of everything that it computes
CAPTURE_MODE = "thread_local"  # other threads, such as a data loader's, may use the device during a capture


class Recorder(Protocol):
    """Captures operations, with the memory that they use, for replay."""

    def on_stream(self) -> AbstractContextManager[None]:
        """A context in which operations run on the stream of the captures."""
        ...

    def capture(self, work: Callable[[SameNoise | None], R], passes: int = 0) -> tuple[R, Callable[[], None]]:
        """The result of `work`, in memory that replays overwrite, and a function that replays it.

        With `passes`, `work` receives noise that restarts for each of so many passes; every replay draws new noise.
        """
        ...


@final
class CudaRecorder:
    """Captures CUDA graphs of one device on one stream. They share a memory pool, because no two run at once."""

    def __init__(self, device: torch.device):
        self._device = device
        self._stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._graphs: WeakSet[Any] = WeakSet()
        self._pool: Any = None

    @contextmanager
    def on_stream(self) -> Iterator[None]:
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                yield
        finally:
            current.wait_stream(self._stream)

    def capture(self, work: Callable[[SameNoise | None], R], passes: int = 0) -> tuple[R, Callable[[], None]]:
        if not self._graphs:  # a pool handle is invalid once the last graph of the pool is gone
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        noise = PassGenerators(self._device, passes) if passes else None
        if noise is not None:
            for generator in noise.generators:
                graph.register_generator_state(generator)
        cause: RuntimeError | None = None
        try:
            with (
                _capture_guarded(self._device),
                torch.cuda.graph(graph, self._pool, self._stream, capture_error_mode=CAPTURE_MODE),
            ):
                try:
                    result = work(noise)
                except RuntimeError as error:  # the end of the capture raises another error, which says less
                    cause = error
                    raise
        except RuntimeError as error:
            why = str(cause or error).splitlines()[0]
            raise RuntimeError(f"a synchronizing operation, or another that no CUDA graph can hold: {why}") from error
        self._graphs.add(graph)

        def replay() -> None:
            if noise is not None:
                noise.restart_passes()
            graph.replay()

        return result, replay


@contextmanager
def _capture_guarded(device: torch.device) -> Iterator[None]:
    """Disables garbage collection; after a failed capture, makes the default generator usable again."""
    default: Any = torch.cuda.default_generators[device.index or 0]
    state, collecting = default.graphsafe_get_state(), gc.isenabled()
    gc.disable()  # destroying an older graph during a capture breaks the capture
    try:
        yield
    except BaseException:
        default.graphsafe_set_state(state)
        default.graphsafe_set_state(default.clone_state())  # the original state still counts as being captured
        raise
    finally:
        if collecting:
            gc.enable()


@final
class PassGenerators:
    """A generator for every pass of a captured step, so that all passes draw the same dropout masks."""

    def __init__(self, device: torch.device, passes: int):
        self._default: Any = torch.cuda.default_generators[device.index or 0]
        self._first = self._default.graphsafe_get_state()
        self.generators: list[Generator] = [self._default.clone_state() for _ in range(passes)]
        self._next = iter(self.generators)

    def rewind(self) -> None:
        """After a pass: the next pass draws from its own generator."""
        self._default.graphsafe_set_state(next(self._next))

    def resume(self) -> None:
        """After the last pass: the default generator is at the end of the first pass."""
        self._default.graphsafe_set_state(self._first)

    restart = resume

    def restart_passes(self) -> None:
        """Before a replay: all passes start from the current state of the default generator."""
        state = self._default.get_state()
        for generator in self.generators:
            generator.set_state(state)


@final
class Graph:
    """A captured call: the buffers of its inputs, and its outputs, which replays overwrite."""

    def __init__(
        self,
        recorder: Recorder,
        work: Callable[..., Any],
        inputs: Sequence[Tensor],
        host_inputs: GraphInputs,
        passes: int,
    ):
        buffers = [torch.empty_like(t) for t in inputs]
        copy_(buffers, inputs)
        self._buffers, self._host_inputs = buffers, host_inputs
        with host_inputs.active(capturing=True):
            self.outputs, self._replay = recorder.capture(lambda noise: work(noise, *buffers), passes)

    def replay(self, inputs: Sequence[Tensor], step: int | None = None) -> None:
        """Runs the call on other inputs and, for a step, on the host's values for the step with this number."""
        if all(t.device == buffer.device for t, buffer in zip(inputs, self._buffers, strict=True)):
            copy_(self._buffers, inputs)
        else:
            for buffer, t in zip(self._buffers, inputs, strict=True):
                buffer.copy_(t, non_blocking=True)
        if step is not None:
            self._host_inputs.fill(step)
        self._replay()


@final
class GraphCache:
    """CUDA graphs by key: a key's first call is a warm-up, the second is captured, later ones replay the graph.

    Parameters
    ----------
    recorder
        Captures the graphs; None captures on the device of the first input, if that is a GPU.
    eager
        Calls of a key before its warm-up.
    limit
        The number of graphs; calls of further keys run eagerly.

    """

    def __init__(self, recorder: Recorder | None = None, *, eager: int = 0, limit: int = LIMIT):
        self._recorder, self._eager, self._limit = recorder, eager, limit
        self.clear()

    def clear(self) -> None:
        """Drops all graphs and everything that was learned about keys."""
        self._calls: Counter[Hashable] = Counter()  # before the capture
        self._warm: dict[Hashable, GraphInputs] = {}
        self._graphs: dict[Hashable, Graph] = {}
        self._uncaptured: dict[Hashable, str] = {}  # why keys stay eager

    @property
    def count(self) -> int:
        """The number of graphs."""
        return len(self._graphs)

    @property
    def why(self) -> str | None:
        """Why a key could not be captured; None if there is no such key."""
        return next(iter(self._uncaptured.values()), None)

    def __call__(self, key: Hashable, function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> Sequence[Tensor]:
        """`function(*inputs)`, called or replayed; the result is in new memory.

        The function may depend on its inputs, on the key, and on memory that stays in place. It stays eager if a
        capture fails.
        """
        if self._recorder_on(inputs[0].device) is None:
            return function(*inputs)
        key = (key, *((layout_key(t), t.device) for t in inputs))
        graph = self.graph(key)
        if graph is None:
            stage = self.stage(key)
            try:
                if stage == "warm-up":
                    with self.warm_up(key):
                        return function(*inputs)
                if stage == "capture":
                    graph = self.capture(key, lambda noise, *buffers: function(*buffers), inputs)
            except RuntimeError as error:  # an error of the function itself is raised by the call below
                self._uncaptured[key] = str(error)
        if graph is None:  # outside the handler, in which the error would keep its tensors alive
            return function(*inputs)
        graph.replay(inputs)
        return copies(graph.outputs)

    def graph(self, key: Hashable) -> Graph | None:
        """The graph of a key, if it is captured."""
        return self._graphs.get(key)

    def stage(self, key: Hashable) -> Stage:
        """How the next call of a key runs; the key None stands for a call that cannot be captured. Counts the call."""
        if key in self._graphs:
            return "replay"
        if key is None or key in self._uncaptured or len(self._graphs) >= self._limit:
            return "eager"
        if key in self._warm:
            return "capture"
        self._calls[key] += 1
        return "eager" if self._calls[key] <= self._eager else "warm-up"

    @contextmanager
    def warm_up(self, key: Hashable) -> Iterator[None]:
        """A context for a key's last call before its capture: it allocates the buffers for values from the host."""
        assert self._recorder is not None
        host_inputs = GraphInputs()
        with self._recorder.on_stream(), host_inputs.active(capturing=False):
            yield
        self._warm[key] = host_inputs

    def capture(self, key: Hashable, work: Callable[..., Any], inputs: Sequence[Tensor], passes: int = 0) -> Graph:
        """Captures `work(noise, *inputs)` of a key that is warmed up; nothing runs before the first replay."""
        assert self._recorder is not None
        graph = self._graphs[key] = Graph(self._recorder, work, inputs, self._warm.pop(key), passes)
        return graph

    def on_stream(self, device: torch.device) -> AbstractContextManager[None]:
        """A context for building an autograd graph that a captured function goes backward through."""
        recorder = self._recorder_on(device)
        return nullcontext() if recorder is None else recorder.on_stream()

    def _recorder_on(self, device: torch.device) -> Recorder | None:
        if self._recorder is None and device.type == "cuda":
            self._recorder = CudaRecorder(device)
        return self._recorder


def layout_key(t: Tensor) -> Hashable:
    """What the buffer of an input fixes: shape, strides and dtype."""
    return t.shape, t.stride(), t.dtype
