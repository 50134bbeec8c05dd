"""A run's folder: one process at a time, and one configuration for good."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import yaml

from .._util.digests import DIGEST, digest
from .._util.files import FolderLocked, lock_folder
from .._util.names import unknown
from .._util.types import fits, words
from .._util.untrusted import yaml_in
from . import files
from .checkpoint import PREVIOUS, RECORDS, WEIGHTS
from .config import Config

RUN = "run.yaml"
NAME = "run"  # of its lock
LOCK, HOLDER = f"{NAME}.lock", f"{NAME}.holder"

# what run.yaml has to have beside the configuration, to be read again
KEYS = {"data": str, "task": dict, "parameters": int, "steps": int, "starts": list[Any]}
TASK = {"shape": list[int], "outputs": int, "classes": list[Any], "mean": list[float], "std": list[float]}

FREE = ("out", "data_root", "loggers", "checkpoint_every")
"""What may change from one start of a run to the next: where things lie and how often they are kept."""
LENGTH = ("epochs", "steps")
"""What may grow, where the run ends as one of that length does: see `longer`."""


@contextmanager
def claimed(path: Path) -> Iterator[Callable[[], None]]:
    """The folder for this process alone; a second process is told who has it.

    Gives a function that raises once another folder is in its place.
    """
    path.mkdir(parents=True, exist_ok=True)
    _refuse_other_folders(path)
    with ExitStack() as stack:
        try:
            mine = stack.enter_context(lock_folder(path, NAME))
        except FolderLocked as who:
            raise RuntimeError(
                f"{path} is being trained in by {who}: wait for it, stop it, or choose another folder with out"
            ) from None
        yield mine


def _refuse_other_folders(path: Path) -> None:
    """A folder with other things in it is no place for a run."""
    ours = {LOCK, HOLDER, RUN, RECORDS, WEIGHTS, PREVIOUS}
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
    files.replace(path / RUN, described(about))


class Changed(ValueError):
    """A description that is not as it was written."""


def described(said: Mapping[str, Any]) -> bytes:
    """A file of YAML that says this, with a digest of it."""
    return yaml.safe_dump({**said, DIGEST: _digest(said)}, sort_keys=False, allow_unicode=True).encode()


def description(file: Path) -> dict[str, Any]:
    """What such a file says; raises `Changed` if it has another digest. Older ones have none."""
    said: dict[str, Any] = yaml_in(file)
    written = said.pop(DIGEST, None)
    if written is not None and written != _digest(said):
        raise Changed(
            f"{file} is damaged, or was changed: it does not have the digest that was written with it. Bring it back "
            f"from a copy. If you have changed it yourself and mean it, take away its line `{DIGEST}: ...`"
        )
    return said


def about(path: Path) -> dict[str, Any] | None:
    """What run.yaml says, or None if there is none."""
    if not (path / RUN).exists():
        return None
    try:
        said = description(path / RUN)
        _ = said["config"].keys()
    except Changed:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path / RUN} does not describe a run: {error!r}. Bring it back, or start anew") from error
    return said


def _digest(said: Mapping[str, Any]) -> str:
    return digest([json.dumps(said, sort_keys=True, default=repr)])


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
    """A run goes on with the configuration that it began with, or its end would follow from none; its length apart."""
    then, now = plain(before), plain(config)
    bound = [k for k in now if k not in (*FREE, *LENGTH)]
    differ = [f"{k} was {then[k]!r} and is now {now[k]!r}" for k in bound if then[k] != now[k]]
    if differ:
        raise ValueError(
            f"{path} holds a run with another configuration: {'; '.join(differ)}. Its end would follow from neither: "
            "go on with the old values, or give another out."
        )
