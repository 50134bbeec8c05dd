"""Entry point: finds the command, parses its options, runs it, and prints its output or its error."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module

from .._util.environment import SAFE_PATH, environment
from .._util.extras import explained, require
from .._util.names import unknown
from .._util.terminal import complain, say
from .help import page
from .options import REGISTRY, Command, Common, Parsed, parse
from .output import FAILED, MISUSED, UsageError, debugging, print_output, report_error, usage_errors

COMMANDS: Sequence[str] = (  # of steppe itself, in the order of the help page
    "train", "compare", "compare status", "compare report", "compare resume", "measure", "landscape", "ensemble",
    "study init", "study run", "study status", "study report",
    "study add-measure", "report serve", "data get", "data check", "data list", "methods", "measures", "models",
    "loggers", "doctor",
)  # fmt: skip
ELSEWHERE: Mapping[str, str] = dict.fromkeys(("reproduce", "theory"), "steppe-papers")
"""Commands of the project's other distribution, which registers them as any package does."""
MODULES = {"report": "study"} | dict.fromkeys(
    ("methods", "measures", "models", "loggers"), "listings"
)  # of other names
GROUPS: Mapping[str, str] = {
    "report": "The report of a study.",
    "study": "Studies: does sharpness predict generalisation in a pool of runs?",
    "data": "Data sets: download, check and list them.",
}
SECTIONS: Mapping[str, Sequence[str]] = {  # of the help page, by the first words of commands
    "train and measure": ("train", "measure", "landscape", "ensemble"),
    "compare and study": ("compare", "study", "report"),
    "papers": ("reproduce", "theory"),
    "look up": ("data", "methods", "measures", "models", "loggers", "doctor"),
}
NO_EXTRA = ("methods", "measures", "models", "doctor")
EXTRA_OF: Mapping[str, str] = dict.fromkeys(NO_EXTRA, "") | dict.fromkeys(
    ("compare", "landscape", "reproduce", "theory", "study", "report"), "study"
)
"""The extra that a command needs, by its first word; others need `train`."""
ABOUT = "steppe trains models towards flat minima and measures how flat they are."


def load_command(name: str) -> Command:
    """Return the command of that name; its module does not import torch."""
    if name in COMMANDS:
        first = name.split(maxsplit=1)[0]
        import_module(f".{MODULES.get(first, first)}", __package__)
    elif name in ELSEWHERE and name not in REGISTRY:
        raise ModuleNotFoundError(f"`steppe {name}` is a command of {ELSEWHERE[name]}: pip install {ELSEWHERE[name]}")
    return REGISTRY[name]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (by default `sys.argv`) and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    with environment(SAFE_PATH), warnings.catch_warnings(), debugging("--debug" in argv):
        return _main(argv)


def _main(argv: Sequence[str]) -> int:
    name = "steppe"
    try:
        with explained():
            selected = _select(argv)
        if isinstance(selected, str):
            say(selected, end="")
            return 0
        name = f"steppe {selected.name}"
        warnings.showwarning = lambda text, *_: complain(f"{name}: warning: {text}")
        extra = EXTRA_OF.get(selected.name.split()[0], "train")
        with explained(extra):
            require(extra)
            parsed = parse(selected, argv[len(selected.name.split()) :])
            if isinstance(parsed, str):
                say(parsed, end="")
                return 0
            with usage_errors():
                settings = [parsed.of(group) for group in selected.settings]
            _check_not_torchrun(selected, parsed)
            output = selected.run(*settings)
        if os.environ.get("RANK", "0") == "0":  # one of several processes prints
            print_output(output, parsed.of(Common).json)
        return output.code
    except BrokenPipeError:  # the reader of stdout, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (Exception, KeyboardInterrupt) as error:
        code = report_error(error, name)
        if code == MISUSED:
            complain(f"{name} --help lists the options." if name != "steppe" else "steppe --help lists the commands.")
        return code


def _check_not_torchrun(selected: Command, parsed: Parsed) -> None:
    """Raise for several processes of a command that starts its own: they would write the same files."""
    size = os.environ.get("WORLD_SIZE", "1") if "RANK" in os.environ else "1"
    for name, instead in (("workers", "--workers"), ("processes", "--how processes --processes")):
        if name in parsed.values and size != "1":
            raise UsageError(
                f"torchrun started {size} processes of `steppe {selected.name}`, which starts its own: start it once, "
                f"without torchrun, with {instead} {size}"
            )


def _select(argv: Sequence[str]) -> Command | str:
    """Return the command that the first words name, or the help page or version."""
    first, second = [*argv, "--help", "--help"][:2]
    if first in ("--version", "version"):
        from .. import __version__

        return f"steppe {__version__}\n"
    if first in ("-h", "--help", "help"):
        known = dict.fromkeys([*COMMANDS, *ELSEWHERE, *REGISTRY])
        sections = {heading: [n for n in known if n.split()[0] in firsts] for heading, firsts in SECTIONS.items()}
        placed = {name for names in sections.values() for name in names}
        sections["of other packages"] = [name for name in known if name not in placed]
        return page("steppe", ABOUT, {heading: _summaries(names) for heading, names in sections.items()})
    if first in GROUPS:
        inside = {n.removeprefix(f"{first} "): n for n in COMMANDS if n.startswith(f"{first} ")}
        if second in ("-h", "--help"):
            summaries = dict(zip(inside, _summaries(inside.values()).values(), strict=True))
            return page(f"steppe {first}", GROUPS[first], {"commands": summaries})
        if second not in inside:
            raise UsageError(unknown(f"command of `steppe {first}`", second, inside))
        return load_command(inside[second])
    if first not in COMMANDS and first not in ELSEWHERE and first not in REGISTRY:
        raise UsageError(unknown("command", first, {n.split()[0] for n in [*COMMANDS, *ELSEWHERE, *REGISTRY]}))
    return load_command(name if (name := f"{first} {second}") in COMMANDS else first)


def _summaries(names: Iterable[str]) -> dict[str, str]:
    """What commands do, by name; of those that are not installed, how to install them."""
    missing = {name: f"(pip install {package})" for name, package in ELSEWHERE.items() if name not in REGISTRY}
    return {name: missing[name] if name in missing else load_command(name).summary for name in names}
