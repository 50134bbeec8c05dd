"""Measures of the spectrum of one operator; measures of the same operator share its products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Protocol, runtime_checkable

from ...core.draw import seed_of
from ...core.metric import Metric
from ..estimate import Estimate, Measure
from ..objective import Objective
from .forms import Form, hessian
from .operator import Curvature
from .sweep import End, Sweep


class Spectrum(Protocol):
    """Estimates of the spectrum of an operator: a Sweep or, for small models, Dense."""

    def eigenvalues(self, k: int = ..., end: End = ..., rtol: float = ..., most: int = ...) -> Iterator[Estimate]: ...
    def trace(self, rtol: float = ..., most: int = ...) -> Iterator[Estimate]: ...
    def frobenius_squared(self, rtol: float = ..., most: int = ...) -> Iterator[Estimate]: ...
    def log_determinant(self, cut: float = ..., runs: int = ..., steps: int = ...) -> Iterator[Estimate]: ...
    def log_determinant_shifted(self, mu: float, runs: int = ..., steps: int = ...) -> Iterator[Estimate]: ...


By = Callable[[Curvature, int], Spectrum]


@runtime_checkable
class SpectralMeasure(Measure, Protocol):
    """A measure of the spectrum of one operator.

    Every such measure has the keyword arguments `form` (hessian or gauss_newton), `metric` (the scale D of D H D) and
    `by` (Sweep, hutchinson or Dense).
    """

    @property
    def form(self) -> Form: ...
    @property
    def metric(self) -> Metric | None: ...
    @property
    def by(self) -> By: ...

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        """Yield better and better estimates."""
        ...

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        own_seed = seed_of(seed, objective.number) if objective.number else seed  # each batch has its own probes
        return with_cost(self.estimates(self.by(Curvature(objective, self.form, self.metric), own_seed)), objective)


def with_cost(estimates: Iterator[Estimate], objective: Objective) -> Iterator[Estimate]:
    """The same estimates, each with the cost so far."""
    before = objective.spent()
    for estimate in estimates:
        yield replace(estimate, cost=objective.spent() - before)


@dataclass(frozen=True)
class Eigenvalue(SpectralMeasure):
    """The k-th eigenvalue from one end; k=1 from the top is lambda_max.

    Parameters
    ----------
    k, end
        Which eigenvalue, from the "top" or the "bottom".
    rtol
        The search stops when the residual is below this fraction of the eigenvalue; an eigenvalue lies within the
        residual.
    most
        At most this many products.
    form, metric, by
        The operator D C D and the estimator: see `Curvature`, `Sweep` and `Dense`.

    """

    k: int = 1
    end: End = "top"
    rtol: float = 1e-3
    most: int = 200
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.eigenvalues(self.k, self.end, self.rtol, self.most)


@dataclass(frozen=True)
class Trace(SpectralMeasure):
    """The sum of the eigenvalues.

    Parameters
    ----------
    rtol
        The relative standard error at which the estimate stops.
    most
        At most this many products.
    form, metric, by
        As in `Eigenvalue`.

    """

    rtol: float = 0.02
    most: int = 200
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.trace(self.rtol, self.most)


@dataclass(frozen=True)
class FrobeniusSquared(SpectralMeasure):
    """The sum of the squared eigenvalues.

    Parameters
    ----------
    rtol, most
        As in `Trace`.
    form, metric, by
        As in `Eigenvalue`.

    """

    rtol: float = 0.02
    most: int = 200
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.frobenius_squared(self.rtol, self.most)


@dataclass(frozen=True)
class LogDeterminant(SpectralMeasure):
    """The sum of log(eigenvalue) over those above `cut` times the largest.

    Parameters
    ----------
    cut
        The log-determinant of a Hessian is undefined without a cut above zero.
    runs, steps
        Of stochastic Lanczos quadrature.
    form, metric, by
        As in `Eigenvalue`.

    """

    cut: float = 1e-2
    runs: int = 10
    steps: int = 100
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

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
    form, metric, by
        As in `Eigenvalue`.

    """

    mu: float
    runs: int = 10
    steps: int = 100
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.log_determinant_shifted(self.mu, self.runs, self.steps)
