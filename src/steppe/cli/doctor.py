"""`steppe doctor`: installed versions, devices, data sets, and missing packages with what needs them."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from .._util.extras import EXTRAS, install_line
from .options import Command
from .output import Output, add_row, table

NEEDED = ("torch", "numpy", "rich", "scipy")


@dataclass(frozen=True)
class Where:
    """Options of `steppe doctor`."""

    data_root: str = "data"
    """the folder that holds data sets"""


def run(where: Where) -> Output:
    """Return versions, devices, optional packages and data sets."""
    versions: dict[str, str | None] = {"python": platform.python_version(), "steppe": _own()}
    versions |= {name: _version(name) for name in (*NEEDED, *EXTRAS)}
    missing = [name for name in NEEDED if versions[name] is None]
    devices, threads = _devices()
    from .data import found_under

    sets = found_under(where.data_root)
    data = {
        "system": platform.platform(),
        "versions": versions,
        "devices": devices,
        "threads": threads,
        "missing": dict.fromkeys(missing, "needed")
        | {name: one.purpose for name, one in EXTRAS.items() if versions[name] is None},
        "data_root": os.path.abspath(where.data_root),
        "data": sets,
    }
    return Output(data, _shown(data), code=1 if missing else 0)


def _shown(data: dict[str, Any]) -> Sequence[Any]:
    versions = table("package", "version", "what it is for")
    for name, version in data["versions"].items():
        purpose = EXTRAS[name].purpose if name in EXTRAS else ""
        add_row(versions, name, version or "missing", purpose if version else _remedy(name))
    devices = table("device", "what it is")
    for device in data["devices"]:
        add_row(devices, device["name"], device["is"])
    if data["data"]:
        sets: Any = table("data set", "found in")
        for row in data["data"]:
            add_row(sets, row["name"], row["found"])
    else:
        sets = f"No data sets under {data['data_root']}: `steppe data list` lists those that can be downloaded."
    return [data["system"], "", versions, "", devices, "", f"Data sets under {data['data_root']}", sets]


def _remedy(name: str) -> str:
    if name in EXTRAS:
        return f"{EXTRAS[name].purpose}: {install_line(EXTRAS[name].extra)}"
    return f"steppe needs it: pip install {name}"


def _own() -> str:
    from .. import __version__

    return __version__


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> tuple[list[dict[str, str]], int | None]:
    """Return the devices of torch and its number of threads."""
    try:
        import torch
    except Exception as error:  # this command also diagnoses broken installs
        return [{"name": "none", "is": f"torch cannot be imported: {error}"}], None
    threads = torch.get_num_threads()
    devices = [{"name": "cpu", "is": f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads in torch"}]
    for k in range(torch.cuda.device_count()):
        is_, memory = torch.cuda.get_device_name(k), torch.cuda.get_device_properties(k).total_memory
        devices.append({"name": f"cuda:{k}", "is": f"{is_}, {memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"})
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "is": "Apple's GPU"})
    return devices, threads


COMMANDS = {
    "doctor": Command(
        "doctor",
        "Show versions, devices, data sets, and missing packages.",
        (Where,),
        run,
        ["steppe doctor"],
        in_core=True,  # it tells what else to install
    )
}
