"""Rescaling two layers of a ReLU network keeps its function: adaptive sharpness is invariant, standard is not."""

from copy import deepcopy

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import steppe

torch.manual_seed(0)
x = torch.randn(256, 10)
y = (x[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
for _ in range(100):
    opt.zero_grad()
    cross_entropy(model(x), y).backward()
    opt.step()

rescaled = deepcopy(model)
with torch.no_grad():
    rescaled[0].weight.div_(8)
    rescaled[0].bias.div_(8)
    rescaled[2].weight.mul_(8)

names = ["loss", "lambda_max", "adaptive_lambda_max", "worst_l2@0.3", "adaptive_worst_l2@0.3"]
before = steppe.measure(model, cross_entropy, (x, y), names)
after = steppe.measure(rescaled, cross_entropy, (x, y), names)
for name in names:
    print(f"{name:>22}  {before[name].value:8.4f}  ->  {after[name].value:8.4f}")


def change(name: str) -> float:
    return after[name].value / before[name].value - 1


assert abs(change("loss")) < 1e-4
assert abs(change("adaptive_lambda_max")) < 1e-2
assert abs(change("adaptive_worst_l2@0.3")) < 1e-2
assert change("lambda_max") > 1
assert change("worst_l2@0.3") > 1
