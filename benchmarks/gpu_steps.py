"""A captured SAM step takes less time than an eager SGD step; an eager one costs its two passes."""

from __future__ import annotations

import math
import random
import statistics
import time
from collections.abc import Callable, Collection
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

import torch
from gpu_networks import fresh, images, loss_fn
from gpu_peers import Bare, Loop
from gpu_timing import LEAST, Ceiling, Load, Page, Paired, Settings, Work, between, ratios, spread, spread_and_interval
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import steppe
from steppe import capture

ABOUT = """
A SAM step on CIFAR's ResNet-18, bf16 autocast, channels last, base SGD with momentum and weight decay. Each eager step
is timed between two runs of its ideal, which is two passes and one base step and nothing else, in random order, and
compared with the mean of the two, because the host's time varies by 15 %. Captured steps hardly vary and run in few
rounds: ratios to them are to their median, other ratios are of times in the same round. Memory is the peak beyond what
was allocated before a variant was built, its CUDA graph included. Building a variant includes its first steps, in which
kernels are chosen, compiled and captured.
"""
SHAPES = ((64, 128), (64, 512), (16, 128))  # width, batch
# Steps that are timed together, queued as in training: with large batches the device lags behind the host, and the
# queue that remains at the end must be a small part of the time. The host's time varies less within a few steps.
TIMES, TIMES_EAGER = 4, {128: 2}
ROUNDS, SECONDS = 400, 60.0  # per shape; so many give a confidence interval of 1 % to either side
CAPTURED_EVERY, OTHERS_EVERY = 35, 5  # rounds between two runs; steppe's eager step runs in every round
END = 240.0  # seconds
METHODS = {"none": {}, "sam": {}, "asam": {"rho": 0.5}, "frob-sam": {"n": 2}, "agnostic-sam": {}, "gsam": {}}
COMPILED = ("none", "sam")
COMPILED_AT = ((64, 512),)  # the shapes that the device limits, not the host
LOOP, SGD, TWO = "SAM, per-parameter loop (reimplemented)", "SGD, eager", "two passes and one step, eager"
BARE = "SAM, bare foreach calls"
EAGER = "steppe sam, eager"
UNCHECKED = f"{EAGER}, no non-finite check"
FASTER = {(64, 128): 2.2, (64, 512): 1.8, (16, 128): 5.0}  # captured SAM over the per-parameter loop
OVERHEAD = 1.08  # of eager SAM over its ideal: what plain foreach calls reach
ALLOWED = 1.05  # of captured steps over their passes


class RecordedLoss:
    """The loss, which records the number of rows of every pass that runs in Python."""

    def __init__(self):
        self.sizes: list[int] = []

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return loss_fn(model, x, y)


@dataclass(frozen=True)
class Variant:
    """A way to run a step, and the cost of its first step."""

    step: Work
    sizes: tuple[int, ...]  # rows of its passes
    flops: float
    memory: float  # MiB
    seconds: float  # to build it
    why: str | None = None  # the reason why it is not captured


def build_variant(
    settings: Settings, make: Callable[[RecordedLoss], tuple[Work, Callable[[], str | None]]], count: bool = True
) -> Variant:
    """Builds a variant and runs its first steps."""
    loss, results = RecordedLoss(), []

    def begin() -> None:
        step, why = make(loss)
        counter = FlopCounterMode(display=False)
        with counter if count else nullcontext():
            step()
        results.append((step, why, tuple(loss.sizes), counter.get_total_flops()))
        for _ in range(1 if settings.quick else 5):
            step()

    start = time.perf_counter()
    peak = settings.peak(begin)
    step, why, sizes, flops = results[0]
    return Variant(step, sizes, flops, peak, time.perf_counter() - start, why())


