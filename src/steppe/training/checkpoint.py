"""A run's state on disk: weights in one file that commits, everything else in a file that it names.

The order is what makes a kill at any moment harmless. Records are appended and the state file is written first;
then `checkpoint.safetensors` is put in place in one move, and with it the run is further. What an unfinished write
left behind is not named by anything, and goes when the run goes on. The checkpoint before it stays as
`previous.safetensors`, with its state: digests tell whether a file is as it was written, and a run whose last
checkpoint is damaged or lost goes on from there.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from .._util.digests import refuse_changed_metadata, refuse_changed_tensors, with_digests
from .._util.untrusted import from_json
from . import files
from .packing import owned, packed, unpacked
from .position import Position

WEIGHTS = "checkpoint.safetensors"
PREVIOUS = "previous.safetensors"  # the checkpoint before it
RECORDS = "metrics.jsonl"
FORMAT = 2
WITHOUT_DIGESTS = 1  # a format that is still read
KEY = "steppe"  # of our entry in the metadata of a safetensors file


@dataclass(frozen=True)
class Kept:
    """The part of metrics.jsonl that belongs to a checkpoint."""

    length: int = 0  # in bytes
    digest: str | None = ""  # None: written when there were none


@dataclass(frozen=True)
class Committed:
    """What a checkpoint says of itself."""

    position: Position
    state: str  # the name of the file with everything but the weights
    records: Kept
    finished: bool


@dataclass(frozen=True)
class Loaded:
    """A checkpoint that is whole, with its content."""

    name: str  # of the file with the weights
    about: Committed
    weights: dict[str, Tensor]
    state: Any


def commit(
    folder: Path, weights: Mapping[str, Tensor], state: Any, position: Position, records: Kept, finished: bool
) -> None:
    """Makes this the state that the run goes on from; until the last move it is the one before."""
    name = f"state-{position.epoch}-{position.step}.safetensors"
    tensors, tree = packed(state)
    said = json.dumps({"format": FORMAT, **asdict(Committed(position, name, records, finished))})
    files.replace(folder / name, _saved(tensors, {KEY: said, "tree": tree}))
    content = _saved({k: owned(t) for k, t in weights.items()}, {KEY: said})
    if (folder / WEIGHTS).exists():
        files.link(folder / WEIGHTS, folder / PREVIOUS)
    files.replace(folder / WEIGHTS, content)
    sweep(folder)


def sweep(folder: Path) -> None:
    """Removes what commits before the last two, or interrupted ones, left behind."""
    named = set()
    for name in (WEIGHTS, PREVIOUS):
        with suppress(ValueError, FileNotFoundError):  # one that is damaged or lost names nothing
            about = committed(folder, name)
            named |= {about.state} if about is not None else set()
    for path in [*folder.glob("state-*.safetensors"), *folder.glob(f"*{files.TEMPORARY}")]:
        if path.name not in named:
            files.remove(path)


def committed(folder: Path, name: str = WEIGHTS) -> Committed | None:
    """What the checkpoint of a folder says of itself, or None if there is none yet."""
    path = folder / name
    if not path.exists():
        if name == WEIGHTS and (folder / PREVIOUS).exists():
            raise FileNotFoundError(f"{path} is lost. {BACK}")
        return None
    try:
        with safe_open(path, "pt") as file:
            return _about(file.metadata() or {}, path)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error


def loaded(folder: Path, name: str = WEIGHTS) -> Loaded | None:
    """All of a checkpoint, or None if there is none yet."""
    about = committed(folder, name)
    return None if about is None else Loaded(name, about, weights_in(folder, name), state_in(folder, about, name))


def last_whole(folder: Path, check: Callable[[Committed], object]) -> Loaded | None:
    """The checkpoint to go on from: the last one or, with a warning, the one before it if the last is not whole.

    `check` raises where a checkpoint's records are damaged or lost.
    """

    def whole(name: str) -> Loaded | None:
        found = loaded(folder, name)
        if found is not None:
            check(found.about)
        return found

    try:
        return whole(WEIGHTS)
    except (ValueError, FileNotFoundError) as trouble:
        try:
            found = whole(PREVIOUS)
        except (ValueError, FileNotFoundError):
            found = None
        if found is None:
            raise
        warnings.warn(f"{trouble} Going back to {PREVIOUS}, at {found.about.position}.", stacklevel=2)
        return found


def go_back(folder: Path) -> None:
    """Puts the checkpoint before the last one in its place."""
    files.move(folder / PREVIOUS, folder / WEIGHTS)


def weights_in(folder: Path, name: str = WEIGHTS) -> dict[str, Tensor]:
    """The model's own weights and buffers, as of a commit."""
    return _read(folder / name)[0]


def state_in(folder: Path, about: Committed, name: str = WEIGHTS) -> Any:
    """Everything but the weights, as of that commit."""
    path = folder / about.state
    if not path.exists():
        raise FileNotFoundError(f"{folder / name} belongs to {about.state}, which is not there. {BACK}")
    tensors, metadata = _read(path)
    try:
        if _about(metadata, path) != about:
            raise ValueError("it belongs to another checkpoint")
        return unpacked(tensors, metadata["tree"], path)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise _damaged(path, error) from error


def _saved(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    return save(tensors, with_digests(tensors, metadata))


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    content = path.read_bytes()  # at once: a run that goes on may put another file in its place
    try:
        tensors = load(content)
        metadata = from_json(content[8 : 8 + int.from_bytes(content[:8], "little")], path)["__metadata__"]
        if _format(metadata, path) != WITHOUT_DIGESTS:
            refuse_changed_tensors(tensors, metadata)
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, error) from error
    return tensors, metadata


def _format(metadata: Mapping[str, str], path: Path) -> int:
    number: int = from_json(metadata[KEY], path)["format"]
    if number not in (WITHOUT_DIGESTS, FORMAT):
        raise ValueError(f"its format is {number!r}, and this version of steppe reads {WITHOUT_DIGESTS} and {FORMAT}")
    return number


def _about(metadata: Mapping[str, str], path: Path) -> Committed:
    if _format(metadata, path) != WITHOUT_DIGESTS:
        refuse_changed_metadata(metadata)
    said = from_json(metadata[KEY], path)
    state, records = str(said["state"]), said["records"]
    if Path(state).name != state:
        raise ValueError(f"it names a file elsewhere: {state}")
    kept = Kept(**records) if isinstance(records, dict) else Kept(int(records), None)
    return Committed(Position(**said["position"]), state, kept, bool(said["finished"]))


BACK = "The same `steppe train` goes back to the checkpoint before it, if that is whole; or bring it back from a copy."


def _damaged(path: Path, why: Exception) -> ValueError:
    return ValueError(f"{path} is no checkpoint of a run, or is damaged: {why}. {BACK}")
