"""Commands and their options: the fields of dataclasses, set by flags or by one YAML file.

A field's docstring is its help text, and its annotation says what it takes. Its metadata may have a `metavar`; with
`nargs` it is an argument without a flag, and with `options` that argument is a file of options. A flag overrides the
file, and that of a mapping entry by entry; an entry also goes before the file's in the mappings that its metadata is
`instead_of`. A dataclass with a `heading` is a group of the help page, and its `headings` name groups of some of its
fields.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from itertools import pairwise
from pathlib import Path
from textwrap import dedent
from types import NoneType
from typing import Any, Literal, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from .._util.formats import yaml_in, yaml_value
from .._util.measure_names import split_at_commas
from .._util.names import unknown
from .._util.registry import Registry
from ..core.fields import alternatives, choices, words
from .output import Output, UsageError

Run = TypeVar("Run", bound=Callable[..., Output])

FLAG, DEFAULT = "flag", "default"  # sources of a value; any other source is the name of a file
METAVARS: Mapping[Any, str] = {int: "N", float: "NUMBER", str: "TEXT", dict: "MAPPING", list: "A,B"}
NOT_IN_FILES = ("config", "json", "debug", "dry_run", "trust", "yes")  # about how a command runs, not about what
OUT = object()  # in place of the value of an entry that is taken out of a mapping


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
        """The docstring of the field."""
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
        if choices(self.type):
            return "{" + ",".join(choices(self.type)) + "}"
        kind = alternatives(self.type)[0]
        return str(self.metadata.get("metavar") or METAVARS[get_origin(kind) or kind])

    def is_a(self, kind: type) -> bool:
        """Return whether the type is, or allows, values of this kind: bool, list or dict."""
        return any((get_origin(t) or t) is kind for t in alternatives(self.type))

    def read(self, text: str) -> Any:
        """Return the value that a text on the command line stands for."""
        value: Any
        if self.is_a(str) or choices(self.type):
            value = None if text == "null" and self.is_a(NoneType) else text
        elif self.is_a(list) and not text.startswith("["):
            texts = split_at_commas(text)
            value = texts if str in get_args(self.type) else [yaml_value(one) for one in texts]
        elif self.is_a(bool):
            value = text == "true"
        else:
            value = yaml_value(text)
        return self.checked(value, str(self.flag), text)

    def checked(self, value: Any, name: str, written: Any = None) -> Any:
        """Return a value as the type has it; raise UsageError if it is of another, with what the user wrote."""
        for kind in alternatives(self.type):
            with suppress(TypeError, OverflowError):
                return _converted(value, kind)
        written = value if written is None else written
        if choices(self.type):
            raise UsageError(unknown(f"value of {name}", str(written), choices(self.type)))
        raise UsageError(f"{name} takes {words(self.type)}, not {written!r}")


def _converted(value: Any, kind: Any) -> Any:
    """The value as one of this type: a whole number may be a float too. Raises TypeError if it is none."""
    shape, inside = get_origin(kind) or kind, get_args(kind)
    if shape is Literal and value in inside:
        return value
    if shape is list and isinstance(value, list):
        return [_converted(item, inside[0]) for item in value]
    if shape is float and type(value) is int:
        return float(value)
    if type(value) is not shape:
        raise TypeError(f"{value!r} is no {shape}")
    return value


@cache
def _help_texts(settings: type) -> Mapping[str, str]:
    """The docstrings of the fields of a dataclass, each on one line, from the source."""
    [found] = ast.parse(dedent(inspect.getsource(settings))).body
    assert isinstance(found, ast.ClassDef)
    return {
        one.target.id: " ".join(str(text.value.value).split())
        for one, text in pairwise(found.body)
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
    }


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

    """

    name: str
    run: Callable[..., Output]
    takes_file: bool

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


def command(name: str, *, takes_file: bool = False) -> Callable[[Run], Run]:
    """A decorator that makes a function a command, as `Command` describes."""

    def add(run: Run) -> Run:
        REGISTRY.add(name, Command(name, run, takes_file), run.__module__)
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


class Flag(NamedTuple):
    """An option on the command line, its text, and its part: the key of a mapping's entry, or + to add to a list."""

    name: str
    text: str
    part: str = ""


