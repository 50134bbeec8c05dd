"""A study whose parts several processes compute at once, on one machine or on a shared disk, such as a Slurm array.

Each process trains its share of the cells, and is the one writer of a store in a folder of its own: SQLite does not let
several machines write one file. The next run of the whole study takes their records in, and computes what is missing.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, replace

from .._util.digests import packed_bits
from .cell import Outcome
from .plan import STORE, Study
from .points import PARTS, Part
from .protocol import Show
from .run import Planned, claimed, record
from .store import Store
from .table import Run


def part_of(study: Study, text: str, again: bool = False) -> Study:
    """The study with the third of eight parts of its cells for the text `3/8`, without those that it has computed."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise ValueError(f"a part is its number and how many there are, from 1/8 to 8/8, not {text!r}")
    if study.select is not None:
        raise ValueError("select trains final runs that follow from all others: such a study has no parts")
    before = Planned.of(study, again=again)
    missing = {task.cell.key for task in before.tasks}
    keys = missing.intersection(cell.key for cell in before.cells[int(number) - 1 :: int(count)])
    # plots and tables are of all runs
    return replace(study, part=Part(int(number), int(count), frozenset(keys)), show=Show(), table=())


def take_in(study: Study) -> int:
    """Add what the parts of a study have stored to its store; returns the number of cells with new records.

    Raises RuntimeError if a process is computing a part.
    """
    stores = sorted((study.root / PARTS).glob(f"*/{STORE}"))
    if not stores:
        return 0
    taken = 0
    with ExitStack() as stack:
        for place in (study.root, *(path.parent for path in stores)):
            stack.enter_context(claimed(place))
        store = stack.enter_context(Store.open(study.store))
        known = {run.key: run for run in store.table().runs}
        for path in stores:
            part = stack.enter_context(Store.reading(path))
            origins = part.origins()
            for run in part.table().runs:
                if _is_new(run, known.get(run.key)):
                    store.add([run])
                    record(store, _outcome(run, part, origins.get(run.key, {})), known={})
                    taken += 1
    return taken


def _is_new(run: Run, known: Run | None) -> bool:
    """Whether a part's run has more than the study's."""
    if run.state == "failed":
        return known is None or known.state == "open"
    if run.state != "done" or known is None:
        return run.state == "done"
    own, others = ({*one.targets, *one.measures, *one.failures} for one in (run, known))
    return known.state != "done" or not own <= others


def _outcome(run: Run, part: Store, versions: dict[str, str]) -> Outcome:
    measures = {name: asdict(m) for name, m in run.measures.items()}
    rows = {} if run.rows is None else {"test": packed_bits(run.rows)}
    return Outcome(
        run.key, "failed" if run.state == "failed" else "done", run.targets, run.target_errors, measures, run.failures,
        run.meta, part.curves(run.key), versions, run.error, correct=rows,
    )  # fmt: skip
