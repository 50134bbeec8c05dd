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
from gpu_timing import LEAST, Asked, Ceiling, Load, Page, Paired, Work, between, ratios, spread, surely
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import steppe
from steppe import capture

ABOUT = """
A SAM step on CIFAR's ResNet-18, bf16 autocast, channels last, base SGD with momentum and weight decay. Eager steps are
timed each between two neighbours of their ideal, two passes and one base step and nothing else, in random order, and
compared with the mean of the two, because the host's time varies by 15 %. Captured steps hardly vary, and take part in
few of the rounds: ratios to them are to their median, other ratios are of times in the same round. Memory is what a
contender holds at its peak beyond what was there before it was built, its graph included. Building a contender takes
its first steps: kernels are chosen, compiled and captured by then.
"""
SHAPES = ((64, 128), (64, 512), (16, 128))  # width, batch
# Steps that are timed together, queued up as in training: with large batches the device is behind the host, and what
# is left of its queue at the end must not count much. Times of the host vary less within a few steps.
TIMES, TIMES_EAGER = 4, {128: 2}
ROUNDS, SECONDS = 400, 60.0  # a shape; about as many make the interval of a ratio 1 % to either side
SELDOM, OTHERS = 35, 5  # captured steps run in every so many of the rounds, all but steppe's eager one in every so many
END = 240.0  # seconds
METHODS = {"none": {}, "sam": {}, "asam": {"rho": 0.5}, "frob-sam": {"n": 2}, "agnostic-sam": {}, "gsam": {}}
COMPILED = ("none", "sam")
COMPILED_AT = ((64, 512),)  # where the device's time, not the host's, is what is left
COPIED, SGD, TWO = "SAM, the copied loop (reimplemented)", "SGD, eager", "two passes and one step, eager"
BARE = "SAM, bare foreach calls"
EAGER = "steppe sam, eager"
FASTER = {(64, 128): 2.2, (64, 512): 1.8, (16, 128): 5.0}  # captured SAM than the copied loop
OVERHEAD = 1.03  # of eager SAM over its ideal
ALLOWED = 1.05  # of captured steps over their passes


