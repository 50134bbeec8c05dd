"""Checks of a configuration before anything is read or built."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .._util.names import unknown
from .config import Config

if TYPE_CHECKING:
    from ..core.probe import Method


def refuse_unknown(config: Config, spelled: Callable[[str], str] = str) -> Method:
    """Raise ValueError for unknown names and for options that their owner does not have; else return the method.

    Parameters
    ----------
    config
        The run. A user's own model or logger is imported, and not built.
    spelled
        How the user writes the name of a setting, such as `--method-options`; errors use it.

    """
    from .._util.user_code import imported, is_factory
    from ..data.augment import AUGMENTATIONS
    from ..data.corruptions import NAMES
    from ..data.registry import DATASETS, OWN
    from ..measures.registry import resolve_measures
    from ..nn.registry import refuse_options
    from .records import LOGGERS

    if not config.data.startswith(("folder:", "npz:")):
        _check("data set", [config.data], [*DATASETS, *OWN])
    with _prefixed(spelled("model_options"), " of "):
        refuse_options(config.model, config.model_options)
    _check("augmentation", config.augment, AUGMENTATIONS)
    _check("corruption", config.corruptions, [*NAMES, "all"])
    for name in config.loggers:
        if is_factory(name):
            imported(name, "logger")
        else:
            _check("logger", [name], LOGGERS)
    with _prefixed(spelled("measures")):
        resolve_measures(config.measures)
    known_device(config.device)
    if config.method == "msam" and config.optimizer == "sgd" and not config.momentum:
        raise ValueError(f"msam looks ahead along SGD's momentum, and {spelled('momentum')} is 0: give one above 0")
    return method_of(config, spelled)


def method_of(config: Config, spelled: Callable[[str], str] = str) -> Method:
    """Return the method with the options of a configuration, without those that training adds."""
    from ..methods.registry import method

    options = dict(config.method_options)
    if config.rho is not None:
        if options.get("rho", config.rho) != config.rho:
            raise ValueError(
                f"{spelled('rho')} is {config.rho:g}, and rho in {spelled('method_options')} is {options['rho']!r}: "
                "give one of them"
            )
        options["rho"] = config.rho
    with _prefixed(spelled("method_options"), f" of {config.method}"):
        return method(config.method, **options)


def as_setting(error: Exception) -> str:
    """Return the engine's message about a non-finite step with the run's setting instead of the engine's option."""
    return str(error).replace("SharpnessAware(..., on_nonfinite='skip')", "on_nonfinite skip (--on-nonfinite skip)")


def known_device(name: str | None) -> None:
    """Raise ValueError unless this machine has a device of that name."""
    import torch

    if name is None:
        return
    devices = {"cpu", *(f"cuda:{k}" for k in range(torch.cuda.device_count()))}
    devices |= {"cuda"} if torch.cuda.is_available() else set()
    devices |= {"mps"} if torch.backends.mps.is_available() else set()
    _check("device", [name], devices)


@contextmanager
def _prefixed(setting: str, about: str = "") -> Iterator[None]:
    """Put the name of the setting before errors that contain `about`."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{setting}: {error}" if about in str(error) else str(error)) from error


def _check(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(unknown(what, name, known))
