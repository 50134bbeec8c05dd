"""State dicts as points in an objective's space."""

from __future__ import annotations

from .._util.checkpoints import State, matched
from ..core.vector import Vector
from .objective import Objective


def point(objective: Objective, state: State) -> Vector:
    """The weights of a state dict as a point in the objective's space."""
    found = matched(objective.model, state)
    return objective.space.vector([found[name].detach().to(p) for name, p in objective.params.items()])
