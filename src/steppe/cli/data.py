"""`steppe data`: download published data sets, check folders and files, list what is available."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .options import command
from .output import FAILED, Output, UsageError, table, usage_errors


@dataclass(frozen=True)
class Root:
    """Where data sets are."""

    data_root: str = "data"
    """the folder that holds data sets"""


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


@command("data get")
def get(options: Get) -> Output:
    """Download data sets and check their digests.

    Examples
    --------
    steppe data get cifar10

    """
    from ..data.catalogue import downloads, files

    if not options.names:
        raise UsageError(f"name the data sets to get, such as {next(iter(downloads()))}: `steppe data list` shows all")
    with usage_errors():
        for name in options.names:
            files(name)
    from ..data.download import get as download

    roots = {name: str(download(name, options.data_root, mirror=options.mirror)) for name in options.names}
    data = [{"name": name, "root": root} for name, root in roots.items()]
    return Output(data, [f"{name} is in {root}" for name, root in roots.items()])


@command("data check")
def check(options: Check) -> Output:
    """Describe a folder or file of data, or report what is wrong with it.

    Examples
    --------
    steppe data check data/cifar-10-batches-bin

    """
    from ..data.check import check as check_path

    if not options.paths:
        raise UsageError("name the folders or files to check")
    reports = [check_path(path) for path in options.paths]
    return Output([r.to_dict() for r in reports], reports, code=0 if all(r.ok for r in reports) else FAILED)


@command("data list")
def list_all(options: Root) -> Output:
    """List the data sets that --data takes, and where they are.

    Examples
    --------
    steppe data list

    """
    rows = list(_rows(options.data_root))
    heads = ("name", "what it is", "rows", "shape", "classes", "download", "found in")
    shown = table(
        heads, map(_cells, rows), right=("classes",), fold=("what it is", "found in"), drop=("shape", "rows", "classes")
    )
    foot = "\nsteppe data get NAME downloads one into --data-root. Sets with 3 x 224 x 224 are resized by NAME@SIZE."
    return Output(rows, [shown, foot])


def _rows(root: str) -> Iterator[dict[str, Any]]:
    from ..data.catalogue import DATASETS
    from ..data.registry import OWN

    places = found_under(root)
    for name, one in DATASETS.items():
        row = {"name": name, "is": one.title, "rows": one.rows, "shape": one.shape, "classes": one.classes}
        row |= {"bytes": one.size, "cite": one.cite} if one.layouts else {}
        yield row | {"found": places.get(name) if one.layouts else "built in"}
    for name, one in DATASETS.items():
        if one.corrupted is not None:
            size, found = one.corrupted.size, places.get(f"{name}-c")
            yield {"name": f"{name}-c", "is": "corrupted test rows", "bytes": size, "found": found}
    for name, text in OWN.items():
        yield {"name": name, "is": text, "found": None}


def _cells(row: dict[str, Any]) -> list[object]:
    counts = " + ".join(map(str, row.get("rows") or ()))
    shape = " x ".join(map(str, row.get("shape", ())))
    size = "" if "bytes" not in row else f"{row['bytes'] / 1e6:,.0f} MB" if row["bytes"] else "no address"
    return [row["name"], row["is"], counts, shape, row.get("classes") or "", size, row["found"] or ""]


def found_under(root: str) -> dict[str, str]:
    """Return the folders of the published data sets that are in a folder, by name."""
    from ..data.catalogue import DATASETS

    places: dict[str, str] = {}
    for name, one in DATASETS.items():
        with suppress(OSError):
            places |= {name: str(one.find(root))} if one.layouts else {}
        if one.corrupted is not None and (folder := Path(root) / one.corrupted.holds).is_dir():
            places[f"{name}-c"] = str(folder)
    return places
