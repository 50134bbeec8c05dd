"""Commands and their options: dataclass fields as jsonargparse arguments, set by flags or by one YAML file.

A field's docstring is its help text. Its metadata goes to `add_argument`: `metavar`, and `nargs` for an argument
without a flag; with `options`, that argument is a file of options. A flag overrides the file, and that of a mapping
entry by entry; an entry also goes before the file's in the mappings that its metadata is `instead_of`. A dataclass with
a `heading` is a group of the help page, and its `headings` name groups of some of its fields.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from .._util.extras import installed
from .._util.formats import check_no_yaml_within, loader, yaml_in
from .._util.measure_names import split_at_commas
from .._util.names import unknown
from .._util.registry import Registry
from ..core.fields import alternatives, choices, words
from .help import HelpFormatter, epilog, wrapped_to_screen
from .mappings import merged, piece
from .output import Output, UsageError

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

Run = TypeVar("Run", bound=Callable[..., Output])

FLAG, DEFAULT = "flag", "default"  # sources of a value; any other source is the name of a file
METAVARS: Mapping[Any, str] = {int: "N", float: "NUMBER", str: "TEXT", dict: "MAPPING", list: "A,B"}
NOT_IN_FILES = ("config", "json", "debug", "dry_run", "trust", "yes")  # about how a command runs, not about what
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
class Option:
    """One flag or positional argument of a command: a field of a dataclass."""

    name: str  # also the key in a file
    type: Any
    default: Any
    metadata: Mapping[str, Any]
    settings: type  # the dataclass

    @property
    def help(self) -> str:
        """The docstring of the field; reading it needs a package of an extra."""
        return _help_texts(self.settings)[self.name]

    @property
    def heading(self) -> str:
        """The heading of the option's group on the help page; empty for the common one."""
        for heading, names in getattr(self.settings, "headings", {}).items():
            if self.name in names:
                return str(heading)
        return str(getattr(self.settings, "heading", ""))

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


@cache  # docstrings of fields are read from the source
def _help_texts(settings: type) -> Mapping[str, str]:
    from docstring_parser import parse_from_object

    return {p.arg_name: " ".join((p.description or "").split()) for p in parse_from_object(settings).params}


@dataclass(frozen=True)
class Command:
    """A sub-command of `steppe`.

    Parameters
    ----------
    name
        The words after `steppe`.
    run
        The function that runs the command. Its parameters are dataclasses, whose fields are the options, or `Parsed`.
        The first line of its docstring is the summary; its examples are command lines.
    takes_file
        Whether `--config` names a file of options.
    in_core
        Whether the command also runs without the packages that parse options; it then has switches and texts only.

    """

    name: str
    run: Callable[..., Output]
    takes_file: bool
    in_core: bool

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.run) or "").partition("\n")[0]

    @property
    def examples(self) -> list[str]:
        return (inspect.getdoc(self.run) or "").partition("Examples\n--------\n")[2].splitlines()

    @property
    def settings(self) -> list[type]:
        """The types of the function's parameters."""
        return [kind for name, kind in get_type_hints(self.run).items() if name != "return"]

    def options(self) -> dict[str, Option]:
        """Return the options by name."""
        options = {}
        groups = [settings for settings in self.settings if settings is not Parsed]
        for settings in (*groups, *([File] if self.takes_file else []), Common):
            types = get_type_hints(settings)
            for f in fields(settings):
                default = f.default if f.default_factory is MISSING else f.default_factory()
                options[f.name] = Option(f.name, types[f.name], default, f.metadata, settings)
        return options


REGISTRY: Registry[Command] = Registry("command", "steppe.commands")


def command(name: str, *, takes_file: bool = False, in_core: bool = False) -> Callable[[Run], Run]:
    """A decorator that makes a function a command, as `Command` describes."""

    def add(run: Run) -> Run:
        REGISTRY.add(name, Command(name, run, takes_file, in_core), run.__module__)
        return run

    return add


