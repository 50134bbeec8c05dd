"""What the GPU benchmarks share: times from an idle device to an idle device, paired ratios, roofs, tables and bars."""

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
LEAST = 3  # rounds, however long they take


@dataclass(frozen=True)
class Asked:
    """What a theme is asked for; with `quick` everything is tiny, and says only that it runs."""

    rounds: int | None = None  # at most; None: as many as the theme thinks
    quick: bool = False
    compiled: bool = False
    full: bool = False
    data: Path | None = None  # where CIFAR-10 lies, or some of its files
    out: Path | None = None  # where pages go
    device: str = "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def gpu(self) -> bool:
        return self.device == "cuda"

    @property
    def name(self) -> str:
        return torch.cuda.get_device_name() if self.gpu else "CPU"

    @property
    def short(self) -> str:
        """The device's name in names of files: "NVIDIA H200" is h200."""
        return re.sub(r"\W+", "-", self.name.lower().removeprefix("nvidia ")).strip("-")

    def wait(self) -> None:
        if self.gpu:
            torch.cuda.synchronize()

    def ms(self, work: Work, times: int = 1) -> float:
        """Milliseconds a call."""
        return timed(work, times, self.gpu)

    def peak(self, work: Work) -> float:
        """MiB that a call holds at its peak beyond what is there already; not known on a CPU."""
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
        """Lets go of device memory that nobody holds any more."""
        if self.gpu:
            gc.collect()
            torch.cuda.empty_cache()

    def within(self, rounds: int, seconds: float, left: float = math.inf) -> Iterator[int]:
        """Rounds: those asked for instead of `rounds`, but no more than fit into the seconds, and at least three.

        Where three take longer than all the time that is `left`, as many as fit into it, and at least one.
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
    asked: Asked,
    works: Mapping[str, Work],
    rounds: int,
    seconds: float,
    times: int = 1,
    warm: int = 2,
    left: float = math.inf,
) -> dict[str, list[float]]:
    """Milliseconds a call of everybody, round by round in random order, after calls that warm up."""
    for work in () if asked.quick else works.values():
        for _ in range(warm):
            work()
    found: dict[str, list[float]] = {name: [] for name in works}
    for _ in asked.within(rounds, seconds, left):
        for name in random.sample(sorted(works), len(works)):
            found[name].append(asked.ms(works[name], times))
    return found


@dataclass
class Paired:
    """Times of a step, of the ideal around it, and the ratios of the two."""

    own: list[float] = field(default_factory=list)
    ideal: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.own, self.ideal, strict=True)]


def between(pairs: Sequence[tuple[Paired, Work]], ideal: Work, clock: Callable[[Work], float]) -> None:
    """Times steps one after the other, each between two neighbours of their ideal, with whose mean it is compared."""
    before = clock(ideal)
    for pair, own in pairs:
        took, after = clock(own), clock(ideal)
        pair.own.append(took)
        pair.ideal.append((before + after) / 2)
        before = after


def ratios(over: Sequence[float], under: Sequence[float]) -> list[float]:
    """Ratios of times in the same round; where one ran in fewer rounds, as the steadier one does, of its median."""
    if len(over) > len(under):
        under = [statistics.median(under)] * len(over)
    elif len(over) < len(under):
        over = [statistics.median(over)] * len(under)
    return [a / b for a, b in zip(over, under, strict=True)]


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """An interval that holds the median with that probability, whatever the distribution: two order statistics.

    From fewer than six values there is none at 95 %; then it is all of them.
    """
    ordered, n = sorted(values), len(values)
    below, k = 0.0, 0  # the chance that fewer than k + 1 values lie under the median
    while (below := below + math.comb(n, k) / 2**n) <= (1 - level) / 2:
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[n - k]


# -- a roof -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ceiling:
    """What the device reached in this run at what it does best."""

    tflops: float  # bf16 matrix product of 8192 x 8192
    gbs: float  # copying 2 GiB, read and written

    @classmethod
    def measured(cls, asked: Asked) -> Ceiling:
        n, size, kind = (256, 1 << 20, torch.float32) if asked.quick else (8192, 1 << 30, torch.bfloat16)
        a = torch.randn(n, n, device=asked.device).to(kind)
        held = torch.empty(size, dtype=torch.uint8, device=asked.device)
        other = torch.empty_like(held)
        works = {"product": lambda: a @ a, "copy": lambda: other.copy_(held)}
        found = interleaved(asked, works, 5, 5.0, times=1 if asked.quick else 10)
        product, copied = (statistics.median(found[name]) for name in works)
        return cls(2 * n**3 / product / 1e9, 2 * size / copied / 1e6)


@dataclass(frozen=True)
class Load:
    """Counted work: floating-point operations of products and convolutions, and bytes that must move at least."""

    flops: float
    bytes: float

    def floors(self, ceiling: Ceiling) -> tuple[float, float]:
        """Milliseconds that operations and bytes take at the ceilings."""
        return self.flops / ceiling.tflops / 1e9, self.bytes / ceiling.gbs / 1e6


# -- pages ------------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """The median with its quartiles."""
    low, middle, high = quartiles(list(values))
    return f"{middle:{form}} ({low:{form}} - {high:{form}})"


def surely(values: Sequence[float], form: str = ".3f") -> str:
    """The median with its quartiles and the interval that holds it."""
    low, high = interval(values)
    return f"{spread(values, form)}, 95 %: {low:{form}} - {high:{form}}"


class Page:
    """A theme's results, said as they come, and in the file from then on: nothing is lost when time is up."""

    def __init__(self, theme: str, about: str, asked: Asked):
        self.theme, self.asked, self.lines, self.bars, self.ended = theme, asked, [], [], False
        self._start = time.perf_counter()
        given = {"--quick": asked.quick, "--compile": asked.compiled, "--full": asked.full, "--data DIR": asked.data}
        command = " ".join(
            ["PYTHONPATH=src python benchmarks/gpu.py", theme, *(name for name, value in given.items() if value)]
        )
        self.say(
            f"# {theme.capitalize()} on a GPU",
            "",
            about.strip(),
            "",
            f"{datetime.date.today()}, {asked.name}, torch {torch.__version__}. Repeat with `{command}`.",
            "Medians with quartiles in parentheses; n is the number of rounds. Everything in a table ran interleaved.",
            "",
        )
        if asked.quick:
            self.say("A smoke run with tiny sizes: its times and its bars say nothing.", "")

    @property
    def file(self) -> Path | None:
        if self.asked.out is None:
            return None
        return self.asked.out / f"{self.theme}_{self.asked.short}_{datetime.date.today()}.md"

    def left(self, end: float) -> float:
        """Seconds until so many have gone since the page was begun."""
        return end - (time.perf_counter() - self._start)

    def say(self, *lines: str) -> None:
        self.lines += lines
        print("\n".join(lines), flush=True)
        self._write()

    def table(self, title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.say(*_table(title, heads, rows))

    def bar(self, what: str, wanted: str, found: str, met: bool) -> None:
        self.bars.append((what, wanted, found, "met" if met else "MISSED"))

    def end(self) -> None:
        self.ended = True
        self.say(*self._bars(), f"All of this took {time.perf_counter() - self._start:.0f} s.")

    def _bars(self) -> list[str]:
        return _table("Bars", ("what", "bar", "found", ""), self.bars) if self.bars else []

    def _write(self) -> None:
        if self.file is None:
            return
        rest = [] if self.ended else [*self._bars(), "The run did not come to its end: what would follow is missing."]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(self.file) as file:
            file.write(("\n".join([*self.lines, *rest]) + "\n").encode())


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    body = [f"| {' | '.join(map(str, row))} |" for row in rows]
    return [f"### {title}", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *body, ""]
