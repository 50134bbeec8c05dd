"""Parts of a study in processes of their own on one folder, one of which is killed: each run is trained once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep

import pytest
import yaml
from studies_cells import BASE, Counting, contents, tiny

from steppe.cli.entry import main
from steppe.studies.cell import cells
from steppe.studies.engines import Serial
from steppe.studies.parts import part_of, take_in
from steppe.studies.plan import Study
from steppe.studies.run import claimed, run

PATIENCE = 240.0  # seconds: processes import torch on a machine that may be busy
STUDY = {
    # the mark of a killed run is a checkpoint of its own
    "base": {**BASE, "epochs": 80, "checkpoint_every": 0.0},
    "grid": {"method": ["none", {"method": "sam", "rho": 0.1}], "seed": [0, 1, 2, 3]},
    "measures": ["grad_norm"],
    "engine": "serial",
}


def started(folder: Path, part: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-m", "steppe", "study", "run", "tiny.yaml", "--part", part]
    return subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def starts(folder: Path) -> dict[str, int]:
    """How often each run was begun, or resumed before its end."""
    files = (folder / "studies" / "tiny" / "runs").glob("*/run.yaml")
    return {file.parent.name: len(yaml.safe_load(file.read_text())["starts"]) for file in files}


@pytest.mark.slow
def test_two_processes_share_a_folder_and_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(STUDY))
    monkeypatch.chdir(tmp_path)
    study = Study.of(STUDY, "tiny")
    first, second = (started(tmp_path, part) for part in ("1/2", "2/2"))
    mine = [cell.key for cell in cells(part_of(study, "1/2"))]
    end = monotonic() + PATIENCE
    killed = ""
    while not killed and monotonic() < end:
        begun = [key for key in mine[1:] if Path(study.run_folder(key), "checkpoint.safetensors").exists()]
        killed = begun[-1] if begun else ""
        sleep(0.005)
    os.kill(first.pid, signal.SIGKILL)
    assert first.wait() == -signal.SIGKILL
    assert second.wait(PATIENCE) == 0
    assert started(tmp_path, "1/2").wait(PATIENCE) == 0
    engine = Counting()
    assert take_in(study) == 8
    assert run(study, engine).done == 8
    assert engine.tasks == []  # everything is in the parts' records
    assert take_in(study) == 0
    assert starts(tmp_path) == {cell.key: 1 + (cell.key == killed) for cell in cells(study)}
    alone = replace(study, out=str(tmp_path / "alone"))
    assert run(alone, Serial()).done == 8
    assert contents(study) == contents(alone)
    capsys.readouterr()
    assert main(["study", "run", "tiny.yaml", "--part", "1/2"]) == 0
    assert "0 of 0 cells of this part" in capsys.readouterr().out


def test_parts_are_all_cells_once(tmp_path: Path) -> None:
    study = tiny(tmp_path)
    for count in (1, 2, 3, 7):
        of_parts = [[c.key for c in cells(part_of(study, f"{k}/{count}"))] for k in range(1, count + 1)]
        assert sorted(key for part in of_parts for key in part) == sorted(c.key for c in cells(study))
        assert max(map(len, of_parts)) - min(map(len, of_parts)) <= 1
    assert [c.name for c in cells(part_of(study, "1/4"))] == [cells(study)[0].name]  # named among all


def test_a_part_leaves_out_what_the_study_has_and_failures_are_taken_in(tmp_path: Path) -> None:
    diverging = {"model": "mlp", "model_options": BASE["model_options"], "lr": 1e30}
    grid = {"net": [{"lr": 0.1}, diverging], "seed": [0, 1]}
    study = tiny(tmp_path, grid=grid, measures=["grad_norm"])
    first, second = part_of(study, "1/2"), part_of(study, "2/2")
    assert (run(first, Serial()).done, run(second, Serial()).done) == (1, 1)
    assert take_in(study) == 4
    found = run(study, engine := Counting())
    assert (found.done, len(found.failures), engine.tasks) == (2, 2, [])
    assert take_in(study) == 0  # nor is a failure told twice
    assert cells(part_of(study, "1/2")) == []
    assert len(cells(part_of(study, "1/2", again=True))) == 1
    more = replace(study, measures=["grad_norm", "loss"])
    assert [len(cells(part_of(more, f"{k}/2"))) for k in (1, 2)] == [1, 1]
    run(part_of(more, "1/2"), Serial())
    assert take_in(more) == 1
    run(more, engine := Counting())
    assert [task.measures for task in engine.tasks] == [["loss"]]  # of the other part's run


@pytest.mark.parametrize("text", ["0/2", "3/2", "2", "a/b", "1/2/3", "-1/2", ""])
def test_what_is_no_part(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValueError, match="from 1/8 to 8/8, not"):
        part_of(tiny(tmp_path), text)


def test_one_process_has_a_part(tmp_path: Path) -> None:
    study = tiny(tmp_path)
    part = part_of(study, "1/2")
    with claimed(part.folder), pytest.raises(RuntimeError, match="1-of-2 is being run by process"):
        run(part, Serial())
    run(part, Serial())
    with claimed(part.folder), pytest.raises(RuntimeError, match=r"1-of-2 is being run by process \d+"):
        take_in(study)


def test_a_study_with_a_second_stage_has_no_parts(tmp_path: Path) -> None:
    base = {**BASE, "validation": 0.2}
    grid = {"lr": [0.1, 0.2]}
    study = tiny(tmp_path, base=base, grid=grid, select={"per": ["method"], "runs": {"seed": [5]}})
    with pytest.raises(ValueError, match="such a study has no parts"):
        part_of(study, "1/2")
