"""Hessian-vector products, lambda_max and the trace on a GPU take less time than by PyHessian's procedure."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, partial
from itertools import islice
from math import inf

import torch
from gpu_networks import Trained, trained
from gpu_peers import Product, anew, hutchinson, kept_graphs, power_iteration, pyhessian, stopped
from gpu_timing import LEAST, Asked, Page, interleaved, ratios, spread
from measures import needed
from torch import Tensor
from torch.nn.functional import cross_entropy

from steppe import Objective
from steppe.measures import Curvature, Eigenvalue, Measure, Sweep, Trace, fisher_traces

Batches = Sequence[tuple[Tensor, Tensor]]

ABOUT = """
ResNet-18 after some hundred SAM steps, eval mode, batches of 256 of the rows it was trained on, float32 without TF32
unless a row says otherwise. Peers are reimplemented from their procedure. Equal accuracy is what a set-up finds to be
needed: the loosest tolerance of PyHessian's power iteration whose true error is 1e-3, and as many probes as their own
spread asks for at a standard error of 2 %. Products of a peer cost the same each, so at most a few of them run and
their time is multiplied by what is missing. The true eigenvalue is that of a long Lanczos run, the true trace that of
the Gauss-Newton matrix, which for a network of ReLUs is the Hessian's: the mean over rows of
sum_c p_c ||grad log p_c||^2, without random probes.
"""
PRODUCTS, AHEAD = 2.0, {"lambda_max": 3.0, "trace": 3.0}  # the bars
ACCURACY = {"lambda_max": 1e-3, "trace": 0.02}
TITLES = {"lambda_max": "lambda_max at 1e-3", "trace": "The trace at 2 %"}
BATCH, DIRECTIONS, CAP, MOST, PROBES, SEEDS, TOP = 256, 8, 6, 60, 12, 2, 5
TOLERANCES = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5)  # the first is PyHessian's own
WIDTHS = (16, 64)  # of networks whose products are timed
SETTINGS = ((16, 1), (16, 4), (64, 1))  # width and batches of those that are asked for lambda_max and the trace
FULL = ((64, 4),)
RECORDED = 3  # calls after which an operator replays its products
OURS, PEER = "steppe", "PyHessian's procedure (reimplemented)"
PRECISIONS = ("tf32", "bf16")


def report(asked: Asked) -> Page:
    page = Page("curvature", ABOUT, asked)
    if asked.gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for width in (2,) if asked.quick else WIDTHS:
        _products(page, asked, width)
    for width, count in ((2, 2),) if asked.quick else SETTINGS + (FULL if asked.full else ()):
        _questions(page, asked, width, count)
    return page


def objective(net: Trained, batches: Batches, precision: str | None = None, **more: object):
    chosen = {} if precision is None else {"precision": precision}
    return Objective(net.model, cross_entropy, list(batches), **chosen, **more)


def precisions() -> tuple[str, ...]:
    return PRECISIONS if "precision" in {f.name for f in fields(Objective)} else ()


class Lazily:
    """Products whose graphs are built by the first of them, so that their memory is seen."""

    def __init__(self, make: Callable[[], Product]):
        self._make = cache(make)

    def __call__(self, v: Sequence[Tensor]) -> list[Tensor]:
        return self._make()(v)


# -- products ---------------------------------------------------------------------------------------------------------


def _products(page: Page, asked: Asked, width: int) -> None:
    size, many = (8, 2) if asked.quick else (BATCH, DIRECTIONS)
    net = trained(width, asked)
    batches = net.batches(1, size)
    params = list(net.model.parameters())
    exact = objective(net, batches)
    exact.check()
    probes = [exact.draw(-1, i).signs() for i in range(many)]
    v = probes[0].tensors
    several, single = (Curvature(objective(net, batches, trusted=True)) for _ in range(2))
    kept = Lazily(lambda: kept_graphs(net.model, batches))

    def gradient() -> None:
        torch.autograd.grad(cross_entropy(net.model(batches[0][0]), batches[0][1]), params)

    def made_anew() -> None:
        Curvature(objective(net, batches, trusted=True)).products(probes)

    again = anew(net.model, batches)
    works: dict[str, tuple[Callable[[], object], int]] = {
        "one gradient": (gradient, 1),
        "double backward, graph not kept": (lambda: again(v), 1),
        "double backward, graph kept": (lambda: kept(v), 1),
        f"steppe, {many} directions": (lambda: several.products(probes), many),
        f"steppe, {many} directions, operator made anew": (made_anew, many),
        "steppe, 1 direction": (lambda: single.products(probes[:1]), 1),
    }
    recorded = {f"steppe, {many} directions", "steppe, 1 direction"}
    truth, errors = Curvature(exact).products(probes), {}
    rounded = {f"steppe, {many} directions, {name}": Curvature(objective(net, batches, name)) for name in precisions()}
    recorded |= rounded.keys()
    for name, other in rounded.items():
        works[name] = (partial(other.products, probes), many)

    def begin(name: str) -> None:
        for _ in range(RECORDED if name in recorded else 1):
            works[name][0]()

    peaks = {name: asked.peak(partial(begin, name)) for name in works}
    for name, other in rounded.items():
        off = [float((a - b).norm() / b.norm()) for a, b in zip(other.products(probes), truth, strict=True)]
        errors[name] = f"{max(off):.1e}"
    alone = {name: work for name, (work, _) in works.items()}
    measured = interleaved(asked, alone, 5, 7.0, warm=0)
    each = {name: [t / works[name][1] for t in times] for name, times in measured.items()}
    slow = "double backward, graph not kept"
    rows = [
        (
            name,
            spread(times),
            len(times),
            spread(ratios(times, each["one gradient"])),
            spread(ratios(each[slow], times)),
            f"{peaks[name]:.0f}",
            errors.get(name, ""),
        )
        for name, times in each.items()
    ]
    heads = ("product", "ms each", "n", "in gradients", "double backward, not kept / this", "peak MiB", "error")
    page.table(f"Products with the Hessian, width {width}, batch {size}", heads, rows)
    page.say(
        f"{net.about}. Products were recorded before they were timed, except those of operators that were made anew.",
        "",
    )
    faster = statistics.median(ratios(each[slow], each[f"steppe, {many} directions"]))
    what = f"throughput of products / double backward without kept graph, width {width}"
    page.bar(what, f"at least {PRODUCTS}", f"{faster:.2f}", faster >= PRODUCTS)
    asked.free()


# -- questions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """What is true, and how much work equal accuracy takes PyHessian's procedure."""

    truth: Mapping[str, float]
    top: Sequence[float]  # the largest eigenvalues: the nearer the second is to the first, the slower is iteration
    tol: float | None  # None: none of the tolerances is enough within the iterations that were tried
    iterations: int
    probes: int

    def __str__(self) -> str:
        tol = f"a tolerance of {self.tol:g}" if self.tol else "more than that: no tolerance was enough in so many"
        return f"{self.iterations} iterations ({tol}) and {self.probes} probes"


