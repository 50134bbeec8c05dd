"""From words on the command line and a YAML file to the values of a command's options, and where each came from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from .._util.names import unknown
from .command import DEFAULT, FLAG, Command, Origins
from .files import read_options
from .options import Option
from .pages import page
from .trouble import Misuse

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

# What a mapping holds, type by type: in the place of Any, jsonargparse takes a value such as {"class_path": "os.C"} for
# a class, and imports it.
MAPPING = dict[str, dict | list | bool | int | float | str | None]  # type: ignore[type-arg]  # looked into no further


@dataclass(frozen=True)
class Asked:
    """A command's options as they are meant, and where each value comes from."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]  # FLAG, DEFAULT or the name of a file

    def of(self, settings: type) -> Any:
        """The options that belong to one dataclass, as a value of it."""
        if settings is Origins:
            return Origins(self.sources)
        try:
            return settings(**{f.name: self.values[f.name] for f in fields(settings)})
        except ValueError as error:
            name, space, rest = str(error).partition(" ")
            if name not in self.sources:
                raise
            raise Misuse(f"{Origins(self.sources).spelled(name)}{space}{rest}") from error


def parse(command: Command, words: Sequence[str]) -> Asked | str:
    """What was asked for, or the page of help if that was it."""
    options = {o.name: o for o in command.options()}
    spelled = list(_spelled(options, words))
    given = {w.key for w in spelled if w.tokens}
    file = next((w.value for w in reversed(spelled) if w.key == "config"), None)
    found = read_options(file, options) if file is not None else {}
    origins = dict.fromkeys(options, DEFAULT) | dict.fromkeys(found, str(file)) | dict.fromkeys(given, FLAG)
    if any(w.key == "help" for w in spelled):
        return page(command, list(options.values()), file, found)
    parser = _parser(options.values())
    if found:
        parser.set_defaults(_checked(lambda: parser.parse_object(dict(found)), options, file))
    tokens = [token for w in spelled for token in w.tokens]
    return Asked(_checked(lambda: parser.parse_args(tokens), options, None), origins)


@dataclass(frozen=True)
class _Word:
    """One option with its value, spelled for the parser."""

    key: str
    tokens: Sequence[str]
    value: str | None = None


def _spelled(options: Mapping[str, Option], words: Sequence[str]) -> Iterator[_Word]:
    """Words as the parser takes them: hyphens for underscores, lists in brackets; raises for flags that are not."""
    rest, loose = list(words), []
    while rest:
        word = rest.pop(0)
        if word == "--":
            loose += rest
            break
        if word in ("-h", "--help"):
            yield _Word("help", [])
        elif word.startswith("-") and word != "-":
            yield _option(options, word, rest)
        else:
            loose.append(word)
    places = [o for o in options.values() if o.number is not None]
    if len(loose) > len(places) and not any(o.number == "*" for o in places):
        raise Misuse(
            f"{loose[len(places)]!r} was not expected: {len(places) or 'nothing'} can be given without a flag. Flags "
            "start with --, and a list is one word with commas between"
        )
    yield _Word(places[0].name if loose else "", ["--", *loose] if loose else [])


def _option(options: Mapping[str, Option], word: str, rest: list[str]) -> _Word:
    flag, equals, value = word.partition("=")
    head, dot, inner = flag.partition(".")
    head = head.replace("_", "-")
    flags = {o.flag: o for o in options.values() if o.number is None}
    opposite = flags.get(f"--{head.removeprefix('--no-')}")
    if head.startswith("--no-") and opposite is not None and opposite.shape is bool and not equals:
        return _Word(opposite.name, [head])
    option = flags.get(head)
    if option is None or (dot and option.shape is not dict):
        raise Misuse(unknown("option", flag, flags))
    if option.shape is bool:
        if equals and value.lower() not in ("true", "false"):
            raise Misuse(f"{head} is given alone, or with =true or =false, not with {value!r}")
        return _Word(option.name, [head.replace("--", "--no-", 1) if value.lower() == "false" else head])
    if not equals:
        if not rest or rest[0].startswith("--"):
            raise Misuse(f"{head} takes {option.wanted}, and nothing was given")
        value = rest.pop(0)
    if option.shape is list and not value.startswith("["):
        parts = [v.strip() for v in value.split(",") if v.strip()]
        spelled = json.dumps(parts) if option.of_texts else f"[{value}]"
    else:
        spelled = value
    return _Word(option.name, [f"{head}{dot}{inner}={spelled}"], value)


def _parser(options: Iterable[Option]) -> ArgumentParser:
    from jsonargparse import ActionYesNo, ArgumentParser

    parser = ArgumentParser(exit_on_error=False, allow_abbrev=False, add_help=False)
    for o in options:
        if o.number is not None:
            parser.add_argument(o.name, nargs=o.number, type=str, default=o.default)
        elif o.shape is bool:
            parser.add_argument(o.flag, action=ActionYesNo(no_prefix="no-"), default=o.default)
        else:
            parser.add_argument(o.flag, type=MAPPING if o.shape is dict else o.type, default=o.default)
    return parser


def _checked(parse: Callable[[], Namespace], options: Mapping[str, Option], file: str | None) -> dict[str, Any]:
    """What the parser makes of values, its complaints in our words."""
    from jsonargparse import ArgumentError

    try:
        found = parse()
    except ArgumentError as error:
        raise Misuse(_complaint(str(error), options, file)) from error
    return {name: found[name] for name in options}


def _complaint(said: str, options: Mapping[str, Option], file: str | None) -> str:
    place = f"{file}: " if file else ""
    key, value = re.search(r'Parser key "([^".]+)', said), re.search(r"(?:Got|Given) value: (.*)", said)
    if key is None or value is None or key[1] not in options:
        return place + said
    option, got = options[key[1]], value[1]
    name = option.name if file else option.flag
    if option.choices:
        return place + unknown(f"value of {name}", got, option.choices)
    return f"{place}{name} takes {option.wanted}, not {got!r}"
