"""Optimizers by the name of their method, around a base or from parameters, for configurations and short scripts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, get_type_hints

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from .._util.docstrings import parameter_docs
from .._util.names import unknown
from ..core.arguments import check_no_parameters
from ..core.probe import Method
from ..core.triple import TRIPLES, Triple
from ..methods.registry import Registered, accepted_options, make
from .engine import SharpnessAware
from .misuse import check_base

ENGINE_OPTIONS = tuple(
    p.name for p in inspect.signature(SharpnessAware.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY
)


def build(name: str, base: Optimizer, **options: Any) -> SharpnessAware:
    """`SharpnessAware` around `base`, with the method of that name.

    Parameters
    ----------
    name
        A name from `steppe.METHODS`.
    base
        The optimizer that applies the gradient.
    **options
        Options of the method, and keyword arguments of `SharpnessAware`.

    Examples
    --------
    >>> model = nn.Linear(2, 1)
    >>> opt = steppe.build("asam", torch.optim.SGD(model.named_parameters(), lr=0.1), rho=0.5, eta=0.01)
    >>> opt.param_groups[0]["rho"]
    0.5

    """
    if isinstance(name, str):  # else the arguments may be swapped, and the error about the name says so
        check_base(base)
    engine = {k: options.pop(k) for k in ENGINE_OPTIONS if k in options}
    method = make(name, options, also=ENGINE_OPTIONS)
    return SharpnessAware(base, method, **engine)


def from_parameters(
    params: ParamsT, base: Callable[..., Optimizer] | str, method: str | Method, options: dict[str, Any]
) -> SharpnessAware:
    """What `steppe.optimizer` makes: each option goes to the method, the base or the engine, whichever has it."""
    if isinstance(params, Optimizer) or isinstance(base, Optimizer):
        raise TypeError(
            "optimizer takes parameters and makes the base optimizer itself: to wrap one that you have, write "
            "steppe.sam(base, rho=0.05) or steppe.build(method, base)"
        )
    if isinstance(params, str):
        raise TypeError(
            "parameters come first: steppe.optimizer(model.parameters(), base=torch.optim.SGD, method='sam', lr=0.1)"
        )
    make_base = _base_of(base)
    of_engine = {k: options.pop(k) for k in ENGINE_OPTIONS if k in options}
    of_method = accepted_options(method) if isinstance(method, str) else ()
    of_base, takes_any = _parameters_of(make_base)
    if shared := sorted(options.keys() & set(of_method) & set(of_base)):
        raise ValueError(
            f"{shared[0]} is an option of {method} and of {_name_of(make_base)}: make the base first and write "
            f"steppe.build({method!r}, base, {shared[0]}=...)"
        )
    for option in options:
        if option not in of_method and option not in of_base and not takes_any:
            both = f"{method if isinstance(method, str) else type(method).__name__} with {_name_of(make_base)}"
            raise ValueError(unknown(f"option of {both}", option, [*of_method, *of_base, *ENGINE_OPTIONS]))
    mine = {k: v for k, v in options.items() if k in of_method}
    made = make_base(params, **{k: v for k, v in options.items() if k not in of_method})
    if isinstance(method, str):
        return build(method, made, **mine, **of_engine)
    return SharpnessAware(made, method, **of_engine)


def _base_of(base: Callable[..., Optimizer] | str) -> Callable[..., Optimizer]:
    if not isinstance(base, str):
        return base
    kinds = {n: x for n, x in vars(torch.optim).items() if isinstance(x, type) and issubclass(x, Optimizer)}
    name = base.removeprefix("torch.optim.")
    if name not in kinds:
        raise ValueError(unknown("optimizer in torch.optim", name, kinds.keys() - {"Optimizer"}))
    return kinds[name]


def _parameters_of(make_base: Callable[..., Optimizer]) -> tuple[list[str], bool]:
    """The names of the options of a class of optimizers, and whether it takes any others too."""
    try:
        _, *rest = inspect.signature(make_base).parameters.values()
    except (ValueError, TypeError):
        return [], True
    return [p.name for p in rest if p.kind is not p.VAR_KEYWORD], any(p.kind is p.VAR_KEYWORD for p in rest)


def _name_of(make_base: Callable[..., Optimizer]) -> str:
    return getattr(make_base, "__name__", type(make_base).__name__)


def function_name(registered: Registered) -> str:
    """The name of the function that wraps an optimizer with a method: agnostic_sam of agnostic-sam."""
    return registered.name.replace("-", "_")


def signature_of(registered: Registered) -> inspect.Signature:
    """The base, the options of the method, and those of `SharpnessAware`, with the types that users pass."""
    kind = inspect.Parameter
    types = {**get_type_hints(SharpnessAware.__init__), **get_type_hints(registered.make)}  # without ranges
    of_engine = inspect.signature(SharpnessAware).parameters
    parameters = [kind("base", kind.POSITIONAL_OR_KEYWORD, annotation=Optimizer)]
    for p in (*registered.__signature__.parameters.values(), *(of_engine[name] for name in ENGINE_OPTIONS)):
        typed, default = types[p.name], p.default
        if typed is Triple:  # which has names, shorter than its text
            typed = Triple | str | Mapping[str, Any]
            default = next((name for name, triple in TRIPLES.items() if triple is default), default)
        parameters.append(p.replace(annotation=typed, default=default))
    return inspect.Signature(parameters, return_annotation=SharpnessAware)


def wrapper(registered: Registered) -> Callable[..., SharpnessAware]:
    """The function that wraps an optimizer with a method, with a signature and a docstring of its own."""
    name, signature = function_name(registered), signature_of(registered)
    positional = [p for p in signature.parameters.values() if p.name not in ENGINE_OPTIONS]
    # `build` names the nearest option to one that does not exist
    loose = inspect.Signature([*positional, inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)])

    def wrap(*args: Any, **options: Any) -> SharpnessAware:
        check_no_parameters(name, args, options)
        if not args and "base" not in options:
            raise TypeError(
                f"{name} wraps an optimizer: write steppe.{name}(base, ...). The method alone is "
                f"steppe.method({registered.name!r}, ...)"
            )
        given = loose.bind(*args, **options).arguments
        return build(registered.name, given.pop("base"), **given.pop("options", {}), **given)

    wrap.__name__ = wrap.__qualname__ = name
    wrap.__module__ = f"{__package__}.by_name"  # where a process that unpickles it finds it
    wrap.__signature__ = signature  # type: ignore[attr-defined]
    wrap.__annotations__ = {p.name: p.annotation for p in signature.parameters.values()} | {"return": SharpnessAware}
    wrap.__doc__ = _docstring(registered, signature)
    return wrap


def _docstring(registered: Registered, signature: inspect.Signature) -> str:
    texts = parameter_docs(SharpnessAware) | registered.parameter_docs()
    texts["base"] = "The optimizer that applies the gradient."
    paper = f" ({registered.paper})" if registered.paper else ""
    momentum = ", momentum=0.9" if registered.needs_momentum else ""
    return "\n".join([
        f"Wrap an optimizer with {registered.name}{paper}: {registered.does}.",
        "",
        "Parameters",
        "----------",
        *(line for p in signature.parameters for line in (p, f"    {texts[p]}")),
        "",
        "Examples",
        "--------",
        ">>> model = nn.Linear(2, 1)",
        f">>> base = torch.optim.SGD(model.parameters(), lr=0.1{momentum})",
        f">>> opt = steppe.{function_name(registered)}(base, model=model)",
        f">>> opt.method == steppe.method({registered.name!r})",
        "True",
        "",
    ])  # fmt: skip
