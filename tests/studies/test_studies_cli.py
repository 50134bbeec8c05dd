"""`steppe study`: from a file to a table, a page, JSON and exit codes."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from studies_cells import BASE

from steppe.cli import main
from steppe.cli.study_options import Which, study_of


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return written({"grid": {"method": ["none", "sam"], "seed": [0, 1, 2]}, "groups": "method"})


def written(given: dict[str, Any]) -> Path:
    usual = {"base": BASE, "measures": ["loss", "grad_norm"], "engine": "serial"}
    Path("mine.yaml").write_text(yaml.safe_dump(usual | given, sort_keys=False))
    return Path("mine.yaml")


def told(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["study", *words])
    out, err = capsys.readouterr()
    return code, out, err


def test_from_a_file_to_a_page(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = told(capsys, "run", str(file), "--dry-run")
    assert (code, err) == (0, "")
    assert "Dry run: 6 of 6 cells to compute, in studies/mine." in out
    assert not Path("studies").exists()

    code, out, err = told(capsys, "run", str(file))
    assert (code, err) == (0, "")  # quiet where nobody looks
    assert "within method" in out
    assert "test_error (6 runs; too few for a verdict)" in out
    assert "All 6 runs are included." in out
    assert "The page: studies/mine/report.html" in out
    assert Path("studies/mine/report.html").read_text(encoding="utf-8").startswith("<!")

    code, out, err = told(capsys, "status", str(file), "--json")
    assert json.loads(out)["counts"] == {"done": 6}

    code, out, err = told(capsys, "add-measure", "fisher_trace", "--study", str(file), "--progress")
    assert code == 0
    assert err.splitlines()[-1].startswith("6 of 6: ")
    assert "fisher_trace" in out

    written({"grid": {"method": ["none", "sam"], "seed": [0, 1, 2]}, "targets": ["test_loss"]})
    code, out, err = told(capsys, "report", str(file), "--json", "--page", "page.html", "--export", "runs.csv")
    found = json.loads(out)
    assert (code, found["report"], found["done"]) == (0, "page.html", 6)
    rows = [f for f in found["findings"]["findings"] if f["hypothesis"] == "strong"]
    assert {f["target"] for f in rows} == {"test_loss"}
    assert [f["measure"] for f in rows] == ["loss", "grad_norm", "fisher_trace"]
    assert {c["contender"] for c in found["findings"]["comparisons"]} == {"sam"}
    with Path("runs_findings.csv").open(newline="") as table:
        verdicts = [row["verdict"] for row in csv.DictReader(table)]
    assert verdicts == [r["verdict"] for kind in ("findings", "comparisons") for r in found["findings"][kind]]
    assert Path("page.html").exists()
    with Path("runs.csv").open(newline="") as table:
        assert [float(row["measure.loss"]) > 0 for row in csv.DictReader(table)] == [True] * 6


def test_findings_are_computed_once_for_terminal_and_page(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from steppe.studies import result

    targets: list[Any] = []

    def counted(table: Any, measures: Any, names: Any, **how: Any) -> Any:
        targets.append(names)
        return findings(table, measures, names, **how)

    findings = result.findings
    monkeypatch.setattr(result, "findings", counted)
    assert told(capsys, "run", str(file))[0] == 0
    assert targets == [["test_error", "gap"]]
    _, out, _ = told(capsys, "report", str(file), "--json")
    assert targets == [["test_error", "gap"]] * 2
    page = json.loads(re.search(r'id="data">(.*?)</script>', Path("studies/mine/report.html").read_text("utf-8"))[1])
    assert page["findings"] == json.loads(out)["findings"]


def test_a_driver_that_is_gone_leaves_nothing_running(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from steppe.studies.cell import cells
    from steppe.studies.store import Store

    study = study_of(Which(str(file)))
    with Store.open(study.store) as store:
        store.add(cells(study))
        store.claim(cells(study)[0].key, "a process")
    (study.folder / "study.lock").touch()
    assert "6 cells: 6 open" in told(capsys, "status", str(file))[1]
    with FileLock(study.folder / "study.lock"):
        assert "6 cells: 1 running, 5 open" in told(capsys, "status", str(file))[1]


def test_failures_give_an_exit_code(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written({"grid": {"lr": [0.1, 1e30]}})
    code, out, err = told(capsys, "run", str(file))
    assert code == 1
    assert "steppe study: lr=1e+30 failed: FloatingPointError" in err
    code, out, err = told(capsys, "status", str(file))
    assert "2 cells: 1 done, 1 failed" in out


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"grid": {"method": ["sma"]}}, "there is no method 'sma'. Did you mean 'sam'"),
        ({"measures": ["tracee"]}, "there is no measure 'tracee'. Did you mean 'trace'"),
        ({"base": {"data": "digit"}}, "there is no data set 'digit'. Did you mean 'digits'"),
        ({"gird": {}}, "mine.yaml: there is no key of a study 'gird'. Did you mean 'grid'"),
        ({"grid": {"method_options": [{"n": 2}], "method": ["sam"]}}, "there is no option of sam 'n'"),
        (
            {"grid": {"method": ["none", "sam", {"method": "looksam", "rho": 0.3}], "rho": [0.1, 0.2]}},
            "grid.rho: rho does not apply to the method none, and grid gives it to every method. Remove it there, and "
            "write each radius beside its method: `method: [none, {method: sam, rho: [0.1, 0.2]}]` in grid",
        ),
        (
            {"base": BASE | {"rho": 0.1}, "grid": {"method": ["sa-sam", "sam"]}},
            "base.rho: rho does not apply to the method sa-sam",
        ),
        ({"grid": {"method": [{"method": "none", "rho": 0.1}]}}, "leave rho out of its entry"),
        (
            {"grid": {"method": ["none"]}, "random": {"n": 2, "space": {"rho": {"uniform": [0, 1]}}}},
            "run none in a study of its own",
        ),
        ({"base": BASE | {"data": "teacher-student"}}, "targets: test_error, gap needs classes, and teacher-student"),
        ({"base": BASE | {"model": "resnet18", "model_options": {}}}, "cannot be built for the rows of spirals"),
        ({"base": BASE | {"model": "studies_cells:broken", "model_options": {}}}, "ZeroDivisionError: no layers"),
        ({"base": BASE | {"lr": -1}}, "lr is -1.0, and has to be a number, 0 or more"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_written(
    file: Path, capsys: pytest.CaptureFixture[str], given: dict[str, Any], said: str
) -> None:
    written(given)
    code, _, err = told(capsys, "run", str(file))
    assert code == 2
    assert said in err
    assert not Path("studies").exists()


def test_what_is_not_there(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = told(capsys, "status", str(file))
    assert code == 1
    assert "there is no store at studies/mine/study.sqlite: `steppe study run` makes one" in err
    code, _, err = told(capsys, "run", "other.yaml")
    assert code == 1
    assert "other.yaml" in err
    code, _, err = told(capsys, "run", str(file), "--engine", "rya")
    assert code == 2
    assert "there is no engine 'rya'. Did you mean 'ray'" in err
    code, _, err = told(capsys, "add-measure", "--study", str(file))
    assert code == 2
    assert "name the measures to add" in err
    code, _, err = told(capsys, "add-measure", "trce", "--study", str(file))
    assert code == 2
    assert "Did you mean 'trace'" in err


def test_the_embedded_study_needs_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = told(capsys, "run", "--dry-run", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["folder"] == "studies/digits"
    assert len(found["cells"]) == found["planned"] >= 30


def test_make_demo_is_the_embedded_study() -> None:
    """Its recipe is `steppe study run` without a file, planned above, and the report of a committed comparison."""
    root = Path(__file__).parents[2]
    ours = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}  # the tests may be run by make themselves
    words = ["make", "--dry-run", "demo", "ARGS=--dry-run"]
    plan = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True, env=ours)
    commands = [line.split()[1:] for line in plan.stdout.splitlines() if line.startswith(".venv/bin/steppe")]
    assert commands == [["study", "run", "--dry-run"], ["compare", "report", "docs/comparisons/digits"]]


@pytest.mark.parametrize("width", [80, 120])
def test_numbers_are_whole_in_a_narrow_terminal(tmp_path: Path, width: int) -> None:
    """Names fold, numbers and verdicts do not."""
    from rich.console import Console
    from studies_cells import tiny

    from steppe.cli.study_output import output_of
    from steppe.studies.cell import cells
    from steppe.studies.result import study_result
    from steppe.studies.run import look
    from steppe.studies.store import Store

    name = "adaptive_worst_linf_normalised@0.01"
    study = tiny(
        tmp_path, grid={"lr": [0.1, 0.2], "seed": list(range(6))}, measures=[name], targets=["test_error"], groups="lr"
    )
    with Store.open(study.store) as store:
        store.add(cells(study))
        for i, cell in enumerate(cells(study)):
            store.record(cell.key, targets={"test_error": i * i % 7 / 10}, measures={name: {"value": i * i * i % 11}})
    found = study_result(study, *look(study))
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(output_of(study, found).shown[0])
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    one = found.findings.of(name, "test_error")
    within = found.findings.of(name, "test_error", "within groups")
    interval = f"{one.low:+.2f} to {one.high:+.2f}" if isfinite(one.low) else "none"
    for said in (f"{one.tau:+.2f}", interval, "cannot tell"):
        assert f" {said} " in text.replace("\n", " \n")
    left_out = "corrected p" in text.partition("A wider terminal also shows: ")[2]
    assert left_out or f" {one.p_corrected:.2g} " in text.replace("\n", " \n")
    assert within.verdict in ("cannot tell", "weaker than 0.5")
    assert "(12 runs; too few for a verdict)" in " ".join(text.split())


def test_a_page_follows_a_study_that_another_process_runs(tmp_path: Path) -> None:
    """Its file is told on stderr when it can be opened, and Ctrl-C ends it."""
    from steppe._util.files import lock_folder
    from steppe.studies import Store
    from steppe.studies.run import LOCK

    def heed_interrupts() -> None:  # nohup, cron and some CI systems make all that they start ignore SIGINT
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    folder = tmp_path / "digits"
    folder.mkdir()
    with Store.open(folder / "study.sqlite"):
        pass
    command = [sys.executable, "-m", "steppe", "report", "serve", "--out", str(folder)]
    with (
        lock_folder(folder, LOCK),
        subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, cwd=tmp_path, preexec_fn=heed_interrupts
        ) as process,
    ):
        try:
            said = process.stderr.readline()
            page = folder / "report.html"
            assert said == f"{page} follows the study: open it in a browser (Ctrl-C ends it)\n"
            assert '"live":10' in page.read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
            assert '"live":0' in page.read_text()
        finally:
            process.kill()


def test_measures_are_added_only_to_a_study_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, place in ((str(written({"grid": {"seed": [0]}})), "mine"), ("digits", "digits")):
        code, out, err = told(capsys, "add-measure", "trace", "--study", name)
        assert (code, out) == (1, "")
        assert f"this study has not run: studies/{place}/study.sqlite does not exist" in err
        assert f"steppe study run {name}" in err
        assert not Path("studies").exists()
    for words in ([], ["--out", "studies/digits"]):
        code, out, err = told(capsys, "add-measure", "trace", *words)
        assert (code, out) == (2, "")
        assert "name the study to add measures to: --study study.yaml, or --study digits" in err


def test_a_study_is_named_by_its_folder(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, "run", str(file))[0] == 0
    by_file, by_folder = (
        json.loads(told(capsys, "report", where, "--json")[1]) for where in (str(file), "studies/mine")
    )
    assert by_folder == by_file
    assert by_folder["done"] == 6
    assert json.loads(told(capsys, "status", "studies/mine", "--json")[1])["counts"] == {"done": 6}
    file.unlink()
    code, _, err = told(capsys, "report", "studies/mine", "--page", "page.html", "--export", "runs.csv")
    assert (code, err) == (0, "")
    assert Path("page.html").exists()
    assert len(Path("runs.csv").read_text().splitlines()) == 7


def test_folders_that_are_none_or_not_enough(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("empty").mkdir()
    for name in ("report", "status"):
        code, _, err = told(capsys, name, "empty")
        assert code == 1
        assert "there is no study in empty: it has no study.sqlite" in err
        assert "--config" not in err
    code, _, err = told(capsys, "run", "empty")
    assert code == 2
    assert "empty is a folder, and this command needs a study's YAML file. `steppe study init` writes one" in err
    assert main(["report", "serve", "empty"]) == 1
    assert "there is no study in empty" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ({"data": "cifar10", "data_root": "nowhere"}, "CIFAR-10 is not under nowhere"),
        ({"data": "npz:nowhere.npz"}, "nowhere.npz"),
        ({"model": "nowhere:net", "model_options": {}}, "there is no module 'nowhere'"),
        ({"model": "studies_cells:nte", "model_options": {}}, "there is no factory 'nte'"),
        ({"method": "looksam", "method_options": {"k": 0}}, "method_options: k of looksam takes a whole number"),
    ],
)
@pytest.mark.parametrize("dry", [["--dry-run"], []])
def test_what_no_cell_could_do_is_found_once_before_the_study_starts(
    file: Path, capsys: pytest.CaptureFixture[str], base: dict[str, Any], said: str, dry: list[str]
) -> None:
    written({"base": BASE | base, "grid": {"seed": [0, 1, 2]}})
    code, out, err = told(capsys, "run", str(file), *dry)
    assert code in (1, 2)
    assert err.count(said) == 1
    assert "tried" not in err
    assert not out
    assert not Path("studies").exists()


def test_each_data_set_and_each_model_is_checked_once(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 cells of two data sets and two models: as many reads and builds as there are different ones."""
    from steppe.data.registry import DATASETS

    reads: list[str] = []
    for name in ("spirals", "digits"):

        def counted(root: Path, name: str = name, read: Any = DATASETS[name].read) -> Any:
            reads.append(name)
            return read(root)

        monkeypatch.setitem(DATASETS._parts, name, replace(DATASETS[name], read=counted))
    models = [{"model": "studies_cells:marked", "model_options": {"marks": ".", "width": width}} for width in (3, 4)]
    written({"grid": {"net": models, "data": ["spirals", "digits"], "lr": [0.1, 0.2], "seed": list(range(25))}})
    code, out, err = told(capsys, "run", str(file), "--dry-run", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["planned"] == 200
    assert sorted(reads) == ["digits", "spirals"]
    assert len(list(Path().glob("built-*"))) == 4  # each model for the rows of each data set


def test_what_computes_nothing_imports_no_torch(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written({"grid": {"seed": [0, 1]}, "measures": ["loss"]})
    assert told(capsys, "run", str(file))[0] == 0
    for words in (["run", str(file)], ["run", str(file), "--dry-run"], ["report", str(file)], ["status", str(file)]):
        code = f"import sys; from steppe.cli.entry import main; main({['study', *words]!r}); "
        code += "assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_a_study_in_its_own_words(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {"title": "SAM on\nspirals", "question": "Is it [red]flat[/red]?", "notes": "One.\n\nTwo.\n"}
    written({**texts, "grid": {"seed": [0]}, "measures": ["loss"]})
    shown = "SAM on spirals\nIs it [red]flat[/red]?\nOne.\n\nTwo.\n\n"
    code, out, _ = told(capsys, "run", str(file))
    assert code == 0
    assert out.startswith(shown)
    for place in (str(file), "studies/mine"):
        assert told(capsys, "status", place)[1].startswith(shown + "studies/mine: 1 cells: 1 done")
        assert told(capsys, "report", place)[1].startswith(shown)
        described = json.loads(told(capsys, "status", place, "--json")[1])
        assert (described["title"], described["notes"]) == ("SAM on spirals", "One.\n\nTwo.")
    page = json.loads(re.search(r'id="data">(.*?)</script>', Path("studies/mine/report.html").read_text("utf-8"))[1])
    assert [page[name] for name in texts] == ["SAM on spirals", "Is it [red]flat[/red]?", "One.\n\nTwo."]
    written(
        {"grid": {"seed": [0]}, "measures": ["loss"]}
    )  # removed from the file, and from the store by the next report
    assert "SAM" not in told(capsys, "report", str(file))[1]
    assert "title" not in json.loads(told(capsys, "status", "studies/mine", "--json")[1])


def test_a_folder_where_a_file_belongs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written({"grid": {"seed": [0]}, "measures": ["loss"]})
    assert told(capsys, "run", str(file))[0] == 0
    for place in ("studies/mine", "studies/mine/study.sqlite"):
        code, out, err = told(capsys, "run", place)
        assert (code, out) == (2, "")
        assert "studies/mine is a study's folder, and this command needs the study's file: give mine.yaml" in err
    assert told(capsys, "run", str(file), "--out", "else/where")[0] == 0
    assert "file: give mine.yaml --out else/where" in told(capsys, "run", "else/where")[2]
    assert "file: give mine.yaml" in told(capsys, "add-measure", "trace", "--study", "studies/mine")[2]
    [run] = Path("studies/mine/runs").glob("*/")
    for command in ("report", "run"):
        assert "It holds the folders of studies: studies/mine" in told(capsys, command, "studies")[2]
        assert "Give a study's file: mine.yaml" in told(capsys, command, ".")[2]
        assert "It is the folder of one run: `pool: studies/mine/runs/*`" in told(capsys, command, str(run))[2]
    file.unlink()
    assert "needs the study's YAML file" in told(capsys, "run", "studies/mine")[2]


@pytest.mark.parametrize("star", ["*.pt", "*", "*/runs"])
def test_a_star_in_yaml_needs_quotes(file: Path, capsys: pytest.CaptureFixture[str], star: str) -> None:
    file.write_text(f"base: {{data: digits}}\npool: {star}\n")
    code, _, err = told(capsys, "run", str(file))
    assert code == 2
    assert f"mine.yaml: in YAML a value that starts with * is an alias. Quote it: pool: '{star}'" in err


@pytest.mark.parametrize(
    ("words", "targets"),
    [
        ([], ("test_error", "gap")),
        (["--data", "teacher-student"], ("test_loss", "loss_gap")),
        (["--data", "cifar10", "--model", "resnet18"], ("test_error", "gap")),
        (["--data", "folder:my pictures #1", "--model", "mine.net:make"], ("test_error", "gap")),
    ],
)
def test_a_new_study_file_is_a_study(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    targets: tuple[str, ...],
) -> None:
    from steppe.studies.cell import cells

    monkeypatch.chdir(tmp_path)
    code, out, err = told(capsys, "init", "new/first.yaml", *words)
    assert (code, err) == (0, "")
    assert out.startswith("new/first.yaml is written. Next: steppe study run new/first.yaml --dry-run")
    assert ("steppe data get cifar10" in out) == ("cifar10" in words)
    study = study_of(Which("new/first.yaml"))
    wanted = dict(zip(words[::2], words[1::2], strict=True))
    assert study.base["data"] == wanted.get("--data", "digits")
    assert study.base["model"] == wanted.get("--model", "mlp")
    assert str(study.base["data"]) in study.title
    assert study.question.endswith("?")
    assert tuple(study.targets) == targets
    assert len(cells(study)) == 30  # as its comment says
    before = Path("new/first.yaml").read_text()
    code, _, err = told(capsys, "init", "new/first.yaml", *words)
    assert code == 2
    assert "new/first.yaml exists and stays as it is" in err
    assert Path("new/first.yaml").read_text() == before


def test_a_new_study_file_passes_all_checks_and_wrong_names_write_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words, said in (
        (["--data", "digit"], "'digits'"),
        (["--model", "mlpp"], "'mlp'"),
        (["x.txt"], "ends in .yaml"),
    ):
        code, _, err = told(capsys, "init", *words)
        assert code == 2
        assert said in err
    assert not list(tmp_path.iterdir())
    for name in ("digits", "spirals", "sparse-regression"):
        assert told(capsys, "init", f"{name}.yaml", "--data", name)[0] == 0
        code, out, err = told(capsys, "run", f"{name}.yaml", "--dry-run")
        assert (code, err) == (0, "")
        assert "30 of 30 cells to compute" in out


def test_a_pool_takes_what_measure_takes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch
    from safetensors.torch import save_file

    from steppe.nn import build

    options = BASE["model_options"]
    torch.manual_seed(0)
    torch.save(build("mlp", (2,), 2, **options).state_dict(), "a.pt")
    torch.save({"state_dict": build("mlp", (2,), 2, **options).state_dict()}, "b.pth")
    save_file(build("mlp", (2,), 2, **options).state_dict(), "a.safetensors")
    Path("notes.txt").touch()
    base = {"data": "spirals", "model": "mlp", "model_options": options, "device": "cpu"}
    written({"base": base, "pool": "[ab].*", "measures": ["loss"], "standardise": "spirals"})
    code, out, err = told(capsys, "run", str(file), "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["done"] == 3
    written({"base": base, "pool": "*.txt"})
    code, _, err = told(capsys, "run", str(file))
    assert code == 1
    assert "pool: there is no checkpoint (.safetensors, .pt, .pth" in err


def test_processes_of_torchrun_are_refused(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A study starts its own, which would wait for each other's locks."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    code, _, err = told(capsys, "run", str(file))
    assert code == 2
    assert "torchrun started 2 processes of `steppe study run`, which starts its own" in err
    assert "without torchrun, with --workers 2" in err
    assert not Path("studies").exists()


def test_a_model_that_is_named_by_its_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = told(capsys, "init", str(tmp_path / "new.yaml"), "--model", "mymodels.py:tiny")
    assert (code, "write mymodels:tiny" in err, list(tmp_path.iterdir())) == (2, True, [])


LOCKS = """import multiprocessing, torch
LOCKS = []
def tiny(shape, outputs):
    LOCKS.extend(multiprocessing.RLock() for _ in range(300))  # as a progress bar of tqdm makes one in inductor
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, outputs))
"""


def test_a_worker_removes_its_semaphores(tmp_path: Path) -> None:
    """A SIGTERM while a worker exits left semaphores half removed, and multiprocessing warned of them."""
    Path(tmp_path, "locks.py").write_text(LOCKS)
    study = {"base": {"data": "digits", "steps": 1, "model": "locks:tiny"}, "measures": ["loss"]}
    Path(tmp_path, "mine.yaml").write_text(yaml.safe_dump(study | {"grid": {"seed": [0]}}))
    command = [sys.executable, "-m", "steppe", "study", "run", "mine.yaml", "--workers", "1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "resource_tracker" not in done.stderr
