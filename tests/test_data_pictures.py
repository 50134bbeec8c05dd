"""Flowers102, Stanford Cars, FGVC-Aircraft and Oxford-IIIT Pets in their official layouts, whole and damaged."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from data_files import (
    WRITERS_OF_PICTURES,
    read_each_mat_once,
    write_aircraft,
    write_cars,
    write_flowers,
    write_pets,
    write_picture,
)
from scipy.io import savemat

from steppe.data import CATALOGUE, DataError, Splits, arrays, load
from steppe.training.config import Config, refuse_unknown

pytestmark = pytest.mark.filterwarnings("ignore:.*published set has")


@pytest.fixture(autouse=True)
def each_content_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read_each_mat_once(monkeypatch)


def written(name: str, root: Path) -> Path:
    folder, write = WRITERS_OF_PICTURES[name]
    write(root / folder)
    return root / folder


def reds(splits: Splits) -> list[list[int]]:
    return [rows.inputs[:, 0].float().mean((1, 2)).round().long().tolist() for rows in (splits.train, splits.test)]


def test_flowers_are_trained_on_two_of_three_lists(tmp_path: Path) -> None:
    labels = write_flowers(tmp_path / "flowers-102")
    splits = load("flowers102@16", tmp_path)
    assert splits.train.targets.tolist() == [labels[i] - 1 for i in (3, 1, 4)]  # trnid, then valid
    assert splits.test.targets.tolist() == [labels[i] - 1 for i in (5, 2)]
    assert reds(splits)[0] == [77, 77, 102]  # the red of a picture was made from its class
    assert max(reds(splits)[1]) <= 3
    assert len(splits.train.classes) == 102


def test_cars_have_the_names_of_the_devkit(tmp_path: Path) -> None:
    write_cars(tmp_path / "stanford_cars")
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
def test_the_size_is_behind_the_name(name: str, tmp_path: Path) -> None:
    folder = written(name, tmp_path)
    assert load(name, tmp_path).train.inputs.shape[1:] == CATALOGUE[name].shape == (3, 224, 224)
    assert load(f"{name}@9", folder).test.inputs.shape[1:] == (3, 9, 9)  # the folder itself is a root too
    for wrong, words in ((f"{name}@0", "1 to 4096"), (f"{name}@5000", "1 to 4096"), ("cifar10@8", "have one size")):
        with pytest.raises(ValueError, match=words):
            load(wrong, tmp_path)
        with pytest.raises(ValueError, match=words):
            refuse_unknown(Config(data=wrong))
    refuse_unknown(Config(data=f"{name}@64"))
    with pytest.raises(ValueError, match="Did you mean"):
        refuse_unknown(Config(data=f"{name}s@64"))


def refused(name: str, root: Path, *words: str) -> None:
    with pytest.raises(DataError) as error:
        load(f"{name}@8", root)
    assert all(word in str(error.value) for word in words), error.value


@pytest.mark.parametrize("name", WRITERS_OF_PICTURES)
def test_a_missing_or_broken_picture_is_named(name: str, tmp_path: Path) -> None:
    folder = written(name, tmp_path)
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
def test_a_wrong_line_is_named(name: str, file: str, text: str, words: tuple[str, ...], tmp_path: Path) -> None:
    (written(name, tmp_path) / file).write_text(text)
    refused(name, tmp_path, *words)


def test_wrong_lists_of_flowers_are_refused(tmp_path: Path) -> None:
    folder = written("flowers102", tmp_path)
    whole = {name: (folder / name).read_bytes() for name in ("setid.mat", "imagelabels.mat")}
    for name, content, words in (
        ("setid.mat", {"trnid": [[1]], "valid": [[2]], "tstid": [[6]]}, ("picture 6", "labels of 5")),
        ("setid.mat", {"trnid": [[1.5]], "valid": [[2]], "tstid": [[3]]}, ("1.5", "whole number")),
        ("setid.mat", {"trnid": [[1]], "valid": [[2]]}, ("no variable tstid",)),
        ("imagelabels.mat", {"labels": [[1, 2, 103, 4, 5]]}, ("class 103", "1 to 102")),
        ("imagelabels.mat", {"labels": "flower"}, ("whole number",)),
    ):
        savemat(folder / name, content)
        refused("flowers102", tmp_path, *words)
        (folder / name).write_bytes(whole[name])


def test_wrong_annotations_of_cars_are_refused(tmp_path: Path) -> None:
    folder = written("stanford-cars", tmp_path)
    path = folder / "cars_test_annos_withlabels.mat"
    for fields, words in (
        ({"fname": "../cars_train/00001.jpg", "class": 1}, ("not the name of a file",)),
        ({"fname": "00001.jpg"}, ("without fname and class",)),  # as the list without labels
        ({"fname": "00001.jpg", "class": 4}, ("class 4", "1 to 3")),
        ({"fname": 7, "class": 1}, ("text is expected",)),
    ):
        savemat(path, {"annotations": fields})
        refused("stanford-cars", tmp_path, *words)


def test_a_damaged_mat_file_is_one_error(tmp_path: Path) -> None:
    write_flowers(tmp_path)
    path = tmp_path / "imagelabels.mat"
    whole = path.read_bytes()
    assert arrays.read_mat(path, "labels")["labels"] == [77, 1, 77, 102, 1]
    for body in (b"", whole[:60], whole[:-9], bytes(len(whole)), b"PK\x03\x04" + whole, whole[:130] + b"\xff" * 30):
        path.write_bytes(body)
        with pytest.raises(DataError, match=r"imagelabels\.mat: .*(not a readable|no variable)"):
            arrays.read_mat(path, "labels")


def test_a_reader_that_dies_or_hangs_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As scipy's does on some damaged files."""
    path = tmp_path / "a.mat"
    path.write_bytes(b"x")

    def killed(command: list[str], **_: object) -> None:
        raise subprocess.CalledProcessError(-11, command, "", "")

    monkeypatch.setattr(subprocess, "run", killed)
    with pytest.raises(DataError, match=r"a\.mat: .*status -11"):
        arrays.read_mat(path, "labels")

    def slow(command: list[str], **_: object) -> None:
        raise subprocess.TimeoutExpired(command, 120)

    monkeypatch.setattr(subprocess, "run", slow)
    with pytest.raises(DataError, match=r"a\.mat: .*timed out"):
        arrays.read_mat(path, "labels")
    monkeypatch.setattr(arrays, "MOST_STORED", 0)
    with pytest.raises(DataError, match="it has 1 bytes"):
        arrays.read_mat(path, "labels")


def test_pictures_are_scaled_and_their_centre_is_cropped(tmp_path: Path) -> None:
    write_pets(tmp_path / "oxford-iiit-pet")
    write_picture(tmp_path / "oxford-iiit-pet" / "images" / "Abyssinian_2.jpg", (90, 30), (10, 200, 30))
    test = load("oxford-pets@15", tmp_path).test
    assert test.inputs.shape == (2, 3, 15, 15)
    assert abs(int(test.inputs[0, 1].float().mean()) - 200) <= 2
