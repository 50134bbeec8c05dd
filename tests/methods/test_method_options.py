"""Every option of every method by name: values of another type or out of range are refused, the others are taken."""

from __future__ import annotations

import inspect
import re
from math import inf, nan
from typing import Any, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import steppe
from steppe.core.ball import Ascent
from steppe.core.fields import alternatives, kinds_of
from steppe.core.triple import TRIPLES, Triple

OPTIONS = [(name, option) for name, made in steppe.METHODS.items() for option in inspect.signature(made).parameters]

# what is allowed, in words of this file alone: least, whether it is itself allowed, most, whether it is itself allowed;
# an option that is not here is tried at the ends of the range of its annotation
BOUNDS = {
    "rho": (0, True, inf, False), "held_out_rho": (0, True, inf, False), "p": (1, True, inf, True),
    "steps": (1, True, inf, False), "eta": (0, True, inf, False), "n": (1, True, inf, False),
    "strength": (-inf, False, inf, False), "delta": (0, True, inf, False), "damping": (0, False, inf, False),
    "epsilon": (0, True, inf, False), "share": (0, False, 1, False), "sparsity": (0, True, 1, True),
    "drop": (0, True, 1, True), "samples": (1, True, inf, False), "every": (1, True, inf, False),
    "k": (1, True, inf, False), "alpha": (0, True, inf, False), "sigma": (0, True, inf, False),
    "smoothing": (0, True, inf, False), "beta": (0, False, 1, True), "gamma of esam": (0, False, 1, True),
    "parts": (1, True, inf, False), "side": (0, False, inf, False),
}  # fmt: skip
JUNK = [object(), [0.5], {"class_path": "os.system"}, "evil.C", (1,), b"1", {1}, 1j]


def annotation(name: str, option: str) -> Any:
    return get_type_hints(steppe.METHODS[name].make, include_extras=True)[option]


def kinds(name: str, option: str) -> tuple[Any, ...]:
    return alternatives(annotation(name, option))


NUMBERS = [(name, option) for name, option in OPTIONS if {int, float} & set(kinds(name, option))]


def allowed(name: str, option: str, value: float) -> bool:
    known = BOUNDS.get(f"{option} of {name}") or BOUNDS.get(option)
    if known is None:
        return any(kind.fits(value) for kind in kinds_of(annotation(name, option)))
    least, with_least, most, with_most = known
    return (value > least or (with_least and value == least)) and (value < most or (with_most and value == most))


def ends(name: str, option: str) -> list[float]:
    known = BOUNDS.get(f"{option} of {name}") or BOUNDS.get(option)
    if known is not None:
        return [x for x in known[::2] if abs(x) < inf]
    stated = " ".join(b.words for kind in kinds_of(annotation(name, option)) for b in kind.bounds)
    return [float(x) for x in re.findall(r"[\d.]+", stated)]


def build(name: str, **options: Any) -> steppe.SharpnessAware:
    return steppe.build(name, torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9), **options)


def refused(name: str, option: str, value: Any) -> None:
    for make in (steppe.method, build):
        with pytest.raises(ValueError, match=rf"{option} of {name}\b.*(takes|There are: )"):
            make(name, **{option: value})


def test_every_number_has_a_range() -> None:
    assert {word.split()[0] for word in BOUNDS} <= {option for _, option in NUMBERS}
    for name, option in NUMBERS:
        assert option in BOUNDS or f"{option} of {name}" in BOUNDS or ends(name, option), f"{name} {option}"


@pytest.mark.parametrize(("name", "option"), OPTIONS)
def test_values_of_another_type_are_refused(name: str, option: str) -> None:
    mine = kinds(name, option)
    wrong: list[Any] = list(JUNK)
    wrong += [True, False] if bool not in mine else [0, 1, 0.5, "true"]
    wrong += [None] if type(None) not in mine else []
    wrong += [1.0, 2.5, "2"] if mine == (int,) else []
    wrong += ["0.5", "nan", "-inf", nan] if float in mine else []
    wrong += [0.5, 1] if mine == (Triple,) else []
    for value in wrong:
        refused(name, option, value)


@pytest.mark.sampled(20)
@pytest.mark.parametrize(("name", "option"), NUMBERS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_numbers_are_taken_where_they_are_in_range(name: str, option: str, data: st.DataObject) -> None:
    whole = int in kinds(name, option)
    near = [x + d for x in ends(name, option) for d in ((-1, 0, 1) if whole else (-1e-9, 0.0, 1e-9))]
    drawn = st.integers(-5, 10**6) if whole else st.floats(allow_nan=False)
    value = data.draw(st.sampled_from(near) | drawn if near else drawn)
    if not allowed(name, option, value):
        refused(name, option, value)
    elif option == "n" and value < 2 and name == "frob-sam":
        with pytest.raises(ValueError, match=r"at least two draws, not n = 1"):
            steppe.method(name, n=value)
    else:
        assert isinstance(build(name, **{option: value}), steppe.SharpnessAware)


@pytest.mark.parametrize(("name", "option"), [pair for pair in OPTIONS if pair not in NUMBERS])
def test_switches_and_triples_are_taken(name: str, option: str) -> None:
    if kinds(name, option) == (bool,):
        for value in (True, False):
            build(name, **{option: value})
        return
    n = {"n": 2}  # the Frobenius norm needs two draws
    for word, triple in TRIPLES.items():
        assert build(name, **{option: word}, **n).method == build(name, **{option: triple}, **n).method
    refused(name, option, "determinant-relased")


def test_what_else_an_option_may_be() -> None:
    assert steppe.method("sam", p="inf") == steppe.method("sam", p=inf)  # files of JSON have no other way
    assert steppe.method("agnostic-sam", share=None) == steppe.AgnosticSAM(share=None)
    assert steppe.method("gsam", rho=steppe.Ball(0.1, p=inf)) == steppe.GSAM(steppe.Ball(0.1, p=inf))
    assert any(Ascent in kinds(name, option) for name, option in OPTIONS)
    rho = torch.tensor(0.1)
    assert build("sam", rho=rho).param_groups[0]["rho"] is rho


@pytest.mark.parametrize(
    ("option", "wrong"),
    [("seed", 1.5), ("seed", True), ("same_noise", 1), ("record", "no"), ("on_nonfinite", "late"), ("model", "net")],
)
def test_options_of_the_engine_are_checked(option: str, wrong: Any) -> None:
    with pytest.raises(ValueError, match=rf"{option} of SharpnessAware takes .*, not {wrong!r}"):
        build("sam", **{option: wrong})
