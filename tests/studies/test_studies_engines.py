"""Engines: the same records from all of them, lost workers, and what is tried again."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from threading import Timer
from types import SimpleNamespace
from typing import Any

import pytest
from studies_cells import BASE, contents, tiny

from steppe._util.files import lock_folder
from steppe.studies.cell import Outcome, Task, cells
from steppe.studies.engines import Engine, Local, Ray, Serial, engine_of
from steppe.studies.engines.engine import EngineSettings, RetryPolicy
from steppe.studies.engines.local import mps
from steppe.studies.run import run
from steppe.studies.store import Store
from steppe.training.stopping import StopRequest

LOCAL = Local(2, start="forkserver")  # as spawned, but torch is imported once for all workers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("studies")


@pytest.fixture(scope="module")
def by_serial(folder: Path) -> dict[str, Any]:
    study = tiny(folder / "serial")
    assert run(study, Serial()).done == 4
    return contents(study)


def test_processes_give_the_records_of_one_process(folder: Path, by_serial: dict[str, Any]) -> None:
    study = tiny(folder / "local")
    assert run(study, LOCAL).done == 4
    assert contents(study) == by_serial


def test_a_killed_worker_costs_its_cell_and_the_cell_is_tried_again(folder: Path) -> None:
    marks = folder / "marks"
    marks.mkdir()
    options = {"marks": str(marks), "times": 2, "spared": os.getpid()}  # the driver, which builds a model to check it
    grid = {"model_options": [options], "seed": [0, 1, 2]}
    study = tiny(folder / "killed", base={**BASE, "model": "studies_cells:deadly"}, grid=grid)
    found = run(study, replace(LOCAL, retries=2))
    assert found.done == 3
    assert not found.failures
    assert len(list(marks.iterdir())) == 2


def test_a_cell_that_kills_every_worker_is_recorded_and_the_others_go_on(folder: Path) -> None:
    marks = folder / "more marks"
    marks.mkdir()
    both = [
        {"model": "studies_cells:deadly", "model_options": {"marks": str(marks), "times": 99, "spared": os.getpid()}},
        {"model": "mlp", "model_options": BASE["model_options"]},
    ]
    study = tiny(folder / "deadly", grid={"net": both})
    found = run(study, replace(LOCAL, retries=1))
    assert found.done == 1
    [error] = found.failures.values()
    assert error == f"its worker ended with exit code {-signal.SIGKILL} (tried 2 times)"
    assert len(list(marks.iterdir())) == 2
    assert run(study, Serial()).failures == found.failures  # not again, unless asked
    (folder / "more marks" / "x").touch()
    healed = tiny(folder / "deadly", grid={"net": both})
    for i in range(99):
        (marks / f"died-{i}").touch()
    assert run(healed, Serial(), again=True).done == 2


@pytest.mark.parametrize(("retries", "done"), [(1, 0), (2, 1)])
def test_want_of_space_may_pass(tmp_path: Path, retries: int, done: int) -> None:
    marks = {"marks": str(tmp_path), "times": 3}  # the first one is the check before the study starts
    study = tiny(tmp_path / "full", base={**BASE, "model": "studies_cells:full", "model_options": marks}, grid={})
    assert run(study, Serial(retries)).done == done


def test_a_run_that_another_process_still_trains_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut network takes a worker from its driver, and the worker goes on for a while."""
    monkeypatch.setattr("steppe.studies.work.PATIENCE", 0.2)
    study = tiny(tmp_path, grid={}, measures=[])
    place = Path(study.run_folder(cells(study)[0].key))
    place.mkdir(parents=True)
    with lock_folder(place, "run"):
        held = run(study, Serial(retries=1))
        [error] = held.failures.values()
        assert re.search(r"is being trained in by process \d+ .* \(tried 2 times\)$", error)
        timer = Timer(0.5, place.rename, [tmp_path / "x"])  # the lock belongs to what was moved away
        timer.start()
        assert run(study, Serial(retries=20), again=True).done == 1
        timer.join()


def test_what_cannot_go_well_is_not_tried_again() -> None:
    tries = RetryPolicy(5)
    wrong = Outcome("k", "failed", error="ValueError: no")
    assert tries.settled(wrong) is wrong
    lost = replace(wrong, transient=True)
    assert [tries.settled(lost) for _ in range(5)] == [None] * 5
    last = tries.settled(lost)
    assert last is not None
    assert last.error == "ValueError: no (tried 6 times)"
    assert tries.settled(replace(lost, key="other")) is None


