"""A user-defined sharpness measure (three functions) moves (ab - 1)^2 / 2 to its flattest minimum, a = b = 1."""

import torch
from torch import nn

import steppe


def phi(t):
    return torch.log1p(t)  # applied to the mean; any differentiable function


def psi(t):
    return torch.nn.functional.softplus(4 * t) / 4  # applied to v'Hv / 2; gives little weight to negative curvature


def mu(draw):
    return draw.uniform(-1.0, 1.0)  # distribution of v; also available: draw.normal(), draw.signs(), draw.grad


def trained(method):
    a, b = nn.Parameter(torch.tensor(3.0)), nn.Parameter(torch.tensor(0.5))
    opt = steppe.SharpnessAware(torch.optim.SGD([a, b], lr=0.2), method)
    for _ in range(800):
        for pass_ in opt.passes():
            pass_.backward((a * b - 1) ** 2 / 2)
        opt.step()
    with torch.no_grad():
        return float(a), float(b), float((a * b - 1) ** 2 / 2), float(a**2 + b**2)  # the last value is tr H if ab = 1


measure = steppe.Triple(phi, psi, laws=(mu,))
a, b, loss, trace = trained(steppe.UniversalSAM(measure, rho=0.2, n=4, strength=2.0))
plain_a, plain_b, plain_loss, plain_trace = trained(steppe.Plain())

assert loss < 1e-2, loss
assert plain_loss < 1e-6, plain_loss
assert abs(a - 1) < 0.1, (a, b)
assert abs(b - 1) < 0.1, (a, b)
assert plain_trace > 2 * trace, (plain_trace, trace)
print(f"plain: a = {plain_a:.2f}, b = {plain_b:.2f}, tr H = {plain_trace:.2f}; ours: {a:.2f}, {b:.2f}, {trace:.2f}")
