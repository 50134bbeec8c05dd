"""Hessians and Gauss-Newton matrices as dense flat matrices: by autograd, by differences, in closed form, by others."""

import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.func import grad, jacrev

from .flat import Landscape

Function = Callable[[Tensor], Tensor]  # a number for one flat vector
Loss = Callable[[Tensor, Tensor], Tensor]  # of output and target: a mean, or one loss a row
Batches = Sequence[tuple[Tensor, Tensor]]


# -- one function of the flat weights -------------------------------------------------------------------------------


def mean_loss(model: nn.Module, loss_fn: Loss, batches: Batches) -> Function:
    """The mean over all rows as a function of the flat weights, by a copy of the model in the mode that it is in."""
    own, rows = deepcopy(model), sum(len(x) for x, _ in batches)
    lands = [Landscape(own, loss_fn, x, y) for x, y in batches]
    return lambda w: sum((len(land) / rows * land.loss(w) for land in lands), torch.zeros((), dtype=w.dtype))


def gradient(f: Function, w: Tensor) -> Tensor:
    x = w.detach().clone().requires_grad_()
    return torch.autograd.grad(f(x), x)[0]


# -- dense matrices by three routes -----------------------------------------------------------------------------------


def hessian(f: Function, w: Tensor) -> Tensor:
    """Reverse over reverse by functorch: the Jacobian of the gradient (forward mode is wrong inside LayerNorm)."""
    return jacrev(grad(f))(w.detach())


def hessian_row_by_row(f: Function, w: Tensor) -> Tensor:
    """Double backward, one entry of the gradient after the other, without functorch."""
    x = w.detach().clone().requires_grad_()
    (slope,) = torch.autograd.grad(f(x), x, create_graph=True)
    unit = torch.eye(len(w), dtype=w.dtype)
    return torch.stack([torch.autograd.grad(slope, x, e, retain_graph=True)[0] for e in unit])


def hessian_by_differences(f: Function, w: Tensor, h: float = 1e-5) -> Tensor:
    """Central differences of first gradients: nothing is differentiated twice. Right to about h^2."""
    shifts = h * torch.eye(len(w), dtype=w.dtype)
    return torch.stack([(gradient(f, w + e) - gradient(f, w - e)) / (2 * h) for e in shifts])


def gauss_newton(model: nn.Module, loss_fn: Loss, batches: Batches, w: Tensor) -> Tensor:
    """J' (Hessian of the loss in the outputs) J, with the whole Jacobian of the outputs of each batch."""
    own, rows = deepcopy(model), sum(len(x) for x, _ in batches)
    total = torch.zeros(len(w), len(w), dtype=w.dtype)
    for x, y in batches:
        outputs = Landscape(own, lambda out, y: out, x, y).each
        out = outputs(w).detach()
        jacobian = jacrev(outputs)(w.detach()).reshape(out.numel(), len(w))
        inner = jacrev(grad(lambda z, out=out, y=y: loss_fn(z.view_as(out), y).mean()))(out.reshape(-1))
        total += len(x) / rows * jacobian.T @ inner @ jacobian
    return total


def softmax_fisher(model: nn.Module, batches: Batches, w: Tensor) -> Tensor:
    """Mean of sum_c p_c grad log p_c (grad log p_c)' over rows: the Gauss-Newton matrix of cross-entropy, otherwise."""
    own, rows = deepcopy(model), sum(len(x) for x, _ in batches)
    total = torch.zeros(len(w), len(w), dtype=w.dtype)
    for x, y in batches:
        for i in range(len(x)):
            logs = Landscape(own, lambda out, y: out.log_softmax(-1)[0], x[i : i + 1], y[i : i + 1]).each
            for c, p in enumerate(logs(w).detach().exp()):
                g = gradient(lambda v, logs=logs, c=c: logs(v)[c], w)
                total += p / rows * torch.outer(g, g)
    return total


def rescaled(matrix: Tensor, c: Tensor) -> Tensor:
    """Matrix * c c': the curvature in gamma = d / c; c = |w| for adaptive sharpness."""
    return c[:, None] * matrix * c[None, :]


# -- numbers of a dense matrix ----------------------------------------------------------------------------------------


def eigenvalues(matrix: Tensor) -> Tensor:
    """All of them, ascending."""
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2)


def trace(matrix: Tensor) -> float:
    return float(matrix.diagonal().sum())


def frobenius_squared(matrix: Tensor) -> float:
    return float((matrix**2).sum())


def log_det_shifted(matrix: Tensor, mu: float) -> float:
    """log det(matrix + mu I) by Cholesky, which fails unless that is positive definite."""
    factor = torch.linalg.cholesky((matrix + matrix.T) / 2 + mu * torch.eye(len(matrix), dtype=matrix.dtype))
    return float(2 * factor.diagonal().log().sum())


