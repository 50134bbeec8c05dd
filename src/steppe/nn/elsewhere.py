"""Models that a user wrote: `package.module:factory`, found as `python -m` would find it."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from torch import nn

from .._util.names import unknown
from .._util.user_code import imported, working_folder_first


def made_elsewhere(place: str, shape: tuple[int, ...], outputs: int, options: Mapping[str, Any]) -> nn.Module:
    """What a user's factory makes: called with the options, and with `shape` and `outputs` where it names them."""
    factory, arguments = called_with(place, {"shape": shape, "outputs": outputs}, options)
    with working_folder_first():
        model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{place} made a {type(model).__name__}, and a model is a torch.nn.Module: return one from it")
    return model


def called_with(place: str, ours: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A user's factory, and what to call it with: options that it does not take are refused."""
    factory = imported(place, "model")
    if isinstance(factory, nn.Module):
        raise ValueError(
            f"{place} is a model already: name a function or a class that makes one, so that a seed decides its weights"
        )
    return factory, _arguments(place, factory, ours, options)


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
