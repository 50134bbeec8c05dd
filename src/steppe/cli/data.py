"""`steppe data`: download published data sets, check folders and files, list what is available."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import FAILED, UsageError, usage_errors
from .options import Command
from .output import Output, add_row, table

BUILT_IN = {  # part of steppe, or generated
    "digits": "8 x 8 images of digits",
    "spirals": "two spirals in the plane",
    "teacher-student": "regression on a random network",
    "sparse-regression": "for diagonal linear networks",
}
YOUR_OWN = {
    "folder:PATH": "class folders of pictures",
    "folder:PATH@SIZE": "the same, resized to one size",
    "npz:PATH": "arrays in a NumPy file",
}


@dataclass(frozen=True)
class Get:
    """Options of `steppe data get`."""

    names: list[str] = field(default_factory=list, metadata={"metavar": "NAME", "nargs": "*"})
    """data sets to download, from their official addresses"""
    data_root: str = "data"
    """the folder that holds data sets"""
    mirror: str | None = field(default=None, metadata={"metavar": "ADDRESS"})
    """another address, or a folder, with the same files"""


@dataclass(frozen=True)
class Check:
    """Options of `steppe data check`."""

    paths: list[str] = field(default_factory=list, metadata={"metavar": "PATH", "nargs": "*"})
    """folders and files to check"""


@dataclass(frozen=True)
class List:
    """Options of `steppe data list`."""

    data_root: str = "data"
    """the folder that holds data sets"""


def get(options: Get) -> Output:
    """Download, check and unpack; resume partial downloads."""
    from ..data.catalogue import downloadable, files

    if not options.names:
        raise UsageError(f"name the data sets to get: {', '.join(downloadable())}")
    with usage_errors():
        for name in options.names:
            files(name)
    from ..data.download import get as download

    downloaded = []
    for name in options.names:
        downloaded.append({"name": name, "root": str(download(name, options.data_root, mirror=options.mirror))})
    return Output(downloaded, [f"{row['name']} is in {row['root']}" for row in downloaded])


def check(options: Check) -> Output:
    """Describe every path, or report what is wrong with it."""
    from ..data.check import check as look

    if not options.paths:
        raise UsageError("name the folders or files to check")
    reports = [look(path) for path in options.paths]
    return Output([r.to_dict() for r in reports], reports, code=0 if all(r.ok for r in reports) else FAILED)


def list_all(options: List) -> Output:
    """Return the names that `--data` takes, and where the published data sets are."""
    from ..data.catalogue import CATALOGUE, CORRUPTED

    places = {row["name"]: row["found"] for row in found_under(options.data_root)}
    shown = table("name", "is", "rows", "shape", "classes", "download", "found in", right=("classes",))
    rows: list[dict[str, Any]] = []
    for name, text in BUILT_IN.items():
        rows.append({"name": name, "is": text, "found": "built in"})
        add_row(shown, name, text, "", "", "", "", "built in")
    for name, one in CATALOGUE.items():
        rows.append(
            {"name": name, "is": one.title, "rows": one.rows, "shape": one.shape, "classes": one.classes}
            | {"bytes": one.size, "cite": one.cite, "found": places.get(name)}
        )
        sizes = f"{one.rows[0]} + {one.rows[1]}"
        shape = " x ".join(map(str, one.shape))
        download = f"{one.size / 1e6:,.0f} MB" if one.files else "no address"
        add_row(shown, name, one.title, sizes, shape, one.classes, download, places.get(name, ""))
    for name, file in CORRUPTED.items():
        rows.append({"name": name, "is": "corrupted test rows", "bytes": file.size, "found": places.get(name)})
        add_row(shown, name, "corrupted test rows", "", "", "", f"{file.size / 1e6:,.0f} MB", places.get(name, ""))
    for name, text in YOUR_OWN.items():
        rows.append({"name": name, "is": text, "found": None})
        add_row(shown, name, text, "", "", "", "", "")
    foot = "steppe data get NAME downloads one into --data-root. Sets with 3 x 224 x 224 are resized by NAME@SIZE."
    return Output(rows, [shown, foot])


def found_under(root: str) -> list[dict[str, str]]:
    """Return the published data sets that are in a folder."""
    from ..data.catalogue import CATALOGUE, CORRUPTED

    sets = []
    for name, one in CATALOGUE.items():
        try:
            sets.append({"name": name, "found": str(one.find(root))})
        except OSError:
            continue
    for name, file in CORRUPTED.items():
        if (Path(root) / file.holds).is_dir():
            sets.append({"name": name, "found": str(Path(root) / file.holds)})
    return sets


COMMANDS = {
    "data get": Command(
        "data get", "Download data sets and check their digests.", (Get,), get, ["steppe data get cifar10"]
    ),
    "data check": Command(
        "data check", "Describe a folder or file of data, or report what is wrong with it.", (Check,), check,
        ["steppe data check data/cifar-10-batches-bin"],
    ),
    "data list": Command(
        "data list", "List the data sets that --data takes, and where they are.", (List,), list_all,
        ["steppe data list"],
    ),
}  # fmt: skip
