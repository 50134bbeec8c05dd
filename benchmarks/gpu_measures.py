"""The squared gradient norm of every row costs about a gradient, and Auto-PGD costs its gradients."""

from __future__ import annotations

import math
import statistics
from functools import partial
from typing import Any

import torch
from gpu_networks import trained
from gpu_timing import Asked, Page, interleaved, ratios, spread
from measures_peers import published_ascent, rows_by_vmap
from torch.nn.functional import cross_entropy

from steppe import Ball, Objective
from steppe.measures import AutoPGD, WorstCase, fisher_traces

ABOUT = """
ResNet-18 after some hundred SAM steps, eval mode, one batch of 256, float32 without TF32. Losses were found to be
functions of the weights before. Peers are reimplemented: vmap(grad) on all rows at once, and the worst-case search as
published, with an extra forward pass a step and records kept as copies.
"""
BATCH, STEPS, RHO = 256, 20, 0.1
ENDS = {16: 24.0, 64: 57.0}  # seconds since the first table was begun, at the latest, by width
GRADIENT, ROWS = "one gradient", "steppe, squared gradient norm of every row"
VMAP = "the same by vmap(grad), all rows at once"


def report(asked: Asked) -> Page:
    page = Page("measures", ABOUT, asked)
    if asked.gpu:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    for width, end in {2: math.inf}.items() if asked.quick else ENDS.items():
        _width(page, asked, width, end)
    return page


def _width(page: Page, asked: Asked, width: int, end: float) -> None:
    size, steps = (4, 3) if asked.quick else (BATCH, STEPS)
    net = trained(width, asked)
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

    peaks = {name: asked.peak(partial(answer, name)) for name in works}  # warms up, too
    found = interleaved(asked, works, 5, 12.0, warm=0, left=page.left(end))
    table = [
        (
            name,
            spread([t / 1e3 for t in times], ".4f"),
            len(times),
            spread(ratios(times, found[GRADIENT])),
            spread(ratios(times, found[alone])) if name not in (GRADIENT, ROWS, VMAP) else "",
            f"{peaks[name]:.0f}",
        )
        for name, times in found.items()
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
    each = statistics.median(ratios(found[ROWS], found[GRADIENT]))
    page.bar(
        f"squared gradient norms of all rows / one gradient, width {width}",
        "about 1: at most 1.5",
        f"{each:.2f}",
        each <= 1.5,
    )