def exact_trace(net: Trained, batches: Batches) -> float:
    """The trace of a network of ReLUs and norm layers in eval mode: that of its Gauss-Newton matrix, row by row."""
    with torch.no_grad():
        p = torch.cat([net.model(x).softmax(-1) for x, _ in batches]).double().cpu()
    total = torch.zeros(len(p), dtype=torch.float64)
    for c in range(p.shape[1]):
        total += p[:, c] * fisher_traces(objective(net, [(x, torch.full_like(y, c)) for x, y in batches], trusted=True))
    return float(total.mean())


def loosest(runs: Sequence[Sequence[float]], truth: float, accuracy: float) -> tuple[float | None, int]:
    """The loosest tolerance at which every run of the power iteration ends near enough, and after how many iterations.

    Where there is none: as many iterations as were tried.
    """
    for tol in TOLERANCES:
        ends = [stopped(values, tol) for values in runs]
        if all(
            end is not None and abs(values[end - 1] / truth - 1) <= accuracy
            for end, values in zip(ends, runs, strict=True)
        ):
            return tol, round(statistics.median(end for end in ends if end is not None))
    return None, max(len(values) for values in runs)


def needs(asked: Asked, net: Trained, batches: Batches) -> Needs:
    most, probes, seeds = (3, 3, 1) if asked.quick else (MOST, PROBES, SEEDS)
    known = objective(net, batches)
    sweep = Sweep(Curvature(known))
    wanted, close, long = (2, 0.1, 3) if asked.quick else (TOP, 1e-4, 200)
    for _ in sweep.eigenvalues(rtol=close, most=long):
        pass
    top = [pair.value for pair in sweep.pairs(wanted, rtol=0.05, most=long)]
    truth = {"lambda_max": top[0], "trace": exact_trace(net, batches)}
    product = kept_graphs(net.model, batches)
    torch.manual_seed(1000)
    iterations = [power_iteration(net.model, product) for _ in range(seeds)]
    runs = until_near(iterations, truth["lambda_max"], ACCURACY["lambda_max"], most)
    draws = torch.tensor([*islice(hutchinson(net.model, product), probes)])
    tol, count = loosest(runs, truth["lambda_max"], ACCURACY["lambda_max"])
    return Needs(truth, top, tol, count, max(needed(draws, truth["trace"], ACCURACY["trace"]), 1))


def until_near(runs: Sequence[Iterator[float]], truth: float, accuracy: float, most: int) -> list[list[float]]:
    """What runs of the power iteration find until a tolerance is enough for all of them."""
    found: list[list[float]] = [[] for _ in runs]
    for _ in range(most):
        for values, run in zip(found, runs, strict=True):
            values.append(next(run))
        if loosest(found, truth, accuracy)[0] is not None:
            break
    return found


