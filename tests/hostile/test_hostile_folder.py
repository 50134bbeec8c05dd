"""Commands started in a folder with Python files of other people: none of these files runs, here or in a child."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from data_files import write_flowers

import steppe
import steppe_papers

SOURCE = Path(steppe.__file__).parents[1]
PAPERS = Path(steppe_papers.__file__).parents[1]
RUN = {"data": "spirals", "fraction": 0.1, "model_options": {"width": 8, "depth": 1}, "epochs": 1, "batch_size": 50}
RUN |= {"device": "cpu"}
WORDS = [f"--{key.replace('_', '-')}={x if isinstance(x, str) else json.dumps(x)}" for key, x in RUN.items()]
MEASURES = ["--measures", "loss", "--device", "cpu"]
# as the script that pip installs, which Python starts without the working folder on its path
SCRIPT = """
import json, sys
from pathlib import Path
from steppe.cli import main
if __name__ == "__main__":
    codes = [main(words) for words in json.loads(sys.argv[1])]
    Path(sys.argv[2]).write_text(json.dumps(codes))
"""


class Hostile:
    """A working folder with a file for each module that anybody might import; each file notes that it was run."""

    def __init__(self, place: Path) -> None:
        self.folder, self.notes, self.script = place / "received", place / "notes", place / "bin" / "steppe"
        for folder in (self.folder, self.notes, self.script.parent):
            folder.mkdir(parents=True)
        self.script.write_text(SCRIPT)
        names = {*sys.stdlib_module_names, *packages_distributions(), "steppe", "sitecustomize", "usercustomize"}
        info = self.folder / "received-1.0.dist-info"  # as an installed package has it, with a door for each kind
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: received\nVersion: 1.0\n")
        doors = ("methods", "measures", "models", "data", "corruptions", "loggers", "commands")
        (info / "entry_points.txt").write_text("".join(f"[steppe.{kind}]\nreceived = received\n" for kind in doors))
        for name in (names | {"received"}) - {"__main__"}:
            if name.isidentifier():
                (self.folder / f"{name}.py").write_text(f"open({str(self.notes / name)!r}, 'w').close()\n")

    def start(self, *words: object, **more: Any) -> subprocess.CompletedProcess[str]:
        """A process in the folder; `more` are variables of its environment."""
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
        environment |= {"PYTHONPATH": os.pathsep.join(map(str, (SOURCE, PAPERS))), "OMP_NUM_THREADS": "1", **more}
        line = [sys.executable, *map(str, words)]
        return subprocess.run(
            line, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=280
        )

    def codes(self, *commands: list[str], **more: Any) -> list[int]:
        """The exit codes of some commands."""
        result = self.script.with_suffix(".json")
        done = self.start(self.script, json.dumps(commands), result, **more)
        assert result.exists(), done.stderr
        codes: list[int] = json.loads(result.read_text())
        result.unlink()
        assert codes == [0] * len(commands), (codes, done.stdout, done.stderr)
        return codes

    def write(self, name: str, content: dict[str, Any]) -> None:
        (self.folder / name).write_text(yaml.safe_dump(content))

    def ran(self) -> list[str]:
        """The modules that were run; they are forgotten."""
        found = sorted(path.name for path in self.notes.iterdir())
        for name in found:
            (self.notes / name).unlink()
        return found


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """The folder, with a run in it that was trained there."""
    place = Hostile(tmp_path_factory.mktemp("hostile"))
    place.codes(["train", *WORDS, "--out", "runs/a"])
    assert not place.ran()
    yield place
    assert not place.ran()


COMPARE = ["compare", "--data", "spirals", "--model", "mlp", "--methods", "none,sam", "--fix", "epochs=1,batch_size=50"]
LOGGERS = ("tensorboard", "mlflow", "wandb")
GRID = {"base": RUN, "grid": {"seed": [0, 1]}, "measures": ["loss"]}


def test_the_files_would_run(hostile: Hostile) -> None:
    """The test of the test: as `python -m` and `python -c` start, the folder is searched."""
    hostile.start("-m", "this")
    assert hostile.ran()
    hostile.start("-c", "import antigravity")
    assert "antigravity" in hostile.ran()


def test_workers_of_a_study(hostile: Hostile) -> None:
    hostile.write("grid.yaml", GRID)
    hostile.codes(["study", "run", "grid.yaml", "--workers", "2"])
    assert not hostile.ran()


@pytest.mark.slow
def test_members_in_processes(hostile: Hostile) -> None:
    words = ["--members", "2", "--strategy", "deep", "--how", "processes", "--processes", "2", "--out", "ens"]
    hostile.codes(["ensemble", *WORDS, *words])
    assert not hostile.ran()


@pytest.mark.slow
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_the_same_from_python(hostile: Hostile, start: str) -> None:
    """A script of the user's, which lies elsewhere, without the command line."""
    path = hostile.script.with_name("own.py")
    path.write_text(f"""
from steppe.ensembles import Ensemble, train_ensemble
from steppe.studies.engines import Local
from steppe.studies.plan import Study
from steppe.studies.run import run
from steppe.training import Config
if __name__ == "__main__":
    given = {GRID | {"out": start}!r}
    assert run(Study.of(given, "own"), Local(2, start={start!r})).done == 2
    train_ensemble(Config(**given["base"], out="{start}-own"), Ensemble(2, strategy="deep", how="processes"))
""")
    done = hostile.start(path)
    assert not done.returncode, done.stderr
    assert not hostile.ran()


