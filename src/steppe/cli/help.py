"""Help pages: of steppe, of groups of commands, and of single commands."""

from __future__ import annotations

import json
import textwrap
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._util.terminal import columns_of, wrapped

if TYPE_CHECKING:
    from .options import Command, Option

WIDTH = 80  # columns of a help page without a terminal, as argparse has it
PLACE = 20  # of a command's summary


def page(name: str, about: str, sections: Mapping[str, Mapping[str, str]]) -> str:
    """Return a page of commands with their summaries, by section."""
    lines = [f"usage: {name} COMMAND [options]", "", wrapped(about, columns_of(WIDTH))]
    for heading, commands in sections.items():
        lines += ["", f"{heading}:"] if commands else []
        for word, summary in commands.items():
            lines += _filled(f"{f'  {word} ':<{PLACE}}{summary}", PLACE)
    return "\n".join([*lines, "", f"{name} COMMAND --help lists the options of a command.\n"])


def page_of(command: Command, options: Mapping[str, Option], file: str | None, in_file: Mapping[str, Any]) -> str:
    """Return the page of a command, with the values of a file of options."""
    places = [f"[{o.metavar}{' ...' * (o.metadata['nargs'] == '*')}]" for o in options.values() if not o.flag]
    examples = (" \\\n".join(_filled(f"  {line}", 6, len(" \\"))) for line in command.examples)
    parser = ArgumentParser(
        usage=" ".join(["steppe", command.name, *places, "[options]"]),
        description=wrapped(command.summary, columns_of(WIDTH)),
        epilog="\n".join(["examples:", *examples]),
        formatter_class=_Formatter,
    )
    groups = {h: parser.add_argument_group(h) for h in dict.fromkeys(o.heading for o in options.values()) if h}
    for o in options.values():
        place: Any = groups.get(o.heading, parser)
        text = (o.help + _default(o, file, in_file)).replace("%", "%%")
        if not o.flag:
            place.add_argument(o.name, metavar=o.metavar, nargs=o.metadata["nargs"], help=text)
        elif o.is_a(bool):  # --no-X only where X is usual
            flags = [o.flag] if o.default is False else [o.flag, f"--no-{o.flag.removeprefix('--')}"]
            place.add_argument(*flags, action="store_true", help=text)
        else:
            place.add_argument(o.flag, metavar=o.metavar, help=text)
    return parser.format_help()


def _default(option: Option, file: str | None, in_file: Mapping[str, Any]) -> str:
    """The value without a flag."""
    value = in_file.get(option.name, option.default)
    if option.name not in in_file and (value is None or value is False or value in ([], {})):
        return ""
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    text = text if isinstance(text, str) else json.dumps(text, default=str)
    return f" (from {file}: {text})" if option.name in in_file else f" (default: {text})"


def _filled(text: str, indent: int, spare: int = 0) -> list[str]:
    """The lines of a text on the screen, whose words stay whole."""
    width = columns_of(WIDTH) - spare
    return textwrap.wrap(text, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


class _Formatter(RawDescriptionHelpFormatter):
    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)
