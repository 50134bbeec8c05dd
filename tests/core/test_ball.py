"""Balls obey their definitions for every norm and metric: steepest ascent maximises, projection is nearest."""

from __future__ import annotations

from math import inf

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sites import BareSite, flat
from torch import Tensor

import steppe
from steppe.core.ball import GradientStep
from steppe.core.modules import Role

SHAPES = [(3, 2), (3, 2), (2,), (2, 2, 2, 2), (2, 2, 2, 2), (1,)]
NORMS = [1.0, 1.3, 2.0, 3.5, inf]
METRICS = {
    "euclidean": None,
    "elementwise": steppe.Elementwise(0.1),
    "elementwise everywhere": steppe.Elementwise(0.0, everywhere=True),
    "filterwise": steppe.Filterwise(0.1),
    "filterwise with rows": steppe.Filterwise(0.0, everywhere=True, rows=True),
    "norm layers": steppe.NormLayersOnly(),
}

seeds = st.integers(0, 2**32 - 1)
norms = st.sampled_from(NORMS)
metrics = st.sampled_from(sorted(METRICS))
radii = st.one_of(st.floats(1e-3, 10.0), st.just([0.5, 2.0]))


def context(seed: int, zeros: bool = False) -> BareSite:
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(s, generator=generator, dtype=torch.float64) for s in SHAPES]
    if zeros:
        tensors[0][0] = 0.0
    roles = [Role(weight=len(s) > 1, norm=i in (0, 2)) for i, s in enumerate(SHAPES)]
    return BareSite(tensors, [0, 0, 1, 1, 0, 1], roles)


def ball(p: float, metric: str, rho: float | list[float], at: BareSite) -> steppe.Ball:
    if isinstance(rho, list):
        rho = [rho[c.group] for c in at.space.chunks]
    return steppe.Ball(rho, METRICS[metric], p)


def noise(at: BareSite, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed + 1)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in at.tensors]


def scale(p: float, metric: str, rho: float | list[float], at: BareSite) -> Tensor:
    """rho T, entry by entry, written out from the definitions."""
    per_tensor = []
    for i, (w, role) in enumerate(zip(at.tensors, at.roles, strict=True)):
        radius = rho[at.groups[i]] if isinstance(rho, list) else rho
        t = torch.ones_like(w)
        if metric.startswith("elementwise"):
            eta, everywhere = (0.0, True) if "everywhere" in metric else (0.1, False)
            t = w.abs() + eta if everywhere or role.weight else t
        elif metric == "filterwise":
            if role.weight:
                t = w.abs() + 0.1 if w.ndim < 3 else w.flatten(1).norm(dim=1)[:, None, None, None].expand_as(w) + 0.1
        elif metric == "filterwise with rows":
            t = w.abs() if w.ndim < 2 else w.flatten(1).norm(dim=1).reshape(-1, *[1] * (w.ndim - 1)).expand_as(w)
        elif metric == "norm layers":
            t = t * float(bool(role.norm))
        per_tensor.append((radius * t).reshape(-1))
    return torch.cat(per_tensor)


def length(d: Tensor, t: Tensor, p: float) -> Tensor:
    """||d / t||_p, infinite if d moves where t pins."""
    if (d[t == 0] != 0).any():
        return torch.tensor(inf)
    return torch.linalg.vector_norm(d[t > 0] / t[t > 0], p)


@given(seeds, norms, metrics, radii)
@settings(deadline=None, max_examples=150)
def test_steepest_is_on_the_boundary_and_nothing_in_the_ball_climbs_more(seed, p, metric, rho):
    at = context(seed, zeros=seed % 2 == 0)
    g = torch.cat([x.reshape(-1) for x in noise(at, seed)])
    t = scale(p, metric, rho, at)
    d = flat(ball(p, metric, rho, at).steepest(at.vector(*noise(at, seed)), at))
    assert length(d, t, p) == pytest.approx(1, rel=1e-9)
    others = torch.randn(200, len(d), dtype=d.dtype, generator=torch.Generator().manual_seed(seed))
    feasible = t * others / torch.linalg.vector_norm(others, p, dim=1, keepdim=True)
    assert (feasible @ g).max() <= g @ d * (1 + 1e-12)
    q = inf if p == 1 else (1.0 if p == inf else p / (p - 1))
    assert g @ d == pytest.approx(torch.linalg.vector_norm(t * g, q).item(), rel=1e-9)  # the dual norm


