"""From the command line to a command, and from its answer or its trouble to stdout, stderr and an exit code."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from importlib import import_module

from .._util.names import unknown
from .._util.terminal import complain, say
from .answer import tell
from .command import Command, Common
from .pages import front
from .parsing import Asked, parse
from .trouble import FAILED, MISUSED, Misuse, asking, debugging, told

COMMANDS: Mapping[str, str] = {  # in the order of the page, with the module that has each
    "train": "train",
    "measure": "measure",
    "landscape": "landscape",
    "ensemble": "ensemble",
    "theory": "theory",
    "study run": "study",
    "study status": "study",
    "study report": "study",
    "study add-measure": "study",
    "report serve": "report",
    "data get": "data",
    "data check": "data",
    "data list": "data",
    "methods": "methods",
    "models": "models",
    "doctor": "doctor",
}
GROUPS: Mapping[str, str] = {
    "report": "The report of a study.",
    "study": "Studies: does sharpness predict generalisation in a pool of runs?",
    "data": "Data sets: get them, check them, list them.",
}
ABOUT = "steppe trains models towards flat minima and measures how flat they are."


def command(name: str) -> Command:
    """The command of that name; importing its module takes no torch."""
    made: Command = import_module(f".{COMMANDS[name]}", __package__).COMMANDS[name]
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs what was typed, and returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    with warnings.catch_warnings(), debugging("--debug" in words):
        return _main(words)


def _main(words: list[str]) -> int:
    name = "steppe"
    try:
        found = _found(words)
        if isinstance(found, str):
            say(found, end="")
            return 0
        name = f"steppe {found.name}"
        warnings.showwarning = lambda said, *_: complain(f"{name}: warning: {said}")
        asked = parse(found, words[len(found.name.split()) :])
        if isinstance(asked, str):
            say(asked, end="")
            return 0
        return _run(found, asked)
    except BrokenPipeError:  # the reader, such as head, has gone: nobody is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        code = told(error, name)
        if code == MISUSED:
            complain(f"{name} --help shows what there is.")
        return code


def _run(found: Command, asked: Asked) -> int:
    common: Common = asked.of(Common)
    with asking():
        settings = [asked.of(group) for group in found.settings]
    answer = found.run(*settings)
    if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
        tell(answer, common.json)
    return answer.code


def _found(words: Sequence[str]) -> Command | str:
    """The command that the words begin with, or the page of help that they ask for."""
    first = words[0] if words else "--help"
    if first in ("-h", "--help", "help"):
        return front("steppe", ABOUT, [(n, command(n).does) for n in COMMANDS])
    if first in ("--version", "version"):
        from .. import __version__

        return f"steppe {__version__}\n"
    if first not in GROUPS:
        if first not in COMMANDS:
            raise Misuse(unknown("command", first, dict.fromkeys(n.split()[0] for n in COMMANDS)))
        return command(first)
    second = words[1] if len(words) > 1 else "--help"
    inside = {n.removeprefix(f"{first} "): n for n in COMMANDS if n.startswith(f"{first} ")}
    if second in ("-h", "--help"):
        return front(f"steppe {first}", GROUPS[first], [(n, command(whole).does) for n, whole in inside.items()])
    if second not in inside:
        raise Misuse(unknown(f"command of `steppe {first}`", second, inside))
    return command(inside[second])
