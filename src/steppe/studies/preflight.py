"""What can be known of a study before it starts: names, options, data and users' factories, each looked at once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..training.config import Config
from .cell import Cell
from .plan import Study


def refuse_wrong(study: Study, planned: Sequence[Cell], also: Sequence[str] = ()) -> None:
    """Raises for a measure, a name or an option that does not exist, in any cell."""
    from ..measures.registry import resolve_measures
    from ..training.validate import refuse_unknown

    resolve_measures([*study.measures, *also])
    seen = set()
    for cell in planned:
        if _is_run(cell):  # trained already; what its folder says is not asked for here
            continue
        c = Config(**cell.config)
        told = repr((c.method, c.rho, c.method_options, c.optimizer, c.momentum, c.model, c.model_options, c.data))
        told += repr((c.augment, c.corruptions, c.device))
        if told not in seen:
            refuse_unknown(c)
            seen.add(told)


def refuse_missing(needed: Sequence[Cell]) -> None:
    """Raises unless the data of these cells can be read."""
    from ..data.registry import load

    for name, root in dict.fromkeys((c.config["data"], c.config["data_root"]) for c in needed):
        load(name, root)


def _is_run(cell: Cell) -> bool:
    return cell.checkpoint is not None and Path(cell.checkpoint).is_dir()
