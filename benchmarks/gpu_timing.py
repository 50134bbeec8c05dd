"""Shared code of the GPU benchmarks: settings, synchronised timing, paired ratios, rooflines, and result pages."""

from __future__ import annotations

import datetime
import gc
import math
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from feeding import timed
from measures import quartiles

from steppe._util.files import atomic_write

Work = Callable[[], object]
LEAST = 3  # the minimum number of rounds


@dataclass(frozen=True)
class Settings:
    """Command-line settings of the benchmarks."""

    rounds: int | None = None  # the maximum; None for the default of each theme
    quick: bool = False  # tiny sizes: a smoke test
    compiled: bool = False
    full: bool = False
    data: Path | None = None  # the folder of CIFAR-10, or of some of its files
    out: Path | None = None  # the folder for result pages
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.gpu else "CPU"

    @property
    def short(self) -> str:
        """The device's name for file names: "NVIDIA H200" becomes h200."""
        return re.sub(r"\W+", "-", self.name.lower().removeprefix("nvidia ")).strip("-")

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def ms(self, work: Work, times: int = 1) -> float:
        """Milliseconds per call."""
        return timed(work, times, self.gpu)

    def peak(self, work: Work) -> float:
        """Peak memory of a call in MiB, beyond what was allocated before; NaN on a CPU."""
        self.free()
        if not self.gpu:
            work()
            return math.nan
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        self.wait()
        return (torch.cuda.max_memory_allocated() - before) / 2**20

    def free(self) -> None:
        """Returns unused device memory."""
        if self.gpu:
            gc.collect()
            torch.cuda.empty_cache()

    def within(self, rounds: int, seconds: float, left: float = math.inf) -> Iterator[int]:
        """Yields round numbers: up to `self.rounds` or `rounds`, as many as fit into the seconds, and at least three.

        If three do not fit into the time that is `left`, as many as fit, and at least one.
        """
        start = before = time.perf_counter()
        longest = 0.0
        for i in range(1 if self.quick else self.rounds or rounds):
            now = time.perf_counter()
            longest, before = max(longest, now - before), now
            if (i >= LEAST and now - start > seconds) or (i and now - start + longest > left):
                return
            yield i


# -- times and ratios -------------------------------------------------------------------------------------------------


def interleaved(
    settings: Settings,
    works: Mapping[str, Work],
    rounds: int,
    seconds: float,
    times: int = 1,
    warm: int = 2,
    left: float = math.inf,
) -> dict[str, list[float]]:
    """Milliseconds per call of each function, in rounds of random order, after warm-up calls."""
    for work in () if settings.quick else works.values():
        for _ in range(warm):
            work()
    samples: dict[str, list[float]] = {name: [] for name in works}
    for _ in settings.within(rounds, seconds, left):
        for name in random.sample(sorted(works), len(works)):
            samples[name].append(settings.ms(works[name], times))
    return samples


@dataclass
class Paired:
    """Times of a step, times of its ideal just before and after it, and their ratios."""

    own: list[float] = field(default_factory=list)
    ideal: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.own, self.ideal, strict=True)]


