"""Test rows under corruptions: the official files where they are on disk, otherwise remade from the test rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from . import cifar_c, folders
from .catalogue import DATASETS
from .corruptions import corrupted, registered, selected
from .dataset import DataError, Dataset

REMADE = "remade"
CACHE = "corrupted"  # folder of remade images under the root
TINY = "tiny-imagenet"


@dataclass(frozen=True)
class CorruptedRows:
    """The test rows of a data set under corruptions, read or made on demand.

    Attributes
    ----------
    data, root, test
        The data set's name, the folder of the data sets, and the test rows.
    names
        The corruptions.
    source
        Where the images come from: the name of the official set, such as "CIFAR-10-C", or "remade". Numbers of the two
        are not comparable.

    """

    data: str
    root: Path
    test: Dataset
    names: tuple[str, ...]
    source: str

    def rows(self, name: str, severity: int) -> Dataset:
        """Return the test rows under one corruption at one severity, on the device of the test rows."""
        if self.source == REMADE:
            constants = TINY if self.data == TINY else "cifar"
            rows = corrupted(self.test.to("cpu"), name, severity, cache=self.root / CACHE, constants=constants)
        elif self.data == TINY:
            rows = folders.read_tiny_imagenet_c(self.root / self.source, name, severity, self.test)
        else:
            rows = cifar_c.read(self.root / self.source, self.data, name, severity)
        return rows.to(self.test.inputs.device)


def corrupted_rows(data: str, root: Path | str, test: Dataset, names: Iterable[str]) -> CorruptedRows:
    """Choose the official files if their folder is under the root; raise DataError if they do not fit the request.

    Parameters
    ----------
    data
        The data set's name.
    root
        The folder that holds the data sets, among them `CIFAR-10-C`, `CIFAR-100-C` or `Tiny-ImageNet-C`.
    test
        The test rows.
    names
        Corruptions, or `all` (19), or `main` (15).

    """
    root, chosen = Path(root).expanduser(), selected(names)
    archive = DATASETS[data].corrupted if data in DATASETS else None
    if archive is None or not (root / archive.holds).is_dir():
        for name in chosen:
            registered(name)
        return CorruptedRows(data, root, test, chosen, REMADE)
    folder = root / archive.holds
    have = folders.tiny_corruptions(folder) if data == TINY else cifar_c.corruptions(folder)
    if missing := [name for name in chosen if name not in have]:
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        raise DataError(
            f"{folder} lacks {missing[0]}{more}: evaluate fewer corruptions (`main` for the benchmark's 15), complete "
            "the folder, or rename it to evaluate remade images instead"
        )
    if data == TINY:
        for name in chosen:
            folders.check_same_classes(test.classes, folder / name / "1")
    elif not torch.equal(cifar_c.labels(folder, data, 1), test.targets.cpu()):
        raise DataError(
            f"{folder / 'labels.npy'}: the labels are not those of the {len(test)} test rows of {data}; one of the two "
            "is incomplete or in another order"
        )
    return CorruptedRows(data, root, test, chosen, archive.holds)
