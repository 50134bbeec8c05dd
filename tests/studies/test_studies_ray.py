"""The Ray engine on a real Ray of two cores: the records of one process, lost workers, errors, stops, and addresses."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any

import pytest
from studies_cells import BASE, contents, tiny

from steppe.studies.cell import Task, cells
from steppe.studies.engines import Ray, Serial
from steppe.studies.engines.ray import _outcome, joined
from steppe.studies.run import run
from steppe.training.stopping import StopRequest

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install ray")
TOKEN = uuid.uuid4().hex  # Ray reads it once in a process
PATIENCE = 120.0  # seconds for a step: machines that test may be busy
LOST = "its worker was lost: The worker died unexpectedly while executing this task (tried 2 times)"


@contextmanager
def two_cores() -> Iterator[Any]:
    """A Ray whose files and token are not a person's own."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as files:
        patch.setenv("RAY_TMPDIR", files)  # short: its sockets are there, whose paths may have 107 characters
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", TOKEN)
        patch.delenv("RAY_ADDRESS", raising=False)
        with ExitStack() as stack:
            try:
                ray = stack.enter_context(joined(cores=2))
            except ConnectionError as error:  # a machine's matter, such as shared memory that is closed to us
                pytest.skip(f"Ray does not start on this machine: {error}")
            yield ray


@pytest.mark.slow
@needs_ray
def test_ray(tmp_path: Path, capfd: Any) -> None:
    """One test of all that needs a cluster: it takes seconds to start, and each test process would start its own."""
    before = signal.getsignal(signal.SIGTERM)
    with two_cores() as ray:
        assert signal.getsignal(signal.SIGTERM) is before  # a study's own answer to it stays
        assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]  # and nowhere else
        assert Ray().workers == 2
        the_records_are_those_of_one_process(tmp_path, capfd)
        killed_workers_are_tried_again_and_errors_told_as_by_other_engines(tmp_path)
        what_cannot_even_begin_is_no_lost_worker(tmp_path, ray)
        tasks_that_are_stopped_write_a_checkpoint_and_let_go(tmp_path, ray)
        another_process_joins_by_the_address(tmp_path, ray)
        said = capfd.readouterr()
        assert (said.out, said.err) == ("", "")  # Ray tells pages of a lost worker, unless it is kept from it
    assert not ray.is_initialized()


def the_records_are_those_of_one_process(folder: Path, capfd: Any) -> None:
    alone, study = tiny(folder / "serial"), tiny(folder / "ray")
    assert run(alone, Serial()).done == 4
    capfd.readouterr()
    assert run(study, Ray(), progress=True).done == 4
    assert contents(study) == contents(alone)
    said = capfd.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 4  # the lines of progress, and nothing of Ray's
    assert said.err.splitlines()[-1].startswith("4 of 4: ")


def killed_workers_are_tried_again_and_errors_told_as_by_other_engines(folder: Path) -> None:
    """A cell whose worker is killed once, one whose worker is always killed, and one that diverges."""
    diverging = {"model": "mlp", "model_options": BASE["model_options"], "lr": 1e30}
    nets = [deadly(folder / "once", 1), deadly(folder / "always", 99), diverging]
    found = run(tiny(folder / "faults", grid={"net": nets}), Ray(retries=1))
    assert found.done == 1
    assert len(list((folder / "once").iterdir())) == 1
    assert len(list((folder / "always").iterdir())) == 2  # Ray itself does not try again as well
    lost, diverged = sorted(found.failures.values(), reverse=True)
    assert lost == LOST
    by_one = run(tiny(folder / "fault", grid={"net": [diverging]}), Serial())
    assert diverged == next(iter(by_one.failures.values())).replace("/fault/", "/faults/")


def what_cannot_even_begin_is_no_lost_worker(folder: Path, ray: Any) -> None:
    task = Task(cells(tiny(folder / "x"))[0], "", [])

    def without() -> None:
        raise ModuleNotFoundError("No module named 'steppe'")

    found = _outcome(ray, ray.remote(max_retries=0)(without).remote(), task)
    assert (found.error, found.transient) == ("ModuleNotFoundError: No module named 'steppe'", False)


def tasks_that_are_stopped_write_a_checkpoint_and_let_go(folder: Path, ray: Any) -> None:
    study = tiny(folder / "long", base={**BASE, "epochs": 1_000_000, "evaluate_every": 1000}, grid={})
    [cell] = cells(study)
    task, stop_request, end = Task(cell, str(folder / "long run"), [], []), StopRequest(), monotonic() + PATIENCE

    def ask() -> None:
        while not (folder / "long run" / "metrics.jsonl").exists() and monotonic() < end:
            sleep(0.05)
        stop_request.why = "SIGTERM"

    asker = Thread(target=ask)
    asker.start()
    assert list(Ray().outcomes([task], stop_request)) == []
    asker.join()
    assert monotonic() < end
    assert list((folder / "long run").glob("checkpoint*"))
    while ray.available_resources().get("CPU") != 2:  # no task goes on
        assert monotonic() < end
        sleep(0.1)


def another_process_joins_by_the_address(folder: Path, ray: Any) -> None:
    code = """if True:
        import json, sys
        from steppe.studies.engines import Ray
        from steppe.studies.plan import Study
        from steppe.studies.run import run
        out, address, base = sys.argv[1:]
        found = run(Study.of({"base": json.loads(base), "out": out, "measures": ["lambda_max"]}, "tiny"), Ray(address))
        assert "torch" not in sys.modules  # a driver needs none, and waits for none
        print(found.done, dict(found.failures))
    """
    address = ray.get_runtime_context().gcs_address
    words = [sys.executable, "-W", "error", "-c", code, str(folder / "joined"), address, json.dumps(BASE)]
    said = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert said.stdout == "1 {}\n"
    assert said.stderr == ""
    assert ray.is_initialized()  # who joins does not end it


def deadly(marks: Path, times: int) -> dict[str, Any]:
    """A network that kills the process that builds it with SIGKILL, so many times."""
    marks.mkdir()
    return {"model": "studies_cells:deadly", "model_options": {"marks": str(marks), "times": times}}


@needs_ray
def test_a_cluster_that_is_not_there_is_told() -> None:
    """In a process of its own, for Ray is imported once."""
    code = "from steppe.studies.engines import Ray; print(Ray('nowhere').workers)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert "ConnectionError: no Ray cluster was found at nowhere" in said.stderr
    assert "ray start --head" in said.stderr


@pytest.mark.skipif(importlib.util.find_spec("ray") is not None, reason="Ray is installed")
def test_ray_says_that_it_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ImportError, match=r"pip install 'steppe\[ray\]'"):
        run(tiny(tmp_path / "no ray"), Ray())
