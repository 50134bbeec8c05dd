"""A naive bilevel method beside Agnostic-SAM, on the digits with wrong labels (Nguyen et al. 2024, section 3.3).

The paper derives Agnostic-SAM from min L_v(w*) over the minimisers w* of L_t, both in their worst case in a ball, and
dismisses the naive approach: one step on the training rows as w*(w), and the gradient of the held-out rows there, as in
MAML. "This mainly optimizes the loss over the validation set." It has no experiment with it. Here is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from steppe import SAM, AgnosticSAM, Ball, Method, Plain, Probe, SharpnessAware
from steppe.data import load
from steppe.extend import BLUE, GREY, ORANGE, VERMILLION

from .panels import Panel, dots, picture
from .registry import Result, Settings
from .small_radius import network


@dataclass(frozen=True)
class FirstRows:
    """The first share of a batch, or with `rest` the other rows; batches are in random order."""

    share: float
    rest: bool = False

    def index(self, n: int) -> slice:
        """The chosen rows of a batch of n."""
        cut = round(self.share * n)
        return slice(cut, None) if self.rest else slice(cut)


@dataclass(frozen=True)
class BilevelSAM(Method):
    """The gradient on B_v at w' + held_out_rho g_v(w') / |.|, where w' is one step of SAM from w on B_t.

    This is first-order MAML: the derivative of w' by w is taken for the identity. Four passes, as in Agnostic-SAM.

    Parameters
    ----------
    rho, held_out_rho
        The radii of the ascents on the training and on the held-out rows.
    inner_lr
        The length of the step to w' over its gradient.
    share
        The fraction of each batch that becomes B_t.

    """

    rho: float = 0.1
    held_out_rho: float = 0.05
    inner_lr: float = 0.1
    share: float = 0.7

    def plan(self, context: Any) -> Any:
        """One step."""
        train, rest = FirstRows(self.share), FirstRows(self.share, rest=True)
        here = yield Probe(rows=train)
        top = Ball(self.rho).within(context).steepest(here.grad, context)
        moved = (yield Probe(at=top, rows=train)).grad * -self.inner_lr
        held = yield Probe(at=moved.clone(), rows=rest)
        peak = Ball(self.held_out_rho).steepest(held.grad, context)  # `within` is for rho, an option of groups
        return (yield Probe(at=peak + moved, rows=rest)).grad


@dataclass(frozen=True)
class Sizes:
    """Sizes of `bilevel`."""

    wrong: float = 0.4  # share of wrong labels in training
    width: int = 64
    epochs: int = 60
    batch: int = 64
    sweep: int = 3  # seeds per trial
    seeds: int = 10  # of the selected settings


LR = 0.1
TRIALS: Mapping[str, Sequence[tuple[float, Method]]] = {  # learning rates and methods, five of each kind
    "SGD": [(lr, Plain()) for lr in (0.0015625, 0.003125, 0.00625, 0.0125, 0.025)],
    "SAM": [(LR, SAM(rho)) for rho in (0.1, 0.2, 0.4, 0.8, 1.6)],
    "Agnostic-SAM": [(LR, AgnosticSAM(rho)) for rho in (0.1, 0.2, 0.4, 0.8, 1.6)],
    "bilevel": [
        (LR, BilevelSAM(rho, rho / 2, inner))
        for rho, inner in ((0.2, 0.1), (0.4, 0.1), (0.8, 0.1), (0.4, 0.03), (0.4, 0.2))
    ],
}


def options(lr: float, method: Method) -> dict[str, float]:
    """What the trials of a method differ in."""
    varied = {name: getattr(method, name) for name in ("rho", "inner_lr") if hasattr(method, name)}
    return varied or {"lr": lr}


def digits(wrong: float, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training rows with wrong labels, each another class at random, and clean test rows."""
    splits = load("digits")
    x, test_x = (part.inputs.flatten(1).double() / 255 for part in (splits.train, splits.test))
    generator = torch.Generator().manual_seed(seed)
    y = splits.train.targets.clone()
    flipped = torch.rand(len(y), generator=generator) < wrong
    y[flipped] = (y[flipped] + torch.randint(1, 10, (int(flipped.sum()),), generator=generator)) % 10
    return x, y, test_x, splits.test.targets


