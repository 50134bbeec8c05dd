"""Measures of curvature on real networks: right numbers, errors, kinds and costs, and a model that is left alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from matrices import digits_network, tiny_network
from model_cases import MAKERS, Case, convolutions, lstm, make, transformer, writes_a_buffer
from oracles import curvature as oracle
from problems import flat_parts, flat_weights, random_vector
from snapshots import assert_untouched
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe import Elementwise
from steppe.core.metric import CustomScales
from steppe.measures.curvature.forms import Form, gauss_newton, hessian
from steppe.measures.curvature.measures import (
    Eigenvalue,
    FrobeniusSquared,
    LogDeterminant,
    ShiftedLogDeterminant,
    SpectralMeasure,
    Trace,
)
from steppe.measures.curvature.operator import Curvature
from steppe.measures.curvature.spectrum import Dense, Sweep
from steppe.measures.estimate import Estimate, NotFinite, last, with_cost
from steppe.measures.objective import Objective

F64 = torch.float64
ADAPTIVE = Elementwise(0.0, everywhere=True)


Batches = list[tuple[Tensor, Tensor]]


def trained() -> tuple[nn.Module, Batches]:
    """A network of 67 weights and its data."""
    model, x, y = tiny_network()
    return model, [(x, y)]


def objective(**options: Any) -> Objective:
    model, batches = trained()
    return Objective(model, cross_entropy, batches, **options)


@cache
def matrix(form: Form = hessian, adaptive: bool = False) -> Tensor:
    model, batches = trained()
    w = flat_weights(model)
    if form is hessian:
        found = oracle.hessian(oracle.mean_loss(model, cross_entropy, batches), w)
    else:
        found = oracle.gauss_newton(model, cross_entropy, batches, w)
    return oracle.rescaled(found, w.abs()) if adaptive else found


# what is asked, with what the matrix says
ASKED: dict[str, tuple[SpectralMeasure, Callable[[Tensor], float]]] = {
    "largest": (Eigenvalue(), lambda h: float(oracle.eigenvalues(h)[-1])),
    "third": (Eigenvalue(3), lambda h: float(oracle.eigenvalues(h)[-3])),
    "smallest": (Eigenvalue(end="bottom"), lambda h: float(oracle.eigenvalues(h)[0])),
    "trace": (Trace(), oracle.trace),
    "squares": (FrobeniusSquared(), oracle.frobenius_squared),
    "above a cut": (LogDeterminant(0.2, runs=4, steps=25), lambda h: oracle.log_det_above(h, 0.2)[0]),
    "shifted": (ShiftedLogDeterminant(0.5, runs=4, steps=25), lambda h: oracle.log_det_shifted(h, 0.5)),
}


def dense(question: SpectralMeasure) -> SpectralMeasure:
    return replace(question, by=Dense)  # type: ignore[type-var]


# -- numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("form", [hessian, gauss_newton])
def test_dense_answers_are_exact(form: Form, adaptive: bool) -> None:
    metric = ADAPTIVE if adaptive else None
    h = matrix(form, adaptive)
    spectrum = Dense(Curvature(objective(m=40), form, metric))  # uneven batches
    for name, (question, exact) in ASKED.items():
        found = last(question.estimates(spectrum))
        assert (found.kind, found.stderr) == ("exact", 0), name
        assert found.value == pytest.approx(exact(h), rel=1e-8, abs=1e-10), name


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("form", [hessian, gauss_newton])
def test_one_sweep_answers_everything(form: Form, adaptive: bool) -> None:
    h = matrix(form, adaptive)
    sweep = Sweep(Curvature(objective(), form, ADAPTIVE if adaptive else None), seed=1)
    for name, (question, exact) in ASKED.items():
        if name == "smallest" and form is gauss_newton:
            continue  # it is 0, of which no residual is a thousandth
        found = last(question.estimates(sweep))
        if "bound" in found.kind:
            assert found.stderr <= 1e-3 * abs(found.value), name
            assert found.value == pytest.approx(exact(h), rel=1e-3), name
        else:
            low, high = found.interval(0.9999)
            assert low < exact(h) < high, name
            assert found.value != exact(h), name


@pytest.mark.parametrize("name", ASKED)
def test_a_spectral_measure_has_its_form_and_metric(name: str) -> None:
    """`estimate` builds the operator that the question describes."""
    question, exact = ASKED[name]
    asked = replace(dense(question), form=gauss_newton, metric=ADAPTIVE)  # type: ignore[type-var]
    assert asked.estimate(objective()).value == pytest.approx(exact(matrix(gauss_newton, True)), rel=1e-8, abs=1e-10)


KINDS = {
    "largest": "lower bound",
    "third": "lower bound",
    "smallest": "upper bound",
    "trace": "plug-in",
    "squares": "plug-in",
    "above a cut": "plug-in",
    "shifted": "plug-in",
}


@pytest.mark.parametrize("name", ASKED)
def test_kinds_and_notes(name: str) -> None:
    found = ASKED[name][0].estimate(objective())
    assert found.kind == KINDS[name]
    assert found.complete
    if name == "above a cut":
        threshold = 0.2 * float(oracle.eigenvalues(matrix())[-1])
        assert f"above {threshold:.3g}" in found.note
    assert ASKED[name][0].estimate(objective(only=["2.bias"])).kind in ("exact", "plug-in")  # 3 weights


def test_pyhessian_finds_the_same_eigenvalues() -> None:
    pytest.importorskip("pyhessian")
    model, batches = trained()
    theirs = oracle.pyhessian_eigenvalues(model, cross_entropy, batches, k=2, tol=1e-8)
    ours = [Eigenvalue(k, rtol=1e-6).estimate(objective()).value for k in (1, 2)]
    assert ours == pytest.approx(theirs.tolist(), rel=1e-4)


def test_eigenvectors_on_a_network() -> None:
    operator = Curvature(objective())
    for pair in Sweep(operator).pairs(3, rtol=1e-5):
        image = operator.product(pair.vector)
        assert float((image - pair.vector * pair.value).norm()) == pytest.approx(pair.residual, rel=1e-4, abs=1e-12)
        assert float(pair.vector.norm()) == pytest.approx(1, rel=1e-10)


def test_refusals_are_raised_to_the_caller() -> None:
    with pytest.raises(ValueError, match="take cut >="):
        LogDeterminant(1e-6, runs=2, steps=10).estimate(objective())
    assert float(oracle.eigenvalues(matrix())[0]) < -1e-3
    with pytest.raises(ValueError, match="not positive definite"):
        ShiftedLogDeterminant(1e-6, runs=2, steps=40).estimate(objective())
    with pytest.raises(ValueError, match="no 4-th one from the top"):
        Eigenvalue(4).estimate(objective(only=["2.bias"]))


# -- cost -----------------------------------------------------------------------------------------------


def test_costs_are_counted() -> None:
    o = objective()
    found = Trace().estimate(o)
    assert found.cost.products == pytest.approx(3 * found.n)  # two vectors of the Krylov space per probe
    assert found.cost.gradients == pytest.approx(1)  # every batch's graph, once
    assert found.cost.seconds > 0
    assert dense(Trace()).estimate(o).cost.products == pytest.approx(o.dimension)
    logs = LogDeterminant(0.3, runs=3, steps=20).estimate(o)
    assert logs.cost.products == pytest.approx(60)


def test_running_costs_grow_and_the_last_one_is_the_whole() -> None:
    o = objective()
    before = o.spent()
    costs = [found.cost.products for found in with_cost(Eigenvalue(2, rtol=1e-5).running(o), o)]
    assert costs == sorted(costs)
    assert costs[0] == pytest.approx(2)
    assert costs[-1] == pytest.approx((o.spent() - before).products)


def test_the_three_usual_measures_cost_about_thirty_products() -> None:
    totals = []
    model, x, y = digits_network()
    for seed in range(5):
        o = Objective(model, cross_entropy, (x, y), m=170)
        sweep = Sweep(Curvature(o), seed)
        for question in (Eigenvalue(), Trace(), FrobeniusSquared()):
            last(question.estimates(sweep))
        assert o.spent().products == pytest.approx(sweep.products)
        totals.append(sweep.products)
        for question in (FrobeniusSquared(), Eigenvalue(), Trace()):
            last(question.estimates(sweep))
        assert o.spent().products == pytest.approx(totals[-1])  # asked again they cost nothing
        assert o.spent().gradients == pytest.approx(1)
    assert 25 <= median(totals) <= 35


# -- running estimates ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ASKED)
def test_running_estimates_end_with_the_estimate(name: str) -> None:
    question, exact = ASKED[name]
    running = list(question.running(objective(), seed=2))
    assert running[-1] == question.estimate(objective(), seed=2)
    assert all(np.isfinite(found.value) and np.isfinite(found.stderr) for found in running)
    assert len(running) > 1
    errors = [abs(found.value - exact(matrix())) for found in running]
    if "bound" in running[0].kind:
        assert errors[-1] < 0.01 * errors[0]
        assert all(a >= b - 1e-12 for a, b in pairwise(errors))
    else:
        assert [found.n for found in running] == sorted(found.n for found in running)


@pytest.mark.parametrize("name", ASKED)
def test_an_interrupted_estimate_is_the_previous_one(name: str) -> None:
    question, exact = ASKED[name]
    o = objective()
    running = with_cost(question.running(o), o)
    early, kept = next(running), o.spent()
    running.close()
    assert o.spent().products == kept.products
    assert early.cost.products == pytest.approx(kept.products)
    if "bound" in early.kind:
        values = oracle.eigenvalues(matrix())
        assert float((values - early.value).abs().min()) <= early.stderr
    else:
        assert early.n >= 2
        low, high = early.interval(0.9999)
        assert low <= exact(matrix()) <= high


@pytest.mark.parametrize("name", ASKED)
def test_seeds(name: str) -> None:
    question = ASKED[name][0]
    one, same, other = (question.estimate(objective(), seed) for seed in (3, 3, 4))
    assert one == same
    assert one.value != other.value


def test_spectral_measures_are_values() -> None:
    """They are keys of a table that says which of them share a sweep."""
    assert Trace() == Trace(0.02)
    assert len({Trace(), Trace(), Trace(0.1), FrobeniusSquared(), Eigenvalue(), Eigenvalue(2)}) == 5
    assert Trace().form is hessian
    assert Trace().by is Sweep


# -- the model is left alone ----------------------------------------------------------------------------


class Trouble(Exception):
    """Raised by the caller's own code."""


