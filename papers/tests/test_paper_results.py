"""Numbers in the README and in the pages about papers are those of committed records."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

from steppe_papers.figures import NAMED

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "docs/papers/facts.md"  # numbers derived from records, by docs/papers/facts.py
PAGES = ("papers/README.md", "docs/papers/results.md", "docs/errata.md", "docs/theory.md")
SOURCE = re.compile(r"(?:papers/|\]\()(results/[\w./-]+\.(?:md|json))")
NUMBER = re.compile(r"(?<![\w.^/§-])[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![\w^]|\.\d)")
PAIR = re.compile(r"\d[\d.]* ± [\d.]*\d")
WORDS = (
    "tables? figures? theorems? eqs?\\. sections? appendix propositions? examples? algorithms? definition line severity"
)
PLACES = (  # numbers of pages, tables and years, not of results
    rf"(?i:\b(?:{WORDS.replace(' ', '|')}))\s+[A-Z]?[\d.]+[a-z]?(?:(?:,| and| to|, and) \d+[a-z]?)*",
    r"et al\. \d{4}", r"\b95 %",
)  # fmt: skip
NOT_OURS = (r"`[^`\n]*`", r"\"[^\"]*\"", r"<!--.*?-->", r"\]\([^)]*\)", r"https?://\S+", *PLACES)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """The paragraphs, items and rows of a page before its list of recipes, each with its section; code is left out."""
    text = page.read_text(encoding="utf-8").partition("<!-- recipes")[0]
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for section in re.split(r"^(?=#)", text, flags=re.MULTILINE):
        for block in re.split(r"\n\s*\n|\n(?=[-|] ?)", section):
            if block.strip() and not block.startswith((":::", "#", "|---")):
                yield section, block


def sources(text: str) -> set[str]:
    """The records that a text names: tables, files of numbers, studies of `steppe theory`, sections of facts.md."""
    named = {f"papers/{file}" for file in SOURCE.findall(text)}
    studies = {name for name in re.findall(r"`(?:steppe theory )?([\w-]+)[^`]*`", text) if name in NAMED}
    named |= {f"papers/results/{NAMED[n].recipe or 'theory/' + n}/{n}.json" for n in studies}
    named |= {f"facts#{a}" for a in [*re.findall(r"facts\.md#([\w-]+)", text), *studies]}
    return named


def said(source: str) -> str:
    """What a record says: tables as they are; of a file of numbers its sentences, sizes and settings."""
    kind, _, section = source.partition("#")
    if kind == "facts":
        found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", FACTS.read_text(), flags=re.MULTILINE | re.DOTALL)
        return found[1] if found else ""
    file = ROOT / source
    if file.suffix == ".md":
        return file.read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert not content["run"]["quick"]
    return " ".join([*content["words"], *(json.dumps(content.get(k, {})) for k in ("sizes", "protocol"))])


def unknown(text: str, known: str) -> list[str]:
    """The numbers of a text that are not among the known ones, and the means whose errors are not theirs.

    A decimal may be a known number rounded to fewer digits; a whole number is one of the known.
    """
    for pattern in NOT_OURS:
        text = re.sub(pattern, " ", text, flags=re.DOTALL)
    text, known = (re.sub(r"(?<=\d),(?=\d{3}\b)", "", t) for t in (text, known))  # 10,000
    values = {n.lstrip("+") for n in re.findall(r"[+-]?\d+(?:\.\d+)?(?:e[+-]?\d+)?", known)}
    found = [n.lstrip("+") for n in NUMBER.findall(text)]
    found = [n for n in found if not re.fullmatch(r"-?\d", n)]  # 2 and 3 are words of any sentence
    wrong = [n for n in found if not any(is_shown(v, n) for v in values)]
    return wrong + [pair for pair in PAIR.findall(text) if pair not in known]


def is_shown(known: str, text: str) -> bool:
    """Whether a number of a text shows a known one; a text may leave out the sign that a difference has."""
    if not text.startswith("-"):
        known = known.lstrip("-")
    mantissa, e, _ = text.partition("e")
    digits = len(mantissa.partition(".")[2])
    if not digits and not e:
        return known in (text, f"{text}.0")
    form = f".{digits}{'e' if e else 'f'}"
    return f"{float(known):{form}}" == f"{float(text):{form}}"


def check(section: str, block: str) -> list[str]:
    """The unknown numbers of a block. Its records are those that it names, or else those that its section names."""
    named = sources(block) or sources(section)
    return unknown(block, " ".join(map(said, sorted(named))))


@pytest.mark.parametrize("page", PAGES)
def test_every_number_is_that_of_a_record(page: str) -> None:
    found = [(block, check(section, block)) for section, block in blocks(ROOT / page)]
    assert len(found) > 20
    wrong = [f"{', '.join(missing)}: {block.strip()[:100]}" for block, missing in found if missing]
    assert not wrong, "\n".join(["no record has", *wrong])


def test_numbers_of_the_first_page_are_those_of_the_linked_records() -> None:
    rows = [
        line for line in (ROOT / "docs/index.md").read_text().splitlines() if line.startswith("|") and sources(line)
    ]
    assert len(rows) >= 3
    for row in rows:
        assert not check("", row), row


RECORD = "[numbers](facts.md#universal-figure-1)"


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        (f"SAM 7.2 ± 0.6, minus Adam -50.5 {RECORD}", []),
        (f"SAM 7.2 ± 4.5 {RECORD}", ["7.2 ± 4.5"]),  # the error of Adam
        (f"minus Adam -50.6 or 37.2 {RECORD}", ["-50.6", "37.2"]),
        (f"in 19 epochs, or 18, of Figure 13, at `lr = 0.123`, in 95 % of 2 {RECORD}", ["18"]),
        ("settles at 0.95, 0.26 (`steppe theory edge-of-stability`)", ["0.95", "0.26"]),
        ("no record: 0.5", ["0.5"]),
    ],
)
def test_a_number_that_no_record_gives_is_found(text: str, wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if "edge-of-stability" in text:  # the study's own file: facts.md has four more seeds
        monkeypatch.setattr("test_paper_results.FACTS", ROOT / "docs/trust.md")
    assert check("", text) == wrong


def test_facts_follow_from_the_records() -> None:
    spec = spec_from_file_location("facts", FACTS.with_suffix(".py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert FACTS.read_text(encoding="utf-8") == module.facts(), "run `python docs/papers/facts.py`"


def test_links_to_facts_lead_somewhere() -> None:
    sections = set(re.findall(r"^## (\S+)$", FACTS.read_text(), flags=re.MULTILINE))
    for page in (*PAGES, "README.md", "docs/index.md"):
        assert set(re.findall(r"facts\.md#([\w-]+)", (ROOT / page).read_text())) <= sections


def test_every_committed_table_is_among_the_results() -> None:
    text = (ROOT / "docs/papers/results.md").read_text()
    for table in (ROOT / "papers/results").glob("*/*/*/table.md"):
        if (table.parent / "records.csv").exists() and table.parent.name != "smoke":
            assert f"../../{table.relative_to(ROOT).as_posix()}" in text