@dataclass(frozen=True)
class Parsed:
    """The values of a command's options, and where each comes from: FLAG, DEFAULT or the name of a file."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]

    def of(self, settings: type) -> Any:
        """Return the options of one dataclass, as a value of it."""
        if settings is Parsed:
            return self
        try:
            return settings(**{f.name: self.values[f.name] for f in fields(settings)})
        except ValueError as error:
            name, space, rest = str(error).partition(" ")
            if name not in self.values:
                raise
            raise UsageError(f"{self.spelled(name)}{space}{rest}") from error

    def spelled(self, name: str) -> str:
        """Return an option as the user wrote it: as a flag, or as a key of a file."""
        source = self.sources[name]
        return flag_of(name) if source in (FLAG, DEFAULT) else f"{source}: {name}"


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
    if any(o.metadata.get("options") for o in options.values()):
        file = next((word for name, word in arguments if not name), None)
    in_file = _read_options(file, options) if file is not None else {}
    names = {name for name, _ in arguments} | in_file.keys()
    if "help" in names:
        return str(_parser(command, options, file, in_file).format_help())
    instead_of = {n: options[n].metadata.get("instead_of", ()) for n, _ in arguments if n and options[n].is_a(dict)}
    arguments, in_file = merged(arguments, in_file, instead_of)
    parser = _parser(command, {n: o for n, o in options.items() if n in names or not o.flag}, file, in_file)
    if in_file:
        parser.set_defaults(_checked(lambda: parser.parse_object(in_file, defaults=False), options, file))
    flags = [word for name, word in arguments if name]
    positional = [word for name, word in arguments if not name]
    values = {o.name: o.default for o in options.values()}  # those that nobody gives need no parser
    values |= _checked(lambda: parser.parse_args([*flags, *(["--", *positional] if positional else [])]), options, None)
    sources = dict.fromkeys(options, DEFAULT) | dict.fromkeys(in_file, str(file))
    return Parsed(values, sources | {name: FLAG for name, _ in arguments if name})


def _parse_in_core(command: Command, argv: Sequence[str]) -> Parsed | str:
    """The same for switches and texts, without the packages that parse options and read their help texts."""
    options = command.options()
    values, sources = {o.name: o.default for o in options.values()}, dict.fromkeys(options, DEFAULT)
    for name, word in _arguments(options, argv):
        if name == "help":
            flags = [f"{o.flag}" if o.is_a(bool) else f"{o.flag} {o.metavar}" for o in options.values()]
            return f"usage: steppe {command.name} [options]\n\n{command.summary}\n\noptions: {', '.join(flags)}\n"
        if not name:
            raise UsageError(f"steppe {command.name} takes options only, not {word!r}")
        values[name] = not word.startswith("--no-") if options[name].is_a(bool) else word.partition("=")[2]
        sources[name] = FLAG
    return Parsed(values, sources)


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
        elif word.startswith("-") and word != "-":
            yield _flag(flags, word, rest)
        else:
            yield "", word


def _flag(flags: Mapping[str, Option], word: str, rest: list[str]) -> tuple[str, str]:
    """Return an option's name, and its flag with its value as one word; remove the value from the rest."""
    flag, equals, value = word.partition("=")
    head, dot, key = flag.partition(".")
    head = head.replace("_", "-")
    switch = flags.get(head.replace("--no-", "--", 1))
    if head.startswith("--no-") and switch and switch.is_a(bool) and not equals:
        return switch.name, head
    option = flags.get(head.removesuffix("+"))  # --list+ VALUE of jsonargparse adds to a list
    if option is None or (dot and not option.is_a(dict)) or (head.endswith("+") and not option.is_a(list)):
        raise UsageError(unknown("option", flag, flags))
    if option.is_a(bool):
        if equals and value.lower() not in ("true", "false"):
            raise UsageError(f"{head} takes no value, or =true or =false, not {value!r}")
        return option.name, head.replace("--", "--no-", 1) if value.lower() == "false" else head
    if not equals:
        if not rest or rest[0].startswith("--"):
            raise UsageError(f"{head} takes {words(option.type)}, and no value follows it")
        value = rest.pop(0)
    if option.is_a(dict):
        return option.name, f"{head}={piece(key, value) if dot else value}"
    if option.is_a(list) and not value.startswith("["):
        value = json.dumps(split_at_commas(value)) if str in get_args(option.type) else f"[{value}]"
    return option.name, f"{head}{dot}{key}={value}"


def _parser(
    command: Command, options: Mapping[str, Option], file: str | None, in_file: Mapping[str, Any]
) -> ArgumentParser:
    from jsonargparse import ActionYesNo, ArgumentParser

    positional = [
        f"[{o.metavar}{' ...' if o.metadata['nargs'] == '*' else ''}]" for o in options.values() if not o.flag
    ]
    parser = ArgumentParser(
        usage=" ".join(["steppe", command.name, *positional, "[options]"]),
        description=wrapped_to_screen(command.summary),
        epilog=epilog(command.examples),
        formatter_class=HelpFormatter,
        exit_on_error=False,
        allow_abbrev=False,
    )
    found = dict.fromkeys(o.heading for o in options.values() if o.heading)
    headings = {heading: parser.add_argument_group(heading) for heading in found}
    for o in options.values():
        place: Any = headings.get(o.heading, parser)
        text = (o.help + _default(o, file, in_file)).replace("%", "%%")
        if not o.flag:
            given = {name: value for name, value in o.metadata.items() if name != "options"}
            place.add_argument(o.name, type=str, default=o.default, help=text, **given)
        elif o.is_a(bool):
            place.add_argument(o.flag, action=ActionYesNo(no_prefix="no-"), default=o.default, help=text)
        else:
            kind = MAPPING if o.is_a(dict) else o.type
            place.add_argument(o.flag, type=kind, default=o.default, help=text, metavar=o.metavar)
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


def _read_options(file: str, options: Mapping[str, Option]) -> dict[str, Any]:
    """Return the options in a YAML file, or in a run's run.yaml, which has them under `config`."""
    mapping = read_mapping(file)
    if isinstance(mapping.get("config"), dict):
        mapping = mapping["config"]
    mapping = {str(key).replace("-", "_"): value for key, value in mapping.items()}
    names = [o.name for o in options.values() if o.flag and o.name not in NOT_IN_FILES]
    for key in mapping:
        if key not in names:
            raise UsageError(f"{file}: " + unknown("option", key, names))
    return mapping


def read_mapping(file: str) -> dict[Any, Any]:
    """The mapping in a YAML file: small, without aliases, each key once."""
    import yaml
    from jsonargparse import get_loader

    path = Path(file)
    if path.is_dir():
        inside = path / "run.yaml"
        hint = f" Did you mean {str(inside)!r}?" if inside.exists() else ""
        raise UsageError(f"{file!r} is a folder, and a YAML file is needed.{hint}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {file!r} to read options from (the working folder is {Path.cwd()})")
    try:
        mapping = yaml_in(path, get_loader("yaml"))  # reads 1e-3 as a number, which YAML 1.1 does not
        check_no_yaml_within(mapping, file)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise UsageError(f"{file}: an options file has lines such as `lr: 0.1`, and this is a {type(mapping).__name__}")
    keys = [key.value for key, _ in yaml.compose(path.read_text(encoding="utf-8"), Loader=loader()).value]
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{file}: {key!r} appears {keys.count(key)} times: keep one")
    return mapping
