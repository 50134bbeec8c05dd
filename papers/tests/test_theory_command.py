"""`steppe theory`: what it lists, writes and refuses, and what sizes a study takes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steppe.cli import main
from steppe_papers.figures import NAMED, Result, Settings, find, run, save

OURS = [
    name
    for name, entry in NAMED.items()
    if entry.module in ("sharpbalance_studies", "wishart", "invariance", "pac_bayes")
]
FAST = ("--quick", "--sizes.matrices", "3")


def answered(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert main(["theory", *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_studies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    rows = answered(capsys)
    assert [row["name"] for row in rows] == list(NAMED)
    assert {"sharpbalance-figure-2", "sharpbalance-figure-8", "sharpbalance-figure-9", "sharpbalance-figure-10"} <= set(
        NAMED
    )
    assert main(["theory"]) == 0
    assert all(name in capsys.readouterr().out for name in ("wishart-moments",))


@pytest.mark.parametrize("name", NAMED)
def test_every_name_has_its_function(name: str) -> None:
    study = find(name).load()
    assert study.__doc__
    assert find(name).about


@pytest.mark.parametrize("name", OURS)
def test_every_study_is_written_as_numbers_and_picture(name: str, tmp_path: Path) -> None:
    import plotly.graph_objects as go

    result = run(name, Settings(quick=True))
    page, numbers = save(result, name, tmp_path / "new" / "folder")
    assert (page.name, numbers.name) == (f"{name}.html", f"{name}.json")
    read = json.loads(numbers.read_text())
    assert read["words"] == list(result.words)
    assert read["name"] == name
    figure = go.Figure(result.figure)
    assert len(figure.data) >= 3
    assert all(np.isfinite(np.asarray(trace.y, float)).all() for trace in figure.data)
    text = page.read_text()
    assert f"<title>{name}: " in text
    assert 'name="viewport"' in text
    assert "<script src=" not in text  # nothing is fetched
    assert [p.name for p in (tmp_path / "new" / "folder").iterdir() if p.name.startswith(".")] == []


def test_a_command_writes_and_prints_its_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "two.html"
    said = answered(capsys, "sharpbalance-figure-2", *FAST, "--out", str(out))
    assert said["files"] == [str(out), str(tmp_path / "two.json")]
    assert said["protocol"]["matrices"] == 3
    assert said["protocol"]["rows"] == 600  # quick
    written = json.loads((tmp_path / "two.json").read_text())
    assert written["panels"] == said["panels"]
    rows = said["panels"]["k = 5, eta = 0.002"]
    assert {"sharpness", "sharpness_error", "upper_printed", "lower_printed", "lower_corrected", "lower"} <= set(
        rows[0]
    )
    assert "standard errors" in said["words"][0]


def test_a_seed_repeats_and_another_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    def first(*more: str) -> Any:
        return answered(capsys, "sharpbalance-figure-2", *FAST, *more)["panels"]

    assert first() == first("--seed", "0") != first("--seed", "1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wishart"], "wishart-moments"),
        (["wishart-moments", "--out", "x.pdf"], ".html or .json"),
        (["wishart-moments", "--seed", "-1"], "0 or more"),
    ],
)
def test_wrong_options_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sizes.matrixes", "3"], "Did you mean 'matrices'"),
        (["--sizes.matrices", "few"], "such as 50, not 'few'"),
        (["--sizes.rows", "601"], "601 rows cannot be split into 10"),
    ],
)
def test_wrong_sizes_are_refused(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["theory", "sharpbalance-figure-2", "--quick", *words]) == 1
    assert said in capsys.readouterr().err


def test_help_and_the_list_take_no_torch() -> None:
    code = "import sys; from steppe.cli import main; main(['theory']); main(['theory', '--help'])"
    code += "; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.endswith("False\n")


@dataclass(frozen=True)
class _Sizes:
    count: int = 10
    share: float = 0.5
    radii: tuple[float, ...] = (0.1, 1.0)


def test_sizes_come_from_names_then_from_quick_then_from_the_study() -> None:
    assert Settings().of(_Sizes(), count=2) == _Sizes()
    assert Settings(quick=True).of(_Sizes(), count=2) == _Sizes(2)
    assert Settings(quick=True, sizes={"count": 5, "share": 1}).of(_Sizes(), count=2) == _Sizes(5, 1)
    assert Settings(sizes={"radii": [0.3]}).of(_Sizes()).radii == [0.3]
    for wrong in ({"count": 0.5}, {"count": True}, {"share": "x"}, {"radii": 0.3}, {"radii": ["x"]}, {"radii": []}):
        with pytest.raises(ValueError, match=f"the size {next(iter(wrong))} is"):
            Settings(sizes=wrong).of(_Sizes())


def test_numbers_become_json() -> None:
    data = {"a": np.arange(2), "b": float("inf"), "c": {"d": (np.float64(1.5), np.nan)}, 1: None}
    assert Result(data, {}, []).plain() == {"a": [0, 1], "b": None, "c": {"d": [1.5, None]}, "1": None}
