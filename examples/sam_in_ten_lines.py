"""One line turns an SGD loop into a SAM loop: the loss falls tenfold, and every displacement has length rho."""

import torch
from torch import nn

import steppe

torch.manual_seed(0)
x = torch.randn(256, 2)
y = (x[:, 0] * x[:, 1] > 0).long()  # exclusive or: not linearly separable

model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
opt = steppe.SharpnessAware(opt, steppe.SAM(rho=0.05), model=model, record=True)  # the added line


def closure():
    opt.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss


losses, distances = [], []
for _ in range(300):
    losses.append(opt.step(closure).item())
    distances.append(opt.last.read()["displacement"])

assert losses[-1] < losses[0] / 10, losses
assert all(abs(d - 0.05) < 1e-6 for d in distances), distances
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}, displacements from {min(distances):.4f} to {max(distances):.4f}")
