"""Algorithms that look at rows, rewritten with plain autograd on all workers' rows at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import torch
from torch import Tensor, nn

from steppe.core.draw import seed_of
from steppe.core.rows import Split

from .pair import WORLD
from .problems import BASES, ROWS, STEPS, batch, losses, make, network, weights

EACH = ROWS // WORLD  # rows of one worker
Gradient = list[Tensor]
Direction = Callable[[nn.Module, int], Gradient]  # of a model, at a step


def naively(direction: Direction) -> dict[str, Tensor]:
    """The weights after plain SGD on these directions."""
    model = make(network)
    opt = BASES["sgd"](model)
    for step in range(STEPS):
        for p, g in zip(model.parameters(), direction(model, step), strict=True):
            p.grad = g
        opt.step()
    return weights(model)


def gradient_at(model: nn.Module, x: Tensor, y: Tensor, away: Gradient | None = None) -> Gradient:
    places = {
        name: (p.detach() + (0 if away is None else away[i])).requires_grad_()
        for i, (name, p) in enumerate(model.named_parameters())
    }
    output = torch.func.functional_call(model, places, (x,))
    return list(torch.autograd.grad((output.sum(-1) - y).square().mean(), list(places.values())))


def steepest(grad: Gradient, rho: float) -> Gradient:
    length = torch.cat([g.flatten() for g in grad]).norm()
    return [rho * g / length for g in grad]


def averaged(gradients: Sequence[Gradient], shares: Sequence[float]) -> Gradient:
    return [sum(s * g for s, g in zip(shares, parts, strict=True)) for parts in zip(*gradients, strict=True)]  # type: ignore[misc]


def mask_of(step: int, rank: int) -> Tensor:
    """Sharp rows: unequal counts, then one worker without any, then one with nothing else, then nobody has any."""
    sharp = [(1, 3), (0, 2), (3, EACH), (0, 0)][step][rank]
    return torch.arange(EACH) >= EACH - sharp


def sharpbalance(model: nn.Module, step: int) -> Gradient:
    """Every worker mixes its normal and its sharp rows by their counts; the workers are averaged."""
    parts, shares = [], []
    for rank in range(WORLD):
        (x, y), sharp = batch(step, rank, WORLD), mask_of(step, rank)
        if not sharp.all():
            parts.append(gradient_at(model, x[~sharp], y[~sharp]))
            shares.append(float((~sharp).sum()) / ROWS)
        if sharp.any():
            up = steepest(gradient_at(model, x[sharp], y[sharp]), 0.1)
            parts.append(gradient_at(model, x[sharp], y[sharp], up))
            shares.append(float(sharp.sum()) / ROWS)
    return averaged(parts, shares)


def agnostic(simple: bool) -> Direction:
    """Every worker splits its own rows, all in the same way."""

    def direction(model: nn.Module, step: int) -> Gradient:
        whole = [batch(step, rank, WORLD) for rank in range(WORLD)]

        def part(rest: bool) -> tuple[Tensor, Tensor]:
            index = Split(0.7, (0, step, 0), rest=rest).index(EACH)
            return torch.cat([x[index] for x, _ in whole]), torch.cat([y[index] for _, y in whole])

        train_rows, held = part(rest=False), part(rest=True)
        down = steepest(gradient_at(model, *held), 0.05)
        if not simple:
            down = steepest(gradient_at(model, *held, down), 0.05)
        up = steepest(gradient_at(model, *train_rows), 0.1)
        return gradient_at(model, *train_rows, [a - b for a, b in zip(up, down, strict=True)])

    return direction


def esam(model: nn.Module, step: int) -> Gradient:
    """Every worker keeps the half of its own rows that got worse most."""
    x, y = batch(step)
    chance = torch.rand(len(list(model.parameters())), generator=torch.Generator().manual_seed(seed_of(0, step, 0)))
    up = steepest(gradient_at(model, x, y), 0.1)
    up = [d / 0.6 if c < 0.6 else torch.zeros_like(d) for d, c in zip(up, chance.tolist(), strict=True)]
    there = {name: p.detach() + d for (name, p), d in zip(model.named_parameters(), up, strict=True)}
    with torch.no_grad():
        worse = (torch.func.functional_call(model, there, (x,)).sum(-1) - y).square() - losses(model, x, y)
    picked = [w.topk(ceil(0.5 * EACH)).indices + rank * EACH for rank, w in enumerate(worse.split(EACH))]
    return averaged([gradient_at(model, x[i], y[i], up) for i in picked], [1 / WORLD] * WORLD)


def per_part(model: nn.Module, step: int) -> Gradient:
    """The i-th part is the i-th part of every worker's rows."""
    x, y = batch(step)
    order = torch.arange(ROWS).view(WORLD, 2, EACH // 2).transpose(0, 1).flatten(1)
    tops = [gradient_at(model, x[i], y[i], steepest(gradient_at(model, x[i], y[i]), 0.1)) for i in order]
    return averaged(tops, [0.5, 0.5])


def fisher_sparse() -> Direction:
    """The Fisher information is from the first three rows of every worker, renewed every other step."""
    mask: Gradient = []

    def direction(model: nn.Module, step: int) -> Gradient:
        x, y = batch(step)
        if step % 2 == 0:
            rows = [rank * EACH + i for rank in range(WORLD) for i in range(3)]
            alone = [gradient_at(model, x[i : i + 1], y[i : i + 1]) for i in rows]
            fisher = averaged([[g * g for g in grad] for grad in alone], [1.0] * len(alone))
            entries = torch.cat([f.flatten() for f in fisher])
            threshold = entries.sort(descending=True).values[round(0.5 * len(entries)) - 1]
            mask[:] = [(f >= threshold).double() for f in fisher]
        up = steepest(gradient_at(model, x, y), 0.1)
        return gradient_at(model, x, y, [m * d for m, d in zip(mask, up, strict=True)])

    return direction


NAIVE: dict[str, Callable[[], Direction]] = {
    "agnostic-sam": lambda: agnostic(simple=False),
    "agnostic-sam-simple": lambda: agnostic(simple=True),
    "esam": lambda: esam,
    "m-sam": lambda: per_part,
    "sharpbalance": lambda: sharpbalance,
    "ssam-f": fisher_sparse,
}