def build_variants(page: Page, settings: Settings, width: int, batch: int) -> dict[str, Variant]:
    x, y = images(settings, batch)

    def plain(passes: int, kernels: str | None = None):
        def make(loss: RecordedLoss):
            model, base = fresh(settings, width, kernels)

            def step() -> None:
                for _ in range(passes):
                    base.zero_grad()
                    loss(model, x, y).backward()
                base.step()

            return step, _eager

        return make

    def peer(kind: type[Loop] | type[Bare]):
        def make(loss: RecordedLoss):
            model, base = fresh(settings, width)
            sam = kind(model.parameters(), base)
            return (lambda: sam.step(lambda: loss(model, x, y))), _eager

        return make

    def eager(kernels: str | None = None, **engine: object):
        def make(loss: RecordedLoss):
            model, base = fresh(settings, width, kernels)
            opt = steppe.build("sam", base, model=model, **engine)

            def closure() -> Tensor:
                base.zero_grad()
                value = loss(model, x, y)
                value.backward()
                return value.detach()

            return (lambda: opt.step(closure)), _eager

        return make

    def captured(name: str, rows: int = batch, compiled: bool = False, **options: object):
        def make(loss: RecordedLoss):
            model, base = fresh(settings, width)
            opt = steppe.build(name, base, model=model, **options)
            take = capture(opt, loss, model, (x[:rows], y[:rows]), compile=compiled)
            return (lambda: take(x[:rows], y[:rows])), lambda: take.why

        return make

    ways = {
        SGD: plain(1),
        TWO: plain(2),
        f"{TWO}, fused base": plain(2, "fused"),
        LOOP: peer(Loop),
        BARE: peer(Bare),
        EAGER: eager(),
        f"{EAGER}, fused base": eager("fused"),
        f"{EAGER}, foreach base": eager("foreach"),
        UNCHECKED: eager(on_nonfinite=None),
        f"{EAGER}, foreach base, no non-finite check": eager("foreach", on_nonfinite=None),
        **{f"steppe {name}, captured": captured(name, **options) for name, options in METHODS.items()},
    }
    variants = {name: build_variant(settings, make) for name, make in ways.items()}
    for rows in sorted(set(variants["steppe agnostic-sam, captured"].sizes)):
        variants[single_pass(rows)] = build_variant(settings, captured("none", rows))
    for name in COMPILED if settings.compiled and (settings.quick or (width, batch) in COMPILED_AT) else ():
        try:  # the counter of operations would prevent the first call from being compiled
            variants[compiled_name(name)] = build_variant(settings, captured(name, compiled=True), count=False)
        except Exception as error:  # not every machine has a compiler
            message = " ".join(f"{type(error).__name__}: {error}".split())
            page.say(f"Width {width}, batch {batch}: {name} could not be compiled: {message[:200]}", "")
    return variants


def _eager() -> None:
    return None


def compiled_name(method: str) -> str:
    return f"steppe {method}, compiled and captured"


def single_pass(rows: int) -> str:
    return f"steppe none, captured, {rows} rows"


def ideal_of(name: str) -> str | None:
    """The ideal that an eager step is compared with."""
    if name not in (LOOP, BARE) and not name.startswith(EAGER):
        return None
    return f"{TWO}, fused base" if name.endswith("fused base") else TWO


def measured(
    settings: Settings, variants: dict[str, Variant], batch: int, left: float
) -> tuple[dict[str, list[float]], dict[str, Paired]]:
    """Milliseconds per step of every variant, and the ratios of eager steps to their ideals."""
    paired = {name: Paired() for name in variants if ideal_of(name)}
    times: dict[str, list[float]] = {name: [] for name in variants if not name.startswith(TWO) and name not in paired}
    repeats, eager_repeats = (1, 1) if settings.quick else (TIMES, TIMES_EAGER.get(batch, TIMES))
    fused = f"{TWO}, fused base"

    def time_between(ideal: str, names: Collection[str]) -> None:
        pairs = [(pair, variants[name].step) for name, pair in paired.items() if name in names]
        between(random.sample(pairs, len(pairs)), variants[ideal].step, lambda work: settings.ms(work, eager_repeats))

    def time_one(name: str) -> None:
        times[name].append(settings.ms(variants[name].step, repeats))

    for i in settings.within(ROUNDS, SECONDS, left):
        all_eager = i < LEAST or i % OTHERS_EVERY == 0
        works = [partial(time_between, TWO, [n for n in paired if ideal_of(n) == TWO] if all_eager else [EAGER])]
        if all_eager:
            works += [partial(time_between, fused, [n for n in paired if ideal_of(n) == fused]), partial(time_one, SGD)]
        if i < LEAST or i % CAPTURED_EVERY == 0:
            works += [partial(time_one, name) for name in times if name != SGD]
        for work in random.sample(works, len(works)):
            work()
    times |= {name: pair.own for name, pair in paired.items()}
    return times | {TWO: paired[EAGER].ideal, fused: paired[f"{EAGER}, fused base"].ideal}, paired


