"""x"""

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
    """Whatever can be asked for the spectrum of an operator: a Sweep, or for small models Dense."""

    def eigenvalues(self, k: int = ..., end: End = ..., rtol: float = ..., most: int = ...) -> Iterator[Estimate]: ...
    def trace(self, rtol: float = ..., most: int = ...) -> Iterator[Estimate]: ...
    def frobenius_squared(self, rtol: float = ..., most: int = ...) -> Iterator[Estimate]: ...
    def log_determinant(self, cut: float = ..., runs: int = ..., steps: int = ...) -> Iterator[Estimate]: ...
    def log_determinant_shifted(self, mu: float, runs: int = ..., steps: int = ...) -> Iterator[Estimate]: ...


By = Callable[[Curvature, int], Spectrum]


@runtime_checkable
class SpectralMeasure(Measure, Protocol):
    """A measure that is read off the spectrum of one operator."""

    @property
    def form(self) -> Form: ...  # hessian or gauss_newton
    @property
    def metric(self) -> Metric | None: ...  # rescales it: D H D
    @property
    def by(self) -> By: ...

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        """Better and better answers."""
        ...

    def running(self, objective: Objective, seed: int = 0) -> Iterator[Estimate]:
        own = seed_of(seed, objective.number) if objective.number else seed  # every batch has probes of its own
        return with_cost(self.estimates(self.by(Curvature(objective, self.form, self.metric), own)), objective)


def with_cost(estimates: Iterator[Estimate], objective: Objective) -> Iterator[Estimate]:
    """The same estimates, each with what it cost so far."""
    before = objective.spent()
    for estimate in estimates:
        yield replace(estimate, cost=objective.spent() - before)


@dataclass(frozen=True)
class Eigenvalue(SpectralMeasure):
    """The k-th eigenvalue from one end: LambdaMax is the first from the top."""

    k: int = 1
    end: End = "top"
    rtol: float = 1e-3  # of the residual: an eigenvalue lies within that distance
    most: int = 200  # products
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.eigenvalues(self.k, self.end, self.rtol, self.most)


@dataclass(frozen=True)
class Trace(SpectralMeasure):
    """The sum of the eigenvalues."""

    rtol: float = 0.02  # of the standard error
    most: int = 200
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.trace(self.rtol, self.most)


@dataclass(frozen=True)
class FrobeniusSquared(SpectralMeasure):
    """The sum of the squared eigenvalues."""

    rtol: float = 0.02  # of the standard error
    most: int = 200
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.frobenius_squared(self.rtol, self.most)


@dataclass(frozen=True)
class LogDeterminant(SpectralMeasure):
    """The sum of log(eigenvalue) over those above `cut` times the largest: it is no number without a cut."""

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
    """The log-determinant of the operator plus mu times the identity."""

    mu: float
    runs: int = 10
    steps: int = 100
    _: KW_ONLY
    form: Form = hessian
    metric: Metric | None = None
    by: By = Sweep

    def estimates(self, spectrum: Spectrum) -> Iterator[Estimate]:
        return spectrum.log_determinant_shifted(self.mu, self.runs, self.steps)
