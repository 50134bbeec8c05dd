"""Measures on test, validation, corrupted and augmented rows, along a run and at its end, in commands and studies."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from steppe.cli import main
from steppe.data.corruptions import corrupted
from steppe.data.dataset import Dataset
from steppe.studies.check import InvalidStudy
from steppe.studies.engines import Serial
from steppe.studies.plan import Study
from steppe.studies.run import look, run
from steppe.studies.store import Store
from steppe.training import open_run

SETTINGS: dict[str, Any] = {
    "data": "npz:images.npz", "model": "mlp", "model_options": {"width": 8, "depth": 1}, "epochs": 4, "batch_size": 20,
    "lr": 0.05, "validation": 0.25, "augment": ["flip"], "corruptions": ["brightness", "contrast"],
    "severities": [1, 5], "device": "cpu", "measure_rows": 1000,
}  # fmt: skip
ROWS = ["loss", *(f"loss[rows={rows}]" for rows in ("train", "validation", "test", "corrupted", "augmented"))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images of random pixels, and a trained run."""
    folder, before = tmp_path_factory.mktemp("rows"), Path.cwd()
    os.chdir(folder)
    draw = np.random.default_rng(0)
    parts = {"train": 80, "test": 30}
    arrays = {f"x_{part}": draw.integers(0, 256, (n, 3, 32, 32), dtype=np.uint8) for part, n in parts.items()}
    np.savez("images.npz", **arrays, **{f"y_{part}": draw.integers(0, 3, n) for part, n in parts.items()})
    Path("run.yaml").write_text(json.dumps(SETTINGS | {"measures": ROWS, "measure_every": 2}))
    assert main(["train", "--config", "run.yaml", "--out", "runs/a"]) == 0
    yield folder
    os.chdir(before)


def by_hand(dataset: Dataset) -> float:
    """The mean loss of the trained run on some rows, standardised by hand."""
    trained = open_run("runs/a")
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (trained.task.standard.mean, trained.task.standard.std))
    with torch.no_grad():
        return float(cross_entropy(trained.model()((dataset.inputs.float() / 255 - mean) / std), dataset.targets))


def test_each_kind_of_rows_is_what_it_says(place: Path) -> None:
    trained = open_run("runs/a")
    splits, found = trained.data(), {k: m["value"] for k, m in trained.result["measures"].items()}
    assert splits.validation is not None
    assert len(splits.train) == 60
    assert found["loss"] == found["loss[rows=train]"] == pytest.approx(by_hand(splits.train), rel=1e-5)
    assert found["loss[rows=validation]"] == pytest.approx(by_hand(splits.validation), rel=1e-5)
    assert found["loss[rows=test]"] == pytest.approx(by_hand(splits.test), rel=1e-5)
    pairs = [(name, severity) for name in ("brightness", "contrast") for severity in (1, 5)]
    damaged = [by_hand(corrupted(splits.test, name, severity)) for name, severity in pairs]
    assert found["loss[rows=corrupted]"] == pytest.approx(sum(damaged) / 4, rel=1e-5)
    assert len(set(found.values())) == len(found) - 1


