"""Numbers of papers' tables in the README and the docs are those of the committed tables that they link to."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"[\d.]+ ± [\d.]+")
TABLE = re.compile(r"\]\(((?:\.\./)*studies/[^)]*table\.md)\)")
WORDS = re.compile(r"\]\(((?:\.\./)*studies/[^)]*\.json)\)")
DECIMAL = re.compile(r"(?<![\w.])[+-]?\d+\.\d+")


@pytest.mark.parametrize("page", ["README.md", "docs/papers/results.md"])
def test_numbers_are_those_of_the_linked_table(page: str) -> None:
    rows = [line for line in (ROOT / page).read_text().splitlines() if line.startswith("|") and TABLE.search(line)]
    assert len(rows) >= 2
    for row in rows:
        tables = [(ROOT / page).parent / link for link in TABLE.findall(row)]
        known = {number for table in tables for number in NUMBER.findall(table.read_text())}
        assert NUMBER.findall(row), row
        assert set(NUMBER.findall(row)) <= known, row


def test_numbers_of_theory_are_in_the_sentences_of_the_linked_file() -> None:
    page = ROOT / "docs/papers/results.md"
    rows = [line for line in page.read_text().splitlines() if line.startswith("|") and WORDS.search(line)]
    assert len(rows) >= 5
    for row in rows:
        (link,) = WORDS.findall(row)
        content = json.loads((page.parent / link).read_text())
        assert not content["run"]["quick"]
        ours = row.strip("|").split("|")[1].split("([")[0]
        assert set(DECIMAL.findall(ours)) <= set(DECIMAL.findall(" ".join(content["words"]))), row


def test_every_committed_table_is_among_the_results() -> None:
    text = (ROOT / "docs/papers/results.md").read_text()
    for table in (ROOT / "studies").glob("*/*/*/table.md"):
        if (table.parent / "records.csv").exists() and table.parent.name != "smoke":
            assert f"../../{table.relative_to(ROOT).as_posix()}" in text
