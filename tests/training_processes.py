"""Trains runs in forked children and kills them; imports torch once, because that takes seconds.

Reads one request per line, {"config": {...}, "after": seconds or null, "call": number or null, "lean": bool}, and prints
one line with how the child ended. A child with "call" kills itself at that system call of the layer that writes files.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import torch
import torch._dynamo  # the first step of any optimizer imports it, in two seconds

from steppe._util import files
from steppe.training import Config, train
from steppe.training.model import model_of
from steppe.training.problem import data_of  # and all that they import: no child has to

CALLS = ("open", "write", "fsync", "link", "replace", "unlink", "ftruncate")


class Deadly:
    """The os module, of which the number-th call kills; a write leaves half of its bytes behind."""

    def __init__(self, number: int):
        self._number, self._count = number, count(1)

    def __getattr__(self, name: str) -> Any:
        real: Callable[..., Any] = getattr(os, name)
        if name not in CALLS:
            return real

        def call(*args: Any) -> Any:
            if next(self._count) == self._number:
                if name == "write":
                    os.write(args[0], args[1][: len(args[1]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args)

        return call


def child(settings: dict[str, Any], call: int | None, lean: bool) -> None:
    try:
        if call is not None:
            files.os = Deadly(call)  # type: ignore[assignment]
        train(Config(**settings), lean=lean)
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def main() -> None:
    torch.set_num_threads(1)
    warm = Config(data="spirals", model="training_runs:small")
    model_of(warm, (2,), 2)
    data_of(warm)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        pid = os.fork()
        if not pid:
            child(request["config"], request["call"], request["lean"])
        if request["after"] is not None:
            time.sleep(request["after"])
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        ended = "killed" if killed else "finished" if status == 0 else "failed"
        print(json.dumps({"ended": ended, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    main()
    os._exit(0)  # torch takes half a second to leave
