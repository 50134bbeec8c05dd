"""Optimizers by the name of their method, for configurations and short scripts."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from torch.optim import Optimizer

from ..core.arguments import check_no_parameters
from ..methods.registry import make
from .engine import SharpnessAware
from .misuse import check_base

P = ParamSpec("P")

ENGINE_OPTIONS = tuple(
    p.name for p in inspect.signature(SharpnessAware.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY
)


def build(name: str, base: Optimizer, **options: Any) -> SharpnessAware:
    """`SharpnessAware` around `base` with the method of that name.

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


def _checks_arguments(f: Callable[P, SharpnessAware]) -> Callable[P, SharpnessAware]:
    """`f`, with its own error for the arguments of other libraries, which Python would call too many."""

    @wraps(f)
    def checked(*args: P.args, **options: P.kwargs) -> SharpnessAware:
        check_no_parameters(f.__name__, args, options)
        return f(*args, **options)

    return checked


@_checks_arguments
def sam(base: Optimizer, rho: float = 0.05, **options: Any) -> SharpnessAware:
    """SAM around `base`: short for `build("sam", base, rho=rho)`.

    Parameters
    ----------
    base
        The optimizer that applies the gradient.
    rho
        The radius. Default: Foret et al. 2021, section 3.1.
    **options
        Other options of SAM, and keyword arguments of `SharpnessAware`.

    Examples
    --------
    >>> w = nn.Parameter(torch.ones(2))
    >>> opt = steppe.sam(torch.optim.SGD([w], lr=0.1), rho=0.1)
    >>> opt.param_groups[0]["rho"]
    0.1

    """
    return build("sam", base, rho=rho, **options)