def between(pairs: Sequence[tuple[Paired, Work]], ideal: Work, clock: Callable[[Work], float]) -> None:
    """Times each step between two runs of its ideal, and pairs it with their mean."""
    before = clock(ideal)
    for pair, own in pairs:
        took, after = clock(own), clock(ideal)
        pair.own.append(took)
        pair.ideal.append((before + after) / 2)
        before = after


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Ratios of times in the same round; a series with fewer rounds is replaced by its median."""
    if len(over) > len(under):
        under = [statistics.median(under)] * len(over)
    elif len(over) < len(under):
        over = [statistics.median(over)] * len(under)
    return [a / b for a, b in zip(over, under, strict=True)]


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """A distribution-free confidence interval of the median: two order statistics.

    Fewer than six values have none at 95 %; then it is their range.
    """
    ordered, n = sorted(values), len(values)
    below, k = 0.0, 0  # the probability that fewer than k + 1 values are below the median
    while (below := below + math.comb(n, k) / 2**n) <= (1 - level) / 2:
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


# -- roofline ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ceiling:
    """Peak rates of the device, measured in this run."""

    tflops: float  # bf16 matrix product of 8192 x 8192
    gbs: float  # copy of 1 GiB, read and written

    @classmethod
    def measured(cls, settings: Settings) -> Ceiling:
        n, size, kind = (256, 1 << 20, torch.float32) if settings.quick else (8192, 1 << 30, torch.bfloat16)
        a = torch.randn(n, n, device=settings.device).to(kind)
        source = torch.empty(size, dtype=torch.uint8, device=settings.device)
        target = torch.empty_like(source)
        works = {"product": lambda: a @ a, "copy": lambda: target.copy_(source)}
        samples = interleaved(settings, works, 5, 5.0, times=1 if settings.quick else 10)
        product, copy = (statistics.median(samples[name]) for name in works)
        return cls(2 * n**3 / product / 1e9, 2 * size / copy / 1e6)


@dataclass(frozen=True)
class Load:
    """Floating-point operations of matrix products and convolutions, and a lower bound of the bytes moved."""

    flops: float
    bytes: float

    def floors(self, ceiling: Ceiling) -> tuple[float, float]:
        """Milliseconds for the operations and for the bytes at the ceilings."""
        return self.flops / ceiling.tflops / 1e9, self.bytes / ceiling.gbs / 1e6


# -- pages ------------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median with its quartiles."""
    low, middle, high = quartiles(list(values))
    return f"{middle:{form}} ({low:{form}} - {high:{form}})"


def spread_and_interval(values: Sequence[float], form: str = ".3f") -> str:
    """The median with its quartiles and its 95 % confidence interval."""
    low, high = interval(values)
    return f"{spread(values, form)}, 95 %: {low:{form}} - {high:{form}}"


ROUNDS = "Medians with quartiles in parentheses; n is the number of rounds. Everything in a table ran interleaved."


class Page:
    """The result page of a theme, printed and written line by line, so that an interrupted run loses nothing."""

    def __init__(self, theme: str, about: str, settings: Settings, how: str = ROUNDS):
        self.theme, self.settings, self.lines, self.bars, self.ended = theme, settings, [], [], False
        self._start = time.perf_counter()
        flags = {
            "--quick": settings.quick,
            "--compile": settings.compiled,
            "--full": settings.full,
            "--data DIR": settings.data,
            f"--rounds {settings.rounds}": settings.rounds,
        }
        command = " ".join(
            ["PYTHONPATH=src python benchmarks/gpu.py", theme, *(name for name, value in flags.items() if value)]
        )
        self.say(
            f"# {theme.capitalize()} on a GPU",
            "",
            about.strip(),
            "",
            f"{datetime.date.today()}, {settings.name}, torch {torch.__version__}. Repeat with `{command}`.",
            how,
            "",
        )
        if settings.quick:
            self.say("A smoke test with tiny sizes: its times and bars have no meaning.", "")

    @property
    def file(self) -> Path | None:
        if self.settings.out is None:
            return None
        return self.settings.out / f"{self.theme}_{self.settings.short}_{datetime.date.today()}.md"

    def left(self, end: float) -> float:
        """Seconds left until `end` seconds after the page was started."""
        return end - (time.perf_counter() - self._start)

    def say(self, *lines: str) -> None:
        self.lines += lines
        print("\n".join(lines), flush=True)
        self._write()

    def table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.say(*_table(title, heads, rows))

    def bar(self, what: str, target: str, value: str, met: bool) -> None:
        self.bars.append((what, target, value, "met" if met else "MISSED"))

    def end(self) -> None:
        self.ended = True
        self.say(*self._bars(), f"Total time: {time.perf_counter() - self._start:.0f} s.")

    def _bars(self) -> list[str]:
        return _table("Bars", ("what", "bar", "measured", ""), self.bars) if self.bars else []

    def _write(self) -> None:
        if self.file is None:
            return
        rest = [] if self.ended else [*self._bars(), "The run was interrupted: the rest is missing."]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.file) as file:
            file.write(("\n".join([*self.lines, *rest]) + "\n").encode())


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    body = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [f"### {title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *body, ""]
