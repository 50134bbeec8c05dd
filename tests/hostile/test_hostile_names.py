"""Names and keys that carry commands: to a terminal, or to a spreadsheet."""

from __future__ import annotations

import ast
import csv
import io
import json
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import steppe
from steppe.cli.entry import main
from steppe.cli.measure import COLUMNS, Measurements, write_results
from steppe.cli.output import Output, print_output, table
from steppe.data.check import Found as FoundData
from steppe.measures import Cost, Estimate, Results
from steppe.studies.export import export_table
from steppe.studies.run import show_progress
from steppe.studies.table import Measured, Run, Table
from steppe.training.loggers import CSV

# ESC ] 0 sets the title, ESC [ 2 J clears the screen, 9b does so in one character, 202e turns text around
EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b2J\r\x08\x7f\u202eb\u2028c"


def clean(text: str) -> bool:
    return all(line.isprintable() for line in text.split("\n"))


def test_the_test_would_notice() -> None:
    assert not clean(EVIL)


@pytest.mark.parametrize("more", [[], ["--debug"]])
@pytest.mark.parametrize(
    "words",
    [["measure", EVIL], ["data", "check", EVIL], ["study", "status", EVIL], ["train", f"--{EVIL}"], [EVIL],
     ["train", "--config", EVIL], ["data", "get", EVIL]],
    ids=lambda words: " ".join(words[:-1]) or "command",
)  # fmt: skip
def test_names_on_the_command_line(words: list[str], more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, *more]) != 0
    told = capsys.readouterr()
    assert "owned" in told.out + told.err
    assert clean(told.out + told.err)


def test_names_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "data"
    (folder / EVIL).mkdir(parents=True)
    (folder / EVIL / f"{EVIL}.png").write_bytes(b"no picture")
    assert main(["data", "check", str(folder)]) == 1
    (folder / f"{EVIL}.npz").write_bytes(b"no arrays")
    assert main(["data", "check", str(folder / f"{EVIL}.npz")]) == 1
    (folder / "undecodable\udcff.npz").write_bytes(b"no arrays")
    assert main(["data", "check", str(folder / "undecodable\udcff.npz")]) == 1
    told = capsys.readouterr()
    assert "owned" in told.out
    assert clean(told.out + told.err)


def test_keys_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "a.yaml"
    for text in (f'"{EVIL.encode("unicode_escape").decode()}": 1', 'model: "\\e[2Jowned"', 'notes: ["\\e[2Jowned"]'):
        file.write_text(text)
        for words in (["train", "--dry-run", "--config", str(file)], ["train", "--config", str(file), "--help"]):
            main(words)
    told = capsys.readouterr()
    assert "owned" in told.out + told.err
    assert clean(told.out + told.err)


def test_arrays_by_hostile_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "a.npz", **{EVIL: np.zeros(3)})
    assert main(["data", "check", str(tmp_path / "a.npz")]) == 1
    told = capsys.readouterr().out
    assert "owned" in told
    assert clean(told)


def test_answers_tables_and_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    shown = table(("run", f"within {EVIL}"), [(EVIL, f"[red]{EVIL}[/red]")], right=(f"within {EVIL}",))
    print_output(Output({EVIL: EVIL}, [shown, f"about {EVIL}"], [f"trouble with {EVIL}"]), as_json=False)
    estimate = Estimate(1.0, 0.1, 8, "unbiased", note=EVIL)
    print(Results({EVIL: estimate}, {EVIL + "2": EVIL}))
    told = capsys.readouterr()
    assert told.out.count("owned") >= 5
    assert "[red]" in told.out
    assert clean(told.out + told.err)


def test_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_output(Output({EVIL: EVIL}), as_json=True)
    told = capsys.readouterr().out
    assert clean(told)
    assert json.loads(told) == {EVIL: EVIL}


def test_a_name_does_not_fake_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    main(["measure", "a\nsteppe measure: all is well"])
    assert "\nsteppe measure: all" not in capsys.readouterr().err
    assert "\nall is well" not in str(FoundData("x", "a\nall is well", notes=("b\nall is well",)))


def test_progress_and_warnings(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with show_progress(3, 0, progress=True) as update:
        update(EVIL, "done")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr("steppe.cli.entry.print_output", lambda *_: warnings.warn(EVIL, stacklevel=1))
        main(["methods"])
    told = capsys.readouterr().err
    assert told.count("owned") == 2
    assert clean(told)


def test_what_is_printed_goes_through_one_place() -> None:
    """Whoever prints past it prints control characters of names, too."""
    root = Path(steppe.__file__).parent
    spelled = {"print", "Console"}
    printing = {
        file.relative_to(root).as_posix()
        for file in root.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Name) and node.id in spelled
    }
    assert printing == {"_util/terminal.py"}


# spreadsheets

FORMULAS = [
    "=1+1",
    "+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    '=HYPERLINK("http://example.invalid")',
]


def runs(*names: str) -> Table:
    estimate = Measured(-0.25, 0.01, 8, "unbiased", {}, 1.0, "-note", True)
    return Table([
        Run(str(i), name, {"model": name, "lr": -1e-3, "text": "-1e-3"}, {name: name}, "done", {"gap": -0.5},
            {"trace": estimate}, {}, {"seconds": 1.5}, {}, "=error")
        for i, name in enumerate(names)
    ])  # fmt: skip


@pytest.mark.parametrize("shape", ["runs", "outcomes"])
def test_cells_of_a_study_begin_no_formula(tmp_path: Path, shape: str) -> None:
    with export_table(runs(*FORMULAS), tmp_path / "t.csv", shape).open(newline="", encoding="utf-8") as file:  # type: ignore[arg-type]
        rows = list(csv.reader(file))
    heads, *rows = rows
    for cell in [*heads, *(cell for row in rows for cell in row)]:
        assert not cell.startswith(tuple("=@\t\r\n"))
        if cell.startswith(("+", "-")):
            assert float(cell) < 0  # numbers stay numbers
    read = [dict(zip(heads, row, strict=True)) for row in rows]
    if shape == "runs":
        assert [row["name"] for row in read] == [f"'{name}" for name in FORMULAS]
        assert {(row["config.lr"], row["config.text"], row["target.gap"]) for row in read} == {
            ("-0.001", "-1e-3", "-0.5")
        }
    else:
        assert {row["value"] for row in read if row["name"] == "trace"} == {"-0.25"}


def test_cells_of_measurements_begin_no_formula(tmp_path: Path) -> None:
    found = Measurements()
    found.estimates.append(("=1+1", "@m", Estimate(-1.5, 0.1, 8, "unbiased", Cost(seconds=1.0), "-x")))
    write_results(tmp_path / "a.csv", found)
    (row,) = csv.DictReader(io.StringIO((tmp_path / "a.csv").read_text()))
    assert (row["run"], row["measure"], row["note"], row["value"]) == ("'=1+1", "'@m", "'-x", "-1.5")
    assert list(row) == list(COLUMNS)


def test_heads_of_records_begin_no_formula(tmp_path: Path) -> None:
    CSV(SimpleNamespace(path=tmp_path, records=[])).log_metrics(1, {"epoch": 1, "=1+1": -2.0})
    assert (tmp_path / "metrics.csv").read_text().splitlines() == ["epoch,'=1+1", "1,-2.0"]