def parse(command: Command, argv: Sequence[str]) -> Parsed | str:
    """Return the options set by the command line and by the file in `--config`, or the help page with `--help`."""
    options = command.options()
    flags, places = _split(options, argv)
    place = next((o for o in options.values() if not o.flag), None)
    several = place is not None and place.metadata["nargs"] == "*"
    if len(places) > 1 - (place is None) and not several:
        takes = "options only" if place is None else f"one {place.metavar}"
        raise UsageError(f"steppe {command.name} takes {takes}, not {' '.join(places)!r}")
    by_place = {place.name: places if several else places[0]} if place and places else {}
    files = [flag.text for flag in flags if flag.name == "config"]
    files += places if place and place.metadata.get("options") else []
    file = files[-1] if files else None
    in_file = {} if file is None else _read_options(file, options)
    if any(flag.name == "help" for flag in flags):
        from .help import page_of

        return page_of(command, options, file, in_file)
    values = {o.name: o.default for o in options.values()} | in_file | by_place
    changes = dict[str, dict[str, Any]]()
    for name, text, part in flags:
        if options[name].is_a(dict):
            changes.setdefault(name, {}).update(_entries(options[name], text, part))
        else:
            value = options[name].read(text)
            values[name] = [*values[name], *value] if part == "+" else value
    for name, entries in changes.items():
        for other in options[name].metadata.get("instead_of", ()):
            values[other] = {k: v for k, v in values[other].items() if entries.get(k, OUT) is OUT}
    for name, entries in changes.items():
        values[name] = _changed(values[name], entries, flag_of(name))
    sources = dict.fromkeys(options, DEFAULT) | dict.fromkeys(in_file, str(file))
    return Parsed(values, sources | dict.fromkeys([*by_place, *(flag.name for flag in flags)], FLAG))


def _split(options: Mapping[str, Option], argv: Sequence[str]) -> tuple[list[Flag], list[str]]:
    """Return the flags of a command line, and its arguments without a flag, which may stand anywhere."""
    by_flag = {o.flag: o for o in options.values() if o.flag}
    rest, flags, places = list(argv), list[Flag](), list[str]()
    while rest:
        word = rest.pop(0)
        if word == "--":
            return flags, places + rest
        if word in ("-h", "--help"):
            flags.append(Flag("help", ""))
        elif word.startswith("-") and word != "-":
            flags.append(_flag(by_flag, word, rest))
        else:
            places.append(word)
    return flags, places


def _flag(options: Mapping[str, Option], word: str, rest: list[str]) -> Flag:
    """Return a flag with its value, which leaves the rest: --lr 1, --no-capture, --model-options.width=8, --list+ a."""
    flag, equals, text = word.partition("=")
    head, dot, key = flag.partition(".")
    head = head.replace("_", "-")
    switch = options.get(head.replace("--no-", "--", 1))
    if head.startswith("--no-") and switch and switch.is_a(bool) and not equals:
        return Flag(switch.name, "false")
    option = options.get(head.removesuffix("+"))
    if option is None or (dot and not option.is_a(dict)) or (head.endswith("+") and not option.is_a(list)):
        raise UsageError(unknown("option", flag, options))
    if option.is_a(bool):
        if equals and text.lower() not in ("true", "false"):
            raise UsageError(f"{head} takes no value, or =true or =false, not {text!r}")
        return Flag(option.name, text.lower() or "true")
    if not equals:
        if not rest or rest[0].startswith("--"):
            raise UsageError(f"{head} takes {words(option.type)}, and no value follows it")
        text = rest.pop(0)
    return Flag(option.name, text, key or "+" * head.endswith("+"))


def _entries(option: Option, text: str, key: str) -> dict[str, Any]:
    """Return the entries that a flag gives a mapping: one, or those of A=X,B=Y or JSON; A= without a value is OUT."""
    if key:
        return {key: yaml_value(text) if text else OUT}
    if "=" not in text or text.lstrip().startswith("{"):
        return dict(option.read(text))
    pairs = [part.partition("=") for part in text.split(",")]
    found = {name.strip(): yaml_value(value) if value else OUT for name, equals, value in pairs if equals}
    if len(found) < len(pairs):
        raise UsageError(f"a mapping is written A=X,B=Y or as JSON, with each name once, and not {text!r}")
    return found


def _changed(before: Mapping[str, Any], entries: Mapping[str, Any], flag: str) -> dict[str, Any]:
    """Return a file's mapping with the entries of a flag; a mapping among them also replaces entries such as A.part."""
    found = dict(before)
    for name, value in entries.items():
        if value is OUT and name not in found:
            raise UsageError(f"{flag} {name}= takes an entry out, and " + unknown("entry", name, found))
        whole = isinstance(value, dict)
        found = {k: v for k, v in found.items() if k != name and not (whole and k.startswith(f"{name}."))}
        found |= {} if value is OUT else {name: value}
    return found


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
    return {key: options[key].checked(value, f"{file}: {key}") for key, value in mapping.items()}


def read_mapping(file: str) -> dict[Any, Any]:
    """The mapping in a YAML file: small, without aliases, each key once."""
    path = Path(file)
    if path.is_dir():
        inside = path / "run.yaml"
        hint = f" Did you mean {str(inside)!r}?" if inside.exists() else ""
        raise UsageError(f"{file!r} is a folder, and a YAML file is needed.{hint}")
    if not path.exists():
        raise FileNotFoundError(f"there is no file {file!r} to read options from (the working folder is {Path.cwd()})")
    try:
        mapping = yaml_in(path, typed=True)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if mapping is None:
        return {}
    if not isinstance(mapping, dict):
        raise UsageError(f"{file}: an options file has lines such as `lr: 0.1`, and this is a {type(mapping).__name__}")
    return mapping
