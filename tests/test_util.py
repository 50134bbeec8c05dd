"""What several parts of the package share."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from steppe._util.checkpoints import without_prefix
from steppe._util.export import json_safe


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
