"""Errors of a command: one message on stderr and an exit code; a traceback only with --debug."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from .._util.terminal import complain, say

FAILED, MISUSED, STOPPED = 1, 2, 130  # exit codes: the command failed; wrong usage; Ctrl-C
DEBUG = "STEPPE_DEBUG"
EXPECTED = (OSError, ValueError, ImportError, ArithmeticError, RuntimeError)  # any other type is likely to be a bug


class UsageError(ValueError):
    """The command line or the options file is wrong."""


@contextmanager
def usage_errors() -> Iterator[None]:
    """Turn errors about names and values in this block into usage errors."""
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:
        raise UsageError(message(error)) from error


@contextmanager
def debugging(on: bool) -> Iterator[None]:
    """Show tracebacks in this block, and in processes that it starts."""
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


def print_traceback(error: BaseException) -> None:
    """Print the traceback of an error if --debug or STEPPE_DEBUG is on."""
    if os.environ.get(DEBUG, "") not in ("", "0"):
        say("".join(traceback.format_exception(error)), error=True)


def report_error(error: BaseException, command: str) -> int:
    """Print an error on stderr and return the exit code."""
    print_traceback(error)
    if isinstance(error, KeyboardInterrupt):
        complain(f"{command}: stopped")
        return STOPPED
    hint = "" if isinstance(error, EXPECTED) else f" (unexpected {type(error).__name__}: --debug shows where)"
    complain(f"{command}: {message(error)}{hint}")
    return MISUSED if isinstance(error, UsageError) else FAILED


def message(error: BaseException) -> str:
    """Return the message of an error, readable without its type."""
    if isinstance(error, KeyError):  # str() adds quotes
        return str(error.args[0]) if error.args else "a key is missing"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
    return str(error) or type(error).__name__
