"""Checkpoints that are there already, as the cells of a study, with a table of their errors."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Mapping, Sequence
from glob import glob
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .._util import user_code as imported
from .._util.checkpoints import SUFFIXES
from .._util.names import unknown
from ..data.declared import CHOICES
from .cell import Cell, digest, groups_of
from .plan import TARGETS, Study
from .settings import config_of, plain

COLUMN = "checkpoint"  # of the CSV file: the file's name, or its path
ENDS = 1 << 20  # bytes at both ends of a file that its key follows from: weights that differ, differ everywhere


def pooled(study: Study) -> list[Cell]:
    """The checkpoints and folders of runs that the study's pattern finds, in the order of their names."""
    paths = sorted(Path(p) for p in glob(str(study.pool), recursive=True))
    paths = [p for p in paths if (p.suffix in SUFFIXES and p.is_file()) or (p / "run.yaml").exists()]
    if not paths:
        kinds = ", ".join(SUFFIXES)
        raise FileNotFoundError(f"pool: there is no checkpoint ({kinds}) and no run's folder at {study.pool!r}")
    files = [p for p in paths if p.is_file()]
    if files and ("model" not in study.base or "data" not in study.base):
        raise ValueError(f"pool: {files[0]} does not say of what it is: give data and model in base")
    if files and study.standardise is None:
        raise ValueError(
            f"pool: {files[0]} does not say how its inputs were standardised in training: give standardise, which is "
            f"{CHOICES}"
        )
    rows = _rows(Path(study.errors), paths) if study.errors else {}
    return [_cell(study, path, rows.get(path, {})) for path in paths]


def refuse_untrusted(study: Study, planned: Sequence[Cell], trust: bool) -> None:
    """Raises if a folder of the pool names code outside steppe as its model, and the study's file does not."""
    for cell in planned:
        if cell.checkpoint is not None:
            file = Path(cell.checkpoint) / "run.yaml"
            imported.refuse_untrusted(file, cell.config["model"], study.base.get("model"), trust)


def _cell(study: Study, path: Path, row: Mapping[str, Any]) -> Cell:
    if path.is_dir():
        from ..training.runs import open_run  # takes torch, as whoever reads checkpoints does

        config = plain(open_run(path).config) | {"out": None, "measures": [], "measure_every": None, "loggers": []}
    else:
        config = plain(config_of(study.base, "base"))
    known = {k: float(v) for k, v in row.items() if k in {*study.targets, *TARGETS} and isinstance(v, (int, float))}
    lost = [k for k in study.targets if k in row and k not in known]
    if lost:
        raise ValueError(f"{study.errors}: {lost[0]} of {path.name} is {row[lost[0]]!r}, and has to be a number")
    seen = {k: v for k, v in row.items() if k not in known and k != COLUMN}
    standardise = study.standardise if path.is_file() else None
    said = {} if standardise is None else {"standardise": standardise}
    return Cell(
        digest({"config": config, "weights": _marks(path), **said}),
        path.stem if path.is_file() else path.name,
        config,
        groups_of(study, {**config, **seen}),
        str(path),
        known,
        standardise,
        study.tolerance,
    )


def _marks(path: Path) -> str:
    """What tells the weights of a file from others without reading all of it."""
    file = path / "checkpoint.safetensors" if path.is_dir() else path
    size = file.stat().st_size
    with file.open("rb") as opened:
        seen = blake2b(opened.read(ENDS), digest_size=16)
        opened.seek(max(0, size - ENDS))
        seen.update(opened.read(ENDS))
    return f"{size} {seen.hexdigest()}"


def _rows(file: Path, paths: list[Path]) -> dict[Path, dict[str, Any]]:
    """What a CSV file says of each checkpoint."""
    if not file.is_file():
        raise FileNotFoundError(f"errors: there is no file {str(file)!r}")
    with file.open(newline="", encoding="utf-8-sig") as opened:
        reader = csv.DictReader(opened)
        heads = reader.fieldnames or []
        if COLUMN not in heads:
            raise ValueError(f"{file}: {unknown('column', COLUMN, heads)} It names the file of each row")
        rows = list(reader)
    stems = Counter(p.stem for p in paths)  # a.pt and a.safetensors are told apart by their endings only
    names = {str(p): p for p in paths} | {p.stem: p for p in paths if stems[p.stem] == 1} | {p.name: p for p in paths}
    found: dict[Path, dict[str, Any]] = {}
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise ValueError(f"{file}, line {number}: it has another number of cells than the first line")
        path = names.get(row[COLUMN])
        if path is None:
            raise ValueError(f"{file}, line {number}: {unknown('checkpoint in the pool', row[COLUMN], names)}")
        if path in found:
            raise ValueError(f"{file}, line {number}: {row[COLUMN]} is there twice")
        found[path] = {k: _value(v) for k, v in row.items() if v != ""}
    missing = [p for p in paths if p not in found]
    if missing:
        raise ValueError(f"{file} says nothing of {missing[0]}: it needs a row for every checkpoint of the pool")
    return found


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
