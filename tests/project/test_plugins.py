"""A tiny package on disk adds a method, a data set, a model and a logger: listings, errors and commands know them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import steppe

SOURCE = Path(steppe.__file__).parents[1]
MODULES = {
    "methods": """
        from dataclasses import dataclass
        from steppe import Method, Probe, register

        @register("doubled", does="the gradient twice", passes="1", paper="Nobody 2026")
        @dataclass(frozen=True)
        class Doubled(Method):
            def plan(self, context):
                here = yield Probe()
                return here.grad * 2
        """,
    "data": """
        import torch
        from steppe.data import Dataset, Splits, register

        @register("parity", "the parity of three bits", rows=(8, 8), shape=(3,), classes=2)
        def parity(root):
            bits = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
            rows = Dataset("parity", bits, bits.sum(1).long() % 2, classes=("even", "odd"))
            return Splits(rows, rows)
        """,
    "models": """
        from torch import nn
        from steppe.nn import register

        @register("plane", "one linear layer", paper="Nobody 2026")
        def plane(shape, outputs, bias=1):
            return nn.Linear(shape[0], outputs, bias=bool(bias))
        """,
    "loggers": """
        from steppe.training import register_logger

        @register_logger("lines", "a line per record in lines.txt")
        class Lines:
            last_step = 0

            def __init__(self, folder):
                self.file = folder / "lines.txt"

            def log_params(self, params):
                self.file.write_text("")

            def log_metrics(self, step, metrics):
                with self.file.open("a") as file:
                    file.write(f"{step} {metrics['passes']:g}\\n")

            def close(self):
                pass
        """,
}
OF = {"methods": "doubled", "data": "parity", "models": "plane", "loggers": "lines"}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """One in which the package is installed."""
    site = tmp_path / "site"
    (site / "tiny").mkdir(parents=True)
    (site / "tiny" / "__init__.py").touch()
    for name, text in MODULES.items():
        lines = [line.removeprefix(" " * 8) for line in text.strip("\n").splitlines()]
        (site / "tiny" / f"{name}.py").write_text("\n".join(lines) + "\n")
    info = site / "tiny-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
    doors = "".join(f"[steppe.{kind}]\ntiny = tiny.{kind}\n" for kind in MODULES)
    (info / "entry_points.txt").write_text(doors)
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(SOURCE)]), "OMP_NUM_THREADS": "1"}


def says(environment: dict[str, str], place: Path, *commands: list[str]) -> list[Any]:
    """What each command prints as JSON."""
    code = "import json, sys\nfrom steppe.cli import main\nfor words in json.loads(sys.argv[1]):\n"
    code += "    assert main([*words, '--json']) == 0, words\n    print('\\0')"
    line = [sys.executable, "-c", code, json.dumps(commands)]
    done = subprocess.run(line, env=environment, cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [json.loads(answer) for answer in done.stdout.split("\0\n") if answer]


def test_parts_of_another_package_are_listed_and_trained_with(environment: dict[str, str], tmp_path: Path) -> None:
    own = ["--data", "parity", "--model", "plane", "--method", "doubled", "--loggers", "lines"]
    settings = ["--model-options.bias", "2", "--batch-size", "4", "--epochs", "2", "--device", "cpu", "--lr", "0.1"]
    methods, one, data, models, loggers, run, _ = says(
        environment, tmp_path, ["methods"], ["methods", "doubled"], ["data", "list"], ["models"], ["loggers"],
        ["train", *own, *settings, "--out", "run"], ["measure", "run", "--measures", "loss", "--device", "cpu"],
    )  # fmt: skip
    names = {"methods": methods, "data": data, "models": models, "loggers": loggers}
    assert all(OF[kind] in [row["name"] for row in rows] for kind, rows in names.items())
    assert one["paper"] == "Nobody 2026"
    [row] = [row for row in data if row["name"] == "parity"]
    assert (row["is"], row["rows"], row["shape"], row["classes"]) == ("the parity of three bits", [8, 8], [3], 2)
    assert run["finished"]
    assert (tmp_path / "run" / "lines.txt").read_text() == "2 2\n4 2\n"


def test_they_are_in_studies_and_in_errors(environment: dict[str, str], tmp_path: Path) -> None:
    study = {
        "base": {"data": "parity", "model": "plane", "epochs": 1, "batch_size": 4, "device": "cpu"},
        "grid": {"method": ["doubled", "none"], "seed": [0, 1]},
        "measures": ["loss"],
        "engine": "serial",
        "out": "study",
    }
    (tmp_path / "study.yaml").write_text(json.dumps(study))
    [result] = says(environment, tmp_path, ["study", "run", "study.yaml"])
    assert result["done"] == 4
    line = [sys.executable, "-m", "steppe", "train", "--data", "parit", "--dry-run"]
    done = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no data set 'parit'. Did you mean 'parity'" in done.stderr
