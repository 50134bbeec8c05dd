"""Methods of one's own: `plan` is enough, a class with every member needs no base, and counts are right or an error."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from registry import Entry, Run, same
from torch import nn

import steppe
from steppe import Ball, Method, Plan, Probe
from steppe.core.graph_inputs import GraphInputs, from_host
from steppe.core.probe import Context


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


def trained(method: Any) -> Run:
    run = Run(Entry("own", lambda: method))
    for i in range(4):
        run.step(i)
    return run


def test_a_plan_is_a_whole_method() -> None:
    method = TwoSided()
    assert (method.slots, dict(method.options())) == ((), {"rho": 0.5})
    assert method.pattern(1) is None  # nobody has said that its steps are alike: they run eagerly
    run = trained(method)
    assert len(run.seen) == run.opt.passes_run == 3
    assert run.opt.param_groups[0]["rho"] == 0.5
    assert method == TwoSided()


def test_a_method_needs_no_base_class() -> None:
    same(trained(Structural()).everything(), trained(TwoSided()).everything())


def test_a_method_without_a_plan_is_an_error() -> None:
    class Planless(Method):
        pass

    with pytest.raises(TypeError, match="plan"):
        Planless()


def test_passes_are_counted_step_by_step_where_steps_differ() -> None:
    entry = Entry("alternating", Alternating)
    assert [entry.passes(step) for step in range(4)] == [2, 1, 2, 1]


def test_an_order_of_rows_is_a_function_of_its_key_during_a_replay_too() -> None:
    inputs, key = GraphInputs(), (3, 4, 5)
    with inputs.active(capturing=False):
        order = from_host(lambda: torch.empty(20), lambda out, step: out.copy_(steppe.core.draw.permutation(20, *key)))
    before = order.clone()
    inputs.fill(9)
    assert torch.equal(order, before)


def test_another_thread_does_not_use_the_inputs_of_a_capture() -> None:
    inputs = GraphInputs()
    with inputs.active(capturing=False):
        buffer = from_host(lambda: torch.empty(1), lambda out, step: out.fill_(1))
    with inputs.active(capturing=True), ThreadPoolExecutor(1) as pool:
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
