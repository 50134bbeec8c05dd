"""Help pages, for steppe itself and for each command, without importing anything that takes time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shutil import get_terminal_size
from textwrap import wrap
from typing import Any

from .command import Command
from .options import Option

NARROW, WIDE = 60, 100  # columns between which a page follows the terminal
LEFT = 26  # columns at most for what is typed; its meaning stands to the right


def front(name: str, does: str, commands: Iterable[tuple[str, str]]) -> str:
    """The page of steppe, or of a group of commands."""
    lines = [f"usage: {name} COMMAND [options]", "", does, "", *_columns(list(commands))]
    return "\n".join([*lines, "", f"{name} COMMAND --help tells more."]) + "\n"


def page(command: Command, options: Sequence[Option], file: str | None, found: Mapping[str, Any]) -> str:
    """The page of a command: what it takes, and what holds where nothing is said."""
    places = [o for o in options if o.number is not None]
    usage = " ".join([f"usage: steppe {command.name}", *(f"[{o.metavar}{_dots(o)}]" for o in places), "[options]"])
    lines = [usage, "", *wrap(command.does, _width()), ""]
    lines += _columns([(o.metavar, o.text) for o in places])
    lines += [""] if places else []
    flags = [(_typed(o), o.text + _origin(o, file, found)) for o in options if o.number is None]
    lines += _columns([*flags, ("--help", "show this page")])
    lines += ["", "A switch is taken back by --no-, as in --no-json."]
    lines += ["", *(f"  {e}" for e in command.examples)]
    return "\n".join(lines) + "\n"


def _typed(option: Option) -> str:
    return f"{option.flag} {option.metavar}".strip()


def _dots(option: Option) -> str:
    return "" if option.number == "?" else " ..."


def _origin(option: Option, file: str | None, found: Mapping[str, Any]) -> str:
    """The value that holds unless a flag says otherwise, and where it comes from."""
    if option.name in found:
        return f" (from {file}: {_short(found[option.name])})"
    if option.default is None or option.default is False or option.default in ([], {}):
        return ""
    return f" (default: {_short(option.default)})"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value))
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _width() -> int:
    return min(max(get_terminal_size().columns, NARROW), WIDE)


def _columns(rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Two columns, the right one wrapped; what is too long for the left one gets a line of its own."""
    left = min(max((len(a) for a, _ in rows), default=0), LEFT)
    for typed, text in rows:
        lines = wrap(text, _width() - left - 4, break_on_hyphens=False, break_long_words=False) or [""]
        if len(typed) > left:
            yield f"  {typed}"
            typed = ""
        for k, line in enumerate(lines):
            yield f"  {typed if k == 0 else '':<{left}}  {line}".rstrip()
