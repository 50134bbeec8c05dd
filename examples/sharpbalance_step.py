"""A SharpBalance step is SGD's without marked rows, SAM's with all rows marked, and else their row-weighted mean."""

import torch
from torch import nn

import steppe

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x, y = torch.randn(12, 4), torch.randn(12, 1)
start = torch.randn(1, 4)


def gradient(method, x, y, mask=None):
    """Return the gradient that `method` writes to `p.grad` on these rows."""
    model = nn.Linear(4, 1, bias=False)
    model.load_state_dict({"weight": start})
    opt = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), method, model=model)
    for pass_ in opt.passes(mask=mask):
        a, b = pass_.rows(x, y)  # the rows of this pass: the normal or the sharp ones
        pass_.backward(nn.functional.mse_loss(model(a), b))
    return model.weight.grad


plain, sam, balanced = steppe.Plain(), steppe.SAM(rho=0.2), steppe.SharpBalance(steppe.SAM(rho=0.2))
sharp = torch.arange(12) < 5  # in training: rows that are sharp for the other members of the ensemble

none = gradient(balanced, x, y, mask=torch.zeros(12, dtype=torch.bool))
every = gradient(balanced, x, y, mask=torch.ones(12, dtype=torch.bool))
mixed = gradient(balanced, x, y, mask=sharp)
expected = 7 / 12 * gradient(plain, x[~sharp], y[~sharp]) + 5 / 12 * gradient(sam, x[sharp], y[sharp])

assert torch.equal(none, gradient(plain, x, y))
assert torch.equal(every, gradient(sam, x, y))
assert torch.allclose(mixed, expected, rtol=0, atol=1e-12)
assert (mixed - none).norm() > 1e-3, "the mask has no effect"
assert (mixed - every).norm() > 1e-3, "the mask has no effect"
print("none marked: SGD; all marked: SAM; 5 of 12 marked: 7/12 SGD and 5/12 SAM")
