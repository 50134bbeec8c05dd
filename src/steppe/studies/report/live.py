"""The page of a running study: written again every few seconds, and read again by the browser that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from math import ceil
from pathlib import Path

from ..._util.files import is_locked
from ..._util.terminal import say
from ..run import LOCK
from .page import write

EVERY = 10.0  # seconds between two versions of the page
SHARE = 0.1  # of a core that writing may take: pages of large studies are written less often


def serve(store: Path, out: Path, *, ready: Callable[[str], object] = say) -> Path:
    """Keep the page of a study current while a process runs the study; return when that process or the user ends it.

    Parameters
    ----------
    store : Path
        The study's SQLite file.
    out : Path
        The HTML file. A browser that shows it reads each new version, and keeps its view.
    ready : callable
        Called with a sentence about the file when it can be opened; prints it by default.

    Returns
    -------
    Path
        `out`.

    """
    pause, told = EVERY, False
    with suppress(KeyboardInterrupt):
        while is_locked(store.parent, LOCK):
            start = time.monotonic()
            write(store, out, reload=ceil(pause))
            if not told:
                ready(f"{out} follows the study: open it in a browser")
                told = True
            pause = max(EVERY, (time.monotonic() - start) / SHARE)
            time.sleep(pause)
    return write(store, out)  # a last version, which no browser reads again
