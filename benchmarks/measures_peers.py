"""Peers of `measures.py`: PyHessian, curvlinops, hessian-eigenthings, and procedures as a user would write them.

Each function takes a classifier in eval mode with one batch and returns numbers by name. Cross-entropy throughout.
"probing" among them is the CPU time of independent probes, which grows with their number.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from math import ceil, inf

import torch
from torch import Tensor, nn
from torch.nn import functional

Numbers = dict[str, float]


# -- PyHessian 0.1: power iteration and Hutchinson's estimator on one kept graph --------------------------------------


def pyhessian(model: nn.Module, x: Tensor, y: Tensor):
    from pyhessian import hessian

    return hessian(model, nn.CrossEntropyLoss(), data=(x, y), cuda=False)


def pyhessian_eigenvalue(model: nn.Module, x: Tensor, y: Tensor, tol: float = 1e-3, most: int = 100) -> Numbers:
    return {"lambda_max": pyhessian(model, x, y).eigenvalues(maxIter=most, tol=tol)[0][0]}


def pyhessian_trace(model: nn.Module, x: Tensor, y: Tensor, probes: int | None = None) -> Numbers:
    """As shipped, or with that many probes whatever its stopping rule says."""
    h = pyhessian(model, x, y)
    start = time.process_time()
    draws = h.trace() if probes is None else h.trace(maxIter=probes, tol=-inf)
    return {"trace": sum(draws) / len(draws), "probing": time.process_time() - start}


def pyhessian_combined(model: nn.Module, x: Tensor, y: Tensor, tol: float, traces: int, squares: int) -> Numbers:
    """It has no Frobenius norm: ||H z||^2 of its own products, which the trace shares as far as it goes."""
    from pyhessian.utils import group_product, hessian_vector_product

    h = pyhessian(model, x, y)
    values = {"lambda_max": h.eigenvalues(maxIter=1000, tol=tol)[0][0], "trace": 0.0, "frobenius_squared": 0.0}
    start = time.process_time()
    for i in range(max(traces, squares)):
        z = [torch.randint_like(p, 2).mul_(2).sub_(1) for p in h.params]
        image = hessian_vector_product(h.gradsH, h.params, z)
        if i < traces:
            values["trace"] += group_product(image, z).item() / traces
        if i < squares:
            values["frobenius_squared"] += group_product(image, image).item() / squares
    return {**values, "probing": time.process_time() - start}


# -- curvlinops 3.0.1 with scipy's eigsh ------------------------------------------------------------------------------


def curvlinops(model: nn.Module, x: Tensor, y: Tensor):
    from curvlinops import HessianLinearOperator

    return HessianLinearOperator(model, nn.CrossEntropyLoss(), list(model.parameters()), [(x, y)])


def largest(operator, tol: float = 1e-3, vectors: int | None = None) -> float:
    from scipy.sparse.linalg import eigsh

    options = {"k": 1, "which": "LA", "tol": tol, "ncv": vectors, "return_eigenvectors": False}
    return float(eigsh(operator, **options)[0])


def curvlinops_eigenvalue(
    model: nn.Module, x: Tensor, y: Tensor, tol: float = 1e-3, vectors: int | None = None
) -> Numbers:
    return {"lambda_max": largest(curvlinops(model, x, y).to_scipy(), tol, vectors)}


def handmade_eigenvalue(
    model: nn.Module, x: Tensor, y: Tensor, tol: float = 1e-3, vectors: int | None = None
) -> Numbers:
    """scipy's eigsh on products by double backward, as a user would write them: one kept graph, no check."""
    from scipy.sparse.linalg import LinearOperator
    from torch.nn.utils import parameters_to_vector, vector_to_parameters

    params = list(model.parameters())
    gradient = torch.autograd.grad(functional.cross_entropy(model(x), y), params, create_graph=True)
    parts = [torch.empty_like(p) for p in params]

    def product(v):
        vector_to_parameters(torch.from_numpy(v).to(x.dtype).reshape(-1), parts)
        image = torch.autograd.grad(gradient, params, parts, retain_graph=True)
        return parameters_to_vector([g.contiguous() for g in image]).numpy()

    size = sum(p.numel() for p in params)
    dtype = torch.empty(0, dtype=x.dtype).numpy().dtype
    return {"lambda_max": largest(LinearOperator((size, size), matvec=product, dtype=dtype), tol, vectors)}


