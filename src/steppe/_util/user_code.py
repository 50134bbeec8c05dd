"""Users' own code, named `package.module:factory` and imported as `python -m` imports it, if the user names it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from .names import unknown


@contextmanager
def working_folder_first() -> Iterator[None]:
    """Put the working folder first on the import path in this block."""
    working = str(Path.cwd())
    sys.path.insert(0, working)
    try:
        yield
    finally:
        sys.path.remove(working)


def is_factory(name: object) -> bool:
    """Return whether a name is `package.module:factory`, for code outside steppe."""
    return ":" in str(name)


def check_trusted(file: Path, model: object, named: str | None, trust: bool) -> None:
    """Raise if a file names a factory as its model that the user has not named too.

    Importing a module runs its code, and a file from another user must not choose that code.

    Parameters
    ----------
    file
        The file that names the model.
    model
        The model that it names.
    named
        The model that the command line, the study's file or the caller names.
    trust
        Whether the user lets files name any factory.

    """
    if is_factory(model) and model != named and not trust:
        name = repr(str(model))
        raise ValueError(
            f"{file} names the model {name}: code outside steppe, not imported. Name it too (--model {name}, `model` "
            "in a study's base, model= in Python), or trust any code of the folder (--trust, trust=True)"
        )


def check_form(place: str, what: str) -> None:
    """Raise if a name is not `package.module:factory`; a file is named by its module."""
    module_name, _, path = place.partition(":")
    module = ".".join(Path(module_name.removesuffix(".py")).parts)
    if module_name.endswith(".py") or not all(part.isidentifier() for part in f"{module_name}.{path}".split(".")):
        named = all(part.isidentifier() for part in f"{module}.{path}".split("."))
        raise ValueError(
            f"a {what} of your own is written package.module:factory, and {place!r} is not of that form"
            + (f": write {module}:{path}" if named else "")
        )


def imported(place: str, what: str) -> Any:
    """Import the object that `package.module:name` names; it makes a `what`."""
    check_form(place, what)
    module_name, _, path = place.partition(":")
    try:
        with working_folder_first():
            target: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, and one that it imports does not: the message names that one
        raise ValueError(
            f"{place}: there is no module {error.name or module_name!r}, neither in {Path.cwd()} nor among the "
            "installed packages. Start from the folder that holds it, or install it."
        ) from error
    for name in path.split("."):
        if not hasattr(target, name):
            callables = [n for n in getattr(target, "__dict__", {}) if n[0] != "_" and callable(getattr(target, n))]
            where = getattr(target, "__qualname__", module_name)
            raise ValueError(f"{place}: in {where}, {unknown('factory', name, callables)}")
        target = getattr(target, name)
    if not callable(target):
        raise ValueError(f"{place} is a {type(target).__name__}: name a function or a class that makes a {what}")
    return target