class Noting:
    """The loss, which notes the rows of every pass that Python sees."""

    def __init__(self):
        self.sizes: list[int] = []

    def __call__(self, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return loss_fn(model, x, y)


@dataclass(frozen=True)
class Contender:
    """A way to take a step, with what its first step was seen to do."""

    step: Work
    sizes: tuple[int, ...]  # rows of its passes
    flops: float
    memory: float  # MiB
    seconds: float  # until it was itself
    why: str | None = None  # it is not captured


def built(
    asked: Asked, make: Callable[[Noting], tuple[Work, Callable[[], str | None]]], count: bool = True
) -> Contender:
    """Builds a contender and has it take the steps after which it is itself."""
    noting, held = Noting(), []

    def begin() -> None:
        step, why = make(noting)
        counter = FlopCounterMode(display=False)
        with counter if count else nullcontext():
            step()
        held.append((step, why, tuple(noting.sizes), counter.get_total_flops()))
        for _ in range(1 if asked.quick else 5):
            step()

    start = time.perf_counter()
    peak = asked.peak(begin)
    step, why, sizes, flops = held[0]
    return Contender(step, sizes, flops, peak, time.perf_counter() - start, why())


def contenders(page: Page, asked: Asked, width: int, batch: int) -> dict[str, Contender]:
    x, y = images(asked, batch)

    def plain(passes: int, kernels: str | None = None):
        def make(loss: Noting):
            model, base = fresh(asked, width, kernels)

            def step() -> None:
                for _ in range(passes):
                    base.zero_grad()
                    loss(model, x, y).backward()
                base.step()

            return step, _eager

        return make

    def peer(kind: type[Loop] | type[Bare]):
        def make(loss: Noting):
            model, base = fresh(asked, width)
            sam = kind(model.parameters(), base)
            return (lambda: sam.step(lambda: loss(model, x, y))), _eager

        return make

    def eager(kernels: str | None = None, **engine: object):
        def make(loss: Noting):
            model, base = fresh(asked, width, kernels)
            opt = steppe.build("sam", base, model=model, **engine)

            def closure() -> Tensor:
                base.zero_grad()
                found = loss(model, x, y)
                found.backward()
                return found.detach()

            return (lambda: opt.step(closure)), _eager

        return make

    def captured(name: str, rows: int = batch, compiled: bool = False, **options: object):
        def make(loss: Noting):
            model, base = fresh(asked, width)
            opt = steppe.build(name, base, model=model, **options)
            take = capture(opt, loss, model, (x[:rows], y[:rows]), compile=compiled)
            return (lambda: take(x[:rows], y[:rows])), lambda: take.why

        return make

    ways = {
        SGD: plain(1),
        TWO: plain(2),
        f"{TWO}, fused base": plain(2, "fused"),
        COPIED: peer(Loop),
        BARE: peer(Bare),
        EAGER: eager(),
        f"{EAGER}, fused base": eager("fused"),
        f"{EAGER}, foreach base": eager("foreach"),
        f"{EAGER}, non-finite not looked at": eager(on_nonfinite=None),
        f"{EAGER}, foreach base, non-finite not looked at": eager("foreach", on_nonfinite=None),
        **{f"steppe {name}, captured": captured(name, **options) for name, options in METHODS.items()},
    }
    found = {name: built(asked, make) for name, make in ways.items()}
    for rows in sorted(set(found["steppe agnostic-sam, captured"].sizes)):
        found[alone(rows)] = built(asked, captured("none", rows))
    for name in COMPILED if asked.compiled and (asked.quick or (width, batch) in COMPILED_AT) else ():
        try:  # what counts operations would keep the first call from being compiled
            found[compiled_too(name)] = built(asked, captured(name, compiled=True), count=False)
        except Exception as error:  # a compiler or what it needs is not everywhere
            said = " ".join(f"{type(error).__name__}: {error}".split())
            page.say(f"Width {width}, batch {batch}: {name} could not be compiled: {said[:200]}", "")
    return found


def _eager() -> None:
    return None


def compiled_too(method: str) -> str:
    return f"steppe {method}, compiled and captured"


def alone(rows: int) -> str:
    return f"steppe none, captured, {rows} rows"


def ideal_of(name: str) -> str | None:
    """The ideal that an eager step is compared with."""
    if name not in (COPIED, BARE) and not name.startswith(EAGER):
        return None
    return f"{TWO}, fused base" if name.endswith("fused base") else TWO


def measured(
    asked: Asked, found: dict[str, Contender], batch: int, left: float
) -> tuple[dict[str, list[float]], dict[str, Paired]]:
    """Milliseconds a step of everybody, and the ratios of eager steps to their ideals."""
    paired = {name: Paired() for name in found if ideal_of(name)}
    times: dict[str, list[float]] = {name: [] for name in found if not name.startswith(TWO) and name not in paired}
    together, eagerly = (1, 1) if asked.quick else (TIMES, TIMES_EAGER.get(batch, TIMES))
    fused = f"{TWO}, fused base"

    def time_between(ideal: str, names: Collection[str]) -> None:
        pairs = [(pair, found[name].step) for name, pair in paired.items() if name in names]
        between(random.sample(pairs, len(pairs)), found[ideal].step, lambda work: asked.ms(work, eagerly))

    def time_one(name: str) -> None:
        times[name].append(asked.ms(found[name].step, together))

    for i in asked.within(ROUNDS, SECONDS, left):
        all_of_them = i < LEAST or i % OTHERS == 0
        works = [partial(time_between, TWO, [n for n in paired if ideal_of(n) == TWO] if all_of_them else [EAGER])]
        if all_of_them:
            works += [partial(time_between, fused, [n for n in paired if ideal_of(n) == fused]), partial(time_one, SGD)]
        if i < LEAST or i % SELDOM == 0:
            works += [partial(time_one, name) for name in times if name != SGD]
        for work in random.sample(works, len(works)):
            work()
    times |= {name: pair.own for name, pair in paired.items()}
    return times | {TWO: paired[EAGER].ideal, fused: paired[f"{EAGER}, fused base"].ideal}, paired


def saved_bytes(asked: Asked, width: int, batch: int) -> tuple[int, int]:
    """Bytes of all parameters, and of what a forward pass saves beside them."""
    model, _ = fresh(asked, width)
    x, y = images(asked, batch)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    seen: dict[int, Tensor] = {}

    def note(t: Tensor) -> Tensor:
        if t.untyped_storage().data_ptr() not in weights:
            seen[t.untyped_storage().data_ptr()] = t  # kept alive lest another takes its address
        return t

    with saved_tensors_hooks(note, lambda t: t):
        loss = loss_fn(model, x, y)
    del loss
    return sum(4 * p.numel() for p in model.parameters()), sum(t.untyped_storage().nbytes() for t in seen.values())


def least_bytes(weights: float, saved: float, passes: float, shares: float) -> float:
    """What a step must move at least.

    A pass reads the weights in its forward and in its backward half and writes the gradient; what is saved is written
    once and read once. The base step reads weights, gradient and momentum, and writes weights and momentum.
    """
    return passes * 3 * weights + shares * 2 * saved + 5 * weights


def report(asked: Asked) -> Page:
    torch.backends.cudnn.benchmark = not asked.quick
    page = Page("steps", ABOUT, asked)
    ceiling = Ceiling.measured(asked)
    rooms = []
    for width, batch in ((2, 10),) if asked.quick else SHAPES:
        found = contenders(page, asked, width, batch)
        times, paired = measured(asked, found, batch, math.inf if asked.compiled else page.left(END))
        _times(page, width, batch, found, times)
        _overhead(page, width, batch, paired)
        _passes(page, width, batch, found, times)
        _bars(page, width, batch, times, paired)
        rooms += _roof(asked, ceiling, width, batch, found, times)
        del found
        if asked.compiled:
            torch.compiler.reset()  # what was compiled for one shape would be looked through for the next
        asked.free()
    _roofline(page, ceiling, rooms)
    return page


def _times(page: Page, width: int, batch: int, found: dict[str, Contender], times: dict[str, list[float]]) -> None:
    rows = []
    for name, contender in found.items():
        own = times[name]
        faster, more = ratios(times[COPIED], own), ratios(own, times["steppe none, captured"])
        shown = name + (f" (plain: {contender.why})" if contender.why else "")
        built = f"{contender.memory:.0f}", f"{contender.seconds:.1f}"
        rows.append((shown, spread(own), len(own), spread(faster), spread(more, ".3f"), *built))
    heads = ("step", "ms", "n", "copied loop / this", "this / captured none", "peak MiB", "s to build")
    page.table(f"Width {width}, batch {batch}", heads, rows)


def _overhead(page: Page, width: int, batch: int, paired: dict[str, Paired]) -> None:
    rows = [(name, surely(pair.ratios), len(pair.own)) for name, pair in paired.items()]
    page.table(f"Width {width}, batch {batch}: eager steps / their ideal, two passes", ("step", "ratio", "n"), rows)
    page.say(
        "By default the base has torch's foreach kernels, as in the ideal. A fused base is compared with the ideal of",
        "a fused base.",
        "",
    )


def _passes(page: Page, width: int, batch: int, found: dict[str, Contender], times: dict[str, list[float]]) -> None:
    """Captured steps over what their passes take, by three ways to count."""
    single = times["steppe none, captured"]
    rows = []
    for method in METHODS:
        name = f"steppe {method}, captured"
        sizes, own = found[name].sizes, times[name]
        whole = ratios(own, [t * len(sizes) for t in single])
        share = ratios(own, [t * sum(sizes) / batch for t in single])
        parts = [single if size == batch else times[alone(size)] for size in sizes]
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
        "A single pass is the captured step of the method none: one pass and one base update. Passes are those that",
        "the step was seen to take, and each counts as one on the whole batch. By their share of rows: a pass on part",
        "of the batch counts as that part of it, as if time were proportional to rows. Each at its size: a pass on",
        "part of the batch counts what a captured step of none takes on so many rows, on a few more than their share.",
        "",
    )