def log_det_above(matrix: Tensor, cut: float) -> tuple[float, int]:
    """Sum of log lambda over eigenvalues above cut * lambda_max, and how many those are."""
    all_of_them = eigenvalues(matrix)
    kept = all_of_them[all_of_them > cut * all_of_them[-1]]
    return float(kept.log().sum()), len(kept)


# -- closed forms -----------------------------------------------------------------------------------------------------


def affine_hessian(x: Tensor, inner: Tensor, bias: bool = True) -> Tensor:
    """Of nn.Linear: the mean over rows of inner_n (x) x_n x_n', where `inner` is the Hessian in a row's outputs."""
    n, k = len(x), inner.shape[-1]
    inputs = torch.cat([x, torch.ones(n, 1, dtype=x.dtype)], 1) if bias else x
    width = inputs.shape[1]
    whole = torch.einsum("nab,ni,nj->aibj", inner, inputs, inputs).reshape(k * width, k * width) / n
    position = torch.arange(k * width).reshape(k, width)  # weight[a, i], then bias[a], as nn.Linear names them
    order = torch.cat([position[:, : x.shape[1]].reshape(-1), position[:, x.shape[1] :].reshape(-1)])
    return whole[order][:, order]


def linear_regression_hessian(x: Tensor, outputs: int = 1, bias: bool = True) -> Tensor:
    """Of the mean squared error (mse_loss: a mean over rows and outputs) of nn.Linear."""
    inner = 2 / outputs * torch.eye(outputs, dtype=x.dtype)
    return affine_hessian(x, inner.expand(len(x), outputs, outputs), bias)


def logistic_regression_hessian(x: Tensor, logits: Tensor, bias: bool = True) -> Tensor:
    """Of the mean cross-entropy of nn.Linear: diag(p) - p p' in the logits of every row."""
    p = logits.softmax(-1)
    return affine_hessian(x, torch.diag_embed(p) - p[:, :, None] * p[:, None, :], bias)


def diagonal_network_loss(x: Tensor, y: Tensor) -> Function:
    """||X (u * v) - y||^2 of w = (u, v): eq. (6) of A modern look, a sum and without 1/2."""
    return lambda w: ((x @ (w[: len(w) // 2] * w[len(w) // 2 :]) - y) ** 2).sum()


def diagonal_network_hessian(x: Tensor, y: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Of the loss above; on whitened data and zero residuals twice the matrix that the paper prints (its eq. 8)."""
    gram, pull = x.T @ x, torch.diag(x.T @ (x @ (u * v) - y))
    across = v[:, None] * gram * u[None, :] + pull
    return 2 * torch.cat(
        [
            torch.cat([v[:, None] * gram * v[None, :], across], 1),
            torch.cat([across.T, u[:, None] * gram * u[None, :]], 1),
        ]
    )


# -- other libraries (requirements-oracles.txt) -----------------------------------------------------------------------


def curvlinops_matrix(kind: str, model: nn.Module, loss_fn: nn.Module, batches: Batches) -> Tensor:
    """curvlinops' "Hessian", "GGN" or "EF" operator, applied to the unit matrix; its losses are modules."""
    if kind == "Hessian" and any(isinstance(m, nn.LayerNorm) for m in model.modules()):
        raise ValueError(
            "curvlinops' Hessian is wrong through LayerNorm (jvp of jacrev is, in torch 2.13): use hessian()"
        )
    return _curvlinops(kind, model, loss_fn, batches)


def _curvlinops(kind: str, model: nn.Module, loss_fn: nn.Module, batches: Batches) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.script`", DeprecationWarning)  # at import, and in torch's jvp
        import curvlinops

        params = list(model.parameters())
        operator = getattr(curvlinops, f"{kind}LinearOperator")(model, loss_fn, params, list(batches))
        return operator @ torch.eye(operator.shape[1], dtype=params[0].dtype)


def pyhessian_of(model: nn.Module, loss_fn: Loss, batches: Batches):
    """PyHessian's object on a copy of the model, which it puts into eval mode; several batches are its loader."""
    from pyhessian import hessian as other

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using backward", UserWarning)  # create_graph=True
        data = {"data": batches[0]} if len(batches) == 1 else {"dataloader": list(batches)}
        return other(deepcopy(model), loss_fn, **data, cuda=False)


def pyhessian_eigenvalues(
    model: nn.Module, loss_fn: Loss, batches: Batches, k: int = 1, tol: float = 1e-10, seed: int = 0
) -> Tensor:
    """The k eigenvalues largest in magnitude, by PyHessian's power iterations, which divide by ||Hv|| + 1e-6."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(next(model.parameters()).dtype)  # what it draws
    try:
        with warnings.catch_warnings(), torch.random.fork_rng():
            warnings.filterwarnings("ignore", "Using backward", UserWarning)
            torch.manual_seed(seed)
            values, _ = pyhessian_of(model, loss_fn, batches).eigenvalues(maxIter=5000, tol=tol, top_n=k)
    finally:
        torch.set_default_dtype(default)
    return torch.tensor(values, dtype=torch.float64)
