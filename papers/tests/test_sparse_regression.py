"""The sparse regression of the papers on diagonal linear networks, against what is known of it."""

import numpy as np
import pytest
import torch

from steppe_papers.data.sparse import gaussian_rows, sparse_regression, sparse_truth, whitened_rows


def test_making_the_rows_does_not_move_the_global_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    sparse_regression()
    assert torch.equal(torch.get_rng_state(), before)


def test_the_least_l1_norm_is_the_truth_and_the_least_l2_norm_is_not():
    """Basis pursuit, solved as a linear program: the problem is overparametrised, and sparsity is what helps."""
    from scipy.optimize import linprog

    splits, truth = sparse_regression(seed=1), sparse_truth(seed=1).double().numpy()
    x, y = splits.train.inputs.double().numpy(), splits.train.targets.double().numpy().squeeze(1)
    rows, d = x.shape
    assert rows < d == 200
    assert (truth == 0).mean() == 0.9
    assert set(np.unique(truth)) == {-1.0, 0.0, 1.0}
    found = linprog(np.ones(2 * d), A_eq=np.hstack([x, -x]), b_eq=y, bounds=(0, None))
    np.testing.assert_allclose(found.x[:d] - found.x[d:], truth, atol=1e-4)
    smallest = np.linalg.pinv(x) @ y
    np.testing.assert_allclose(x @ smallest, y, atol=1e-4)  # fits as well
    test_x, test_y = splits.test.inputs.numpy(), splits.test.targets.numpy().squeeze(1)
    risk = np.mean((test_x @ smallest - test_y) ** 2)
    assert risk == pytest.approx(np.sum((smallest - truth) ** 2), rel=0.15)  # Gaussian rows: the squared distance
    assert risk == pytest.approx((1 - rows / d) * 20, rel=0.35)  # the part of the truth that the rows do not see


def test_whitened_rows_make_the_papers_hessian_twice_the_printed_one():
    splits = sparse_regression(30, 10, dimensions=6, nonzero=2, law=whitened_rows, seed=4)
    x, y = splits.train.inputs.double(), splits.train.targets.double().squeeze(1)
    torch.testing.assert_close(x.T @ x / 30, torch.eye(6, dtype=torch.float64), atol=1e-5, rtol=0)
    truth = sparse_truth(6, 2, 4).double()
    other = torch.randn(6, dtype=torch.float64)
    assert float((x @ other - y).square().mean()) == pytest.approx(float((other - truth).square().sum()), rel=1e-4)
    u = torch.tensor([0.5, 2, 1, 3, 0.7, 1.5], dtype=torch.float64)
    v = truth / u  # a minimum
    hessian = torch.autograd.functional.hessian(lambda w: (x @ (w[:6] * w[6:]) - y).square().mean(), torch.cat([u, v]))
    printed = torch.cat(
        [torch.cat([(v * v).diag(), (u * v).diag()], 1), torch.cat([(u * v).diag(), (u * u).diag()], 1)]
    )
    torch.testing.assert_close(hessian, 2 * printed, atol=1e-3, rtol=1e-4)


def test_rows_have_unit_variance_and_too_few_cannot_be_white():
    assert float(gaussian_rows(4000, 5, torch.Generator().manual_seed(0)).var()) == pytest.approx(1, rel=0.03)
    with pytest.raises(ValueError, match="at least 20 rows"):
        sparse_regression(10, 10, dimensions=20, nonzero=2, law=whitened_rows)
    with pytest.raises(ValueError, match="use 1 to 20"):
        sparse_regression(10, 10, dimensions=20, nonzero=21)