def curvlinops_trace(model: nn.Module, x: Tensor, y: Tensor, products: int) -> Numbers:
    from curvlinops import hutchpp_trace

    return {"trace": float(hutchpp_trace(curvlinops(model, x, y), products))}


def curvlinops_combined(
    model: nn.Module, x: Tensor, y: Tensor, products: int, squares: int, at_once: int = 4
) -> Numbers:
    """All three of one operator; `at_once` probes of the Frobenius norm in one product, or memory would not do."""
    from curvlinops import hutchinson_squared_fro, hutchpp_trace

    h = curvlinops(model, x, y)
    values = {"lambda_max": largest(h.to_scipy()), "trace": float(hutchpp_trace(h, products))}
    blocks = [min(at_once, squares - done) for done in range(0, squares, at_once)]
    start = time.process_time()
    square = sum(n * float(hutchinson_squared_fro(h, n)) for n in blocks) / squares
    return {**values, "frobenius_squared": square, "probing": time.process_time() - start}


# -- hessian-eigenthings 1.0.0a5: a Lanczos process of a fixed number of steps, a graph per product --------------------


def eigenthings_eigenvalue(model: nn.Module, x: Tensor, y: Tensor, steps: int, seed: int) -> Numbers:
    """It stops at no tolerance, so the number of steps is the setting."""
    from hessian_eigenthings.algorithms import lanczos
    from hessian_eigenthings.operators.hessian import HessianOperator

    hessian = HessianOperator(model, [(x, y)], lambda model, batch: functional.cross_entropy(model(batch[0]), batch[1]))
    found = lanczos(hessian, k=1, max_iter=steps, which="LA", seed=seed)
    return {"lambda_max": float(found.eigenvalues[0])}


# -- worst-case sharpness as the code published with A modern look climbs, from its description -----------------------


def published_ascent(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    rho: float,
    p: float = 2.0,
    adaptive: bool = False,
    steps: int = 20,
    gap: float = 1e-5,
) -> Numbers:
    """The rise of the loss, by in-place ascent: a backward and a forward pass per step, with copies of the best points.

    Steps c g / ||g|| or c sign g in the displacement d itself, back to the nearest point of the ellipsoid or box,
    momentum .75 z + .25 d_{k-1}; a halving puts the weights, not d, back to the best point.
    """
    params = list(model.parameters())
    centre = copy.deepcopy(model.state_dict())
    home = [w.detach().clone() for w in params]
    c = [w.abs() if adaptive else torch.ones_like(w) for w in home]
    loss_fn = nn.CrossEntropyLoss()
    with torch.no_grad():
        base = loss_fn(model(x), y).item()
    before, d = None, [torch.zeros_like(w) for w in home]
    step, best, record, records, checked = 2 * rho, 0.0, centre, 0, 0
    checks = _checkpoints(steps)
    try:
        for k in range(1, steps + 1):
            model.zero_grad()
            loss_fn(model(x), y).backward()
            grads = [w.grad for w in params]
            if p == inf:
                up = [g.sign() for g in grads]
            else:
                length = torch.stack([g.norm() for g in grads]).norm()
                up = [g / length for g in grads]
            z = [a + step * s * u for a, s, u in zip(d, c, up, strict=True)]
            if p == inf:
                z = [torch.minimum(torch.maximum(a, -rho * s), rho * s) for a, s in zip(z, c, strict=True)]
            elif adaptive:
                z = _nearest_in_ellipsoid(z, c, rho, gap)
            else:
                length = torch.stack([a.norm() for a in z]).norm()
                z = [a * (rho / length).clamp(max=1) for a in z]
            new = z if before is None else [0.75 * a + 0.25 * b for a, b in zip(z, before, strict=True)]
            before, d = d, new
            with torch.no_grad():
                for w, h, a in zip(params, home, d, strict=True):
                    w.copy_(h + a)
                rise = loss_fn(model(x), y).item() - base
            if rise > best:
                best, record, records = rise, copy.deepcopy(model.state_dict()), records + 1
            if k in checks:
                if records < 0.75 * (k - checked):
                    step /= 2
                    model.load_state_dict(record)
                records, checked = 0, k
    finally:
        model.zero_grad()
        model.load_state_dict(centre)
    return {"rise": best}


