"""Tables of README and docs, made from registrations: `python docs/tables.py` writes them, a test says if they are old.

A table stands between `<!-- NAME: docs/tables.py -->` and `<!-- end -->`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import steppe
from steppe.core.triple import TRIPLES

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/speed.md", "docs/measures.md")
OPTIONAL = {"sharpbalance": " In ensembles, steps are captured until rows are exchanged"}


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell != "---" else cell for cell in line) + "|\n" for line in lines)


def written(value: Any) -> str:
    """A value as a user writes it, without arguments that are defaults."""
    if any(value is triple for triple in TRIPLES.values()):
        return next(name for name, one in vars(steppe.core.triple).items() if one is value)
    if not is_dataclass(value):
        return repr(value)
    said, named = [], False
    for number, f in enumerate(fields(value)):
        usual = f.default_factory() if f.default_factory is not MISSING else f.default
        mine = getattr(value, f.name)
        if mine == usual and not (isinstance(value, steppe.Ball) and not number):
            named = True
        else:
            said.append(f"{f.name}={written(mine)}" if named else written(mine))
    return f"{type(value).__name__}({', '.join(said)})"


def made_by(name: str) -> str:
    """The expression that makes a method with its defaults."""
    make, method = steppe.METHODS[name].make, steppe.method(name)
    if getattr(steppe, make.__name__, None) is make:
        return f"{make.__name__}()"
    usual = not any(f.default is MISSING and f.default_factory is MISSING for f in fields(method))
    return f"{type(method).__name__}()" if usual and type(method)() == method else written(method)


def methods() -> str:
    heads = ("name in `build`", "class", "what it does", "passes per step", "paper")
    rows = steppe.METHODS.items()
    return table(heads, ((f"`{n}`", f"`{made_by(n)}`", m.does, m.usual_passes(), m.paper) for n, m in rows))


def captured() -> str:
    """Methods by how their steps are captured as CUDA graphs."""
    groups: dict[str, list[str]] = {}
    for name in steppe.METHODS:
        patterns = [steppe.method(name).pattern(step) for step in range(1, 1000)]
        kinds = set(patterns) - {None}
        if not kinds:
            text = "no: the host decides something at every step." + OPTIONAL.get(name, "")
        elif None in patterns:
            text = "all steps except those that renew the mask"
        elif len(kinds) > 1:
            text = f"one graph for each of the {len(kinds)} kinds of steps"
        elif steppe.METHODS[name].sets_lr:
            text = "every step but the first; the step size is computed on the GPU and stays there"
        else:
            text = "every step"
        groups.setdefault(text, []).append(f"`{name}`")
    return table(("methods", "captured"), ((", ".join(names), text) for text, names in groups.items()))


def measures() -> str:
    """Measures with their variants, which differ in the name alone."""
    groups: dict[str, list[steppe.measures.registration.Registered]] = {}
    for one in steppe.MEASURES.values():
        groups.setdefault(one.does, []).append(one)
    rows = []
    for does, same in groups.items():
        papers = "; ".join(dict.fromkeys(one.paper for one in same if one.paper))
        names = ", ".join(f"`{one.name}`" for one in same)
        rows.append((names, does.replace("|", "\\|"), same[0].kind, same[0].cost, papers))
    return table(("name", "is", "kind", "cost", "paper"), rows)


TABLES: dict[str, Callable[[], str]] = {"methods": methods, "captured": captured, "measures": measures}


def current(page: Path) -> str:
    """The page with its tables as they are made now."""

    def fresh(found: re.Match[str]) -> str:
        return f"<!-- {found[1]}: docs/tables.py -->\n\n{TABLES[found[1]]()}\n<!-- end -->"

    return re.sub(r"<!-- (\w+): docs/tables.py -->\n.*?<!-- end -->", fresh, page.read_text(), flags=re.DOTALL)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(current(ROOT / page))
