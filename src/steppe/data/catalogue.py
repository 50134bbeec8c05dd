"""Published data sets: their addresses, digests, and layouts on disk.

This module does not import torch, so that commands list data sets quickly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from os.path import isdir, isfile
from pathlib import Path

from .._util.names import unknown


@dataclass(frozen=True)
class File:
    """A published file: its address, its place under the root, its size and its digest."""

    url: str
    place: str  # under the root
    size: int
    digest: str  # "sha256:..." or "md5:..."
    holds: str = ""  # the folder that an archive unpacks to, beside it

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
class Published:
    """A published data set."""

    name: str
    title: str
    layouts: tuple[Layout, ...]
    files: tuple[File, ...]
    rows: tuple[int, int]  # training, test
    shape: tuple[int, int, int]
    classes: int
    cite: str
    members: Mapping[str, str] = field(default_factory=dict)  # digests of files that are in no archive of `files`

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def differs(self, path: Path) -> str:
        """Return how a file on disk differs from the published one of its name; empty where it does not."""
        digests = {Path(file.place).name: file.digest for file in self.files} | dict(self.members)
        known = path.name in digests
        return _differs(path, digests[path.name]) if known else f"those are {', '.join(digests)}"

    def search(self, root: Path) -> list[tuple[Path, Layout, list[str]]]:
        """Return every place where this data set may be under a root, its layout there, and the missing files."""
        places = ((root / place, layout) for layout in self.layouts for place in layout.places)
        return [(folder, layout, layout.missing(folder)) for folder, layout in places]

    def find(self, root: Path | str) -> Path:
        """Return the folder under the root that holds this data set; raise FileNotFoundError if none does."""
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
CORRUPTIONS_OF = {  # folders of Hendrycks & Dietterich 2019
    "cifar10": "CIFAR-10-C",
    "cifar100": "CIFAR-100-C",
    "tiny-imagenet": "Tiny-ImageNet-C",
}


def _file(url: str, size: int, digest: str, holds: str = "", folder: str = ".") -> File:
    return File(url, str(Path(folder, url.rpartition("/")[2])), size, digest, holds)


def _idx(folder: str, base: str, *published: tuple[int, str]) -> tuple[tuple[Layout, ...], tuple[File, ...]]:
    """The layout and the files, with sizes and SHA-256, of MNIST or Fashion-MNIST."""
    layout = Layout((f"{folder}/raw", folder, f"{folder.lower()}/raw", folder.lower(), "raw", "."), IDX)
    files = (
        _file(f"{base}/{name}.gz", size, f"sha256:{sha}", "", f"{folder}/raw")
        for name, (size, sha) in zip(IDX, published, strict=True)
    )
    return (layout,), tuple(files)


_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
_KRIZHEVSKY = "Krizhevsky 2009, Learning multiple layers of features from tiny images"

# Sizes and SHA-256: TensorFlow Datasets' url_checksums, where nothing else is said
CATALOGUE: dict[str, Published] = {
    one.name: one
    for one in (
        Published(
            "mnist", "MNIST",
            *_idx(  # the mirror that torchvision uses: the original address, yann.lecun.com, no longer answers
                "MNIST", "https://ossci-datasets.s3.amazonaws.com/mnist",
                (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            ),
            (60_000, 10_000), (1, 28, 28), 10,
            "LeCun, Bottou, Bengio & Haffner 1998, Gradient-based learning applied to document recognition",
        ),
        Published(
            "fashion-mnist", "Fashion-MNIST",
            *_idx(
                "FashionMNIST", "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
            ),
            (60_000, 10_000), (1, 28, 28), 10, "Xiao, Rasul & Vollgraf 2017, Fashion-MNIST (MIT licence)",
        ),
        Published(
            "cifar10", "CIFAR-10",
            (
                Layout(("cifar-10-batches-bin", "."), (*(f"{b}.bin" for b in CIFAR10_BATCHES), "test_batch.bin")),
                Layout(("cifar-10-batches-py", "."), (*CIFAR10_BATCHES, "test_batch")),
            ),
            (_file("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", 170052171,
                   "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd", "cifar-10-batches-bin"),),
            (50_000, 10_000), (3, 32, 32), 10, _KRIZHEVSKY,
            {  # the Python layout; MD5: torchvision
                "data_batch_1": "md5:c99cafc152244af753f735de768cd75f",
                "data_batch_2": "md5:d4bba439e000b95fd0a9bffe97cbabec",
                "data_batch_3": "md5:54ebc095f3ab1f0389bbae665268c751",
                "data_batch_4": "md5:634d18415352ddfa80567beed471001a",
                "data_batch_5": "md5:482c414d41f54cd18b22e5b47cb7c3cb",
                "test_batch": "md5:40351d587109b95175f43aff81a1287e",
                "batches.meta": "md5:5ff9c542aee3614f3951f8cda6e48888",
            },
        ),
        Published(
            "cifar100", "CIFAR-100",
            (
                Layout(("cifar-100-binary", "."), ("train.bin", "test.bin")),
                Layout(("cifar-100-python", "."), ("train", "test", "meta")),
            ),
            (_file("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", 168513733,
                   "sha256:58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec", "cifar-100-binary"),),
            (50_000, 10_000), (3, 32, 32), 100, _KRIZHEVSKY,
            {
                "train": "md5:16019d7e3df5f24257cddd939b257f8d",
                "test": "md5:f0ef6b0ae62326f3e7ffdfab6717acfc",
                "meta": "md5:7973b15100ade9c7d40fb424638fde48",
            },
        ),
        Published(
            "svhn", "SVHN", (Layout((".", "svhn", "SVHN"), ("train_32x32.mat", "test_32x32.mat")),),
            (_file("http://ufldl.stanford.edu/housenumbers/train_32x32.mat", 182040794,
                   "sha256:435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
             _file("http://ufldl.stanford.edu/housenumbers/test_32x32.mat", 64275384,
                   "sha256:cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b")),
            (73_257, 26_032), (3, 32, 32), 10,
            "Netzer, Wang, Coates, Bissacco, Wu & Ng 2011, Reading digits in natural images (non-commercial use)",
        ),
        Published(
            "tiny-imagenet", "TinyImageNet",
            (
                Layout(("tiny-imagenet-200",), ("train/", "val/")),
                Layout((".",), ("train/", "val/", "wnids.txt")),
            ),
            # Stanford prints no digest; the MD5 is the one that Avalanche and others check
            (_file("http://cs231n.stanford.edu/tiny-imagenet-200.zip", 248100043,
                   "md5:90528d7ca1a48142e341f4ef8d21d0de", "tiny-imagenet-200"),),
            (100_000, 10_000), (3, 64, 64), 200, "Le & Yang 2015, Tiny ImageNet visual recognition challenge",
        ),
        # pictures of many sizes; their folders are torchvision's
        Published(
            "flowers102", "Oxford 102 Flowers",
            (Layout(("flowers-102", "."), ("imagelabels.mat", "setid.mat", "jpg/")),),
            (_file(f"{_OXFORD}/flowers/102/102flowers.tgz", 344862509,
                   "sha256:2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246", "jpg", "flowers-102"),
             _file(f"{_OXFORD}/flowers/102/imagelabels.mat", 502,
                   "sha256:4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d", "", "flowers-102"),
             _file(f"{_OXFORD}/flowers/102/setid.mat", 14989,
                   "sha256:46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd", "", "flowers-102")),
            (2_040, 6_149), (3, 224, 224), 102,
            "Nilsback & Zisserman 2008, Automated flower classification over a large number of classes",
        ),
        Published(
            "stanford-cars", "Stanford Cars",
            (Layout(("stanford_cars", "."),
                    ("devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat",
                     "cars_train/", "cars_test/")),),
            (), (8_144, 8_041), (3, 224, 224), 196,
            "Krause, Stark, Deng & Fei-Fei 2013, 3D object representations for fine-grained categorization",
            {  # the last as in TensorFlow Datasets; the others in two repositories that keep the devkit
                "cars_meta.mat": "sha256:fe43dfda289448f97c25b09e09fafc0414e22fc4143831537780884a0a5f4a1a",
                "cars_train_annos.mat": "sha256:1c1973dd828a2964060b0bbc0e423466393fe3001a3f8e303f41fbf22067dfb1",
                "cars_test_annos_withlabels.mat":
                    "sha256:790f75be8ea34eeded134cc559332baf23e30e91367e9ddca97d26ed9b895f05",
            },
        ),
        Published(
            "fgvc-aircraft", "FGVC-Aircraft",
            (Layout(("fgvc-aircraft-2013b", "."),
                    ("data/variants.txt", "data/images_variant_trainval.txt", "data/images_variant_test.txt",
                     "data/images/")),),
            # size and MD5: other projects that check it; Oxford prints none
            (_file(f"{_OXFORD}/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz", 2753340328,
                   "md5:d4acdd33327262359767eeaa97a4f732", "fgvc-aircraft-2013b"),),
            (6_667, 3_333), (3, 224, 224), 100,
            "Maji, Kannala, Rahtu, Blaschko & Vedaldi 2013, Fine-grained visual classification of aircraft",
        ),
        Published(
            "oxford-pets", "Oxford-IIIT Pets",
            (Layout(("oxford-iiit-pet", "."), ("annotations/trainval.txt", "annotations/test.txt", "images/")),),
            (_file(f"{_OXFORD}/pets/data/images.tar.gz", 791918971,
                   "sha256:67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d", "images",
                   "oxford-iiit-pet"),
             _file(f"{_OXFORD}/pets/data/annotations.tar.gz", 19173078,
                   "sha256:52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91", "annotations",
                   "oxford-iiit-pet")),
            (3_680, 3_669), (3, 224, 224), 37, "Parkhi, Vedaldi, Zisserman & Jawahar 2012, Cats and dogs",
        ),
    )
}  # fmt: skip

# Corrupted test sets, placed beside their data set
CORRUPTED: dict[str, File] = {
    "cifar10-c": _file(
        "https://zenodo.org/record/2535967/files/CIFAR-10-C.tar", 2918471680,
        "sha256:c72763e101c723b7c507b96205f7e938912a5d587376173b825850cf3cb876a7", "CIFAR-10-C",
    ),
    "cifar100-c": _file(  # size and MD5: the record on Zenodo
        "https://zenodo.org/record/3555552/files/CIFAR-100-C.tar", 2918473216,
        "md5:11f0ed0f1191edbf9fa23466ae6021d3", "CIFAR-100-C",
    ),
    "tiny-imagenet-c": _file(  # size and MD5: other projects that check it; four corruptions are in another file
        "https://zenodo.org/record/8206060/files/Tiny-ImageNet-C.tar", 1794775040,
        "md5:f9c9a9dbdc11469f0b850190f7ad8be1", "Tiny-ImageNet-C",
    ),
}  # fmt: skip


def files(name: str) -> tuple[File, ...]:
    """Return the files to download for a data set."""
    if name in CATALOGUE:
        if not CATALOGUE[name].files:
            raise ValueError(f"{CATALOGUE[name].title} cannot be downloaded. {NO_ADDRESS}")
        return CATALOGUE[name].files
    if name in CORRUPTED:
        return (CORRUPTED[name],)
    raise ValueError(unknown("data set to download", name, downloadable()))


def downloadable() -> list[str]:
    """Return the names of all data sets that have an address."""
    return [*(name for name, one in CATALOGUE.items() if one.files), *CORRUPTED]
