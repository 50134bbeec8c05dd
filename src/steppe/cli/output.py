"""What a command prints: its result as JSON or as tables and sentences, or its error; and its exit code."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .._util.files import write_text
from .._util.formats import json_safe
from .._util.terminal import ANY_WIDTH, columns_of, complain, console, say, table, wrapped

__all__ = [
    "DEBUG", "FAILED", "MISUSED", "STOPPED", "TRY_AGAIN", "Output", "UsageError", "debugging", "message",
    "print_output", "print_traceback", "report_error", "stop_code", "table", "to_json", "usage_errors", "write_text",
]  # fmt: skip

# exit codes: the command failed; wrong usage; stopped, rerun it to resume (EX_TEMPFAIL of sysexits.h); Ctrl-C
FAILED, MISUSED, TRY_AGAIN, STOPPED = 1, 2, 75, 130
DEBUG = "STEPPE_DEBUG"
EXPECTED = (OSError, ValueError, ImportError, ArithmeticError, RuntimeError)  # any other type is likely to be a bug
PIPE_WIDTH = 160  # columns without a terminal: enough for one line per row of a table


@dataclass(frozen=True)
class Output:
    """Result of a command.

    Parameters
    ----------
    data
        The result as JSON values, for --json.
    shown
        The result as strings and tables.
    errors
        Lines for stderr.
    code
        The exit code.

    """

    data: Any
    shown: Sequence[Any] = ()
    errors: Sequence[str] = ()
    code: int = 0


def print_output(output: Output, as_json: bool) -> None:
    """Print the result on stdout and the errors on stderr."""
    if as_json:
        say(to_json(output.data))
    elif output.shown:
        screen = console(width=columns_of(PIPE_WIDTH))
        for item in output.shown:
            if hasattr(item, "__rich_console__"):
                screen.print(item, crop=False)
            else:
                say(wrapped(str(item), columns_of(ANY_WIDTH)))
    sys.stdout.flush()
    for line in output.errors:
        complain(line)


def to_json(data: Any) -> str:
    """Return values as JSON text: paths and other types as strings, numbers that are not finite as null."""
    return json.dumps(json_safe(data, str), indent=2, allow_nan=False)


class UsageError(ValueError):
    """The command line or the options file is wrong."""


@contextmanager
def usage_errors(*kinds: type[Exception]) -> Iterator[None]:
    """Turn errors of these types into usage errors; by default all that are about names and values."""
    turned = kinds or (ValueError, TypeError, LookupError)
    try:
        yield
    except turned as error:
        raise UsageError(message(error)) from error


@contextmanager
def debugging(on: bool) -> Iterator[None]:
    """Show tracebacks in this block, and in processes that it starts."""
    before = os.environ.get(DEBUG, "")
    os.environ[DEBUG] = "1" if on else before
    try:
        yield
    finally:
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


def stop_code(reason: object) -> int:
    """Return the exit code of a command that a signal stopped; the reason names the signal."""
    return STOPPED if "SIGINT" in str(reason) else TRY_AGAIN


def message(error: BaseException) -> str:
    """Return the message of an error, readable without its type."""
    if isinstance(error, KeyError):  # str() adds quotes
        return str(error.args[0]) if error.args else "a key is missing"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {error.filename!r}" if error.filename else error.strerror
    return str(error) or type(error).__name__