def test_a_wish_to_stop_is_heard_and_the_same_call_goes_on(folder: Path, by_serial: dict[str, Any]) -> None:
    class Stopping:
        """An engine in which somebody asks for the end after the first cell."""

        workers = 1

        def outcomes(self, tasks: Sequence[Task], stop_request: StopRequest, begun: Any = None) -> Iterator[Outcome]:
            for number, outcome in enumerate(Serial().outcomes(tasks, stop_request)):
                yield outcome
                if number == 0:
                    os.kill(os.getpid(), signal.SIGTERM)

    study = tiny(folder / "stopped")
    engine: Engine = Stopping()
    found = run(study, engine)
    assert found.stopped == "SIGTERM"
    assert found.done == 1
    with Store.reading(study.store) as store:
        assert sorted(store.states().values()) == ["done", "open", "open", "open"]
    assert run(study, Serial()).done == 4
    assert contents(study) == by_serial


@pytest.mark.slow
def test_stopped_workers_end_at_once(folder: Path) -> None:
    long = tiny(folder / "long", base={**BASE, "epochs": 100_000, "evaluate_every": 1000}, grid={"seed": [0, 1, 2]})
    timer = Timer(4.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    found = run(long, LOCAL)
    assert found.stopped == "SIGTERM"
    assert found.done == 0
    assert not found.failures


def test_engines_by_name() -> None:
    assert isinstance(engine_of(EngineSettings("serial")), Serial)
    assert engine_of(EngineSettings("ray", address="a:1", retries=7)) == Ray("a:1", 7)
    local = engine_of(EngineSettings(workers=3, retries=4), "cpu")
    assert local == Local(3, 4, 0, "spawn")
    assert engine_of(EngineSettings(), "cpu").workers == len(os.sched_getaffinity(0))


CONTROL = """#!/bin/sh
echo "$* $(cat) ${CUDA_VISIBLE_DEVICES-none} $CUDA_MPS_PIPE_DIRECTORY" >> "$CALLS"
exit $FAILS
"""


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file to which a stand-in for the control program of MPS writes its calls: arguments, input, GPUs, folder."""
    program = tmp_path / "bin" / "nvidia-cuda-mps-control"
    program.parent.mkdir()
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAILS", "0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return tmp_path / "calls"


def test_the_multi_process_service_runs_during_a_block(control: Path) -> None:
    with mps() as variables:
        folder = variables["CUDA_MPS_PIPE_DIRECTORY"]
        assert Path(folder).is_dir()
        assert control.read_text() == f"-d  none {folder}\n"  # processes name GPUs as the system does
    assert control.read_text().splitlines()[1] == f" quit none {folder}"
    assert not Path(folder).exists()


def test_a_service_that_does_not_start_or_runs_already_is_left_alone(
    control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAILS", "1")
    with mps() as variables:
        assert variables == {}
    assert len(control.read_text().splitlines()) == 1
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/elsewhere")
    with mps() as variables:
        assert variables == {}
    assert len(control.read_text().splitlines()) == 1


@pytest.mark.parametrize(("workers", "calls"), [(1, 0), (2, 2)])
def test_workers_that_share_a_gpu_use_the_service(tmp_path: Path, control: Path, workers: int, calls: int) -> None:
    study = tiny(tmp_path / "shared", grid={"seed": [0, 1]}, measures=[])
    assert run(study, replace(LOCAL, workers=workers, gpus=1)).done == 2
    assert len(control.read_text().splitlines() if control.exists() else []) == calls


@pytest.mark.parametrize(
    ("memory", "cores", "places"), [(140 << 30, 64, 8), (24 << 30, 64, 3), (140 << 30, 12, 4), (4 << 30, 1, 1)]
)
def test_as_many_cells_share_a_gpu_as_fit(
    control: Path, monkeypatch: pytest.MonkeyPatch, memory: int, cores: int, places: int
) -> None:
    from steppe.studies.engines import local

    monkeypatch.setattr(local, "_gpus", lambda: 3)
    monkeypatch.setattr(local, "_cores", lambda: cores)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda i: SimpleNamespace(total_memory=memory))
    assert Local.of(None, None, 2, None).workers == 3 * places
    control.with_name("bin").joinpath("nvidia-cuda-mps-control").unlink()
    assert Local.of(None, None, 2, None).workers == 3


def test_gpus_are_shared_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steppe.studies.engines import local

    monkeypatch.setattr(local, "_gpus", lambda: 3)
    assert Local.of(None, 2, 2, None) == Local(6, 2, 3)
    assert Local.of(None, 2, 2, "cpu").gpus == 0
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert local._visible(1) == "7"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert local._visible(1) == "1"


def test_each_worker_has_a_gpu_of_its_own_as_long_as_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    notes = tmp_path / "notes"
    base = BASE | {"model": "studies_cells:noting_gpu", "model_options": {"notes": str(notes)}}
    study = tiny(tmp_path / "gpus", base=base, grid={"seed": [0, 1]}, measures=[])
    assert run(study, replace(LOCAL, gpus=2)).done == 2
    assert set(notes.read_text().splitlines()) == {"4,7", "4", "7"}  # the driver builds the model once, to check it


def test_cells_are_plain_values(folder: Path) -> None:
    import pickle

    task = Task(cells(tiny(folder / "x"))[0], "folder", ["trace"], ["gap"])
    assert pickle.loads(pickle.dumps(task)) == task
