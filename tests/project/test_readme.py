"""README, CONTRIBUTING and docs are correct: their code runs, and their tables and commands match the source."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import steppe

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))

import outputs  # noqa: E402
import tables  # noqa: E402

README = (ROOT / "README.md").read_text()
INDEX = (ROOT / "docs/index.md").read_text()
COMPARE = (ROOT / "docs/compare.md").read_text()
METHODS_PAGE = (ROOT / "docs/methods.md").read_text()
MEASURES_PAGE = (ROOT / "docs/measures.md").read_text()
SPEED_PAGE = (ROOT / "docs/speed.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def took_one_step(opt: object) -> bool:
    return isinstance(opt, steppe.SharpnessAware) and opt.param_groups[0]["steppe.step"] == 1


def test_the_snippet_trains() -> None:
    names: dict[str, object] = {}
    (snippet,) = blocks(README, "python")
    exec(compile(snippet, "README.md", "exec"), names)
    assert isinstance(names["opt"], steppe.SharpnessAware)
    assert names["opt"].param_groups[0]["steppe.step"] == 100
    loss = nn.functional.cross_entropy(names["model"](names["x"]), names["y"])  # type: ignore[operator, arg-type]
    assert loss < 0.2  # it started near log 2


@pytest.mark.sampled(len(outputs.PAGES))
@pytest.mark.parametrize("page", outputs.PAGES, ids=lambda page: page.name)
def test_outputs_are_those_of_the_snippets(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python docs/outputs.py` writes them again."""
    if page.name == "guides.md" and torch.__version__ < (2, 7):
        pytest.skip("it has a model in FSDP2, which does not work on a CPU before torch 2.7")
    for name, value in outputs.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(steppe.data.DATASETS, "_parts", dict(steppe.data.DATASETS))  # a page registers another
    assert outputs.current(page) == page.read_text(encoding="utf-8")


@pytest.mark.parametrize("notebook", outputs.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_show_what_they_print(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", outputs.COLUMNS)
    content = json.loads(notebook.read_text())
    shown, printed = outputs.texts(content), outputs.texts(outputs.executed(notebook))
    assert len(shown) >= 4
    for one, other in zip(shown, printed, strict=True):
        assert one, "no cell without an output"
        alike = lambda text: re.sub(r"(?<=: )[\d.e-]+(?=[,)])|(?<=n=)\d+", "N", text)  # noqa: E731  (values in a repr)
        assert outputs.same(alike(one), alike(other), outputs.TRAINED), other


def test_links_of_notebooks_lead_somewhere() -> None:
    for notebook in outputs.NOTEBOOKS:
        for link in re.findall(r"\]\(([^)#]+)", notebook.read_text()):
            assert (notebook.parent / link).exists(), link


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ("trace 4.58 10 plug-in 50 passes 0.01 s", True),
        ("trace 4.57 10 plug-in 50 passes 12.3 s", True),
        ("trace 5.57 10 plug-in 50 passes 0.01 s", False),
        ("trace 4.58 10 plug-in 80 passes 0.01 s", False),
        ("trace 4.58 10 unbiased 50 passes 0.01 s", False),
        ("trace 4.58 10 plug-in 50 passes", False),
        ("trace ... passes 0.01 s", True),
        ("... 50 passes 0.01 s", True),
        ("trace 4.58 ...", True),
        ("... 4.58 10", False),
        ("4.58 ...", False),
        ("trace ... unbiased ... 0.01 s", False),
    ],
)
def test_outputs_may_differ_in_times_and_rounding_only(other: str, same: bool) -> None:
    """And in what they leave out."""
    assert outputs.same(other, "trace 4.58 10 plug-in 50 passes 0.53 s") is same


