"""Processes that end with the one that started them."""

from __future__ import annotations

import os
import signal
import threading
from math import inf
from multiprocessing import connection, parent_process
from time import sleep


def end_with_parent(grace: float = inf) -> None:
    """Has this process get SIGTERM when its parent is gone.

    Otherwise it would go on for nobody and keep what it holds: folders, a GPU. Training answers SIGTERM with a
    checkpoint and ends.

    Parameters
    ----------
    grace
        Seconds after which the process is ended if it still runs; by default it never is.

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
