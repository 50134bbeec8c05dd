"""Official corrupted test sets where they are on disk, and remade ones otherwise; results say which of the two."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_files import random_bytes, write_cifar_binary, write_tiny_imagenet, write_tiny_imagenet_c

from steppe.data import DataError, load
from steppe.data.corrupted_rows import corrupted_rows
from steppe.data.corruptions import corrupt
from steppe.ensembles import Ensemble, train_ensemble
from steppe.training import Config, train

pytestmark = pytest.mark.filterwarnings("ignore:.*published set has")
NAMES = ("fog", "gaussian_noise")


def write_official(root: Path, name: str = "cifar10", rows: int = 6) -> dict[str, np.ndarray]:
    """A data set and its corrupted version: labels repeated for five severities, images (5 rows, 32, 32, 3)."""
    folder = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}[name]
    held = write_cifar_binary(root / folder, name, rows=rows)
    labels = held["test_batch" if name == "cifar10" else "test"][1]
    corrupted = root / {"cifar10": "CIFAR-10-C", "cifar100": "CIFAR-100-C"}[name]
    corrupted.mkdir()
    np.save(corrupted / "labels.npy", np.tile(labels.astype(np.uint8), 5))
    images = {one: random_bytes(5 * rows, 32, 32, 3, seed=i) for i, one in enumerate(NAMES)}
    for one, array in images.items():
        np.save(corrupted / f"{one}.npy", array)
    return images


def settings(root: Path, **changes: object) -> Config:
    defaults = {"data": "cifar10", "model": "mlp", "model_options": {"width": 4, "depth": 1}, "method": "none"}
    defaults |= {"data_root": str(root), "epochs": 1, "batch_size": 4, "device": "cpu", "severities": [1, 4]}
    return Config(**{**defaults, "corruptions": list(NAMES), "out": str(root / "run"), **changes})


@pytest.mark.parametrize(("name", "official"), [("cifar10", "CIFAR-10-C"), ("cifar100", "CIFAR-100-C")])
def test_official_files_are_evaluated_where_they_are(tmp_path: Path, name: str, official: str) -> None:
    images = write_official(tmp_path, name)
    test = load(name, tmp_path).test
    rows = corrupted_rows(name, tmp_path, test, NAMES)
    assert rows.source == official
    for severity in range(1, 6):
        wanted = images["fog"][6 * (severity - 1) : 6 * severity]
        read = rows.rows("fog", severity)
        assert np.array_equal(read.inputs.numpy(), wanted.transpose(0, 3, 1, 2))
        assert torch.equal(read.targets, test.targets)
    assert not (tmp_path / "corrupted").exists()  # nothing was remade


def test_without_official_files_rows_are_remade(tmp_path: Path) -> None:
    write_cifar_binary(tmp_path / "cifar-10-batches-bin", "cifar10")
    test = load("cifar10", tmp_path).test
    rows = corrupted_rows("cifar10", tmp_path, test, ["main"])
    assert (rows.source, len(rows.names)) == ("remade", 15)
    assert torch.equal(rows.rows("fog", 2).inputs, corrupt(test.inputs, "fog", 2))
    assert len(list((tmp_path / "corrupted").iterdir())) == 1


def test_tiny_imagenet_is_read_or_remade_with_its_own_constants(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    test = load("tiny-imagenet", tmp_path).test
    rows = corrupted_rows("tiny-imagenet", tmp_path, test, ["brightness"])
    assert rows.source == "remade"
    for severity in (1, 5):
        remade = rows.rows("brightness", severity).inputs
        assert torch.equal(remade, corrupt(test.inputs, "brightness", severity, constants="tiny-imagenet"))
        assert not torch.equal(remade, corrupt(test.inputs, "brightness", severity))
    write_tiny_imagenet_c(tmp_path / "Tiny-ImageNet-C")
    rows = corrupted_rows("tiny-imagenet", tmp_path, test, NAMES)
    assert rows.source == "Tiny-ImageNet-C"
    for i, name in enumerate(NAMES):
        read = rows.rows(name, 4)
        assert read.targets.tolist() == [0, 1, 2]
        colours = read.inputs.float().mean((2, 3))
        assert torch.allclose(colours, torch.tensor([[60.0 * k, 160.0, 90.0 * i] for k in range(3)]), atol=2)


def test_official_files_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write_official(tmp_path)
    test = load("cifar10", tmp_path).test
    with pytest.raises(DataError, match=r"lacks snow: .*`main`.*rename"):
        corrupted_rows("cifar10", tmp_path, test, ["fog", "snow"])
    with pytest.raises(DataError, match=r"labels\.npy: .*not those of the 5 test rows"):
        corrupted_rows("cifar10", tmp_path, test.rows(slice(5)), NAMES)
    with pytest.raises(DataError, match="not those of the 6 test rows"):
        corrupted_rows("cifar10", tmp_path, test.rows(torch.arange(5, -1, -1)), NAMES)
    (tmp_path / "CIFAR-10-C" / "labels.npy").unlink()
    with pytest.raises(FileNotFoundError, match=r"labels\.npy"):
        corrupted_rows("cifar10", tmp_path, test, NAMES)


def test_damaged_tiny_imagenet_c(tmp_path: Path) -> None:
    write_tiny_imagenet(tmp_path / "tiny-imagenet-200")
    folder = tmp_path / "Tiny-ImageNet-C"
    write_tiny_imagenet_c(folder)
    test = load("tiny-imagenet", tmp_path).test
    rows = corrupted_rows("tiny-imagenet", tmp_path, test, NAMES)
    (folder / "gaussian_noise" / "1" / "n01629819").rename(folder / "gaussian_noise" / "1" / "n1")
    with pytest.raises(DataError, match="n01629819, n1"):  # before anything is trained
        corrupted_rows("tiny-imagenet", tmp_path, test, ["gaussian_noise"])
    picture = folder / "fog" / "1" / "n01629819" / "val_1.JPEG"
    whole = picture.read_bytes()
    picture.write_bytes(whole[:50])
    with pytest.raises(DataError, match=r"val_1\.JPEG"):
        rows.rows("fog", 1)
    picture.write_bytes(whole)
    (folder / "fog" / "1" / "n01629819").rename(folder / "fog" / "1" / "n99999999")
    with pytest.raises(DataError, match="n01629819, n99999999"):
        rows.rows("fog", 1)
    with pytest.raises(DataError, match=r"lacks shot_noise and \d+ more: "):
        corrupted_rows("tiny-imagenet", tmp_path, test, ["main"])


def test_a_run_records_the_accuracy_on_official_rows_and_says_so(tmp_path: Path) -> None:
    images = write_official(tmp_path)
    run = train(settings(tmp_path), progress=False)
    assert run.result["corrupted_source"] == "CIFAR-10-C"
    model, test = run.model().eval(), run.data().test
    for name in NAMES:
        for place, severity in enumerate((1, 4)):
            x = torch.from_numpy(images[name][6 * (severity - 1) : 6 * severity]).permute(0, 3, 1, 2)
            right = (model(run.task.standard(x)).argmax(1) == test.targets).double().mean()
            assert run.result["corrupted"][name][place] == pytest.approx(float(right))
    every = [a for row in run.result["corrupted"].values() for a in row]
    assert run.result["corrupted_accuracy"] == pytest.approx(np.mean(every))


def test_an_unfit_official_set_stops_a_run_or_an_ensemble_before_it_trains(tmp_path: Path) -> None:
    write_official(tmp_path)
    with pytest.raises(DataError, match="lacks"):
        train(settings(tmp_path, corruptions=["all"]), progress=False)
    with pytest.raises(DataError, match="lacks"):
        train_ensemble(settings(tmp_path, corruptions=["all"]), Ensemble(strategy="deep", members=2), progress=False)
    assert not (tmp_path / "run").exists()


def test_a_study_does_not_mix_official_and_remade_rows(tmp_path: Path) -> None:
    from steppe.studies.engines import Serial
    from steppe.studies.plan import Study
    from steppe.studies.run import run
    from steppe.studies.store import Store

    write_official(tmp_path)
    base = {k: v for k, v in vars(settings(tmp_path)).items() if k not in ("out", "seed")}
    changed = {k: v for k, v in base.items() if v != getattr(Config(), k)}

    def study(seeds: list[int]) -> Study:
        content = {"base": changed, "grid": {"seed": seeds}, "targets": ["corrupted_error"], "out": str(tmp_path / "s")}
        return Study.of(content, "rows")

    run(study([0]), engine=Serial(), progress=False)
    with Store.reading(study([0]).store) as store:
        assert [versions["corrupted rows of cifar10"] for versions in store.versions()] == ["CIFAR-10-C"]
        (only,) = store.table().runs
    assert only.targets["corrupted_error"] == pytest.approx(1 - store_accuracy(tmp_path))
    (tmp_path / "CIFAR-10-C").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=r"this run was tested on remade corruptions, earlier ones on CIFAR-10-C"):
        run(study([0, 1]), engine=Serial(), progress=False)
    (tmp_path / "elsewhere").rename(tmp_path / "CIFAR-10-C")
    assert run(study([0, 2]), engine=Serial(), progress=False)


def store_accuracy(root: Path) -> float:
    """The accuracy that the same run records by itself."""
    return float(train(settings(root), progress=False).result["corrupted_accuracy"])
