"""The laws of a measure."""

from __future__ import annotations

import random
import re
from math import isfinite
from typing import Any

import numpy as np
import torch
from torch import nn

from .._util.measure_names import MeasureName
from ..measures.estimate import Measure, with_cost
from ..measures.objective import Objective
from ..measures.registration import MEASURES
from ..measures.registry import measure_by_name
from .problem import copied, differences

UNITS = {"loss": "losses", "gradient": "gradients", "product": "products"}


def check_measure(measure: str | Measure, objective: Objective | None = None) -> None:
    """Raise AssertionError unless a measure does what studies rely on.

    Its last estimate is its result, finite, and the same for the same seed; an exact one has no error; the model and
    all random states are unchanged. A registered measure has the kind that is stated, and costs no more.

    Parameters
    ----------
    measure
        A measure, or the name of a registered one.
    objective
        What to measure; None takes a small classifier with BatchNorm on two batches.

    Examples
    --------
    >>> steppe.testing.check_measure("trace")

    """
    objective = _classifier() if objective is None else objective
    one = measure_by_name(measure) if isinstance(measure, str) else measure
    before = _state(objective.model)
    found = one.estimate(objective)
    changed = list(differences(_state(objective.model), before))
    assert not changed, f"{one} changes the model, its modes or random states"

    *_, last = with_cost(one.running(objective, 0), objective)
    assert last == found, f"{one} is {found}, and then {last} for the same seed"
    assert isfinite(found.value), f"{one} is {found.value}: raise NotFinite"
    assert found.n >= 1, f"{one} has n = {found.n} draws"
    assert found.kind != "exact" or found.stderr == 0, f"{one} is called exact and has the error {found.stderr}"
    if not isinstance(measure, str):
        return

    facts = MEASURES[MeasureName.of(measure).base]
    assert facts.does, f"{measure} does not say what it is"
    assert found.kind == facts.kind, f"{measure} is registered as {facts.kind}, and gave {found.kind}"
    stated = {UNITS[unit]: int(n) for n, unit in re.findall(r"(\d+) (loss|gradient|product)", facts.cost)}
    for unit in UNITS.values():
        spent = getattr(found.cost, unit)
        most = stated.get(unit, 0) + ("products" in stated)  # a graph for these takes a loss and a gradient
        least = 0 if facts.cost.startswith("up to") else stated.get(unit, 0)
        assert least <= spent <= most, f"{measure} is registered with {facts.cost}, and took {spent:g} {unit}"


def _classifier() -> Objective:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(), nn.Linear(4, 2))
        return Objective(model, nn.functional.cross_entropy, (torch.randn(24, 3), torch.randint(2, (24,))), m=12)


def _state(model: nn.Module) -> list[Any]:
    """All that a measurement must leave as it was."""
    tensors = [*model.state_dict().values(), *(p.grad for p in model.parameters())]
    modes = [module.training for module in model.modules()]
    of_numpy = np.random.get_state(legacy=False)["state"]
    states = torch.get_rng_state(), of_numpy["key"].tolist(), of_numpy["pos"], *random.getstate()[:2]
    return copied([*tensors, *modes, *states])  # type: ignore[no-any-return]
