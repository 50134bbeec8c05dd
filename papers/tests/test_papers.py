"""`steppe reproduce`: every recipe runs, and its tables follow from its records."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from data_files import (
    WRITERS_OF_PICTURES,
    publish,
    write_cifar_binary,
    write_mnist,
    write_svhn,
    write_tiny_imagenet,
)
from pool_files import write_pool
from recipe_table import contents, recipe_table, written_table
from safetensors.torch import save_file
from studies_cells import BASE
from tiers import slow_unless

from steppe._util.pages import plotly_source
from steppe.cli import main
from steppe.nn import build
from steppe.studies.compared import Compared
from steppe.studies.engines.local import GAIN, Local
from steppe.studies.grid import split
from steppe.studies.protocol import EPOCH, VALUE, TableSpec
from steppe.studies.records import number_of_cells, read_records
from steppe.studies.selection import previewed_cells
from steppe.studies.store import Store
from steppe.studies.summary import Entry, Summary, labels_of, short_names
from steppe.training.config import Config
from steppe.training.problem import data_of, options_of
from steppe.training.schedule import Timeline
from steppe_papers.recipes.recipe import BUDGETS, Recipe, names, recipe
from steppe_papers.tables.pages import figure
from steppe_papers.tables.states import states

WRITERS = {  # data sets by name, with a few rows each
    "cifar10": lambda root: write_cifar_binary(root / "cifar-10-batches-bin", "cifar10", rows=16),
    "cifar100": lambda root: write_cifar_binary(root / "cifar-100-binary", "cifar100", rows=100),
    "mnist": lambda root: write_mnist(root / "MNIST" / "raw", rows=(40, 20)),
    "svhn": lambda root: write_svhn(root / "svhn", rows=80),
    **{
        name: lambda root, folder=folder, write=write: write(root / folder)
        for name, (folder, write) in WRITERS_OF_PICTURES.items()
    },
    "tiny-imagenet": lambda root: write_tiny_imagenet(root / "tiny-imagenet-200", each=6),
}
COMMITTED = Path(__file__).parents[1] / "results"  # results that are kept with the code
QUICK = {  # recipes of every kind: a sweep with selected runs, a pool, curves, ensembles, times
    "universal/table2", "universal/fig1", "modern-look/table3", "agnostic/table4", "agnostic/table6", "sa-sam/fig2",
    "sharpbalance/fig7",
}  # fmt: skip
SMALL = pytest.mark.filterwarnings("ignore:.*published set has")


def write_data(root: Path, needed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {name.partition("@")[0] for name in needed} & set(WRITERS):  # flowers102@16 has pictures of 16 x 16
        WRITERS[name](root)
        if name in ("svhn", "flowers102", "stanford-cars"):
            publish(monkeypatch, name, root)


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["reproduce", *words]) == code, capsys.readouterr().err
    return capsys.readouterr().out


def answered(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(told(capsys, *words, "--json"))


@SMALL
@pytest.mark.parametrize("name", slow_unless(QUICK.__contains__, names()))
def test_every_recipe_fills_every_cell_at_smoke(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    study = recipe(name).study("smoke")
    if study.pool is not None:
        write_pool(study, monkeypatch)
    planned = previewed_cells(study)
    write_data(tmp_path / "data", {str(c.config["data"]) for c in planned}, monkeypatch)
    data = answered(capsys, name, "--budget", "smoke", "--engine", "serial")
    assert not data["failures"]
    assert data["done"] == data["planned"] > 0
    for spec in study.table:
        cells = {(row["row"], row["column"]) for row in data["tables"][spec.name]}
        assert cells, f"{spec.name} has no number"
        assert all(row["n"] >= 1 for row in data["tables"][spec.name])
        assert not any("=[" in label for cell in cells for label in cell), "settings need labels"
        if not spec.is_tau and EPOCH not in spec.columns and VALUE not in (*spec.rows, *spec.columns):
            entering = [c for c in planned if c.stage != "sweep"] if spec.runs == "final" else planned
            rows = labels_of(spec, entering, spec.rows)
            assert {row for row, _ in cells} == {row or spec.value[0] for row in rows}
    page = (tmp_path / "studies" / name / "smoke" / "reproduce.html").read_text(encoding="utf-8")
    assert "Content-Security-Policy" in page


def test_sparse_sam_of_the_papers_renews_its_mask_every_epoch() -> None:
    planned = previewed_cells(recipe("universal/table2").study("paper"))
    configs = [split(cell.config)[0] for cell in planned if cell.config["method"] == "ssam-f"]
    assert configs
    for config in configs:  # 10 % of CIFAR-10 in batches of 128: 39 steps, the incomplete batch is left out
        assert options_of(config, Timeline(50 * 39, 39))["every"] == 39


@pytest.mark.parametrize("name", names())
def test_every_recipe_has_its_files_and_the_paper_s_numbers_have_a_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    one = recipe(name)
    assert set(one.content["budgets"]) >= set(BUDGETS)
    assert len(one.notes) > 200
    study = one.study(None)
    if init := study.base.get("init"):  # weights that do not come with steppe: the keys of runs need a file
        Path(init).parent.mkdir(parents=True)
        Path(init).write_bytes(b"weights")
    planned = previewed_cells(study) if study.pool is None else []  # its checkpoints are not here
    specs = {spec.name: spec for spec in study.table}
    for table, row, column in one.printed:
        spec = specs[table]
        for label, parts in ((row, spec.rows), (column, spec.columns)):
            if {EPOCH, VALUE} & {*parts} or "group" in parts or (study.pool is not None and not spec.is_tau):
                continue  # labels are numbers of epochs, values, or columns of the pool's table
            if spec.is_tau:
                shown = {"measure": short_names(study.measures).values(), "target": study.targets}
                assert label in {spec.labels.get(name, name) for part in parts for name in shown[part]}
                continue
            assert label in (labels_of(spec, planned, parts) or [""]) or (not parts and label == spec.value[0])
    assert all(printed.place for printed in one.printed.values())


def test_the_readme_lists_every_item_with_its_state() -> None:
    assert written_table() == recipe_table(), "run `python papers/tests/recipe_table.py`"


def test_the_list_has_every_recipe_and_no_unknown_command() -> None:
    known = {state.name for state in states([])}
    assert {row["command"] for row in contents()} - {""} == known
    assert all(row["note"] for row in contents() if not row["command"]), "say why there is nothing to run"


ITEMS = {  # counted in the papers; those of A modern look between 15 and 20 are in a part that our copies lack
    "SharpBalance": {"Figure": range(1, 14), "Table": range(1, 7), "Theorem": range(1, 4), "Proposition": [1]},
    "Universal-SAM": {"Figure": [1, 2], "Table": [1, 2], "Theorem": [2, 3, 4, 6, 7, 9, 10, 11], "Example": [1, 2, 3]},
    "Agnostic-SAM": {"Figure": [1, 2, 3], "Table": range(1, 7), "Theorem": [1, 2]},
    "SA-SAM": {"Figure": range(1, 6)},
    "A modern look": {"Figure": [*range(1, 15), 20], "Table": range(1, 5), "Proposition": [1, 2]},
}


@pytest.mark.parametrize("paper", ITEMS)
def test_the_list_has_every_item_of_a_paper(paper: str) -> None:
    listed = " ".join(row["item"] for row in contents() if row["paper"] == paper)
    listed = re.sub(r"(\d+) to (\d+)", lambda m: " ".join(map(str, range(int(m[1]), int(m[2]) + 1))), listed)
    for kind, numbers in ITEMS[paper].items():
        found = {
            int(n)
            for of_one in re.findall(rf"{kind}s?((?: (?:and )?\d+)+)", listed)
            for n in re.findall(r"\d+", of_one)
        }
        assert found == set(numbers), kind


def without_ours(line: str) -> str:
    """A line of a table without our numbers, which depend on the machine."""
    words = line.split()
    labels = [word for word in words if not re.fullmatch(r"[+-]?[\d.]+\*?|\(\d+\)|±", word)]
    return " ".join(words if words[:1] == ["paper"] or words[-1:] == ["%"] else labels).replace("*", "")


@SMALL
def test_the_page_on_papers_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/papers.md").read_text(encoding="utf-8")
    shown = [line for line in re.findall(r"```text\n(.*?)```", page, re.DOTALL)[0].splitlines() if "─" not in line]
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path / "data", {"cifar10"}, monkeypatch)
    printed = told(capsys, "agnostic/table4", "--engine", "serial").splitlines()
    start = next(i for i, line in enumerate(printed) if line.startswith("CIFAR-10"))
    table = [line for line in printed[start : printed.index("", start)] if "─" not in line]
    assert [without_ours(line) for line in shown] == [without_ours(line) for line in table]


@pytest.mark.parametrize("budget", ["short", "paper"])
@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("modern-look/fig6", ["modern-look/table3", "modern-look/table4"]),
        ("sa-sam/fig2", ["sa-sam/fig4", "sa-sam/fig5"]),
        ("sa-sam/fig3", ["sa-sam/fig5"]),
    ],
)
def test_recipes_that_share_runs_have_their_keys_and_measures(name: str, others: list[str], budget: str) -> None:
    """As their notes say: records of the others are all that they need."""
    only = {"modern-look/fig6": slice(1), "sa-sam/fig2": slice(1, 2)}  # their notes: the ResNets alone, the ViT alone
    others = others[only[name]] if budget == "short" and name in only else others
    one, *rest = (recipe(n).study(budget) for n in (name, *others))
    assert {c.key for c in previewed_cells(one)} == {c.key for other in rest for c in previewed_cells(other)}
    for other in rest:
        assert set(one.measures) <= set(other.measures)
        assert set(one.targets) <= set(other.targets)


@pytest.mark.parametrize(
    ("name", "other", "shared"),
    [
        ("sharpbalance/fig1c", "sharpbalance/fig3", 24),  # all ensembles with SAM
        ("agnostic/fig1", "agnostic/table1", 18),  # SAM and Agnostic-SAM, three networks on CIFAR-100
        ("modern-look/ablations", "modern-look/table3", 204),
        ("modern-look/ablations-vit", "modern-look/table4", 204),
    ],
)
def test_recipes_that_share_some_runs_have_their_keys(name: str, other: str, shared: int) -> None:
    """As their notes say: `--records` takes these runs over."""
    one, two = ({c.key for c in previewed_cells(recipe(n).study("paper"))} for n in (name, other))
    assert len(one & two) == shared


OWN: dict[str, Any] = {
    "title": "Two methods",
    "base": BASE | {"validation": 0.2},
    "grid": {
        "method": [
            {"label": "SGD", "method": "none", "lr": [0.05, 0.1]},
            {"label": "SAM", "method": "sam", "rho": [0.1, 0.2]},
        ],
        "seed": [0, 1],
    },
    "select": {"per": ["method"], "runs": {"seed": [100, 101, 102]}, "base": {"validation": 0.0}},
    "measures": ["grad_norm"],
    "targets": ["test_error"],
    "table": [
        {"name": "errors", "rows": "method", "value": "test_error", "as": "percent", "reference": "SGD"},
        {"name": "curves", "rows": "method", "columns": "epoch", "value": "train_loss", "draw": "lines"},
        {
            "name": "cost", "rows": "value", "columns": "method", "value": ["passes", "grad_norm"],
            "as": {"grad_norm": "log"},
        },
    ],
    "budgets": {"smoke": {"grid": {"seed": [0]}}, "short": {}, "paper": {}},
}  # fmt: skip


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "paper" / "mine"
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(yaml.safe_dump(OWN, sort_keys=False))
    (folder / "paper.csv").write_text(
        "table,row,column,value,error,place\n"
        "errors,SAM,test_error,40.5,0.5,Table 9\nerrors,ASAM,test_error,1,,Table 9\n"
    )
    (folder / "notes.md").write_text("Nothing is open.")
    return recipe("paper/mine")


def files_of(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in ("records.csv", "table.csv", "table.md")}


def test_tables_are_made_again_from_the_records_alone(own: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "paper/mine", "--engine", "serial", "--budget", "short", "--out", "here")
    made = files_of(Path("here/short"))
    told(capsys, "paper/mine", "--budget", "short", "--out", "there", "--records", "here/short", "--report")
    assert files_of(Path("there/short")) == made
    assert not Path("there/short/runs").exists()  # nothing was trained


def test_tables_are_written_without_plotly_too(
    own: Recipe, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as blocked:
        blocked.setitem(sys.modules, "plotly.offline", None)
        plotly_source.cache_clear()  # earlier tests have loaded it
        assert main(["reproduce", "paper/mine", "--engine", "serial", "--out", "here"]) == 1
    assert "plotly, which is not installed: pip install 'steppe[study]'" in capsys.readouterr().err
    without = files_of(Path("here/smoke"))
    told(capsys, "paper/mine", "--report", "--out", "here")
    assert files_of(Path("here/smoke")) == without


def test_committed_tables_are_those_of_their_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for file in sorted(COMMITTED.glob("*/*/*/records.csv")):
        name, budget = file.parent.parent.relative_to(COMMITTED).as_posix(), file.parent.name
        out = tmp_path / name
        told(capsys, name, "--budget", budget, "--records", str(file), "--report", "--out", str(out))
        assert files_of(out / budget) == files_of(file.parent), file


def test_a_report_without_records_of_ones_own_is_of_those_that_come_with_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They lie apart: what is computed later does not go on from them."""
    monkeypatch.chdir(tmp_path)
    told(capsys, "yardstick/resnet18", "--budget", "paper", "--report")
    kept = Path("studies/yardstick/resnet18/committed/paper")
    assert files_of(kept) == files_of(COMMITTED / "yardstick/resnet18/paper")
    assert not Path("studies/yardstick/resnet18/paper").exists()
    assert main(["reproduce", "yardstick/resnet18", "--budget", "smoke", "--report"]) == 1
    assert "there are no records in studies/yardstick/resnet18/smoke" in capsys.readouterr().err
    words = json.loads((COMMITTED / "theory/table-1/table-1.json").read_text())["words"]
    assert told(capsys, "theory/table-1", "--report").startswith(words[0])
    states = {row["name"]: row["state"] for row in answered(capsys, "--list")}
    assert (states["yardstick/resnet18"], states["theory/table-1"]) == ("full", "full")


