"""What a command says when something is wrong: one message and an exit code, and a traceback only on request."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from .._util.terminal import complain, say

FAILED, MISUSED, STOPPED = 1, 2, 130  # exit codes: it could not be done; asked for wrongly; Ctrl-C
DEBUG = "STEPPE_DEBUG"
EXPECTED = (OSError, ValueError, ImportError, ArithmeticError, RuntimeError)  # others are likely to be bugs


class Misuse(ValueError):
    """The command was asked for something that does not exist."""


@contextmanager
def asking() -> Iterator[None]:
    """Errors in here are about what was asked for, and not about the world."""
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:
        raise Misuse(message(error)) from error


@contextmanager
def debugging(on: bool) -> Iterator[None]:
    """Shows tracebacks in here, and in processes that are started in here."""
    before = os.environ.get(DEBUG)
    if on:
        os.environ[DEBUG] = "1"
    try:
        yield
    finally:
        if on:
            os.environ.pop(DEBUG)
        if before is not None:
            os.environ[DEBUG] = before


def trace(error: BaseException) -> None:
    """Prints the traceback of an error, if somebody wants to see it."""
    if os.environ.get(DEBUG, "") not in ("", "0"):
        say("".join(traceback.format_exception(error)), error=True)


def told(error: BaseException, command: str) -> int:
    """Says on stderr what went wrong, and returns the exit code."""
    trace(error)
    if isinstance(error, KeyboardInterrupt):
        complain(f"{command}: stopped")
        return STOPPED
    known = isinstance(error, EXPECTED)
    hint = "" if known else f" (unexpected {type(error).__name__}: --debug shows where)"
    complain(f"{command}: {message(error)}{hint}")
    return MISUSED if isinstance(error, Misuse) else FAILED


def message(error: BaseException) -> str:
    """What an error says, in a sentence that stands without its type."""
    if isinstance(error, KeyError):  # prints its argument in quotes
        return str(error.args[0]) if error.args else "a key is missing"
    if isinstance(error, OSError) and error.strerror:
        place = f" {error.filename!r}" if error.filename else ""
        return f"{error.strerror}:{place}" if place else error.strerror
    return str(error) or type(error).__name__