def few(question: SpectralMeasure) -> SpectralMeasure:
    """With fewer products, for models of which only the traces that they leave matter."""
    fewer: dict[type, dict[str, Any]] = {
        Eigenvalue: {"most": 3}, Trace: {"most": 20}, FrobeniusSquared: {"most": 20},
        LogDeterminant: {"runs": 2, "steps": 4, "cut": 0.99},
        ShiftedLogDeterminant: {"runs": 2, "steps": 4, "mu": 50.0},
    }  # fmt: skip
    return replace(question, **fewer[type(question)])  # type: ignore[type-var]


@pytest.mark.parametrize("maker", MAKERS, ids=lambda f: f.__name__)
def test_no_measure_changes_the_model(maker: Callable[[], Case]) -> None:
    case = make(maker)
    for i, m in enumerate(case.model.modules()):
        m.training = i % 2 == 0
    torch.manual_seed(5)
    torch.rand(3)
    with assert_untouched(case.model):
        for form in (hessian, gauss_newton):
            sweep = Sweep(Curvature(case.objective(), form), deflate=2)
            for question in (Eigenvalue(most=3), Trace(most=10), ShiftedLogDeterminant(50.0, runs=2, steps=3)):
                last(question.estimates(sweep))


@pytest.mark.parametrize("name", ASKED)
def test_no_single_measure_changes_the_model(name: str) -> None:
    case = make(convolutions)
    with assert_untouched(case.model):
        try:
            few(ASKED[name][0]).estimate(case.objective())
        except ValueError as refusal:
            assert "take cut" in str(refusal)  # noqa: PT017


