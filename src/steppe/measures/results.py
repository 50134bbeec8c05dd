"""What several measures found: as a mapping, as a table for people, as JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from typing import TYPE_CHECKING, Any

from .._util.json import json_safe
from .._util.terminal import cell, console
from .estimate import Cost, Estimate

if TYPE_CHECKING:
    from rich.table import Table  # rich is imported where it is used: it takes a quarter of a second


@dataclass(frozen=True)
class Results(Mapping[str, Estimate]):
    """Estimates by name, why others are missing, and what all of them cost together."""

    estimates: Mapping[str, Estimate]
    failures: Mapping[str, str] = field(default_factory=dict)
    cost: Cost = field(default_factory=Cost)

    def __getitem__(self, name: str) -> Estimate:
        if name in self.failures:
            raise KeyError(f"{name} has no value: {self.failures[name]}")
        return self.estimates[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.estimates)

    def __len__(self) -> int:
        return len(self.estimates)

    def table(self) -> Table:
        """One row a measure: value, error, kind, cost and time."""
        from rich import box
        from rich.table import Table

        total = (
            f"In all {self.cost}, {self.cost.seconds:.1f} s. Work that measures share is counted once, at the first."
        )
        table = Table(box=box.SIMPLE_HEAD, caption=total, caption_justify="left")
        for head in ("measure", "value", "error", "n", "kind", "cost", "time"):
            words = head in ("kind", "cost")
            justify: Any = "left" if words or head == "measure" else "right"
            table.add_column(head, justify=justify, no_wrap=not words, overflow="fold")
        for name, e in self.estimates.items():
            kind = ", ".join([e.kind, *([e.note] if e.note else []), *([] if e.complete else ["stopped early"])])
            error = f"{e.stderr:.2g}" if isfinite(e.stderr) and e.stderr else ""
            cells = (name, f"{e.value:.5g}", error, str(e.n), kind, str(e.cost), f"{e.cost.seconds:.2f} s")
            table.add_row(*map(cell, cells))
        for name, why in self.failures.items():
            table.add_row(*map(cell, (name, "none", "", "", why, "", "")))
        return table

    def __str__(self) -> str:
        page = console(width=110, no_color=True, highlight=False)
        with page.capture() as capture:
            page.print(self.table())
        return capture.get()

    def to_json(self) -> str:
        """Everything, with numbers that are not finite as null."""
        rows = {name: asdict(e) | {"interval": e.interval()} for name, e in self.estimates.items()}
        everything = {"estimates": rows, "failures": dict(self.failures), "cost": asdict(self.cost)}
        return json.dumps(json_safe(everything), indent=2)