@dataclass(frozen=True)
class Run:
    """An answer, its products, the seconds that it took or would take at equal accuracy, and whether all of it ran."""

    value: float
    products: float
    seconds: float
    whole: bool = True


class Clock:
    """Seconds since it was made, read when the device is idle."""

    def __init__(self, asked: Asked):
        self._asked = asked
        asked.wait()
        self._start = time.perf_counter()

    def __call__(self) -> float:
        self._asked.wait()
        return time.perf_counter() - self._start


def _ours(asked: Asked, question: Measure, net: Trained, batches: Batches, precision: str | None, seed: int) -> Run:
    """The measure from nothing: a new objective, whose loss is checked, and a new operator."""
    clock = Clock(asked)
    found = question.estimate(objective(net, batches, precision), seed)
    return Run(found.value, found.cost.products, clock())


def _peers(asked: Asked, net: Trained, batches: Batches, draw: Callable[..., Iterator[float]], most: int) -> Run:
    """PyHessian's procedure from nothing, with a few of its products, and the time of all."""
    clock = Clock(asked)
    values = draw(net.model, pyhessian(net.model, batches))
    built = clock()
    found = [*islice(values, min(CAP, most))]
    probing = clock() - built
    value = statistics.fmean(found) if draw is hutchinson else found[-1]
    return Run(value, most, extrapolated(built, probing, len(found), most), len(found) == most)


def extrapolated(built: float, probing: float, ran: int, most: int) -> float:
    """Seconds of a graph and `most` products, of which some ran: they cost the same each."""
    return built + probing * most / ran


def _questions(page: Page, asked: Asked, width: int, count: int) -> None:
    net = trained(width, asked)
    batches = net.batches(count, 8 if asked.quick else BATCH)
    where = f"width {width}, {count} x {len(batches[0][0])} rows"
    need = needs(asked, net, batches)
    asked.free()
    graphs = "keeps the graph of its one batch" if count == 1 else "builds every batch's graph for every product"
    page.say(
        f"{where.capitalize()}: the largest eigenvalues are {', '.join(f'{value:.4g}' for value in need.top)}, the "
        f"trace is {need.truth['trace']:.5g}. Equal accuracy takes PyHessian's procedure, which {graphs}, {need}; "
        f"at most {CAP} of each ran in a round. {net.about}.",
        "",
    )
    ours = {"lambda_max": Eigenvalue(rtol=1e-3), "trace": Trace(rtol=0.02)}
    if asked.quick:
        ours = {"lambda_max": Eigenvalue(rtol=0.5), "trace": Trace(rtol=0.5, most=12, by=partial(Sweep, deflate=2))}
    theirs = {"lambda_max": (power_iteration, need.iterations), "trace": (hutchinson, need.probes)}
    for kind, question in ours.items():
        contenders: dict[str, Callable[[int], Run]] = {
            OURS: partial(_ours, asked, question, net, batches, None),
            PEER: lambda seed, kind=kind: _peers(asked, net, batches, *theirs[kind]),
        }
        for precision in precisions() if kind == "lambda_max" and (count == 1 or asked.quick) else ():
            contenders[f"{OURS}, {precision}"] = partial(_ours, asked, question, net, batches, precision)
        found: dict[str, list[Run]] = {name: [] for name in contenders}
        for i in asked.within(LEAST, inf):
            for name in random.sample(sorted(contenders), len(contenders)):
                torch.manual_seed(i)
                found[name].append(contenders[name](i))
                asked.free()
        _answers(page, kind, need.truth[kind], found, where)


def _answers(page: Page, kind: str, truth: float, found: Mapping[str, Sequence[Run]], where: str) -> None:
    rows = []
    base = [run.seconds for run in found[OURS]]
    for name, runs in found.items():
        seconds = [run.seconds for run in runs]
        slower = ratios(seconds, base)
        worst = max(abs(run.value / truth - 1) for run in runs)
        products = statistics.median(run.products for run in runs)
        error = f"{worst:.1e}" if all(run.whole for run in runs) else "as set up"
        rows.append((name, spread(seconds, ".3f"), len(runs), spread(slower), f"{products:.4g}", error))
        if name == PEER:
            ahead, wanted = statistics.median(slower), AHEAD[kind]
            what = f"{kind}: PyHessian's procedure / steppe, {where}"
            page.bar(what, f"at least {wanted}", f"{ahead:.2f}", ahead >= wanted)
        if name == OURS:
            # a standard error is no bound: of 100 runs one or two miss by three of them
            allowed = ACCURACY[kind] * (3 if kind == "trace" else 1)
            what = f"{kind}: largest error of steppe, {where}"
            page.bar(what, f"at most {allowed:g}", f"{worst:.1e}", worst <= allowed)
    heads = ("tool", "s at equal accuracy", "n", "this / steppe", "products", "largest error")
    page.table(f"{TITLES[kind]}, {where}", heads, rows)
