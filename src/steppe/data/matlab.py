"""Small .mat files of lists and labels, read by scipy in a process of its own: some damaged files crash its reader.

Run as a module, this reads one file and prints it as JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from .errors import DataError

MOST_STORED = 16 << 20  # bytes of a file: a list of pictures is far smaller
MOST_MEMORY = 4 << 30  # of the process: a small compressed file may declare much
SECONDS = 120.0


def variables(path: Path, *names: str) -> dict[str, list[Any]]:
    """Read variables of a .mat file as flat lists of numbers and strings, and structs as dictionaries.

    Parameters
    ----------
    path
        The file.
    *names
        The variables, all of which have to be there.

    """
    if (size := path.stat().st_size) > MOST_STORED:
        raise DataError(f"{path}: it has {size:,} bytes, and lists of labels have less than {MOST_STORED:,}")
    command = [sys.executable, "-m", __name__, str(path), *names]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=environment, check=True)
        content: dict[str, list[Any]] = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or [f"the reader ended with status {error.returncode}"])[-1]
        raise DataError(f"{path}: not a readable .mat file: {why}") from None
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise DataError(f"{path}: not a readable .mat file: {error}") from error
    missing = [name for name in names if name not in content]
    if missing:
        raise DataError(f"{path}: it has no variable {', '.join(missing)}")
    return content


def _plain(value: Any) -> Any:
    """Return arrays as flat lists, and records as dictionaries."""
    import numpy as np

    if isinstance(value, np.void) and value.dtype.names:
        return {name: _plain(value[name]) for name in value.dtype.names}
    if isinstance(value, np.ndarray):
        return [_plain(entry) for entry in value.reshape(-1)]
    return value.item() if isinstance(value, np.generic) else value


def _print(path: str, *names: str) -> None:
    import warnings

    from scipy.io import loadmat

    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    warnings.simplefilter("ignore")
    content = loadmat(path, variable_names=names, chars_as_strings=True)
    json.dump({name: _plain(content[name]) for name in names if name in content}, sys.stdout)


if __name__ == "__main__":
    _print(*sys.argv[1:])
