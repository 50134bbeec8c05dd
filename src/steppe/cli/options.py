"""The options of a command, read off a dataclass: its fields are the flags, the texts below them the help."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from textwrap import dedent
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

WORDS: Mapping[Any, tuple[str, str]] = {  # how a type is called in help and in messages
    int: ("N", "a whole number"),
    float: ("NUMBER", "a number"),
    str: ("TEXT", "a text"),
    bool: ("", "true or false"),
    dict: ("MAPPING", 'a mapping such as {"width": 16}'),
    list: ("A,B", "names with commas between"),
}


@dataclass(frozen=True)
class Option:
    """One flag, or one argument without a flag, of a command."""

    name: str  # as a key of a file
    type: Any
    default: Any
    text: str
    number: Literal["?", "*"] | None = None  # an argument without a flag: one at most, or any number of them
    word: str | None = None  # what stands for the value in the help

    @property
    def flag(self) -> str:
        return flag_of(self.name)

    @property
    def shape(self) -> Any:
        """The type without None and without what is in it: int, float, str, bool, dict, list or Literal."""
        plain = [t for t in get_args(self.type) if t is not NoneType] if self.optional else [self.type]
        return get_origin(plain[0]) or plain[0]

    @property
    def optional(self) -> bool:
        return get_origin(self.type) in (Union, UnionType) and NoneType in get_args(self.type)

    @property
    def choices(self) -> tuple[str, ...]:
        return get_args(self.type) if self.shape is Literal else ()

    @property
    def wanted(self) -> str:
        """What values it takes, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        words = WORDS[self.shape][1]
        if self.shape is list and not self.of_texts:
            words = f"{'whole ' if get_args(self.type)[0] is int else ''}numbers with commas between"
        return f"{words} or null" if self.optional else words

    @property
    def of_texts(self) -> bool:
        return self.shape is list and get_args(self.type)[0] is str

    @property
    def metavar(self) -> str:
        if self.choices:
            return "{" + ",".join(self.choices) + "}"
        return self.word or ("N,N" if self.shape is list and not self.of_texts else WORDS[self.shape][0])


def flag_of(name: str) -> str:
    """The flag of an option that a file calls `name`."""
    return f"--{name.replace('_', '-')}"


def one(word: str) -> dict[str, str]:
    """Marks a field that is given without a flag, by its place, and may be left out."""
    return {"number": "?", "word": word}


def many(word: str) -> dict[str, str]:
    """Marks a list that is given without a flag, by its place."""
    return {"number": "*", "word": word}


def called(word: str) -> dict[str, str]:
    """Marks a field whose value has a word of its own in the help."""
    return {"word": word}


def options_of(settings: type) -> list[Option]:
    """Every field of a dataclass as an option."""
    types, texts = get_type_hints(settings), texts_of(settings)
    return [
        Option(
            f.name,
            types[f.name],
            f.default if f.default_factory is MISSING else f.default_factory(),
            texts[f.name],
            f.metadata.get("number"),
            f.metadata.get("word"),
        )
        for f in fields(settings)
    ]


def texts_of(settings: type) -> dict[str, str]:
    """The texts that stand below the fields of a dataclass."""
    body = ast.parse(dedent(inspect.getsource(settings))).body[0]
    assert isinstance(body, ast.ClassDef)
    found = {}
    for line, below in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            said = below.value if isinstance(below, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                found[line.target.id] = " ".join(said.value.split())
    return found
