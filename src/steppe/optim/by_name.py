"""`steppe.optimizer`, and one function for each method, such as `steppe.asam`, which wraps an optimizer.

The functions are made from the registrations on first use. The stub beside this file lists them for type checkers and
editors; `python docs/tables.py` writes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import SGD, Optimizer
from torch.optim.optimizer import ParamsT

from ..core.probe import Method
from ..methods.registry import METHODS
from .build import from_parameters, function_name, wrapper
from .engine import SharpnessAware


class optimizer(Optimizer):  # noqa: N801  (called as a function; Lightning's CLI and the like ask for a class)
    """`SharpnessAware` from parameters and options, for configurations, registries and Lightning's CLI.

    Parameters
    ----------
    params
        The parameters, named parameters or parameter groups.
    base
        The class of the optimizer that applies the gradient, a function that makes one, or a name in `torch.optim`.
    method
        A name from `steppe.METHODS`, or a method.
    options
        The same as `**more`, for configurations that can name parameters of a signature only, such as Lightning's CLI.
    **more
        Options of the method, of the base and of `SharpnessAware`, each by its name.

    Examples
    --------
    >>> model = nn.Linear(2, 1)
    >>> opt = steppe.optimizer(model.parameters(), base=torch.optim.SGD, method="sam", lr=0.1, momentum=0.9, rho=0.05)
    >>> [opt.param_groups[0][name] for name in ("lr", "momentum", "rho")]
    [0.1, 0.9, 0.05]

    """

    def __new__(
        cls,
        params: ParamsT,
        base: type[Optimizer] | str = SGD,
        method: str | Method = "sam",
        options: dict[str, Any] | None = None,
        **more: Any,
    ) -> SharpnessAware:
        if twice := sorted((options or {}).keys() & more.keys()):
            raise ValueError(f"{twice[0]} is given twice, in options={options} and by itself: give it once")
        return from_parameters(params, base, method, {**(options or {}), **more})


def __getattr__(name: str) -> Callable[..., SharpnessAware]:
    for registered in METHODS.values():
        if function_name(registered) == name:
            globals()[name] = wrap = wrapper(registered)  # found at once from now on
            return wrap
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
