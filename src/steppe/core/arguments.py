"""Checks of arguments that several classes share; an error says what was passed and what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Sized
from functools import wraps
from numbers import Real
from typing import Any, NoReturn, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

Make = TypeVar("Make", bound=Callable[..., Any])


def described(x: Any) -> str:
    """An argument in words, on one line."""
    if isinstance(x, type):
        return f"the class {x.__name__}"
    if inspect.isroutine(x):
        return f"the function {x.__name__}"
    if inspect.isgenerator(x) or (isinstance(x, list | tuple) and x and isinstance(x[0], Tensor | dict)):
        return "parameters"
    if isinstance(x, nn.Module | Optimizer):
        return f"{type(x).__name__}"  # its own text has many lines
    if isinstance(x, Sized) and not isinstance(x, str):
        return f"{type(x).__name__} of {len(x)}"
    text, kind = " ".join(repr(x).split()), type(x).__name__
    return (text if text.startswith(kind) else f"{kind} {text}")[:80]


class InitSignature:
    """The `__signature__` of a class whose `__new__` takes anything: that of its `__init__`."""

    def __get__(self, instance: object, owner: type) -> inspect.Signature:
        signature = inspect.signature(owner.__init__)  # type: ignore[misc]
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def check_no_parameters(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raises for parameters and an optimizer class, which other SAM optimizers take, as arguments of `name`."""
    kinds = [x for x in (*args[1:], *options.values()) if isinstance(x, type) and issubclass(x, Optimizer)]
    if kinds:
        _wrap_first(name, "parameters and an optimizer class", f"torch.optim.{kinds[0].__name__}")


def check_not_an_optimizer_call(name: str, args: Sequence[Any], options: Mapping[str, Any]) -> None:
    """Raises for a method that is called as if it were an optimizer: its arguments are a radius and the like."""
    check_no_parameters(name, args, options)
    x = args[0] if args else None
    if isinstance(x, Optimizer):
        _wrap_first(name, "an optimizer", "")
    if isinstance(x, type) and issubclass(x, Optimizer):
        _wrap_first(name, "an optimizer class", f"torch.optim.{x.__name__}")
    first = x[0] if isinstance(x, list | tuple) and x else None
    group = isinstance(first, dict) and "params" in first
    if inspect.isgenerator(x) or isinstance(first, nn.Parameter) or group:
        _wrap_first(name, "parameters", "torch.optim.SGD")


def without_parameters(f: Make) -> Make:
    """A function that makes a method, with the error of `check_not_an_optimizer_call`, not one of Python."""

    @wraps(f)
    def checked(*args: Any, **options: Any) -> Any:
        check_not_an_optimizer_call(f.__name__, args, options)
        return f(*args, **options)

    return checked  # type: ignore[return-value]


def _wrap_first(name: str, given: str, kind: str) -> NoReturn:
    """Raises with the code that works: one call if parameters were given, a wrapper for an optimizer."""
    plain = name in ("sam", "SAM", "SharpnessAware")
    method = '"sam", lr=0.1, rho=0.05' if plain else f"steppe.{name}(...), lr=0.1"
    wrapped = "sam(base, rho=0.05)" if plain else f"SharpnessAware(base, steppe.{name}(...))"
    if not kind:
        raise TypeError(f"{name} was given {given}: wrap it,\n    opt = steppe.{wrapped}")
    raise TypeError(
        f"{name} was given {given}: write\n    opt = steppe.optimizer(model.parameters(), {kind}, method={method})\n"
        f"or wrap an optimizer that has them, opt = steppe.{wrapped}"
    )


def check_instance(what: str, x: Any) -> None:
    """Raise for a class in the place of an instance of it."""
    if isinstance(x, type):
        raise TypeError(f"{what} must be an instance, not the class {x.__name__}: write {x.__name__}()")


def check_nonnegative(numbers: Any, what: str = "a radius rho") -> Any:
    """Returns a number, or several; raises for one below 0. Does not read tensors, which would synchronize."""
    for x in numbers if isinstance(numbers, list | tuple) else [numbers]:
        if not isinstance(x, Tensor) and not (isinstance(x, Real) and float(x) >= 0):
            raise ValueError(f"{what} is a number, 0 or more, not {x!r}")
    return numbers
