"""What can be known of a configuration before anything is read or built: a wrong value is answered at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .._util.names import unknown
from .config import Config

if TYPE_CHECKING:
    from ..core.probe import Method


def refuse_unknown(config: Config, spelled: Callable[[str], str] = str) -> Method:
    """Raises for a name that does not exist and for an option that its owner does not take; else returns the method.

    Parameters
    ----------
    config
        What a run is to follow from. A model or logger of the user's own is imported, and not made.
    spelled
        How the caller's user writes the name of a setting, such as `--method-options`.

    """
    from .._util.user_code import imported
    from ..data.augment import AUGMENTATIONS
    from ..data.corruptions import NAMES
    from ..data.named import DATASETS, OWN
    from ..measures.named import plan_of
    from ..nn.registry import refuse_options
    from .loggers import LOGGERS

    if not config.data.startswith(("folder:", "npz:")):
        _known("data set", [config.data], [*DATASETS, *OWN])
    with _naming(spelled("model_options"), " of "):
        refuse_options(config.model, config.model_options)
    _known("augmentation", config.augment, AUGMENTATIONS)
    _known("corruption", config.corruptions, [*NAMES, "all"])
    for name in config.loggers:
        if ":" in name:
            imported(name, "logger")
        else:
            _known("logger", [name], LOGGERS)
    with _naming(spelled("measures")):
        plan_of(config.measures)
    known_device(config.device)
    if config.method == "msam" and config.optimizer == "sgd" and not config.momentum:
        raise ValueError(f"msam looks ahead along SGD's momentum, and {spelled('momentum')} is 0: give one above 0")
    return method_of(config, spelled)


def method_of(config: Config, spelled: Callable[[str], str] = str) -> Method:
    """The method of a configuration with its options, without what only training adds."""
    from ..optim.registry import method

    options = dict(config.method_options)
    if config.rho is not None:
        if options.get("rho", config.rho) != config.rho:
            raise ValueError(
                f"{spelled('rho')} is {config.rho:g}, and rho in {spelled('method_options')} is {options['rho']!r}: "
                "give one of them"
            )
        options["rho"] = config.rho
    with _naming(spelled("method_options"), f" of {config.method}"):
        return method(config.method, **options)


def as_setting(error: Exception) -> str:
    """What the engine says of a step that is not finite, with the run's setting in the place of the engine's option."""
    return str(error).replace("SharpnessAware(..., on_nonfinite='skip')", "on_nonfinite skip (--on-nonfinite skip)")


@contextmanager
def _naming(setting: str, about: str = "") -> Iterator[None]:
    """Errors in here that speak of something inside a setting begin with the name of the setting."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{setting}: {error}" if about in str(error) else str(error)) from error


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