@pytest.mark.parametrize("error", [Trouble, KeyboardInterrupt])
@pytest.mark.parametrize("when", [3, 4, 8])
@pytest.mark.parametrize("maker", [convolutions, lstm, transformer, writes_a_buffer], ids=lambda f: f.__name__)
def test_an_exception_in_the_middle_leaves_no_trace(maker: Callable[[], Case], when: int, error: Any) -> None:
    case, calls = make(maker), iter(range(100))

    def forward(model: nn.Module, batch: Any) -> tuple[Any, Any]:
        found = case.forward(model, batch)
        if next(calls) == when:
            raise error
        return found

    o = Objective(case.model, case.loss_fn, case.batches, forward=forward)
    with assert_untouched(case.model):
        with pytest.raises(error):
            last(Sweep(Curvature(o, memory=0)).eigenvalues())
        assert next(calls) == when + 1


class Breaks(torch.autograd.Function):
    """The identity, which fails when its gradient is differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return BreaksAgain.apply(g)  # type: ignore[no-any-return]


class BreaksAgain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        raise Trouble


def test_an_exception_in_the_second_derivative_leaves_no_trace() -> None:
    case = make(transformer)
    o = Objective(
        case.model, case.loss_fn, case.batches, forward=lambda m, b: (Breaks.apply(case.forward(m, b)[0]), b[1])
    )
    with assert_untouched(case.model), pytest.raises(Trouble):
        Trace().estimate(o)


# -- trouble --------------------------------------------------------------------------------------------


class Spike(nn.Module):
    """|w|^1.5 has a slope of 0 and an infinite curvature at w = 0."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor([1.0, 0.0, 2.0], dtype=F64))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.w.abs().pow(1.5)).sum(-1)


