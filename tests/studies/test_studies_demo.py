"""The built-in study: README and docs quote a stored run of it and its repetitions with other seeds."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from importlib import import_module
from math import isfinite
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from studies_cells import tiny

from steppe.studies.cell import cells
from steppe.studies.plan import digits
from steppe.studies.result import study_result
from steppe.studies.run import look
from steppe.studies.statistics.findings import Findings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
INDEX = (ROOT / "docs/index.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs/digits.md").read_text(encoding="utf-8")
CHOOSING = (ROOT / "docs/choosing.md").read_text(encoding="utf-8")
FLAT = "adaptive_worst_linf_normalised@0.01"
STORED: dict[str, Any] = json.loads((ROOT / "docs/demo.json").read_text(encoding="utf-8"))
*_, REPEATED = sorted(
    (ROOT / "benchmarks/results").glob("demo_verdicts_cpu_*.md")
)  # an earlier one is of another study


@pytest.fixture
def demo(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("demo_verdicts")


def stored(kind: str, **values: str) -> list[dict[str, Any]]:
    """Stored findings or comparisons with these values."""
    return [row for row in STORED["findings"][kind] if all(row[k] == v for k, v in values.items())]


def repeated_rows() -> list[list[str]]:
    """The page of repetitions: target, name, hypothesis, one verdict per repetition, and whether all are the same."""
    lines = REPEATED.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    assert rows[0][:4] == ["target", "measure or method", "hypothesis", "0"]
    assert rows[0][-1] == "same"
    return rows[1:]


# what is stored and quoted


def test_the_stored_result_is_that_of_the_study_as_it_is() -> None:
    """Another file needs another run: benchmarks/demo_verdicts.py makes one."""
    study = digits()
    trials = cells(study)
    methods = list(dict.fromkeys(cell.contender for cell in trials))
    assert study.select is not None
    runs = len(trials) + len(methods) * study.select.runs.fresh["seed"]
    assert (STORED["planned"], STORED["done"], STORED["admitted"]) == (runs,) * 3
    assert STORED["findings"]["runs"] == len(trials)
    assert [c["contender"] for c in stored("comparisons", target="test_error")] == methods[1:]
    assert STORED["findings"]["reference"] == methods[0] == "plain"
    strong = [(f["target"], f["measure"]) for f in stored("findings", hypothesis="strong")]
    assert strong == [(t, m) for t in study.targets for m in study.measures]
    assert STORED["folder"] == str(study.folder)


WORDS = ("none", "one", "two", "three", "four", "five", "six")


def verdicts_of(name: str, hypothesis: str) -> list[str]:
    """The verdicts on a measure or a method, one per repetition."""
    [row] = [row for row in repeated_rows() if row[1:3] == [name, hypothesis]]
    return [re.sub(r" \(.*", "", cell) for cell in row[3:-2]]


def test_readme_the_first_page_and_choosing_quote_the_stored_result_and_its_repetitions() -> None:
    [sam] = stored("comparisons", target="test_error", contender="SAM")
    low, high = (f"{-100 * sam[end]:.1f}" for end in ("high", "low"))
    verdicts = verdicts_of("SAM", "method")
    assert set(verdicts) == {"better", "cannot tell"}
    better = f"In {WORDS[verdicts.count('better')]} of {WORDS[len(verdicts)]} repetitions"
    times = f"{sam['passes'] / sam['reference_passes']:.0f} times the passes"
    difference = f"{-100 * sam['difference']:.1f} points ({low} to {high})"
    [flat] = stored("findings", measure=FLAT, hypothesis="strong")
    assert set(verdicts_of(FLAT, "strong")) == {"predicts"}
    tau = f"tau {flat['tau']:+.2f} ({flat['low']:+.2f} to {flat['high']:+.2f})"
    for other in ("trace", "fisher_trace"):
        assert set(verdicts_of(other, "strong")) == {"cannot tell"}
    for text in (README, INDEX, CHOOSING):
        words = " ".join(text.split()).replace("in four of", "In four of")
        for quote in (better, times, difference, tau, f"{STORED['findings']['runs']} networks"):
            assert quote in words, quote


def test_the_page_has_every_number(demo: ModuleType) -> None:
    lines = [line for line in demo.quoted(STORED) if line]
    assert len(lines) > 10
    assert [line for line in PAGE.splitlines() if line.startswith("|")] == lines
    assert STORED["made"].split(",")[0] in PAGE
    same = [row for row in repeated_rows() if row[-1] == "yes"]
    words = " ".join(PAGE.split())
    assert f"{len(same)} of {len(repeated_rows())} verdicts are the same" in words
    assert f"trains {STORED['planned']} small networks" in words
    [sam] = stored("comparisons", target="test_error", contender="SAM")
    assert f"{100 * sam['mean']:.1f} against {100 * sam['reference_mean']:.1f} % test error" in words
    steps = digits().base["batch_size"]  # 600 rows, of which each epoch takes as many batches
    assert f"the best of the plain trials stops after {sam['reference_passes'] * steps / 600:.0f} epochs" in words


def test_the_page_counts_verdicts_as_the_repetitions_do() -> None:
    words = " ".join(PAGE.split())
    others = verdicts_of("SAM", "method")[1:]
    better, open_ = (WORDS[others.count(verdict)] for verdict in ("better", "cannot tell"))
    assert f'"better" in {better} of {WORDS[len(others)]} repetitions and "cannot tell" in {open_}.' in words
    twice = verdicts_of("SAM for twice the passes", "method")
    assert (twice.count("better"), twice.count("worse")) == (1, 1)
    assert "SAM with twice the passes is better once and worse once" in words
    assert set(verdicts_of(FLAT, "strong")) == {"predicts"}
    opposite = WORDS[verdicts_of("fisher_trace", "weak").count("predicts the opposite")]
    assert f"by `fisher_trace` has a higher test error in {opposite} repetitions" in words


def test_repetition_0_of_the_page_is_the_stored_result() -> None:
    rows = {tuple(row[:3]): row[3] for row in repeated_rows()}
    expected = {(f["target"], f["measure"], f["hypothesis"]): f["verdict"] for f in STORED["findings"]["findings"]}
    expected |= {(c["target"], c["contender"], "method"): c["verdict"] for c in STORED["findings"]["comparisons"]}
    assert {key: re.sub(r" \(.*", "", cell) for key, cell in rows.items()} == expected
    assert all(len(row) == 3 + 6 + 2 for row in repeated_rows())  # five repetitions beside it


# the machinery


def test_a_repetition_has_other_seeds_and_nothing_else(demo: ModuleType, tmp_path: Path) -> None:
    first, second = (cells(demo.Repetition(n).of(digits(), tmp_path)) for n in (0, 1))
    assert [c.config for c in first] == [c.config for c in cells(digits())]
    same = {"method", "data", "label_noise", "validation", "model_options"}
    assert [{k: c.config[k] for k in same} for c in first] == [{k: c.config[k] for k in same} for c in second]
    assert not {c.config["seed"] for c in first} & {c.config["seed"] for c in second}
    assert {c.config["threads"] for c in cells(demo.Repetition(7, threads=2).of(digits(), tmp_path))} == {2}
    assert len({r.of(digits(), tmp_path).folder for r in demo.REPETITIONS}) == len(demo.REPETITIONS) == 6


def test_variables_last_as_long_as_their_repetition(demo: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPPE_A", "before")
    monkeypatch.delenv("STEPPE_B", raising=False)
    with demo.environment({"STEPPE_A": "a", "STEPPE_B": "b"}):
        assert (os.environ["STEPPE_A"], os.environ["STEPPE_B"]) == ("a", "b")
    assert (os.environ["STEPPE_A"], os.environ.get("STEPPE_B")) == ("before", None)


def test_a_study_is_repeated_and_stored(
    demo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"method": ["none", {"method": "sam", "rho": 0.1}], "lr": [0.1, 0.2, 0.3], "seed": [0]}
    study = tiny("studies/tiny", grid=grid, measures=["loss"], targets=["test_loss"], engine="serial", groups=["lr"])
    monkeypatch.setattr(demo, "digits", lambda: study)
    monkeypatch.setattr(demo, "MORE_SEEDS", (7,))
    page, result = tmp_path / "page.md", tmp_path / "result.json"
    words = ["--folder", str(tmp_path), "--repetitions", "2", "--out", str(page), "--result", str(result)]
    demo.main(words)
    kept = json.loads(result.read_text())
    again = study_result(study, *look(replace(study, out=str(tmp_path / "0"))))
    assert kept["folder"] == "studies/tiny"
    taus = [f["tau"] for f in kept["findings"]["findings"]]
    assert taus == [f.tau if isfinite(f.tau) else None for f in again.findings.findings]
    text = page.read_text()
    assert "- 0: as it is\n- 10: seed 10\n" in text
    assert re.search(r"\| test_loss \| sam \| method \| [a-z ]+ \([-+]\d+ %\) \|", text)
    assert page.read_text() in capsys.readouterr().out


def test_verdicts_that_differ_are_marked(demo: ModuleType) -> None:
    """Whether between repetitions, or between seeds of the permutations of one."""
    from steppe.studies.statistics.predictions import Finding

    def found(**of: str) -> Findings:
        numbers = {"p_corrected": 0.012}
        rows = [Finding(m, "t", "strong", 0.5, 0.2, 0.8, 9, 0, 9, 36, verdict=v, **numbers) for m, v in of.items()]  # type: ignore[arg-type]
        return Findings(9, 9, findings=tuple(rows))

    first = found(steady="predicts", other="predicts", resampled="weaker than 0.5")
    second = found(steady="predicts", other="cannot tell", resampled="weaker than 0.5")
    third = found(steady="predicts", other="cannot tell", resampled="cannot tell")
    _, _, *rows, last = demo.page({"0": [first, first], "1": [second, third]})
    assert (
        rows[0]
        == "| t | steady | strong | predicts (+0.50) | predicts (+0.50) | p at most 0.012, interval 0.20 from 0 | yes |"
    )
    assert rows[1].endswith("| predicts (+0.50) | cannot tell (+0.50) | none | no |")
    assert rows[2].endswith("| weaker than 0.5 (+0.50) | weaker than 0.5 or cannot tell (+0.50) | none | no |")
    assert last.strip() == "1 of 3 verdicts are the same in all 2 repetitions."