@given(seeds, norms, metrics, radii, st.floats(0.01, 100))
@settings(deadline=None, max_examples=150)
def test_projection_is_feasible_and_idempotent_and_keeps_what_is_inside(seed, p, metric, rho, size):
    at = context(seed)
    t = scale(p, metric, rho, at)
    b = ball(p, metric, rho, at)
    d = at.vector(*[size * x for x in noise(at, seed)])
    once = b.project(d, at)
    assert length(flat(once), t, p) <= 1 + 1e-9
    torch.testing.assert_close(flat(b.project(once, at)), flat(once), rtol=1e-9, atol=1e-12)
    inside = b.steepest(d, at) * 0.5
    torch.testing.assert_close(flat(b.project(inside, at)), flat(inside), rtol=1e-9, atol=1e-12)


@given(seeds, st.sampled_from([1.0, 2.0, inf]), metrics, st.floats(0.1, 2))
@settings(deadline=None, max_examples=100)
def test_projection_is_the_nearest_point_where_a_closed_form_exists(seed, p, metric, rho):
    at = context(seed)
    t = scale(p, metric, rho, at)
    free = t > 0
    d = at.vector(*[5 * x for x in noise(at, seed)])
    goal = flat(d)[free] / t[free]
    found = flat(ball(p, metric, rho, at).project(d, at))[free] / t[free]
    others = torch.randn(300, len(goal), dtype=goal.dtype, generator=torch.Generator().manual_seed(seed))
    others = others / torch.linalg.vector_norm(others, p, dim=1, keepdim=True)
    near = found + 0.1 * (others - found)  # the ball is convex, so these are feasible
    assert (goal - found).norm() <= torch.linalg.vector_norm(goal - near, dim=1).min() + 1e-9


@pytest.mark.parametrize("p", NORMS)
@pytest.mark.parametrize("metric", sorted(METRICS))
def test_a_zero_gradient_moves_nothing(p, metric):
    at = context(0)
    zero = at.vector(*[torch.zeros_like(t) for t in at.tensors])
    assert not flat(ball(p, metric, 0.5, at).steepest(zero, at)).any()


def test_ties_share_the_l1_radius():
    at = BareSite([torch.zeros(4, dtype=torch.float64)])
    d = flat(steppe.Ball(0.6, p=1).steepest(at.vector(torch.tensor([3.0, -3.0, 1.0, 3.0], dtype=torch.float64)), at))
    torch.testing.assert_close(d, torch.tensor([0.2, -0.2, 0.0, 0.2], dtype=torch.float64))


def test_float16_radius_survives_norms_beyond_its_range():
    at = BareSite([torch.zeros(512, 512, dtype=torch.float16)])
    d = steppe.Ball(0.05).steepest(at.vector(torch.full((512, 512), 300.0, dtype=torch.float16)), at)
    assert d.norm() == pytest.approx(0.05, rel=2e-3)


def test_unnormalised_ascent_is_a_gradient_step_in_the_metric():
    at = context(3)
    g = torch.cat([x.reshape(-1) for x in noise(at, 3)])
    t = scale(2, "elementwise", 1.0, at)
    d = flat(GradientStep(0.3, METRICS["elementwise"]).steepest_(at.vector(*noise(at, 3)), at))
    torch.testing.assert_close(d, 0.3 * t**2 * g)


@given(seeds, st.floats(0.1, 10))
@settings(deadline=None, max_examples=50)
def test_adaptive_ascent_is_invariant_under_relu_rescaling(seed, c):
    """(a W1, W2 / a) is the same network; ASAM's relative perturbation d / w must be the same too."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(5, 4), (3, 5), (9, 4), (9, 3)]
    first, second, x, y = (torch.randn(s, generator=generator, dtype=torch.float64) for s in shapes)

    def relative_ascent(*weights: Tensor) -> list[Tensor]:
        leaves = [w.clone().requires_grad_() for w in weights]
        loss = (torch.relu(x @ leaves[0].T) @ leaves[1].T - y).square().mean()
        at = BareSite([w.detach() for w in leaves])
        grads = at.vector(*torch.autograd.grad(loss, leaves))
        d = steppe.Ball(0.5, steppe.Elementwise(0.0)).steepest(grads, at)
        return [e / w for e, w in zip(d.tensors, weights, strict=True)]

    for a, b in zip(relative_ascent(first, second), relative_ascent(c * first, second / c), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)
