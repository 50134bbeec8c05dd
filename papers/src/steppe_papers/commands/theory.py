"""`steppe theory`: closed forms beside simulations, by name: numbers, a figure and sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steppe.extend import Output, UsageError, command, table, ticking, usage_errors

from ..figures.registry import NAMED, Settings, check_path, find, save


@dataclass(frozen=True)
class Which:
    """Options of `steppe theory`."""

    name: str | None = field(default=None, metadata={"metavar": "NAME", "nargs": "?"})
    """a study; without one, lists them"""
    out: str | None = field(default=None, metadata={"metavar": "FILE|FOLDER"})
    """write the numbers (.json) and the figure (.html) into a folder, or beside a file of that name"""
    quick: bool = False
    """use smaller sizes"""
    seed: int = 0
    """seed of all random numbers"""
    sizes: dict[str, Any] = field(default_factory=dict)
    """sizes of the study, such as {"matrices": 10}"""


@command("theory")
def theory(which: Which) -> Output:
    """Show closed forms beside simulations: reproduced figures of papers, and checks of their formulas.

    Examples
    --------
    steppe theory
    steppe theory sharpbalance-figure-9 --out figures
    steppe theory wishart-moments --quick --json
    steppe theory sharpbalance-figure-2 --sizes.matrices 10 --seed 1

    """
    if which.name is None:
        rows = [{"name": name, "shows": entry.about, "paper": entry.paper} for name, entry in NAMED.items()]
        shown = table(("study", "shows", "paper"), (row.values() for row in rows), fold=("shows",))
        return Output(rows, [shown, "steppe theory NAME --out FOLDER writes its numbers and its figure."])
    with usage_errors():
        entry = find(which.name)
        if which.seed < 0:
            raise UsageError(f"--seed is 0 or more, not {which.seed}")
        if which.out is not None:
            check_path(which.out)
    with ticking(which.name, None) as tick:
        settings = Settings(which.seed, which.quick, which.sizes, tick)
        result = entry.load()(settings)
    files = [str(f) for f in save(result, which.name, which.out, settings)] if which.out is not None else []
    data = {"name": which.name, "words": list(result.words), "files": files, **result.plain()}
    return Output(data, [*result.words, *files])
