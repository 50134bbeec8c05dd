"""Names and options that are refused when a method is built: what was asked, what is wrong, what there is."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from registry import NEGATIVE_RADIUS, Entry, obeying
from torch import nn

import steppe


def setting(name: str, **options: Any) -> Any:
    return steppe.build(name, torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9), **options)


def test_an_unknown_method() -> None:
    said = r"no method 'frobsam'\. Did you mean 'frob-sam'.*There are \d+: `steppe methods` lists them"
    with pytest.raises(ValueError, match=said):
        setting("frobsam")


def test_an_unknown_option() -> None:
    with pytest.raises(ValueError, match=r"no option of sam 'roh'\. Did you mean 'rho'"):
        setting("sam", roh=0.1)


@pytest.mark.parametrize(("wrong", "right"), [("same_noize", "same_noise"), ("modle", "model"), ("sead", "seed")])
def test_a_misspelled_option_of_the_engine(wrong: str, right: str) -> None:
    with pytest.raises(ValueError, match=rf"'{wrong}'.*Did you mean.*'{right}'"):
        setting("sam", **{wrong: None})


def test_an_unknown_triple() -> None:
    with pytest.raises(ValueError, match=r"no triple 'frobenious'\. Did you mean 'frobenius'"):
        setting("universal-sam", triple="frobenious")


@obeying(NEGATIVE_RADIUS)
def test_a_negative_radius(entry: Entry) -> None:
    base = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(ValueError, match=r"(rho of .* takes a number, 0 or more|radius).*-0\.1"):
        steppe.SharpnessAware(base, entry.method(rho=-0.1))


def test_a_negative_radius_in_a_group() -> None:
    u, v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    opt = steppe.build("sam", torch.optim.SGD([{"params": [u]}, {"params": [v], "rho": -0.5}], lr=0.1), rho=0.1)
    with pytest.raises(ValueError, match=r"rho.*-0\.5"):
        opt.step(lambda pass_: pass_.backward((u * v).sum()))


@pytest.mark.parametrize("p", [0.5, 0.0, -1.0, float("nan")])
def test_a_p_that_makes_no_norm(p: float) -> None:
    with pytest.raises(ValueError, match=r"p of sam takes a number, 1 or more, inf included, not"):
        setting("sam", p=p)
    with pytest.raises(ValueError, match="p of Ball takes a number, 1 or more"):
        steppe.Ball(0.1, p=p)


@pytest.mark.parametrize("name", ["sa-sam", "sa-sgd"])
def test_smoothness_with_several_step_sizes(name: str) -> None:
    u, v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    opt = steppe.build(name, torch.optim.SGD([{"params": [u]}, {"params": [v], "lr": 0.5}], lr=0.1))
    with pytest.raises(ValueError, match=r"one size for all weights.*\[0\.1, 0\.5\]"):
        opt.step(lambda pass_: pass_.backward((u * v).sum()))


@pytest.mark.parametrize("name", ["trace-sam", "frob-sam", "det-sam", "universal-sam"])
def test_a_measure_with_several_radii(name: str) -> None:
    u, v = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    opt = steppe.build(name, torch.optim.SGD([{"params": [u]}, {"params": [v], "rho": 0.5}], lr=0.1), rho=0.1)
    with pytest.raises(ValueError, match=r"one radius for all weights.*\[0\.1, 0\.5\]"):
        opt.step(lambda pass_: pass_.backward((u * v).sum()))


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("frob-sam", {"n": 1}, "at least two draws"),
        ("esam", {"beta": 0.0}, "beta of esam takes a number, more than 0 and at most 1, not 0.0"),
        ("sam", {"steps": 0}, "steps of sam takes a whole number, 1 or more, not 0"),
        ("sam", {"normalized": False, "p": 1.0}, "no p-norm"),
    ],
)
def test_options_out_of_range(name: str, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        setting(name, **options)


def test_classes_refuse_what_is_out_of_range_too() -> None:
    with pytest.raises(ValueError, match=r"beta of ESAM takes a number, more than 0 and at most 1, not 0\.0"):
        steppe.ESAM(beta=0.0)
    with pytest.raises(ValueError, match="steps of SAM takes a whole number, 1 or more, not 0"):
        steppe.SAM(steps=0)
    with pytest.raises(ValueError, match=r"rho.*-0\.1"):
        steppe.SAM(steppe.Ball(-0.1))


def test_combinators_out_of_range() -> None:
    with pytest.raises(ValueError, match="k of Every takes a whole number, 1 or more, not 0"):
        steppe.Every(0)
    with pytest.raises(ValueError, match="LookSAM keeps across"):
        steppe.PerPart(steppe.LookSAM())


def written(node: ast.expr) -> str:
    """The text of a message; values count as twelve characters."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else 12 * "x" for part in node.values)  # type: ignore[misc]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_errors_are_under_four_lines() -> None:
    """What a command prints of one: its name, a colon and the message, in a terminal of 80 columns."""
    root, before = Path(__file__).parents[2], len("steppe study run: ")
    messages = {
        f"{file.relative_to(root)}:{node.lineno}": written(node.exc.args[0])
        for folder in ("src/steppe", "papers/src/steppe_papers")
        for file in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args
    }
    assert sum(map(bool, messages.values())) > 500
    assert {place: text for place, text in messages.items() if before + len(text) > 3 * 80 - 10} == {}  # words wrap
