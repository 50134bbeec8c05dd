"""`steppe doctor`: installed versions, devices, data sets, and missing packages with what needs them."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

from .._util.extras import EXTRAS, install_line
from .data import Root, found_under
from .options import command
from .output import Output, table

NEEDED = ("torch", "numpy", "rich", "scipy")


@command("doctor")
def doctor(options: Root) -> Output:
    """Show versions, devices, data sets, and missing packages.

    Examples
    --------
    steppe doctor

    """
    from .. import __version__

    versions: dict[str, str | None] = {"python": platform.python_version(), "steppe": __version__}
    versions |= {name: _version(name) for name in (*NEEDED, *EXTRAS)}
    missing = {name: "needed" for name in NEEDED if versions[name] is None}
    devices, threads = _devices()
    data = {
        "system": platform.platform(),
        "versions": versions,
        "devices": devices,
        "threads": threads,
        "missing": missing | {name: one.purpose for name, one in EXTRAS.items() if versions[name] is None},
        "data_root": os.path.abspath(options.data_root),
        "data": [{"name": name, "found": place} for name, place in found_under(options.data_root).items()],
    }
    return Output(data, _shown(data), code=1 if missing else 0)


def _shown(data: dict[str, Any]) -> list[Any]:
    cells = ((name, version or "missing", _purpose(name, version)) for name, version in data["versions"].items())
    versions = table(("package", "version", "what it is for"), cells, fold=("what it is for",))
    devices = table(("device", "what it is"), (device.values() for device in data["devices"]), fold=("what it is",))
    sets: Any = f"No data sets under {data['data_root']}: `steppe data list` lists those that can be downloaded."
    if data["data"]:
        sets = table(("data set", "found in"), (row.values() for row in data["data"]), fold=("found in",))
    return [data["system"], "", versions, "", devices, "", sets]


def _purpose(name: str, version: str | None) -> str:
    """Return what a package is for, and how to install it if it is missing."""
    if name in EXTRAS:
        return EXTRAS[name].purpose + ("" if version else f": {install_line(EXTRAS[name].extra)}")
    return "" if version else f"steppe needs it: pip install {name}"


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
    devices = [
        {
            "name": "cpu",
            "is": f"{platform.machine()}, {os.cpu_count()} cores, {threads} thread{'s' * (threads != 1)} in torch",
        }
    ]
    for k in range(torch.cuda.device_count()):
        title, memory = torch.cuda.get_device_name(k), torch.cuda.get_device_properties(k).total_memory
        devices.append({"name": f"cuda:{k}", "is": f"{title}, {memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"})
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "is": "Apple's GPU"})
    return devices, threads