@pytest.mark.parametrize("by", [Sweep, Dense])
@pytest.mark.parametrize("name", ASKED)
def test_curvature_that_is_not_finite_is_no_number(name: str, by: Any) -> None:
    o = Objective(Spike(), lambda out, y: out, (torch.ones(4, 3, dtype=F64), torch.zeros(4)))
    assert np.isfinite(o.loss())
    assert o.gradient()[1].norm().isfinite()
    with pytest.raises(NotFinite), assert_untouched(o.model):
        replace(ASKED[name][0], by=by).estimate(o)  # type: ignore[type-var]


@pytest.mark.parametrize("name", ASKED)
def test_a_loss_that_is_not_finite_is_reported(name: str) -> None:
    model, batches = trained()
    o = Objective(model, lambda out, y: cross_entropy(out, y) / 0, batches)
    with pytest.raises(NotFinite, match="the loss at the weights themselves is inf"):
        ASKED[name][0].estimate(o)


def test_a_loss_that_is_no_function_of_the_weights_is_refused() -> None:
    model, batches = trained()
    o = Objective(model, lambda out, y: cross_entropy(out * (1 + 0.1 * torch.rand(())), y), batches)
    with pytest.raises(ValueError, match="not a function of the weights"):
        Trace().estimate(o)


# -- laws -----------------------------------------------------------------------------------------------


def values(asked: Iterator[Estimate]) -> float:
    return last(asked).value


@settings(deadline=None, max_examples=6)
@given(seed=st.integers(0, 10_000))
def test_numbers_of_a_rescaled_hessian(seed: int) -> None:
    """tr(D H D) = sum d_i^2 H_ii and ||D H D||^2 = sum (d_i d_j H_ij)^2."""
    o = objective(only=["0.bias", "2.*"])
    index = torch.cat([torch.arange(67)[s] for n, s in flat_parts(o.model).items() if n in o.params])
    h, d = matrix()[index][:, index], random_vector(len(index), seed)
    parts = d.split([p.numel() for p in o.params.values()])
    metric = CustomScales([part.view(p.shape) for part, p in zip(parts, o.params.values(), strict=True)])
    spectrum = Dense(Curvature(o, metric=metric))
    assert values(spectrum.trace()) == pytest.approx(float((d**2) @ h.diagonal()), rel=1e-9, abs=1e-12)
    assert values(spectrum.frobenius_squared()) == pytest.approx(float((d**2) @ h**2 @ (d**2)), rel=1e-9)
    swept = Sweep(Curvature(o, metric=metric), seed)
    assert last(swept.trace(rtol=0.0)).kind == "exact"  # the space grows until nothing is left to chance
    assert values(swept.trace()) == pytest.approx(float((d**2) @ h.diagonal()), rel=1e-8, abs=1e-10)


@settings(deadline=None, max_examples=6)
@given(factor=st.floats(0.01, 100), seed=st.integers(0, 1000))
def test_a_loss_times_a_factor(factor: float, seed: int) -> None:
    """Every answer scales with it, from the very same draws."""
    model, batches = trained()
    scaled = Objective(model, lambda out, y: factor * cross_entropy(out, y), batches, only=["0.*"])
    one, two = Sweep(Curvature(objective(only=["0.*"])), seed), Sweep(Curvature(scaled), seed)
    assert values(two.eigenvalues()) == pytest.approx(factor * values(one.eigenvalues()), rel=1e-8)
    assert values(two.trace()) == pytest.approx(factor * values(one.trace()), rel=1e-8)
    assert values(two.frobenius_squared()) == pytest.approx(factor**2 * values(one.frobenius_squared()), rel=1e-8)
    assert one.products == two.products


@settings(deadline=None, max_examples=6)
@given(parts=st.sets(st.sampled_from(["0.weight", "0.bias", "2.weight", "2.bias"]), min_size=1))
def test_fewer_parameters_have_a_narrower_spectrum(parts: set[str]) -> None:
    """Cauchy's interlacing: eigenvalues of a block lie within those of the whole."""
    whole = oracle.eigenvalues(matrix())
    o = objective(only=sorted(parts))
    sweep = Sweep(Curvature(o))
    assert values(sweep.eigenvalues()) <= float(whole[-1]) + 1e-12
    assert values(sweep.eigenvalues(end="bottom", most=60)) >= float(whole[0]) - 1e-12
