"""`check_method`: methods of steppe pass it, and each defect of a method is named by the law that it breaks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from registry import ENTRIES

from steppe import Ball, Method, Plan, Probe, testing
from steppe.core.probe import Context
from steppe.testing import LAWS, check_method
from steppe.testing.laws import RADIUS_0, RADIUS_0_BITWISE


@dataclass(frozen=True)
class TwoSided(Method):
    """The mean of the gradients at the top of the ball and at the opposite point."""

    rho: float = 0.5

    def plan(self, context: Context) -> Plan:
        here = yield Probe()
        up = Ball(self.rho).within(context).steepest(here.grad, context)
        top = yield Probe(at=up.clone())
        across = yield Probe(at=-up)
        return (top.grad + across.grad) / 2


def test_a_method_of_ones_own_obeys_all_laws() -> None:
    before = torch.get_rng_state()
    excused = {RADIUS_0_BITWISE: "a mean of two equal gradients may round"}
    assert check_method(TwoSided, {"rho": 0.5}, excused=excused) == [law for law in LAWS if law not in excused]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("name", ["sam", "looksam", "esam"])
def test_methods_by_name_obey_them(name: str) -> None:
    entry = next(e for e in ENTRIES if e.name == name)
    still = None if entry.still == {"rho": 0.0} else entry.still
    obeyed = check_method(name, entry.options, still=still, unreduced=entry.unreduced, excused=entry.excused)
    assert len(obeyed) == len(LAWS) - len(entry.excused)


class Counter:
    """What a method must not have: memory outside of the state."""

    value = 0


@dataclass(frozen=True)
class Defective(Method):
    """SAM with a defect."""

    rho: float = 0.5
    defect: str = ""

    def plan(self, context: Context) -> Plan:
        if self.defect == "draws":
            torch.rand(1)
        here = yield Probe()
        at = Ball(self.rho).within(context).steepest(here.grad, context)
        if self.defect == "deaf":
            at = here.grad * 0.5
        if self.defect == "forgets":
            Counter.value += 1
            at = at * (1 + Counter.value % 3)
        if self.defect == "nan":
            at = at * (1 / here.grad.norm())
        there = yield Probe(at=at)
        return here.grad if self.defect == "idle" else there.grad


@pytest.mark.parametrize(
    ("defect", "law"),
    [
        ("idle", "its options act"),
        ("deaf", RADIUS_0),
        ("draws", "the global generator moves as in one pass"),
        ("forgets", "a resumed run is the run without a break"),
        ("nan", "zero gradients move nothing"),
    ],
)
def test_a_defect_is_named_by_its_law(defect: str, law: str) -> None:
    def make(**options: Any) -> Defective:
        return Defective(**options, defect=defect)

    with pytest.raises(AssertionError, match=law):
        check_method(make, {"rho": 0.5})


def test_a_wrong_declaration_of_passes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from steppe.methods.registry import METHODS

    monkeypatch.setitem(METHODS._parts, "sam", replace(METHODS["sam"], passes="3"))
    with pytest.raises(AssertionError, match="2 passes, and 3 are declared"):
        check_method("sam", {"rho": 0.5})


def test_laws_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no law 'gravity'"):
        check_method("sam", excused={"gravity": "it floats"})


def test_every_law_is_one_of_steppes_own_tests() -> None:
    """A law that only plugins had to obey would be none."""
    from pathlib import Path

    text = "".join(file.read_text() for file in Path(__file__).parent.glob("test_conformance_*.py"))
    assert [law.__name__ for law in LAWS.values() if f"laws.{law.__name__}(" not in text] == []
    assert testing.Case("x", TwoSided).passes(0) == 3
