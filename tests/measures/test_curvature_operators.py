"""Operators on flat tensors and arrays, for scipy, and layer by layer, against dense matrices by autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import aslinearoperator, cg, eigsh
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import Elementwise, Objective
from steppe.measures import Curvature, Dense, FisherTrace, empirical_fisher, gauss_newton, hessian

F64 = torch.float64
FORMS = [hessian, gauss_newton, empirical_fisher]
WEIGHTS = torch.tensor([1.0, 5.0, 0.2], dtype=F64)
LOSSES: dict[str, Any] = {
    "mean": cross_entropy,
    "sum": nn.CrossEntropyLoss(reduction="sum"),
    "per row": nn.CrossEntropyLoss(reduction="none"),
    "class weights": nn.CrossEntropyLoss(weight=WEIGHTS),
    "ignored": nn.CrossEntropyLoss(ignore_index=0),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.2),
    "by hand": lambda out, y: (out.logsumexp(1) - out.gather(1, y[:, None])[:, 0]).mean(),
}


def network() -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return model, torch.randn(11, 4, dtype=F64), torch.arange(11) % 3


def objective(loss: Any = cross_entropy, sizes: tuple[int, ...] = (5, 6)) -> Objective:
    model, x, y = network()
    return Objective(model, loss, list(zip(x.split(sizes), y.split(sizes), strict=True)))


def gradients(loss: Any) -> tuple[Tensor, Tensor]:
    """The gradient of every row's loss as a batch of one, and what rows weigh: the divisors of these losses."""
    model, x, y = network()
    rows = []
    for i in range(len(x)):
        grads = torch.autograd.grad(loss(model(x[i : i + 1]), y[i : i + 1]).mean(), list(model.parameters()))
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    by_class = getattr(loss, "weight", None)
    weights = torch.ones(len(x), dtype=F64) if by_class is None else by_class[y]
    weights = weights * (y != getattr(loss, "ignore_index", -100))
    grads = torch.stack(rows)
    return torch.where(weights[:, None] > 0, grads, 0.0), weights


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("sizes", [(11,), (5, 6), (1, 7, 3)])
def test_the_fisher_matrix_is_the_mean_of_outer_products(loss: str, sizes: tuple[int, ...]) -> None:
    grads, weights = gradients(LOSSES[loss])
    expected = grads.mT @ (weights[:, None] * grads) / (1 if loss == "sum" else weights.sum())
    o = objective(LOSSES[loss], sizes)
    torch.testing.assert_close(Dense(Curvature(o, empirical_fisher)).matrix, expected, rtol=1e-10, atol=1e-12)
    if loss != "sum":
        assert FisherTrace().estimate(o).value == pytest.approx(float(expected.trace()), rel=1e-10)


def product(o: Objective) -> Tensor:
    operator = Curvature(o, empirical_fisher)
    return operator @ torch.ones(operator.dimension, dtype=F64)


def test_the_fisher_matrix_of_tokens_and_of_what_has_none() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(6, 3), nn.Linear(3, 6)).double()
    x = torch.randint(6, (4, 5))
    o = Objective(model, lambda out, y: cross_entropy(out.mT, y), (x, x.roll(1)))
    assert FisherTrace().estimate(o).value == pytest.approx(float(Dense(Curvature(o, empirical_fisher)).matrix.trace()))
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    model, inputs, labels = network()
    with pytest.raises(ValueError, match="no loss of its own"):
        product(Objective(normed, cross_entropy, (inputs, labels), statistics="batch"))
    two = [(inputs[:5], labels[:5]), (inputs[5:], labels[5:])]
    with pytest.raises(ValueError, match="return one loss per row"):
        product(Objective(model, cross_entropy, two, weight=1))


