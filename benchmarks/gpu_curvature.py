"""Hessian-vector products, lambda_max and the trace take less time on a GPU than with PyHessian's procedure."""

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
from gpu_peers import Product, hutchinson, kept_graphs, power_iteration, pyhessian, rebuilt_graphs, stopped
from gpu_timing import LEAST, Page, Settings, interleaved, ratios, spread
from measures import needed
from torch import Tensor
from torch.nn.functional import cross_entropy

from steppe import Objective
from steppe.measures import Curvature, Eigenvalue, Measure, Sweep, Trace, fisher_traces

Batches = Sequence[tuple[Tensor, Tensor]]

ABOUT = """
ResNet-18 after some hundred SAM steps, eval mode, batches of 256 training rows, float32 without TF32 unless a row says
otherwise. Peers are reimplemented from their procedure. A set-up determines the work for equal accuracy: the loosest
tolerance of PyHessian's power iteration with a true error of 1e-3, and the number of probes for a standard error of
2 %. All products of a peer cost the same, so only a few run and their time is extrapolated. The true eigenvalue is from
a long Lanczos run. The true trace is that of the Gauss-Newton matrix, which a network of ReLUs shares with the Hessian:
the mean over rows of sum_c p_c ||grad log p_c||^2, without random probes.
"""
PRODUCTS, AHEAD = 2.0, {"lambda_max": 3.0, "trace": 3.0}  # the bars
ACCURACY = {"lambda_max": 1e-3, "trace": 0.02}
TITLES = {"lambda_max": "lambda_max at 1e-3", "trace": "The trace at 2 %"}
BATCH, DIRECTIONS, CAP, MOST, PROBES, SEEDS, TOP = 256, 8, 6, 60, 12, 2, 5
TOLERANCES = (1e-3, 3e-4, 1e-4, 3e-5, 1e-5)  # the first is PyHessian's own
WIDTHS = (16, 64)  # for products
SETTINGS = ((16, 1), (16, 4), (64, 1))  # width and number of batches, for lambda_max and the trace
FULL = ((64, 4),)
RECORDED = 3  # calls after which an operator replays recorded products
OURS, PEER = "steppe", "PyHessian's procedure (reimplemented)"
PRECISIONS = ("tf32", "bf16")


def curvature(settings: Settings) -> Page:
    """Writes the page of the theme."""
    page = Page("curvature", ABOUT, settings)
    if settings.gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for width in (2,) if settings.quick else WIDTHS:
        _products(page, settings, width)
    for width, count in ((2, 2),) if settings.quick else SETTINGS + (FULL if settings.full else ()):
        _questions(page, settings, width, count)
    return page


def objective(net: Trained, batches: Batches, precision: str | None = None, **more: object):
    chosen = {} if precision is None else {"precision": precision}
    return Objective(net.model, cross_entropy, list(batches), **chosen, **more)


def precisions() -> tuple[str, ...]:
    return PRECISIONS if "precision" in {f.name for f in fields(Objective)} else ()


class LazyProduct:
    """Products whose graphs are built by the first call, so that their memory is measured."""

    def __init__(self, make: Callable[[], Product]):
        self._make = cache(make)

    def __call__(self, v: Sequence[Tensor]) -> list[Tensor]:
        return self._make()(v)


# -- products ---------------------------------------------------------------------------------------------------------


def _products(page: Page, settings: Settings, width: int) -> None:
    size, many = (8, 2) if settings.quick else (BATCH, DIRECTIONS)
    net = trained(width, settings)
    batches = net.batches(1, size)
    params = list(net.model.parameters())
    exact = objective(net, batches)
    exact.check()
    probes = [exact.draw(-1, i).signs() for i in range(many)]
    v = probes[0].tensors
    several, single = (Curvature(objective(net, batches, trusted=True)) for _ in range(2))
    kept = LazyProduct(lambda: kept_graphs(net.model, batches))

    def gradient() -> None:
        torch.autograd.grad(cross_entropy(net.model(batches[0][0]), batches[0][1]), params)

    def new_operator() -> None:
        Curvature(objective(net, batches, trusted=True)).products(probes)

    rebuilt = rebuilt_graphs(net.model, batches)
    works: dict[str, tuple[Callable[[], object], int]] = {
        "one gradient": (gradient, 1),
        "double backward, graph not kept": (lambda: rebuilt(v), 1),
        "double backward, graph kept": (lambda: kept(v), 1),
        f"steppe, {many} directions": (lambda: several.products(probes), many),
        f"steppe, {many} directions, new operator": (new_operator, many),
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

    peaks = {name: settings.peak(partial(begin, name)) for name in works}
    for name, other in rounded.items():
        off = [float((a - b).norm() / b.norm()) for a, b in zip(other.products(probes), truth, strict=True)]
        errors[name] = f"{max(off):.1e}"
    alone = {name: work for name, (work, _) in works.items()}
    measured = interleaved(settings, alone, 5, 7.0, warm=0)
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
        f"{net.about}. Products were recorded before they were timed, except those of new operators.",
        "",
    )
    faster = statistics.median(ratios(each[slow], each[f"steppe, {many} directions"]))
    what = f"throughput of products / double backward without kept graph, width {width}"
    page.bar(what, f"at least {PRODUCTS}", f"{faster:.2f}", faster >= PRODUCTS)
    settings.free()


