"""Error messages for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

MOST = 130  # characters of the names that an error lists: about two lines of a terminal
LISTS = {
    "data set": "steppe data list",
    "logger": "steppe loggers",
    "measure": "steppe measures",
    "method": "steppe methods",
    "model": "steppe models",
    "recipe": "steppe reproduce --list",
    "study": "steppe theory",
    "setting": "steppe ensemble --help",  # those of `train`, and of ensembles
}
"""What lists all names of a kind; for options of a command its help page, which every error of that command names."""


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """A message with the unknown name, the nearest valid names, and all of them or what lists them."""
    names = sorted(valid)
    return f"there is no {what} {name!r}.{nearest(name, names)} {_listed(what, names)}"


def _listed(what: str, names: list[str]) -> str:
    if len(listed := ", ".join(names)) <= MOST:
        return f"There are: {listed or 'none'}."
    if what in LISTS:
        return f"There are {len(names)}: `{LISTS[what]}` lists them."
    return f"There are {len(names)}."


def nearest(name: str, valid: Iterable[str], cutoff: float = 0.5) -> str:
    """A question with the nearest valid names, in any case, its own words first; nothing if none is near."""
    names = list(valid)
    within = [one for one in map(str.lower, names) if len(one) > 3 and f"_{one}_" in f"_{name.lower()}_"]
    close = get_close_matches(name.lower(), dict.fromkeys(map(str.lower, names)), n=3, cutoff=cutoff)
    lower = dict.fromkeys([*sorted(within, key=len, reverse=True), *close])
    near = [other for one in lower for other in names if other.lower() == one][:3]
    *others, last = map(repr, near or [""])
    return f" Did you mean {', '.join(others)}{' or ' if others else ''}{last}?" if near else ""
