"""Data sets of the papers beside those of steppe; importing this package registers them, without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steppe.data import Splits, register
from steppe.data.catalogue import Layout, published

SIZE = 224  # Agnostic-SAM's paper, Section 4.1
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"


def _register(name: str, title: str, **facts: Any) -> None:
    """Register pictures of many sizes with lists of labels; their folders are torchvision's."""

    def read(root: Path, size: int = SIZE) -> Splits:
        from . import pictures

        return pictures.read(root, name, size)

    register(name, title, sized=True, shape=(3, SIZE, SIZE), **facts)(read)


@register("sparse-regression", "for diagonal linear networks", rows=(128, 1000), shape=(200,))
def _sparse_regression(root: Path) -> Splits:
    from .sparse import sparse_regression

    return sparse_regression()


_register(
    "flowers102", "Oxford 102 Flowers", rows=(2_040, 6_149), classes=102,
    cite="Nilsback & Zisserman 2008, Automated flower classification over a large number of classes",
    layouts=(Layout(("flowers-102", "."), ("imagelabels.mat", "setid.mat", "jpg/")),),
    files=(
        published(f"{_OXFORD}/flowers/102/102flowers.tgz", 344862509,
                  "sha256:2d01ecc807db462958cfe3d92f57a8c252b4abd240eb955770201e45f783b246", "jpg", "flowers-102"),
        published(f"{_OXFORD}/flowers/102/imagelabels.mat", 502,
                  "sha256:4903e94206bac23bf772aadf06451916df56b58fc483a62db32a97b82656651d", "", "flowers-102"),
        published(f"{_OXFORD}/flowers/102/setid.mat", 14989,
                  "sha256:46b8678f91fd95d3c8f4feab80d271a6c834a1dd896fe29fd3e6ad9ce5c8dccd", "", "flowers-102"),
    ),
)  # fmt: skip
_register(
    "stanford-cars", "Stanford Cars", rows=(8_144, 8_041), classes=196,
    cite="Krause, Stark, Deng & Fei-Fei 2013, 3D object representations for fine-grained categorization",
    layouts=(
        Layout(("stanford_cars", "."),
               ("devkit/cars_meta.mat", "devkit/cars_train_annos.mat", "cars_test_annos_withlabels.mat",
                "cars_train/", "cars_test/")),
    ),
    members={  # the last as in TensorFlow Datasets; the others in two repositories that keep the devkit
        "cars_meta.mat": "sha256:fe43dfda289448f97c25b09e09fafc0414e22fc4143831537780884a0a5f4a1a",
        "cars_train_annos.mat": "sha256:1c1973dd828a2964060b0bbc0e423466393fe3001a3f8e303f41fbf22067dfb1",
        "cars_test_annos_withlabels.mat": "sha256:790f75be8ea34eeded134cc559332baf23e30e91367e9ddca97d26ed9b895f05",
    },
)  # fmt: skip
_register(
    "fgvc-aircraft", "FGVC-Aircraft", rows=(6_667, 3_333), classes=100,
    cite="Maji, Kannala, Rahtu, Blaschko & Vedaldi 2013, Fine-grained visual classification of aircraft",
    layouts=(
        Layout(("fgvc-aircraft-2013b", "."),
               ("data/variants.txt", "data/images_variant_trainval.txt", "data/images_variant_test.txt",
                "data/images/")),
    ),
    files=(  # size and MD5: other projects that check it; Oxford prints none
        published(f"{_OXFORD}/fgvc-aircraft/archives/fgvc-aircraft-2013b.tar.gz", 2753340328,
                  "md5:d4acdd33327262359767eeaa97a4f732", "fgvc-aircraft-2013b"),
    ),
)  # fmt: skip
_register(
    "oxford-pets", "Oxford-IIIT Pets", rows=(3_680, 3_669), classes=37,
    cite="Parkhi, Vedaldi, Zisserman & Jawahar 2012, Cats and dogs",
    layouts=(Layout(("oxford-iiit-pet", "."), ("annotations/trainval.txt", "annotations/test.txt", "images/")),),
    files=(
        published(f"{_OXFORD}/pets/data/images.tar.gz", 791918971,
                  "sha256:67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d", "images",
                  "oxford-iiit-pet"),
        published(f"{_OXFORD}/pets/data/annotations.tar.gz", 19173078,
                  "sha256:52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91", "annotations",
                  "oxford-iiit-pet"),
    ),
)  # fmt: skip
