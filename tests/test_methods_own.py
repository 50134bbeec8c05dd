"""Methods of one's own: `plan` is enough, a class with every member needs no base, and counts are right or an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from registry import ENTRIES, Entry, Run, same
from torch import nn

import steppe
from steppe import Ball, Method, Plan, Probe
from steppe.core.graph_inputs import GraphInputs, from_host
from steppe.core.metric import CustomScales
from steppe.core.probe import Context, rehearse


@dataclass(frozen=True)
class TwoSided(Method):
    """Mean of the gradients at the top of the ball and at the opposite point."""

    rho: Any = 0.5

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        up = steppe.core.ball.ball(self.rho).within(context).steepest_(here.grad, context)
        top = yield Probe(at=up.clone())
        across = yield Probe(at=-up)
        return (top.grad + across.grad) / 2


class Structural:
    """The same with every member written out and no base."""

    slots = ()

    def options(self) -> dict[str, Any]:
        return {"rho": 0.5}

    def cost(self, step: int) -> int:
        return 3

    def pattern(self, step: int) -> bool:
        return True

    def plan(self, context: Context) -> Plan:
        return TwoSided().plan(context)


@dataclass(frozen=True)
class Alternating(Method):
    """SAM at even steps."""

    rho: float = 0.5

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        if context.step % 2:
            return here.grad
        return (yield Probe(at=Ball(self.rho).within(context).steepest(here.grad, context))).grad


@dataclass(frozen=True)
class Shaped(Method):
    """Moves one parameter, which a problem with one weight does not have."""

    def plan(self, context: Context) -> Plan:
        tensors = [torch.zeros_like(t) for t in context.weights.tensors]
        tensors[1] += 1.0
        return (yield Probe(at=context.space.vector(tensors))).grad


def trained(method: Any) -> Run:
    run = Run(Entry("own", lambda: method))
    for i in range(4):
        run.step(i)
    return run


def test_a_plan_is_a_whole_method() -> None:
    method = TwoSided()
    assert (method.slots, dict(method.options())) == ((), {"rho": 0.5})
    assert [method.cost(step) for step in range(3)] == [3, 3, 3]
    assert method.pattern(1) == method.pattern(2) is not None
    run = trained(method)
    assert len(run.seen) == 3
    assert run.opt.param_groups[0]["rho"] == 0.5
    assert method == TwoSided()  # what was counted is no part of it


def test_a_method_needs_no_base_class() -> None:
    same(trained(Structural()).everything(), trained(TwoSided()).everything())


def test_a_method_without_a_plan_is_an_error() -> None:
    class Planless(Method):
        pass

    with pytest.raises(TypeError, match="plan"):
        Planless()


def test_passes_are_counted_step_by_step_where_steps_differ() -> None:
    method = Alternating()
    assert [method.cost(step) for step in range(4)] == [2, 1, 2, 1]
    assert method.pattern(1) is None  # one graph would serve all steps with the passes of one


def test_geometry_that_fits_the_model_alone_does_not_keep_passes_from_being_counted() -> None:
    fitted = Ball(0.5, CustomScales([torch.ones(3, 4), torch.ones(4)]))
    assert [method.cost(1) for method in (TwoSided(fitted), steppe.GSAM(fitted), steppe.SAM(fitted, 2))] == [3, 2, 3]


def test_passes_that_cannot_be_counted_are_an_error_that_says_what_to_write() -> None:
    with pytest.raises(NotImplementedError, match=r"Define Shaped\.cost\(self, step\)"):
        Shaped().cost(0)
    assert Shaped().pattern(1) is None
    model = nn.Linear(2, 1)
    opt = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), Shaped())
    opt.step(lambda pass_: pass_.backward(model(torch.ones(1, 2)).square().mean()))  # training does not need the count


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in ENTRIES])
def test_a_rehearsal_has_as_many_passes_as_the_method_declares(entry: Entry) -> None:
    method = entry.method()
    assert [rehearse(method, step).passes for step in range(7)] == [method.cost(step) for step in range(7)]


def test_an_order_of_rows_is_a_function_of_its_key_during_a_replay_too() -> None:
    inputs, key = GraphInputs(), (3, 4, 5)
    with inputs.warming_up():
        order = from_host(lambda: torch.empty(20), lambda out, step: out.copy_(steppe.core.draw.permutation(20, *key)))
    before = order.clone()
    inputs.fill(9)
    assert torch.equal(order, before)


def test_another_thread_does_not_use_the_inputs_of_a_capture() -> None:
    inputs = GraphInputs()
    with inputs.warming_up():
        buffer = from_host(lambda: torch.empty(1), lambda out, step: out.fill_(1))
    with inputs.capturing(), ThreadPoolExecutor(1) as pool:
        other = pool.submit(from_host, lambda: torch.empty(1), lambda out, step: out.fill_(2)).result()
        assert from_host(lambda: torch.empty(1), lambda out, step: out.fill_(3)) is buffer
    assert (float(buffer), float(other)) == (1, 2)


@dataclass(frozen=True)
class FirstGradient(Method):
    """The gradient at the weights, returned after another probe."""

    second_has_gradient: bool

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        yield Probe(at=context.weights * 0.1, grad=self.second_has_gradient)
        return here.grad


@pytest.mark.parametrize("by", ["closure", "passes"])
@pytest.mark.parametrize("second_has_gradient", [False, True])
def test_an_earlier_gradient_is_applied_after_later_probes(second_has_gradient: bool, by: str) -> None:
    """Every probe clears `p.grad`: the gradient that the plan returns has to be put back."""
    w = nn.Parameter(torch.tensor([3.0, 4.0]))
    opt = steppe.SharpnessAware(torch.optim.SGD([w], lr=0.5), FirstGradient(second_has_gradient))

    def closure(pass_: Any) -> torch.Tensor:
        loss = w.square().sum() / 2
        pass_.backward(loss)
        return loss

    if by == "closure":
        opt.step(closure)
    else:
        for pass_ in opt.passes():
            closure(pass_)
        assert torch.equal(w.grad, torch.tensor([3.0, 4.0]))
        opt.step()
    assert torch.equal(w.detach(), torch.tensor([1.5, 2.0]))
