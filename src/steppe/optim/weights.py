"""The weights of a step: their layout, one exact copy, displacement and bitwise restoration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from ..core.contiguous import stack_of
from ..core.modules import roles_of
from ..core.vector import Space, Vector, add_, copies, copy_
from .workers import Replicas


class ChunkViews:
    """Which chunks move whole, and buffers with their views where the places of scattered ones are put together."""

    def __init__(self, space: Space):
        here = space.locals()
        members = [[here[i] for i in c.members] for c in space.chunks]
        stacked = [k for k, c in enumerate(space.chunks) if c.stacked]
        found = {k: stack_of(members[k]) for k in stacked if space.chunks[k].sharding is None}
        self.stacks: dict[int, Tensor] = {k: s for k, s in found.items() if s is not None}
        self.scattered = [k for k in stacked if k not in self.stacks]
        self.whole = [k for k in range(len(space.chunks)) if k not in self.scattered]
        self.members = [i for k in self.scattered for i in space.chunks[k].members]
        self.buffers = [torch.empty_like(torch.stack(members[k])) for k in self.scattered]
        self.views = [view for buffer in self.buffers for view in buffer.unbind(0)]
        self._firsts = [space.chunks[k].members[0] for k in self.whole]
        self._lasting = None if space.sharded else self._places(here)  # shards are handed out anew
        self._settled = [space.params[i] for k in self.stacks for i in space.chunks[k].members]
        self._addresses = [p.data_ptr() for p in self._settled]

    def keep(self, here: Vector) -> Vector:
        """A copy of the weights; what is scattered is one already."""
        chunks = here.chunks
        fresh = copies([chunks[k] for k in self.whole])
        kept = dict(enumerate(chunks)) | dict(zip(self.whole, fresh, strict=True))
        return Vector(here.space, [kept[k] for k in range(len(kept))])

    def places(self, here: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """What moves whole and what is scattered, in the memory of the parameters that are here."""
        return self._lasting or self._places(here)

    def _places(self, here: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        pairs = zip(self.whole, self._firsts, strict=True)
        whole = [self.stacks[k] if k in self.stacks else here[i] for k, i in pairs]
        return whole, [here[i] for i in self.members]

    def stands(self) -> bool:
        """Whether the stacks are still the parameters' own memory."""
        return [p.data_ptr() for p in self._settled] == self._addresses


class WeightKeeper:
    """Holds the one exact copy of the weights that a step needs, from the first move on."""

    def __init__(self, space: Space, stage: ChunkViews):
        self._space, self._stage, self._parameters = space, stage, space.locals()
        self._whole, self._scattered = stage.places(self._parameters)
        self._origin: Vector | None = None
        self._away = False

    @cached_property
    def _here(self) -> Vector:
        """The weights in the parameters' own memory, with copies of what is scattered."""
        if not self._stage.scattered:
            return Vector(self._space, list(self._whole))
        chunks = dict(zip(self._stage.whole, self._whole, strict=True))
        for k in self._stage.scattered:
            chunks[k] = torch.stack([self._parameters[i] for i in self._space.chunks[k].members])
        return Vector(self._space, [chunks[k] for k in range(len(chunks))])

    @property
    def weights(self) -> Vector:
        """The unperturbed weights, wherever the parameters are now."""
        return self._origin or self._here

    def go(self, displacement: Vector | None) -> None:
        """Puts the parameters at weights + displacement, whose memory it consumes."""
        if displacement is None:
            self.back()
            return
        stage, moves = self._stage, displacement.chunks
        if self._origin is None:
            self._origin = stage.keep(self._here)
        home = self._origin.chunks
        if self._away:
            copy_(self._whole, [home[k] for k in stage.whole])
        self._away = True
        for buffer, k in zip(stage.buffers, stage.scattered, strict=True):
            torch.add(home[k], moves[k], out=buffer)
        add_(self._whole, [moves[k] for k in stage.whole])
        copy_(self._scattered, stage.views)
        displacement.release()

    def end(self) -> None:
        """Puts every parameter back for good: the copy is given up."""
        self.back()
        self._origin = None

    def back(self) -> None:
        """Puts every parameter back, those without a gradient too."""
        if not self._away or self._origin is None:
            return
        home, stage = self._origin.chunks, self._stage
        copy_(stage.buffers, [home[k] for k in stage.scattered])
        copy_(self._scattered + self._whole, stage.views + [home[k] for k in stage.whole])
        self._away = False


_dtype = attrgetter("dtype")
Groups = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ParamLayout:
    """The space of the parameters that ask for a gradient, its stage, and the workers that share it."""

    space: Space
    stage: ChunkViews
    replicas: Replicas
    kinds: list[Any]
    places: list[Any]  # where the parameters were when they were looked at last

    @classmethod
    def of(cls, model: nn.Module | None, groups: Groups) -> ParamLayout:
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
        return cls(space, ChunkViews(space), replicas, _kinds(space), _places(params))

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

    def keeper(self) -> WeightKeeper:
        return WeightKeeper(self.space, self.stage)


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
