"""Mappings on the command line, A=X,B=Y or JSON: they change the mapping of a file entry by entry."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._util.names import unknown
from .output import UsageError

OUT = object()  # in place of the value of an entry that is taken out
Words = list[tuple[str, str]]  # the name of an option, and its flag with its value


def merged(
    arguments: Words, in_file: Mapping[str, Any], instead_of: Mapping[str, Sequence[str]]
) -> tuple[Words, dict[str, Any]]:
    """Return the arguments with one word per mapping, which has the file's entries too, and the content of the file.

    Parameters
    ----------
    arguments
        Those of the command line.
    in_file
        The options of the file.
    instead_of
        The names of the mappings, and of others in which an entry of theirs goes before the file's.

    """
    others: Words = []
    texts = dict[str, list[str]]()
    for name, word in arguments:
        if name in instead_of:
            texts.setdefault(name, []).append(word)
        else:
            others.append((name, word))
    found, options = {name: _entries(words) for name, words in texts.items()}, dict(in_file)
    for name, entries in found.items():
        for other in instead_of[name]:
            if isinstance(entries, dict) and isinstance(options.get(other), dict):
                options[other] = {k: v for k, v in options[other].items() if entries.get(k, OUT) is OUT}
    for name, entries in found.items():
        flag = texts[name][0].partition("=")[0]
        others.append((name, f"{flag}={_changed(flag, entries, options.get(name, {}))}"))
    return others, options


def piece(name: str, value: str) -> str:
    """Return one entry as the text of a mapping; its value may have commas in it."""
    return _text({name: _read(value)}) if value else f"{name}="


def _entries(words: Iterable[str]) -> dict[str, Any] | str:
    """The entries that the command line gives a mapping; a text of it that is no mapping."""
    found = dict[str, Any]()
    for text in (word.partition("=")[2] for word in words):
        if "=" in text and not text.lstrip().startswith("{"):
            pairs = [part.partition("=") for part in text.split(",")]
            values = {name.strip(): _read(value) if value else OUT for name, equals, value in pairs if equals}
            if len(values) < len(pairs):
                raise UsageError(f"a mapping is written A=X,B=Y or as JSON, with each name once, and not {text!r}")
        elif not isinstance(values := _read(text), dict):
            return text
        found |= values
    return found


def _changed(flag: str, entries: dict[str, Any] | str, in_file: Mapping[str, Any]) -> str:
    """The file's entries and, over them, those of the command line; what is no mapping the parser refuses.

    An entry without a value, NAME=, is taken out. A mapping as a value also replaces entries such as NAME.part.
    """
    if isinstance(entries, str):
        return entries
    found = dict(in_file)
    for name, value in entries.items():
        if value is OUT and name not in found:
            raise UsageError(f"{flag} {name}= takes an entry out, and " + unknown("entry", name, found))
        whole = isinstance(value, dict)
        found = {k: v for k, v in found.items() if k != name and not (whole and k.startswith(f"{name}."))}
        found |= {} if value is OUT else {name: value}
    return _text(found)


def _text(entries: dict[str, Any]) -> str:
    """Entries as JSON, or as YAML where a number is not finite: the parser reads Infinity as a text, and .inf."""
    try:
        return json.dumps(entries, default=str, allow_nan=False)
    except ValueError:
        import yaml

        return str(yaml.safe_dump(entries, default_flow_style=True, sort_keys=False, width=1 << 20)).strip()


def _read(text: str) -> Any:
    """A value as in a YAML file; a text where it is none."""
    from jsonargparse import get_loader
    from yaml import YAMLError

    try:
        return get_loader("yaml")(text)
    except YAMLError:
        return text
