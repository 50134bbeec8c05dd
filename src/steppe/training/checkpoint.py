"""Checkpoints of a run: weights in one file, which commits, and all other state in a second file that it names.

A kill at any moment is harmless because of the order of writes. Records are appended to metrics.jsonl, one JSON line
per epoch, and the state file is written first; then `checkpoint.safetensors` is replaced atomically, and only that
advances the run. A resumed run removes the records after its checkpoint and repeats their epochs. Files of an
unfinished write are referenced by nothing and are deleted at the next start. The checkpoint before the last one stays
as `previous.safetensors`, with its state file. Digests detect damage: a run whose last checkpoint is damaged or lost
resumes from the previous one. A finished run of a study keeps its weights and records alone.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors
from torch import Tensor

from .._util import files
from .._util.digests import OURS, check_metadata_unchanged, check_tensors_unchanged, digest, with_digests
from .._util.formats import from_json, json_safe
from .schedule import Position

WEIGHTS = "checkpoint.safetensors"
PREVIOUS = "previous.safetensors"  # the checkpoint before it
RECORDS = "metrics.jsonl"
FORMAT = 2
RESTORE = "Rerun `steppe train` to resume from the checkpoint before it, if that is intact; or restore it from a copy."

Record = dict[str, Any]


@dataclass(frozen=True)
class RecordsPrefix:
    """The part of metrics.jsonl that belongs to a checkpoint."""

    length: int = 0  # in bytes
    digest: str = ""


@dataclass(frozen=True)
class Header:
    """The description of a checkpoint, in both of its files."""

    position: Position
    state: str  # name of the file with everything but the weights; empty for a finished run that keeps none
    records: RecordsPrefix
    finished: bool

    @classmethod
    def of(cls, position: Position, records: RecordsPrefix, finished: bool, *, lean: bool = False) -> Header:
        """Describe the checkpoint that is written at a position; if it is `lean`, without a state."""
        name = "" if lean else f"state-{position.epoch}-{position.step}.safetensors"
        return cls(position, name, records, finished)


@dataclass(frozen=True)
class Checkpoint:
    """An intact checkpoint with its content."""

    name: str  # of the file with the weights
    about: Header
    weights: dict[str, Tensor]
    state: Any
    records: list[Record]


def commit(
    folder: Path, weights: Mapping[str, Tensor], state: Any, header: Header, before: Header | None = None
) -> None:
    """Make this the state that the run resumes from; `before` describes the checkpoint that becomes the previous one.

    Until the last rename, that one is current. A header without a state is that of a finished run, of which only the
    weights are kept.
    """
    text = json.dumps({"format": FORMAT, **asdict(header)})
    if header.state:
        tensors, tree = pack(state)
        files.replace(folder / header.state, _serialised(tensors, {OURS: text, "tree": tree}))
    content = _serialised({k: _on_host(t) for k, t in weights.items()}, {OURS: text})
    if before is not None and header.state:
        files.link(folder / WEIGHTS, folder / PREVIOUS)
    files.replace(folder / WEIGHTS, content)
    if header.state:
        sweep(folder, {header.state, before.state} if before is not None else {header.state})
    else:
        keep_weights_alone(folder)


def keep_weights_alone(folder: Path) -> None:
    """Delete all checkpoints but that of a finished run without a state."""
    files.remove(folder / PREVIOUS)
    sweep(folder, ())


def sweep(folder: Path, referenced: Container[str]) -> None:
    """Delete files of interrupted commits, and state files that no checkpoint references."""
    for path in [*folder.glob("state-*.safetensors"), *folder.glob(f"*{files.TEMPORARY}")]:
        if path.name not in referenced:
            files.remove(path)


def read_header(folder: Path, name: str = WEIGHTS) -> Header | None:
    """Read the header of a checkpoint; None if there is no checkpoint yet."""
    path = folder / name
    if _not_yet(path):
        return None
    with _as_damage(path), safe_open(path, "pt") as file:
        return _header(file.metadata() or {}, path)


def load(folder: Path, name: str = WEIGHTS) -> Checkpoint | None:
    """Read a whole checkpoint; None if there is none yet. Raise if it or its records are damaged or lost."""
    path = folder / name
    if _not_yet(path):
        return None
    header, weights, _ = _read(path)
    state = read_state(folder, header, name) if header.state else None
    return Checkpoint(name, header, weights, state, read_records(folder, header.records))


def _not_yet(path: Path) -> bool:
    """Return whether a checkpoint was never written; raise FileNotFoundError if it is lost."""
    if not path.exists() and path.name == WEIGHTS and path.with_name(PREVIOUS).exists():
        raise FileNotFoundError(f"{path} is lost. {RESTORE}")
    return not path.exists()


def load_intact(folder: Path) -> Checkpoint | None:
    """Read the checkpoint to resume from: the last one or, with a warning, the previous one if the last is damaged."""
    try:
        return load(folder)
    except (ValueError, FileNotFoundError) as damage:
        try:
            previous = load(folder, PREVIOUS)
        except (ValueError, FileNotFoundError):
            previous = None
        if previous is None:
            raise
        warnings.warn(f"{damage} Going back to {PREVIOUS}, at {previous.about.position}.", stacklevel=2)
        return previous


def go_back(folder: Path) -> None:
    """Make the previous checkpoint the last one."""
    files.move(folder / PREVIOUS, folder / WEIGHTS)


def read_weights(folder: Path, name: str = WEIGHTS) -> dict[str, Tensor]:
    """Read the model's weights and buffers."""
    return _read(folder / name)[1]


