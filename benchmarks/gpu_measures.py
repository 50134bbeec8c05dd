"""The squared gradient norm of every row costs about a gradient, and Auto-PGD costs its gradients."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import torch
from gpu_networks import trained
from gpu_timing import Page, Settings, interleaved, ratios, spread
from measures_peers import published_ascent, rows_by_vmap
from torch.nn.functional import cross_entropy

from steppe import Ball, Objective
from steppe.measures import AutoPGD, WorstCase, fisher_traces

ABOUT = """
ResNet-18 after some hundred SAM steps, eval mode, one batch of 256, float32 without TF32. The check that the loss is
deterministic is not timed. Peers are reimplemented: vmap(grad) on all rows at once, and the worst-case search as
published, with an extra forward pass per step and copies of the best points.
"""
BATCH, STEPS, RHO = 256, 20, 0.1
ENDS = {16: 24.0, 64: 57.0}  # seconds after the start at which each width ends at the latest
GRADIENT, ROWS = "one gradient", "steppe, squared gradient norm of every row"
VMAP = "the same by vmap(grad), all rows at once"


def measures(settings: Settings) -> Page:
    """Writes the page of the theme."""
    page = Page("measures", ABOUT, settings)
    if settings.gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for width, end in {2: math.inf}.items() if settings.quick else ENDS.items():
        _width(page, settings, width, end)
    return page


def _width(page: Page, settings: Settings, width: int, end: float) -> None:
    size, steps = (4, 3) if settings.quick else (BATCH, STEPS)
    net = trained(width, settings)
    (rows,) = net.batches(1, size)
    params = list(net.model.parameters())
    objective = Objective(net.model, cross_entropy, [rows])
    objective.check()

    def gradients(many: int) -> None:
        for _ in range(many):
            torch.autograd.grad(cross_entropy(net.model(rows[0]), rows[1]), params)

    ours = WorstCase(Ball(RHO), steps=steps, starts=1, climb=AutoPGD())
    published = f"published search of {steps} steps (reimplemented)"
    alone, climb = f"{steps + 1} gradients and nothing else", f"steppe, Auto-PGD of {steps} steps"
    works = {
        GRADIENT: lambda: gradients(1),
        ROWS: lambda: fisher_traces(objective),
        VMAP: lambda: rows_by_vmap(net.model, *rows),
        alone: lambda: gradients(steps + 1),
        climb: lambda: ours.estimate(objective),
        published: lambda: published_ascent(net.model, *rows, RHO, steps=steps),
    }
    answers: dict[str, Any] = {}

    def answer(name: str) -> None:
        answers[name] = works[name]()

    peaks = {name: settings.peak(partial(answer, name)) for name in works}  # also warms up
    times_of = interleaved(settings, works, 5, 12.0, warm=0, left=page.left(end))
    table = [
        (
            name,
            spread([t / 1e3 for t in times], ".4f"),
            len(times),
            spread(ratios(times, times_of[GRADIENT])),
            spread(ratios(times, times_of[alone])) if name not in (GRADIENT, ROWS, VMAP) else "",
            f"{peaks[name]:.0f}",
        )
        for name, times in times_of.items()
    ]
    heads = ("work", "seconds", "n", "in gradients", f"/ {alone}", "peak MiB")
    page.table(f"Width {width}, batch {size}", heads, table)
    other = answers[VMAP].double().cpu()
    off = float(((answers[ROWS] - other).abs() / (other + 1e-3 * other.mean())).max())
    page.say(
        f"{net.about}. Rows agree with vmap's to {off:.1e}; Auto-PGD rises by {answers[climb].value:.4g}, the "
        f"published search by {answers[published]['rise']:.4g}, in the l2 ball of radius {RHO:g}.",
        "",
    )
    each = statistics.median(ratios(times_of[ROWS], times_of[GRADIENT]))
    page.bar(
        f"squared gradient norms of all rows / one gradient, width {width}",
        "about 1: at most 1.5",
        f"{each:.2f}",
        each <= 1.5,
    )
