"""Studies of Agnostic-SAM on the digits: Theorem 2 in practice, and the congruence of gradients in training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from ..measures import Objective
from ..optim.build import build
from . import agnostic
from .panels import BLUE, GREEN, GREY, ORANGE, VERMILLION, Panel, dots, line, picture
from .result import Result, Settings
from .small_radius import images, network

METHODS: dict[str, dict[str, float]] = {
    "none": {},
    "sam": {"rho": 0.1},
    "agnostic-sam": {"rho": 0.1, "held_out_rho": 0.05},  # section 4.1, CIFAR-10: rho_1 = 2 rho_2
}


@dataclass(frozen=True)
class Sizes:
    """How much data, how long, how often."""

    rows: int = 800
    width: int = 32
    batch: int = 100
    epochs: int = 30
    seeds: int = 3
    checks: int = 40  # points at which Theorem 2 is checked
    lr: float = 0.2


def parts_of(model: nn.Module, x: Tensor, y: Tensor, share: float = 0.7) -> agnostic.Parts:
    """A batch in its first share of rows and the rest (section 3.3: 0.7); its order was random already."""
    cut = round(share * len(x))
    return agnostic.Parts(
        Objective(model, cross_entropy, (x[:cut], y[:cut])), Objective(model, cross_entropy, (x[cut:], y[cut:]))
    )


def congruence(model: nn.Module, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    """The cosine between the gradients of the mean loss on two sets of rows."""
    flat = []
    for x, y in (first, second):
        grads = torch.autograd.grad(cross_entropy(model(x), y), list(model.parameters()))
        flat.append(torch.cat([g.reshape(-1) for g in grads]))
    return float(cosine_similarity(flat[0], flat[1], dim=0))


@dataclass(frozen=True)
class Course:
    """What one training run showed, epoch by epoch."""

    cosine: list[float]  # mean over the batches of an epoch, each cut 7 : 3
    loss: list[float]
    checks: list[dict[str, Any]]


def train(name: str, sizes: Sizes, seed: int, check: int = 0) -> Course:
    """One run on the digits; every batch is cut for the cosine before the step, whatever the method does with it."""
    x, y = images(sizes.rows)
    model = network(sizes.width, seed)
    base = torch.optim.SGD(model.parameters(), lr=sizes.lr)
    opt = build(name, base, model=model, seed=seed, **METHODS[name])
    order = torch.Generator().manual_seed(seed)
    course = Course([], [], [])
    whole = max(1, sizes.epochs * (len(x) // sizes.batch) // max(1, check))
    step = 0
    for _ in range(sizes.epochs):
        cosines = []
        for rows in torch.split(torch.randperm(len(x), generator=order), sizes.batch):
            bx, by = x[rows], y[rows]
            cut = round(0.7 * len(rows))
            cosines.append(congruence(model, (bx[:cut], by[:cut]), (bx[cut:], by[cut:])))
            if check and step % whole == 0:
                course.checks.append(_checked(parts_of(model, bx, by), step))
            for turn in opt.passes():
                turn.backward(cross_entropy(model(turn.rows(bx)), turn.rows(by)))
            opt.step()
            step += 1
        course.cosine.append(fmean(cosines))
        course.loss.append(float(cross_entropy(model(x), y).detach()))
    return course


def _checked(parts: agnostic.Parts, step: int) -> dict[str, Any]:
    kept = {"step": step}
    for name, found in {
        "admitted": agnostic.largest(parts),
        "practice": agnostic.radii(parts, METHODS["agnostic-sam"]["rho"], METHODS["agnostic-sam"]["held_out_rho"]),
    }.items():
        kept[name] = {**vars(found), "holds": found.holds, "within": found.admitted}  # type: ignore[assignment]
    return kept


def expansions(parts: agnostic.Parts, etas: Sequence[float]) -> list[dict[str, float]]:
    """How far the two expansions to first order lie from the inner product itself, for shorter and shorter steps."""
    found = [agnostic.inequality(parts, eta, eta) for eta in etas]
    return [
        {"eta": f.eta_1, "corrected": abs(f.after - f.corrected), "printed": abs(f.after - f.printed)} for f in found
    ]


def gradient_congruence(settings: Settings) -> Result:
    """Theorem 2's two sides in training, what its proof's expansion misses, and the cosine of both gradients."""
    sizes = settings.of(Sizes(), rows=200, epochs=3, seeds=1, checks=4)
    runs: dict[str, list[Course]] = {name: [] for name in METHODS}
    for seed in range(settings.seed, settings.seed + sizes.seeds):
        for name, done in runs.items():
            first = seed == settings.seed and name == "agnostic-sam"
            done.append(train(name, sizes, seed, sizes.checks if first else 0))
            settings.tick(sum(map(len, runs.values())), sizes.seeds * len(METHODS))
    checks = runs["agnostic-sam"][0].checks
    x, y = images(sizes.batch)
    errors = expansions(parts_of(network(sizes.width, settings.seed), x, y), torch.logspace(-4, 0, 9).tolist())
    courses = {
        name: {"cosine": [fmean(c) for c in zip(*(r.cosine for r in done), strict=True)],
               "loss": [fmean(c) for c in zip(*(r.loss for r in done), strict=True)],
               "last": [fmean(r.cosine[-3:]) for r in done]}
        for name, done in runs.items()
    }  # fmt: skip
    data = {"checks": checks, "expansions": errors, "courses": courses, "sizes": vars(sizes)}
    words = _words(checks, errors, courses)
    return Result(data, _draw(data, words), words)


def _words(checks: Sequence[Any], errors: Sequence[dict[str, float]], courses: dict[str, Any]) -> list[str]:
    admitted, practice = ([c[k] for c in checks] for k in ("admitted", "practice"))
    small = errors[0]
    return [
        f"Theorem 2 holds at {sum(c['holds'] for c in admitted)} of {len(checks)} points of training at the largest "
        f"steps it admits; the algorithm's radii are within its conditions at {sum(c['within'] for c in practice)}, "
        f"and its inequality holds there at {sum(c['holds'] for c in practice)}.",
        f"At eta = {small['eta']:.0e} the proof's expansion misses by {small['printed']:.1e}, the corrected one by "
        f"{small['corrected']:.1e}.",
        "Mean cosine of the two gradients over the last three epochs: "
        + ", ".join(f"{name} {fmean(c['last']):.3f} ({min(c['last']):.3f} to {max(c['last']):.3f})"
                    for name, c in courses.items()) + ".",
    ]  # fmt: skip


def _draw(data: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    sides = []
    for kind, colour in (("admitted", BLUE), ("practice", ORANGE)):
        found = [c[kind] for c in data["checks"]]
        ratio = [f["after"] / abs(f["before"]) for f in found]
        name = "largest admitted steps" if kind == "admitted" else "the algorithm's radii"
        sides.append(dots(name, [c["step"] for c in data["checks"]], ratio, colour))
    floor = [(0.5 if c["admitted"]["before"] >= 0 else -1.5) for c in data["checks"]]
    sides.append(line("promised", [c["step"] for c in data["checks"]], floor, GREY, line={"dash": "dot"}))
    etas = [e["eta"] for e in data["expansions"]]
    missed = [
        line("proof's expansion", etas, [e["printed"] for e in data["expansions"]], VERMILLION, mode="lines+markers"),
        line("corrected", etas, [e["corrected"] for e in data["expansions"]], GREEN, mode="lines+markers"),
    ]
    colours = {"none": GREY, "sam": BLUE, "agnostic-sam": ORANGE}
    curves = []
    for name, course in data["courses"].items():
        epochs = list(range(1, len(course["cosine"]) + 1))
        curves.append(line(name, epochs, course["cosine"], colours[name]))
    return picture(
        "Agnostic-SAM: Theorem 2 and the congruence of two gradients, on the digits",
        " ".join(words),
        Panel("left side over |g<sub>t</sub>·g<sub>v</sub>|", "step of training", "ratio", sides),
        Panel("error of two expansions", "η₁ = η₂", "error of the inner product", missed, "xy"),
        Panel("congruence in training", "epoch", "cosine of the parts' gradients", curves),
    )
