"""Options of a command: the fields of dataclasses as jsonargparse arguments, set by flags or by one YAML file.

A field's docstring is its help text. Its metadata goes to `add_argument`: `metavar`, and `nargs` for an argument
without a flag.
"""

from __future__ import annotations

import json
import re
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from .._util.extras import installed
from .._util.measure_names import split_at_commas
from .._util.names import unknown
from .._util.types import alternatives, choices, words
from .errors import UsageError
from .option_files import read_mapping
from .output import Output

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

FLAG, DEFAULT = "flag", "default"  # sources of a value; any other source is the name of a file
METAVARS: Mapping[Any, str] = {int: "N", float: "NUMBER", str: "TEXT", dict: "MAPPING", list: "A,B"}
NOT_IN_FILES = ("config", "json", "debug", "dry_run", "trust")  # options about how a command runs, not about what
RENAMED = {"standardise": "normalise"}  # earlier names of options, which still work
# The values of a mapping, type by type. With Any in their place, jsonargparse reads {"class_path": "os.C"} as a class
# and imports it.
MAPPING = dict[str, dict | list | bool | int | float | str | None]  # type: ignore[type-arg]


@dataclass(frozen=True)
class Common:
    """Options of every command."""

    json: bool = False
    """print JSON on stdout and nothing else"""
    debug: bool = False
    """show the traceback of an error; so does STEPPE_DEBUG=1"""


@dataclass(frozen=True)
class File:
    """The option of commands that also read their options from a file."""

    config: str | None = field(default=None, metadata={"metavar": "FILE"})
    """a YAML file of options, with `data_root: data` for `--data-root data`; flags override the file"""


@dataclass(frozen=True)
class Sources:
    """Where each option comes from. It adds no option itself: a command that needs this lists it in its settings."""

    of: Mapping[str, str]  # by option: FLAG, DEFAULT or the name of a file

    def spelled(self, name: str) -> str:
        """Return an option as the user wrote it: as a flag, or as a key of a file."""
        return flag_of(name) if self.of[name] in (FLAG, DEFAULT) else f"{self.of[name]}: {name}"


@dataclass(frozen=True)
class Option:
    """One flag or positional argument of a command."""

    name: str  # also the key in a file
    type: Any
    default: Any
    help: str
    metadata: Mapping[str, Any]

    @property
    def flag(self) -> str | None:
        """The flag, or None for a positional argument."""
        return None if "nargs" in self.metadata else flag_of(self.name)

    @property
    def metavar(self) -> str:
        kinds = [get_origin(t) or t for t in alternatives(self.type)]
        if Literal in kinds:
            return "{" + ",".join(choices(self.type)) + "}"
        return str(self.metadata.get("metavar") or METAVARS[kinds[0]])

    def is_a(self, kind: type) -> bool:
        """Return whether the type is, or allows, values of this kind: bool, list or dict."""
        return any((get_origin(t) or t) is kind for t in alternatives(self.type))


@dataclass(frozen=True)
class Command:
    """A sub-command of `steppe`.

    Parameters
    ----------
    name
        The words after `steppe`.
    summary
        One line of help.
    settings
        Dataclasses whose fields are the options.
    run
        The function that runs the command. It takes one value of each of the settings.
    examples
        Command lines for the help page.
    in_core
        Whether the command also runs without the packages that parse options; it then has switches and texts only.

    """

    name: str
    summary: str
    settings: tuple[type, ...]
    run: Callable[..., Output]
    examples: Sequence[str] = ()
    in_core: bool = False

    def options(self, with_help: bool = True) -> dict[str, Option]:
        """Return the options by name; their help texts need a package of an extra."""
        options = {}
        for settings in (*self.settings, Common):
            if settings is Sources:
                continue
            types, helps = get_type_hints(settings), _help_texts(settings) if with_help else {}
            for f in fields(settings):
                default = f.default if f.default_factory is MISSING else f.default_factory()
                options[f.name] = Option(f.name, types[f.name], default, helps.get(f.name, ""), f.metadata)
        return options