def saved_bytes(settings: Settings, width: int, batch: int) -> tuple[int, int]:
    """Bytes of all parameters, and of all other tensors that a forward pass saves."""
    model, _ = fresh(settings, width)
    x, y = images(settings, batch)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, Tensor] = {}

    def record(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in weights:
            saved[t.untyped_storage().data_ptr()] = t  # kept alive, so that no other tensor gets its address
        return t

    with saved_tensors_hooks(record, lambda t: t):
        loss = loss_fn(model, x, y)
    del loss
    return sum(4 * p.numel() for p in model.parameters()), sum(t.untyped_storage().nbytes() for t in saved.values())


def least_bytes(weights: float, saved: float, passes: float, shares: float) -> float:
    """A lower bound of the bytes that a step moves.

    A pass reads the weights in its forward and in its backward half and writes the gradient; saved tensors are written
    once and read once. The base step reads weights, gradient and momentum, and writes weights and momentum.
    """
    return passes * 3 * weights + shares * 2 * saved + 5 * weights


def steps(settings: Settings) -> Page:
    """Writes the page of the theme."""
    torch.backends.cudnn.benchmark = not settings.quick
    page = Page("steps", ABOUT, settings)
    ceiling = Ceiling.measured(settings)
    points = []
    for width, batch in ((2, 10),) if settings.quick else SHAPES:
        variants = build_variants(page, settings, width, batch)
        times, paired = measured(settings, variants, batch, math.inf if settings.compiled else page.left(END))
        _times(page, width, batch, variants, times)
        _overhead(page, width, batch, paired)
        _passes(page, width, batch, variants, times)
        _bars(page, width, batch, times, paired)
        points += _roof(settings, ceiling, width, batch, variants, times)
        del variants
        if settings.compiled:
            torch.compiler.reset()  # guards of one shape would slow down the next
        settings.free()
    _roofline(page, ceiling, points)
    return page


def _times(page: Page, width: int, batch: int, variants: dict[str, Variant], times: dict[str, list[float]]) -> None:
    rows = []
    for name, variant in variants.items():
        own = times[name]
        faster, more = ratios(times[LOOP], own), ratios(own, times["steppe none, captured"])
        label = name + (f" (eager: {variant.why})" if variant.why else "")
        cost = f"{variant.memory:.0f}", f"{variant.seconds:.1f}"
        rows.append((label, spread(own), len(own), spread(faster), spread(more, ".3f"), *cost))
    heads = ("step", "ms", "n", "per-parameter loop / this", "this / captured none", "peak MiB", "s to build")
    page.table(f"Width {width}, batch {batch}", heads, rows)


def _overhead(page: Page, width: int, batch: int, paired: dict[str, Paired]) -> None:
    rows = [(name, spread_and_interval(pair.ratios), len(pair.own)) for name, pair in paired.items()]
    page.table(f"Width {width}, batch {batch}: eager steps / their ideal, two passes", ("step", "ratio", "n"), rows)
    page.say(
        "By default the base uses torch's foreach kernels, as in the ideal. A fused base is compared with one that",
        "has a fused base too.",
        "",
    )


def _passes(page: Page, width: int, batch: int, variants: dict[str, Variant], times: dict[str, list[float]]) -> None:
    """Captured steps over the time of their passes, counted in three ways."""
    single = times["steppe none, captured"]
    rows = []
    for method in METHODS:
        name = f"steppe {method}, captured"
        sizes, own = variants[name].sizes, times[name]
        whole = ratios(own, [t * len(sizes) for t in single])
        share = ratios(own, [t * sum(sizes) / batch for t in single])
        parts = [single if size == batch else times[single_pass(size)] for size in sizes]
        each = ratios(own, [sum(ts) for ts in zip(*parts, strict=True)])
        counts = (spread(values, ".3f") for values in (whole, share, each))
        rows.append((method, len(sizes), " + ".join(map(str, sizes)), *counts))
        if method in ("asam", "frob-sam", "agnostic-sam"):
            bars = {f"{len(sizes)} captured passes on the whole batch": whole}
            if set(sizes) != {batch}:
                bars["its passes, each captured at its own size"] = each
            for count, values in bars.items():
                middle = statistics.median(values)
                what = f"captured {method} / {count}, width {width}, batch {batch}"
                page.bar(what, f"at most {ALLOWED}", f"{middle:.3f}", middle <= ALLOWED)
    heads = (
        "method",
        "passes",
        "rows of each",
        "time / passes x captured none",
        "... by their share of rows",
        "... each captured at its size",
    )
    page.table(f"Width {width}, batch {batch}: captured steps and their passes", heads, rows)
    page.say(
        "A single pass is the captured step of the method none: one pass and one base update. In the first ratio every",
        "pass counts as one on the whole batch. By their share of rows: a pass on part of the batch counts as that",
        "part, as if time were proportional to rows. Each at its size: a pass on part of the batch counts as the",
        "captured step of none on that number of rows.",
        "",
    )


def _bars(page: Page, width: int, batch: int, times: dict[str, list[float]], paired: dict[str, Paired]) -> None:
    shape = f"width {width}, batch {batch}"
    ways = [name for name in ("steppe sam, captured", compiled_name("sam")) if name in times]
    way = min(ways, key=lambda name: statistics.median(times[name]))
    sam, called = times[way], way.removeprefix("steppe sam, ")
    if len(ways) > 1:
        page.say(f"The bars use the faster of captured and compiled and captured SAM: {called}.", "")
    if (width, batch) in FASTER:
        target, faster = FASTER[width, batch], statistics.median(ratios(times[LOOP], sam))
        what = f"per-parameter loop / SAM {called}, {shape}"
        page.bar(what, f"at least {target}", f"{faster:.2f}", faster >= target)
    if batch == 128:
        over = statistics.median(ratios(sam, times[SGD]))
        page.bar(f"SAM {called} / eager SGD, {shape}", "at most 1", f"{over:.3f}", over <= 1)
    for name in (EAGER, UNCHECKED):
        own = paired[name].ratios
        met = statistics.median(own) <= OVERHEAD
        page.bar(f"{name} / two passes, {shape}", f"at most {OVERHEAD}", spread_and_interval(own), met)


@dataclass(frozen=True)
class RooflinePoint:
    """A step and its lower bounds."""

    shape: str
    name: str
    ms: float
    load: Load
    floors: tuple[float, float]  # ms for operations, ms for bytes


def _roof(
    settings: Settings,
    ceiling: Ceiling,
    width: int,
    batch: int,
    variants: dict[str, Variant],
    times: dict[str, list[float]],
) -> list[RooflinePoint]:
    weights, saved = saved_bytes(settings, width, batch)
    points = []
    for name in (SGD, "steppe none, captured", LOOP, "steppe sam, captured", "steppe frob-sam, captured"):
        sizes = variants[name].sizes
        load = Load(variants[name].flops, least_bytes(weights, saved, len(sizes), sum(sizes) / batch))
        ms = statistics.median(times[name])
        points.append(RooflinePoint(f"{width}, {batch}", name, ms, load, load.floors(ceiling)))
    return points


def _roofline(page: Page, ceiling: Ceiling, points: list[RooflinePoint]) -> None:
    rows = [
        (
            r.shape,
            r.name,
            f"{r.load.flops / 1e9:.4g}",
            f"{r.load.bytes / 1e9:.3g}",
            f"{r.ms:.2f}",
            *(f"{floor:.2f} ({100 * floor / r.ms:.0f} %)" for floor in r.floors),
        )
        for r in points
    ]
    heads = ("width, batch", "step", "GFLOP", "GB at least", "ms", "ms for FLOPs alone", "ms for bytes alone")
    page.table(f"Roofline: {ceiling.tflops:.0f} TFLOP/s, {ceiling.gbs:.0f} GB/s measured in this run", heads, rows)
    page.say(
        "FLOPs are those of matrix products and convolutions, counted by torch during a step. Bytes are a lower bound:",
        "each pass reads the float32 weights twice and writes the gradient once, saved tensors are written and read",
        "once, and the base step moves five times the weights. Casts to bf16, gradients of activations and the",
        "method's own operations are not counted. In parentheses: the share of the measured time.",
        "",
        *(_gap(r, points) for r in points if r.name == "steppe sam, captured"),
        "",
    )


def _gap(point: RooflinePoint, points: list[RooflinePoint]) -> str:
    operations, bytes_ = point.floors
    loop = next(r.ms for r in points if r.shape == point.shape and r.name == LOOP)
    kind, floor = ("FLOPs", operations) if operations >= bytes_ else ("bytes", bytes_)
    return (
        f"- {point.shape}: the per-parameter loop takes {loop:.2f} ms; capturing saves {loop - point.ms:.2f} ms of "
        f"kernel launches. The remaining {point.ms:.2f} ms are {point.ms / floor:.1f} times the bound by {kind}. The "
        "gap has two parts: bytes that are not counted (norms, ReLUs and casts read and write activations, forward and "
        "backward), and kernels too small to fill the device. Compiling makes fewer and larger kernels."
    )