def _checkpoints(steps: int) -> list[int]:
    shares = [0.0, 0.22]
    while shares[-1] < 1:
        shares.append(shares[-1] + max(shares[-1] - shares[-2] - 0.03, 0.06))
    return [ceil(share * steps) for share in shares if share <= 1]


def _nearest_in_ellipsoid(d: Sequence[Tensor], c: Sequence[Tensor], rho: float, gap: float) -> list[Tensor]:
    """The Euclidean projection onto ||d / c|| <= rho: d c^2 / (c^2 + t), by bisection for t until within `gap`."""

    def shrunk(t: float) -> list[Tensor]:
        return [torch.where(s > 0, a * s**2 / (s**2 + t), 0.0) for a, s in zip(d, c, strict=True)]

    def length(moves: Sequence[Tensor]) -> float:
        parts = [torch.where(s > 0, a / s, 0.0).norm() for a, s in zip(moves, c, strict=True)]
        return torch.stack(parts).norm().item()

    low, high = 0.0, 1.0
    point = shrunk(low)
    if length(point) <= rho:
        return point
    while length(shrunk(high)) > rho:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        point = shrunk(middle)
        reached = length(point)
        if abs(reached - rho) <= gap:
            break
        low, high = (middle, high) if reached > rho else (low, middle)
    return point


# -- squared gradient norms of single rows ----------------------------------------------------------------------------


def rows_by_vmap(model: nn.Module, x: Tensor, y: Tensor, at_once: int | None = None) -> Tensor:
    from torch.func import functional_call, grad, vmap

    params = {name: w.detach() for name, w in model.named_parameters()}

    def loss(params: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
        return functional.cross_entropy(functional_call(model, params, (a.unsqueeze(0),)), b.unsqueeze(0))

    def square(params: dict[str, Tensor], a: Tensor, b: Tensor) -> Tensor:
        return sum(g.square().sum() for g in grad(loss)(params, a, b).values())

    return vmap(square, (None, 0, 0), chunk_size=at_once)(params, x, y)


def rows_one_by_one(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    params = list(model.parameters())

    def square(a: Tensor, b: Tensor) -> Tensor:
        loss = functional.cross_entropy(model(a.unsqueeze(0)), b.unsqueeze(0))
        return sum(g.square().sum() for g in torch.autograd.grad(loss, params))

    return torch.stack([square(a, b) for a, b in zip(x, y, strict=True)])


# -- a reference ------------------------------------------------------------------------------------------------------


def exact_trace(model: nn.Module, x: Tensor) -> float:
    """The Hessian's trace of a network of linear layers, ReLUs and norm layers in eval mode, without random probes.

    Such a network is piecewise linear in every single weight, so the trace is that of the Gauss-Newton matrix: for
    cross-entropy, the mean over rows of sum_c p_c ||grad log p_c||^2.
    """
    with torch.no_grad():
        p = model(x).softmax(-1)
    every = range(p.shape[1])
    return float(sum((p[:, c] * rows_by_vmap(model, x, torch.full((len(x),), c), 16)).mean() for c in every))
