"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import signal
import threading
from math import inf
from multiprocessing import connection, parent_process
from time import sleep


def end_with_parent(grace: float = inf) -> None:
    """Send SIGTERM to this process when its parent ends.

    Otherwise it would keep running, with its locks and its GPU. On SIGTERM training writes a checkpoint and ends.

    Parameters
    ----------
    grace
        Seconds after which the process exits if it still runs; by default it waits forever.

    """
    threading.Thread(target=_wait_and_end, args=[grace], daemon=True).start()


def _wait_and_end(grace: float) -> None:
    parent = parent_process()
    if parent is None:
        return
    connection.wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    if grace < inf:
        sleep(grace)
        os._exit(1)
