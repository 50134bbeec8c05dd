"""The weights of a step: their layout in memory, one exact copy, displacement and bitwise restoration."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor, nn

from ..core.modules import roles_of
from ..core.shards import distributed
from ..core.vector import STACK_BELOW, Space, Vector, add_, copy_
from .workers import Replicas

ROUNDING = 0.1  # of the length of a displacement may be lost or gained by rounding without a warning


class WeightKeeper:
    """Moves the parameters of a space, and holds the one exact copy of the weights while they are displaced.

    The place of a chunk is its parameter, or the stack in whose memory its parameters lie. The parameters of other
    stacked chunks are scattered: their place is a stage, from which every move is copied to them.
    """

    def __init__(self, space: Space):
        self._space = space
        self._stages: dict[int, Tensor] = {}  # by chunk, stacks too
        self._rows: list[Tensor] = []  # of the stages of scattered parameters
        self._scattered: list[int] = []  # the parameters of these rows
        self._stacked: list[Tensor] = []  # the parameters in stacks
        parameters = space.locals()
        for k, chunk in enumerate(space.chunks):
            if chunk.stacked:
                members = [parameters[i] for i in chunk.members]
                stack = stack_of(members) if chunk.sharding is None else None
                if stack is None:
                    stack = torch.empty_like(torch.stack(members))
                    self._rows += stack.unbind(0)
                    self._scattered += chunk.members
                else:
                    self._stacked += [space.params[i] for i in chunk.members]
                self._stages[k] = stack
        self._stack_addresses = [p.data_ptr() for p in self._stacked]
        self._locate(parameters)
        self._copies: list[Tensor] | None = None  # of the places
        self._origin: list[Tensor] | None = None  # the weights by chunk, while they are kept
        self.displaced = False
        self.coarse = any(p.element_size() < 4 for p in parameters)  # displacements may be less than rounding

    def _locate(self, parameters: list[Tensor]) -> None:
        chunks = enumerate(self._space.chunks)
        self._places = [self._stages[k] if k in self._stages else parameters[c.members[0]] for k, c in chunks]
        self._targets = [parameters[i] for i in self._scattered]
        self._weights: Vector | None = None

    def begin(self) -> None:
        """Starts a step: the weights are what the parameters hold now."""
        self._weights = None
        if self._space.sharded:  # the local tensors of a DTensor are new objects every time
            self._locate(self._space.locals())

    @property
    def weights(self) -> Vector:
        """The unperturbed weights, also while the parameters are displaced."""
        if self._weights is None:
            if self._origin is None:
                copy_(self._rows, self._targets)
            self._weights = Vector(self._space, list(self._origin or self._places))
        return self._weights

    def move_to(self, displacement: Vector | None) -> None:
        """Sets the parameters to weights + displacement, whose memory it consumes; None means the weights."""
        if displacement is None:
            self.restore()
            return
        if self._origin is None:
            copy_(self._rows, self._targets)
            if self._copies is None:
                self._copies = list(map(torch.clone, self._places))
            else:
                copy_(self._copies, self._places)
            self._origin, self._weights = self._copies, None
        elif self.displaced:
            copy_(self._places, self._origin)
        self.displaced = True
        add_(self._places, displacement.chunks)
        copy_(self._targets, self._rows)
        displacement.release()

    def displacement(self) -> Vector:
        """How far the displaced parameters are from the weights, after rounding."""
        return Vector(self._space, self._places) - Vector(self._space, self._origin)

    def restore(self) -> None:
        """Sets every parameter back bitwise, those without a gradient too."""
        if self.displaced and self._origin is not None:
            copy_(self._places, self._origin)
            copy_(self._targets, self._rows)
            self.displaced = False

    def end(self, replicas: Replicas) -> None:
        """Ends a step: restores the parameters, without a graph."""
        if replicas.sharded:
            replicas.reshard()
        self.restore()
        torch.clear_autocast_cache()  # or the next forward pass under an outer autocast sees displaced weights
        self._origin = self._weights = None
        # a GPU keeps the memory for the next step: allocating many tensors takes longer than copying them, and the peak
        # is in a later pass, which needs the copy anyway
        if self._space.device.type != "cuda":
            self._copies = None

    def in_place(self) -> bool:
        """Whether the stacks are still the memory of their parameters."""
        return [p.data_ptr() for p in self._stacked] == self._stack_addresses


def warn_of_rounding(asked: Tensor, displacement: Vector) -> None:
    """Warns if weights of low precision were not displaced as far as asked. Synchronizes with the device."""
    there, length = float(displacement.norm()), float(asked)
    if abs(there - length) > ROUNDING * length:
        chunks = displacement.chunks
        kinds = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in chunks}))
        moved = sum(int(x.count_nonzero()) for x in chunks) / sum(x.numel() for x in chunks)
        warnings.warn(
            f"the weights are {kinds}, which rounds a displacement of length {length:.3g} to {there:.3g} and moves "
            f"{moved:.0%} of them: keep them in float32, with torch.autocast around the passes, or raise rho",
            stacklevel=5,
        )


_dtype = attrgetter("dtype")
Groups = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class ParamLayout:
    """The space of the parameters that require a gradient, their keeper, and the workers that share them."""

    space: Space
    keeper: WeightKeeper
    replicas: Replicas
    kinds: list[Any]
    places: list[Any]  # addresses and dtypes of the parameters at the last check

    @classmethod
    def of(cls, model: nn.Module | None, groups: Groups) -> ParamLayout:
        """The layout of the parameter groups; raises if nothing in them requires a gradient."""
        params = _trained(groups)
        if not params:
            raise ValueError(
                "no parameter of the optimizer requires a gradient, so there is nothing to train: set "
                "requires_grad_(True) on what this step should move"
            )
        check_not_complex(params)
        _check_no_shared_memory(params)
        replicas = Replicas(model, params)
        replicas.reshard()  # gathered weights are other objects than the parameters
        roles = roles_of(model, groups)
        group_of = [i for i, g in enumerate(groups) for p in g["params"] if p.requires_grad]
        with outside_inference_mode():
            space = Space(params, group_of, [roles[id(p)] for p in params])
            return cls(space, WeightKeeper(space), replicas, _kinds(space), _places(params))

    def matches(self, groups: Groups) -> bool:
        """Whether the groups still hold these parameters, with the same devices, dtypes and shapes."""
        params = _trained(groups)
        if len(params) != len(self.space.params) or not all(map(is_, params, self.space.params)):
            return False
        # model.to(...) keeps the objects and changes what they hold, in other memory
        places = _places(params)
        if places == self.places:
            return True
        if _kinds(self.space) != self.kinds or not self.keeper.in_place():
            return False
        _check_no_shared_memory(params)
        self.places[:] = places
        return True


def outside_inference_mode() -> AbstractContextManager[Any]:
    """A context for new tensors: one that is made under inference mode can never be written to outside of it.

    It enters a block there alone: where Ctrl-C leaves one open, torch sets the grad mode again when it is collected.
    """
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


def check_not_complex(params: Sequence[Tensor]) -> None:
    """Raises for complex parameters."""
    if any(p.is_complex() for p in params):
        raise TypeError(
            "complex parameters have no sharpness-aware step here: steepest ascent is defined for real weights. "
            "Keep them in an optimizer of their own, or store their real view (torch.view_as_real)."
        )


def _check_no_shared_memory(params: Sequence[Tensor]) -> None:
    """Raises if a number belongs to two parameters, each of which would move it."""
    plain = [p for p in params if p.numel() and p.data_ptr() and distributed(p) is None]
    end, shared = 0, dict[tuple[Any, ...], Tensor]()  # one parameter of each memory that several may lie in
    for p in sorted(plain, key=Tensor.data_ptr):
        if p.data_ptr() < end:
            shared[_memory(p)] = p
        reach = sum((n - 1) * stride for n, stride in zip(p.shape, p.stride(), strict=True))
        end = max(end, p.data_ptr() + p.element_size() * (1 + reach))
    for memory, p in shared.items():  # columns of one matrix may be two parameters
        uses = torch.zeros(p.untyped_storage().nbytes() // p.element_size(), dtype=torch.int32, device=p.device)
        for q in plain:
            if _memory(q) == memory:
                uses.as_strided(q.shape, q.stride(), q.storage_offset()).add_(1)
        if bool((uses > 1).any()):
            raise ValueError(
                f"parameters of the optimizer share memory (one of shape {tuple(p.shape)}), and each would displace "
                "the same numbers: tie weights by one nn.Parameter in both places, b.weight = a.weight"
            )


def _memory(p: Tensor) -> tuple[Any, ...]:
    return p.device, p.element_size(), p.untyped_storage().data_ptr()


def maximizes(groups: Groups) -> bool:
    """Whether the base optimizer maximizes the loss: a plan then receives minus the caller's loss."""
    settings = {bool(g.get("maximize", False)) for g in groups}
    if len(settings) > 1:
        raise ValueError("some parameter groups have maximize=True and some do not: they need one objective")
    return settings.pop()


