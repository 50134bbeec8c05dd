"""`steppe compare` as its user meets it: asked, run, killed, resumed, answered, and refused in one sentence."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch import nn

import steppe
from steppe.cli import main
from steppe.comparison.result import result_of
from steppe.comparison.store import NAME, Record

SMALL = ["--engine", "serial", "--base", "fraction=0.2,batch_size=40,validation=0.5,model_options.width=8"]
SMALL += ["--fix", "epochs=2", "--tuning", "2", "--no-progress"]
QUICK = ["compare", "--data", "spirals", *SMALL, "--space", "lr=0.01..1", "--trials", "4"]
MODULE = """
import numpy as np
import torch
import steppe

def splits():
    x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    parts = [steppe.data.Dataset("mine", x[a:b], y[a:b], classes=("no", "yes")) for a, b in ((0, 200), (200, 300))]
    return steppe.data.Splits(*parts)

def net(shape, outputs, width=4):
    return torch.nn.Sequential(torch.nn.Linear(shape[0], width), torch.nn.ReLU(), torch.nn.Linear(width, outputs))

def train(trial):
    random = np.random.default_rng([trial.seed, trial.epochs])
    trial.optimizer(torch.nn.Linear(2, 2))
    trial.report(0.3)
    return random.random(100) < 0.8, random.random(100) < 0.8

