"""Sparse-SAM against its algorithm: Fisher and dynamic masks, their size and their renewal."""

from itertools import pairwise
from math import cos, pi

import pytest
import torch
from oracles import relatives as naive
from oracles.follow import BASES, Run, assert_follows
from oracles.inputs import Chance
from problems import Problem, mlp_problem
from torch import nn

from steppe import DynamicSparseSAM, FisherSparseSAM, SharpnessAware, build

PROBLEM = mlp_problem(steps=7)
D = len(PROBLEM.start)


def start(method, base="sgd", problem=PROBLEM):
    model = problem.fresh_model()
    return model, SharpnessAware(BASES[base][0](model.parameters()), method, model=model, seed=5)


def mask_of(opt, model):
    return torch.cat([opt.state[p]["steppe.mask"].flatten() for p in model.parameters()])


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(("sparsity", "samples", "every"), [(0.5, 12, 3), (0.9, 4, 1), (0.2, 1, 100)])
def test_fisher_sparse_sam(sparsity, samples, every, base):
    rule = naive.FisherSparse(0.3, sparsity, samples, every)
    model, opt = start(FisherSparseSAM(0.3, sparsity, samples, every), base)
    followed = Run(PROBLEM, model, opt)
    assert_follows(followed, PROBLEM, rule, base)
    for t, places in enumerate(followed.visited):
        assert len(places) == 2 + (samples if t % every == 0 else 0)
        assert torch.equal(places[-1] != 0, rule.masks[t] == 1)
    assert torch.equal(mask_of(opt, model), rule.masks[-1])


def test_the_norm_is_of_the_whole_gradient():
    """As published: so the perturbation is shorter than rho."""
    followed = Run(PROBLEM, *start(FisherSparseSAM(0.3, 0.5, 4, 100)))
    dense = Run(PROBLEM, *start(FisherSparseSAM(0.3, 0.0, 4, 100)))
    sparse, full = followed.visited[0][-1], dense.visited[0][-1]
    assert full.norm().item() == pytest.approx(0.3, rel=1e-12)
    assert sparse.norm() < 0.2999
    torch.testing.assert_close(sparse, torch.where(sparse != 0, full, 0.0), rtol=1e-12, atol=0)
    assert (sparse != 0).sum() == round(0.5 * D)


def test_the_mask_changes_only_at_its_renewal():
    masks = [places[-1] != 0 for places in Run(PROBLEM, *start(FisherSparseSAM(0.3, 0.5, 4, every=3))).visited]
    changed = [not torch.equal(a, b) for a, b in pairwise(masks)]
    assert changed == [False, False, True, False, False, True]


def test_more_samples_than_rows_are_refused():
    with pytest.raises(ValueError, match="batch of 12 rows: use fewer samples"):
        Run(PROBLEM, *start(FisherSparseSAM(samples=13)))


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize(
    ("sparsity", "drop", "every", "steps"), [(0.5, 0.5, 2, 6), (0.8, 0.3, 1, 7), (0.3, 0.9, 3, 4), (0.5, 0.0, 1, 6)]
)
def test_dynamic_sparse_sam(sparsity, drop, every, steps, base):
    model, opt = start(DynamicSparseSAM(0.3, sparsity, drop, every, steps), base)
    rule = naive.DynamicSparse(0.3, sparsity, drop, every, steps, Chance(opt, model).uniform)
    followed = Run(PROBLEM, model, opt)
    assert_follows(followed, PROBLEM, rule, base)
    kept = round((1 - sparsity) * D)
    for places in followed.visited:
        assert len(places) == 2
        assert (places[-1] != 0).sum() == kept
    assert mask_of(opt, model).nonzero().flatten().tolist() == sorted(rule.active)


def test_the_drop_rate_falls_by_a_cosine_to_nothing():
    model, opt = start(DynamicSparseSAM(0.3, 0.5, 0.4, 1, 5))
    rule = naive.DynamicSparse(0.3, 0.5, 0.4, 1, 5, Chance(opt, model).uniform)
    followed = Run(PROBLEM, model, opt)
    assert_follows(followed, PROBLEM, rule)
    kept = round(0.5 * D)
    assert rule.dropped == [round(0.2 * (1 + cos(pi * min(t / 5, 1))) * kept) for t in range(1, 7)]
    assert rule.dropped[0] > rule.dropped[2] > rule.dropped[4] == rule.dropped[5] == 0
    masks = [places[-1] != 0 for places in followed.visited]
    lost = [(a & ~b).sum().item() for a, b in pairwise(masks)]
    assert all(0 < a <= b for a, b in zip(lost[:3], rule.dropped[:3], strict=True))
    assert lost[4:] == [0, 0]


@pytest.mark.parametrize("name", ["ssam-f", "ssam-d"])
def test_names_build_them_with_half_of_the_weights(name):
    problem = mlp_problem(steps=4, rows=16)
    model = problem.fresh_model()
    opt = build(name, BASES["sgd"][0](model.parameters()), model=model, seed=5)
    followed = Run(problem, model, opt)
    rule = (
        naive.FisherSparse(0.1, 0.5, 16, 391)
        if name == "ssam-f"
        else naive.DynamicSparse(0.1, 0.5, 0.5, 391, 200 * 391, Chance(opt, model).uniform)
    )
    assert_follows(followed, problem, rule)


def embedding_problem():
    """Few rows of a table are looked up in a batch, so most gradients are exactly zero and tie."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(40, 4), nn.Linear(4, 3)).double()
        batches = [(torch.randint(0, 40, (6,)), torch.randint(0, 3, (6,))) for _ in range(6)]
    return Problem(model, batches)


@pytest.mark.parametrize(
    "method", [FisherSparseSAM(0.3, 0.5, 6, 1), DynamicSparseSAM(0.3, 0.5, 0.5, 1, 100)], ids=["fisher", "dynamic"]
)
def test_ties_do_not_change_how_many_weights_are_kept(method):
    problem = embedding_problem()
    model, opt = start(method, problem=problem)
    sizes = []
    for batch in problem.batches:
        Run(Problem(problem.model, [batch], problem.losses), model, opt)
        sizes.append(int(mask_of(opt, model).sum()))
    assert sizes == [round(0.5 * len(problem.start))] * 6
