"""Magnitude pruning in runs, against a loop written by hand, dense Hessians and the laws of resuming."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear
from training_runs import assert_same_end, config
from training_stops import stopped

from steppe.core.draw import permutation
from steppe.ensembles import Ensemble, train_ensemble
from steppe.measures import Objective, Trace, fisher_traces
from steppe.training import Config, Run, train
from steppe.training.model import model_of
from steppe.training.problem import data_of, task_of

SPARSE: dict[str, Any] = {"prune": 0.6, "prune_at": 0.4}
PLAIN: dict[str, Any] = {"model": "training_runs:plain", "schedule": "constant", **SPARSE}


def final(run: Run) -> dict[str, Tensor]:
    """The weights of a run without the names of masks; pruned ones are zero."""
    w = run.weights()
    return {k.removesuffix("_orig"): t for k, t in w.items() if not k.endswith("_mask")}


def by_hand(c: Config) -> dict[str, Tensor]:
    """SAM on a network with one hidden layer whose smallest weights are removed, with lists of tensors and masks."""
    splits = data_of(c)
    task = task_of(splits)
    x, y = task.standard(splits.train.inputs).flatten(1), splits.train.targets
    start = model_of(replace(c, prune=0.0), task.shape, task.outputs).state_dict()
    w = {k: t.clone() for k, t in start.items()}
    mask = {k: torch.ones_like(t) for k, t in w.items()}
    momentum = {k: torch.zeros_like(t) for k, t in w.items()}

    def gradient(at: dict[str, Tensor], rows: Tensor) -> dict[str, Tensor]:
        leaves = {k: t.clone().requires_grad_() for k, t in at.items()}
        hidden = linear(x[rows], leaves["1.weight"], leaves["1.bias"]).tanh()
        loss = cross_entropy(linear(hidden, leaves["3.weight"], leaves["3.bias"]), y[rows])
        grads = torch.autograd.grad(loss, list(leaves.values()))
        return {k: g * mask[k] for k, g in zip(leaves, grads, strict=True)}

    step, per_epoch = 0, len(y) // c.batch_size
    for epoch in range(c.epochs):
        order = permutation(len(y), c.seed, 0, epoch)
        for i in range(per_epoch):
            if step == c.prune_at * c.epochs * per_epoch:
                pruned = sorted(float(v) for k in w if "weight" in k for v in w[k].abs().flatten())
                edge = pruned[round(c.prune * len(pruned))]
                for k in w:
                    if "weight" in k:
                        mask[k] = (w[k].abs() >= edge).float()
                w, momentum = ({k: t * mask[k] for k, t in old.items()} for old in (w, momentum))
            rows = order[i * c.batch_size : (i + 1) * c.batch_size]
            here = gradient(w, rows)
            length = torch.cat([g.flatten() for g in here.values()]).norm()
            there = gradient({k: w[k] + (c.rho or 0) * here[k] / length for k in w}, rows)
            momentum = {k: c.momentum * momentum[k] + there[k] + c.weight_decay * w[k] for k in w}
            w = {k: w[k] - c.lr * momentum[k] for k in w}
            step += 1
    return w


def test_pruning_by_hand(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", epochs=4, method="sam", rho=0.3, lr=0.3, weight_decay=0.01, **PLAIN))
    expected = by_hand(run.config)
    for name, t in final(run).items():
        assert t.numpy() == pytest.approx(expected[name].numpy(), abs=2e-5), name
        assert torch.equal(t == 0, expected[name] == 0), name
    weights = torch.cat([t.flatten() for k, t in final(run).items() if "weight" in k])
    assert int((weights == 0).sum()) == round(0.6 * len(weights))
    dense = train(config(tmp_path / "dense", epochs=4, method="sam", rho=0.3, lr=0.3, **PLAIN | {"prune": 0.0}))
    assert not bool((torch.cat([t.flatten() for t in dense.weights().values()]) == 0).any())


@pytest.mark.parametrize("changes", [{}, {"optimizer": "adamw", "lr": 0.01, "ema": 0.9, "method": "asam"}])
@pytest.mark.parametrize("steps", [3, 6, 7])
def test_a_pruned_run_resumes_bitwise(tmp_path: Path, steps: int, changes: dict[str, Any]) -> None:
    """Weights are pruned before the seventh step of fifteen."""
    settings = {"epochs": 3, **SPARSE, **changes}
    whole = train(config(tmp_path / "whole", **settings))
    stopped(config(tmp_path / "again", **settings), steps)
    assert_same_end(train(config(tmp_path / "again", **settings)), whole)
    weights = whole.weights()
    masks = {k: t for k, t in weights.items() if k.endswith("mask")}
    assert len(masks) == 3
    for name, mask in masks.items():
        assert torch.equal(weights[name.replace("mask", "orig")] != 0, mask)
        if "ema" in changes:
            assert torch.equal(whole.weights("ema")[name], mask)


def test_a_longer_run_prunes_at_the_same_step_or_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", epochs=3, **PLAIN)
    train(settings)
    with pytest.raises(
        ValueError, match=r"its pruning depends on .*: in step 7 it was begun, and would be yet to begin"
    ):
        train(replace(settings, epochs=6))


def test_measures_have_no_pruned_coordinates(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", epochs=3, **PLAIN))
    splits = run.data()
    data = run.task.standard(splits.train.inputs).double(), splits.train.targets
    model = nn.Sequential(nn.Flatten(), nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)).double()
    model.load_state_dict({k: t.double() for k, t in final(run).items()})
    names, params = zip(*model.named_parameters(), strict=True)
    kept = [
        p != 0 if "weight" in name else torch.ones_like(p, dtype=torch.bool) for name, p in model.named_parameters()
    ]

    def loss(*weights: Tensor) -> Tensor:
        output = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), (data[0],))
        return cross_entropy(output, data[1])

    blocks: Any = torch.autograd.functional.hessian(loss, tuple(params))
    diagonals = [b[i].reshape(p.numel(), -1).diagonal() for i, (b, p) in enumerate(zip(blocks, params, strict=True))]
    expected = sum(float(d[k.flatten()].sum()) for d, k in zip(diagonals, kept, strict=True))
    assert not all(bool(k.all()) for k in kept)
    pruned = Objective(run.model().double(), cross_entropy, data)
    found = Trace().estimate(pruned)
    assert found.value == pytest.approx(expected, abs=5 * found.stderr + 1e-9)
    norms = []
    for x, y in zip(*data, strict=True):
        grads = torch.autograd.grad(cross_entropy(model(x[None]), y[None]), params)
        norms.append(sum(float(g[k].square().sum()) for g, k in zip(grads, kept, strict=True)))
    assert fisher_traces(pruned).numpy() == pytest.approx(norms)


def test_members_of_a_sparse_ensemble_are_sparse(tmp_path: Path) -> None:
    settings = config(tmp_path / "ensemble", epochs=3, **PLAIN)
    trained = train_ensemble(settings, Ensemble(members=2, exchange_at=1))
    for run in trained.runs:
        weights = torch.cat([t.flatten() for k, t in final(run).items() if "weight" in k])
        assert float((weights == 0).double().mean()) == pytest.approx(0.6, abs=0.02)


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="prune is 1"):
        Config(prune=1.0)
    with pytest.raises(ValueError, match="sharded"):
        Config(prune=0.5, fsdp=True)
