"""`steppe data`: get published data sets, check what lies in a folder, list what there is."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import FAILED, UsageError, usage_errors
from .options import Command
from .output import Output, add_row, table

BUILT_IN = {  # what comes with steppe or is made when asked for
    "digits": "scikit-learn's 8 x 8 images",
    "spirals": "two spirals in the plane",
    "teacher-student": "regression on a random network",
    "sparse-regression": "for diagonal linear networks",
}
YOUR_OWN = {
    "folder:PATH": "class folders of pictures",
    "folder:PATH@SIZE": "the same, brought to one size",
    "npz:PATH": "arrays in a NumPy file",
}


@dataclass(frozen=True)
class Get:
    """What `steppe data get` takes."""

    names: list[str] = field(default_factory=list, metadata={"metavar": "NAME", "nargs": "*"})
    """data sets to download, from their official addresses"""
    data_root: str = "data"
    """the folder under which data sets lie"""
    mirror: str | None = field(default=None, metadata={"metavar": "ADDRESS"})
    """another address, or a folder, that has the same files"""


@dataclass(frozen=True)
class Check:
    """What `steppe data check` takes."""

    paths: list[str] = field(default_factory=list, metadata={"metavar": "PATH", "nargs": "*"})
    """folders and files to look at"""


@dataclass(frozen=True)
class Listed:
    """What `steppe data list` takes."""

    data_root: str = "data"
    """the folder under which data sets lie"""


def get(asked: Get) -> Output:
    """Downloads, checks and unpacks; what was begun goes on where it stopped."""
    from ..data.catalogue import CATALOGUE, CORRUPTED, files

    if not asked.names:
        raise UsageError(f"say what to get: {', '.join([*CATALOGUE, *CORRUPTED])}")
    with usage_errors():
        for name in asked.names:
            files(name)
    from ..data.download import get as download

    found = []
    for name in asked.names:
        found.append({"name": name, "root": str(download(name, asked.data_root, mirror=asked.mirror))})
    return Output(found, [f"{row['name']} is under {row['root']}" for row in found])


def check(asked: Check) -> Output:
    """Says what every path is, or what is wrong with it."""
    from ..data.check import check as look

    if not asked.paths:
        raise UsageError("say which folder or file to look at")
    reports = [look(path) for path in asked.paths]
    return Output([r.to_dict() for r in reports], reports, code=0 if all(r.ok for r in reports) else FAILED)


def listed(asked: Listed) -> Output:
    """Names that `--data` takes, and where the published ones lie."""
    from ..data.catalogue import CATALOGUE, CORRUPTED

    here = {row["name"]: row["found"] for row in found_under(asked.data_root)}
    shown = table("name", "is", "rows", "shape", "classes", "download", "found in", right=("classes",))
    rows: list[dict[str, Any]] = []
    for name, text in BUILT_IN.items():
        rows.append({"name": name, "is": text, "found": "built in"})
        add_row(shown, name, text, "", "", "", "", "built in")
    for name, one in CATALOGUE.items():
        rows.append(
            {"name": name, "is": one.title, "rows": one.rows, "shape": one.shape, "classes": one.classes}
            | {"bytes": one.size, "cite": one.cite, "found": here.get(name)}
        )
        sizes = f"{one.rows[0]} + {one.rows[1]}"
        shape = " x ".join(map(str, one.shape))
        add_row(shown, name, one.title, sizes, shape, one.classes, f"{one.size / 1e6:,.0f} MB", here.get(name, ""))
    for name, file in CORRUPTED.items():
        rows.append({"name": name, "is": "corrupted test rows", "bytes": file.size, "found": here.get(name)})
        add_row(shown, name, "corrupted test rows", "", "", "", f"{file.size / 1e6:,.0f} MB", here.get(name, ""))
    for name, text in YOUR_OWN.items():
        rows.append({"name": name, "is": text, "found": None})
        add_row(shown, name, text, "", "", "", "", "")
    return Output(rows, [shown, "steppe data get NAME downloads one into --data-root."])


def found_under(root: str) -> list[dict[str, str]]:
    """The published data sets whose files are under a root."""
    from ..data.catalogue import CATALOGUE, CORRUPTED

    found = []
    for name, one in CATALOGUE.items():
        try:
            found.append({"name": name, "found": str(one.find(root))})
        except OSError:
            continue
    for name, file in CORRUPTED.items():
        if (Path(root) / file.holds).is_dir():
            found.append({"name": name, "found": str(Path(root) / file.holds)})
    return found


COMMANDS = {
    "data get": Command(
        "data get", "Download data sets and check that they came whole.", (Get,), get, ["steppe data get cifar10"]
    ),
    "data check": Command(
        "data check", "Say what a folder or a file of data is, or what is wrong with it.", (Check,), check,
        ["steppe data check data/cifar-10-batches-bin"],
    ),
    "data list": Command(
        "data list", "List the data sets that --data takes, and which are here.", (Listed,), listed,
        ["steppe data list"],
    ),
}  # fmt: skip
