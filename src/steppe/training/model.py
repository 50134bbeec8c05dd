"""The model of a run: built from its seed, started from a checkpoint, frozen in parts, and pruned.

`freeze` and `lr_factors` name parameters by `head`, by `backbone`, or by a pattern such as `layer1.*`. The head are the
tensors whose shape follows the number of outputs; the backbone are all others.

Magnitude pruning sets the smallest weights of the whole model to zero at once and trains the rest (Han et al. 2015).
Masks are those of `torch.nn.utils.prune`: a layer computes its weight as `weight_orig * weight_mask`, so that no
method, displacement or measure has an effect on pruned weights. A run has its masks, all true at first, from its start,
as buffers that checkpoints store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import prune

from .._util.checkpoints import load_into, read_checkpoint, without_prefix
from .._util.digests import digest
from .._util.names import unknown
from .._util.user_code import is_factory
from ..core.draw import seed_of, seed_torch
from ..nn.registry import build
from .checkpoint import WEIGHTS, read_header
from .config import INITIAL, Config

HEAD, BACKBONE = "head", "backbone"


def model_of(config: Config, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build the model, with its frozen parts, and masks if it is pruned; the seed determines its initial weights."""
    model = _built(config, shape, outputs).train()
    if config.freeze:
        _freeze_(model, config.freeze, partial(_head, config, shape, outputs))
    return model


def _built(config: Config, shape: tuple[int, ...], outputs: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        seed_torch(seed_of(config.seed, INITIAL))
        model = build(config.model, shape, outputs, **config.model_options)
    if config.prune:
        for layer in [m for m in model.modules() if isinstance(m, nn.Linear | _ConvNd)]:
            prune.identity(layer, "weight")  # type: ignore[no-untyped-call]
            layer.weight_mask = cast(Tensor, layer.weight_mask).bool()  # averages of weights copy it from the latest
    return model


def _head(config: Config, shape: tuple[int, ...], outputs: int) -> set[str]:
    """Return the names of the tensors whose shape follows the number of outputs, by building another model."""
    this, other = (_built(config, shape, n).state_dict() for n in (outputs, outputs + 1))
    return {name for name, t in this.items() if name not in other or other[name].shape != t.shape}


def channels_last(config: Config, shape: tuple[int, ...], device: torch.device) -> bool:
    """Return whether convolution weights are stored channels-last, so that convolutions run in that format.

    Convolutions convert inputs to the format of their weights. A user's own model chooses its own format by default:
    `view` on the output of a channels-last convolution may raise.
    """
    if config.channels_last is not None:
        return config.channels_last
    images = len(shape) == 3
    return images and device.type == "cuda" and not config.fsdp and not is_factory(config.model)


@dataclass(frozen=True)
class Init:
    """The checkpoint that a run starts from, as run.yaml records it."""

    file: str
    digest: str
    replaced: list[str]  # tensors of the head, which keep their random initial values


def load_init_(model: nn.Module, init: str, config: Config, shape: tuple[int, ...], outputs: int) -> Init:
    """Load a checkpoint or a run's weights into a model, without a head for another number of outputs."""
    path = Path(init)
    file = path / WEIGHTS if path.is_dir() else path
    if path.is_dir() and read_header(path) is None:
        raise FileNotFoundError(f"init is {str(path)!r}, a folder without a run's checkpoint ({WEIGHTS})")
    own = model.state_dict()
    state = without_prefix(read_checkpoint(file), own.keys())
    other_shape = {name for name, t in own.items() if name in state and state[name].shape != t.shape}
    replaced = sorted(other_shape) if other_shape and other_shape <= _head(config, shape, outputs) else []
    load_into(model, state | {name: own[name] for name in replaced}, file)
    return Init(str(file), digest([file.read_bytes()]), replaced)


def lr_factors(model: nn.Module, config: Config, shape: tuple[int, ...], outputs: int) -> dict[str, float]:
    """Return the factor of the learning rate for each parameter; the factors of several patterns multiply."""
    factors = {name: 1.0 for name, _ in model.named_parameters()}
    for pattern, factor in config.lr_factors.items():
        for name in _selected([pattern], "lr_factors", factors, partial(_head, config, shape, outputs)):
            factors[name] *= factor
    return factors


def _freeze_(model: nn.Module, patterns: Sequence[str], head: Callable[[], set[str]]) -> None:
    """Freeze parameters by name; layers that are frozen as a whole are put into evaluation mode.

    Their running statistics stay as they are then, so a frozen backbone is a fixed function of its inputs, up to
    dropout.
    """
    frozen = _selected(patterns, "freeze", model.state_dict(), head)
    for name, p in model.named_parameters(remove_duplicate=False):
        p.requires_grad_(p.requires_grad and name not in frozen)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"freeze is {list(patterns)}, which leaves no parameter to train")
    for path, module in model.named_modules():
        names = {f"{path}.{name}".lstrip(".") for name in _own_tensors(module)}
        if names and names <= frozen:
            module.eval()


def _own_tensors(module: nn.Module) -> list[str]:
    """Return the names of a module's parameters and saved buffers, without those of its children."""
    tensors = {**module._parameters, **module._buffers}
    return [k for k, t in tensors.items() if t is not None and k not in module._non_persistent_buffers_set]


def _selected(patterns: Sequence[str], setting: str, names: Collection[str], head: Callable[[], set[str]]) -> set[str]:
    """Return the names that match any of the patterns; raise if one matches nothing. `head` is called if needed."""
    of_head = head() if {HEAD, BACKBONE} & set(patterns) else set()
    selected: set[str] = set()
    for pattern in patterns:
        if pattern in (HEAD, BACKBONE):
            matching = {name for name in names if (name in of_head) == (pattern == HEAD)}
            few = "no" if pattern == HEAD else "every"
            error = f"the model has no {pattern}, as {few} tensor follows the number of outputs"
        else:
            matching = {name for name in names if fnmatchcase(name, pattern)}
            error = unknown("parameter", pattern, [HEAD, BACKBONE, *names])
        if not matching:
            raise ValueError(f"{setting}: {error}")
        selected |= matching
    return selected


@torch.no_grad()
def prune_(model: nn.Module, fraction: float, state: Mapping[Tensor, Mapping[str, Any]]) -> None:
    """Set the smallest weights of the layers with masks to zero.

    Parameters
    ----------
    model
        A model with masks.
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
