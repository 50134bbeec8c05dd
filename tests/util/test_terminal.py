"""Output fits its terminal: nothing is wider, and no name is cut, at 60, 80, 120 and 200 columns."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import steppe
from steppe._util.terminal import columns_of, complain, table, wrapped
from steppe.cli import main
from steppe.cli.entry import COMMANDS, SECTIONS
from steppe.cli.measure import Measurements, _table
from steppe.cli.options import parse
from steppe.cli.output import Output, print_output
from steppe.core.estimate import Cost, Estimate
from steppe.data.catalogue import DATASETS
from steppe.ensembles import Ensemble
from steppe.measures import Results
from steppe.nn.registry import MODELS
from steppe.training import Config

WIDTHS = (60, 80, 120, 200)
LISTINGS = {
    "methods": lambda: list(steppe.METHODS),
    "measures": lambda: list(steppe.MEASURES),
    "models": lambda: list(MODELS),
    "data list": lambda: list(DATASETS),
    "methods asam": lambda: ["decay_in_ascent", "filterwise"],
    "measures worst_linf@0.002": lambda: ["worst_linf@0.002"],
    "doctor": lambda: ["torch", "safetensors"],
    "loggers": lambda: ["tensorboard", "csv"],
}


@pytest.fixture(params=WIDTHS)
def columns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    return int(request.param)


def said(words: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(words.split()) == 0
    return capsys.readouterr().out


def too_wide(text: str, columns: int) -> list[str]:
    """Lines that are wider than the terminal although they have a space where they could be broken."""
    return [one for one in text.splitlines() if len(one.rstrip()) > columns and " " in one.strip()]


@pytest.mark.parametrize("words", LISTINGS)
def test_a_listing_fits_and_cuts_no_name(
    words: str, columns: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = said(words, capsys)
    assert not too_wide(text, columns)
    found = set(re.split(r"[\s,:]+", text)) | set(text.split())
    assert [name for name in LISTINGS[words]() if name not in found] == []
    assert "\x1b" not in text


@pytest.mark.parametrize("words", ["", *dict.fromkeys([*COMMANDS, *(name.split()[0] for name in COMMANDS)])])
def test_a_help_page_fits(words: str, columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(f"{words} --help", capsys)
    assert [one for one in too_wide(text, columns) if not one.startswith("  --")] == []
    assert "+ A,B" not in text  # a second spelling of each list


def test_a_wide_terminal_shows_more_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = {}
    for columns in (80, 200):
        monkeypatch.setenv("COLUMNS", str(columns))
        heads[columns] = said("methods", capsys).splitlines()[0].split("  ")
    narrow, wide = ([head.strip() for head in found if head.strip()] for found in heads.values())
    assert narrow == ["method", "what it does", "passes"]
    assert wide == [*narrow, "paper", "parameters"]


def test_one_method_in_detail(capsys: pytest.CaptureFixture[str], columns: int) -> None:
    text = said("methods sam", capsys)
    assert "Foret et al. 2021" in text
    for name in ("rho", "p", "steps", "normalized", "decay_in_ascent"):
        assert re.search(rf"(?m)^\s*{name}\b", text), name


def test_every_command_is_in_a_section_of_the_help_page(capsys: pytest.CaptureFixture[str]) -> None:
    text = said("--help", capsys)
    assert "of other packages" not in text + said("study --help", capsys)
    assert all(f"{heading}:" in text for heading in SECTIONS)


@pytest.mark.parametrize("settings", [Config, Ensemble])
def test_groups_of_flags_name_fields_once(settings: type) -> None:
    names = [name for group in settings.headings.values() for name in group]  # type: ignore[attr-defined]
    assert len(set(names)) == len(names)
    assert set(names) <= set(settings.__dataclass_fields__)


def test_common_flags_are_first(capsys: pytest.CaptureFixture[str]) -> None:
    text = said("train --help", capsys)
    common, _, rest = text.partition("\ndata:\n")
    for flag in ("--data ", "--model ", "--method ", "--rho ", "--lr ", "--epochs ", "--seed ", "--out ", "--dry-run"):
        assert f"\n  {flag}" in common
        assert f"\n  {flag}" not in rest
    assert text.index("\nmodel:\n") < text.index("\nschedule and averages:\n") < text.index("\nexamples:\n")


# -- results ----------------------------------------------------------------------------------------------------------

LONG = "adaptive_worst_linf_normalised@0.002[m=64,rows=test]"
ESTIMATES = {
    "loss": Estimate(0.69314718, 0.0, 1, "exact", Cost(losses=1, seconds=0.01)),
    "trace": Estimate(-12345.678, 246.9, 100, "unbiased", Cost(products=100, seconds=1.25)),
    LONG: Estimate(0.0413, float("nan"), 1, "lower bound", Cost(gradients=42, seconds=3.5), "2 starts, 20 steps each"),
}
RUNS = ("runs/digits-mlp-sam-0", "/a/folder/of/somebody/with/many/parts/and/a/long/name/runs/none")


def shown(of: Callable[[], object], capsys: pytest.CaptureFixture[str]) -> str:
    print_output(Output(None, [of()]), as_json=False)
    return capsys.readouterr().out


def test_measurements_of_runs_fit(columns: int, capsys: pytest.CaptureFixture[str]) -> None:
    measured = Measurements()
    for run in RUNS:
        measured.take(run, Results(ESTIMATES))
    text = shown(lambda: _table(measured.estimates), capsys)
    assert not too_wide(text, columns)
    found = text.split()
    assert all(found.count(name) == 2 for name in ESTIMATES)
    assert all(found.count(run) == 1 for run in RUNS)
    for number in ("0.69315", "-12346", "0.0413", "2.5e+02"):
        assert found.count(number) == 2
    assert all(found.count(word) == 2 for word in ("200", "1.25")) or "also shows: time" in text


RECORD = Path(__file__).parents[2] / "docs/comparisons/digits/comparison.jsonl"


def test_the_answer_of_a_comparison_fits(columns: int, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    shutil.copy(RECORD, tmp_path)
    text = said(f"compare report {tmp_path}", capsys)
    assert [one for one in too_wide(text, columns) if str(tmp_path) not in one] == []
    for name in ("none", "sam", "asam"):
        assert re.search(rf"\b{name}\b", text)
    assert "undecided" in text.lower() or "better" in text or "worse" in text


def test_printed_results_fit(columns: int) -> None:
    text = str(Results(ESTIMATES, {"broken": "no such cut of the data, for a reason that is told in many words"}))
    assert not too_wide(text, columns)
    assert all(name in text.split() for name in (*ESTIMATES, "broken"))
    assert "\x1b" not in text
    assert "Total cost: nothing" in text


def test_a_row_of_one_cell_is_a_heading() -> None:
    text = drawn(table(("measure", "tau"), [("test_error, of 80 runs with a long heading",), ("  trace", 0.5)]), 60)
    assert text.splitlines()[2].rstrip() == "test_error, of 80 runs with a long heading"


def drawn(of: object, columns: int) -> str:
    from steppe._util.terminal import console

    page = console(width=columns, no_color=True)
    with page.capture() as capture:
        page.print(of, crop=False)
    return capture.get()


def test_a_name_longer_than_the_terminal_is_whole() -> None:
    name = "x" * 100
    assert name in drawn(table(("run", "value"), [(name, 1.5), ("short", 2)], right=("value",)), 40).split()


def test_columns_are_left_out_in_their_order() -> None:
    one = table(("id", "a", "b"), [("i" * 10, "a" * 10, "b" * 10)], drop=("a", "b"))
    assert drawn(one, 34).split()[:3] == ["id", "a", "b"]
    assert drawn(one, 33).split()[:2] == ["id", "b"]
    assert "A wider terminal also shows: a." in " ".join(drawn(one, 33).split())
    assert drawn(one, 20).split()[0] == "id"
    assert "also shows: a, b." in " ".join(drawn(one, 20).split())
    assert drawn(one, 9).split() == ["i" * 10, "a:", "a" * 10, "b:", "b" * 10]


def test_sentences_wrap_between_words() -> None:
    assert wrapped("  one two three\nfour", 9) == "  one two\n  three\nfour"
    assert wrapped("a" * 20, 9) == "a" * 20


@pytest.mark.parametrize("terminal", [True, False])
def test_errors_wrap_on_a_terminal_only(
    terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    complain("steppe train: there is no method 'samm'. Did you mean 'sam'? There are 21: `steppe methods` lists them.")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == (2 if terminal else 1)
    assert all(one.startswith("  ") for one in lines[1:])


def test_without_a_terminal_the_fallback_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "__stdout__", None)
    assert columns_of(160) == 160


def test_flags_have_one_spelling(capsys: pytest.CaptureFixture[str]) -> None:
    from steppe.cli.entry import load_command

    page = parse(load_command("train"), ["--help"])
    assert "--nesterov " in str(page)
    assert "--no-nesterov" not in str(page)
    assert "--capture, --no-capture" in str(page)
