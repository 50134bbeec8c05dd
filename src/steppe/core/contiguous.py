"""Small parameters of one shape stacked in memory, so that one kernel moves them all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .modules import roles_of
from .shards import distributed
from .vector import STACK_BELOW


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
        if p.numel() <= STACK_BELOW and p.is_contiguous() and distributed(p) is None and not _shared(p):
            kinds.setdefault((p.shape, p.dtype, p.device, roles[id(p)]), []).append(p)
    for alike in kinds.values():
        if len(alike) > 1:
            for p, place in zip(alike, torch.stack(list(alike)).unbind(0), strict=True):
                p.data = place
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


def _shared(p: Tensor) -> bool:
    """Whether other processes share this memory: they would keep the old one."""
    return bool(p.is_shared())  # type: ignore[no-untyped-call]
