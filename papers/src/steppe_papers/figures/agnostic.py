"""Agnostic-SAM's Theorem 2 on real gradients, and the cosine between the gradients of two parts of a batch in training.

Theorem 2: with g_t at w and g_v at w_v = w + eta_2 grad L_v(w), and steps eta_1 <= |g_t.g_v| / 12 |g_v H_t g_t| and
eta_2 <= |g_t.g_v| / 6 max(|g_v H_t g_v|, |g_v H_v g_t|), the gradient of L_t at w + eta_1 g_t - eta_2 g_v has an inner
product with g_v of at least half of g_t.g_v, or 3/2 of it where that is negative.

The proof differentiates the first-order expansion of L_t(w_t) as a function of w, steps included. But the algorithm
and the left side of the inequality use the gradient of L_t at the point w_t, which expands to
g_t + eta_1 H_t g_t - eta_2 H_t g_v: eta_1 once where the proof has it twice, and no H_v. Under the same conditions the
inner product then loses a quarter where the theorem allows a half, so the claim survives, up to second-order terms that
the conditions do not bound. The bound on eta_2 contains eta_2 on both sides, through w_v.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy
from torch.nn.utils import parameters_to_vector

from steppe import Vector, build
from steppe.extend import BLUE, GREEN, GREY, ORANGE, VERMILLION
from steppe.measures import Curvature, Objective

from .panels import Panel, dots, line, picture
from .registry import Result, Settings
from .small_radius import images, network

SHARE = 0.7  # of a batch, for training: section 3.3
METHODS: dict[str, dict[str, float]] = {
    "none": {},
    "sam": {"rho": 0.1},
    "agnostic-sam": {"rho": 0.1, "held_out_rho": 0.05},  # section 4.1, CIFAR-10: rho_1 = 2 rho_2
}

# -- Theorem 2 --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parts:
    """The two parts of a batch, as two objectives of one model."""

    train: Objective
    held_out: Objective


@dataclass(frozen=True)
class Inequality:
    """Both sides of Theorem 2 at one point, and two first-order expansions of the left side."""

    eta_1: float
    eta_2: float
    before: float  # g_t(w) . g_v(w_v)
    after: float  # grad L_t(w_t) . g_v(w_v)
    corrected: float  # before + eta_1 g_v H_t g_t - eta_2 g_v H_t g_v
    printed: float  # before + 2 eta_1 g_v H_t g_t - eta_2 g_v H_t g_v - eta_2 g_v H_v g_t
    most_1: float  # the largest eta_1 that the theorem admits at this point
    most_2: float
    cosine: float  # between grad L_t(w_t) and g_v(w_v)

    @property
    def bound(self) -> float:
        """The theorem's lower bound on `after`."""
        return (0.5 if self.before >= 0 else 1.5) * self.before

    @property
    def holds(self) -> bool:
        """Whether `after` is at least `bound`."""
        return self.after >= self.bound

    @property
    def admitted(self) -> bool:
        """Whether both steps satisfy the conditions of the theorem."""
        return self.eta_1 <= self.most_1 and self.eta_2 <= self.most_2


def split(model: nn.Module, x: Tensor, y: Tensor) -> Parts:
    """A batch split into its first rows, for training, and the others; the order of the rows is already random."""
    cut = round(SHARE * len(x))
    return Parts(
        Objective(model, cross_entropy, (x[:cut], y[:cut])), Objective(model, cross_entropy, (x[cut:], y[cut:]))
    )


def inequality(parts: Parts, eta_1: float, eta_2: float, ascent: float | None = None) -> Inequality:
    """Both sides of Theorem 2 for steps of these sizes; `ascent`, the step to w_v, is eta_2 in the theorem."""
    g_t, grad_v = parts.train.gradient()[1], parts.held_out.gradient()[1]
    to_w_v = grad_v * (eta_2 if ascent is None else ascent)
    g_v = parts.held_out.gradient(to_w_v.clone())[1]
    h_t = Curvature(parts.train).products([g_t.clone(), g_v.clone()])
    h_v = _hessian_product(parts.held_out, to_w_v, g_t)
    vtt, vtv, vvt = float(g_v.dot(h_t[0])), float(g_v.dot(h_t[1])), float(g_v.dot(h_v))
    before = float(g_t.dot(g_v))
    at_w_t = parts.train.gradient(g_t * eta_1 - g_v * eta_2)[1]
    after = float(at_w_t.dot(g_v))
    return Inequality(
        eta_1, eta_2, before, after,
        corrected=before + eta_1 * vtt - eta_2 * vtv,
        printed=before + 2 * eta_1 * vtt - eta_2 * vtv - eta_2 * vvt,
        most_1=_ratio(abs(before), 12 * abs(vtt)), most_2=_ratio(abs(before), 6 * max(abs(vtv), abs(vvt))),
        cosine=after / max(float(at_w_t.norm() * g_v.norm()), 1e-300),
    )  # fmt: skip


