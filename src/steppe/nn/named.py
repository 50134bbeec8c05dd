"""Models by name, and users' own by where they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from inspect import signature
from math import inf
from typing import Any

from torch import nn

from .._util.names import unknown
from .._util.user_code import is_factory
from .densenet import densenet121
from .diagonal import diagonal
from .elsewhere import called_with, made_elsewhere
from .mlp import mlp
from .pyramidnet import pyramidnet
from .resnet import cifar_resnet, resnet18
from .vgg import vgg19
from .vit import simple_vit, vit_small
from .wide_resnet import wide_resnet


@dataclass(frozen=True)
class Architecture:
    """A model by name: what makes it from a row's shape and a number of outputs, and what the name stands for."""

    make: Callable[..., nn.Module]
    about: str
    settled: Mapping[str, Any] = field(default_factory=dict)  # what the name says already, and nobody chooses
    preset: Mapping[str, Any] = field(default_factory=dict)  # what can be chosen, with another default than make's

    @property
    def options(self) -> dict[str, Any]:
        """What else can be chosen, with its default."""
        chosen = {name: p.default for name, p in signature(self.make).parameters.items() if p.default is not p.empty}
        return {name: self.preset.get(name, value) for name, value in chosen.items() if name not in self.settled}


def _cifar_resnet(depth: int) -> Architecture:
    return Architecture(cifar_resnet, f"ResNet-{depth} for CIFAR, thin, padded shortcuts", {"depth": depth})


def _wide(depth: int, width: int) -> Architecture:
    about = f"wide ResNet of {depth} layers, {width} times as wide"
    return Architecture(wide_resnet, about, {"depth": depth, "width": width})


def _pyramid(depth: int, block: str, alpha: float) -> Architecture:
    about = f"PyramidNet of {depth} layers in {block} blocks"
    return Architecture(pyramidnet, about, {"depth": depth, "block": block}, {"alpha": alpha})


MODELS: dict[str, Architecture] = {
    "mlp": Architecture(mlp, "six layers of 128 ReLUs, on rows of any shape"),
    "resnet18": Architecture(resnet18, "ResNet-18 of any width, 3x3 stem"),
    "resnet20": _cifar_resnet(20),
    "resnet32": _cifar_resnet(32),
    "resnet44": _cifar_resnet(44),
    "resnet56": _cifar_resnet(56),
    "resnet110": _cifar_resnet(110),
    "wrn28-10": _wide(28, 10),
    "wrn40-2": _wide(40, 2),
    "vgg19": Architecture(vgg19, "VGG-19 with batch norms and one linear layer"),
    "pyramidnet101": _pyramid(101, "bottleneck", 64.0),  # alpha: the code that Agnostic-SAM's authors build on
    "pyramidnet110": _pyramid(110, "basic", 48.0),  # Han et al. 2017, Table 4, which also has 84 and 270
    "pyramidnet272": _pyramid(272, "bottleneck", 200.0),  # Foret et al. 2021, who add ShakeDrop to it
    "densenet121": Architecture(densenet121, "DenseNet-121, 3x3 stem"),
    "simple-vit": Architecture(simple_vit, "SimpleViT: fixed positions, mean of the tokens, patches of 4 x 4"),
    "vit-small": Architecture(vit_small, "ViT-Small: class token, learned positions, patches of 4 x 4"),
    "diagonal": Architecture(diagonal, "diagonal linear network <x, u * v>"),
}


def build(name: str, shape: tuple[int, ...], outputs: int, **options: Any) -> nn.Module:
    """The model of that name, or of a user's `package.module:factory`, for rows of a shape and so many outputs."""
    shape = tuple(shape)
    if not shape or min(shape) < 1 or outputs < 1:
        raise ValueError(f"a model needs rows with something in them and at least one output; got {shape}, {outputs}")
    if is_factory(name):
        return made_elsewhere(name, shape, outputs, options)
    refuse_options(name, options)
    architecture = MODELS[name]
    return architecture.make(shape, outputs, **architecture.settled, **{**architecture.preset, **options})


def refuse_options(name: str, options: Mapping[str, Any]) -> None:
    """Raises unless there is a model of that name that takes these options; a user's own is imported, and not made."""
    if ":" in name:
        called_with(name, {"shape": (), "outputs": 1}, options)
        return
    if name not in MODELS:
        raise ValueError(unknown("model", name, MODELS) + " Your own is package.module:factory.")
    known = MODELS[name].options
    for option, value in options.items():
        if option not in known:
            raise ValueError(unknown(f"option of {name}", option, known))
        if not _alike(value, known[option]):
            raise ValueError(f"{option} of {name} is {_kind(known[option])}, such as {known[option]!r}; got {value!r}")


def _kind(default: Any) -> str:
    if isinstance(default, str):
        return "a word"
    if isinstance(default, tuple):
        return "a list of whole numbers above zero"
    return "a number above zero" if isinstance(default, float) else "a whole number above zero"


def _alike(value: Any, default: Any) -> bool:
    """Whether a value is of its default's kind, so that a slip is met here and not in the depths of torch."""
    if isinstance(default, str):
        return isinstance(value, str)
    if isinstance(default, tuple):
        return isinstance(value, list | tuple) and bool(value) and all(_alike(v, default[0]) for v in value)
    number = isinstance(value, int | float if isinstance(default, float) else int) and not isinstance(value, bool)
    return number and 0 < value < inf
