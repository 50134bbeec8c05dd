"""What several parts of the package share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from steppe._util.checkpoints import without_prefix
from steppe._util.digests import packed_bits, unpacked_bits
from steppe._util.formats import json_safe
from steppe._util.numbers import number, with_error


def test_json_has_no_numbers_that_are_not_finite_and_no_arrays() -> None:
    given: dict[Any, Any] = {"a": [float("nan"), float("-inf"), 1.5, True, None, ("x", 2)], 3: {"b", "a"}}
    given |= {"array": np.array([1.0, np.inf]), "number": np.int64(7), "tensor": torch.tensor([1, 2])}
    made = {"a": [None, None, 1.5, True, None, ["x", 2]], "3": ["a", "b"]}
    assert json_safe(given) == made | {"array": [1.0, None], "number": 7, "tensor": [1, 2]}
    assert json.dumps(json_safe(given), allow_nan=False)


def test_other_values_are_refused_unless_somebody_says_what_becomes_of_them() -> None:
    with pytest.raises(TypeError, match="PosixPath"):
        json.dumps(json_safe({"out": [Path("a")]}))
    assert json_safe({"out": [Path("a")]}, str) == {"out": ["a"]}


def test_prefixes_that_all_names_share_are_left_out_where_more_names_fit_then() -> None:
    own = {"weight", "bias"}
    assert without_prefix({"module.net.weight": 1, "module.net.bias": 2}, own) == {"weight": 1, "bias": 2}
    assert without_prefix({"module.module.weight": 1}, own, "module") == {"weight": 1}
    assert without_prefix({"net.weight": 1}, own, "module") == {"net.weight": 1}
    assert without_prefix({"a.weight": 1, "b.bias": 2}, own) == {"a.weight": 1, "b.bias": 2}
    assert without_prefix({"0.weight": 1}, {"0.weight"}) == {"0.weight": 1}
    assert without_prefix({}, own) == {}


@pytest.mark.parametrize(("value", "error", "written"), [
    (46.40, 14.0, "46 ± 14"), (0.041283, 0.0031, "0.0413 ± 0.0031"), (99.96, 0.0996, "99.96 ± 0.10"),
    (-0.001, 0.4, "0.00 ± 0.40"), (12345.6, 1234.0, "12346 ± 1234"), (1234567.0, 8900.0, "(1.2346 ± 0.0089)e+06"),
    (2.5e-7, 3e-8, "(2.50 ± 0.30)e-07"), (240.0, 1e-9, "240 ± 1e-09"), (46.4, 0.0, "46.4"),
    (46.4, float("nan"), "46.4"), (float("nan"), 1.0, "-"),
])  # fmt: skip
def test_errors_decide_the_decimals(value: float, error: float, written: str) -> None:
    assert with_error(value, error) == written


def test_whole_numbers_below_a_million_have_no_exponent() -> None:
    written = [number(x) for x in (9999.7, 12345.0, 999999.0, 1.5e6, 0.00012346, 0.000012346, -0.0, 2.50)]
    assert written == ["10000", "12345", "999999", "1.5e+06", "0.0001235", "1.235e-05", "0", "2.5"]


@given(st.lists(st.booleans(), max_size=40), st.data())
def test_bits_come_back_and_a_changed_character_is_noticed(flags: list[bool], data: st.DataObject) -> None:
    text = packed_bits(flags)
    assert unpacked_bits(text).tolist() == flags
    place = data.draw(st.integers(0, len(text) - 1))
    with pytest.raises(ValueError, match="damaged"):
        unpacked_bits(text[:place] + ("x" if text[place] != "x" else "y") + text[place + 1 :])
