"""A study's folder that is copied to another machine: reported, resumed and extended there, without paths of the first.

The other machine is another working directory with another folder of data; the first one is gone.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from data_files import write_mnist
from studies_cells import contents

from steppe.cli.entry import main
from steppe.studies.cell import cells
from steppe.studies.engines import Serial
from steppe.studies.plan import Study
from steppe.studies.points import Grid
from steppe.studies.run import run
from steppe.studies.store import Store
from steppe.training import train

STUDY: dict[str, Any] = {
    "base": {
        "data": "mnist", "model": "mlp", "model_options": {"width": 8, "depth": 1}, "epochs": 3, "batch_size": 20,
        "device": "cpu", "measure_rows": 32, "checkpoint_every": 0.0,
    },
    "grid": {"method": ["none", {"method": "sam", "rho": 0.1}, {"strategy": "deep", "members": 2}], "seed": [0, 1]},
    "measures": ["lambda_max"],
    "show": ["spectrum"],
    "engine": "serial",
}  # fmt: skip


def machine(place: Path, data: str) -> Path:
    """A working directory with the study's file, and data in a folder of its own."""
    write_mnist(place / data / "mnist", (200, 60))
    work = place / "work"
    work.mkdir()
    base = STUDY["base"] | {"data_root": str(place / data)}
    (work / "mine.yaml").write_text(yaml.safe_dump(STUDY | {"base": base}))
    return work


pytestmark = pytest.mark.filterwarnings("ignore:mnist under")  # it is smaller here


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, Any], Path]:
    """Where the copy lies, what the whole study holds, and the first machine, which is gone."""
    first, second = machine(tmp_path / "a", "data"), machine(tmp_path / "b", "elsewhere")
    study = Study.of(yaml.safe_load((first / "mine.yaml").read_text()), "mine")
    with monkeypatch.context() as patch:
        patch.chdir(first)
        assert run(replace(study, out="whole"), Serial()).done == 6
        whole = contents(replace(study, out="whole"))
        stopped = cells(study)[2]  # after an epoch: its folder has weights, state and records, and the store nothing
        first_two = {"method": ["none", {"strategy": "deep", "members": 2}], "seed": [0]}
        assert run(replace(study, grid=Grid.of(first_two, "grid")), Serial()).done == 2
        train(replace(stopped.parts[0], out=study.run_folder(stopped.key)), progress=False, until=1)
    shutil.copytree(first / "studies/mine", second / "results/copied")
    shutil.rmtree(tmp_path / "a")
    return second, whole, tmp_path / "a"


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def test_it_is_reported_and_goes_on_as_if_it_had_never_moved(
    there: tuple[Path, dict[str, Any], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    second, whole, gone = there
    monkeypatch.chdir(second)
    assert told(capsys, "study", "status", "results/copied")["counts"] == {"done": 2}
    assert told(capsys, "study", "report", "results/copied")["done"] == 2
    assert str(gone) not in Path("results/copied/report.html").read_text()
    resumed = told(capsys, "study", "run", "mine.yaml", "--out", "results/copied")
    assert (resumed["planned"], resumed["done"]) == (6, 6)
    study = Study.of(yaml.safe_load(Path("mine.yaml").read_text()) | {"out": "results/copied"}, "mine")
    ours = contents(study)
    for key in ours.keys() - {"versions"}:  # names follow from the plan in which a cell first stood
        assert ours[key] | {"name": ""} == whole[key] | {"name": ""}
    assert len(ours) == len(whole)
    added = told(capsys, "study", "add-measure", "grad_norm", "--study", "mine.yaml", "--out", "results/copied")
    assert added["done"] == 6  # checkpoints of the first machine, data of this one
    with Store.reading(study.store) as store:
        assert [(one.name, one.failures) for one in store.table().runs if "grad_norm" not in one.measures] == []
    # the copied runs as a pool: their files name the data of the first machine
    pool = {
        "base": {"data_root": str(second.parent / "elsewhere")},
        "pool": "results/copied/runs/*",
        "engine": "serial",
    }
    Path("pool.yaml").write_text(yaml.safe_dump(pool | {"measures": ["loss"]}))
    assert told(capsys, "study", "run", "pool.yaml")["done"] == 4


def test_a_measurement_that_fails_is_told_and_made_again(
    there: tuple[Path, dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cells are finished: their state does not say that a measure could not be added."""
    monkeypatch.chdir(there[0])
    assert main(["study", "run", "mine.yaml", "--out", "results/copied"]) == 0
    more = ["study", "add-measure", "grad_norm", "--study", "mine.yaml", "--out", "results/copied"]
    with monkeypatch.context() as broken:
        broken.setattr("steppe.training.folder.data_of", lambda config: 1 / 0)
        capsys.readouterr()
        assert main(more) == 1
    said = capsys.readouterr().err
    assert "steppe study: none seed=0 failed: ZeroDivisionError" in said
    assert main(more) == 0