def test_the_wheel_has_the_records() -> None:
    """As its configuration says; there they lie in the package, where `COMMITTED` looks first."""
    build = tomllib.loads((COMMITTED.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    assert build["targets"]["wheel"]["sources"]["results"] == "steppe_papers/results"
    size = sum(file.stat().st_size for file in COMMITTED.rglob("*") if file.is_file())
    assert size < 2e6  # about a quarter of it when zipped


def test_records_of_two_machines_are_one_study(own: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "paper/mine", "--engine", "serial", "--budget", "short", "--out", "whole")
    lines = Path("whole/short/records.csv").read_text().splitlines(keepends=True)
    Path("a.csv").write_text("".join([lines[0], *lines[1::2]]))
    Path("b.csv").write_text("".join([lines[0], *lines[2::2], *lines[1:2]]))  # one run on both
    out = told(capsys, "paper/mine", "--budget", "short", "--out", "merged", "--records", "a.csv,b.csv", "--report")
    assert f"{len(lines) - 1} records taken over" in out
    assert files_of(Path("merged/short")) == files_of(Path("whole/short"))


def test_a_study_goes_on_from_the_records_of_another_machine(own: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "paper/mine", "--engine", "serial", "--out", "first")
    lines = Path("first/smoke/records.csv").read_text().splitlines(keepends=True)
    Path("part.csv").write_text("".join(lines[:-2]))
    told(capsys, "paper/mine", "--engine", "serial", "--out", "second", "--records", "part.csv")
    assert len(list(Path("second/smoke/runs").glob("*/run.yaml"))) == 2  # those that were missing
    assert Path("second/smoke/table.csv").read_bytes() == Path("first/smoke/table.csv").read_bytes()


def test_tables_of_a_pool_need_no_checkpoints(own: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "paper/mine", "--engine", "serial", "--out", "trained")
    study = {"base": {"data": "spirals"}, "pool": "trained/smoke/runs/*", "groups": "method", "measures": ["grad_norm"]}
    tables = [{"rows": "method", "value": "grad_norm"}, {"name": "tau", "rows": "measure", "value": "tau"}]
    study |= {"table": tables, "budgets": {name: {} for name in BUDGETS}}
    (own.folder / "study.yaml").write_text(yaml.safe_dump(study))
    (own.folder / "paper.csv").write_text("row,column,value,error,place\n")
    told(capsys, "paper/mine", "--engine", "serial", "--out", "here")
    shutil.rmtree("trained")
    told(capsys, "paper/mine", "--records", "here/smoke", "--report", "--out", "there")
    assert files_of(Path("there/smoke")) == files_of(Path("here/smoke"))
    assert "none" in Path("there/smoke/table.md").read_text()


def test_tables_of_runs_from_weights_need_no_weights(own: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    """The digest of the weights is in the records; a file that has changed since is another study's."""

    def weights(seed: int) -> Path:
        torch.manual_seed(seed)
        save_file(build("mlp", (2,), 2, width=8, depth=1).state_dict(), "weights.safetensors")
        return Path("weights.safetensors")

    content = OWN | {"base": {**OWN["base"], "model_options": {"width": 8, "depth": 1}, "init": "weights.safetensors"}}
    (own.folder / "study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    file = weights(0)
    told(capsys, "paper/mine", "--engine", "serial", "--budget", "short", "--out", "here")
    made, report = files_of(Path("here/short")), ("--records", "here/short", "--report")
    for there, put in (("same", file.exists), ("another", lambda: weights(1)), ("none", file.unlink)):
        put()
        assert "0 of" not in told(capsys, "paper/mine", "--budget", "short", "--out", there, *report)
        assert files_of(Path(there, "short")) == made
    told(capsys, "paper/mine", "--budget", "short", "--out", "here", "--report")
    assert files_of(Path("here/short")) == made
    assert number_of_cells(recipe("paper/mine").study("short")) == len(made["records.csv"].splitlines()) - 1
    assert main(["reproduce", "paper/mine", "--budget", "short", "--out", "none"]) == 1
    assert "there are no weights at weights.safetensors" in capsys.readouterr().err
    weights(1)
    told(capsys, "paper/mine", "--engine", "serial", "--budget", "short", "--out", "other")
    file.unlink()
    both = "here/short,other/short"
    assert main(["reproduce", "paper/mine", "--budget", "short", "--out", "both", "--records", both, "--report"]) == 1
    assert "start from 2 different files that were called weights.safetensors" in capsys.readouterr().err
    weights(1)  # decides which of the two studies is meant
    told(capsys, "paper/mine", "--budget", "short", "--out", "both", "--records", both, "--report")
    assert files_of(Path("both/short")) == files_of(Path("other/short")) != made


def test_an_edited_record_is_refused(own: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    told(capsys, "paper/mine", "--engine", "serial", "--out", "first")
    text = Path("first/smoke/records.csv").read_text().replace('""epochs"": 2', '""epochs"": 9', 1)
    Path("edited.csv").write_text(text)
    assert main(["reproduce", "paper/mine", "--out", "second", "--records", "edited.csv", "--report"]) == 1
    assert "has another configuration than the cell of that key" in capsys.readouterr().err
    Path("other.csv").write_text("a,b\n1,2\n")
    assert main(["reproduce", "paper/mine", "--out", "third", "--records", "other.csv", "--report"]) == 1
    assert "has no column key" in capsys.readouterr().err


def test_ours_stands_beside_the_paper_s(own: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    out = told(capsys, "paper/mine", "--engine", "serial", "--budget", "short")
    assert "Trials, selected by mean validation_error: 2 each." in out
    assert "40.5 ± 0.5" in out
    assert "minus SGD" in out
    assert "1 of 2 numbers of the paper have no run here." in out  # that of ASAM
    with Path("studies/paper/mine/short/table.csv").open(newline="") as file:
        rows = {(r["table"], r["row"], r["column"]): r for r in csv.DictReader(file)}
    sam = rows["errors", "SAM", "test_error"]
    assert (sam["n"], sam["pairs"], sam["paper"], sam["place"]) == ("3", "3", "40.5", "Table 9")
    with Store.reading("studies/paper/mine/short/study.sqlite") as store:
        runs = [r for r in store.table().runs if r.config["validation"] == 0.0 and r.config["method"] == "sam"]
    errors = [100 * run.targets["test_error"] for run in runs]
    assert float(sam["value"]) == pytest.approx(sum(errors) / 3)
    assert sam["inside"] == str(float(sam["low"]) <= 40.5 <= float(sam["high"]))
    assert {c for t, _, c in rows if t == "curves"} == {"1", "2"}
    assert {r for t, r, _ in rows if t == "cost"} == {"passes", "grad_norm"}


def test_the_list_reads_records(
    own: Recipe, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steppe_papers.recipes.recipe.ROOT", Path.cwd())
    state = {row["name"]: row for row in answered(capsys, "--list")}["paper/mine"]
    assert (state["state"], state["date"]) == ("no records", "")
    assert "theory/table-1" in told(capsys, "--list")
    told(capsys, "paper/mine", "--engine", "serial")
    assert {r["name"]: r["state"] for r in answered(capsys, "--list")}["paper/mine"] == "smoke"
    Path("studies/paper/mine/paper").mkdir()
    lines = Path("studies/paper/mine/smoke/records.csv").read_text().splitlines(keepends=True)
    Path("studies/paper/mine/paper/records.csv").write_text("".join(lines[:3]))
    state = {row["name"]: row for row in answered(capsys, "--list")}["paper/mine"]
    rows = read_records(["studies/paper/mine/paper"]).values()
    assert state["state"] == "full, in part"
    assert state["date"] == json.loads(next(iter(rows))["origin"])["date"]
    assert state["cells"] == "2 of 14"


def test_projected_passes_are_those_of_the_runs(own: Recipe, capsys: pytest.CaptureFixture[str]) -> None:
    projected = answered(capsys, "paper/mine", "--dry-run")
    assert not Path("studies").exists()
    assert [s["cells"] for s in projected["stages"]] == [4, 6]
    assert "3 passes timed now" in projected["basis"][0]
    told(capsys, "paper/mine", "--engine", "serial")
    with Store.reading("studies/paper/mine/smoke/study.sqlite") as store:
        runs = store.table().runs
    done = {s: sum(r.meta["passes"] for r in runs if (r.config["validation"] > 0) == s) for s in (True, False)}
    assert [s["passes"] for s in projected["stages"]] == [done[True], done[False]]
    for run in runs:  # training time is that of the steps
        lines = Path("studies/paper/mine/smoke/runs", run.key, "metrics.jsonl").read_text().splitlines()
        assert run.meta["training_seconds"] == pytest.approx(sum(json.loads(line)["seconds"] for line in lines))
    shutil.rmtree("studies/paper/mine/smoke/runs")
    after = answered(capsys, "paper/mine", "--dry-run")
    assert [s["open"] for s in after["stages"]] == [0, 0]
    first = "Where no winner is known yet, its final runs are projected with a first configuration."
    assert (first in projected["basis"][-1], first in after["basis"][-1]) == (True, False)  # winners are known now


def test_projected_hours_are_of_all_runs_side_by_side(
    own: Recipe, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steppe.studies.projection.probe", lambda config: 3.6)
    with monkeypatch.context() as training_alone:
        training_alone.setattr("steppe.studies.projection.FORWARD", 0.0)
        for workers, share in ((1, 1.0), (4, 1 / 3)):  # of 4: 1, 1, 2, 2 at once, then 1, 1, 1, 2 and two of 2 after 1
            stages = answered(capsys, "paper/mine", "--dry-run", "--workers", str(workers))["stages"]
            assert [s["hours"] for s in stages] == pytest.approx([s["passes"] / 1000 * share for s in stages])
    sweep, final = answered(capsys, "paper/mine", "--dry-run", "--workers", "1")["stages"]
    epochs, batch = OWN["base"]["epochs"], OWN["base"]["batch_size"]
    splits = data_of(Config(**OWN["base"]))
    rows = [4 * epochs * (len(splits.test) + len(splits.validation or ())), 6 * epochs * len(splits.test)]
    evaluated = [1000 * s["hours"] - s["passes"] for s in (sweep, final)]
    assert evaluated == pytest.approx([n / batch / 3 for n in rows])
    alone, beside = Local(1, gpus=1), Local(8, gpus=1)
    assert (alone.slowdown, Local(2).slowdown, Local(2, gpus=2).slowdown) == (1.0, 1.0, 1.0)
    assert beside.workers / beside.slowdown == pytest.approx(GAIN)


def test_theory_and_unknown_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = {row["name"]: row for row in answered(capsys, "--list")}
    assert listed["theory/wishart-moments"]["state"] == "full"  # of the package; what was computed here goes first
    told(capsys, "theory/wishart-moments")
    assert list(Path("studies/theory/wishart-moments").glob("*.html"))
    listed = {row["name"]: row for row in answered(capsys, "--list")}
    assert listed["theory/wishart-moments"]["state"] == "smoke"
    assert listed["theory/wishart-moments"]["date"] == datetime.now(UTC).date().isoformat()
    file = Path("studies/theory/wishart-moments/wishart-moments.json")
    file.write_text(file.read_text().replace('"quick": true', '"quick": false'))
    assert {row["name"]: row["state"] for row in answered(capsys, "--list")}["theory/wishart-moments"] == "full"
    assert "10 of 10 rows" in told(capsys, "modern-look/fig1")  # a figure of a paper
    assert list(Path("studies/modern-look/fig1").glob("*.html"))
    assert main(["reproduce", "universal/table3"]) == 2
    assert "universal/table2" in capsys.readouterr().err


def test_missing_initial_weights_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", "agnostic/table3", "--budget", "short"]) == 1
    assert "there are no weights at checkpoints/efficientnet-b4-imagenet.safetensors" in capsys.readouterr().err
    assert not Path("studies").exists()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("SAM,test_error,x,,Table 9", "value and error are numbers, not 'x'"),
        ("SAM,test_error,1,,a\nSAM,test_error,2,,b", "is there twice"),
    ],
)
def test_wrong_numbers_of_the_paper(own: Recipe, line: str, said: str) -> None:
    (own.folder / "paper.csv").write_text(f"row,column,value,error,place\n{line}\n")
    with pytest.raises(ValueError, match=said):
        _ = recipe("paper/mine").printed


def test_a_folder_with_the_name_of_a_recipe_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "universal/table2"
    shutil.copytree(recipe(name).folder, tmp_path / name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"universal/table2 is a recipe of steppe-papers and a folder here: write \./universal"
    ):
        recipe(name)
    assert recipe(f"./{name}").folder == Path(name)


def test_learning_rates_are_drawn_by_their_logarithm() -> None:
    """Columns over two decades; epochs and names are not."""

    def axis(columns: list[str], setting: str = "lr") -> str:
        spec = TableSpec(name="table", rows=("method",), columns=(setting,), value=("test_error",))
        entries = [Entry("SAM", column, 1.0, 0.1, 3, 0.5, 1.5) for column in columns]
        made = figure([Compared(Summary(spec, ["SAM"], columns, entries), {})])
        return str(made["layout"]["xaxis"]["type"])

    assert axis(["0.0001", "0.01", "0.1"]) == "log"
    assert axis(["0.01", "0.1"]) == axis(["0", "0.1"]) == "-"
    assert axis(["1", "100", "200"], EPOCH) == "-"
    assert axis(["digits", "MNIST"]) == "category"
