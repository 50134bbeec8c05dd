"""The demo: its table says what its numbers are, and its numbers are right."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from io import StringIO
from statistics import mean, stdev

import pytest
import torch
from oracles.curvature import hessian
from oracles.sharpness import projected_ascent
from rich.console import Console
from torch import nn
from torch.nn.functional import cross_entropy

from steppe import demo

MEASURED = ("accuracy", "loss", "sharpness", "curvature")


@pytest.fixture(scope="module")
def as_json() -> dict:
    command = [sys.executable, "-W", "error", "-m", "steppe.demo", "--seeds", "2", "--epochs", "2", "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, env=env, text=True, timeout=120, check=True)
    return json.loads(done.stdout)  # and nothing but JSON on standard output


def test_json_has_a_row_a_method(as_json: dict) -> None:
    assert [row["method"] for row in as_json["rows"]] == list(demo.METHODS)
    assert as_json["seeds"] == 2
    assert [row["passes"] for row in as_json["rows"]] == [1, 2, 2, 3]
    assert as_json["rows"][0]["time"] == 1.0
    assert all(row["accuracy"]["mean"] > 30 for row in as_json["rows"])  # two epochs beat guessing, at 10
    assert all(row["sharpness"]["mean"] > 0 for row in as_json["rows"])


def test_runs_repeat_and_their_statistics_are_those_over_seeds(as_json: dict) -> None:
    training, test = demo.digits()
    runs = [demo.train("sam", training, test, seed, epochs=2) for seed in range(2)]
    row = as_json["rows"][list(demo.METHODS).index("sam")]
    for field in MEASURED:
        values = [getattr(run, field) for run in runs]
        assert row[field]["mean"] == pytest.approx(mean(values), rel=1e-4)
        assert row[field]["stderr"] == pytest.approx(stdev(values) / 2**0.5, rel=1e-2, abs=1e-6)
    assert runs[0].loss != runs[1].loss


def test_the_split_is_fixed_and_its_parts_are_disjoint() -> None:
    (x, y), (test_x, test_y) = demo.digits()
    again = demo.digits()[0][0]
    assert torch.equal(x, again)
    assert len(x) == len(y) == demo.TRAINING_ROWS
    assert len(x) + len(test_x) == 1797
    assert 0 <= min(x.min(), test_x.min()) <= max(x.max(), test_x.max()) <= 1
    assert set(y.tolist()) == set(test_y.tolist()) == set(range(10))
    assert not {tuple(row.tolist()) for row in x} & {tuple(row.tolist()) for row in test_x}  # no two digits are alike


def test_sharpness_and_curvature_are_those_of_a_softmax_regression() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3).double()
    x, y = torch.randn(20, 4, dtype=torch.float64), torch.randint(3, (20,))
    w = torch.cat([p.detach().reshape(-1) for p in model.parameters()])

    def f(weights: torch.Tensor) -> torch.Tensor:
        return cross_entropy(x @ weights[:12].view(3, 4).T + weights[12:], y)

    found, sharpness, curvature = demo.flatness(model, (x, y))
    assert found == pytest.approx(float(f(w)), rel=1e-12)
    assert sharpness == pytest.approx(projected_ascent(f, w, demo.RADIUS).rise, rel=1e-3)
    assert curvature == pytest.approx(float(torch.linalg.eigvalsh(hessian(f, w))[-1]), rel=1e-5)


def test_the_table_says_what_its_numbers_are() -> None:
    figures = {
        "accuracy": (95.25, 0.5),
        "loss": (0.125, 0.25),
        "sharpness": (0.0625, 0.03125),
        "curvature": (1.5, 0.25),
    }
    numbers = {k: {"mean": m, "stderr": e} for k, (m, e) in figures.items()}
    rows = [{"method": name, **numbers, "passes": 2.0, "time": 1.875} for name in demo.METHODS]
    console = Console(width=80, record=True, file=StringIO())
    console.print(demo.table(rows, seeds=7, epochs=3))
    text = " ".join(console.export_text().split())
    for expected in (
        "n = 7",
        "standard error",
        "as far as a search finds it",
        "3 epochs",
        "sam rho=0.2",
        *demo.METHODS,
    ):
        assert expected in text
    assert "95.25 ± 0.50 0.1250 ± 0.2500 0.0625 ± 0.0312 1.50 ± 0.25 2 1.88" in text  # whole, in 80 columns


def test_a_single_run_has_no_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--seeds", "1"])
    assert "--seeds of 2 or more" in capsys.readouterr().err


def test_without_scikit_learn_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # what an import of a missing module finds
    with pytest.raises(SystemExit, match="pip install scikit-learn"):
        demo.digits()
