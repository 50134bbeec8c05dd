"""Users' own models: `package.module:factory`, imported as `python -m` imports it."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from torch import nn

from .._util.names import unknown
from .._util.user_code import imported, working_folder_first


def user_model(place: str, shape: tuple[int, ...], outputs: int, options: Mapping[str, Any]) -> nn.Module:
    """Calls a user's factory with the options, and with `shape` and `outputs` if it has parameters of these names."""
    factory, arguments = factory_call(place, {"shape": shape, "outputs": outputs}, options)
    with working_folder_first():
        model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{place} returned a {type(model).__name__}, and a model is a torch.nn.Module: return one")
    return model


def factory_call(place: str, ours: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A user's factory and its arguments; raises for options that it does not take."""
    factory = imported(place, "model")
    if isinstance(factory, nn.Module):
        raise ValueError(
            f"{place} is a model already: name a function or a class that makes one, so that a seed decides its weights"
        )
    return factory, _arguments(place, factory, ours, options)


def _arguments(place: str, factory: Any, ours: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a factory. `**kwargs` takes options but not the shape: factories often pass it on."""
    try:
        parameters = signature(factory).parameters
    except ValueError:  # written in C, without a signature
        return dict(options)
    takes_any = any(p.kind is Parameter.VAR_KEYWORD for p in parameters.values())
    named = [n for n, p in parameters.items() if p.kind in {Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY}]
    for option in options:
        if option not in named and not takes_any:
            raise ValueError(unknown(f"option of {place}", option, named))
    arguments = {n: v for n, v in ours.items() if n in named} | dict(options)
    missing = [n for n in parameters if n not in arguments and _is_required(parameters[n])]
    if missing:
        raise ValueError(
            f"{place} cannot be called without {', '.join(missing)}: pass them as options of the model. "
            "Without options a factory gets only `shape` and `outputs`, by these names."
        )
    return arguments


def _is_required(parameter: Parameter) -> bool:
    variadic = {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}
    return parameter.default is parameter.empty and parameter.kind not in variadic
