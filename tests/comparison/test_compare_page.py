"""The page on comparisons says what its committed record says, and the files of comparisons can be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from pages import browser, wait_until

from steppe.cli import main
from steppe.cli.output import Output
from steppe.comparison.design import Design
from steppe.comparison.page import write
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


def outcomes(name: str, method: str) -> list[tuple[int, float, float]]:
    """The epochs at one pass per step, radius and test error in percent of a method's trials."""
    current = Record(ROOT / "docs/comparisons" / name / NAME).current
    assert current is not None
    trials = [current.design.trial(method, i) for i in range(len(current.outcomes(method)))]
    errors = 100 * current.outcomes(method).test
    return [(t["epochs"], t.options.get("rho", 0.0), float(e)) for t, e in zip(trials, errors, strict=True)]


def test_the_numbers_on_fashion_mnist_are_those_of_the_record() -> None:
    plain, sam = outcomes("fashion-mnist", "none"), outcomes("fashion-mnist", "sam")
    four, eight = ([float(np.median([e for n, _, e in trials if n == k])) for k in (4, 8)] for trials in (plain, sam))
    assert f"error of {four[0]:.1f} % after 4 epochs and {four[1]:.1f} % after 8" in PAGE
    assert f"{eight[0]:.1f} % and {eight[1]:.1f} % after half as many" in PAGE
    one, other = sorted(sam, key=lambda trial: trial[2])[:2]
    assert f"{one[2]:.1f}" == f"{other[2]:.1f}"
    low, high = sorted([one[1], other[1]])
    assert f"with {one[2]:.1f} %, have the radii {low:.3f} and {high:.3f}" in PAGE


def test_the_numbers_on_a_tenth_of_cifar_10_are_those_of_the_record() -> None:
    plain, sam = outcomes("cifar10-10", "none"), outcomes("cifar10-10", "sam")
    epochs, radius, error = min(sam, key=lambda trial: trial[2])
    assert f"best trial has {error:.1f} % after {epochs // 2} epochs, with the radius {radius:.3f}" in PAGE
    best = [min(e for n, _, e in plain if n == k) for k in (30, 60)]
    assert f"30 epochs have {best[0]:.1f} % at best" in PAGE
    assert f"60 plain epochs end at {best[1]:.1f} % at best" in PAGE


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar10-10"])
def test_a_record_took_as_long_as_the_page_says(name: str) -> None:
    current = Record(ROOT / "docs/comparisons" / name / NAME).current
    assert current is not None
    assert f"{name}/comparison.jsonl) took {result_of(current).seconds / 8 / 60:.0f} minutes on one H200" in PAGE


def test_the_numbers_of_the_text_are_those_of_the_record(digits: Comparison) -> None:
    result = result_of(digits)
    errors = [f"{row.curve[-1][1]:.1f}" for row in result.rows]
    assert f"with {len(result.rows[0].curve)} trials of tuning instead of 8 the three errors are {errors[0]}, " in PAGE
    assert f"{errors[0]}, {errors[1]} and {errors[2]} %" in PAGE
    assert f"The runs took {result.seconds / 60:.0f} minutes in all, two at a time" in PAGE
    assert round(result.rows[0].tuned) == 10  # "a tuned SGD ends at 10 %"
    plain = {i: digits.design.trial("none", i)["epochs"] for i in range(len(digits.outcomes("none")))}
    outcomes = digits.outcomes("none")
    short, long = (100 * np.median([outcomes.test[i] for i in plain if plain[i] == n]) for n in (4, 80))
    assert f"the median of those trials is {long:.0f} % test error, and that of 4 epochs is {short:.0f} %" in PAGE


def test_the_numbers_of_sam_beside_a_recipe_are_those_of_the_records(digits: Comparison) -> None:
    found = {}
    for name in ("digits-recipe", "digits-tuned"):
        current = Record(ROOT / "docs/comparisons" / name / NAME).current
        assert current is not None
        result = result_of(current)
        assert result.seconds < 60
        found[name] = [f"{row.tuned:.1f}" for row in result.rows]
    plain, sam = found["digits-recipe"]
    assert f"ends at {sam} % test error where SGD has {plain} %" in PAGE
    plain, sam = found["digits-tuned"]
    assert f"once its recipe is tuned, {plain} %" in PAGE
    assert f"Beside that tuned recipe, SAM has {sam} %" in PAGE


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_the_record_is_of_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the command gets these trials: seeds and points are functions of the file."""
    found: list[Design] = []

    def no_run(design: Design, *_: object) -> Result:
        found.append(design)
        raise KeyboardInterrupt

    monkeypatch.setattr("steppe.cli.compare._run", no_run)
    monkeypatch.setattr("steppe.cli.compare._plan", lambda design, *_: (design, Output({}, [])))  # it needs the data
    monkeypatch.chdir(ROOT)
    assert main(["compare", str(file.relative_to(ROOT)), "--yes"]) == 130
    current = Record(file.with_suffix("") / NAME).current
    assert current is not None
    assert found[0].plain() == current.design.plain()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_every_file_names_its_command_and_its_folder(file: Path) -> None:
    text = file.read_text()
    assert f"steppe compare docs/comparisons/{file.name} --yes" in text
    assert yaml.safe_load(text)["out"] == f"docs/comparisons/{file.stem}"
    record = file.with_suffix("") / NAME
    assert record.exists() == (f"steppe compare docs/comparisons/{file.name} --yes" in PAGE)  # sections have records


def test_its_panels_and_its_table_fit_a_phone(digits: Comparison, tmp_path: Path) -> None:
    place = write(result_of(digits), tmp_path / "page.html")
    with browser() as opened:
        for width, panels in ((390, 1), (1280, 3)):
            page = opened.new_page(viewport={"width": width, "height": 800})
            page.goto(f"file://{place}")
            wait_until(page, "document.documentElement.dataset.ready === 'yes'")
            axes = "['xaxis', 'xaxis2', 'xaxis3'].map((x) => document.getElementById('figure').layout[x].domain[0])"
            assert len(set(page.evaluate(axes))) == panels  # side by side
            assert page.evaluate("document.documentElement.scrollWidth") == width
            inside = "document.querySelector('.wide').scrollWidth <= document.querySelector('.wide').clientWidth"
            assert page.evaluate(inside)