def _bars(page: Page, width: int, batch: int, times: dict[str, list[float]], paired: dict[str, Paired]) -> None:
    shape = f"width {width}, batch {batch}"
    ways = [name for name in ("steppe sam, captured", compiled_too("sam")) if name in times]
    way = min(ways, key=lambda name: statistics.median(times[name]))
    sam, called = times[way], way.removeprefix("steppe sam, ")
    if len(ways) > 1:
        page.say(f"The bars count the faster of captured and compiled and captured SAM, which here is {called}.", "")
    if (width, batch) in FASTER:
        wanted, faster = FASTER[width, batch], statistics.median(ratios(times[COPIED], sam))
        page.bar(f"copied loop / SAM {called}, {shape}", f"at least {wanted}", f"{faster:.2f}", faster >= wanted)
    if batch == 128:
        over = statistics.median(ratios(sam, times[SGD]))
        page.bar(f"SAM {called} / eager SGD, {shape}", "at most 1", f"{over:.3f}", over <= 1)
    for name in (EAGER, f"{EAGER}, non-finite not looked at"):
        own = paired[name].ratios
        met = statistics.median(own) <= OVERHEAD
        page.bar(f"{name} / two passes, {shape}", f"at most {OVERHEAD}", surely(own), met)


@dataclass(frozen=True)
class Room:
    """How far a step is from its roof."""

    shape: str
    name: str
    ms: float
    load: Load
    floors: tuple[float, float]  # ms for operations, ms for bytes


