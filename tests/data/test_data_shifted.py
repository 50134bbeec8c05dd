"""Test sets under another distribution: classes by folder name, by number, or as unions of training classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from steppe.data import shifted
from steppe.data.dataset import DataError, Dataset
from steppe.studies.plan import Study

CLASSES = ("ant", "bee", "cat", "dog")


def images(root: Path, names: dict[str, int], size: int = 8) -> str:
    from PIL import Image

    draw = np.random.default_rng(0)
    for name, n in names.items():
        (root / name).mkdir(parents=True)
        for i in range(n):
            Image.fromarray(draw.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(root / name / f"{i}.png")
    return f"folder:{root}"


@pytest.fixture
def train() -> Dataset:
    return Dataset("t", torch.zeros(4, 3, 8, 8, dtype=torch.uint8), torch.arange(4), CLASSES)


def test_a_folder_with_some_of_the_classes_is_judged_among_these(tmp_path: Path, train: Dataset) -> None:
    tests = shifted.read(images(tmp_path / "r", {"bee": 2, "dog": 3}), train)  # as ImageNet-R and -A
    assert tests.members == ((1,), (3,))
    assert len(tests.rows) == 5  # all rows, none of them split off
    logits = torch.tensor([[9.0, 1, 0, 0], [9, 0, 0, 1], [9, 0, 0, 1], [9, 0, 9, 1], [9, 2, 9, 1]])
    assert tests.error(logits) == pytest.approx(2 / 5)  # rows 1 and 4: answers outside of bee and dog do not count


def test_folders_that_are_numbers_are_numbers_of_classes(tmp_path: Path, train: Dataset) -> None:
    tests = shifted.read(images(tmp_path / "v2", {"0": 1, "2": 1, "3": 1}), train)  # as ImageNet-V2
    assert tests.members == ((0,), (2,), (3,))


def test_a_union_of_classes_has_their_highest_logit(tmp_path: Path, train: Dataset) -> None:
    tests = shifted.read(images(tmp_path / "o", {"ant+bee": 1, "cat": 1}), train)
    assert tests.members == ((0, 1), (2,))
    assert tests.error(torch.tensor([[0.0, 2, 1, 9], [0, 2, 1, 9]])) == 0.5


def test_other_sizes_are_brought_to_one(tmp_path: Path, train: Dataset) -> None:
    place = images(tmp_path / "big", {"ant": 2}, size=16)
    with pytest.raises(DataError, match=r"shape \(3, 16, 16\) and not \(3, 8, 8\)"):
        shifted.read(place, train)
    assert tuple(shifted.read(f"{place}@8", train).rows.inputs.shape) == (2, 3, 8, 8)


def test_grey_pictures_have_three_equal_channels_beside_coloured_ones(tmp_path: Path, train: Dataset) -> None:
    from PIL import Image

    place = images(tmp_path / "sketch", {"ant": 2, "cat": 1})
    for file in (tmp_path / "sketch").rglob("*.png"):
        Image.open(file).convert("L").save(file)
    pixels = shifted.read(place, train).rows.inputs
    with Image.open(tmp_path / "sketch/cat/0.png") as last:
        assert torch.equal(pixels[2], torch.from_numpy(np.array(last.convert("RGB")).transpose(2, 0, 1)))
    grey = Dataset("t", train.inputs[:, :1], train.targets, CLASSES)
    assert shifted.read(place, grey).rows.inputs.shape == (3, 1, 8, 8)


@pytest.mark.parametrize(
    ("names", "said"),
    [({"ant": 1, "cow": 1}, "class 'cow' is none of the 4"), ({"ant": 1, "ant+bee": 1}, "two of its")],
)
def test_classes_that_do_not_fit_are_refused(tmp_path: Path, train: Dataset, names: dict[str, int], said: str) -> None:
    with pytest.raises(DataError, match=said):
        shifted.read(images(tmp_path / "x", names), train)


@pytest.mark.parametrize(
    ("ood", "said"),
    [
        ({"r": "cifar10"}, "ood.r takes folder:PATH"),
        ({"test": "npz:a.npz"}, "cannot be called 'test'"),
        (["a"], "ood takes test sets by name"),
    ],
)
def test_wrong_sets_in_a_study_are_refused(ood: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Study.of({"ood": ood}, "x")


def test_a_target_that_no_set_has_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match=r"no target 'imagenet-s_error'. Did you mean 'imagenet-r_error'"):
        Study.of({"ood": {"imagenet-r": "folder:x"}, "targets": ["imagenet-s_error"]}, "x")
