"""Help pages: of steppe, of groups of commands, and how those of single commands are laid out."""

from __future__ import annotations

import textwrap
from argparse import Action, RawDescriptionHelpFormatter
from collections.abc import Mapping, Sequence

from .._util.terminal import columns_of, wrapped

WIDTH = 80  # columns of a help page without a terminal, as argparse has it
PLACE = 20  # of a command's summary


def page(name: str, about: str, sections: Mapping[str, Mapping[str, str]]) -> str:
    """Return a page of commands with their summaries, by section."""
    lines = [f"usage: {name} COMMAND [options]", "", wrapped_to_screen(about)]
    for heading, commands in sections.items():
        lines += ["", f"{heading}:"] if commands else []
        for word, summary in commands.items():
            lines += textwrap.wrap(
                f"{f'  {word} ':<{PLACE}}{summary}",
                columns_of(WIDTH),
                subsequent_indent=" " * PLACE,
                break_on_hyphens=False,
            )
    return "\n".join([*lines, "", f"{name} COMMAND --help lists the options of a command.\n"])


def wrapped_to_screen(text: str) -> str:
    """Return a text with lines that fit the screen."""
    return wrapped(text, columns_of(WIDTH))


def epilog(examples: Sequence[str]) -> str:
    """Return the end of a command's page: its examples, each on several lines where it is longer than the screen."""
    lines = ["examples:"]
    for command in examples:
        parts = textwrap.wrap(
            f"  {command}",
            columns_of(WIDTH) - len(" \\"),
            subsequent_indent=" " * 6,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines.append(" \\\n".join(parts))
    return "\n".join(lines)


class HelpFormatter(RawDescriptionHelpFormatter):
    """Help pages with one spelling of each flag: without --list+ of jsonargparse, and --no-X only where X is usual."""

    def _format_action_invocation(self, action: Action) -> str:
        flags = [flag for flag in action.option_strings if not flag.endswith("+")]
        if len(flags) > 1 and flags[1].startswith("--no-") and action.default is False:
            flags = flags[:1]
        takes = action.metavar if flags and action.metavar and action.nargs != 0 else ""
        return f"{', '.join(flags)} {takes}".rstrip() if flags else super()._format_action_invocation(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)
