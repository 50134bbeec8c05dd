"""CIFAR-10N: labels by people, from the official file and from arrays, in runs."""

from __future__ import annotations

import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import write_cifar_binary

from steppe.data import DataError, load
from steppe.data.small_images import HUMAN_LABELS, relabelled
from steppe.training.config import Config, check_config
from steppe.training.problem import data_of

pytestmark = pytest.mark.filterwarnings("ignore:.*published set has")


def tables(root: Path) -> dict[str, np.ndarray]:
    """Labels as in CIFAR-10_human.pt: int64 arrays by name, for the training rows in their order."""
    held = write_cifar_binary(root / "cifar-10-batches-bin", "cifar10", rows=4)
    clean = np.concatenate([held[f"data_batch_{i}"][1] for i in range(1, 6)]).astype(np.int64)
    names = {"clean_label": 0} | {key: i for i, key in enumerate(HUMAN_LABELS.values(), start=1)}
    return {name: (clean + shift) % 10 for name, shift in names.items()}


def settings(root: Path, **changes: object) -> Config:
    return Config(**{"data": "cifar10", "data_root": str(root), "labels": "cifar10n-worst", **changes})


@pytest.mark.parametrize("kind", ["pt", "older pt", "numpy 1", "tensors", "npz"])
@pytest.mark.parametrize("name", HUMAN_LABELS)
def test_labels_by_people_replace_those_of_the_training_rows(tmp_path: Path, kind: str, name: str) -> None:
    content = tables(tmp_path)
    path = tmp_path / "CIFAR-10_human.pt"
    if kind == "npz":
        np.savez(tmp_path / "cifar10n_noisy_train_labels.npz", **{k: v.astype(np.uint8) for k, v in content.items()})
    elif kind == "tensors":
        torch.save({k: torch.from_numpy(v) for k, v in content.items()}, path)
    else:
        torch.save(content, path, _use_new_zipfile_serialization=kind != "older pt")
    if kind == "numpy 1":
        rename_in(path, b"numpy._core.multiarray", b"numpy.core.multiarray")
    plain = load("cifar10", tmp_path)
    splits = data_of(settings(tmp_path, labels=name))
    assert splits.train.targets.tolist() == content[HUMAN_LABELS[name]].tolist()
    assert torch.equal(splits.train.inputs, plain.train.inputs)
    assert torch.equal(splits.test.targets, plain.test.targets)  # test labels stay
    part = data_of(settings(tmp_path, labels=name, fraction=0.5))
    assert part.train.targets.tolist() == content[HUMAN_LABELS[name]][:10].tolist()


def rename_in(path: Path, old: bytes, new: bytes) -> None:
    """Replaces a name in the pickle of a file of torch.save."""
    with zipfile.ZipFile(path) as source:
        records = {name: source.read(name) for name in source.namelist()}
    assert any(old in body for body in records.values())
    with zipfile.ZipFile(path, "w") as target:
        for name, body in records.items():
            target.writestr(name, body.replace(old, new))


def test_wrong_files_are_one_error(tmp_path: Path) -> None:
    content = tables(tmp_path)
    train, path, trace = load("cifar10", tmp_path).train, tmp_path / "CIFAR-10_human.pt", tmp_path / "trace"

    class Runs:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(trace),)

    for body, words in (
        ({**content, "clean_label": content["clean_label"][::-1].copy()}, "differs from the labels of the 20 training"),
        ({**content, "worse_label": content["worse_label"][:9]}, "9 labels"),
        ({**content, "worse_label": content["worse_label"] + 10}, "a label is"),
        ({**content, "worse_label": content["worse_label"].astype(float)}, "nothing in it was run"),
        ({**content, "worse_label": ["a"] * 20}, "should be whole numbers"),
        ({"clean_label": content["clean_label"]}, "no 'worse_label', only clean_label"),
        (list(content.values()), "a dictionary of labels was expected"),
        ({**content, "worse_label": Runs()}, "nothing in it was run"),
    ):
        torch.save(body, path)
        with pytest.raises(DataError, match=r"CIFAR-10_human\.pt.*" + words):
            relabelled(train, tmp_path, "cifar10n-worst")
    torch.save(content, path)
    whole = path.read_bytes()
    for cut in (whole[:-1], whole[:200], b""):
        path.write_bytes(cut)
        with pytest.raises(DataError, match=r"CIFAR-10_human\.pt"):
            relabelled(train, tmp_path, "cifar10n-worst")
    assert not trace.exists()


def test_unknown_labels_and_other_data_are_refused_early(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"CIFAR-10_human\.pt is not under .*cifar-10-100n"):
        tables(tmp_path)
        data_of(settings(tmp_path))
    for changes, words in (
        ({"labels": "cifar10n-worse"}, "Did you mean 'cifar10n-worst'"),
        ({"data": "cifar100"}, "labels of cifar10, and the data set is cifar100"),
        ({"label_noise": 0.1}, "give one of them"),
    ):
        with pytest.raises(ValueError, match=words):
            check_config(settings(tmp_path, **changes))
    check_config(settings(tmp_path))