def batches(x: Tensor, y: Tensor, size: int, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """The complete batches of one epoch."""
    order = torch.randperm(len(x), generator=generator)
    for k in range(len(x) // size):
        rows = order[k * size : (k + 1) * size]
        yield x[rows], y[rows]


def test_error(trial: tuple[float, Method], sizes: Sizes, seed: int, rows: Sequence[Tensor]) -> float:
    """The error in percent on test rows after training; `rows` are those of training and testing, with labels."""
    lr, method = trial
    x, y, test_x, test_y = rows
    model = network(sizes.width, seed)
    base = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=5e-4)
    opt = SharpnessAware(base, method, model=model, seed=seed)
    steps = sizes.epochs * (len(x) // sizes.batch)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(base, steps)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(sizes.epochs):
        for batch_x, batch_y in batches(x, y, sizes.batch, generator):
            opt.zero_grad()
            for pass_ in opt.passes():
                pass_.backward(cross_entropy(model(pass_.rows(batch_x)), pass_.rows(batch_y)))
            opt.step()
            schedule.step()
    with torch.no_grad():
        return 100 * float((model(test_x).argmax(1) != test_y).double().mean())


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """The mean and its 95 % interval by Student's t."""
    from scipy.stats import t

    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return fmean(values), fmean(values) - half, fmean(values) + half


def bilevel(settings: Settings) -> Result:
    """Test errors of SGD, SAM, Agnostic-SAM and the naive bilevel method, each at the best of five settings."""
    sizes = settings.of(Sizes(), epochs=2, sweep=1, seeds=2)
    data = {seed: digits(sizes.wrong, seed) for seed in range(settings.seed, settings.seed + sizes.seeds)}
    others = {seed: digits(sizes.wrong, seed) for seed in range(1000, 1000 + sizes.sweep)}
    kept = {  # the last fifth of the training rows validates, with its wrong labels
        seed: (x[: len(x) * 4 // 5], y[: len(y) * 4 // 5], x[len(x) * 4 // 5 :], y[len(y) * 4 // 5 :])
        for seed, (x, y, *_) in others.items()
    }
    rows: list[dict[str, Any]] = []
    for done, (name, trials) in enumerate(TRIALS.items()):
        validation = [fmean(test_error(trial, sizes, seed, of) for seed, of in kept.items()) for trial in trials]
        best = trials[min(range(len(trials)), key=validation.__getitem__)]
        rows.append({
            "method": name,
            "trials": [options(*t) | {"validation_error": e} for t, e in zip(trials, validation, strict=True)],
            "selected": options(*best),
            "errors": [test_error(best, sizes, seed, of) for seed, of in data.items()],
        })  # fmt: skip
        settings.tick(done + 1, len(TRIALS))
    (agnostic,) = (row["errors"] for row in rows if row["method"] == "Agnostic-SAM")
    words = []
    for row in rows:
        mean, stderr = fmean(row["errors"]), stdev(row["errors"]) / sqrt(sizes.seeds)
        chosen = ", ".join(f"{k} {v:g}" for k, v in row["selected"].items())
        text = f"{row['method']} ({chosen}): test error {mean:.2f} ± {stderr:.2f} %"
        if row["errors"] is not agnostic:
            row["difference"] = interval([a - b for a, b in zip(row["errors"], agnostic, strict=True)])
            text += ", minus Agnostic-SAM {:+.2f} [{:+.2f}, {:+.2f}]".format(*row["difference"])
        words.append(f"{text}.")
    words.append(
        f"Digits with {100 * sizes.wrong:.0f} % wrong labels, {sizes.seeds} seeds, paired, 95 % intervals; each method "
        f"at the best of {len(TRIALS['SGD'])} settings by validation rows with wrong labels ({sizes.sweep} seeds)."
    )
    return Result({"rows": rows, "sizes": vars(sizes), "seed": settings.seed}, _draw(rows), words)


def _draw(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    colours = dict(zip(TRIALS, (GREY, BLUE, ORANGE, VERMILLION), strict=True))
    traces = [dots(r["method"], [r["method"]] * len(r["errors"]), r["errors"], colours[r["method"]]) for r in rows]
    return picture("Wrong labels: a naive bilevel method beside Agnostic-SAM", Panel("", "", "test error, %", traces))
