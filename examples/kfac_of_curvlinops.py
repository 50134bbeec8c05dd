"""K-FAC of curvlinops takes the model, parameters and batches of an objective, and its blocks compare with steppe's."""

import warnings

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import steppe
from steppe.measures import Curvature, Dense, gauss_newton

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it uses torch.jit.script, which is deprecated
    from curvlinops import FisherType, KFACLinearOperator

torch.manual_seed(0)
x = torch.randn(256, 10, dtype=torch.float64)
y = (x[:, :3].sum(1) > 0).long()
model = nn.Sequential(nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 2)).double()
objective = steppe.Objective(model, cross_entropy, (x, y), m=64)

# TYPE2 is the Fisher matrix of the model's own predictions, which equals the Gauss-Newton matrix of this loss
kfac = KFACLinearOperator(
    objective.model,
    nn.CrossEntropyLoss(),
    list(objective.params.values()),
    objective.batches,
    fisher_type=FisherType.TYPE2,
    separate_weight_and_bias=False,
)
theirs = kfac @ torch.eye(objective.dimension, dtype=torch.float64)

start, errors = 0, {}
for layer, block in Curvature(objective, gauss_newton).per_layer().items():
    end = start + block.dimension
    ours, approximate = Dense(block).matrix, theirs[start:end, start:end]
    errors[layer] = float((approximate - ours).norm() / ours.norm())
    traces = f"trace {approximate.trace():.4f} of K-FAC, {ours.trace():.4f} of the Gauss-Newton matrix"
    print(f"layer {layer}: relative error {errors[layer]:.3f}, {traces}")
    start = end

assert errors["0"] < 0.5
assert errors["2"] < 0.05
