"""Two worker processes that run functions on demand, joined by gloo over loopback."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import pytest
import torch
import torch.distributed as dist

from steppe.core.process_group import keep_gloo

WORLD = 2
LIMIT = 120.0  # seconds for one function on both workers, their start included
GRACE = 10.0  # seconds that a worker may go on after the other one has failed
COLLECTIVE_LIMIT = timedelta(seconds=30)  # a worker that waits longer for the other raises


class Pair:
    """Workers that outlive a test, because starting one costs seconds; each call has a process group of its own."""

    def __init__(self) -> None:
        self._workers: list[tuple[Any, Connection]] = []

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What `function(rank, *arguments)` returns on each worker; fails the test if it raises or hangs on any."""
        if not self._workers:
            self._start()
        with tempfile.TemporaryDirectory() as meeting:
            call = pickle.dumps((function, arguments, meeting))
            for _, end in self._workers:
                end.send_bytes(call)
            answers = self._answers(function.__name__)
        failures = [f"worker {rank}:\n{text}" for rank, (ok, text) in enumerate(answers) if not ok]
        if failures:
            self._kill()  # a failed process group may have left them in any state
            pytest.fail("\n".join(failures), pytrace=False)
        return [value for _, value in answers]

    def stop(self) -> None:
        for process, end in self._workers:
            end.close()  # the worker's receive ends, and so does its loop
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._workers = []

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        for rank in range(WORLD):
            mine, its = spawn.Pipe()
            process = spawn.Process(target=_serve, args=(rank, its), daemon=True)
            process.start()
            its.close()
            self._workers.append((process, mine))

    def _answers(self, name: str) -> list[tuple[bool, Any]]:
        answers: dict[int, tuple[bool, Any]] = {}
        deadline = time.monotonic() + LIMIT
        waiting = {end: rank for rank, (_, end) in enumerate(self._workers)}
        while waiting:
            ready = wait(list(waiting), timeout=max(deadline - time.monotonic(), 0))
            if not ready:
                told = "\n".join(f"worker {rank}:\n{text}" for rank, (_, text) in answers.items())
                self._kill()
                pytest.fail(f"{name}: workers {sorted(waiting.values())} hang\n{told}", pytrace=False)
            for end in ready:
                rank = waiting.pop(end)  # type: ignore[arg-type]
                try:
                    answers[rank] = pickle.loads(end.recv_bytes())  # type: ignore[union-attr]
                except EOFError:
                    answers[rank] = (False, "died")
                if not answers[rank][0]:
                    deadline = min(deadline, time.monotonic() + GRACE)
        return [answers[rank] for rank in range(WORLD)]

    def _kill(self) -> None:
        for process, end in self._workers:
            process.kill()
            process.join()
            end.close()
        self._workers = []


def _serve(rank: int, parent: Connection) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "TypedStorage is deprecated")  # of torch 2.6's own checkpoints
    warnings.filterwarnings("ignore", "DTensor random operators may not have")  # torch 2.6, on a CPU
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    while True:
        try:
            function, arguments, meeting = pickle.loads(parent.recv_bytes())
        except EOFError:
            return
        try:
            answer = (True, _joined(rank, meeting, function, arguments))
        except BaseException:
            answer = (False, traceback.format_exc())
        # plain pickle: torch's own would share memory with a process that may be gone when it is read
        parent.send_bytes(pickle.dumps(answer))


def join(file: str, rank: int, world: int) -> None:
    """Initialise the default process group of the workers that name this file."""
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=world, timeout=COLLECTIVE_LIMIT)
    keep_gloo(dist.group.WORLD)


def _joined(rank: int, meeting: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    join(f"{meeting}/store", rank, WORLD)
    try:
        value = function(rank, *arguments)
        dist.barrier()  # gloo may abort if a worker leaves while the other still talks
        return value
    finally:
        dist.destroy_process_group()  # without a barrier on failure, so that the other worker fails at once
