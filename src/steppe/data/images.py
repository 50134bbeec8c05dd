"""Picture files as one tensor of bytes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from .damage import MOST_BYTES, DataError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp"))
FORMATS = ("JPEG", "PNG", "BMP", "PPM", "WEBP")  # whatever the suffix says: others, such as EPS, start programs
GREY = frozenset(("1", "L", "LA"))


def pixels(files: Sequence[Path], size: int | None = None) -> Tensor:
    """The pictures as (rows, channels, height, width): one channel where all are grey, else three.

    All have to be of one size, unless `size` is given: then the shorter side is scaled to it, and the middle kept.
    """
    if not files:
        raise ValueError("no pictures to read")
    from PIL.Image import DecompressionBombWarning

    with warnings.catch_warnings():  # around the threads, because it is not made for use within them
        warnings.simplefilter("ignore")  # odd metadata do not matter, and broken pixels raise
        warnings.simplefilter("error", DecompressionBombWarning)
        return _pixels(files, size)


def _pixels(files: Sequence[Path], size: int | None) -> Tensor:
    width, height = (size, size) if size is not None else _size(files[0])
    if len(files) * 3 * height * width > MOST_BYTES:
        raise DataError(
            f"{files[0].parent}: {len(files)} pictures of {width} x {height} are more than {MOST_BYTES:,} bytes, "
            "the limit of what is kept in memory; make them smaller first"
        )
    whole = np.empty((len(files), 3, height, width), np.uint8)

    def fill(row: int) -> bool:
        rgb, grey = _decoded(files[row], (width, height), size)
        whole[row] = rgb.transpose(2, 0, 1)
        return grey

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding lets other threads run
        all_grey = all(list(pool.map(fill, range(len(files)))))
    return torch.from_numpy(whole[:, :1].copy() if all_grey else whole)


def _size(path: Path) -> tuple[int, int]:
    with _opened(path) as picture:
        return picture.size


def _opened(path: Path) -> Image:
    from PIL import Image, UnidentifiedImageError

    try:
        return Image.open(path, formats=FORMATS)
    except UnidentifiedImageError as error:
        raise DataError(f"{path}: not a picture that can be read ({', '.join(FORMATS)})") from error
    except FileNotFoundError:
        raise
    except Exception as error:  # Pillow answers damaged files with whatever happens to go wrong
        raise DataError(f"{path}: not a readable picture: {error}") from error


def _decoded(path: Path, want: tuple[int, int], size: int | None) -> tuple[np.ndarray, bool]:
    with _opened(path) as picture:
        if size is None and picture.size != want:
            raise DataError(
                f"{path}: it is {picture.size[0]} x {picture.size[1]} where others are {want[0]} x {want[1]}; "
                "bring them to one size, such as 64 with `folder:PATH@64`"
            )
        try:
            rgb = picture.convert("RGB")
            return np.asarray(rgb if size is None else _middle(rgb, size)), picture.mode in GREY
        except Exception as error:
            raise DataError(f"{path}: a broken picture: {error}") from error


def _middle(picture: Image, size: int) -> Image:
    from PIL import ImageOps

    return ImageOps.fit(picture, (size, size))
