"""Corrupted images kept on disk as .npy, under a key of everything that they follow from.

A file is written beside its place and moved there whole, so that several processes may share a folder. It ends with
a SHA-256 of what comes before, which NumPy does not read: a file that is cut off or changed is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..._util.files import atomic_write

LIBRARIES = ("numpy", "scipy", "torch", "pillow")  # another release may draw or round otherwise
DIGEST = sha256().digest_size


def cached(folder: Path, inputs: Tensor, name: str, severity: int, seed: int, make: Callable[[], Tensor]) -> Tensor:
    """What `make` made of these inputs, now or before."""
    key = _key(inputs, name, severity, seed)
    path = folder / f"{name}-{severity}-{key}.npy"
    images = _read(path, tuple(inputs.shape))
    if images is None:
        images = make()
        _write(path, images)
    return images


def _key(inputs: Tensor, name: str, severity: int, seed: int) -> str:
    whole = sha256(f"{_makers()} {name} {severity} {seed} {inputs.dtype} {tuple(inputs.shape)}".encode())
    whole.update(inputs.cpu().contiguous().numpy().data)
    return whole.hexdigest()[:32]


@lru_cache(maxsize=1)
def _makers() -> str:
    """The source of the corruptions and the releases of what they are built on: what else the images depend on."""
    here = Path(__file__).parent
    sources = [*sorted(here.glob("*.py")), here.parent / "colours.py"]
    code = sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    return " ".join([code, *(f"{library} {_version(library)}" for library in LIBRARIES)])


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "unknown"


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """The images of a whole file; None where there is none, or a damaged one."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    body, digest = content[:-DIGEST], content[-DIGEST:]
    if sha256(body).digest() != digest:
        return None
    images = np.load(BytesIO(body), allow_pickle=False)
    return torch.from_numpy(images) if images.shape == shape and images.dtype == np.uint8 else None


def _write(path: Path, images: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    body = BytesIO()
    np.save(body, images.numpy(), allow_pickle=False)
    with atomic_write(path) as file:
        file.write(body.getbuffer())
        file.write(sha256(body.getbuffer()).digest())