# -- questions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Needs:
    """The true values, and the work of PyHessian's procedure for equal accuracy."""

    truth: Mapping[str, float]
    top: Sequence[float]  # the largest eigenvalues; power iteration is slow if the first two are close
    tol: float | None  # None if no tolerance is enough within the iterations that were tried
    iterations: int
    probes: int

    def __str__(self) -> str:
        tol = f"tolerance {self.tol:g}" if self.tol else "or more: no tolerance was enough"
        return f"{self.iterations} iterations ({tol}) and {self.probes} probes"


def exact_trace(net: Trained, batches: Batches) -> float:
    """The trace for a network of ReLUs and norm layers in eval mode: that of its Gauss-Newton matrix, row by row."""
    with torch.no_grad():
        p = torch.cat([net.model(x).softmax(-1) for x, _ in batches]).double().cpu()
    total = torch.zeros(len(p), dtype=torch.float64)
    for c in range(p.shape[1]):
        total += p[:, c] * fisher_traces(objective(net, [(x, torch.full_like(y, c)) for x, y in batches], trusted=True))
    return float(total.mean())


def loosest(runs: Sequence[Sequence[float]], truth: float, accuracy: float) -> tuple[float | None, int]:
    """The loosest tolerance at which every run of the power iteration is accurate, and its number of iterations.

    If there is none: None and the number of iterations that were tried.
    """
    for tol in TOLERANCES:
        ends = [stopped(values, tol) for values in runs]
        if all(
            end is not None and abs(values[end - 1] / truth - 1) <= accuracy
            for end, values in zip(ends, runs, strict=True)
        ):
            return tol, round(statistics.median(end for end in ends if end is not None))
    return None, max(len(values) for values in runs)


def needs(settings: Settings, net: Trained, batches: Batches) -> Needs:
    most, probes, seeds = (3, 3, 1) if settings.quick else (MOST, PROBES, SEEDS)
    sweep = Sweep(Curvature(objective(net, batches)))
    count, rtol, most_steps = (2, 0.1, 3) if settings.quick else (TOP, 1e-4, 200)
    for _ in sweep.eigenvalues(rtol=rtol, most=most_steps):
        pass
    top = [pair.value for pair in sweep.pairs(count, rtol=0.05, most=most_steps)]
    truth = {"lambda_max": top[0], "trace": exact_trace(net, batches)}
    product = kept_graphs(net.model, batches)
    torch.manual_seed(1000)
    iterations = [power_iteration(net.model, product) for _ in range(seeds)]
    runs = until_near(iterations, truth["lambda_max"], ACCURACY["lambda_max"], most)
    draws = torch.tensor([*islice(hutchinson(net.model, product), probes)])
    tol, count = loosest(runs, truth["lambda_max"], ACCURACY["lambda_max"])
    return Needs(truth, top, tol, count, max(needed(draws, truth["trace"], ACCURACY["trace"]), 1))


def until_near(runs: Sequence[Iterator[float]], truth: float, accuracy: float, most: int) -> list[list[float]]:
    """The estimates of power iterations, until a tolerance is enough for all of them."""
    estimates: list[list[float]] = [[] for _ in runs]
    for _ in range(most):
        for values, run in zip(estimates, runs, strict=True):
            values.append(next(run))
        if loosest(estimates, truth, accuracy)[0] is not None:
            break
    return estimates


@dataclass(frozen=True)
class Run:
    """A result and its cost."""

    value: float
    products: float
    seconds: float  # at equal accuracy, extrapolated if not everything ran
    complete: bool = True


class Clock:
    """Seconds since its creation, measured on an idle device."""

    def __init__(self, settings: Settings):
        self._asked = settings
        settings.wait()
        self._start = time.perf_counter()

    def __call__(self) -> float:
        self._asked.wait()
        return time.perf_counter() - self._start


