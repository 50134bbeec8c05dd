"""A captured SAM step takes less time than an eager SGD step; an eager one costs its two passes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from gpu_networks import fresh, images, loss_fn
from gpu_peers import Loop
from gpu_timing import Asked, Ceiling, Load, Page, Paired, Work, ratios, spread, surely
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

import steppe
from steppe import capture

ABOUT = """
A SAM step on CIFAR's ResNet-18, bf16 autocast, channels last, base SGD with momentum and weight decay. Eager steps are
timed each between two neighbours of their ideal, two passes and one base step and nothing else, in random order, and
compared with the mean of the two, because the host's time varies by 15 %. Other ratios are of times in the same round.
Memory is what a contender holds at its peak beyond what was there before it was built, its graph included.
"""
SHAPES = ((64, 128), (64, 512), (16, 128))  # width, batch
TIMES = 4  # steps that are timed together, queued up as in training
ROUNDS, SECONDS = 25, 18.0  # a shape
METHODS = {"none": {}, "sam": {}, "asam": {"rho": 0.5}, "frob-sam": {"n": 2}, "agnostic-sam": {}, "gsam": {}}
COPIED, SGD, TWO = "SAM, the copied loop (reimplemented)", "SGD, eager", "two passes and one step, eager"
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

    peak = asked.peak(begin)
    step, why, sizes, flops = held[0]
    return Contender(step, sizes, flops, peak, why())


def contenders(asked: Asked, width: int, batch: int) -> dict[str, Contender]:
    x, y = images(asked, batch)

    def plain(passes: int, fused: bool | None = None):
        def make(loss: Noting):
            model, base = fresh(asked, width, fused)

            def step() -> None:
                for _ in range(passes):
                    base.zero_grad()
                    loss(model, x, y).backward()
                base.step()

            return step, _eager

        return make

    def copied(loss: Noting):
        model, base = fresh(asked, width)
        sam = Loop(model.parameters(), base)
        return (lambda: sam.step(lambda: loss(model, x, y))), _eager

    def eager(fused: bool | None = None, **engine: object):
        def make(loss: Noting):
            model, base = fresh(asked, width, fused)
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
        f"{TWO}, fused base": plain(2, fused=True),
        COPIED: copied,
        EAGER: eager(),
        f"{EAGER}, fused base": eager(fused=True),
        f"{EAGER}, non-finite not looked at": eager(on_nonfinite=None),
        **{f"steppe {name}, captured": captured(name, **options) for name, options in METHODS.items()},
    }
    if asked.compiled:
        ways |= {f"steppe {name}, compiled and captured": captured(name, compiled=True) for name in ("none", "sam")}
    # what counts operations would keep the first call from being compiled
    found = {name: built(asked, make, count="compiled" not in name) for name, make in ways.items()}
    for rows in sorted(set(found["steppe agnostic-sam, captured"].sizes)):
        found[alone(rows)] = built(asked, captured("none", rows))
    return found


def _eager() -> None:
    return None


def alone(rows: int) -> str:
    return f"steppe none, captured, {rows} rows"


def ideal_of(name: str) -> str | None:
    """The ideal that an eager step is compared with."""
    if name != COPIED and not name.startswith(EAGER):
        return None
    return f"{TWO}, fused base" if name.endswith("fused base") else TWO


def measured(asked: Asked, found: dict[str, Contender]) -> tuple[dict[str, list[float]], dict[str, Paired]]:
    """Milliseconds a step of everybody, and the ratios of eager steps to their ideals."""
    paired = {name: Paired() for name in found if ideal_of(name)}
    times: dict[str, list[float]] = {name: [] for name in found if not name.startswith(TWO)}
    together = 1 if asked.quick else TIMES
    for _ in asked.within(ROUNDS, SECONDS):
        for name in random.sample(sorted(times), len(times)):
            ideal = ideal_of(name)
            if ideal is None:
                times[name].append(asked.ms(found[name].step, together))
            else:
                paired[name].add(found[name].step, found[ideal].step, lambda work: asked.ms(work, together))
    times |= {name: pair.own for name, pair in paired.items()}
    ideals = {ideal_of(name): pair.ideal for name, pair in paired.items() if name in (EAGER, f"{EAGER}, fused base")}
    return times | ideals, paired


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
        found = contenders(asked, width, batch)
        times, paired = measured(asked, found)
        _times(page, width, batch, found, times)
        _overhead(page, width, batch, paired)
        _passes(page, width, batch, found, times)
        _bars(page, width, batch, times, paired)
        rooms += _roof(asked, ceiling, width, batch, found, times)
        del found
        asked.free()
    _roofline(page, ceiling, rooms)
    return page


def _times(page: Page, width: int, batch: int, found: dict[str, Contender], times: dict[str, list[float]]) -> None:
    rows = []
    for name, contender in found.items():
        own = times[name]
        faster, more = ratios(times[COPIED], own), ratios(own, times["steppe none, captured"])
        shown = name + (f" (plain: {contender.why})" if contender.why else "")
        rows.append((shown, spread(own), len(own), spread(faster), spread(more, ".3f"), f"{contender.memory:.0f}"))
    heads = ("step", "ms", "n", "copied loop / this", "this / captured none", "peak MiB")
    page.table(f"Width {width}, batch {batch}", heads, rows)


def _overhead(page: Page, width: int, batch: int, paired: dict[str, Paired]) -> None:
    rows = [(name, surely(pair.ratios), len(pair.own)) for name, pair in paired.items()]
    page.table(f"Width {width}, batch {batch}: eager steps / their ideal, two passes", ("step", "ratio", "n"), rows)


def _passes(page: Page, width: int, batch: int, found: dict[str, Contender], times: dict[str, list[float]]) -> None:
    """Captured steps over what their passes take, by two ways to count."""
    single = times["steppe none, captured"]
    rows = []
    for method in METHODS:
        name = f"steppe {method}, captured"
        sizes, own = found[name].sizes, times[name]
        whole = ratios(own, [t * sum(sizes) / batch for t in single])
        parts = [single if size == batch else times[alone(size)] for size in sizes]
        each = ratios(own, [sum(ts) for ts in zip(*parts, strict=True)])
        rows.append((method, len(sizes), " + ".join(map(str, sizes)), spread(whole, ".3f"), spread(each, ".3f")))
        if method in ("asam", "frob-sam", "agnostic-sam"):
            for count, values in (("by their share of rows", whole), ("each captured at its size", each)):
                if count.startswith("by") or set(sizes) != {batch}:
                    middle = statistics.median(values)
                    what = f"captured {method} / passes {count}, width {width}, batch {batch}"
                    page.bar(what, f"at most {ALLOWED}", f"{middle:.3f}", middle <= ALLOWED)
    heads = (
        "method",
        "passes",
        "rows of each",
        "time / passes by their share of rows",
        "... each captured at its size",
    )
    page.table(f"Width {width}, batch {batch}: captured steps and their passes", heads, rows)
    page.say(
        "A single pass is the captured step of the method none: one pass and one base update. Passes are those that",
        "the step was seen to take. By their share of rows: a pass on part of the batch counts as that part of a pass",
        "on all of it, as if time were proportional to rows. Each at its size: a pass on part of the batch counts what",
        "a captured step of none takes on so many rows, which on a few rows is more than their share.",
        "",
    )


def _bars(page: Page, width: int, batch: int, times: dict[str, list[float]], paired: dict[str, Paired]) -> None:
    shape, sam = f"width {width}, batch {batch}", times["steppe sam, captured"]
    if (width, batch) in FASTER:
        wanted, faster = FASTER[width, batch], statistics.median(ratios(times[COPIED], sam))
        page.bar(f"copied loop / captured SAM, {shape}", f"at least {wanted}", f"{faster:.2f}", faster >= wanted)
    if batch == 128:
        over = statistics.median(ratios(sam, times[SGD]))
        page.bar(f"captured SAM / eager SGD, {shape}", "at most 1", f"{over:.3f}", over <= 1)
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
