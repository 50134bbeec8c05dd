"""Folders that somebody hands in: no command imports or calls what a file in them names, unless its user says so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from steppe.cli import main
from steppe.ensembles import open_ensemble
from steppe.ensembles.summary import report
from steppe.studies.engines import Serial
from steppe.studies.plan import Study
from steppe.studies.run import run as run_study
from steppe.training import Config, open_run, train

SMALL = ["--data", "spirals", "--fraction", "0.1", "--model-options", '{"width": 8, "depth": 1}', "--epochs", "1"]
SMALL += ["--batch-size", "50", "--device", "cpu"]
FACTORY = "hostile_nets:make"
CODE = """
from pathlib import Path
from steppe.nn import build
Path("imported").touch()
def make(shape, outputs, width, depth):
    Path("called").touch()
    return build("mlp", shape, outputs, width=width, depth=depth)
"""
OWN = {"model": "timeit:timeit", "model_options": {"stmt": "open('called', 'w')", "number": 1}}

# runs commands one after the other and prints, for each, its exit code, what it said, and what was imported and run
WATCH = """
import contextlib, io, json, socketserver, sys
seen = []
def hook(event, args):
    if event == "import":
        seen.append(str(args[0]))
    elif event in ("exec", "compile"):
        seen.append(str(getattr(args[0], "co_filename", args[0])))
sys.addaudithook(hook)
from steppe.cli import main
def interrupted(*_, **__):
    raise KeyboardInterrupt
socketserver.BaseServer.serve_forever = interrupted
found = []
for words in json.loads(sys.argv[1]):
    del seen[:]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(words)
    found.append([code, said.getvalue(), [s for s in seen if "hostile" in s]])
print(json.dumps(found))
"""


def watched(*commands: list[str]) -> list[tuple[int, str, list[str]]]:
    """What each command answers and says, and which hostile modules it imports or executes."""
    done = subprocess.run(
        [sys.executable, "-c", WATCH, json.dumps(commands)], capture_output=True, text=True, check=True, timeout=280
    )
    found: list[tuple[int, str, list[str]]] = json.loads(done.stdout)
    return found


def change(folder: Path, **settings: Any) -> None:
    """Makes a run's folder say something else of itself."""
    said = yaml.safe_load((folder / "run.yaml").read_text())
    said["config"] |= settings
    said["digest"] = "edited"  # as whoever hands in a folder can
    (folder / "run.yaml").write_text(yaml.safe_dump(said))


