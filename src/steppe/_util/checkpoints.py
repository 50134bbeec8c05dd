"""State dicts read by a model's own names, whatever was wrapped around the model that wrote them."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
State: TypeAlias = "Mapping[str, Tensor]"


def without_prefix(state: Mapping[str, T], own: Set[str], prefix: str | None = None) -> dict[str, T]:
    """A state dict without the prefixes that wrappers put on all of its names.

    Parameters
    ----------
    state
        Values by name.
    own
        The model's own names. As many prefixes are left out as makes most names of the state some of these.
    prefix
        The one prefix to leave out, such as DistributedDataParallel's "module". By default any that all names share.

    """
    names = dict(state)
    readings = [names]
    while names and all("." in name for name in names):
        shared = {name.partition(".")[0] for name in names}
        if len(shared) > 1 or prefix not in (None, *shared):
            break
        names = {name.partition(".")[2]: value for name, value in names.items()}
        readings.append(names)
    return max(readings, key=lambda reading: len(own & reading.keys()))


def matched(model: nn.Module, state: State) -> dict[str, Tensor]:
    """The tensors of a state dict by the model's own names; raises, naming the keys, if they do not fit.

    Names that DistributedDataParallel or torch.compile has put a prefix on are read without it, and of tied weights
    one name is enough.
    """
    from torch import Tensor

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
