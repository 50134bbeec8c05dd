"""`steppe report`: a study's page, shown while the study runs."""

from __future__ import annotations

from dataclasses import dataclass

from .._util.terminal import complain
from .answer import Answer
from .command import Command
from .study_asked import Which, store_of


@dataclass(frozen=True)
class Where:
    """Where the page is shown."""

    port: int = 8421
    """on this machine alone; 0 takes any that is free"""


def serve(which: Which, where: Where) -> Answer:
    """Shows the page of a study while it runs, to browsers on this machine, until Ctrl-C."""
    from ..studies.report import serve as serve_page

    store = store_of(which)
    serve_page(store, where.port, ready=lambda address: complain(f"{address} (Ctrl-C ends it)"))
    return Answer({"folder": store.parent}, [])


COMMANDS = {
    "report serve": Command(
        "report serve", "Show a study's page on this machine, and follow it while it runs.", (Which, Where), serve,
        ["steppe report serve study.yaml --port 0"],
    ),
}  # fmt: skip
