"""Magnitude pruning during a run: the smallest weights become zero, and stay zero to its end.

Train, prune the smallest weights of the whole model at once, train the rest (Han et al. 2015). Masks are those of
`torch.nn.utils.prune`: a layer computes its weight as `weight_orig * weight_mask`, so that no method, displacement or
measure has an effect on pruned weights. A run has its masks, all true at first, from its start, as buffers that
checkpoints store.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import prune


def add_masks(model: nn.Module) -> nn.Module:
    """Give every linear and convolution layer of a model a mask that keeps all weights; return the model."""
    for layer in [m for m in model.modules() if isinstance(m, nn.Linear | _ConvNd)]:
        prune.identity(layer, "weight")  # type: ignore[no-untyped-call]
        layer.weight_mask = cast(Tensor, layer.weight_mask).bool()  # averages of weights copy it from the latest
    return model


@torch.no_grad()
def prune_(model: nn.Module, fraction: float, state: Mapping[Tensor, Mapping[str, Any]]) -> None:
    """Set the smallest weights of the layers with masks to zero.

    Parameters
    ----------
    model
        A model after `add_masks`.
    fraction
        The fraction of the weights of all these layers together that become zero; of equal ones the first.
    state
        The state of the base optimizer by parameter: its momentum of pruned weights becomes zero too, so that they
        stay exactly zero.

    """
    layers: list[Any] = [m for m in model.modules() if "weight_mask" in m._buffers]
    sizes = torch.cat([m.weight_orig.abs().flatten() for m in layers])
    keep = torch.ones_like(sizes, dtype=torch.bool)
    keep[sizes.argsort(stable=True)[: round(fraction * len(sizes))]] = False
    for m, part in zip(layers, torch.split(keep, [m.weight_orig.numel() for m in layers]), strict=True):
        m.weight_mask.copy_(part.view_as(m.weight_mask))  # in place: captured steps read this memory
        momenta = [t for t in state.get(m.weight_orig, {}).values() if isinstance(t, Tensor) and t.ndim]
        for t in (m.weight_orig, *momenta):
            t.mul_(m.weight_mask)
