"""Over 200 seeds, 95 % intervals of everything random about a trained network's Hessian cover the truth 88-99 %."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import sqrt

import pytest
import torch
from matrices import Matrix, digits, trained
from oracles import curvature as oracle
from tiers import slow_unless
from torch import Tensor

from steppe.core.basis import flat
from steppe.measures.curvature.lanczos import Density, spectral_density
from steppe.measures.curvature.spectrum import LEAST_PROBES, Sweep, diagonal
from steppe.measures.estimate import Estimate, last

SEEDS = range(200)
NETWORKS = {"tiny": trained, "digits": digits}
Exact = Callable[[Tensor], float]


@cache
def swept(network: str) -> dict[str, list[Estimate]]:
    """What sweeps say: after as many probes as were fixed before, and when the error was small enough."""
    found: dict[str, list[Estimate]] = {}

    def note(name: str, estimate: Estimate) -> None:
        found.setdefault(name, []).append(estimate)

    for seed in SEEDS:
        sweep = Sweep(Matrix(*NETWORKS[network]()), seed)
        note("deflated trace", last(sweep.trace(0.0, most=30)))
        note("deflated squares", last(sweep.frobenius_squared(0.0, most=30)))
        note("sequential trace", last(sweep.trace(0.007 if network == "tiny" else 0.002)))
        note("sequential squares", last(sweep.frobenius_squared(0.02)))
        if network == "digits":
            plain = Sweep(Matrix(*digits()), seed, deflate=0)
            note("Hutchinson's trace", last(plain.trace(0.0, most=15)))
            note("Hutchinson's squares", last(plain.frobenius_squared(0.0, most=15)))
    return found


@cache
def densities() -> list[Density]:
    return [spectral_density(Matrix(*digits()), runs=5, steps=14, seed=seed) for seed in SEEDS]


def share_covered(found: list[Estimate], exact: float) -> float:
    intervals = [estimate.interval() for estimate in found]
    return sum(low <= exact <= high for low, high in intervals) / len(intervals)


def off_centre(found: list[Estimate], exact: float) -> float:
    """The error of the mean over seeds, in its standard errors."""
    values = torch.tensor([estimate.value for estimate in found], dtype=torch.float64)
    return float((values.mean() - exact) / (values.std() / sqrt(len(values))))


SWEPT: dict[str, Exact] = {
    "deflated trace": oracle.trace,
    "deflated squares": oracle.frobenius_squared,
    "Hutchinson's trace": oracle.trace,
    "Hutchinson's squares": oracle.frobenius_squared,
    "sequential trace": oracle.trace,
    "sequential squares": oracle.frobenius_squared,
}


def on_tiny(asked: tuple[str, str]) -> bool:
    return asked[0] == "tiny"


ASKED = [(network, name) for network in NETWORKS for name in SWEPT if network == "digits" or "Hutch" not in name]


@pytest.mark.slow
@pytest.mark.parametrize(("network", "name"), slow_unless(on_tiny, ASKED))
def test_sweeps_cover(network: str, name: str) -> None:
    found, exact = swept(network)[name], SWEPT[name](NETWORKS[network]()[0])
    assert 0.88 <= share_covered(found, exact) <= 0.99


@pytest.mark.parametrize(
    ("network", "name"), slow_unless(on_tiny, [asked for asked in ASKED if "sequential" not in asked[1]])
)
def test_sweeps_are_unbiased(network: str, name: str) -> None:
    found, exact = swept(network)[name], SWEPT[name](NETWORKS[network]()[0])
    assert {(estimate.n, estimate.kind) for estimate in found} == {(15 if "Hutch" in name else 10, "unbiased")}
    assert abs(off_centre(found, exact)) < 4


@pytest.mark.parametrize("network", slow_unless("tiny".__eq__, NETWORKS))
def test_stopping_at_an_error_hardly_bends_the_estimate(network: str) -> None:
    """A sample that happens to have a small error is a little low; that must stay small beside the error."""
    found, exact = swept(network)["sequential trace"], oracle.trace(NETWORKS[network]()[0])
    assert len({estimate.n for estimate in found}) >= 2  # some did go on
    assert min(estimate.n for estimate in found) >= LEAST_PROBES
    mean_error = sum(estimate.value - exact for estimate in found) / len(found)
    assert abs(mean_error) < 0.3 * sum(estimate.stderr for estimate in found) / len(found)
    for name in ("sequential trace", "sequential squares"):  # so they are not called unbiased
        assert {estimate.kind for estimate in swept(network)[name]} <= {"plug-in", "exact"}


@pytest.mark.slow
def test_deflation_pays() -> None:
    """At 30 products against 15 without it, which would be worth a factor of 0.71."""
    found = swept("digits")

    def error(name: str) -> float:
        return sum(estimate.stderr for estimate in found[name]) / len(SEEDS)

    assert error("deflated trace") < 0.4 * error("Hutchinson's trace")
    assert error("deflated squares") < 0.1 * error("Hutchinson's squares")


INTEGRALS: dict[str, tuple[Callable[[Density], Estimate], Exact]] = {
    "moment 1": (lambda d: d.moment(1), oracle.trace),
    "moment 2": (lambda d: d.moment(2), oracle.frobenius_squared),
    "moment 3": (lambda d: d.moment(3), lambda h: float((oracle.eigenvalues(h) ** 3).sum())),
    "shifted by 0.1": (lambda d: d.log_determinant_shifted(0.1), lambda h: oracle.log_det_shifted(h, 0.1)),
    "shifted by 1": (lambda d: d.log_determinant_shifted(1.0), lambda h: oracle.log_det_shifted(h, 1.0)),
    "above 0.2": (lambda d: d.log_determinant(0.2), lambda h: oracle.log_det_above(h, 0.2)[0]),
    "above 0.3": (lambda d: d.log_determinant(0.3), lambda h: oracle.log_det_above(h, 0.3)[0]),
    "count": (lambda d: d.count(0.6), lambda h: float((oracle.eigenvalues(h) > 0.6).sum())),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", INTEGRALS)
def test_densities_cover(name: str) -> None:
    asked, exact = INTEGRALS[name]
    found = [asked(density) for density in densities()]
    assert 0.88 <= share_covered(found, exact(digits()[0])) <= 0.99
    assert abs(off_centre(found, exact(digits()[0]))) < 4


def test_diagonal_entries_cover() -> None:
    matrix, n = digits()[0], 12
    width = Estimate(0.0, 1.0, n, "unbiased").interval()[1]
    shares = torch.zeros(len(matrix), dtype=torch.float64)
    for seed in SEEDS:
        mean, error = (flat(v) for v in diagonal(Matrix(matrix), n, seed))
        shares += ((mean - matrix.diagonal()).abs() <= width * error + 1e-12) / len(SEEDS)
    assert 0.88 <= float(shares.mean()) <= 0.99
    assert float(shares.min()) > 0.8
