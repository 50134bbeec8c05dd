"""Captured products: replays equal the products of the autograd graph that was captured, for every direction."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from cpu_recorder import CpuRecorder
from curvature_problems import close, conv, directions, mlp, right
from torch import Tensor

from steppe.core.basis import flat
from steppe.measures.curvature.forms import Form, gauss_newton, hessian
from steppe.measures.curvature.operator import Curvature
from steppe.measures.objective import Objective

FORMS: list[Form] = [hessian, gauss_newton]


def rows(vectors: Any) -> Tensor:
    return torch.stack([flat(v) for v in vectors])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("make", [mlp, conv])  # several directions at once, and one after the other
def test_replayed_products_are_those_of_the_kept_graph(make: Any, n: int, form: Form) -> None:
    objective: Objective = make()
    expected, operator = Curvature(make(), form), Curvature(objective, form, recorder=CpuRecorder())
    for k in range(4):
        vectors = directions(objective, (k + 1) * n)[-n:]
        close(rows(operator.products(vectors)), rows(expected.products(vectors)))
    assert objective.spent().gradients == pytest.approx(1)
    assert objective.spent().products == pytest.approx(4 * n)


def test_a_replay_does_not_go_through_the_graph_again(monkeypatch: pytest.MonkeyPatch) -> None:
    objective = conv()
    operator = Curvature(objective, recorder=CpuRecorder())
    for v in directions(objective, 2):
        operator.product(v)
    monkeypatch.setattr(torch.autograd, "grad", None)
    operator.product(directions(objective, 3)[-1])


def test_the_gradient_comes_with_the_graph() -> None:
    objective = mlp()
    operator = Curvature(objective, recorder=CpuRecorder())
    slope = operator.gradient()
    close(slope.tensors, objective.gradient()[1].tensors)
    spent = objective.spent().gradients
    vectors = directions(objective, 3)
    found = torch.stack([flat(operator.product(v)) for v in vectors])
    close(found, rows(vectors) @ right("mlp"))
    assert objective.spent().gradients == spent
    close(operator.gradient().tensors, slope.tensors)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("n", [1, 3, 10])
def test_where_no_graph_is_kept_one_is_built_for_all_directions(n: int, form: Form) -> None:
    objective = mlp()
    operator = Curvature(objective, form, memory=0, recorder=CpuRecorder())
    vectors = directions(objective, n)
    close(rows(operator.products(vectors)), rows(Curvature(mlp(), form).products(vectors)))
    assert objective.spent().gradients == pytest.approx(2 if n == 10 else 1)


def test_an_operator_made_later_sees_the_weights_as_they_are_then() -> None:
    objective = mlp()
    vectors = directions(objective, 3)
    first = Curvature(objective, recorder=CpuRecorder())
    before = [first.product(v) for v in vectors]
    with torch.no_grad():
        for p in objective.model.parameters():
            p.mul_(1.5)
    there = Objective(objective.model, objective.loss_fn, objective.batches)
    second = Curvature(there, recorder=CpuRecorder())
    plain = Curvature(there)
    for v, old in zip(vectors, before, strict=True):
        close(second.product(v).tensors, plain.product(v).tensors)
        assert float((second.product(v) - old).norm()) > 1e-3 * float(old.norm())


class FailingRecorder:
    """Captures nothing."""

    def on_stream(self) -> Any:
        return nullcontext()

    def capture(self, work: Any, passes: int = 0) -> Any:
        raise RuntimeError("no such graph")


def test_products_that_cannot_be_captured_are_computed_eagerly() -> None:
    objective = conv()
    operator = Curvature(objective, recorder=FailingRecorder())  # type: ignore[arg-type]
    expected = Curvature(conv())
    for v in directions(objective, 3):
        close(operator.product(v).tensors, expected.product(v).tensors)
