"""The highest point of a ball around the weights: exactly where algebra or brute force can, else as papers climb.

Every function takes the loss f of one flat vector or its second-order model, the weights w, the radius rho, the norm p
and the scale c, and looks at {w + c gamma : ||gamma||_p <= rho}. Entries with c = 0 stay where they are.
"""

from collections.abc import Generator
from itertools import product
from math import ceil, inf
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from .curvature import Function, gradient, rescaled


class Peak(NamedTuple):
    """How far the loss rises, and the displacement d = c gamma that it rises by."""

    rise: float
    at: Tensor


def second_order(g: Tensor, hessian: Tensor) -> Function:
    """The function d -> g'd + d'Hd / 2."""
    return lambda d: g @ d + d @ hessian @ d / 2


# -- exact maxima -----------------------------------------------------------------------------------------------------


def trust_region(g: Tensor, hessian: Tensor, rho: float, c: Tensor | None = None) -> Peak:
    """Of g'd + d'Hd / 2 over the l2 ball, any symmetric H: (lambda I - H) d = g, lambda >= lambda_max(H) and >= 0."""
    c = torch.ones_like(g) if c is None else c
    values, basis = torch.linalg.eigh(rescaled(hessian, c))
    slopes = basis.T @ (c * g)
    lowest = values[-1].clamp(min=0.0)  # lambda = lowest + s; s alone is searched, so that it may be tiny
    gaps = lowest - values

    def solution(s: float) -> Tensor:
        return torch.where(slopes == 0, 0.0, slopes / (gaps + s))

    high = float(slopes.norm() / rho)  # every gap + s is at least that, so the solution is inside
    low = high * 1e-200
    if high == 0 or solution(low).norm() <= rho:  # lambda is at its bound
        gamma = torch.where(slopes == 0, 0.0, slopes / gaps)
        if lowest == values[-1]:  # the hard case: nothing pulls along the top eigenvector, which still takes the rest
            gamma[-1] = (rho**2 - gamma @ gamma).clamp(min=0.0).sqrt()
    else:
        for _ in range(200):
            middle = low**0.5 * high**0.5
            low, high = (middle, high) if solution(middle).norm() > rho else (low, middle)
        gamma = solution(high)
    d = c * (basis @ gamma)
    return Peak(float(second_order(g, hessian)(d)), d)


def vertices(f: Function, w: Tensor, rho: float, p: float = inf, c: Tensor | None = None) -> Peak:
    """By trying every corner of a box (p = inf, f convex in every coordinate) or cross-polytope (p = 1, f convex)."""
    n, c = len(w), torch.ones_like(w) if c is None else c
    unit = torch.eye(n, dtype=w.dtype)
    corners = torch.tensor(list(product([-1.0, 1.0], repeat=n))).to(w) if p == inf else torch.cat([unit, -unit])
    return _highest(f, w, rho * corners * c)[0]


