"""The page on comparisons says what its committed record says, and the files of comparisons can be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from steppe.cli import main
from steppe.comparison.design import Design
from steppe.comparison.result import Result, result_of
from steppe.comparison.store import NAME, Comparison, Record

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "docs/comparisons").glob("*.yaml"))
PAGE = " ".join((ROOT / "docs/compare.md").read_text().split())


@pytest.fixture(scope="module")
def digits() -> Comparison:
    current = Record(ROOT / "docs/comparisons/digits" / NAME).current
    assert current is not None
    return current


def test_the_sentences_are_those_of_the_record(digits: Comparison) -> None:
    result = result_of(digits)
    assert result.state == "decided"
    assert len(result.contrasts) == 2
    for sentence in result.sentences:
        assert " ".join(sentence.split()) in PAGE


def test_the_numbers_of_the_text_are_those_of_the_record(digits: Comparison) -> None:
    result = result_of(digits)
    errors = [f"{row.half:.1f}" for row in result.rows]
    assert f"with {len(result.rows[0].curve)} trials of tuning instead of 8 the three errors are {errors[0]}, " in PAGE
    assert f"{errors[0]}, {errors[1]} and {errors[2]} %" in PAGE
    assert f"The runs took {result.seconds / 60:.0f} minutes in all, two at a time" in PAGE
    assert round(result.rows[0].tuned) == 10  # "a tuned SGD ends at 10 %"
    plain = {i: digits.design.trial("none", i)["epochs"] for i in range(len(digits.outcomes("none")))}
    outcomes = digits.outcomes("none")
    short, long = (100 * np.median([outcomes.test[i] for i in plain if plain[i] == n]) for n in (4, 80))
    assert f"the median of those trials is {long:.0f} % test error, and that of 4 epochs is {short:.0f} %" in PAGE


def test_the_record_is_of_the_file(digits: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the command gets these trials: seeds and points are functions of the file."""
    found: list[Design] = []

    def no_run(design: Design, *_: object) -> Result:
        found.append(design)
        raise KeyboardInterrupt

    monkeypatch.setattr("steppe.cli.compare._run", no_run)
    monkeypatch.chdir(ROOT)
    assert main(["compare", "docs/comparisons/digits.yaml", "--yes"]) == 130
    assert found[0].plain() == digits.design.plain()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_file_names_its_command_and_its_folder(file: Path) -> None:
    text = file.read_text()
    assert f"steppe compare docs/comparisons/{file.name} --yes" in text
    assert yaml.safe_load(text)["out"] == f"docs/comparisons/{file.stem}"
    record = file.with_suffix("") / NAME
    assert record.exists() == (f"steppe compare docs/comparisons/{file.name} --yes" in PAGE)  # sections have records