def numbers(trial):
    return 0.8, 0.9
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mycode.py").write_text(MODULE)
    yield tmp_path
    sys.modules.pop("mycode", None)


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What a command prints; it ends with this code."""
    found = main(list(words))
    out, err = capsys.readouterr()
    assert found == code, err
    return out if code == 0 else err


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(said(capsys, *words, "--json"))
    return values


def test_it_says_what_it_would_take_and_writes_nothing(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(here.iterdir())
    text = said(capsys, *QUICK, "--dry-run", "--worth", "0.1", "--budget", "1h")
    assert "sam, or none? mlp on spirals, at equal passes, each with 2 trials of tuning" in text
    assert '"no difference" within 0.1 points is out of reach' in text
    assert "time on this machine" in text
    plan = answer(capsys, *QUICK, "--dry-run")
    assert [look["trials"] for look in plan["looks"]] == [4]
    assert plan["rows"]["test"] > 0
    assert plan["looks"][0]["seconds"] > 0
    assert set(here.iterdir()) - before <= {here / "__pycache__"}


def test_without_a_terminal_it_needs_yes(capsys: pytest.CaptureFixture[str]) -> None:
    error = said(capsys, *QUICK, code=2)
    assert "add --yes to start it, or --dry-run" in error
    assert len(error.splitlines()) <= 3


def test_it_asks_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return "n\n"

    monkeypatch.setattr(sys, "stdin", Terminal())
    assert "nothing was started" in said(capsys, *QUICK)
    assert not Path("comparisons").exists()


def test_the_answer_the_page_and_the_recommendation(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *QUICK, "--yes", "--measures", "grad_norm", "--worth", "30", "--out", "c")
    assert found["state"] == "decided"
    assert [row["method"] for row in found["rows"]] == ["none", "sam"]
    assert [row["counted"] for row in found["rows"]] == [1, 2]
    assert all(len(row["measures"]["grad_norm"]) == 3 for row in found["rows"])
    assert all(row["learning"][-1]["passes"] == 2 for row in found["rows"])
    assert all(row["reached"] is not None for row in found["rows"])
    assert found["recommended"]["seeds"] == 3
    page = Path("c/report.html").read_text()
    assert found["contrasts"][0]["sentence"].split(" (")[0] in page
    assert 'http-equiv="refresh"' not in page  # of a comparison that runs
    assert len(list(Path("c/runs").glob("*/run.yaml"))) == 3  # those of the recommended configuration
    # steppe train accepts it, and the lines of Python run
    assert said(capsys, "train", "--config", "c/recommended.yaml", "--out", "r", "--no-progress")
    about = yaml.safe_load(Path("r/run.yaml").read_text())["config"]
    assert {**about, **yaml.safe_load(Path("c/recommended.yaml").read_text())} == about
    names: dict[str, Any] = {}
    exec(found["python"].replace("steppe.training.Config(", "steppe.training.Config(out='p', "), names)
    assert names["run"].finished
    assert {k: v for k, v in vars(names["run"].config).items() if k != "out"} == {
        k: v for k, v in vars(steppe.training.open_run("r").config).items() if k != "out"
    }


def test_status_report_and_the_same_command_again(capsys: pytest.CaptureFixture[str]) -> None:
    first = answer(capsys, *QUICK, "--yes", "--out", "c")
    size = Path("c", NAME).stat().st_size
    again = answer(capsys, *QUICK, "--out", "c")  # no question: there is nothing new to start
    assert again["sentences"] == first["sentences"]
    assert answer(capsys, "compare", "report", "c")["sentences"] == first["sentences"]
    status = answer(capsys, "compare", "status", "c")
    assert (status["trials"], status["state"]) == ({"none": 4, "sam": 4}, "decided")
    assert answer(capsys, "compare", "resume", "c")["sentences"] == first["sentences"]
    assert Path("c", NAME).stat().st_size == size
    error = said(capsys, "compare", "report", "comparisons", code=1)
    assert "there is no comparison in comparisons" in error
    assert "name the folder" in said(capsys, "compare", "status", code=2)


def test_a_change_after_a_look_is_asked_about_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, *QUICK, "--yes", "--out", "c")
    assert "add --yes" in said(capsys, *QUICK, "--out", "c", "--worth", "7", code=2)
    second = answer(capsys, *QUICK, "--out", "c", "--worth", "7", "--yes")
    assert any("a new comparison with new trials and its own correction" in text for text in second["caveats"])
    third = answer(capsys, *QUICK, "--out", "c", "--worth", "7", "--yes", "--methods", "none,sam,asam")
    assert [a["method"] for a in third["contrasts"]] == ["sam", "asam"]
    assert any("asam came after a look" in text for text in third["caveats"])


def test_where_data_lie_and_how_it_computes_are_not_what_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    first = answer(capsys, *QUICK, "--yes", "--out", "c")
    whole = Path("c", NAME).read_bytes().splitlines(keepends=True)
    trials = trials_of(Path("c", NAME))
    Path("c", NAME).write_bytes(b"".join(whole[:6]))
    again = answer(capsys, *QUICK, "--yes", "--out", "c", "--data-root", "other", "--base", "threads=2,device=cpu")
    assert again["sentences"] == first["sentences"]
    assert [c.start["where"] for c in Record(Path("c", NAME)).comparisons] == [
        {"data_root": "other", "threads": 2, "device": "cpu"}
    ]
    assert trials_of(Path("c", NAME)).keys() == trials.keys()
    assert 'data_root: "other"' in again["yaml"]
    shutil.rmtree("c/runs")
    Path("c", NAME).write_bytes(b"".join(whole[:6]))
    assert answer(capsys, "compare", "resume", "c", "--data-root", "third")["sentences"] == first["sentences"]
    current = Record(Path("c", NAME)).current
    assert current is not None
    assert current.start["where"] == {"data_root": "third", "threads": 1}
    run = next(Path("c/runs").glob("*/run.yaml"))
    assert yaml.safe_load(run.read_text())["config"]["data_root"] == "third"


def test_files_of_options(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {"data": "mycode:splits", "model": "mycode:net", "methods": ["none", "sam"], "engine": "serial"}
    values |= {"tuning": 2, "trials": 4, "worth": 20, "base": {"batch_size": 50, "model_options": {"width": 3}}}
    values |= {"space": {"lr": {"log_uniform": [0.01, 1]}, "epochs": {"choice": [2, 4]}}, "fix": {"weight_decay": 0}}
    Path("mine.yaml").write_text(yaml.safe_dump(values))
    found = answer(capsys, "compare", "mine.yaml", "--yes")
    assert found["folder"] == "comparisons/mine"
    assert found["trials"] == 4
    assert found["test_rows"] == 100
    assert found["space"]["epochs"] == "2 or 4"
    assert re.fullmatch(r"mycode:splits@\w{8}", found["task"]["data"])
    assert re.search(r'^data: "npz:comparisons/mine/data-\w{8}\.npz"$', found["yaml"], re.M)
    before = sorted(here.rglob("*.npz"))
    assert answer(capsys, "compare", "mine.yaml", "--dry-run", "--out", "dry")["rows"]["test"] == 100
    assert sorted(here.rglob("*.npz")) == before
    assert answer(capsys, "compare", "mine.yaml", "--trials", "6", "--yes", "--out", "x")["trials"] == 6
    error = said(capsys, "compare", "resume", "comparisons/mine", code=1)
    assert "names the model 'mycode:net', which is code outside steppe" in error
    assert answer(capsys, "compare", "resume", "comparisons/mine", "--trust")["sentences"] == found["sentences"]
    Path("comparisons/mine").rename("elsewhere")  # with its rows
    whole, size = Path("elsewhere", NAME).read_bytes(), len(found["sentences"])
    Path("elsewhere", NAME).write_bytes(b"".join(whole.splitlines(keepends=True)[:-2]))
    again = answer(capsys, "compare", "resume", "elsewhere", "--trust")
    assert again["sentences"][:size] == found["sentences"]
    for key, near in (("method", "methods"), ("worht", "worth"), ("yes", "")):
        Path("bad.yaml").write_text(yaml.safe_dump(values | {key: 1}))
        error = said(capsys, "compare", "bad.yaml", "--yes", code=2)
        assert f"there is no option {key!r}" in error
        assert near in error


def test_options_are_changes_of_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    """A comparison of the file with one other setting: nothing else of it is lost."""
    values = {"data": "digits", "base": {"label_noise": 0.4, "batch_size": 64}, "fix": {"epochs": 2}}
    Path("c.yaml").write_text(yaml.safe_dump(values | {"space": {"lr": "0.01..1", "weight_decay": "0..0.1"}}))
    whole = ["compare", "c.yaml", "--dry-run", "--base", "label_smoothing=0.1,batch_size=", "--fix", "lr=0.1"]
    found = answer(capsys, *whole, "--space", "sam.rho=0.1..1")
    assert found["task"]["label_noise"] == 0.4
    assert found["task"]["label_smoothing"] == 0.1
    assert "batch_size" not in found["task"]
    assert found["space"] == {"lr": "0.1", "weight_decay": "0 to 0.1", "epochs": "2", "sam.rho": "0.1 to 1 (log)"}


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_a_train_function_of_ones_own(workers: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "--train", "mycode:train", "--fix", "epochs=4", "--space", "lr=0.01..1", "--tuning", "2"]
    found = answer(capsys, *words, "--trials", "4", "--worth", "30", "--yes", "--workers", workers, "--out", "f")
    assert found["state"] == "decided"
    assert found["task"] == {"train": "mycode:train"}
    assert found["yaml"].splitlines()[0] == 'method: "none"'
    error = said(
        capsys, "compare", "--train", "mycode:numbers", "--fix", "epochs=1", "--yes", "--workers", workers, code=1
    )
    assert "its validation is the number 0.8: return predicted == labels, not the mean" in error


WRONG = [  # words, and what is said
    (["--fix", "epochs=2,lrr=0.1"], "there is no setting 'lrr'. Did you mean 'lr'"),
    (["--base", "data_root=x"], "data_root cannot be given here: give `data_root` beside `base`"),
    (["--base", "model=cnn"], "model cannot be given in base: give `model` beside it"),
    (["--base", "seed=3"], "seed cannot be given here: every trial has a seed of its own"),
    (["--base", "validation=0"], "there are no validation rows, and validation selects among trials"),
    (["--data", "sparse-regression", "--model", "mlp"], "a comparison counts rows that are classified correctly"),
    (["--data", "npz:one.npz"], "training rows are of one class: there is nothing to learn"),
    (["--methods", "none"], "a comparison has two methods or more"),
    (["--methods", "none,smas"], "there is no method 'smas'"),
    (["--fix", "asam.rho=1"], "which is not compared"),
    (["--fix", "rho=1", "--space", "sam.rho=0.1..1"], "rho is fixed, and sam.rho is in the space: keep one"),
    (["--base", "lr=1"], "lr is in base and in space: keep one of them"),
    (["--space", "lr=1..0.1"], "goes from a number to a larger one"),
    (["--space", "lr=a..b"], "'a..b' is no law of a setting: write LOW..HIGH"),
    (["--space", "lr"], "a mapping"),
    (["--budget", "soon"], "a budget is a time such as 10m, 2h or 1h30m"),
    (["--trials", "3"], "fewer than two tunings of 2"),
    (["--axis", "seconds", "--engine", "local", "--workers", "2"], "equal seconds need runs that have the device"),
    (["--model", "nowhere:net"], "there is no module 'nowhere'"),
    (["--axis", "hours"], "there is no value of --axis 'hours'"),
    (["--data", "mycode:train"], "train() missing 1 required positional argument"),
]


@pytest.mark.parametrize(("words", "error"), WRONG)
def test_bad_input_has_one_clear_sentence(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).random((40, 3))
    np.savez(
        "one.npz",
        x_train=x,
        y_train=np.zeros(40, int),
        x_test=x,
        y_test=np.arange(40) % 2,
        x_val=x,
        y_val=np.arange(40) % 2,
    )
    code = main([*QUICK, "--yes", *words])
    text = capsys.readouterr().err
    assert code in (1, 2)
    assert error in text
    assert "unexpected" not in text
    assert len(text.splitlines()) < 4
    assert not list(Path("comparisons").glob(f"*/{NAME}"))


def test_a_method_that_diverges_in_all_trials_loses_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    words = [w if w != "lr=0.01..1" else "lr=1e20..1e30" for w in QUICK]
    found = answer(capsys, *words, "--yes", "--out", "c")
    assert found["contrasts"][0]["sentence"].startswith("Cannot tell: none and sam failed in all 4 trials.")
    assert found["recommended"] is None
    assert [row["failed"] for row in found["rows"]] == [4, 4]
    assert not Path("c/recommended.yaml").exists()


def test_a_run_that_diverges_counts_as_a_constant_prediction(capsys: pytest.CaptureFixture[str]) -> None:
    """The most frequent training class, on every row; its own labels decide which that is."""
    random = np.random.default_rng(0)
    parts: dict[str, Any] = {}
    for name, n, share in (("train", 60, 0.4), ("val", 40, 0.3), ("test", 50, 0.2)):
        parts |= {f"x_{name}": random.random((n, 3)), f"y_{name}": (np.arange(n) >= share * n).astype(int)}
    np.savez("rows.npz", **parts)
    words = [
        w if w not in ("lr=0.01..1", "spirals") else {"spirals": "npz:rows.npz"}.get(w, "lr=1e-3..1e30") for w in QUICK
    ]
    base = words.index("--base") + 1
    words[base] = "batch_size=20,model_options.width=8"
    found = answer(capsys, *words, "--yes", "--out", "c", "--seed", "1")
    current = Record(Path("c", NAME)).current
    assert current is not None
    failed = [done for (kind, *_), done in current.done.items() if kind == "trial" and done.failed]
    assert failed
    for done in failed:
        assert done.validation_error == pytest.approx(0.3)
        assert (~done.rows).tolist() == [True] * 10 + [False] * 40
    method = next(row["method"] for row in found["rows"] if row["failed"])
    assert any(f"{method}: " in text and "trials failed, and count as a constant prediction" in text
               for text in found["caveats"])  # fmt: skip


def test_equal_seconds_divide_epochs_by_measured_times(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *QUICK, "--yes", "--axis", "seconds", "--fix", "epochs=20", "--out", "c")
    current = Record(Path("c", NAME)).current
    assert current is not None
    costs = current.design.costs
    assert costs["none"] == 1
    assert costs["sam"] > 1.1
    assert current.design.trial("sam", 0).epochs == round(20 / costs["sam"])
    assert "at equal seconds" in found["contrasts"][0]["sentence"]
    # the same command measures again, and keeps what was measured first
    assert answer(capsys, *QUICK, "--yes", "--axis", "seconds", "--fix", "epochs=20", "--out", "c")["trials"] == 4
    assert len(Record(Path("c", NAME)).comparisons) == 1


def test_halving_stops_later_trials_and_ranks_them_behind(capsys: pytest.CaptureFixture[str]) -> None:
    base = "fraction=0.2,batch_size=20,validation=0.5,model_options.width=16,model_options.depth=1"
    words = [
        "compare",
        "--engine",
        "serial",
        "--tuning",
        "2",
        "--trials",
        "12",
        "--halving",
        "--worth",
        "0.01",
        "--once",
    ]
    words += ["--fix", "epochs=6", "--space", "lr=1e-4..3", "--base", base, "--out", "c"]
    found = answer(capsys, *words, "--yes")
    current = Record(Path("c", NAME)).current
    assert current is not None
    assert sum(row["stopped"] for row in found["rows"]) > 0
    for method in ("none", "sam"):
        done = [current.done["trial", method, i, 0] for i in range(12)]
        assert not any(one.stopped for one in done[:4])
        assert all(one.rung is not None for one in done)
        behind = [one.rung > current.limit(method) for one in done]
        assert [one.stopped for one in done[4:]] == behind[4:]
        epochs = 6 if method == "none" else 3
        assert all(one.curve[-1]["passes"] == (2 if one.stopped else 6) for one in done), epochs
        ranks = current.outcomes(method).validation
        assert max(ranks[[not one.stopped and r < 1 for one, r in zip(done, ranks, strict=True)]]) < 1
        assert all(r > 1 for one, r in zip(done, ranks, strict=True) if one.stopped)
    assert any("trials stopped after a third of their epochs" in text for text in found["caveats"])
    words = ["compare", "--train", "mycode:train", "--halving", "--fix", "epochs=3", "--yes"]
    error = said(capsys, *words, code=1)
    assert "trial 0 of none reported nothing from epoch 1 on: call trial.report(validation_error, epoch)" in error


def started(*words: str) -> subprocess.Popen[bytes]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "steppe", *words]
    return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def lines_of(file: Path) -> int:
    return file.read_bytes().count(b"\n") if file.exists() else 0


def trials_of(file: Path) -> dict[tuple[Any, ...], Any]:
    """The trials of a record without their times."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    trials = [line for line in lines if "trial" in line]
    keys = [(t["kind"], t["method"], t["trial"], t["repeat"]) for t in trials]
    assert len(set(keys)) == len(keys), "nothing is trained twice"
    return {key: (t["seed"], t["settings"], t["validation"], t["test"]) for key, t in zip(keys, trials, strict=True)}