def polar_grid(f: Function, w: Tensor, rho: float, p: float = 2.0, c: Tensor | None = None) -> Peak:
    """By brute force in two dimensions: 720 directions times 41 radii, then six times finer around the best."""
    c = torch.ones_like(w) if c is None else c
    angle, turn, radius, reach = 0.0, torch.pi, 0.5, 0.5
    best = Peak(0.0, torch.zeros_like(w))
    for _ in range(7):
        angles = angle + turn * torch.arange(-360, 360, dtype=w.dtype) / 360
        radii = (radius + reach * torch.arange(-20, 21, dtype=w.dtype) / 20).clamp(0, 1)
        directions = torch.stack([angles.cos(), angles.sin()], 1)
        directions = directions / directions.norm(p, dim=1, keepdim=True)
        moves = (rho * c * radii[:, None, None] * directions).reshape(-1, 2)
        found, i = _highest(f, w, moves)
        best = max(best, found, key=lambda peak: peak.rise)
        angle, radius = float(angles[i % 720]), float(radii[i // 720])
        turn, reach = turn / 5, reach / 5  # no faster, or the best of a coarse grid hides it
    return best


def _highest(f: Function, w: Tensor, moves: Tensor) -> tuple[Peak, int]:
    heights = torch.cat([vmap(f)(w + part) for part in moves.split(4096)]) - f(w)
    i = int(heights.argmax())
    return Peak(float(heights[i]), moves[i]), i


# -- climbing ---------------------------------------------------------------------------------------------------------


def onto_ball(gamma: Tensor, rho: float, p: float) -> Tensor:
    if p == inf:
        return gamma.clamp(-rho, rho)
    _check_others(p)
    return gamma * min(1.0, rho / max(float(gamma.norm()), 1e-300))


def uphill(g: Tensor, p: float) -> Tensor:
    """The direction of steepest ascent, of norm 1: the sign or the normalised gradient."""
    if p == inf:
        return g.sign()
    _check_others(p)
    return g / max(float(g.norm()), 1e-300)


def _check_others(p: float) -> None:
    if p != 2:
        raise ValueError(
            f"what climbs here knows the balls of p = 2 and p = inf, not p = {p}: try vertices, polar_grid"
        )


def projected_ascent(
    f: Function, w: Tensor, rho: float, p: float = 2.0, c: Tensor | None = None, steps: int = 500, starts: int = 10
) -> Peak:
    """Gradient steps with halving until one climbs, from random points of the ball: slow, and no constant matters."""
    c = torch.ones_like(w) if c is None else c
    generator = torch.Generator().manual_seed(0)
    best = Peak(0.0, torch.zeros_like(w))
    for _ in range(starts):
        step = 1.0
        gamma = onto_ball(rho * torch.randn(len(w), generator=generator, dtype=w.dtype), rho, p)
        for _ in range(steps):
            here, slope = f(w + c * gamma), c * gradient(f, w + c * gamma)
            while step > 1e-12 and f(w + c * (there := onto_ball(gamma + step * slope, rho, p))) <= here:
                step /= 2
            if step <= 1e-12:
                break
            gamma, step = there, 4 * step
        best = max(best, Peak(float(f(w + c * gamma) - f(w)), c * gamma), key=lambda peak: peak.rise)
    return best


def checkpoints(steps: int) -> list[int]:
    """The first integers from p_j * steps on: p_0 = 0, p_1 = .22, p_{j+1} = p_j + max(p_j - p_{j-1} - .03, .06)."""
    hundredths = [0, 22]  # so that .70 of 20 is 14
    while hundredths[-1] < 100:
        hundredths.append(hundredths[-1] + max(hundredths[-1] - hundredths[-2] - 3, 6))
    return [-(-x * steps // 100) for x in hundredths if x <= 100]


def checkpoints_in_floats(steps: int) -> list[int]:
    """The same as published code has them: .70 of 20 is 15, since the sums of floats come out above .70."""
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return [ceil(share * steps) for share in shares if share <= 1]


def auto_pgd(
    f: Function,
    w: Tensor,
    rho: float,
    p: float = 2.0,
    c: Tensor | None = None,
    steps: int = 20,
    start: Tensor | None = None,
) -> Peak:
    """The highest point of `auto_pgd_points`."""
    points = auto_pgd_points(f, w, rho, p, c, steps, start)
    while True:
        try:
            next(points)
        except StopIteration as end:
            return end.value


def auto_pgd_points(
    f: Function,
    w: Tensor,
    rho: float,
    p: float = 2.0,
    c: Tensor | None = None,
    steps: int = 20,
    start: Tensor | None = None,
) -> Generator[Tensor, Tensor | None, Peak]:
    """Algorithm 1 of Croce & Hein 2020 for gamma = d / c, with alpha = .75, step 2 rho and ratio .75.

    Yields every point that it steps to, in whose place a point can be sent; returns the highest one.
    """
    c = torch.ones_like(w) if c is None else c
    alpha, ratio, eta = 0.75, 0.75, 2 * rho

    def height(gamma: Tensor) -> float:
        return float(f(w + c * gamma))

    def stepped(gamma: Tensor) -> Tensor:
        return onto_ball(gamma + eta * uphill(c * gradient(f, w + c * gamma), p), rho, p)

    x = [torch.zeros_like(w) if start is None else start]
    x.append(stepped(x[0]))
    sent = yield x[1]
    x[1] = x[1] if sent is None else sent
    heights = [height(x[0]), height(x[1])]
    x_max, f_max = (x[0], heights[0]) if heights[0] >= heights[1] else (x[1], heights[1])
    rises = [heights[1] > heights[0]]  # of f from x_k to x_{k+1}, for k = 0, 1 ..
    highest = [heights[0], f_max]  # of x_0 .. x_k
    last, eta_then, checks = 0, eta, checkpoints(steps)
    for k in range(1, steps):
        z = stepped(x[k])
        x.append(onto_ball(x[k] + alpha * (z - x[k]) + (1 - alpha) * (x[k] - x[k - 1]), rho, p))
        sent = yield x[k + 1]
        x[k + 1] = x[k + 1] if sent is None else sent
        heights.append(height(x[k + 1]))
        rises.append(heights[k + 1] > heights[k])
        if heights[k + 1] > f_max:
            x_max, f_max = x[k + 1], heights[k + 1]
        highest.append(f_max)
        if k in checks:
            seldom = sum(rises[last:k]) < ratio * (k - last)
            stuck = eta == eta_then and highest[k] == highest[last]
            last, eta_then = k, eta
            if seldom or stuck:
                eta, x[k + 1], heights[k + 1] = eta / 2, x_max, f_max
    return Peak(f_max - float(f(w)), c * x_max)


def nearest_in_ellipsoid(d: Tensor, rho: float, c: Tensor) -> Tensor:
    """The Euclidean projection onto {||d / c||_2 <= rho}: d c^2 / (c^2 + t), t by bisection; 0 where c = 0."""
    free = c > 0

    def shrunk(t: float) -> Tensor:
        return torch.where(free, d * c**2 / torch.where(free, c**2 + t, 1.0), 0.0)

    def length(t: float) -> float:
        return float((shrunk(t)[free] / c[free]).norm())

    if length(0.0) <= rho:
        return shrunk(0.0)
    low, high = 0.0, 1.0
    while length(high) > rho:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if length(middle) > rho else (low, middle)
    return shrunk(high)


def published_procedure(
    f: Function, w: Tensor, rho: float, p: float = 2.0, c: Tensor | None = None, steps: int = 20, lag: int = 1
) -> Peak:
    """As the code published with A modern look climbs, by its description: near to Auto-PGD, and not quite that.

    It works in d itself: steps c g / ||g|| or c sign g, the nearest point of the ellipsoid or box, momentum
    .75 z + .25 d_{k - lag} without a second projection, new records counted instead of increases, and a halving that
    puts the weights back to the best point but leaves the displacement where it was. Starts at 0.
    """
    c = torch.ones_like(w) if c is None else c
    moves, place = [torch.zeros_like(w)], w
    step, base = 2 * rho, float(f(w))
    best = Peak(0.0, moves[0])
    records, checked, checks = 0, 0, checkpoints_in_floats(steps)
    for k in range(1, steps + 1):
        z = moves[-1] + step * c * uphill(gradient(f, place), p)
        z = torch.minimum(torch.maximum(z, -rho * c), rho * c) if p == inf else nearest_in_ellipsoid(z, rho, c)
        moves.append(0.75 * z + 0.25 * moves[-1 - lag] if k > lag else z)
        place = w + moves[-1]
        rise = float(f(place)) - base  # a pass of its own, though the next gradient's would tell
        if rise > best.rise:
            best, records = Peak(rise, moves[-1]), records + 1
        if k in checks:
            if records < 0.75 * (k - checked):  # so it is too when there was no new best: condition 2 says nothing more
                step, place = step / 2, w + best.at
            records, checked = 0, k
    return best