def _roof(
    asked: Asked, ceiling: Ceiling, width: int, batch: int, found: dict[str, Contender], times: dict[str, list[float]]
) -> list[Room]:
    weights, saved = saved_bytes(asked, width, batch)
    rooms = []
    for name in (SGD, "steppe none, captured", COPIED, "steppe sam, captured", "steppe frob-sam, captured"):
        sizes = found[name].sizes
        load = Load(found[name].flops, least_bytes(weights, saved, len(sizes), sum(sizes) / batch))
        ms = statistics.median(times[name])
        rooms.append(Room(f"{width}, {batch}", name, ms, load, load.floors(ceiling)))
    return rooms


def _roofline(page: Page, ceiling: Ceiling, rooms: list[Room]) -> None:
    rows = [
        (
            r.shape,
            r.name,
            f"{r.load.flops / 1e9:.4g}",
            f"{r.load.bytes / 1e9:.3g}",
            f"{r.ms:.2f}",
            *(f"{floor:.2f} ({100 * floor / r.ms:.0f} %)" for floor in r.floors),
        )
        for r in rooms
    ]
    heads = ("width, batch", "step", "GFLOP", "GB at least", "ms", "ms for FLOPs alone", "ms for bytes alone")
    page.table(f"Roofline: {ceiling.tflops:.0f} TFLOP/s, {ceiling.gbs:.0f} GB/s measured in this run", heads, rows)
    page.say(
        "FLOPs are those of products and convolutions, counted by torch while a step ran. Bytes are a floor: each pass",
        "reads the float32 weights twice and writes the gradient once, what the forward pass saves is written and read",
        "once, and the base step moves five times the weights. Casts to bf16, gradients of activations and what a",
        "method adds to its passes are not counted. In parentheses: the share of the measured time.",
        "",
        *(_gap(r, rooms) for r in rooms if r.name == "steppe sam, captured"),
        "",
    )


def _gap(room: Room, rooms: list[Room]) -> str:
    """The distance from the roof in words."""
    operations, bytes_ = room.floors
    copied = next(r.ms for r in rooms if r.shape == room.shape and r.name == COPIED)
    kind, floor = ("FLOPs", operations) if operations >= bytes_ else ("bytes", bytes_)
    return (
        f"- {room.shape}: the copied loop takes {copied:.2f} ms, of which {copied - room.ms:.2f} ms go when nothing "
        f"waits for Python to launch kernels any more. What is left, {room.ms:.2f} ms, is {room.ms / floor:.1f} times "
        f"the floor, which is of {kind}. Of the gap, the bytes that are not counted are a part (norms, ReLUs and casts "
        "each read and write activations anew, forward and backward); kernels too small to fill the device are the "
        "rest. Fewer, larger kernels, which is what compiling makes, are the way on."
    )
