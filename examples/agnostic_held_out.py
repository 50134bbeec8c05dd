"""Agnostic-SAM with separate held-out data makes two passes on each set and matches the paper's formula to 1e-12."""

import torch
from torch import nn

import steppe

torch.manual_seed(0)
torch.set_default_dtype(torch.float64)
x, y = torch.randn(32, 5), torch.randn(32, 1)
held_x, held_y = torch.randn(16, 5), torch.randn(16, 1)
model = nn.Linear(5, 1, bias=False)
loss_fn = nn.MSELoss()
rho, held_out_rho, lr = 0.1, 0.05, 0.02
passes = {"training": 0, "held-out": 0}

method = steppe.AgnosticSAM(rho, held_out_rho, share=None)  # share=None: the batch is B_t; the caller passes B_v
opt = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=lr), method, model=model)


def on_training_data():
    passes["training"] += 1
    opt.zero_grad()
    loss = loss_fn(model(x), y)
    loss.backward()
    return loss


def on_held_out_data():
    passes["held-out"] += 1
    opt.zero_grad()
    loss = loss_fn(model(held_x), held_y)
    loss.backward()
    return loss


def gradient(w, x, y):
    """Return the gradient of the mean of (x w - y)^2, in closed form."""
    return 2 / len(x) * (x @ w.T - y).T @ x


for _ in range(10):
    w = model.weight.detach().clone()
    opt.step(on_training_data, held_out=on_held_out_data)

    up_held = gradient(w, held_x, held_y)
    there = gradient(w + held_out_rho * up_held / up_held.norm(), held_x, held_y)
    up = gradient(w, x, y)
    displacement = (
        rho * up / up.norm() - held_out_rho * there / there.norm()
    )  # ascent on training rows, descent on held-out rows
    expected = w - lr * gradient(w + displacement, x, y)
    assert torch.allclose(model.weight, expected, rtol=0, atol=1e-12), (model.weight - expected).abs().max()

assert passes == {"training": 20, "held-out": 20}, passes
print(f"10 steps match the formula; passes: {passes}")