def test_readme_is_short_and_answers_what_people_ask_with_the_numbers_of_the_comparison() -> None:
    """tests/comparison/test_compare_page.py compares those of docs/compare.md with its record."""
    assert len(README.splitlines()) < 150
    assert "**Should I use SAM?**" in "\n".join(README.splitlines()[:8])
    undecided = re.findall(r"^> Undecided: sam against the plain optimizer: (\S+) points (\(.+?\))", COMPARE, re.M)
    shown = r"^> sam is {} than the plain optimizer at equal passes, by (\S+) points \((\S+) to (\S+)\)"
    worse = re.findall(shown.format("worse"), COMPARE, re.M)
    (better,) = re.findall(shown.format("better"), COMPARE, re.M)
    assert len(undecided) == len(worse) == 2
    for difference, interval in undecided:
        assert f"| {difference} {interval} points | undecided |" in README
        assert f"undecided, {difference} {interval}" in INDEX
    for points, low, high in worse:
        assert f"| +{points} (+{low} to +{high}) points | SAM is worse |" in README
        assert f"SAM is worse, +{points} (+{low} to +{high})" in INDEX
    low, points, high = (f"\N{MINUS SIGN}{better[i]}" for i in (2, 0, 1))
    assert f"| {points} ({low} to {high}) points | SAM is better |" in README
    assert f"SAM is better, {points} ({low} to {high})" in INDEX
    assert len(re.findall("^> Recommended: the plain optimizer", COMPARE, re.M)) == 4
    for section in re.findall(r"^## (?:Train|Measure|Compare|Study|Papers)\n(.*?)(?=^## )", README, re.M | re.S):
        prose = re.sub(r"^```.*?^```$", "", section, flags=re.M | re.S)
        assert len([line for line in prose.splitlines() if line]) <= 12
        assert "](" in prose


def test_python_blocks_of_the_page_on_methods_take_steps() -> None:
    names: dict[str, object] = {}
    setup, *others = blocks(METHODS_PAGE, "python")
    exec(compile(setup, "docs/methods.md", "exec"), names)
    assert len(others) == 5
    for block in others:
        exec(compile(block, "docs/methods.md", "exec"), names)
        assert took_one_step(names["opt"])


