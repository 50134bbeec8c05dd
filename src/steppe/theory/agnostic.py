"""Agnostic-SAM's Theorem 2 on real gradients, and how congruent the gradients of two parts of a batch are in training.

Theorem 2: with g_t at w and g_v at w_v = w + eta_2 grad L_v(w), and steps eta_1 <= |g_t.g_v| / 12 |g_v H_t g_t| and
eta_2 <= |g_t.g_v| / 6 max(|g_v H_t g_v|, |g_v H_v g_t|), the gradient of L_t at w + eta_1 g_t - eta_2 g_v has an inner
product with g_v of at least half of g_t.g_v, or 3/2 of it where that is negative.

The proof differentiates the first-order expansion of L_t(w_t) as a function of w, steps included. But the algorithm,
and the inequality's left side, take the gradient of L_t at the point w_t, which expands to
g_t + eta_1 H_t g_t - eta_2 H_t g_v: once eta_1 where the proof has it twice, and no H_v. Under the same conditions this
gives a quarter where the theorem claims a half, so the claim survives, up to terms of second order that neither
condition bounds. The bound on eta_2 holds eta_2 on both sides, through w_v.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core.vector import Vector
from ..measures import Curvature, Objective


@dataclass(frozen=True)
class Parts:
    """One batch in two parts, as two objectives of one model."""

    train: Objective
    held_out: Objective


@dataclass(frozen=True)
class Inequality:
    """Both sides of Theorem 2 at one point, and what expansions to first order say of its left side."""

    eta_1: float
    eta_2: float
    before: float  # g_t(w) . g_v(w_v)
    after: float  # grad L_t(w_t) . g_v(w_v)
    corrected: float  # before + eta_1 g_v H_t g_t - eta_2 g_v H_t g_v
    printed: float  # before + 2 eta_1 g_v H_t g_t - eta_2 g_v H_t g_v - eta_2 g_v H_v g_t
    most_1: float  # the largest eta_1 that the theorem admits here
    most_2: float
    cosine: float  # of grad L_t(w_t) and g_v(w_v)

    @property
    def promised(self) -> float:
        """The theorem's lower bound of `after`."""
        return (0.5 if self.before >= 0 else 1.5) * self.before

    @property
    def holds(self) -> bool:
        return self.after >= self.promised

    @property
    def admitted(self) -> bool:
        """Whether both steps are as small as the theorem asks."""
        return self.eta_1 <= self.most_1 and self.eta_2 <= self.most_2


def inequality(parts: Parts, eta_1: float, eta_2: float, up: float | None = None) -> Inequality:
    """Theorem 2's quantities for steps of these lengths along the gradients; `up` to w_v is eta_2 in the theorem."""
    g_t, plain = parts.train.gradient()[1], parts.held_out.gradient()[1]
    ahead = plain * (eta_2 if up is None else up)
    g_v = parts.held_out.gradient(ahead.clone())[1]
    over_t = Curvature(parts.train).products([g_t.clone(), g_v.clone()])
    over_v = _held_out_product(parts.held_out, ahead, g_t)
    vtt, vtv, vvt = float(g_v.dot(over_t[0])), float(g_v.dot(over_t[1])), float(g_v.dot(over_v))
    before = float(g_t.dot(g_v))
    there = parts.train.gradient(g_t * eta_1 - g_v * eta_2)[1]
    after = float(there.dot(g_v))
    return Inequality(
        eta_1, eta_2, before, after,
        corrected=before + eta_1 * vtt - eta_2 * vtv,
        printed=before + 2 * eta_1 * vtt - eta_2 * vtv - eta_2 * vvt,
        most_1=_least(abs(before), 12 * abs(vtt)), most_2=_least(abs(before), 6 * max(abs(vtv), abs(vvt))),
        cosine=after / max(float(there.norm() * g_v.norm()), 1e-300),
    )  # fmt: skip


def largest(parts: Parts, shrink: float = 0.8, most: int = 60) -> Inequality:
    """The inequality at the steps that the theorem just admits, eta_2 shrunk until its own moving bound holds."""
    eta_2 = inequality(parts, 0.0, 0.0).most_2
    for _ in range(most):
        eta_1 = inequality(parts, 0.0, eta_2).most_1
        found = inequality(parts, eta_1, eta_2)
        if found.admitted:
            return found
        eta_2 *= shrink
    raise ValueError(f"no eta_2 down to {eta_2:g} is within its own bound: the two gradients are nearly orthogonal")


def radii(parts: Parts, rho_1: float, rho_2: float) -> Inequality:
    """The inequality at the steps of the practical algorithm, eta = rho / |gradient|."""
    g_t, plain = parts.train.gradient()[1], parts.held_out.gradient()[1]
    up = rho_2 / float(plain.norm())
    g_v = parts.held_out.gradient(plain * up)[1]
    return inequality(parts, rho_1 / float(g_t.norm()), rho_2 / float(g_v.norm()), up)


def _least(above: float, below: float) -> float:
    return above / below if below > 0 else float("inf")


def _held_out_product(objective: Objective, at: Vector, v: Vector, step: float = 1e-4) -> Vector:
    """H_v(w + at) v by a central difference of gradients, scaled to the length of v."""
    small = step / max(float(v.norm()), 1e-300)
    ahead = objective.gradient(at + v * small)[1]
    behind = objective.gradient(at + v * (-small))[1]
    return (ahead - behind).mul_(1 / (2 * small))