def at_largest_steps(parts: Parts, shrink: float = 0.8, attempts: int = 60) -> Inequality:
    """The inequality at the largest admitted steps; eta_2 shrinks until it satisfies the bound that depends on it."""
    eta_2 = inequality(parts, 0.0, 0.0).most_2
    for _ in range(attempts):
        eta_1 = inequality(parts, 0.0, eta_2).most_1
        candidate = inequality(parts, eta_1, eta_2)
        if candidate.admitted:
            return candidate
        eta_2 *= shrink
    raise ValueError(f"no eta_2 down to {eta_2:g} satisfies its own bound: the two gradients are nearly orthogonal")


def at_radii(parts: Parts, rho_1: float, rho_2: float) -> Inequality:
    """The inequality at the steps of the practical algorithm, eta = rho / |gradient|."""
    g_t, grad_v = parts.train.gradient()[1], parts.held_out.gradient()[1]
    ascent = rho_2 / float(grad_v.norm())
    g_v = parts.held_out.gradient(grad_v * ascent)[1]
    return inequality(parts, rho_1 / float(g_t.norm()), rho_2 / float(g_v.norm()), ascent)


def expansion_errors(parts: Parts, etas: Sequence[float]) -> list[dict[str, float]]:
    """Errors of the two first-order expansions of the inner product, for each step size."""
    points = [inequality(parts, eta, eta) for eta in etas]
    return [
        {"eta": p.eta_1, "corrected": abs(p.after - p.corrected), "printed": abs(p.after - p.printed)} for p in points
    ]


def _ratio(above: float, below: float) -> float:
    return above / below if below > 0 else float("inf")


def _hessian_product(objective: Objective, at: Vector, v: Vector, step: float = 1e-4) -> Vector:
    """H(w + at) v, by a central difference of gradients with a step relative to the length of v."""
    scale = step / max(float(v.norm()), 1e-300)
    plus = objective.gradient(at + v * scale)[1]
    minus = objective.gradient(at + v * (-scale))[1]
    return (plus - minus).mul_(1 / (2 * scale))


# -- the study --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """Sizes of `gradient-congruence`."""

    rows: int = 800
    width: int = 32
    batch: int = 100
    epochs: int = 30
    seeds: int = 3
    checks: int = 40  # points at which Theorem 2 is checked
    lr: float = 0.2


@dataclass(frozen=True)
class History:
    """One training run, epoch by epoch."""

    cosine: list[float]  # mean over the batches of an epoch, each split 7 : 3
    loss: list[float]
    checks: list[dict[str, Any]]


