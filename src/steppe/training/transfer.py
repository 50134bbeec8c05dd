"""Transfer: initial weights from a checkpoint, with a new head where the classes differ, and parameters by name.

`freeze` and `lr_factors` name parameters by `head`, by `backbone`, or by a pattern such as `layer1.*`. The head are the
tensors whose shape follows the number of outputs; the backbone are all others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import torch
from torch import nn

from .._util.checkpoints import load_into, read_checkpoint, without_prefix
from .._util.digests import digest
from .._util.names import unknown
from .checkpoint import WEIGHTS, committed

Head = Callable[[], set[str]]  # returns the names of the head's tensors; called only where they are needed
HEAD, BACKBONE = "head", "backbone"


@dataclass(frozen=True)
class Init:
    """The checkpoint that a run starts from, as run.yaml records it."""

    file: str
    digest: str
    replaced: list[str]  # tensors of the head, which keep their random initial values


def load_init_(model: nn.Module, path: Path, head: Head) -> Init:
    """Load a checkpoint or a run's weights into a model, without a head for another number of outputs."""
    file = path / WEIGHTS if path.is_dir() else path
    if path.is_dir() and committed(path) is None:
        raise FileNotFoundError(f"init is {str(path)!r}, a folder without a run's checkpoint ({WEIGHTS})")
    own = model.state_dict()
    state = without_prefix(read_checkpoint(file), own.keys())
    other_shape = {name for name, t in own.items() if name in state and state[name].shape != t.shape}
    replaced = sorted(other_shape) if other_shape and other_shape <= head() else []
    load_into(model, state | {name: own[name] for name in replaced}, file)
    return Init(str(file), digest([file.read_bytes()]), replaced)


def freeze_(model: nn.Module, patterns: Sequence[str], head: Head) -> None:
    """Freeze parameters by name; layers that are frozen as a whole are put into evaluation mode.

    Their running statistics stay as they are then, so a frozen backbone is a fixed function of its inputs, up to
    dropout.
    """
    frozen = _selected(patterns, "freeze", model.state_dict().keys(), head)
    for name, p in model.named_parameters(remove_duplicate=False):
        p.requires_grad_(p.requires_grad and name not in frozen)
    if not any(p.requires_grad for p in model.parameters()):
        raise ValueError(f"freeze is {list(patterns)}, which leaves no parameter to train")
    for path, module in model.named_modules():
        names = [f"{path}.{name}".lstrip(".") for name, _ in _own_tensors(module)]
        if names and frozen.issuperset(names):
            module.eval()


def factors_of(model: nn.Module, by_pattern: Mapping[str, float], head: Head) -> dict[str, float]:
    """Return the factor of the learning rate for each parameter; the factors of several patterns multiply."""
    names = [name for name, _ in model.named_parameters()]
    factors = dict.fromkeys(names, 1.0)
    for pattern, factor in by_pattern.items():
        for name in _selected([pattern], "lr_factors", names, head):
            factors[name] *= factor
    return factors


def _selected(patterns: Sequence[str], setting: str, names: Collection[str], head: Head) -> set[str]:
    """Return the names that match any of the patterns; raise if one matches nothing."""
    of_head = head() if {HEAD, BACKBONE} & set(patterns) else set()
    selected: set[str] = set()
    for pattern in patterns:
        if pattern in (HEAD, BACKBONE):
            matching = {name for name in names if (name in of_head) == (pattern == HEAD)}
        else:
            matching = {name for name in names if fnmatchcase(name, pattern)}
        if not matching and pattern in (HEAD, BACKBONE):
            few = "no" if pattern == HEAD else "every"
            raise ValueError(f"{setting}: the model has no {pattern}, as {few} tensor follows the number of outputs")
        if not matching:
            raise ValueError(f"{setting}: {unknown('parameter', pattern, [HEAD, BACKBONE, *names])}")
        selected |= matching
    return selected


def _own_tensors(module: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and saved buffers of a module without those of its children."""
    buffers = [(n, b) for n, b in module.named_buffers(recurse=False) if n not in module._non_persistent_buffers_set]
    return [*module.named_parameters(recurse=False, remove_duplicate=False), *buffers]