def without_times(sentences: list[str]) -> list[str]:
    return [re.sub(r"\([\d.]+ (s|min|h)\)", "(a while)", s) for s in sentences]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["serial", pytest.param("local", marks=pytest.mark.slow)])
def test_killed_at_random_moments_it_ends_with_the_same_sentences(
    engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [w if w != "serial" else engine for w in QUICK]
    whole = answer(capsys, *words, "--yes", "--out", "whole")
    moments, file = random.Random(engine), Path("killed", NAME)
    for _ in range(3):
        before, process = lines_of(file), started(*words, "--yes", "--out", "killed")
        while process.poll() is None and lines_of(file) < before + 1:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.3)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    file.write_bytes(file.read_bytes()[: -moments.randrange(1, 40)])  # and in the middle of a line
    ended = answer(capsys, "compare", "resume", "killed")
    assert without_times(ended["sentences"]) == without_times(whole["sentences"])
    assert trials_of(file) == trials_of(Path("whole", NAME))


@pytest.mark.timeout(120)
def test_a_signal_stops_it_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    process = started(*QUICK, "--yes", "--trials", "60", "--once", "--out", "c")  # one look: it cannot end before
    while lines_of(Path("c", NAME)) < 4 and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate()
    assert process.returncode == 75, error
    assert b"`steppe compare resume c` continues" in error
    assert answer(capsys, "compare", "status", "c")["state"] == "open"


