"""Error messages for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """Return a message with the unknown name, the nearest valid names, and all of them."""
    names = sorted(valid)
    return f"there is no {what} {name!r}.{nearest(name, names)} There are: {', '.join(names) or 'none'}."


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a question with the nearest valid names, in any case, or nothing if none is near."""
    names = list(valid)
    lower = get_close_matches(name.lower(), dict.fromkeys(map(str.lower, names)), n=3, cutoff=0.4)
    near = [other for one in lower for other in names if other.lower() == one][:3]
    return f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