def row_losses(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
    with torch.no_grad():
        return cross_entropy(model(images), targets, reduction="none")


def test_augmented_rows_are_the_training_rows_each_flipped_or_not(place: Path) -> None:
    from steppe.training.evaluate import measured_rows

    trained = open_run("runs/a")
    train = trained.data().train
    rows = measured_rows(trained.data(), trained.config, "augmented", None)
    same = (rows.inputs == train.inputs).flatten(1).all(1)
    flipped = (rows.inputs == train.inputs.flip(3)).flatten(1).all(1)
    assert bool((same ^ flipped).all())
    assert 10 < int(flipped.sum()) < 50
    few = measured_rows(trained.data(), trained.config, "augmented", 7)  # as many of the rows that are measured plainly
    plain = measured_rows(trained.data(), trained.config, "train", 7)
    assert len(few) == 7
    assert bool((few.targets == plain.targets).all())
    assert trained.result["measures"]["loss[rows=augmented]"]["value"] == pytest.approx(by_hand(rows), rel=1e-5)


def test_the_number_of_corrupted_rows_is_of_all_corruptions_together(place: Path) -> None:
    from steppe.training.evaluate import measured_rows

    trained = open_run("runs/a")
    rows = measured_rows(trained.data(), trained.config, "corrupted", 50)
    assert len(rows) == 50
    test = trained.data().test
    sets = [corrupted(test, name, s).inputs.flatten(1) for name in ("brightness", "contrast") for s in (1, 5)]
    counts = [sum(bool((one == row).all(1).any()) for row in rows.inputs.flatten(1)) for one in sets]
    assert min(counts) >= 5  # of each


def test_commands_and_studies_measure_the_same(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = {k: m["value"] for k, m in open_run("runs/a").result["measures"].items()}
    capsys.readouterr()
    assert main(["measure", "runs/a", "--measures", ",".join(ROWS), "--rows", "1000", "--device", "cpu", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["results"]
    assert {row["measure"]: row["value"] for row in rows} == pytest.approx(found, rel=1e-6)
    study = Study.of({"pool": "runs/*", "measures": ROWS, "out": "pooled"}, "pooled")
    run(study, Serial(), progress=False)
    measures = look(study)[1].runs[0].measures
    del found["loss[rows=train]"]  # in a study this is loss
    assert {k: m.value for k, m in measures.items()} == pytest.approx(found, rel=1e-6)


def test_flags_are_the_defaults_that_a_measure_overrides(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    names = "loss,loss[rows=train],loss[count=30,rows=test]"
    assert (
        main(["measure", "runs/a", "--measures", names, "--split", "test", "--rows", "9", "--device", "cpu", "--json"])
        == 0
    )
    values = {row["measure"]: row["value"] for row in json.loads(capsys.readouterr().out)["results"]}
    splits = open_run("runs/a").data()
    assert values["loss[count=30,rows=test]"] == pytest.approx(by_hand(splits.test), rel=1e-5)
    assert len({round(v, 6) for v in values.values()}) == 3


def test_measures_over_epochs_are_curves_with_errors(place: Path) -> None:
    given = {
        "base": {**SETTINGS, "measure_rows": 40}, "grid": {"seed": [0]}, "out": "along", "measure_every": 2,
        "measures": ["trace", "worst_l2@0.1[m=10,rows=test]"], "targets": ["test_error"],
    }  # fmt: skip
    study = Study.of(given, "along")
    run(study, Serial(), progress=False)
    [cell], table = look(study)
    with Store.reading(study.store) as store:
        curves = store.curves(cell.key)
    assert [("trace" in row) for row in curves] == [False, True, False, True]
    last, measures = curves[-1], table.runs[0].measures
    for name in given["measures"]:
        assert last[name] == measures[name].value  # the trained model, measured again at the end
        assert last["measures"][name]["stderr"] == measures[name].stderr > 0
    assert curves[1]["trace"] != last["trace"]

    more = Study.of({**given, "measures": [*given["measures"], "loss"]}, "along")  # an added measure trains nothing
    run(more, Serial(), progress=False)
    [again], table = look(more)
    assert again.key == cell.key
    assert table.runs[0].measures["loss"].value > 0
    without = {key: value for key, value in given.items() if key != "measure_every"}
    assert [c.key for c in look(Study.of(without, "along"))[0]] == [cell.key]


def test_the_page_draws_measures_over_epochs(place: Path) -> None:
    from steppe.studies.report.contents import content

    with Store.reading(Path("along/study.sqlite")) as store:
        curves = content(store)["curves"]
    assert "trace" in curves["metrics"]
    assert [v is not None for v in curves["runs"][0]["trace"]] == [False, True, False, True]


@pytest.mark.parametrize(
    ("rows", "setting"), [("corrupted", "corruptions"), ("augmented", "augment"), ("validation", "validation")]
)
def test_rows_that_no_run_has_are_refused_before_training(tmp_path: Path, rows: str, setting: str) -> None:
    study = Study.of({"base": {"data": "digits"}, "measures": [f"trace[rows={rows}]"], "out": str(tmp_path)}, "x")
    with pytest.raises(InvalidStudy, match=f"needs {rows} rows, and no run has any: set {setting} in base"):
        run(study, Serial(), progress=False)


@pytest.mark.parametrize("every", [0, 1.5, True, "often"])
def test_measure_every_is_a_number_of_epochs(every: Any) -> None:
    with pytest.raises(ValueError, match="measure_every takes a whole number, 1 or more"):
        Study.of({"measure_every": every}, "x")
