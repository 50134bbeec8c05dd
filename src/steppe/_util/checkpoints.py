"""Checkpoints: weights read from a file without running code in it, and matched to a model by name."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence, Set
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar
from zipfile import ZIP_STORED, ZipFile

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T")
State: TypeAlias = "Mapping[str, Tensor]"

WRAPPERS = ("state_dict", "model_state_dict", "model", "module", "net", "weights", "params")
"""Keys under which training scripts save a state dict beside other things, the likeliest first."""
DEPTH = 4  # of nested wrappers
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar")
ZIP = b"PK\x03\x04"  # the first bytes of torch.save's zip format, which older formats do not have
PAIRS = 3  # of similar names in an error message


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint by name: a .safetensors file, or one of torch.save with nothing but weights.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If the file is damaged, holds more than weights, or holds no state dict.

    """
    if not path.is_file():
        raise FileNotFoundError(f"there is no checkpoint {str(path)!r}")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: a checkpoint is a file that ends in {', '.join(SUFFIXES)}, or a run's folder")
    if path.suffix == ".safetensors":
        return _safetensors(path)
    return _unwrapped(load_plain(path), path)


def load_plain(path: Path, allowed: Sequence[Any] = ()) -> Any:
    """Read a file of torch.save that holds tensors and plain containers; raise ValueError if it holds anything else.

    Parameters
    ----------
    path
        The file.
    allowed
        Functions and classes that it may name beside torch's own, as for `torch.serialization.safe_globals`.

    """
    import torch

    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(list(allowed)):
            warnings.simplefilter("ignore")  # about kinds of pickles that raise anyway
            return torch.load(_stored(path), map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ValueError(
            f"{path} holds more than weights, or is damaged, and what else is in it could run code: it was not opened. "
            "Where you trust it, save the weights alone: torch.save(model.state_dict(), ...), or as .safetensors"
        ) from error
    except Exception as error:  # bytes that are no checkpoint raise errors of any type
        raise ValueError(f"{path} is no checkpoint as torch.save writes it, or is damaged: {error!r:.300}") from error


def _stored(path: Path) -> Path | BytesIO:
    """Return a checked copy of a zip file of torch.save: torch would inflate compressed records without limit.

    torch reads the copy because two readers may find two lists of records in one file. A file in an older format has
    no records, and torch reads it directly: its tensors are stored byte by byte.
    """
    with path.open("rb") as file:
        if file.read(len(ZIP)) != ZIP:
            return path
    copy, size = BytesIO(), path.stat().st_size
    with ZipFile(path) as source, ZipFile(copy, "w") as plain:
        records = source.infolist()
        declared = sum(record.file_size for record in records)
        if declared > size:
            raise ValueError(f"it has {size:,} bytes and declares {declared:,} bytes: its records inflate or overlap")
        if len({record.filename for record in records}) < len(records):
            raise ValueError("it holds two records of one name, and torch.save writes no such files")
        for record in records:
            if record.compress_type != ZIP_STORED:
                raise ValueError(f"it holds {record.filename!r} compressed, and torch.save writes no such files")
            plain.writestr(record.filename, source.read(record))
    copy.seek(0)
    return copy


def _safetensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import load_file

    from .digests import DIGEST, DIGESTS, OURS, check_tensors_unchanged

    try:
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
        if {OURS, DIGEST, DIGESTS} & metadata.keys():  # a run's checkpoint, which has all three
            check_tensors_unchanged(tensors, metadata)
    except (SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is no .safetensors file, or is damaged: {error}") from error
    return tensors


def _unwrapped(loaded: Any, path: Path) -> dict[str, Tensor]:
    """Return the state dict inside what a training script saved."""
    from torch import Tensor

    for _ in range(DEPTH):
        if not isinstance(loaded, Mapping):
            raise ValueError(f"{path} holds a {type(loaded).__name__}, not a state dict: a mapping of names to tensors")
        tensors = {str(k): t for k, t in loaded.items() if isinstance(t, Tensor)}
        inner = next((w for w in WRAPPERS if isinstance(loaded.get(w), Mapping)), None)
        if inner is None or (tensors and len(tensors) == len(loaded)):
            break
        loaded = loaded[inner]
    if not tensors:
        keys = ", ".join(map(repr, list(loaded)[:5])) or "nothing"
        raise ValueError(f"{path} has no tensors in it, but {keys}: a state dict is looked for under {WRAPPERS}")
    return tensors


def load_into(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Load a state dict into a model, whatever prefix its names have; raise ValueError if it does not fit."""
    try:
        tensors = matched(model, without_prefix(state, model.state_dict().keys()))
    except ValueError as error:
        raise ValueError(
            f"{path}: {error}. Name its model and the options of that: --model and --model-options, or model and "
            "model_options in a study's base"
        ) from error
    model.load_state_dict(tensors, strict=False)  # matched() has checked the names; extra state has no tensors


def without_prefix(state: Mapping[str, T], own: Set[str], prefix: str | None = None) -> dict[str, T]:
    """Return a state dict without the prefixes that wrappers add to all of its names.

    Parameters
    ----------
    state
        Values by name.
    own
        The model's own names. The number of prefixes removed is the one with which most names match these.
    prefix
        The only prefix to remove, such as DistributedDataParallel's "module". Defaults to any that all names share.

    """
    names = dict(state)
    readings = [names]
    while names and all("." in name for name in names):
        shared = {name.partition(".")[0] for name in names}
        if len(shared) > 1 or prefix not in (None, *shared):
            break
        names = {name.partition(".")[2]: value for name, value in names.items()}
        readings.append(names)
    return max(readings, key=lambda reading: len(own & reading.keys()))


def matched(model: nn.Module, state: State) -> dict[str, Tensor]:
    """Return the tensors of a state dict by the model's own names; raise ValueError with the keys that do not fit.

    Prefixes of DistributedDataParallel and torch.compile are removed. Of tied weights one name is enough.
    """
    import torch
    from torch import Tensor

    if not isinstance(state, Mapping):
        raise TypeError(f"a checkpoint is a state dict, not a {type(state).__name__}")
    own = {name: t for name, t in model.state_dict(keep_vars=True).items() if isinstance(t, Tensor)}
    # a file may hold a buffer that classes made only later, such as BERT's positions, if it says the same
    made = {name: buffer for name, buffer in model.named_buffers() if name not in own}
    renamed = _renamed(state, own)
    for name, buffer in made.items():
        if isinstance(t := renamed.get(name), Tensor) and torch.equal(t, buffer.to(t)):
            del renamed[name]
    tensors = {id(t): renamed[name] for name, t in own.items() if isinstance(renamed.get(name), Tensor)}
    faults = {
        "missing": [name for name, t in own.items() if id(t) not in tensors],
        "unexpected": [name for name in renamed if name not in own],
        "of another shape": [
            f"{name} {tuple(tensors[id(t)].shape)} where the model has {tuple(t.shape)}"
            for name, t in own.items()
            if id(t) in tensors and tensors[id(t)].shape != t.shape
        ],
    }
    if any(faults.values()):
        problems = "; ".join(f"{fault}: {_listed(names)}" for fault, names in faults.items() if names)
        near = [(name, get_close_matches(name, faults["missing"], n=1, cutoff=0.4)) for name in faults["unexpected"]]
        pairs = "; ".join([f"{name!r} may be {match[0]!r}" for name, match in near if match][:PAIRS])
        inner = [name for name, value in state.items() if isinstance(value, Mapping)]
        hint = f". Did you mean the state dict under {inner[0]!r}?" if inner else f" ({pairs})" if pairs else ""
        raise ValueError(f"the state dict does not fit the model: {problems}{hint}")
    return {name: tensors[id(t)] for name, t in own.items()}


def _renamed(state: State, own: State) -> dict[str, Tensor]:
    """Return a state dict without prefixes of wrappers that the model's own names do not have."""
    plain = {name.replace("_orig_mod.", ""): name for name in own}
    reading = {k.replace("_orig_mod.", ""): v for k, v in state.items() if not k.endswith("_extra_state")}
    best = without_prefix(reading, plain.keys(), "module")
    return {plain.get(k, k): v for k, v in best.items()}


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