@cache  # docstrings of fields are read from the source
def _help_texts(settings: type) -> Mapping[str, str]:
    """Return the help texts of the fields of a dataclass."""
    from docstring_parser import parse_from_object

    return {p.arg_name: " ".join((p.description or "").split()) for p in parse_from_object(settings).params}


@dataclass(frozen=True)
class Parsed:
    """The values of a command's options, and where each comes from."""

    values: Mapping[str, Any]
    sources: Sources

    def of(self, settings: type) -> Any:
        """Return the options of one dataclass, as a value of it."""
        if settings is Sources:
            return self.sources
        try:
            return settings(**{f.name: self.values[f.name] for f in fields(settings)})
        except ValueError as error:
            name, space, rest = str(error).partition(" ")
            if name not in self.values:
                raise
            raise UsageError(f"{self.sources.spelled(name)}{space}{rest}") from error


def flag_of(name: str) -> str:
    """Return the flag of an option."""
    return f"--{name.replace('_', '-')}"


def parse(command: Command, argv: Sequence[str]) -> Parsed | str:
    """Return the options set by the command line and by the file in `--config`, or the help page with `--help`."""
    if command.in_core and not installed("train"):
        return _parse_in_core(command, argv)
    options = command.options()
    arguments = list(_arguments(options, argv))
    file = next((word.partition("=")[2] for name, word in reversed(arguments) if name == "config"), None)
    in_file = read_options(file, options) if file is not None else {}
    parser = _parser(command, options, file, in_file)
    if any(name == "help" for name, _ in arguments):
        return str(parser.format_help())
    if in_file:
        parser.set_defaults(_checked(lambda: parser.parse_object(in_file, defaults=False), options, file))
    flags = [word for name, word in arguments if name]
    positional = [word for name, word in arguments if not name]
    values = _checked(lambda: parser.parse_args([*flags, *(["--", *positional] if positional else [])]), options, None)
    sources = dict.fromkeys(options, DEFAULT) | dict.fromkeys(in_file, str(file))
    return Parsed(values, Sources(sources | {name: FLAG for name, _ in arguments if name}))


def _parse_in_core(command: Command, argv: Sequence[str]) -> Parsed | str:
    """The same for switches and texts, without the packages that parse options and read their help texts."""
    options = command.options(with_help=False)
    values, sources = {o.name: o.default for o in options.values()}, dict.fromkeys(options, DEFAULT)
    for name, word in _arguments(options, argv):
        if name == "help":
            flags = [f"{o.flag}" if o.is_a(bool) else f"{o.flag} {o.metavar}" for o in options.values()]
            return f"usage: steppe {command.name} [options]\n\n{command.summary}\n\noptions: {', '.join(flags)}\n"
        if not name:
            raise UsageError(f"steppe {command.name} takes options only, not {word!r}")
        values[name] = not word.startswith("--no-") if options[name].is_a(bool) else word.partition("=")[2]
        sources[name] = FLAG
    return Parsed(values, Sources(sources))


