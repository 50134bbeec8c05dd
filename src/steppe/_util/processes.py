"""Worker processes, each with one job at a time. One that dies costs its job; another process takes its place."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import inf
from multiprocessing import connection, get_context, parent_process
from multiprocessing.util import is_exiting
from time import monotonic, sleep
from typing import Any, Generic, TypeVar

from .environment import SAFE_PATH, environment

PAUSE = 0.2  # seconds between two checks for a request to stop
PATIENCE = 60.0  # seconds for a worker to write a checkpoint and end
GRACE = 10.0  # the same where the process that started it has ended

Job = TypeVar("Job")
Result = TypeVar("Result")


class Lost(RuntimeError):
    """A worker died, or its result cannot be read; the message says which."""


class Pool(Generic[Job, Result]):
    """Processes that compute `work(job)` for one job at a time; a block starts them when they are needed and ends them.

    Parameters
    ----------
    work
        A function that the workers import.
    environments
        The environment variables of each worker, set before it imports anything.
    start
        The start method of `multiprocessing`.
    preload
        Modules that a fork server imports once for all workers.

    """

    def __init__(
        self,
        work: Callable[[Job], Result],
        environments: Sequence[Mapping[str, str]],
        start: str = "spawn",
        preload: Sequence[str] = (),
    ):
        self._work, self._environments = work, environments
        self._context: Any = get_context(start)
        if start == "forkserver":
            self._context.set_forkserver_preload(list(preload))
        self._workers: dict[int, tuple[Any, Any]] = {}  # process and pipe by their number

    def __enter__(self) -> Pool[Job, Result]:
        return self

    def results(
        self, jobs: deque[Job], stop: Callable[[], object], begun: Callable[[Job], object] = lambda job: None
    ) -> Iterator[tuple[Job, Result | Lost]]:
        """Yield each job with its result, in any order, until there is none left or `stop()` is true.

        Jobs that are added to the queue meanwhile are computed too, such as those to try again.
        """
        busy: dict[int, Job] = {}
        while not stop() and (jobs or busy):
            for number in range(len(self._environments)):
                if jobs and number not in busy:
                    job = busy[number] = jobs.popleft()
                    begun(job)
                    self._start(number, job)
            # a process may leave its pipe open in a child of its own, so its end counts too
            ends = {end: n for n in busy for end in (self._workers[n][1], self._workers[n][0].sentinel)}
            for number in {ends[end] for end in connection.wait(list(ends), PAUSE)}:
                yield busy.pop(number), self._result(number)

    def _start(self, number: int, job: Job) -> None:
        if number not in self._workers or not self._workers[number][0].is_alive():
            pipe, child_pipe = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(child_pipe, self._environments[number]), daemon=True)
            with environment(SAFE_PATH):
                process.start()
            child_pipe.close()
            self._workers[number] = process, pipe
        with suppress(OSError):  # where it has died since, `_result` says so
            self._workers[number][1].send((self._work, job))

    def _result(self, number: int) -> Result | Lost:
        process, pipe = self._workers[number]
        try:
            if pipe.poll():
                result: Result | Lost = pipe.recv()
                return result
        except (EOFError, OSError):
            pass
        except Exception as error:
            return Lost(f"its result could not be read: {error!r}")
        process.join()
        del self._workers[number]
        pipe.close()
        return Lost(f"its worker ended with exit code {process.exitcode}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(at_once=kind is KeyboardInterrupt)

    def end(self, at_once: bool = False) -> None:
        """End the workers; one that trains writes a checkpoint, unless `at_once`."""
        workers, end = list(self._workers.values()), monotonic() + PATIENCE
        self._workers.clear()
        try:
            for process, pipe in workers:
                pipe.close()  # an idle worker ends
                process.kill() if at_once else process.terminate()
            for process, _ in workers:
                process.join(max(0.0, end - monotonic()))
        finally:
            for process, _ in workers:
                process.kill()
                process.join()


def _serve(pipe: Any, variables: Mapping[str, str]) -> None:
    """Compute jobs until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent ends the others
    # as an exception, so that multiprocessing removes its semaphores, but not twice
    signal.signal(signal.SIGTERM, lambda number, frame: None if is_exiting() else sys.exit(128 + number))
    end_with_parent(GRACE)  # nobody would read its result
    os.environ.update(variables)
    while True:
        try:
            work, job = pipe.recv()
        except (EOFError, OSError):  # the parent has closed the pipe, or is gone
            return
        try:
            answer = work(job)
        except Exception as error:
            answer = Lost(f"{type(error).__name__}: {error}")
        try:
            pipe.send(answer)
        except OSError:
            return
        except Exception as error:
            pipe.send(Lost(f"its result could not be sent: {error!r}"))


def end_with_parent(grace: float = inf) -> None:
    """Send SIGTERM to this process when its parent ends.

    Otherwise it would keep running, with its locks and its GPU. On SIGTERM training writes a checkpoint and ends.

    Parameters
    ----------
    grace
        Seconds after which the process exits if it still runs; by default it waits forever.

    """

    def wait_and_end() -> None:
        parent = parent_process()
        if parent is None:
            return
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGTERM)
        if grace < inf:
            sleep(grace)
            os._exit(1)

    threading.Thread(target=wait_and_end, daemon=True).start()
