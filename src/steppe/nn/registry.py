"""Models by name: the reference models, and users' own as `package.module:factory`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from math import inf
from typing import Any, TypeVar

from torch import nn

from .._util.names import unknown
from .._util.registry import Registry
from .._util.user_code import imported, is_factory, working_folder_first


@dataclass(frozen=True)
class Architecture:
    """A reference model.

    Parameters
    ----------
    make
        Builds the model from the shape of a sample, the number of outputs, and options.
    about
        One line for `steppe models`.
    fixed
        Options that the name determines, such as the depth of "resnet20".
    defaults
        Options whose default differs from that of `make`.
    paper
        The paper that describes it, and what differs.
    published
        The number of parameters that is published for it, and for which options if for others.

    Examples
    --------
    >>> steppe.nn.MODELS["resnet20"].about, steppe.nn.MODELS["resnet20"].fixed
    ('ResNet-20 for CIFAR, thin, padded shortcuts', {'depth': 20})
    >>> steppe.nn.MODELS["mlp"].options
    {'width': 128, 'depth': 6}

    """

    make: Callable[..., nn.Module]
    about: str
    fixed: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""
    published: str = ""

    @property
    def options(self) -> dict[str, Any]:
        """The options and their defaults."""
        parameters = signature(self.make).parameters.items()
        return {
            name: self.defaults.get(name, p.default)
            for name, p in parameters
            if p.default is not p.empty and name not in self.fixed
        }


OTHERS = "Your own is package.module:factory; more (vgg19, wrn28-10, densenet121, ...) come with steppe-papers."
MODELS: Registry[Architecture] = Registry(
    "model", "steppe.models", ("steppe.nn.mlp", "steppe.nn.resnet", "steppe.nn.vit")
)
Make = TypeVar("Make", bound=Callable[..., nn.Module])


def register(name: str, about: str, **facts: Any) -> Callable[[Make], Make]:
    """A decorator that registers a function as what builds the model of that name.

    Parameters
    ----------
    name, about
        The name in `build`, studies and commands, and one line about the model.
    **facts
        What else is known, as in `Architecture`.

    Examples
    --------
    Above the function that makes it from `shape`, `outputs` and options:

    >>> described = steppe.nn.register("mlp", "six layers of 128 ReLUs, on rows of any shape")
    >>> steppe.nn.MODELS["mlp"].about
    'six layers of 128 ReLUs, on rows of any shape'

    """

    def add(make: Make) -> Make:
        MODELS.add(name, Architecture(make, about, **facts), make.__module__)
        return make

    return add


def build(name: str, shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    """Builds a model by its name.

    Parameters
    ----------
    name
        A name in `MODELS`, or `package.module:factory` for a user's own model.
    shape
        The shape of one sample, such as (3, 32, 32).
    outputs
        The number of outputs.
    **options
        Options of the model, such as `width=16`.

    Raises
    ------
    ValueError
        If the name or an option does not exist, or a value is of the wrong type.

    Examples
    --------
    >>> model = steppe.nn.build("mlp", shape=(1, 8, 8), outputs=10, width=4, depth=2)
    >>> model(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 10])
    >>> sum(p.numel() for p in model.parameters())  # 65 * 4 + 5 * 4 + 5 * 10
    330

    """
    shape = tuple(shape)
    if not shape or min(shape) < 1 or outputs < 1:
        raise ValueError(f"a model needs rows that are not empty and at least one output; got {shape}, {outputs}")
    if is_factory(name):
        return _user_model(name, shape, outputs, options)
    check_options(name, options)
    architecture = MODELS[name]
    return architecture.make(shape, outputs, **architecture.fixed, **{**architecture.defaults, **options})


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises if there is no such model or it does not take the options; does not call a user's factory."""
    if ":" in name:
        _factory_call(name, {"shape": (), "outputs": 1}, options)
        return
    if name not in MODELS:
        raise ValueError(f"{unknown('model', name, MODELS)} {OTHERS}")
    defaults = MODELS[name].options
    for option, value in options.items():
        if option not in defaults:
            raise ValueError(unknown(f"option of {name}", option, defaults))
        kind, valid = _checked(value, defaults[option])
        if not valid:
            raise ValueError(f"{option} of {name} is {kind}, such as {defaults[option]!r}; got {value!r}")


def _checked(value: Any, default: Any) -> tuple[str, bool]:
    """What a default's type allows, and whether a value is that: a wrong one raises here and not deep inside torch."""
    if isinstance(default, str):
        return "a string", isinstance(value, str)
    if isinstance(default, tuple):
        is_list = isinstance(value, list | tuple) and len(value) > 0
        return "a list of whole numbers above zero", is_list and all(_checked(v, default[0])[1] for v in value)
    if isinstance(default, float):
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return "a number of zero or more", is_number and 0 <= value < inf
    return "a whole number above zero", isinstance(value, int) and not isinstance(value, bool) and value > 0


# -- users' own models ------------------------------------------------------------------------------------------------


def _user_model(place: str, shape: tuple[int, ...], outputs: int, options: Mapping[str, Any]) -> nn.Module:
    """Calls a user's factory with the options, and with `shape` and `outputs` if it has parameters of these names."""
    factory, arguments = _factory_call(place, {"shape": shape, "outputs": outputs}, options)
    with working_folder_first():
        model = factory(**arguments)
    if not isinstance(model, nn.Module):
        raise ValueError(f"{place} returned a {type(model).__name__}, and a model is a torch.nn.Module: return one")
    return model


def _factory_call(place: str, provided: Mapping[str, Any], options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A user's factory and its arguments; raises for options that it does not take.

    `**kwargs` takes options but not the shape: factories often pass it on.
    """
    factory = imported(place, "model")
    if isinstance(factory, nn.Module):
        raise ValueError(
            f"{place} is a model already: name a function or a class that makes one, so that a seed decides its weights"
        )
    try:
        parameters = signature(factory).parameters.values()
    except ValueError:  # written in C, without a signature
        return factory, dict(options)
    names = [p.name for p in parameters if p.kind in {p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY}]
    if not any(p.kind is p.VAR_KEYWORD for p in parameters):
        for option in options:
            if option not in names:
                raise ValueError(unknown(f"option of {place}", option, names))
    arguments = {name: value for name, value in provided.items() if name in names} | dict(options)
    required = [p for p in parameters if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}]
    missing = [p.name for p in required if p.name not in arguments]
    if missing:
        raise ValueError(
            f"{place} cannot be called without {', '.join(missing)}: pass them as options of the model. "
            "Without options a factory gets only `shape` and `outputs`, by these names."
        )
    return factory, arguments
