"""The CUDA multi-process service (MPS): kernels of several processes run on a GPU at the same time, not in turns."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

CONTROL = "nvidia-cuda-mps-control"  # comes with the driver
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PATIENCE = 30.0  # seconds for the service to start or to end


def has_mps() -> bool:
    """Whether the driver has the service."""
    return which(CONTROL) is not None


@contextmanager
def mps() -> Iterator[dict[str, str]]:
    """Run the service during a block; yields the environment variables with which a process uses it.

    There are none if no service can be started, or if the environment names one already, which is left running.
    """
    if PIPES in os.environ or not has_mps():
        yield {}
        return
    with TemporaryDirectory(prefix="steppe-mps-") as folder:
        variables = {PIPES: str(Path(folder, "pipes")), LOGS: str(Path(folder, "logs"))}
        for place in variables.values():
            Path(place).mkdir()
        if not _control(variables, "-d"):
            yield {}
            return
        try:
            yield variables
        finally:
            _control(variables, text="quit\n")


def _control(variables: dict[str, str], *arguments: str, text: str = "") -> bool:
    """Run the control program; return whether it succeeded."""
    # the service numbers GPUs among those that it sees, and processes name them as the environment does
    environment = {k: v for k, v in os.environ.items() if k != "CUDA_VISIBLE_DEVICES"} | variables
    quiet = subprocess.DEVNULL
    try:
        done = subprocess.run(
            [CONTROL, *arguments], input=text, text=True, env=environment, timeout=PATIENCE, stdout=quiet, stderr=quiet,
            check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0
