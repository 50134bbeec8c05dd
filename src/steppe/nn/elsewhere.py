"""Models that a user wrote: `package.module:factory`, found as `python -m` would find it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from ..names import unknown


def made_elsewhere(place: str, shape: tuple[int, ...], outputs: int, options: Mapping[str, Any]) -> nn.Module:
    """What a user's factory makes: called with the options, and with `shape` and `outputs` where it names them."""
    with _working_folder_first():
        factory = _factory(place)
        model = factory(**_arguments(place, factory, {"shape": shape, "outputs": outputs}, options))
    if not isinstance(model, nn.Module):
        raise ValueError(f"{place} made a {type(model).__name__}, and a model is a torch.nn.Module: return one from it")
    return model


@contextmanager
def _working_folder_first() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _factory(place: str) -> Any:
    module_name, _, path = place.partition(":")
    if not all(part.isidentifier() for part in f"{module_name}.{path}".split(".")):
        raise ValueError(f"a model of your own is written package.module:factory, and {place!r} is not of that form")
    found: Any = _module(module_name, place)
    for name in path.split("."):
        if not hasattr(found, name):
            callables = [n for n in getattr(found, "__dict__", {}) if n[0] != "_" and callable(getattr(found, n))]
            where = getattr(found, "__qualname__", module_name)
            raise ValueError(f"{place}: in {where}, {unknown('factory', name, callables)}")
        found = getattr(found, name)
    if isinstance(found, nn.Module):
        raise ValueError(
            f"{place} is a model already: name a function or a class that makes one, so that a seed decides its weights"
        )
    if not callable(found):
        raise ValueError(f"{place} is a {type(found).__name__}: name a function or a class that makes a model")
    return found


def _module(name: str, place: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or f"{name}.".startswith(f"{error.name}."):
            raise ValueError(
                f"{place}: there is no module {error.name or name!r}, neither in {Path.cwd()} nor among the installed "
                "packages. Start from the folder that holds it, or install it."
            ) from error
        raise  # the module is there, and something that it imports is not: its own message says so


def _arguments(place: str, factory: Any, ours: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """What to call a factory with. `**anything` takes options, but not the shape: it is often passed on to others."""
    try:
        parameters = signature(factory).parameters
    except ValueError:  # written in C, with nothing to read: it gets what was asked for
        return dict(options)
    anything = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    named = [n for n, p in parameters.items() if p.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}]
    for option in options:
        if option not in named and not anything:
            raise ValueError(unknown(f"option of {place}", option, named))
    given = {n: v for n, v in ours.items() if n in named} | dict(options)
    missing = [n for n in parameters if n not in given and _must_be_given(parameters[n])]
    if missing:
        raise ValueError(
            f"{place} cannot be called without {', '.join(missing)}: give what is missing as options of the model. "
            "By itself a factory gets only `shape` and `outputs`, by these names."
        )
    return given


def _must_be_given(parameter: Parameter) -> bool:
    whatever_comes = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return parameter.default is parameter.empty and parameter.kind not in whatever_comes