def read_state(folder: Path, header: Header, name: str = WEIGHTS) -> Any:
    """Read everything but the weights of a checkpoint."""
    path = folder / header.state
    if not path.exists():
        raise FileNotFoundError(f"{folder / name} needs {header.state}, which does not exist. {RESTORE}")
    own, tensors, tree = _read(path)
    with _as_damage(path):
        if own != header:
            raise ValueError("it belongs to another checkpoint")
        return unpack(tensors, tree, path)


def append_record(folder: Path, record: Mapping[str, Any], before: RecordsPrefix) -> tuple[Record, RecordsPrefix]:
    """Append the record of an epoch; return it as it will be read, and the length and digest of all records."""
    line = (json.dumps(json_safe(record), allow_nan=False) + "\n").encode()
    return json.loads(line), RecordsPrefix(files.append(folder / RECORDS, line), _chained(before.digest, line))


def read_records(folder: Path, prefix: RecordsPrefix) -> list[Record]:
    """Read the records of a checkpoint; later lines belong to none yet. Raise ValueError if they have changed."""
    return [from_json(line, f"{folder / RECORDS} is damaged") for line in _lines(folder, prefix)]


def _lines(folder: Path, prefix: RecordsPrefix) -> list[bytes]:
    path = folder / RECORDS
    content = b""
    if prefix.length and path.exists():
        with path.open("rb") as file:
            content = file.read(prefix.length)
    if len(content) < prefix.length:
        raise ValueError(
            f"{path} has {len(content)} bytes, and {prefix.length} belong to the checkpoint beside it: the file was "
            "changed or lost. Restore it, or start the run in another folder."
        )
    lines = content.splitlines(keepends=True)
    if reduce(_chained, lines, "") != prefix.digest:
        raise ValueError(
            f"{path} is damaged: its first {len(lines)} lines do not match the digest in the checkpoint beside it. "
            "Restore it from a copy, or start the run in another folder."
        )
    return lines


def _chained(before: str, line: bytes) -> str:
    """Return the digest of all lines from the digest of the lines before this one."""
    return digest([before, line])


def pack(tree: Any) -> tuple[dict[str, Tensor], str]:
    """Split nested state into tensors by path and a JSON text of the rest, without pickle.

    Python writes floats so that they are read back exactly.
    """
    tensors: dict[str, Tensor] = {}

    def packed(x: Any, path: str) -> Any:
        if isinstance(x, Tensor):
            tensors[path] = _on_host(x)
            # strides of e.g. channels-last memory are kept: reductions over another order round differently
            return {"tensor": path} if x.is_contiguous() else {"tensor": path, "strides": list(x.stride())}
        if isinstance(x, dict):
            for key in x:
                if type(key) not in (int, str):
                    kind = type(key).__name__
                    raise TypeError(f"{path} has a key of type {kind}; a checkpoint holds only int and str keys")
            return {"dict": [[k, packed(v, f"{path}/{k}")] for k, v in x.items()]}
        if isinstance(x, (list, tuple)):
            return {type(x).__name__: [packed(v, f"{path}/{i}") for i, v in enumerate(x)]}
        if isinstance(x, (bool, int, float, str, type(None))):
            return x
        raise TypeError(
            f"{path} is a {type(x).__name__}; a checkpoint holds only tensors, numbers, strings, lists and dicts"
        )

    return tensors, json.dumps(packed(tree, ""))


def unpack(tensors: dict[str, Tensor], text: str, where: Path | str = "") -> Any:
    """Rebuild what `pack` split; errors name the file `where`."""

    def unpacked(x: Any) -> Any:
        if not isinstance(x, dict):
            return x
        if "tensor" in x:
            stored = tensors[x["tensor"]]
            strides = x.get("strides", stored.stride())
            return torch.empty_strided(stored.shape, strides, dtype=stored.dtype).copy_(stored)
        if "dict" in x:
            return {k: unpacked(v) for k, v in x["dict"]}
        kind = list if "list" in x else tuple
        return kind(unpacked(v) for v in x[kind.__name__])

    return unpacked(from_json(text, where))


def _on_host(t: Tensor) -> Tensor:
    """Copy a tensor to the CPU; the copy shares no memory, as safetensors requires."""
    return t.detach().to("cpu", copy=True).contiguous()


def _serialised(tensors: dict[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    return save_tensors(tensors, with_digests(tensors, metadata))


def _read(path: Path) -> tuple[Header, dict[str, Tensor], str]:
    """Read the header, the tensors and the tree of a file; raise ValueError unless all are as they were written."""
    content = path.read_bytes()  # in one read: a running process may replace the file meanwhile
    with _as_damage(path):
        tensors = load_tensors(content)
        metadata = from_json(content[8 : 8 + int.from_bytes(content[:8], "little")], path)["__metadata__"]
        header = _header(metadata, path)
        check_tensors_unchanged(tensors, metadata)
        return header, tensors, metadata.get("tree", "")


def _header(metadata: Mapping[str, str], path: Path) -> Header:
    about = from_json(metadata[OURS], path)
    if about["format"] != FORMAT:
        raise ValueError(f"its format is {about['format']!r}; this version of steppe reads {FORMAT}")
    check_metadata_unchanged(metadata)
    state = str(about["state"])
    if Path(state).name != state:
        raise ValueError(f"it names a file outside its folder: {state}")
    return Header(Position(**about["position"]), state, RecordsPrefix(**about["records"]), bool(about["finished"]))


@contextmanager
def _as_damage(path: Path) -> Iterator[None]:
    """Turn the errors that damaged bytes raise into one ValueError that says what to do."""
    try:
        yield
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"{path} is no checkpoint of a run, or is damaged: {error}. {RESTORE}") from error