def test_python_blocks_of_the_page_on_speed_run(capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(0)
    names: dict[str, object] = {}
    for block in blocks(SPEED_PAGE, "python"):
        exec(compile(block, "docs/speed.md", "exec"), names)
    epochs = [float(line.split()[-1]) for line in capsys.readouterr().out.splitlines()[:10]]
    assert epochs[-1] < 0.5 * epochs[0]
    assert names["opt"].param_groups[0]["steppe.step"] == 160
    assert (names["step"].why is None) == torch.cuda.is_available()


@pytest.mark.parametrize("page", tables.PAGES)
def test_tables_are_made_from_the_registrations(page: str) -> None:
    """`python docs/tables.py` writes them again."""
    text = (ROOT / page).read_text()
    assert "docs/tables.py -->" in text
    assert tables.current(ROOT / page) == text


@pytest.mark.parametrize("name", steppe.METHODS)
def test_the_table_of_methods_makes_the_method(name: str) -> None:
    assert eval(tables.made_by(name), {n: getattr(steppe, n) for n in dir(steppe)}) == steppe.method(name)


def test_the_page_on_measures_lists_exactly_the_measures() -> None:
    section = MEASURES_PAGE.split("\n## Names\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert [name for row in rows for name in re.findall(r"`([a-z0-9_]+)`", row)] == list(steppe.MEASURES)


def test_the_example_has_ten_lines_of_code() -> None:
    lines = blocks(README, "python")[0].splitlines()
    code = [line for line in lines if line and not line.startswith(("import ", "from "))]
    assert len(code) == 10


def test_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    assert {"demo", "docs", "test", "lint", "bench", "clean"} <= targets
    for text in (README, CONTRIBUTING, (ROOT / ".ci/run").read_text()):
        used = set(re.findall(r"(?:^|`|exec )make ([a-z]+)", text, flags=re.MULTILINE))
        assert used
        assert used <= targets


@pytest.mark.parametrize("target", ["demo", "docs", "test", "lint", "bench"])
def test_a_target_makes_its_environment_with_the_constraints(target: str) -> None:
    command = ["make", "--dry-run", "--always-make", target]
    plan = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    installs = [line for line in plan.splitlines() if " pip install" in line]
    assert installs
    assert all("-c constraints.txt" in line for line in installs)


def anchors(page: Path) -> set[str]:
    """Return the link targets that GitHub makes from the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize(
    "page",
    [
        *("README.md", "CONTRIBUTING.md", "benchmarks/results/README.md"),
        *(str(p.relative_to(ROOT)) for folder in ("docs", "docs/api") for p in (ROOT / folder).glob("*.md")),
    ],
)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", (ROOT / page).read_text()):
        if not link.startswith("https://"):
            name, _, anchor = link.partition("#")
            target = (ROOT / page).parent / name if name else ROOT / page
            assert target.exists(), link
            assert not anchor or anchor in anchors(target), link


def test_the_layout_in_contributing_has_every_package() -> None:
    tree = blocks(CONTRIBUTING, "text")[0]
    packages = {f.parent.name for f in (ROOT / "src/steppe").glob("*/__init__.py")}
    assert set(re.findall(r"^  (\w+)/ ", tree, flags=re.MULTILINE)) == packages


def test_the_method_in_contributing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, new = blocks(CONTRIBUTING, "diff")[0].partition("+++ b/")
    source = "\n".join(line.removeprefix("+") for line in new.splitlines()[1:])
    source = source.replace("from ..", "from steppe.").replace("from .", "from steppe.methods.")
    module = ModuleType("two_sided")
    monkeypatch.setitem(sys.modules, "two_sided", module)
    monkeypatch.setattr(steppe.METHODS, "_parts", dict(steppe.METHODS))
    exec(compile(source, "CONTRIBUTING.md", "exec"), module.__dict__)

    w = nn.Parameter(torch.tensor([1.0, -2.0], dtype=torch.float64))
    opt = steppe.build("two-sided-sam", torch.optim.SGD([w], lr=0.1), rho=0.3)
    for pass_ in opt.passes():
        pass_.backward((w**4).sum() / 4)
    at = w.detach()
    d = 0.3 * at**3 / (at**3).norm()
    assert torch.allclose(w.grad, at**3 + 3 * at * d**2, rtol=0, atol=1e-14)
    assert opt.passes_run == steppe.METHODS["two-sided-sam"].passes_at(0)


def test_every_direct_dependency_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [d for needed in project["optional-dependencies"].values() for d in needed if not d.startswith("steppe[")]
    wanted = {re.split(r"[<>=\[]", d)[0] for d in [*project["dependencies"], *extras]}
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and line[0] != "#"]
    pins = dict(line.split("==") for line in lines)
    assert set(pins) == wanted


def test_the_version_is_the_same_everywhere() -> None:
    assert f"\nversion: {steppe.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{steppe.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_five_papers_are_cited() -> None:
    citation = (ROOT / "CITATION.cff").read_text()
    titles = re.findall(r'^    title: "(.+)"$', citation, flags=re.MULTILINE)
    assert len(titles) == 5
    assert all(
        re.search(word, " ".join(titles)) for word in ("Universal", "Smoothness", "Agnostic", "Balance", "Modern")
    )


def test_times_of_traces_are_those_of_the_record() -> None:
    record = (ROOT / "benchmarks/results/trace_timed_cpu_2026-11-19.md").read_text()
    small, larger, gauss_newton, conv = re.findall(r"\| XTrace .*\| ([\d.]+) \| [^|]+ \|$", record, re.M)
    text = " ".join((ROOT / "docs/measures.md").read_text().split())
    assert f"{small} and {larger} of the time on MLPs of 3 k and 26 k weights" in text
    assert f"{gauss_newton} on a Gauss-Newton matrix and {conv} on a small conv net" in text
