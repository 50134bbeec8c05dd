"""docs/features.md: each of our yes cells names tests that exist; docs/choosing.md quotes stored results."""

from __future__ import annotations

import ast
import csv
import re
import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/features.md").read_text(encoding="utf-8")
TEST_NAME = re.compile(r"`((?:papers/)?tests/[\w/]+\.py)::(\w+)`")


def tables() -> list[list[list[str]]]:
    """The tables that have a column of steppe: rows of cells, the header first."""
    found = re.findall(r"(?:^\|.*\n)+", PAGE, flags=re.MULTILINE)
    cells = [[[c.strip() for c in line.strip("|").split("|")] for line in table.splitlines()] for table in found]
    return [[rows[0], *rows[2:]] for rows in cells if "steppe" in rows[0]]


ROWS = [row for table in tables() for row in table[1:]]


@cache
def names_in(file: str) -> frozenset[str]:
    """Names of a file's tests, without importing it."""
    nodes = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
    return frozenset(n.name for n in nodes if isinstance(n, ast.FunctionDef) and n.name.startswith("test_"))


def test_there_are_three_tables_and_both_answers() -> None:
    assert [table[0][:2] for table in tables()] == [["feature", "steppe"]] * 3
    assert all(table[0][-1] == "test" for table in tables())
    ours = [row[1].split()[0].rstrip(":,;") for row in ROWS]
    assert set(ours) == {"yes", "no"}
    assert ours.count("no") >= 4
    assert len(ROWS) > 50


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_yes_names_tests_that_exist(row: list[str]) -> None:
    named = TEST_NAME.findall(row[-1])
    assert re.sub(TEST_NAME, "", row[-1]).replace(", ", "") == ""
    assert bool(named) == row[1].startswith("yes")
    for file, name in named:
        assert (ROOT / file).exists(), file
        assert name in names_in(file), f"{file}::{name}"


def test_rows_have_as_many_cells_as_their_header() -> None:
    for header, *rows in tables():
        assert {len(row) for row in rows} == {len(header)}


def test_every_named_version_is_on_the_page() -> None:
    versions = PAGE.split("\n## Training")[0]
    columns = {name for table in tables() for name in table[0]} - {"feature", "steppe", "test"}
    assert all(name in versions for name in columns), columns


# docs/choosing.md

CHOOSING = " ".join((ROOT / "docs/choosing.md").read_text(encoding="utf-8").split())


def test_the_page_on_choosing_quotes_the_sweep_of_universal_sam() -> None:
    with (ROOT / "papers/results/universal/table2/short/records.csv").open(encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))

    def percent(name: str, target: str) -> float:
        of = [float(r[f"target.{target}"]) for r in runs if r["name"].startswith(f"{name} lr=0.1 seed=")]
        assert len(of) == 2
        return 100 * mean(of)

    names = ["none", "sam rho=0.025", "sam rho=0.05", "sam rho=0.1"]
    sgd, *sam = (f"{percent(name, 'validation_error'):.1f}" for name in names)
    assert f"{sgd} % for SGD, {sam[0]}, {sam[1]} and {sam[2]} % at radius 0.025, 0.05 and 0.1" in CHOOSING
    sgd, *sam = (f"{percent(name, 'train_error'):.0f}" for name in names)
    assert f"from {sgd} to {sam[0]}, {sam[1]} and {sam[2]} %" in CHOOSING


# docs/gallery.md


def test_the_gallery_shows_every_picture_with_its_commands() -> None:
    spec = spec_from_file_location("make_pictures", ROOT / "docs/pictures/make.py")
    assert spec is not None
    assert spec.loader is not None
    make = module_from_spec(spec)
    sys.modules[spec.name] = make  # dataclasses look their module up
    spec.loader.exec_module(make)
    gallery = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    lines = gallery.replace(" \\\n  ", " ").splitlines()
    for picture in make.PICTURES:
        assert gallery.count(f"](pictures/{picture.name}.png)") == 1, picture.name
        assert set(picture.commands) <= set(lines), picture.name
    files = sorted((ROOT / "docs/pictures").glob("*.png"))
    assert [file.stem for file in files] == sorted(picture.name for picture in make.PICTURES)
    assert all(file.stat().st_size < 200_000 for file in files)
