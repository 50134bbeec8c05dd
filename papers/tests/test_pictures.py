"""Flowers102, Stanford Cars, FGVC-Aircraft and Oxford-IIIT Pets in their official layouts, whole and damaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_files import (
    WRITERS_OF_PICTURES,
    publish,
    write_aircraft,
    write_flowers,
    write_pets,
    write_picture,
)

from steppe.data import DATASETS, DataError, Splits, load
from steppe.training.config import Config, check_config

pytestmark = pytest.mark.filterwarnings("ignore:.*published set has")


def written(monkeypatch: pytest.MonkeyPatch, name: str, root: Path) -> Path:
    folder, write = WRITERS_OF_PICTURES[name]
    write(root / folder)
    publish(monkeypatch, name, root)
    return root / folder


def reds(splits: Splits) -> list[list[int]]:
    return [rows.inputs[:, 0].float().mean((1, 2)).round().long().tolist() for rows in (splits.train, splits.test)]


def test_flowers_are_trained_on_two_of_three_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = write_flowers(tmp_path / "flowers-102")
    publish(monkeypatch, "flowers102", tmp_path)
    splits = load("flowers102@16", tmp_path)
    assert splits.train.targets.tolist() == [labels[i] - 1 for i in (3, 1, 4)]  # trnid, then valid
    assert splits.test.targets.tolist() == [labels[i] - 1 for i in (5, 2)]
    assert reds(splits)[0] == [77, 77, 102]  # the red of a picture was made from its class
    assert max(reds(splits)[1]) <= 3
    assert len(splits.train.classes) == 102


def test_cars_have_the_names_of_the_devkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(monkeypatch, "stanford-cars", tmp_path)
    splits = load("stanford-cars@16", tmp_path)
    assert splits.train.classes == ("AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Ram C/V Cargo Van")
    assert (splits.train.targets.tolist(), splits.test.targets.tolist()) == ([2, 0, 1], [1, 2])
    assert [round(red / 80) for part in reds(splits) for red in part] == [3, 1, 2, 2, 3]


def test_aircraft_are_classified_by_variant(tmp_path: Path) -> None:
    write_aircraft(tmp_path / "fgvc-aircraft-2013b")
    splits = load("fgvc-aircraft@16", tmp_path)
    assert splits.train.classes == ("707-320", "727-200", "Boeing 717", "Yak-42")
    assert (splits.train.targets.tolist(), splits.test.targets.tolist()) == ([0, 3, 2], [2])


def test_pets_are_named_by_their_pictures(tmp_path: Path) -> None:
    write_pets(tmp_path / "oxford-iiit-pet")
    splits = load("oxford-pets@16", tmp_path)
    assert splits.train.classes == ("Abyssinian", "american_bulldog", "yorkshire_terrier")
    assert (splits.train.targets.tolist(), splits.test.targets.tolist()) == ([0, 2, 1], [0, 1])


@pytest.mark.parametrize("name", WRITERS_OF_PICTURES)
def test_the_size_is_behind_the_name(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(monkeypatch, name, tmp_path)
    assert load(name, tmp_path).train.inputs.shape[1:] == DATASETS[name].shape == (3, 224, 224)
    assert load(f"{name}@9", folder).test.inputs.shape[1:] == (3, 9, 9)  # the folder itself is a root too
    for wrong, words in ((f"{name}@0", "1 to 4096"), (f"{name}@5000", "1 to 4096"), ("cifar10@8", "have one size")):
        with pytest.raises(ValueError, match=words):
            load(wrong, tmp_path)
        with pytest.raises(ValueError, match=words):
            check_config(Config(data=wrong))
    check_config(Config(data=f"{name}@64"))
    with pytest.raises(ValueError, match="Did you mean"):
        check_config(Config(data=f"{name}s@64"))


def refused(name: str, root: Path, *words: str) -> None:
    with pytest.raises(DataError) as error:
        load(f"{name}@8", root)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("name", WRITERS_OF_PICTURES)
def test_a_missing_or_broken_picture_is_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(monkeypatch, name, tmp_path)
    picture = sorted(folder.rglob("*.jpg"))[0]
    picture.write_bytes(picture.read_bytes()[:40])
    refused(name, tmp_path, picture.name)
    picture.unlink()
    refused(name, tmp_path, "there is no", picture.name)


@pytest.mark.parametrize(
    ("name", "file", "text", "words"),
    [
        ("fgvc-aircraft", "data/images_variant_test.txt", "0000003 Boeing 7177\n", ("line 1", "'Boeing 7177'")),
        ("fgvc-aircraft", "data/images_variant_test.txt", "../../x Yak-42\n", ("line 1", "not the name of a file")),
        ("fgvc-aircraft", "data/images_variant_trainval.txt", "\n", ("0 pictures to train on",)),
        ("oxford-pets", "annotations/test.txt", "# a comment\nAbyssinian_2 one\n", ("line 2", "'Abyssinian_2 one'")),
        ("oxford-pets", "annotations/test.txt", "Abyssinian_2 0 1 1\n", ("[0, 1, 2, 3]", "not 1 to 4")),
        ("oxford-pets", "annotations/test.txt", "..\\\\x_2 1 1 1\n", ("not the name of a file",)),
    ],
)
def test_a_wrong_line_is_named(
    name: str, file: str, text: str, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (written(monkeypatch, name, tmp_path) / file).write_text(text)
    refused(name, tmp_path, *words)


@pytest.mark.parametrize(("name", "file"), [("flowers102", "setid.mat"), ("stanford-cars", "devkit/cars_meta.mat")])
def test_lists_in_mat_files_are_read_as_published_or_not_at_all(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of .mat files never sees others: scipy's dies of some."""
    folder = written(monkeypatch, name, tmp_path)
    whole = (folder / file).read_bytes()
    for body in (b"", whole[:60], whole[:-9], bytes(len(whole)), whole[:130] + b"\xff" * 30):
        (folder / file).write_bytes(body)
        refused(name, tmp_path, Path(file).name, "as published: its sha256 is")


def test_pictures_are_scaled_and_their_centre_is_cropped(tmp_path: Path) -> None:
    write_pets(tmp_path / "oxford-iiit-pet")
    write_picture(tmp_path / "oxford-iiit-pet" / "images" / "Abyssinian_2.jpg", (90, 30), (10, 200, 30))
    test = load("oxford-pets@15", tmp_path).test
    assert test.inputs.shape == (2, 3, 15, 15)
    assert abs(int(test.inputs[0, 1].float().mean()) - 200) <= 2
