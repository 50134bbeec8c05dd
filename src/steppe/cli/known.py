"""Names in a configuration, looked up before anything is read or built: a wrong one is answered at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..imported import is_factory
from ..names import unknown
from ..training.config import Config

if TYPE_CHECKING:
    from ..probe import Method


def refuse_unknown(config: Config) -> Method:
    """Raises for a data set, model, method, option or other name that does not exist; else returns the method."""
    from ..data.augment import AUGMENTATIONS
    from ..data.corruptions import NAMES
    from ..data.named import DATASETS, OWN
    from ..measures.named import plan_of
    from ..nn.named import MODELS
    from ..optim.named import method
    from ..training.loggers import LOGGERS

    if not config.data.startswith(("folder:", "npz:")):
        _known("data set", [config.data], [*DATASETS, *OWN])
    if not is_factory(config.model):
        _known("model", [config.model], [*MODELS, "package.module:factory"])
        _known(f"option of {config.model}", config.model_options, MODELS[config.model].options)
    _known("augmentation", config.augment, AUGMENTATIONS)
    _known("corruption", config.corruptions, [*NAMES, "all"])
    _known("logger", [name for name in config.loggers if not is_factory(name)], LOGGERS)
    plan_of(config.measures)
    known_device(config.device)
    rho = {} if config.rho is None else {"rho": config.rho}
    return method(config.method, **{**config.method_options, **rho})


def _known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(unknown(what, name, known))


def known_device(name: str | None) -> None:
    """Raises unless torch can compute on a device of that name here."""
    import torch

    if name is None:
        return
    there = {"cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))}
    there |= {"cuda"} if torch.cuda.is_available() else set()
    there |= {"mps"} if torch.backends.mps.is_available() else set()
    _known("device", [name], there)