def numbers_in(values: Any) -> Iterator[float]:
    if isinstance(values, dict):
        for value in values.values():
            yield from numbers_in(value)
    elif isinstance(values, list | tuple):
        for value in values:
            yield from numbers_in(value)
    elif isinstance(values, int | float) and not isinstance(values, bool):
        yield float(values)


def test_every_number_in_a_sentence_is_a_field(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *QUICK, "--yes", "--worth", "0.5", "--out", "c")
    fields = [
        x for k in found if k not in ("sentences", "caveats", "space", "yaml", "python") for x in numbers_in(found[k])
    ]
    fields += [len(found["contrasts"])]
    laws = " ".join(found["space"].values())
    for sentence in found["sentences"]:
        for text in re.findall(r"(?<![\w.])\d+(?:\.\d+)?(?:e-?\d+)?(?![\w.]*\d)", sentence):
            if text in laws:
                continue
            digits = len(text.partition(".")[2])
            times = [x / unit for x in fields for unit in (1, 60, 3600)]
            near = any(f"{abs(x):.{digits}f}" == text or f"{abs(x):.3g}" == text for x in times)
            assert near, (text, sentence)


def test_the_lines_of_python_run_for_a_loop_of_ones_own() -> None:
    def train(trial: steppe.comparison.Trial) -> Any:
        chance = np.random.default_rng([trial.seed, trial.epochs, len(trial.settings)])
        return chance.random(200) < 0.7, chance.random(300) < 0.7 + 0.2 * (trial.method == "sam")

    space = {"lr": steppe.LogUniform(0.01, 1), "epochs": 2, "weight_decay": 1e-3, "dropout": 0.1}
    result = steppe.compare(train, ["none", "sam"], space, tuning=2, trials=8, worth=1, progress=False)
    assert result.recommended is not None
    model = nn.Linear(3, 2)
    before = model.weight.detach().clone()
    loader = [(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))]
    names = {"torch": torch, "steppe": steppe, "model": model, "loader": loader, "loss_fn": nn.CrossEntropyLoss()}
    exec(result.python, names)
    assert len(result.python.splitlines()) == 5
    assert not torch.equal(before, model.weight)
    group = names["opt"].param_groups[0]  # type: ignore[attr-defined]
    assert group["lr"] == pytest.approx(result.recommended.settings["lr"], rel=1e-5)
    assert "# dropout: 0.1" in result.yaml
    assert steppe.training.Config(**yaml.safe_load(result.yaml)).epochs == result.recommended.epochs


def test_the_record_and_the_result_do_not_depend_on_the_start(capsys: pytest.CaptureFixture[str]) -> None:
    answer(capsys, *QUICK, "--yes", "--out", "c")
    current = Record(Path("c", NAME)).current
    assert current is not None
    assert current.start["engine"] == "serial"
    lines = Path("c", NAME).read_text().splitlines()
    Path("other.jsonl").write_text("\n".join([line for line in lines if '"start"' not in line[:9]] + [""]))
    other = Record(Path("other.jsonl")).current
    assert other is not None
    assert result_of(other).sentences == result_of(current).sentences


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("engine", ["local", "ray"])
def test_every_engine_trains_the_same_trials(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    if engine == "ray" and find_spec("ray") is None:
        pytest.skip("needs ray")  # an import would let it listen for other machines
    answer(capsys, *QUICK, "--yes", "--out", "serial")
    words = [w if w != "serial" else engine for w in QUICK]
    found = answer(capsys, *words, "--workers", "2", "--yes", "--out", "other")
    assert trials_of(Path("other", NAME)) == trials_of(Path("serial", NAME))
    assert not found["alone"]
    assert any("Several runs shared the machine" in text for text in found["caveats"])
