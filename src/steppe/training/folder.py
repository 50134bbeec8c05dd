"""A run's folder: one process at a time, and one configuration for good."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from ..kinds import fits, words
from ..names import unknown
from . import files
from .checkpoint import RECORDS, WEIGHTS
from .config import Config

RUN = "run.yaml"
LOCK = "run.lock"  # held, and let go by the system, however the process ends
HOLDER = "run.holder"  # says who holds the lock; means nothing while nobody does

# what run.yaml has to have beside the configuration, to be read again
KEYS = {"data": str, "task": dict, "parameters": int, "steps": int, "starts": list[Any]}
TASK = {"shape": list[int], "outputs": int, "classes": list[Any], "mean": list[float], "std": list[float]}

FREE = ("out", "data_root", "loggers", "checkpoint_every")
"""What may change from one start of a run to the next: where things lie and how often they are kept."""


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """The folder for this process alone; a second process is told who has it."""
    path.mkdir(parents=True, exist_ok=True)
    _refuse_other_folders(path)
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        holder = path / HOLDER
        who = holder.read_text(encoding="utf-8") if holder.exists() else "another process"
        raise RuntimeError(
            f"{path} is being trained in by {who}: wait for it, stop it, or choose another folder with out"
        ) from None
    try:
        files.replace(path / HOLDER, f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield
    finally:
        files.remove(path / HOLDER)
        lock.release()


def _refuse_other_folders(path: Path) -> None:
    """A folder with other things in it is no place for a run."""
    ours = {LOCK, HOLDER, RUN, RECORDS, WEIGHTS}
    others = sorted(p.name for p in path.iterdir() if p.name not in ours and not p.name.endswith(files.TEMPORARY))
    if others and not (path / RUN).exists():
        raise FileExistsError(
            f"{path} is no run's folder: it has no {RUN}, but {', '.join(others[:3])}. Choose another"
        )


def is_empty(path: Path) -> bool:
    """Whether a folder was claimed for a run and nothing more: a start that failed, or was killed, or is under way."""
    return path.is_dir() and {p.name for p in path.iterdir()} in ({LOCK}, {LOCK, HOLDER})


def write_about(path: Path, about: Mapping[str, Any]) -> None:
    """Writes run.yaml."""
    files.replace(path / RUN, yaml.safe_dump(dict(about), sort_keys=False, allow_unicode=True).encode())


def about(path: Path) -> dict[str, Any] | None:
    """What run.yaml says, or None if there is none."""
    if not (path / RUN).exists():
        return None
    try:
        said = yaml.safe_load((path / RUN).read_text(encoding="utf-8"))
        _ = said["config"].keys()
    except (yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path / RUN} does not describe a run: {error!r}. Bring it back, or start anew") from error
    return said  # type: ignore[no-any-return]


def plain(config: Config) -> dict[str, Any]:
    """A configuration in JSON's own types, as files and comparisons want it."""

    def path_or_nothing(x: Any) -> str:
        if isinstance(x, os.PathLike):
            return str(os.fspath(x))
        raise TypeError(
            f"a configuration is written to a file, and {x!r} cannot be: use numbers, texts, lists and dicts"
        )

    made: dict[str, Any] = json.loads(json.dumps(asdict(config), default=path_or_nothing))
    return made


def config_in(path: Path, said: Mapping[str, Any]) -> Config:
    """The configuration that run.yaml tells of."""
    known = {f.name for f in fields(Config)}
    strange = [k for k in said["config"] if k not in known]
    if strange:
        raise ValueError(f"{path / RUN}: {unknown('setting', strange[0], known)} Was it written by another steppe?")
    try:
        config = Config(**said["config"])
    except ValueError as error:
        raise ValueError(f"{path / RUN}: config: {error}") from error
    _refuse_half(path / RUN, said, KEYS)
    _refuse_half(path / RUN, said["task"], TASK, "task.")
    return config


def _refuse_half(file: Path, said: Mapping[str, Any], keys: Mapping[str, Any], place: str = "") -> None:
    """A file that was cut off, or written by hand, lacks something."""
    for key, kind in keys.items():
        if key not in said or not fits(said[key], kind):
            found = f"is {said[key]!r}" if key in said else "is missing"
            raise ValueError(
                f"{file} is not whole: {place}{key} {found}, and has to be {words(kind)}. Bring the file back, or "
                "train anew in another folder"
            )


def refuse_changes(path: Path, before: Config, config: Config) -> None:
    """A run goes on with the configuration that it began with, or its end would follow from none."""
    then, now = plain(before), plain(config)
    differ = [f"{k} was {then[k]!r} and is now {now[k]!r}" for k in now if k not in FREE and then[k] != now[k]]
    if differ:
        raise ValueError(
            f"{path} holds a run with another configuration: {'; '.join(differ)}. Its end would follow from neither: "
            "go on with the old values, or give another out."
        )