@pytest.mark.parametrize("metric", [None, Elementwise(0.0, everywhere=True)])
@pytest.mark.parametrize("form", FORMS)
def test_products_with_tensors_and_arrays_are_those_of_the_matrix(form: Any, metric: Any) -> None:
    operator = Curvature(objective(), form, metric)
    matrix = Dense(operator).matrix
    assert operator.shape == tuple(matrix.shape)
    v = torch.randn(operator.dimension, 3, dtype=F64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(operator @ v, matrix @ v, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(operator @ v[:, 0], matrix @ v[:, 0], rtol=1e-10, atol=1e-12)
    found = operator @ v[:, 0].numpy()
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, (matrix @ v[:, 0]).numpy(), rtol=1e-10, atol=1e-12)
    vector = operator.objective.draw(0).normal()
    torch.testing.assert_close((operator @ vector).tensors, operator.product(vector).tensors)


@pytest.mark.parametrize("form", FORMS)
def test_scipy_solves_with_the_operator(form: Any) -> None:
    """Its eigenvalues and its conjugate gradients, with damping where the matrix needs it."""
    operator = Curvature(objective(), form)
    matrix, scipys = Dense(operator).matrix.numpy(), operator.linear_operator()
    assert scipys.dtype == np.float64
    np.testing.assert_allclose(eigsh(scipys, 2)[0], np.sort(eigsh(matrix, 2)[0]), rtol=1e-9)
    damped = scipys + aslinearoperator(np.eye(len(matrix)))
    b = np.random.default_rng(0).standard_normal(len(matrix))
    solved, failed = cg(damped, b, rtol=1e-12)
    assert not failed
    np.testing.assert_allclose((matrix + np.eye(len(matrix))) @ solved, b, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("loss", ["class weights", "mean"])
def test_layers_are_the_diagonal_blocks(form: Any, loss: str) -> None:
    operator = Curvature(objective(LOSSES[loss], (1, 7, 3)), form)
    matrix, start = Dense(operator).matrix, 0
    blocks = operator.per_layer()
    assert list(blocks) == ["0", "2"]
    for block in blocks.values():
        end = start + block.dimension
        torch.testing.assert_close(Dense(block).matrix, matrix[start:end, start:end], rtol=1e-10, atol=1e-12)
        start = end
    assert start == len(matrix)


def test_rows_that_are_not_those_of_the_weights_are_refused() -> None:
    operator = Curvature(objective())
    with pytest.raises(ValueError, match="43 weights takes as many rows, not \\(42,\\)"):
        operator @ np.ones(operator.dimension - 1)


def test_curvlinops_has_the_same_fisher_matrix() -> None:
    curvlinops = pytest.importorskip("curvlinops")
    o = objective()
    theirs = curvlinops.EFLinearOperator(o.model, nn.CrossEntropyLoss(), list(o.model.parameters()), o.batches)
    matrix = Dense(Curvature(o, empirical_fisher)).matrix
    torch.testing.assert_close(
        torch.as_tensor(theirs @ torch.eye(len(matrix), dtype=F64)), matrix, rtol=1e-9, atol=1e-11
    )


@pytest.mark.parametrize("rows", [1, 16])
def test_curvlinops_kfac_of_an_objective_is_exact_for_linear_networks(rows: int) -> None:
    """The curvature in the outputs of a linear network with squared loss is constant, so its blocks factorise."""
    curvlinops = pytest.importorskip("curvlinops")
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4, bias=False), nn.Linear(4, 3, bias=False)).double()
    o = Objective(model, nn.functional.mse_loss, (torch.randn(rows, 5, dtype=F64), torch.randn(rows, 3, dtype=F64)))
    kfac = curvlinops.KFACLinearOperator(
        o.model, nn.MSELoss(), list(o.params.values()), o.batches, fisher_type=curvlinops.FisherType.TYPE2
    )
    theirs = kfac @ torch.eye(o.dimension, dtype=F64)
    blocks = [Dense(block).matrix for block in Curvature(o, gauss_newton).per_layer().values()]
    torch.testing.assert_close(theirs, torch.block_diag(*blocks), rtol=1e-10, atol=1e-12)
