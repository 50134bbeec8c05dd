"""Several small training runs on one GPU: in processes that take turns, in processes under MPS, or in threads.

Kernels of a small network fill a part of the GPU. Runs in threads and under MPS run their kernels at the same time.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import torch
from feeding import cifar_like
from gpu_networks import stand_in_for_missing
from gpu_timing import Page, Settings

ABOUT = """
Runs of `steppe train` side by side: ResNet-18, batches of 128 rows of 50 000 random images, crop and flip, bf16,
captured steps, each with a feed, records and checkpoints of its own. "Processes" take turns on the GPU; with MPS (the
CUDA multi-process service) and in threads of one process, each with a stream, their kernels run at the same time.
Images per second are the sum over the runs. Every run is at most 16 steps ahead of the GPU.
"""
FORMATS = """
One run of `steppe train`, SAM on ResNet-18, batches of 128 rows of 50 000 random images, bf16, captured steps: memory
formats of the weights, and a compiled model. A model breaks even with the one above it after so many epochs of 50 000
rows that its faster steps have paid for the longer start. Every model runs in a process of its own.
"""
WIDTHS, METHODS, COUNTS = (16, 64), ("sam", "none"), (1, 2, 4, 8)
ROWS, BATCH, WARM = 50_000, 128, 40  # WARM: steps before a measurement
SECONDS, REPEATS = 1.2, 1  # per measurement
AHEAD = 16  # steps that the host may be ahead of the device
LAST = "gpu_networks:channels_last_resnet18"
COMPILED = "gpu_networks:compiled_resnet18"
BARS = {16: 2.0, 64: 1.3}  # throughput of several runs over one
TURNS, MPS, THREADS = "processes", "processes, MPS", "threads of one process"


class Kind(NamedTuple):
    """What a run trains."""

    model: str
    width: int
    method: str


class Done(Exception):
    """The time of a measurement is over."""


@dataclass
class Clock:
    """Observer of a run: ends it after some steps or seconds."""

    settings: Settings
    steps: int | None = None
    seconds: float = 0.0
    done: int = 0
    start: float = field(default_factory=time.perf_counter)
    _events: deque[Any] = field(default_factory=deque)

    def stepped(self, position: object, sums: object) -> None:
        self.done += 1
        if self.settings.gpu:
            self._events.append(torch.cuda.Event())
            self._events[-1].record()
            if len(self._events) > AHEAD:
                self._events.popleft().synchronize()
        if self.done == self.steps or (self.steps is None and time.perf_counter() - self.start > self.seconds):
            for event in self._events:
                event.synchronize()
            self.seconds = time.perf_counter() - self.start
            raise Done

    def recorded(self, record: Mapping[str, Any]) -> None:
        pass


class Run:
    """A training run, which is continued for some time whenever it is measured."""

    def __init__(self, settings: Settings, kind: Kind, folder: Path, stream: Any):
        from steppe.core.process_group import Workers
        from steppe.data.dataset import Splits
        from steppe.training import Config
        from steppe.training.loop import Training

        start = time.perf_counter()
        self.settings, self.stream = settings, stream
        size, rows = (8, 64) if settings.quick else (BATCH, ROWS)
        with self._on_stream():
            data = cifar_like(rows, settings.device)
            splits = Splits(data, data.rows(slice(size)))
            config = Config(
                model=kind.model, model_options={"width": kind.width}, method=kind.method, batch_size=size, lr=0.01,
                precision="bf16", augment=["crop", "flip"], epochs=10_000, evaluate_every=10_000, seed=0,
                checkpoint_every=3600.0, device=settings.device, capture=True, out=str(folder),
            )  # fmt: skip
            self._training = Training(config, folder, splits, Workers(), torch.device(settings.device))
            self._training.capture()
        self.measure(steps=1 if settings.quick else WARM)
        self.built = time.perf_counter() - start
        digest = sha256()
        for t in self._training.state.tensors().values():
            digest.update(t.detach().cpu().contiguous().numpy().tobytes())
        self.digest = digest.hexdigest()

    def measure(self, steps: int | None = None, seconds: float = 0.0) -> tuple[int, float]:
        """Steps, and the seconds that they took."""
        from steppe.training.stopping import StopRequest

        with self._on_stream():
            clock = Clock(self.settings, steps, seconds)
            try:
                self._training.run(StopRequest(), clock)
            except Done:
                return clock.done, clock.seconds
        raise RuntimeError("the run ended before the measurement did")

    def _on_stream(self) -> Any:
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()


def serve(connection: Any, settings: Settings, kinds: Sequence[Kind], members: int) -> None:
    """The main function of a worker process, with `members` runs of each kind: answers with their steps and seconds."""
    stand_in_for_missing()
    torch.set_num_threads(1)
    streams = [torch.cuda.Stream() for _ in range(members)] if settings.gpu and members > 1 else [None] * members
    with tempfile.TemporaryDirectory() as folder:
        runs: dict[Kind, list[Run]] = {}
        for kind in kinds:
            places = [Path(tempfile.mkdtemp(dir=folder)) for _ in streams]
            runs[kind] = [Run(settings, kind, place, stream) for place, stream in zip(places, streams, strict=True)]
            connection.send((kind, [(run.digest, run.built) for run in runs[kind]]))
        with ThreadPoolExecutor(members) as pool:
            while (message := connection.recv()) is not None:
                kind, active, seconds = message
                some = runs[kind][:active]
                if active == 1:
                    connection.send([some[0].measure(seconds=seconds)])
                else:
                    connection.send(list(pool.map(Run.measure, some, repeat(None), repeat(seconds))))


class Group:
    """Worker processes that measure together."""

    def __init__(self, settings: Settings, kinds: Sequence[Kind], workers: int, members: int):
        context = get_context("spawn")
        self._members, self._workers = members, []
        for _ in range(workers):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(theirs, settings, kinds, members), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        self.built: dict[Kind, list[tuple[str, float]]] = {kind: [] for kind in kinds}
        for _, ours in self._workers:
            for _ in kinds:
                kind, built = ours.recv()
                self.built[kind] += built

    def images(self, settings: Settings, kind: Kind, count: int, seconds: float) -> float:
        """Images per second of `count` runs at a time."""
        workers = self._workers if self._members == 1 else self._workers[:1]
        active = workers[:count] if self._members == 1 else workers
        for _, ours in active:
            ours.send((kind, 1 if self._members == 1 else count, seconds))
        results = [result for _, ours in active for result in ours.recv()]
        size = 8 if settings.quick else BATCH
        return sum(size * steps / took for steps, took in results)

    def close(self) -> None:
        for _, ours in self._workers:
            ours.send(None)
        for process, _ in self._workers:
            process.join(30)
            if process.is_alive():
                process.terminate()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


ONCE = "Each number is one measurement."


def sharing(settings: Settings) -> Page:
    """Writes the page of the theme."""
    from steppe.studies.engines.local import mps

    page = Page("sharing", ABOUT, settings, ONCE)
    note = stand_in_for_missing()
    if note:
        page.say(note, "")
    widths, methods, counts = ((2,), ("sam",), (1, 2)) if settings.quick else (WIDTHS, METHODS, COUNTS)
    kinds = [Kind(LAST, width, method) for width in widths for method in methods]
    digests: dict[tuple[str, Kind], list[str]] = {}
    speeds: dict[tuple[str, Kind, int], list[float]] = {}
    for way in (TURNS, MPS, THREADS) if settings.gpu else (TURNS, THREADS):
        workers, members = (1, max(counts)) if way == THREADS else (max(counts), 1)
        with ExitStack() as stack:
            if way == MPS:
                service = stack.enter_context(mps())
                if not service:
                    page.say("The multi-process service could not be started.", "")
                    continue
                stack.enter_context(environment(service))
            start = time.perf_counter()
            try:
                group = Group(settings, kinds, workers, members)
            except (EOFError, OSError) as error:
                page.say(f"{way}: a worker ended: {error!r}", "")
                continue
            stack.callback(group.close)
            print(f"{way}: ready after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
            for kind in kinds:
                digests[way, kind] = [digest for digest, _ in group.built[kind]]
                for count in counts:
                    for _ in range(REPEATS):
                        images = group.images(settings, kind, count, 0.0 if settings.quick else SECONDS)
                        speeds.setdefault((way, kind, count), []).append(images)
                        print(f"{way}, {kind}, {count}: {images:,.0f} images / s", file=sys.stderr, flush=True)
    for kind in kinds:
        _throughput(page, kind, speeds, counts)
    _equal(page, digests)
    return page


def _throughput(
    page: Page, kind: Kind, speeds: dict[tuple[str, Kind, int], list[float]], counts: Sequence[int]
) -> None:
    alone = statistics.median(speeds[TURNS, kind, 1])
    rows = []
    for way in dict.fromkeys(way for way, k, _ in speeds if k == kind):
        middles = [statistics.median(speeds[way, kind, count]) for count in counts]
        rows.append((way, *(f"{m:,.0f} ({m / alone:.2f})" for m in middles)))
        if kind.method == "sam" and kind.width in BARS and way != TURNS:
            best = max(middles) / alone
            what = f"{way}: images / s of several SAM runs of width {kind.width} / one"
            page.bar(what, f"at least {BARS[kind.width]}", f"{best:.2f}", best >= BARS[kind.width])
    heads = ("runs", *(f"{count} at a time" for count in counts))
    page.table(f"Images / s (relative to one run alone), width {kind.width}, method {kind.method}", heads, rows)


def _equal(page: Page, digests: dict[tuple[str, Kind], list[str]]) -> None:
    rows = []
    for kind, group in groupby(sorted(digests, key=lambda key: (key[1], key[0])), key=lambda key: key[1]):
        for way, _ in group:
            reference = digests[TURNS, kind][0]
            equal = sum(digest == reference for digest in digests[way, kind])
            rows.append((kind.width, kind.method, way, f"{equal} of {len(digests[way, kind])}"))
    page.table(
        f"Weights after {WARM} steps that are bitwise those of the first process", ("width", "method", "runs", ""), rows
    )


def formats(settings: Settings) -> Page:
    """Writes the page about memory formats and compiled models."""
    page = Page("formats", FORMATS, settings, ONCE)
    stand_in_for_missing()
    models = {"contiguous": "resnet18", "channels last": LAST, "channels last, compiled": COMPILED}
    if settings.quick:
        del models["channels last, compiled"]  # minutes on a CPU
    for width in (2,) if settings.quick else WIDTHS:
        rows: list[tuple[object, ...]] = []
        before: tuple[float, float] | None = None  # the row above: seconds to build, seconds per epoch
        for name, model in models.items():
            kind = Kind(model, width, "sam")
            group = Group(settings, [kind], 1, 1)
            built = group.built[kind][0][1]
            seconds = 0.0 if settings.quick else SECONDS
            speed = statistics.median(group.images(settings, kind, 1, seconds) for _ in range(3))
            group.close()
            epoch = ROWS / speed
            even = "" if before is None else _break_even(built - before[0], before[1] - epoch)
            rows.append((name, f"{speed:,.0f}", f"{epoch:.2f}", f"{built:.1f}", even))
            before = built, epoch
        heads = ("model", "images / s", "s per epoch", f"s to build, with {WARM} steps", "epochs to break even")
        page.table(f"Width {width}, SAM", heads, rows)
    return page


def _break_even(cost: float, gain: float) -> str:
    """Epochs after which a gain of so many seconds per epoch has paid for a longer start."""
    return "never" if gain <= 0 else f"{max(0.0, cost) / gain:.1f}"