def _arguments(options: Mapping[str, Option], argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield pairs of an option's name and one word for the parser; the name of a positional argument is empty.

    Adds to what argparse reads: underscores in flags, lists with commas, --switch=false, positional arguments between
    flags, and the nearest flag to one that does not exist.
    """
    flags = {o.flag: o for o in options.values() if o.flag}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if word == "--":
            yield from (("", word) for word in rest)
            return
        if word in ("-h", "--help"):
            yield "help", word
            continue
        if not word.startswith("-") or word == "-":
            yield "", word
            continue
        flag, equals, value = word.partition("=")
        head, dot, key = flag.partition(".")
        head = head.replace("_", "-")
        head = flag_of(RENAMED[head[2:]]) if head[2:] in RENAMED else head
        switch = flags.get(head.replace("--no-", "--", 1))
        if head.startswith("--no-") and switch and switch.is_a(bool) and not equals:
            yield switch.name, head
            continue
        option = flags.get(head.removesuffix("+"))  # --list+ VALUE of jsonargparse adds to a list
        if option is None or (dot and not option.is_a(dict)) or (head.endswith("+") and not option.is_a(list)):
            raise UsageError(unknown("option", flag, flags))
        if option.is_a(bool):
            if equals and value.lower() not in ("true", "false"):
                raise UsageError(f"{head} takes no value, or =true or =false, not {value!r}")
            yield option.name, head.replace("--", "--no-", 1) if value.lower() == "false" else head
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise UsageError(f"{head} takes {words(option.type)}, and no value follows it")
            value = rest.pop(0)
        if option.is_a(list) and not value.startswith("["):
            value = _bracketed(value, str in get_args(option.type))
        yield option.name, f"{head}{dot}{key}={value}"


def _bracketed(value: str, of_texts: bool) -> str:
    return json.dumps(split_at_commas(value)) if of_texts else f"[{value}]"


def _parser(
    command: Command, options: Mapping[str, Option], file: str | None, in_file: Mapping[str, Any]
) -> ArgumentParser:
    from jsonargparse import ActionYesNo, ArgumentParser

    positional = [
        f"[{o.metavar}{' ...' if o.metadata['nargs'] == '*' else ''}]" for o in options.values() if not o.flag
    ]
    parser = ArgumentParser(
        usage=" ".join(["steppe", command.name, *positional, "[options]"]),
        description=command.summary,
        epilog="examples:\n" + "\n".join(f"  {line}" for line in command.examples),
        formatter_class=RawDescriptionHelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    for o in options.values():
        text = (o.help + _default(o, file, in_file)).replace("%", "%%")
        if not o.flag:
            parser.add_argument(o.name, type=str, default=o.default, help=text, **o.metadata)
        elif o.is_a(bool):
            parser.add_argument(o.flag, action=ActionYesNo(no_prefix="no-"), default=o.default, help=text)
        else:
            kind = MAPPING if o.is_a(dict) else o.type
            parser.add_argument(o.flag, type=kind, default=o.default, help=text, metavar=o.metavar)
    return parser


def _default(option: Option, file: str | None, in_file: Mapping[str, Any]) -> str:
    """Return the value without a flag, for the help page."""
    value = in_file.get(option.name, option.default)
    if option.name not in in_file and (value is None or value is False or value in ([], {})):
        return ""
    text = ", ".join(map(str, value)) if isinstance(value, list) else value
    text = text if isinstance(text, str) else json.dumps(text, default=str)
    return f" (from {file}: {text})" if option.name in in_file else f" (default: {text})"


def _checked(parse: Callable[[], Namespace], options: Mapping[str, Option], file: str | None) -> dict[str, Any]:
    """Return the parsed values by name. Errors of jsonargparse become errors that name the flag or the file's key."""
    from jsonargparse import ArgumentError

    try:
        return dict(vars(parse()))
    except ArgumentError as error:
        place, message = f"{file}: " if file else "", str(error)
        key = re.search(r'Parser key "([^".]+)', message)
        value = re.search(r"(?:Got|Given) value: (.*)", message)
        if key is None or value is None or key[1] not in options:
            raise UsageError(place + message) from error
        option = options[key[1]]
        name = option.name if file else option.flag
        if choices(option.type):
            message = unknown(f"value of {name}", value[1], choices(option.type))
        else:
            message = f"{name} takes {words(option.type)}, not {value[1]!r}"
        raise UsageError(place + message) from error


def read_options(file: str, options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options in a YAML file, or in a run's run.yaml, which has them under `config`."""
    mapping = read_mapping(file)
    if isinstance(mapping.get("config"), dict):
        mapping = mapping["config"]
    mapping = {RENAMED.get(key, key): value for key, value in mapping.items()}
    names = [o.name for o in options.values() if o.flag and o.name not in NOT_IN_FILES]
    for key in mapping:
        if str(key).replace("-", "_") not in names:
            raise UsageError(f"{file}: " + unknown("option", str(key), names))
    return {str(key).replace("-", "_"): value for key, value in mapping.items()}
