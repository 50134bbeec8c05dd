"""A new method takes about ten lines; on a quadratic, two-sided SAM gives the plain gradient to 1e-12."""

from dataclasses import dataclass

import torch
from torch import nn

import steppe
from steppe import Ball, Method, Probe


@dataclass(frozen=True)
class TwoSidedSAM(Method):
    """Mean of the gradients at the top of the ball and at the opposite point."""

    rho: float = 0.05  # becomes a parameter-group option, so schedulers and groups can change it

    def plan(self, site):
        here = yield Probe()
        up = Ball(self.rho).within(site).steepest(here.grad, site)
        top = yield Probe(at=up.clone())  # a probe consumes its displacement
        across = yield Probe(at=-up)
        return (top.grad + across.grad) / 2


def gradient_of(method, loss, at):
    """Return the gradient that `method` computes for `loss` at the point `at`."""
    w = nn.Parameter(at.clone())
    opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.1), method)
    for pass_ in opt.passes():
        pass_.backward(loss(w))
    return w.grad


torch.manual_seed(0)
at = torch.randn(6, dtype=torch.float64)
root = torch.randn(6, 6, dtype=torch.float64)
hessian = root @ root.T

# (A(w + d) + A(w - d)) / 2 = A w, but SAM's gradient is A(w + d)
here = hessian @ at
two_sided, sam = (
    gradient_of(method, lambda w: w @ hessian @ w / 2, at) for method in (TwoSidedSAM(0.3), steppe.SAM(0.3))
)
assert torch.allclose(two_sided, here, rtol=0, atol=1e-12), (two_sided - here).abs().max()
assert (sam - here).norm() > 0.1

# on the quartic sum(w^4) / 4 a second-order term in d remains: ((w + d)^3 + (w - d)^3) / 2 = w^3 + 3 w d^2
d = 0.3 * at**3 / (at**3).norm()
quartic = gradient_of(TwoSidedSAM(0.3), lambda w: (w**4).sum() / 4, at)
assert torch.allclose(quartic, at**3 + 3 * at * d**2, rtol=0, atol=1e-12)

print("two-sided SAM equals the plain gradient on a quadratic, and differs by 3 w d^2 on a quartic")
