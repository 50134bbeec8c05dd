"""Runs studies in processes that tests kill.

`python studies_processes.py local OUT` runs the study of the fault tests in two workers, `endless OUT` one that does
not end. `python studies_processes.py fork` imports torch once and reads one request per line, {"out": folder, "after":
seconds or null}: it runs the study in a forked child without workers, kills the child after so many seconds, and
prints how it ended.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from studies_cells import BASE, tiny

from steppe.studies.plan import Study

SEEDS = 3


def study(out: Path | str) -> Study:
    """Six cells of a fifth of a second or more, with checkpoints within epochs."""
    base = BASE | {"epochs": 6, "batch_size": 10, "checkpoint_every": 0.02}
    grid = {"method": ["none", {"method": "asam", "rho": 0.3}], "seed": list(range(SEEDS))}
    return tiny(out, base=base, grid=grid, measures=["lambda_max", "sam_sharpness"])


def endless(out: Path | str) -> Study:
    """Cells that are not done before somebody ends them."""
    return tiny(out, base=BASE | {"epochs": 1_000_000, "evaluate_every": 1000})


def local(made: Study) -> None:
    from steppe.studies.engines.local import Local
    from steppe.studies.run import run

    run(made, Local(2, retries=100, start="forkserver"))


def child(out: str) -> None:
    try:
        from steppe.studies.engines import Serial
        from steppe.studies.run import run

        run(study(out), Serial())
        os._exit(0)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def fork() -> None:
    import torch
    import torch._dynamo

    from steppe.data.registry import load

    torch.set_num_threads(1)
    load("spirals")
    print("ready", flush=True)
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        start = time.perf_counter()
        pid = os.fork()
        if not pid:
            child(request["out"])
        if request["after"] is not None:
            ended = os.pidfd_open(pid)  # one that is done earlier is not waited for
            select.select([ended], [], [], request["after"])
            os.close(ended)
            os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        ended = "killed" if killed else "finished" if status == 0 else "failed"
        print(json.dumps({"ended": ended, "seconds": time.perf_counter() - start}), flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["local", out]:
            local(study(out))
        case ["endless", out]:
            local(endless(out))
        case _:
            fork()
            os._exit(0)  # torch takes half a second to leave
