"""A command: its name, its options, and the function that it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from .answer import Answer
from .options import Option, called, flag_of, options_of

FLAG, DEFAULT = "flag", "default"  # where a value comes from; otherwise it is the name of a file


@dataclass(frozen=True)
class Common:
    """What every command takes."""

    json: bool = False
    """print JSON on stdout and nothing else"""
    debug: bool = False
    """show the traceback of an error; so does STEPPE_DEBUG=1"""


@dataclass(frozen=True)
class File:
    """What commands take that read their options from a file too."""

    config: str | None = field(default=None, metadata=called("FILE"))
    """a YAML file of options, `data_root: data` for `--data-root data`; flags go before it"""


@dataclass(frozen=True)
class Origins:
    """No options: for commands that want to know where each of theirs comes from."""

    of: Mapping[str, str]  # FLAG, DEFAULT or the name of a file

    def spelled(self, name: str) -> str:
        """An option as its user wrote it: in a file, or as a flag."""
        return flag_of(name) if self.of[name] in (FLAG, DEFAULT) else f"{self.of[name]}: {name}"


@dataclass(frozen=True)
class Command:
    """What is typed after `steppe`, the dataclasses whose fields are its options, and what it does with them."""

    name: str
    does: str  # one line
    settings: tuple[type, ...]
    run: Callable[..., Answer]  # takes one value of each of the settings
    examples: Sequence[str] = ()

    @property
    def groups(self) -> tuple[type, ...]:
        return (*self.settings, Common)

    def options(self) -> Iterator[Option]:
        for group in self.groups:
            yield from options_of(group) if group is not Origins else ()
