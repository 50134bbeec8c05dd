"""Digests of written data, checked when it is read. SHA-256: 1.7 GB/s on a CPU with instructions for it."""

from __future__ import annotations

import io
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import files
from .formats import yaml_in

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray
    from torch import Tensor

OURS, DIGESTS, DIGEST = "steppe", "digests", "digest"
"""Entries in the metadata of a safetensors file: what it is, and digests of each tensor and of all other entries."""
TAIL_LENGTH = 33  # bytes after the array in a .npy file, where other readers ignore them: a line feed and the digest
EDITED = "edited"
"""The digest of a YAML file that somebody changed on purpose; a lost digest is damage."""


def digest(parts: Iterable[str | bytes | memoryview]) -> str:
    """Return a digest of strings or bytes, in hexadecimal."""
    state = sha256()
    for part in parts:
        state.update(part.encode() if isinstance(part, str) else part)
    return state.hexdigest()[:32]


def with_digests(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> dict[str, str]:
    """Return the metadata of a safetensors file of these tensors, with digests of both."""
    entries = {**metadata, DIGESTS: json.dumps({name: _of_tensor(t) for name, t in tensors.items()})}
    return {**entries, DIGEST: _of_mapping(entries)}


def check_metadata_unchanged(metadata: Mapping[str, str]) -> None:
    """Raise ValueError unless the metadata are those that `with_digests` returned."""
    entries = {k: v for k, v in metadata.items() if k != DIGEST}
    if DIGESTS not in entries or metadata.get(DIGEST) != _of_mapping(entries):
        raise ValueError("its metadata do not match their digest")


def check_tensors_unchanged(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Raise ValueError, with the name of the tensor, unless the tensors match their digests in the metadata."""
    check_metadata_unchanged(metadata)
    written: dict[str, str] = json.loads(metadata[DIGESTS])
    for name in [*written, *tensors]:
        if name not in tensors or name not in written:
            raise ValueError(f"the tensor {name!r} is {'not in it' if name in written else 'not one of its own'}")
        if _of_tensor(tensors[name]) != written[name]:
            raise ValueError(f"the tensor {name!r} does not have the digest that was written with it")


def save_array(file: Path, array: NDArray[Any]) -> None:
    """Write an array to a .npy file with its digest, atomically."""
    import numpy as np

    content = io.BytesIO()
    np.save(content, array, allow_pickle=False)
    body = content.getvalue()
    files.replace(file, body + b"\n" + digest([body]).encode())


def read_array(file: Path, others: bool = False) -> NDArray[Any]:
    """Read a .npy file that `save_array` wrote, or with `others` also one that ends with its array, as numpy writes it.

    Raises ValueError if its digest does not match, or is missing.
    """
    import numpy as np

    stream = io.BytesIO(content := file.read_bytes())
    damaged = f"{file} is damaged: its digest does not match its content. Restore it from a copy"
    intact = content[-TAIL_LENGTH:] == b"\n" + digest([content[:-TAIL_LENGTH]]).encode()
    if not intact and not others:
        raise ValueError(damaged)
    try:
        array: NDArray[Any] = np.load(stream, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{file} is not a .npy file, or is damaged: {error}") from error
    if not intact and stream.tell() < len(content):
        raise ValueError(damaged)
    return array


def packed_bits(flags: ArrayLike) -> str:
    """Write flags, one bit each, as text: their number, the bits in base 64, and a digest of both."""
    import numpy as np

    array = np.asarray(flags, dtype=bool)
    text = f"{len(array)}:{b64encode(np.packbits(array).tobytes()).decode()}"
    return f"{text}:{digest([text])}"


def unpacked_bits(text: str) -> NDArray[np.bool_]:
    """Read the flags that `packed_bits` wrote; raise ValueError if the text was changed."""
    import numpy as np

    body, _, stored = text.rpartition(":")
    if stored != digest([body]):
        raise ValueError(f"{text:.40}... are no packed bits, or are damaged: their digest does not match")
    count, _, bits = body.partition(":")
    return np.unpackbits(np.frombuffer(b64decode(bits), np.uint8), count=int(count)).astype(bool)


def save_yaml(file: Path, content: Mapping[str, Any]) -> None:
    """Write a mapping to a YAML file with its digest, atomically."""
    import yaml

    entries = {**content, DIGEST: _of_mapping(content)}
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # in C four times as fast, and the same text
    files.replace(file, yaml.dump(entries, Dumper=dumper, sort_keys=False, allow_unicode=True).encode())


def read_yaml(file: Path, what: str, check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Read the mapping in a YAML file.

    Parameters
    ----------
    file
        A file that `save_yaml` wrote.
    what
        What the file describes, for errors.
    check
        Raises ValueError, KeyError, TypeError or AttributeError if the mapping does not describe it.

    Raises
    ------
    ValueError
        If the file is not YAML, its digest does not match, or `check` raises.

    """
    try:
        content: dict[str, Any] = yaml_in(file)
        stored = content.pop(DIGEST, None)
        changed = stored not in (_of_mapping(content), EDITED)
        if not changed or stored is None:  # without a digest it may be another program's
            check(content)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} does not describe {what}: {error!r}. Restore it, or use another folder") from error
    if changed:
        raise ValueError(
            f"{file} is damaged, or was changed: its digest is missing or does not match its content. Restore it from "
            f"a copy. If you changed it on purpose, write `{DIGEST}: {EDITED}` in it"
        )
    return content


def _of_mapping(content: Mapping[str, Any]) -> str:
    return digest([json.dumps(content, sort_keys=True, default=repr)])


def _of_tensor(t: Tensor) -> str:
    import torch

    # bytes, whatever the type: numpy has no bfloat16
    flat = t.detach().contiguous().reshape(-1).view(torch.uint8)
    return digest([f"{t.dtype} {tuple(t.shape)} ", flat.numpy().data])