def traces() -> list[str]:
    """What the hostile module left behind; it is cleared away."""
    found = [name for name in ("imported", "called") if Path(name).exists()]
    for name in found:
        Path(name).unlink()
    return found


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Runs, an ensemble and a study that name a module beside them, in the working folder."""
    place, before = tmp_path_factory.mktemp("received"), Path.cwd()
    os.chdir(place)
    try:
        for name in ("mine", "given", "builtin"):
            assert main(["train", *SMALL, "--out", f"runs/{name}"]) == 0
        assert main(["ensemble", *SMALL, "--members", "2", "--strategy", "deep", "--out", "ens"]) == 0
        base = {"data": "spirals", "fraction": 0.1, "model_options": {"width": 8, "depth": 1}, "epochs": 1}
        base |= {"batch_size": 50, "device": "cpu"}
        files: dict[str, Any] = {
            "grid": {"base": base, "grid": {"seed": [0]}, "measures": ["loss"]},
            "pool": {"pool": "runs/given", "measures": ["loss"]},
            "same": {"pool": "runs/given", "base": {"model": FACTORY}, "measures": ["loss"]},
        }
        for name, content in files.items():
            Path(f"{name}.yaml").write_text(yaml.safe_dump(content))
        for name in ("grid", "pool"):
            assert main(["study", "run", f"{name}.yaml", "--engine", "serial"]) == 0
        Path("hostile_nets.py").write_text(CODE)
        for folder in [Path("runs/given"), *Path("ens/deep").glob("member-*"), *Path("studies/grid/runs").glob("*/")]:
            change(folder, model=FACTORY, loggers=["hostile_nets:log"])
        change(Path("runs/mine"), **OWN)
        for name in ("study.sqlite", "study.sqlite-wal", "study.sqlite-shm"):
            (Path("studies/grid") / name).unlink(missing_ok=True)  # so that its run is opened again
        yield place
    finally:
        os.chdir(before)


def test_no_command_imports_what_a_received_folder_names(folders: Path) -> None:
    measured = ["--measures", "loss", "--device", "cpu"]
    commands = [
        ["measure", "runs/given", *measured],
        ["measure", "runs/given", *measured, "--dry-run"],
        ["measure", "runs/mine", *measured],
        ["measure", "runs/given", *measured, "--model", "hostile_nets:other"],
        ["landscape", "runs/given", "--points", "3", "--device", "cpu", "--out", "a.json"],
        ["landscape", "runs/builtin", "runs/given", "--points", "3", "--device", "cpu", "--out", "a.json"],
        ["study", "run", "pool.yaml", "--engine", "serial"],
        ["study", "run", "pool.yaml", "--engine", "serial", "--dry-run"],
        ["study", "add-measure", "grad_norm", "--study", "pool.yaml", "--engine", "serial"],
        ["train", *SMALL, "--out", "runs/given"],
        ["ensemble", *SMALL, "--members", "2", "--strategy", "deep", "--out", "ens"],
        ["study", "run", "grid.yaml", "--engine", "serial"],
    ]
    harmless = [  # these open folders too, and have no use for a model
        ["study", "status", "pool.yaml"],
        ["study", "report", "pool.yaml"],
        ["report", "serve", "pool.yaml", "--port", "0"],
        ["measure", "runs/builtin", *measured],
    ]
    found = watched(*commands, *harmless)
    assert not traces()
    for words, (code, said, seen) in zip([*commands, *harmless], found, strict=True):
        assert not seen, words
        assert "Traceback" not in said
        assert code != 0 or words in harmless, words
    for words, (_, said, _) in zip(commands[:9], found, strict=False):
        factory = "timeit:timeit" if "runs/mine" in words else FACTORY
        assert f"'{factory}'" in said, words  # what was found, and both ways on
        assert f"--model '{factory}'" in said
        assert "--trust" in said


@pytest.mark.slow
def test_what_the_command_line_names_or_trusts_is_imported(folders: Path) -> None:
    """Also shows that the watch above sees such imports."""
    measured = ["--measures", "loss", "--device", "cpu"]
    commands = [
        ["measure", "runs/given", "runs/builtin", *measured, "--trust"],
        ["measure", "runs/given", *measured, "--model", FACTORY],
        ["landscape", "runs/builtin", "runs/given", "--points", "3", "--device", "cpu", "--out", "a.json", "--trust"],
        ["study", "run", "pool.yaml", "--engine", "serial", "--trust", "--out", "studies/trusted"],
        ["study", "run", "same.yaml", "--engine", "serial"],
    ]
    found = watched(*commands)
    assert traces() == ["imported", "called"]
    assert any("hostile_nets" in name for name in found[0][2])
    assert [code for code, _, _ in found] == [0] * len(commands), found


def test_a_file_of_options_does_not_trust(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("options.yaml").write_text("trust: true\n")
    assert main(["measure", "runs/given", "--measures", "loss", "--config", "options.yaml"]) == 2
    assert "trust" in capsys.readouterr().err
    assert not traces()


def test_the_library_asks_for_the_same(folders: Path) -> None:
    run = open_run("runs/given")
    assert len(run.records) == 1  # reading runs nothing
    for use in (run.model, run.objective):
        with pytest.raises(ValueError, match=r"run\.yaml names the model 'hostile_nets:make'.*trust=True"):
            use()
    with pytest.raises(ValueError, match="hostile_nets:make"):
        open_run("runs/given", model="hostile_nets:other").model()
    with pytest.raises(ValueError, match="timeit:timeit"):
        open_run("runs/mine").model()
    with pytest.raises(ValueError, match="hostile_nets:make"):
        report(open_ensemble("ens/deep"))
    study = Study.of({"pool": "runs/given", "measures": ["loss"], "out": "studies/library"}, "library")
    with pytest.raises(ValueError, match="hostile_nets:make"):
        run_study(study, Serial())
    assert not traces()
    assert open_run("runs/builtin").objective(model=open_run("runs/builtin").model()).loss() > 0
    assert open_run("runs/given", model=FACTORY).objective().loss() > 0
    assert traces() == ["imported", "called"]
    assert open_run("runs/given", trust=True).objective().loss() > 0
    assert report(open_ensemble("ens/deep", trust=True)).scores
    assert run_study(study, Serial(), trust=True).done == 1
    assert traces() == ["called"]


def test_ones_own_run_goes_on_by_the_same_command(folders: Path) -> None:
    Path("own_nets.py").write_text(CODE)
    words = ["train", *SMALL, "--model", "own_nets:make", "--epochs", "2", "--out", "runs/own"]
    config = Config(
        "spirals", fraction=0.1, model="own_nets:make", model_options={"width": 8, "depth": 1}, epochs=2, batch_size=50,
        device="cpu", out="runs/own",
    )  # fmt: skip
    assert not train(config, until=1).finished
    assert main(words) == 0
    assert train(config).model() is not None  # the caller has named it
    members = ["ensemble", *SMALL, "--model", "own_nets:make", "--members", "2", "--strategy", "sharpbalance"]
    members += ["--epochs", "2", "--exchange-at", "1", "--out", "own"]
    assert main(members) == 0
    assert main(members) == 0
    traces()