def _ours(
    settings: Settings, question: Measure, net: Trained, batches: Batches, precision: str | None, seed: int
) -> Run:
    """steppe's measure, including a new objective, the check of its loss, and a new operator."""
    clock = Clock(settings)
    estimate = question.estimate(objective(net, batches, precision), seed)
    return Run(estimate.value, estimate.cost.products, clock())


def _peers(settings: Settings, net: Trained, batches: Batches, draw: Callable[..., Iterator[float]], most: int) -> Run:
    """PyHessian's procedure, including its graphs, with a few of its products and the extrapolated time of all."""
    clock = Clock(settings)
    values = draw(net.model, pyhessian(net.model, batches))
    built = clock()
    draws = [*islice(values, min(CAP, most))]
    probing = clock() - built
    value = statistics.fmean(draws) if draw is hutchinson else draws[-1]
    return Run(value, most, extrapolated(built, probing, len(draws), most), len(draws) == most)


def extrapolated(built: float, probing: float, ran: int, most: int) -> float:
    """Seconds of a graph and `most` products of equal cost, of which some ran."""
    return built + probing * most / ran


def _questions(page: Page, settings: Settings, width: int, count: int) -> None:
    net = trained(width, settings)
    batches = net.batches(count, 8 if settings.quick else BATCH)
    where = f"width {width}, {count} x {len(batches[0][0])} rows"
    need = needs(settings, net, batches)
    settings.free()
    graphs = "keeps the graph of its one batch" if count == 1 else "rebuilds every batch's graph for every product"
    page.say(
        f"{where.capitalize()}: the largest eigenvalues are {', '.join(f'{value:.4g}' for value in need.top)}, the "
        f"trace is {need.truth['trace']:.5g}. For equal accuracy PyHessian's procedure, which {graphs}, needs {need}; "
        f"at most {CAP} of each ran per round. {net.about}.",
        "",
    )
    ours = {"lambda_max": Eigenvalue(rtol=1e-3), "trace": Trace(rtol=0.02)}
    if settings.quick:
        ours = {"lambda_max": Eigenvalue(rtol=0.5), "trace": Trace(rtol=0.5, most=12, by=partial(Sweep, deflate=2))}
    theirs = {"lambda_max": (power_iteration, need.iterations), "trace": (hutchinson, need.probes)}
    for kind, question in ours.items():
        tools: dict[str, Callable[[int], Run]] = {
            OURS: partial(_ours, settings, question, net, batches, None),
            PEER: lambda seed, kind=kind: _peers(settings, net, batches, *theirs[kind]),
        }
        for precision in precisions() if kind == "lambda_max" and (count == 1 or settings.quick) else ():
            tools[f"{OURS}, {precision}"] = partial(_ours, settings, question, net, batches, precision)
        results: dict[str, list[Run]] = {name: [] for name in tools}
        for i in settings.within(LEAST, inf):
            for name in random.sample(sorted(tools), len(tools)):
                torch.manual_seed(i)
                results[name].append(tools[name](i))
                settings.free()
        _answers(page, kind, need.truth[kind], results, where)


def _answers(page: Page, kind: str, truth: float, results: Mapping[str, Sequence[Run]], where: str) -> None:
    rows = []
    base = [run.seconds for run in results[OURS]]
    for name, runs in results.items():
        seconds = [run.seconds for run in runs]
        slower = ratios(seconds, base)
        worst = max(abs(run.value / truth - 1) for run in runs)
        products = statistics.median(run.products for run in runs)
        error = f"{worst:.1e}" if all(run.complete for run in runs) else "as set up"
        rows.append((name, spread(seconds, ".3f"), len(runs), spread(slower), f"{products:.4g}", error))
        if name == PEER:
            ahead, target = statistics.median(slower), AHEAD[kind]
            what = f"{kind}: PyHessian's procedure / steppe, {where}"
            page.bar(what, f"at least {target}", f"{ahead:.2f}", ahead >= target)
        if name == OURS:
            # a standard error is not a bound: errors of up to three of them are expected
            allowed = ACCURACY[kind] * (3 if kind == "trace" else 1)
            what = f"{kind}: largest error of steppe, {where}"
            page.bar(what, f"at most {allowed:g}", f"{worst:.1e}", worst <= allowed)
    heads = ("tool", "s at equal accuracy", "n", "this / steppe", "products", "largest error")
    page.table(f"{TITLES[kind]}, {where}", heads, rows)
