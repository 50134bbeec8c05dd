"""What stays the same from step to step while the parameters are the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any

from torch import Tensor, nn

from ..core.modules import roles_of
from ..core.vector import Space
from .weights import Excursion, Stage
from .workers import Replicas

_dtype = attrgetter("dtype")
Groups = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Ground:
    """The space of the parameters that ask for a gradient, its stage, and the workers that share it."""

    space: Space
    stage: Stage
    replicas: Replicas
    kinds: list[Any]
    places: list[Any]  # where the parameters were when they were looked at last

    @classmethod
    def of(cls, model: nn.Module | None, groups: Groups) -> Ground:
        params = _trained(groups)
        if not params:
            raise ValueError(
                "no parameter of the optimizer requires a gradient, so there is nothing to train: set "
                "requires_grad_(True) on what this step should move"
            )
        refuse_complex(params)
        replicas = Replicas(model, params)
        replicas.let_go()  # gathered weights are other objects than the parameters that we know
        roles = roles_of(model, groups)
        group_of = [i for i, g in enumerate(groups) for p in g["params"] if p.requires_grad]
        space = Space(params, group_of, [roles[id(p)] for p in params])
        return cls(space, Stage(space), replicas, _kinds(space), _places(params))

    def holds(self, groups: Groups) -> bool:
        """Whether these are still the parameters to train."""
        params = _trained(groups)
        if len(params) != len(self.space.params) or not all(map(is_, params, self.space.params)):
            return False
        # model.to(...) keeps the objects and changes what they hold, in other memory
        places = _places(params)
        if places == self.places:
            return True
        if _kinds(self.space) != self.kinds or not self.stage.stands():
            return False
        self.places[:] = places
        return True

    def excursion(self) -> Excursion:
        return Excursion(self.space, self.stage)


def refuse_complex(params: Sequence[Tensor]) -> None:
    if any(p.is_complex() for p in params):
        raise TypeError(
            "complex parameters have no sharpness-aware step here: steepest ascent is defined for real weights. "
            "Keep them in an optimizer of their own, or store their real view (torch.view_as_real)."
        )


def maximizes(groups: Groups) -> bool:
    """Whether the base climbs: then the loss that a plan sees is minus the caller's."""
    found = {bool(g.get("maximize", False)) for g in groups}
    if len(found) > 1:
        raise ValueError("some parameter groups have maximize=True and some do not: they need one objective")
    return found.pop()


def _kinds(space: Space) -> list[Any]:
    firsts = [space.params[c.members[0]] for c in space.chunks]
    return [(p.dtype, p.device, p.shape) for p in firsts]


def _places(params: Sequence[Tensor]) -> list[Any]:
    return [*map(Tensor.data_ptr, params), *map(_dtype, params)]


def _trained(groups: Groups) -> list[Tensor]:
    return [p for g in groups for p in g["params"] if p.requires_grad]
