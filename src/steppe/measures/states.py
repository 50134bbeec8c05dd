"""Checkpoints: state dicts read by a model's own names, whatever was wrapped around the model that wrote them."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from .._util.checkpoints import without_prefix
from ..vector import Vector
from .objective import Objective

State = Mapping[str, Tensor]


def point(objective: Objective, state: State) -> Vector:
    """The weights of a state dict as a point in the objective's space."""
    found = matched(objective.model, state)
    return objective.space.vector([found[name].detach().to(p) for name, p in objective.params.items()])


def matched(model: nn.Module, state: State) -> dict[str, Tensor]:
    """The tensors of a state dict by the model's own names; raises, naming the keys, if they do not fit.

    Names that DistributedDataParallel or torch.compile has put a prefix on are read without it, and of tied weights
    one name is enough.
    """
    if not isinstance(state, Mapping):
        raise TypeError(f"a checkpoint is given by its state dict, not by a {type(state).__name__}")
    own = {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    given = _renamed(state, own)
    found = {id(t): given[name] for name, t in own.items() if isinstance(given.get(name), Tensor)}
    faults = {
        "missing": [name for name, t in own.items() if id(t) not in found],
        "unexpected": [name for name in given if name not in own],
        "of another shape": [
            f"{name} {tuple(found[id(t)].shape)} where the model has {tuple(t.shape)}"
            for name, t in own.items()
            if id(t) in found and found[id(t)].shape != t.shape
        ],
    }
    if any(faults.values()):
        told = "; ".join(f"{fault}: {_listed(names)}" for fault, names in faults.items() if names)
        inner = [name for name, value in state.items() if isinstance(value, Mapping)]
        hint = f". Did you mean the state dict under {inner[0]!r}?" if inner else ""
        raise ValueError(f"the state dict does not fit the model: {told}{hint}")
    return {name: found[id(t)] for name, t in own.items()}


def _renamed(state: State, own: State) -> dict[str, Tensor]:
    """A state dict without the prefixes of wrappers, as far as the model's own names do not have them."""
    plain = {name.replace("_orig_mod.", ""): name for name in own}
    reading = {k.replace("_orig_mod.", ""): v for k, v in state.items() if not k.endswith("_extra_state")}
    best = without_prefix(reading, plain.keys(), "module")
    return {plain.get(k, k): v for k, v in best.items()}


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
