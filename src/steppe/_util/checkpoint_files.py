"""Weights that somebody hands in: read without running anything in the file, and put into a model by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any
from zipfile import ZIP_STORED, ZipFile

from .checkpoints import matched, without_prefix

if TYPE_CHECKING:
    from torch import Tensor, nn

WRAPPERS = ("state_dict", "model_state_dict", "model", "net", "weights", "params")
"""Keys under which training scripts keep a state dict among other things, the likeliest first."""
DEPTH = 4  # of such wrappers in one another
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
ZIP = b"PK\x03\x04"  # the first bytes by which torch.load tells its zip format from the older ones
PAIRS = 3  # of names that are shown where they do not fit


def read(path: Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by name: a .safetensors file, or what torch.save wrote and holds weights only."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a checkpoint is a file that ends in {', '.join(SUFFIXES)}, or a run's folder")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    import torch

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles of kinds that are refused anyway
            found = torch.load(_stored(path), map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than weights, or is damaged, and what else is in it could run code: it was not opened. "
            "Where you trust it, save the weights alone: torch.save(model.state_dict(), ...), or as .safetensors"
        ) from error
    except ZipError as error:
        raise ValueError(f"{path} {error}") from error
    except Exception as error:  # bytes that are no checkpoint make it fail in ways that have no end
        raise ValueError(f"{path} is no checkpoint as torch.save writes it, or is damaged: {error!r:.200}") from error
    return _unwrapped(found, path)


class ZipError(ValueError):
    """Records of a zip file that torch.save does not write."""


def _stored(path: Path) -> Path | BytesIO:
    """What torch.save wrote, its records checked and copied: torch reads compressed ones, however far they inflate.

    It reads the copy because two readers may find two lists of records in one file. An old file without records is
    read as it is: its tensors lie in it byte by byte.
    """
    with path.open("rb") as file:
        if file.read(len(ZIP)) != ZIP:
            return path
    copy, size = BytesIO(), path.stat().st_size
    with ZipFile(path) as given, ZipFile(copy, "w") as plain:
        records = given.infolist()
        declared = sum(record.file_size for record in records)
        if declared > size:
            raise ZipError(f"has {size:,} bytes and declares {declared:,} bytes: its records inflate or overlap")
        if len({record.filename for record in records}) < len(records):
            raise ZipError("holds two records of one name, and torch.save writes no such files")
        for record in records:
            if record.compress_type != ZIP_STORED:
                raise ZipError(f"holds {record.filename!r} compressed, and torch.save writes no such files")
            plain.writestr(record.filename, given.read(record))
    copy.seek(0)
    return copy


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    from .digests import DIGESTS, refuse_changed_tensors

    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        if DIGESTS in metadata:  # a run's checkpoint
            refuse_changed_tensors(tensors, metadata)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is no .safetensors file, or is damaged: {error}") from error
    return tensors


def _unwrapped(found: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in what a training script saved."""
    from torch import Tensor

    for _ in range(DEPTH):
        if not isinstance(found, Mapping):
            raise ValueError(f"{path} holds a {type(found).__name__}, not a state dict: a mapping of names to tensors")
        tensors = {str(k): t for k, t in found.items() if isinstance(t, Tensor)}
        inner = next((w for w in WRAPPERS if isinstance(found.get(w), Mapping)), None)
        if inner is None or (tensors and len(tensors) == len(found)):
            break
        found = found[inner]
    if not tensors:
        keys = ", ".join(map(repr, list(found)[:5])) or "nothing"
        raise ValueError(f"{path} has no tensors in it, but {keys}: a state dict is looked for under {WRAPPERS}")
    return tensors


def load_into(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Puts a state dict into a model, whatever prefix its names have, or says what does not fit."""
    state = without_prefix(state, model.state_dict().keys())
    try:
        found = matched(model, state)
    except ValueError as error:
        own = list(model.state_dict())
        missing = [name for name in own if name not in state]
        strange = [name for name in state if name not in own]
        near = [(s, get_close_matches(s, missing, n=1, cutoff=0.4)) for s in strange]
        pairs = [f"{s!r} may be {m[0]!r}" for s, m in near if m][:PAIRS]
        hint = f" ({'; '.join(pairs)}.)" if pairs else ""
        raise ValueError(
            f"{path}: {error}.{hint} Say which model it is with --model, and how it was built with --model-options"
        ) from error
    model.load_state_dict(found, strict=False)  # matched() has seen to the names; extra state has no tensors
