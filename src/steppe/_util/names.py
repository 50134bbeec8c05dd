"""Error messages for unknown names."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def unknown(what: str, name: str, valid: Iterable[str]) -> str:
    """Return a message with the unknown name, the nearest valid names, and all of them."""
    names = sorted(valid)
    near = get_close_matches(name, names, n=3, cutoff=0.4)
    hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return f"there is no {what} {name!r}.{hint} There are: {', '.join(names) or 'none'}."