def _kinds(space: Space) -> list[Any]:
    firsts = [space.params[c.members[0]] for c in space.chunks]
    return [(p.dtype, p.device, p.shape) for p in firsts]


def _places(params: Sequence[Tensor]) -> list[Any]:
    return [*map(Tensor.data_ptr, params), *map(_dtype, params)]


def _trained(groups: Groups) -> list[Tensor]:
    return [p for g in groups for p in g["params"] if p.requires_grad]


@torch.no_grad()
def contiguous_(model: nn.Module) -> nn.Module:
    """Moves the model's small parameters so that those of one shape are views of one stack; their values stay.

    A step of `SharpnessAware` then moves a stack in one operation instead of its tensors one by one.

    Parameters
    ----------
    model
        A model on its device. Call this before anything else keeps views of the memory of its parameters.

    Returns
    -------
    nn.Module
        The same model.

    Examples
    --------
    >>> model = steppe.contiguous_(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    >>> one, two = model[0].weight, model[1].weight
    >>> one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()
    True

    """
    roles, kinds = roles_of(model, []), dict[object, list[nn.Parameter]]()
    for p in model.parameters():
        shared: Any = p.is_shared()  # type: ignore[no-untyped-call]  # with processes that would keep the old memory
        if p.numel() <= STACK_BELOW and p.is_contiguous() and distributed(p) is None and not shared:
            kinds.setdefault((p.shape, p.dtype, p.device, roles[id(p)]), []).append(p)
    for params in kinds.values():
        if len(params) > 1:
            for p, row in zip(params, torch.stack(list(params)).unbind(0), strict=True):
                p.data = row
    return model


def stack_of(tensors: Sequence[Tensor]) -> Tensor | None:
    """The tensor of which these tensors are the rows, sharing their memory, or None if there is none."""
    first = tensors[0].detach()
    starts = [t.data_ptr() for t in tensors]
    step = starts[1] - starts[0] if len(starts) > 1 else 0
    storage = first.untyped_storage()
    inside = starts[-1] + first.nbytes <= storage.data_ptr() + storage.nbytes()
    evenly = step >= first.nbytes and starts == [starts[0] + i * step for i in range(len(starts))]
    if not (inside and evenly and step % first.element_size() == 0 and all(t.is_contiguous() for t in tensors)):
        return None
    return first.as_strided((len(tensors), *first.shape), (step // first.element_size(), *first.stride()))
