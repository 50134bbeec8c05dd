"""Measures of the Hessian: eigenvalues, traces and log-determinants of one operator, and relative flatness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import torch

from ...core.draw import seed_of
from ...core.fields import Count, NonNegative
from ...core.metric import Metric
from ..estimate import Estimate, Kind, Measure, summarise
from ..objective import Objective
from ..registration import ANDRIUSHCHENKO, MAGNITUDE, PRODUCTS, register
from .forms import Form, gauss_newton, hessian
from .lanczos import BLOCK
from .operator import Curvature
from .spectrum import End, Spectrum, Sweep


@runtime_checkable
@dataclass(frozen=True)
class SpectralMeasure(Measure, Protocol):
    """A measure of the spectrum of the operator D C D; measures of the same operator share its products.

    Parameters
    ----------
    form
        The matrix C: `hessian` or `gauss_newton`.
    metric
        The scale D; None is the identity.
    by
        The estimator: `Sweep`, `hutchinson` or `Dense`.

    """

    form: Form = field(default=hessian, kw_only=True)
    metric: Metric | None = field(default=None, kw_only=True)
    by: Callable[[Curvature, int], Spectrum] = field(default=Sweep, kw_only=True)

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        """Yield better and better estimates."""
        ...

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        own_seed = seed_of(seed, objective.number) if objective.number else seed  # each batch has its own probes
        return self.estimates(self.by(Curvature(objective, self.form, self.metric), own_seed))


@register(
    "lambda_min", kind="upper bound", cost=PRODUCTS, label="smallest Hessian eigenvalue",
    does="the smallest eigenvalue of the Hessian, by Lanczos",
    args=(1, "bottom"),
)  # fmt: skip
@register(
    "lambda_max", kind="lower bound", cost=PRODUCTS, label="largest Hessian eigenvalue",
    does="the largest eigenvalue of the Hessian, by Lanczos",
    variants={
        "adaptive_lambda_max": {"metric": MAGNITUDE, "paper": ANDRIUSHCHENKO},
        "gauss_newton_lambda_max": {"form": gauss_newton},
    },
)  # fmt: skip
@dataclass(frozen=True)
class Eigenvalue(SpectralMeasure):
    """The k-th eigenvalue from one end; k=1 from the top is lambda_max.

    Parameters
    ----------
    k
        The place of the eigenvalue, counted from `end`: 1 is the last one there.
    end
        The end of the spectrum, "top" or "bottom".
    rtol
        The search stops when the residual is below this fraction of the eigenvalue; an eigenvalue lies within the
        residual.
    most
        The maximum number of products.
    form
        The matrix: `hessian` or `gauss_newton`.
    metric
        The scaling of the weights; None for none.
    by
        The estimator: `Sweep`, `hutchinson`, or `Dense` for small models.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> round(float(steppe.measures.Eigenvalue().estimate(objective)), 4)  # the Hessian is the identity
    1.0

    """

    k: Count = 1
    end: End = "top"
    rtol: NonNegative = 1e-3
    most: Count = 200

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.eigenvalues(self.k, self.end, self.rtol, self.most)


@register(
    "trace", kind="plug-in", cost=PRODUCTS, label="Hessian trace",
    does="the sum of the eigenvalues of the Hessian",
    variants={
        "adaptive_trace": {"metric": MAGNITUDE, "paper": ANDRIUSHCHENKO},
        "gauss_newton_trace": {"form": gauss_newton},
    },
)  # fmt: skip
@dataclass(frozen=True)
class Trace(SpectralMeasure):
    """The sum of the eigenvalues.

    Parameters
    ----------
    rtol
        The relative standard error at which the estimate stops. Because the draws decide when that is, their mean has a
        bias, a fraction of its error, and the kind is "plug-in". With 0 it takes `most` products and is unbiased.
    most
        The maximum number of products.
    form
        The matrix: `hessian` or `gauss_newton`.
    metric
        The scaling of the weights; None for none.
    by
        The estimator: `Sweep`, `hutchinson`, or `Dense` for small models.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.eye(2), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> round(float(steppe.measures.Trace().estimate(objective)), 4)  # the Hessian is the identity
    2.0

    """

    rtol: NonNegative = 0.02
    most: Count = 200

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.trace(self.rtol, self.most)


@register(
    "frobenius_squared", kind="plug-in", cost=PRODUCTS, label="squared Frobenius norm of the Hessian",
    does="the sum of the squared eigenvalues of the Hessian",
    variants={
        "adaptive_frobenius_squared": {"metric": MAGNITUDE},
        "gauss_newton_frobenius_squared": {"form": gauss_newton},
    },
)  # fmt: skip
@dataclass(frozen=True)
class FrobeniusSquared(SpectralMeasure):
    """The sum of the squared eigenvalues.

    Parameters
    ----------
    rtol
        The relative standard error at which the estimate stops. Because the draws decide when that is, their mean has a
        bias, a fraction of its error, and the kind is "plug-in". With 0 it takes `most` products and is unbiased.
    most
        The maximum number of products.
    form
        The matrix: `hessian` or `gauss_newton`.
    metric
        The scaling of the weights; None for none.
    by
        The estimator: `Sweep`, `hutchinson`, or `Dense` for small models.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> print(steppe.measures.FrobeniusSquared().estimate(objective))  # 1 ** 2 + 4 ** 2
    17 (exact)

    """

    rtol: NonNegative = 0.02
    most: Count = 200

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.frobenius_squared(self.rtol, self.most)


@register(
    "log_determinant", kind="plug-in", cost="up to 1000 products", label="log-determinant of the Hessian",
    does="the sum of log(eigenvalue) over the larger eigenvalues of the Hessian",
)  # fmt: skip
@dataclass(frozen=True)
class LogDeterminant(SpectralMeasure):
    """The sum of log(eigenvalue) over those above `cut` times the largest.

    Parameters
    ----------
    cut
        The log-determinant of a Hessian is undefined without a cut above zero.
    runs, steps
        Of stochastic Lanczos quadrature. If it does not resolve the cut, the value is exact for models of up to
        runs * steps weights; for larger ones the error has the smallest cut that is resolved.
    form
        The matrix: `hessian` or `gauss_newton`.
    metric
        The scaling of the weights; None for none.
    by
        The estimator: `Sweep`, `hutchinson`, or `Dense` for small models.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> print(steppe.measures.LogDeterminant(by=steppe.measures.Dense).estimate(objective))  # log(1) + log(4)
    1.38629 (exact): 2 eigenvalues above 0.04

    """

    cut: float = 1e-2
    runs: Count = 10
    steps: Count = 100

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.log_determinant(self.cut, self.runs, self.steps)


@dataclass(frozen=True)
class ShiftedLogDeterminant(SpectralMeasure):
    """The log-determinant of the operator plus mu times the identity.

    Parameters
    ----------
    mu
        The shift; the sum must be positive definite.
    runs, steps
        Of stochastic Lanczos quadrature.
    form
        The matrix: `hessian` or `gauss_newton`.
    metric
        The scaling of the weights; None for none.
    by
        The estimator: `Sweep`, `hutchinson`, or `Dense` for small models.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> shifted = steppe.measures.ShiftedLogDeterminant(1.0, by=steppe.measures.Dense)
    >>> print(shifted.estimate(objective))  # log(1 + 1) + log(4 + 1)
    2.30259 (exact)

    """

    mu: float
    runs: Count = 10
    steps: Count = 100

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.log_determinant_shifted(self.mu, self.runs, self.steps)


@register(
    "relative_flatness", kind="plug-in", cost="up to 100 products", paper="Petzka et al. 2021",
    label="relative flatness", does="the curvature in the last weight matrix, in the scale of its weights",
)  # fmt: skip
@dataclass(frozen=True)
class RelativeFlatness(Measure):
    """sum over rows s, s' of <w_s, w_s'> tr(H_ss') for one weight matrix (Petzka et al. 2021, Definition 3).

    Parameters
    ----------
    layer
        The name of the parameter; None takes the last matrix, as the paper measures the layer after the features.
    n
        The maximum number of draws.
    rtol
        The relative standard error at which the estimate stops; 0 takes all draws, and is unbiased.

    Examples
    --------
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.eye_(model.weight)
    >>> data = torch.diag(torch.tensor([1.0, 2.0])), torch.zeros(2, 1)
    >>> objective = steppe.Objective(model, nn.functional.mse_loss, data)

    >>> float(steppe.measures.RelativeFlatness().estimate(objective))  # |w| ** 2 = 1 times the trace, 5
    5.0

    """

    layer: str | None = None
    n: Count = 100
    rtol: NonNegative = 0.05

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        matrices = [n for n, p in objective.params.items() if p.ndim >= 2]
        if not matrices:
            raise ValueError("relative flatness needs a weight matrix, and no parameter that moves is one")
        name = self.layer or matrices[-1]
        if name not in matrices:
            raise ValueError(f"relative flatness needs a weight matrix: {name!r} is none of {matrices}")
        part = replace(objective, only=[name])
        curvature = Curvature(part)
        w = part.weight_tensors()[0]
        matrix = w.reshape(len(w), -1)
        draws: list[float] = []
        kind: Kind = "plug-in" if self.rtol > 0 else "unbiased"  # they decide how many there are
        for i in range(self.n):
            draw = torch.Generator().manual_seed(seed_of(seed, 4, objective.number, i))
            a, b = torch.randint(0, 2, (2, matrix.shape[1]), generator=draw).mul(2).sub(1).to(matrix)  # signs
            direction = torch.outer(matrix @ a, b).view_as(w)  # E [v' H v] over signs a, b is the weighted trace
            v = part.space.vector([direction])
            draws.append(float(v.dot(curvature.product(v))))
            if len(draws) % BLOCK == 0 or len(draws) == self.n:
                estimate = summarise(torch.tensor(draws, dtype=torch.float64), kind, note=f"of {name}")
                yield estimate
                if len(draws) >= 2 * BLOCK and estimate.stderr <= self.rtol * abs(estimate.value):
                    return
