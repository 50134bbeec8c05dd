"""Data sets by name: the registration of each states all that is known of it, from its address to its layout on disk.

This module does not import torch, so that commands list data sets quickly.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from os.path import isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .._util.names import unknown
from .._util.registry import Registry

if TYPE_CHECKING:
    from .dataset import Splits

Read = TypeVar("Read", bound=Callable[..., "Splits"])


@dataclass(frozen=True)
class File:
    """A published file: its address, its place under the root, its size and its digest."""

    url: str
    place: str  # under the root
    size: int
    digest: str  # "sha256:..." or "md5:..."
    holds: str = ""  # the folder that an archive unpacks to, beside it
    proof: str = ""  # what is in that folder if it is complete

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def result(self) -> str:
        """What it leaves under the root: the folder that it unpacks to, or the file."""
        return str(Path(self.place).with_name(self.holds)) if self.holds else self.place

    def differs(self, path: Path) -> str:
        """Return how a file on disk differs from the published one; empty where it does not."""
        return _differs(path, self.digest)


@dataclass(frozen=True)
class Layout:
    """Possible places of a data set under a root, and the files needed there; a trailing slash marks a folder."""

    places: tuple[str, ...]
    needs: tuple[str, ...]

    def missing(self, folder: Path) -> list[str]:
        return [name for name in self.needs if not _is_there(f"{folder}/{name}")]


@dataclass(frozen=True)
class Source:
    """A data set by name; called with a root, it reads the rows.

    Parameters
    ----------
    name
        The name in configurations and commands.
    read
        Reads it from under a root; where it is `sized`, the second argument is the size in pixels.
    title
        What it is, in a line.
    rows, shape, classes
        The numbers of training and test rows, the shape of an input, and the number of classes, where they are known.
    cite
        Authors, year and title, and a licence that matters.
    sized
        Whether it has pictures of many sizes: its name takes the one to resize them to, as in `flowers102@64`.
    layouts
        Where its files may lie under a root; none for a data set without files.
    files
        The published files, for `steppe data get`.
    members
        Digests of files that are in no archive of `files`, by their names.
    corrupted
        The archive of its test rows under corruptions, `steppe data get NAME-c`.

    Examples
    --------
    >>> mnist = steppe.data.DATASETS["mnist"]
    >>> mnist.title, mnist.rows, round(mnist.size / 1e6, 1)  # megabytes to download
    ('MNIST', (60000, 10000), 11.6)

    """

    name: str
    read: Callable[..., Splits]
    title: str
    rows: tuple[int, int] | None = None
    shape: tuple[int, ...] = ()
    classes: int = 0
    cite: str = ""
    sized: bool = False
    layouts: tuple[Layout, ...] = ()
    files: tuple[File, ...] = ()
    members: Mapping[str, str] = field(default_factory=dict)
    corrupted: File | None = None

    def __call__(self, root: Path, *size: int) -> Splits:
        splits = self.read(root, *size)
        rows = len(splits.train), len(splits.test)
        if self.rows is not None and rows != self.rows:
            warnings.warn(
                f"{self.name} under {root} has {rows[0]} training rows and {rows[1]} test rows, "
                f"and the published set has {self.rows[0]} and {self.rows[1]}",
                stacklevel=3,
            )
        return splits

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def differs(self, path: Path) -> str:
        """How a file on disk differs from the published one of its name; empty where it does not."""
        digests = {Path(file.place).name: file.digest for file in self.files} | dict(self.members)
        known = path.name in digests
        return _differs(path, digests[path.name]) if known else f"those are {', '.join(digests)}"

    def search(self, root: Path) -> list[tuple[Path, Layout, list[str]]]:
        """Every place where this data set may be under a root, its layout there, and the missing files."""
        places = ((root / place, layout) for layout in self.layouts for place in layout.places)
        return [(folder, layout, layout.missing(folder)) for folder, layout in places]

    def find(self, root: Path | str) -> Path:
        """The folder under the root that holds this data set; raise FileNotFoundError if none does."""
        searched = self.search(Path(root))
        for folder, _, missing in searched:
            if not missing:
                return folder
        partly = [(folder, missing) for folder, layout, missing in searched if len(missing) < len(layout.needs)]
        folder, missing = min(partly, key=lambda one: len(one[1]), default=(Path(root), []))
        nearest = f" {folder} lacks {', '.join(missing)}." if missing else ""
        tried = ", ".join(dict.fromkeys(str(folder) for folder, _, _ in searched))
        get = f"`steppe data get {self.name}` downloads it ({self.size / 1e6:,.0f} MB)."
        source = get if self.files else NO_ADDRESS
        raise FileNotFoundError(f"{self.title} is not under {root}.{nearest} Looked in {tried}. {source}")


DATASETS: Registry[Source] = Registry("data set", "steppe.data", ("steppe.data.catalogue",))


def register(name: str, title: str, **facts: Any) -> Callable[[Read], Read]:
    """A decorator that registers a function as what reads the data set of that name.

    A package that does so declares an entry point in the group `steppe.data`.

    Parameters
    ----------
    name, title
        The name in configurations and commands, and what the data set is, in a line.
    **facts
        What else is known, as in `Source`.

    Examples
    --------
    Above a function of the folder that holds data sets:

    >>> def read(root):
    ...     rows = steppe.data.Dataset("line", torch.arange(4.0)[:, None], torch.arange(4.0))
    ...     return steppe.data.Splits(rows.rows(slice(3)), rows.rows(slice(3, None)))
    >>> described = steppe.data.register("line", "points on a line", rows=(3, 1))

    `described(read)` then adds it.

    """

    def add(read: Read) -> Read:
        DATASETS.add(name, Source(name, read, title, **facts), read.__module__)
        return read

    return add


def _differs(path: Path, digest: str) -> str:
    kind, _, published = digest.partition(":")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()
    return "" if actual == published else f"its {kind} is {actual}, and {published} is published"


def _is_there(path: str) -> bool:
    return isdir(path) if path.endswith("/") else isfile(path) or isfile(f"{path}.gz")


NO_ADDRESS = "Its official address no longer answers: put the files there yourself, as docs/data.md describes."
IDX = tuple(f"{part}-{what}-ubyte" for part in ("train", "t10k") for what in ("images-idx3", "labels-idx1"))
CIFAR10_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def published(url: str, size: int, digest: str, holds: str = "", folder: str = ".", proof: str = "") -> File:
    """Return a published file, which keeps the name of its address, in a folder under the root."""
    return File(url, str(Path(folder, url.rpartition("/")[2])), size, digest, holds, proof)


def _idx(folder: str, base: str, *files: tuple[int, str]) -> dict[str, Any]:
    """Return the facts of MNIST and Fashion-MNIST, with the sizes and the SHA-256 of their files."""
    layout = Layout((f"{folder}/raw", folder, f"{folder.lower()}/raw", folder.lower(), "raw", "."), IDX)
    archives = tuple(
        published(f"{base}/{name}.gz", size, f"sha256:{sha}", "", f"{folder}/raw")
        for name, (size, sha) in zip(IDX, files, strict=True)
    )
    numbers = {"rows": (60_000, 10_000), "shape": (1, 28, 28), "classes": 10}
    return {"layouts": (layout,), "files": archives, **numbers}


def _own(name: str, title: str, place: str, **facts: Any) -> None:
    """Register a data set of steppe; its reader, `module.function`, is imported when it is called."""
    module, function = place.split(".")

    def read(root: Path, *size: int) -> Splits:
        reader = getattr(import_module(f".{module}", __package__), function)
        splits: Splits = reader() if module == "built_in" else reader(root, name, *size)
        return splits

    register(name, title, **facts)(read)


_KRIZHEVSKY = "Krizhevsky 2009, Learning multiple layers of features from tiny images"

_own("digits", "8 x 8 images of digits", "built_in.digits", rows=(1200, 597), shape=(1, 8, 8), classes=10)
_own("spirals", "two spirals in the plane", "built_in.spirals", rows=(1000, 1000), shape=(2,), classes=2)
_own("teacher-student", "regression on a random network", "built_in.teacher_student", rows=(1000, 1000), shape=(20,))

# Sizes and SHA-256 of the published files: TensorFlow Datasets' url_checksums, where nothing else is said
_own(
    "mnist", "MNIST", "small_images.read",
    **_idx(  # the mirror that torchvision uses: the original address, yann.lecun.com, no longer answers
        "MNIST", "https://ossci-datasets.s3.amazonaws.com/mnist",
        (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    cite="LeCun, Bottou, Bengio & Haffner 1998, Gradient-based learning applied to document recognition",
)  # fmt: skip
_own(
    "fashion-mnist", "Fashion-MNIST", "small_images.read",
    **_idx(
        "FashionMNIST", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
    cite="Xiao, Rasul & Vollgraf 2017, Fashion-MNIST (MIT licence)",
)  # fmt: skip
_own(
    "cifar10", "CIFAR-10", "small_images.read", rows=(50_000, 10_000), shape=(3, 32, 32), classes=10, cite=_KRIZHEVSKY,
    layouts=(
        Layout(("cifar-10-batches-bin", "."), (*(f"{b}.bin" for b in CIFAR10_BATCHES), "test_batch.bin")),
        Layout(("cifar-10-batches-py", "."), (*CIFAR10_BATCHES, "test_batch")),
    ),
    files=(
        published("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170052171,
                  "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", "cifar-10-batches-bin"),
    ),
    members={  # the Python layout; MD5: torchvision
        "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
        "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
        "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "md5:40351d587109b95175f43aff81a1287e",
        "batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
    },
    corrupted=published("https://zenodo.org/record/2535967/files/CIFAR-10-C.tar", 2918471680,
                        "sha256:c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7", "CIFAR-10-C",
                        proof="labels.npy"),
)  # fmt: skip
_own(
    "cifar100", "CIFAR-100", "small_images.read", rows=(50_000, 10_000), shape=(3, 32, 32), classes=100,
    cite=_KRIZHEVSKY,
    layouts=(
        Layout(("cifar-100-binary", "."), ("train.bin", "test.bin")),
        Layout(("cifar-100-python", "."), ("train", "test", "meta")),
    ),
    files=(
        published("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", 168513733,
                  "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", "cifar-100-binary"),
    ),
    members={
        "train": "md5:16019d7e3df5f24257cddd939b257f8d",
        "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "md5:7973b15100ade9c7d40fb424638fde48",
    },
    # size and MD5: the record on Zenodo
    corrupted=published("https://zenodo.org/record/3555552/files/CIFAR-100-C.tar", 2918473216,
                        "md5:11f0ed0f1191edbf9fa23466ae6021d3", "CIFAR-100-C", proof="labels.npy"),
)  # fmt: skip
_own(
    "svhn", "SVHN", "small_images.read", rows=(73_257, 26_032), shape=(3, 32, 32), classes=10,
    cite="Netzer, Wang, Coates, Bissacco, Wu & Ng 2011, Reading digits in natural images (non-commercial use)",
    layouts=(Layout((".", "svhn", "SVHN"), ("train_32x32.mat", "test_32x32.mat")),),
    files=(
        published("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", 182040794,
                  "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
        published("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", 64275384,
                  "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
    ),
)  # fmt: skip
_own(
    "tiny-imagenet", "TinyImageNet", "folders.read_tiny_imagenet", rows=(100_000, 10_000), shape=(3, 64, 64),
    classes=200, cite="Le & Yang 2015, Tiny ImageNet visual recognition challenge",
    layouts=(
        Layout(("tiny-imagenet-200",), ("train/", "val/")),
        Layout((".",), ("train/", "val/", "wnids.txt")),
    ),
    files=(  # Stanford prints no digest; the MD5 is the one that Avalanche and others check
        published("http://cs231n.stanford.edu/tiny-imagenet-200.zip", 248100043,
                  "md5:90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200"),
    ),
    # size and MD5: other projects that check it; four corruptions are in another file
    corrupted=published("https://zenodo.org/record/8206060/files/Tiny-ImageNet-C.tar", 1794775040,
                        "md5:f9c9a9dbdc11469f0b850190f7ad8be1", "Tiny-ImageNet-C", proof="gaussian_noise"),
)  # fmt: skip


def downloads() -> dict[str, tuple[File, ...]]:
    """Return the files to download by the name to get them by: data sets with an address, and corrupted test rows."""
    sets = {name: one.files for name, one in DATASETS.items() if one.files}
    return sets | {f"{name}-c": (one.corrupted,) for name, one in DATASETS.items() if one.corrupted is not None}


def files(name: str) -> tuple[File, ...]:
    """Return the files to download for a data set, or for its corrupted test rows."""
    found = downloads()
    if name in DATASETS and name not in found:
        why = NO_ADDRESS if DATASETS[name].layouts else "It is part of steppe, or generated."
        raise ValueError(f"{DATASETS[name].title} cannot be downloaded. {why}")
    if name not in found:
        raise ValueError(unknown("data set to download", name, found))
    return found[name]