@pytest.mark.parametrize("engine", ["local", pytest.param("ray", marks=pytest.mark.slow)])
def test_a_model_that_the_user_names_is_still_found(hostile: Hostile, engine: str) -> None:
    """In the working folder, also by workers; its own imports are its user's affair."""
    if importlib.util.find_spec(engine) is None and engine == "ray":
        pytest.skip("Ray is not installed: pip install ray")
    code = "def make(shape, outputs, width, depth):\n    from steppe.nn import build\n"
    code += "    return build('mlp', shape, outputs, width=width, depth=depth)\n"
    (hostile.folder / "own_nets.py").write_text(code)
    hostile.write("own.yaml", GRID | {"base": RUN | {"model": "own_nets:make"}, "out": f"{engine}-nets"})
    hostile.codes(["study", "run", "own.yaml", "--engine", engine, "--workers", "2"])
    assert not hostile.ran()


def test_labels_in_mat_files(hostile: Hostile) -> None:
    """They were once read by a `python -m` of their own."""
    write_flowers(hostile.folder / "flowers-102")
    done = hostile.start("-P", "-c", "from steppe.cli import main; main(['data', 'check', '.'])")
    assert "flowers102 at" in done.stdout, done.stderr
    assert not hostile.ran()


@pytest.mark.slow
def test_loggers_and_compiled_steps(hostile: Hostile) -> None:
    """They start processes of other packages."""
    loggers = [name for name in LOGGERS if importlib.util.find_spec(name)]
    hostile.codes(["train", *WORDS, "--loggers", ",".join(["csv", *loggers]), "--compile", "--out", "runs/more"])
    assert not hostile.ran()


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["serial", "local", "ray"])
def test_comparisons(hostile: Hostile, engine: str) -> None:
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install ray")
    base = ["--base", "validation=0.1", "--yes", "--budget", "10m", "--trials", "20"]
    hostile.codes([*COMPARE, *base, "--engine", engine, "--workers", "2", "--out", f"{engine}-compared"])
    hostile.codes(["compare", "report", f"{engine}-compared"])
    assert not hostile.ran()


def test_every_other_command(hostile: Hostile) -> None:
    hostile.write("pool.yaml", {"pool": "runs/*", "measures": ["loss"]})
    hostile.codes(
        ["measure", "runs/a", *MEASURES],
        ["landscape", "runs/a", "--points", "3", "--device", "cpu", "--out", "a.json"],
        ["ensemble", *WORDS, "--members", "2", "--strategy", "deep", "--out", "ens"],
        [*COMPARE, "--dry-run"],
        ["loggers"],
        ["reproduce"],
        ["theory"],
        ["study", "init", "new.yaml"],
        ["study", "run", "pool.yaml", "--engine", "serial"],
        ["study", "status", "pool.yaml"],
        ["study", "report", "pool.yaml"],
        ["study", "add-measure", "grad_norm", "--study", "pool.yaml", "--workers", "1"],
        ["report", "serve", "--help"],
        ["data", "list"],
        ["data", "get", "--help"],
        ["methods"],
        ["measures"],
        ["models"],
        ["doctor"],
    )
    assert not hostile.ran()


@pytest.mark.slow
def test_ray(hostile: Hostile) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("Ray is not installed: pip install ray")
    hostile.write("ray.yaml", GRID | {"out": "ray"})
    hostile.codes(["study", "run", "ray.yaml", "--engine", "ray", "--workers", "2"])
    assert not hostile.ran()


@pytest.mark.slow
def test_torchrun(hostile: Hostile) -> None:
    """As docs/trust.md says to start several processes in such a folder."""
    one = json.dumps([["train", *WORDS, "--out", "runs/b"]])
    result = hostile.script.with_suffix(".json")
    torchrun = ["-P", "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2"]
    done = hostile.start(*torchrun, sys.executable, hostile.script, one, result)
    assert not done.returncode, done.stderr
    assert not hostile.ran()