def gradient_cosine(model: nn.Module, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> float:
    """The cosine between the gradients of the mean loss on two sets of rows."""
    losses = (cross_entropy(model(x), y) for x, y in (first, second))
    grads = [parameters_to_vector(torch.autograd.grad(loss, list(model.parameters()))) for loss in losses]
    return float(cosine_similarity(grads[0], grads[1], dim=0))


def train(name: str, sizes: Sizes, seed: int, checks: int = 0) -> History:
    """One run on the digits; the cosine is computed on a split of every batch before the step, for every method."""
    x, y = images(sizes.rows)
    model = network(sizes.width, seed)
    base = torch.optim.SGD(model.parameters(), lr=sizes.lr)
    opt = build(name, base, model=model, seed=seed, **METHODS[name])
    order = torch.Generator().manual_seed(seed)
    history = History([], [], [])
    every = max(1, sizes.epochs * (len(x) // sizes.batch) // max(1, checks))
    step = 0
    for _ in range(sizes.epochs):
        cosines = []
        for rows in torch.split(torch.randperm(len(x), generator=order), sizes.batch):
            bx, by = x[rows], y[rows]
            cut = round(SHARE * len(rows))
            cosines.append(gradient_cosine(model, (bx[:cut], by[:cut]), (bx[cut:], by[cut:])))
            if checks and step % every == 0:
                history.checks.append(_check(split(model, bx, by), step))
            for pass_ in opt.passes():
                pass_.backward(cross_entropy(model(pass_.rows(bx)), pass_.rows(by)))
            opt.step()
            step += 1
        history.cosine.append(fmean(cosines))
        history.loss.append(float(cross_entropy(model(x), y).detach()))
    return history


def _check(parts: Parts, step: int) -> dict[str, Any]:
    radii = METHODS["agnostic-sam"]
    points = {"admitted": at_largest_steps(parts), "practice": at_radii(parts, radii["rho"], radii["held_out_rho"])}
    return {"step": step} | {k: {**vars(p), "holds": p.holds, "within": p.admitted} for k, p in points.items()}


def gradient_congruence(settings: Settings) -> Result:
    """Both sides of Theorem 2 in training, the error of its proof's expansion, and the cosine of the two gradients."""
    sizes = settings.of(Sizes(), rows=200, epochs=3, seeds=1, checks=4)
    runs: dict[str, list[History]] = {name: [] for name in METHODS}
    for seed in range(settings.seed, settings.seed + sizes.seeds):
        for name, histories in runs.items():
            checked = seed == settings.seed and name == "agnostic-sam"
            histories.append(train(name, sizes, seed, sizes.checks if checked else 0))
            settings.tick(sum(map(len, runs.values())), sizes.seeds * len(METHODS))
    checks = runs["agnostic-sam"][0].checks
    x, y = images(sizes.batch)
    errors = expansion_errors(split(network(sizes.width, settings.seed), x, y), torch.logspace(-4, 0, 9).tolist())
    courses = {
        name: {"cosine": _means(h.cosine for h in histories), "loss": _means(h.loss for h in histories),
               "last": [fmean(h.cosine[-3:]) for h in histories]}
        for name, histories in runs.items()
    }  # fmt: skip
    data = {"checks": checks, "expansions": errors, "courses": courses, "sizes": vars(sizes)}
    words = _words(checks, errors, courses)
    return Result(data, _draw(data), words)


def _means(runs: Iterable[Sequence[float]]) -> list[float]:
    """The mean over runs, epoch by epoch."""
    return [fmean(values) for values in zip(*runs, strict=True)]


def _words(checks: Sequence[Any], errors: Sequence[dict[str, float]], courses: dict[str, Any]) -> list[str]:
    admitted, practice = ([c[k] for c in checks] for k in ("admitted", "practice"))
    smallest = errors[0]
    return [
        f"Theorem 2 holds at {sum(c['holds'] for c in admitted)} of {len(checks)} points of training at the largest "
        f"steps that it admits. The algorithm's radii satisfy its conditions at {sum(c['within'] for c in practice)} "
        f"of them, and the inequality holds with these radii at {sum(c['holds'] for c in practice)}.",
        f"At eta = {smallest['eta']:.0e} the error of the proof's expansion is {smallest['printed']:.1e}, that of the "
        f"corrected one {smallest['corrected']:.1e}.",
        "Mean cosine of the two gradients over the last three epochs: "
        + ", ".join(f"{name} {fmean(c['last']):.3f} ({min(c['last']):.3f} to {max(c['last']):.3f})"
                    for name, c in courses.items()) + ".",
    ]  # fmt: skip


def _draw(data: dict[str, Any]) -> dict[str, Any]:
    steps = [c["step"] for c in data["checks"]]
    kinds = (("largest admitted steps", "admitted", BLUE), ("the algorithm's radii", "practice", ORANGE))
    sides = [
        dots(name, steps, [c[key]["after"] / abs(c[key]["before"]) for c in data["checks"]], colour)
        for name, key, colour in kinds
    ]
    bounds = [(0.5 if c["admitted"]["before"] >= 0 else -1.5) for c in data["checks"]]
    sides.append(line("bound", steps, bounds, GREY, line={"dash": "dot"}))
    etas = [e["eta"] for e in data["expansions"]]
    errors = [
        line(name, etas, [e[key] for e in data["expansions"]], colour, mode="lines+markers")
        for name, key, colour in (("proof's expansion", "printed", VERMILLION), ("corrected", "corrected", GREEN))
    ]
    colours = {"none": GREY, "sam": BLUE, "agnostic-sam": ORANGE}
    curves = [
        line(name, list(range(1, len(course["cosine"]) + 1)), course["cosine"], colours[name])
        for name, course in data["courses"].items()
    ]
    return picture(
        "Agnostic-SAM: Theorem 2 and the cosine of the two gradients, on the digits",
        Panel("left side over |g<sub>t</sub>·g<sub>v</sub>|", "training step", "ratio", sides),
        Panel("error of two expansions", "η₁ = η₂", "error of the inner product", errors, "xy"),
        Panel("cosine in training", "epoch", "cosine of the gradients", curves),
    )
