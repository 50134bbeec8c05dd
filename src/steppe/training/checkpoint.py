"""A run's state on disk: weights in one file that commits, everything else in a file that it names.

The order is what makes a kill at any moment harmless. Records are appended and the state file is written first;
then `checkpoint.safetensors` is put in place in one move, and with it the run is further. What an unfinished write
left behind is not named by anything, and goes when the run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import Tensor

from ..untrusted import from_json
from . import files
from .packing import owned, packed, unpacked
from .position import Position

WEIGHTS = "checkpoint.safetensors"
RECORDS = "metrics.jsonl"
FORMAT = 1
KEY = "steppe"  # of our entry in the metadata of a safetensors file


@dataclass(frozen=True)
class Committed:
    """What a checkpoint says of itself."""

    position: Position
    state: str  # the name of the file with everything but the weights
    records: int  # bytes of metrics.jsonl that belong to it
    finished: bool


def commit(
    folder: Path, weights: Mapping[str, Tensor], state: Any, position: Position, records: int, finished: bool
) -> None:
    """Makes this the state that the run goes on from; until the last move it is the one before."""
    name = f"state-{position.epoch}-{position.step}.safetensors"
    tensors, tree = packed(state)
    about = Committed(position, name, records, finished)
    said = json.dumps({"format": FORMAT, **asdict(about)})
    files.replace(folder / name, save(tensors, {KEY: said, "tree": tree}))
    files.replace(folder / WEIGHTS, save({k: owned(t) for k, t in weights.items()}, {KEY: said}))
    sweep(folder, about)


def sweep(folder: Path, about: Committed | None) -> None:
    """Removes what commits before this one, or interrupted ones, left behind."""
    for path in [*folder.glob("state-*.safetensors"), *folder.glob(f"*{files.TEMPORARY}")]:
        if about is None or path.name != about.state:
            files.remove(path)


def committed(folder: Path) -> Committed | None:
    """What the checkpoint of a folder says of itself, or None if there is none yet."""
    if not (folder / WEIGHTS).exists():
        return None
    try:
        with safe_open(folder / WEIGHTS, "pt") as file:
            return _about(from_json((file.metadata() or {})[KEY], folder / WEIGHTS))
    except (SafetensorError, ValueError, KeyError, TypeError) as error:
        raise _damaged(folder / WEIGHTS, error) from error


def weights_in(folder: Path) -> dict[str, Tensor]:
    """The model's own weights and buffers, as of the last commit."""
    return _read(folder / WEIGHTS)[0]


def state_in(folder: Path, about: Committed) -> Any:
    """Everything but the weights, as of that commit."""
    path = folder / about.state
    if not path.exists():
        raise FileNotFoundError(f"{folder / WEIGHTS} belongs to {about.state}, which is not there: bring it back")
    tensors, metadata = _read(path)
    try:
        if _about(from_json(metadata[KEY], path)) != about:
            raise KeyError("it belongs to another checkpoint")
        return unpacked(tensors, metadata["tree"], path)
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise _damaged(path, error) from error


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    content = path.read_bytes()  # at once: a run that goes on may put another file in its place
    try:
        tensors = load(content)
        header = from_json(content[8 : 8 + int.from_bytes(content[:8], "little")], path)
    except (SafetensorError, ValueError) as error:
        raise _damaged(path, error) from error
    return tensors, header.get("__metadata__", {})


def _about(said: dict[str, Any]) -> Committed:
    if said["format"] != FORMAT:
        raise KeyError(f"its format is {said['format']}, and this version of steppe reads {FORMAT}")
    state = str(said["state"])
    if Path(state).name != state:
        raise KeyError(f"it names a file elsewhere: {state}")
    return Committed(Position(**said["position"]), state, int(said["records"]), bool(said["finished"]))


def _damaged(path: Path, why: Exception) -> ValueError:
    return ValueError(
        f"{path} is no checkpoint of a run, or is damaged: {why}. Bring it back from a copy, or start anew."
    )
