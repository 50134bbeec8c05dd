"""Values that a command cannot use are refused before anything starts, by the names that its user typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from steppe.cli import main
from steppe.training import Config, train

SMALL = "--data spirals --fraction 0.1 --epochs 1 --batch-size 50 --model-options.width 8 --model-options.depth 1"
WRONG = [  # flags, and what is said
    ("--method det-sam --method-options.triple determinent", "--method-options: triple of det-sam: there is no triple"),
    (
        "--method sam --method-options.p x",
        "p of sam takes a number, 1 or more, inf included, not 'x'",
    ),
    (
        "--method sam --method-options.steps 2.5",
        "steps of sam takes a whole number, 1 or more, not 2.5",
    ),
    ("--method sam --method-options.rho true", "--method-options: rho of sam takes a number, 0 or more, and finite"),
    ("--method sam --rho .inf", "--rho is inf, and has to be a number, 0 or more, and finite"),
    ("--method sam --rho 0.1 --method-options.rho 0.2", "--rho is 0.1, and rho in --method-options is 0.2: give one"),
    ("--method looksam --method-options.k 0", "--method-options: k of looksam takes a whole number, 1 or more, not 0"),
    ("--method sam --method-options.n 2", "--method-options: there is no option of sam 'n'"),
    ("--method msam --momentum 0", "--momentum is 0: give one above 0"),
    ("--lr .nan", "--lr is nan, and has to be a number, 0 or more, and finite"),
    ("--model-options.width wide", "--model-options: width of mlp is a whole number above zero"),
    ("--model-options.widht 8", "--model-options: there is no option of mlp 'widht'. Did you mean 'width'"),
    ("--model nowhere:net", "there is no module 'nowhere'"),
    ("--model nets:nte", "in nets, there is no factory 'nte'. Did you mean 'net'"),
    ("--model nets:net --model-options.deep 3", "there is no option of nets:net 'deep'"),
    ("--measures worst_linf@x", "--measures: 'worst_linf@x' names worst_linf at radius 'x'"),
    ("--loggers nowhere:log", "there is no module 'nowhere'"),
    ("--severities 1,6", "--severities is [1, 6], and has to be a list of whole numbers, from 1 to 5"),
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("nets.py").write_text("def net(shape, outputs, width=4):\n    raise RuntimeError('made')\n")
    return tmp_path


@pytest.mark.sampled(20)
@pytest.mark.parametrize("dry", [["--dry-run"], []])
@pytest.mark.parametrize("name", ["train", "ensemble"])
@pytest.mark.parametrize(("flags", "said"), WRONG)
def test_wrong_values_are_refused_by_their_flags(
    name: str, dry: list[str], flags: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = ["--strategy", "deep+sam"] if name == "ensemble" else []
    small = [] if "--model" in flags else SMALL.split()
    assert main([name, *deep, *small, *dry, *flags.split()]) == 2
    told = capsys.readouterr()
    assert said in told.err
    assert "unexpected" not in told.err
    assert not told.out
    assert [p.name for p in Path().iterdir()] in ([["nets.py"], ["nets.py", "__pycache__"], ["__pycache__", "nets.py"]])


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ({"method_options": {"rho": True}}, "mine.yaml: method_options: rho of sam takes a number"),
        ({"method_options": {"rho": {"class_path": "evil.C"}}}, "mine.yaml: method_options: rho of sam takes a number"),
        ({"lr": -1}, "mine.yaml: lr is -1.0, and has to be a number, 0 or more"),
        ({"model_options": {"width": 2.5}}, "mine.yaml: model_options: width of mlp is a whole number above zero"),
    ],
)
def test_wrong_values_of_a_file_are_refused_by_its_keys(
    written: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("mine.yaml").write_text(yaml.safe_dump(written))
    assert main(["train", "--config", "mine.yaml", "--dry-run"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        "--method det-sam --method-options.triple determinant-released",
        "--method sam --method-options.p inf",
        "--method sam --method-options.p .inf",
        "--method agnostic-sam --method-options.share null",
        "--method asam --method-options.everywhere true",
        "--model-options.width 4",
    ],
)
def test_right_values_pass_the_dry_run_and_train(flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    held = ["--held-out", "0.3"] if "agnostic" in flags else []
    words = ["train", *SMALL.split(), *held, *flags.split(), "--out", "run"]
    assert main([*words, "--dry-run"]) == 0, capsys.readouterr().err
    assert main(words) == 0, capsys.readouterr().err


def test_a_step_that_is_not_finite_is_told_in_the_words_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL.split(), "--lr", "1e30", "--out", "run"]) == 1
    told = capsys.readouterr().err
    assert "--on-nonfinite skip" in told
    assert "another --out" in told
    assert "SharpnessAware(" not in told


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"epochs": 2.5}, "epochs is 2.5, and has to be a whole number"),
        ({"epochs": True}, "epochs is True"),
        ({"lr": "fast"}, "lr is 'fast', and has to be a number"),
        ({"optimizer": "sdg"}, "optimizer is 'sdg', and has to be one of sgd, adam, adamw"),
        ({"augment": "crop"}, "augment is 'crop', and has to be a list"),
        ({"method_options": {"k": 0}, "method": "looksam"}, "method_options: k of looksam takes"),
        ({"measures": ["tarce"]}, "measures: there is no measure 'tarce'"),
    ],
)
def test_python_is_told_the_same(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("[", r"\[")):
        train(Config(**{"out": "run", "data": "spirals", **given}))
    assert not Path("run").exists()


def test_a_start_that_fails_leaves_no_folder(capsys: pytest.CaptureFixture[str]) -> None:
    for number, flags in enumerate(
        ["--data cifar10 --data-root nowhere", "--model nets:net", "--data npz:nowhere.npz"]
    ):
        assert main(["train", *flags.split(), "--out", f"runs/{number}"]) == 1
        assert not Path(f"runs/{number}").exists(), flags
    Path("mine").mkdir()
    assert main(["train", "--data", "npz:nowhere.npz", "--out", "mine"]) == 1
    assert Path("mine").is_dir()  # it was there before


def test_a_folder_in_which_no_run_has_begun_is_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL.split(), "--out", "runs/a"]) == 0
    Path("runs/b").mkdir()
    Path("runs/b/run.lock").touch()
    capsys.readouterr()
    for dry in ([], ["--dry-run"]):
        assert main(["measure", "runs/a", "runs/b", "--measures", "loss", "--json", *dry]) == 0
        told = capsys.readouterr()
        assert "runs/b was skipped: no run has started in it" in told.err
        assert "runs/a" in told.out
    assert main(["measure", "runs/b", "--measures", "loss"]) == 1
    assert "runs/b holds no run yet" in capsys.readouterr().err


def test_a_half_written_run_yaml_is_one_clear_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL.split(), "--out", "runs/a"]) == 0
    file = Path("runs/a/run.yaml")
    whole = yaml.safe_load(file.read_text()) | {"digest": "edited"}
    capsys.readouterr()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({k: v for k, v in whole.items() if k != key}, key) for key in ("data", "task", "parameters", "steps", "starts")
    ]
    wrong += [
        (whole | {"task": {k: v for k, v in whole["task"].items() if k != key}}, f"task.{key}") for key in whole["task"]
    ]
    wrong += [(whole | {"task": 3}, "task"), (whole | {"task": whole["task"] | {"shape": "x"}}, "task.shape")]
    wrong += [(whole | {"config": whole["config"] | {"lr": "x"}}, "lr")]
    for said, key in wrong:
        file.write_text(yaml.safe_dump(said))
        for words in (["measure", "runs/a", "--measures", "loss"], ["landscape", "runs/a"], ["train", *SMALL.split()]):
            assert main([*words, *(["--out", "runs/a"] if words[0] == "train" else [])]) == 1, key
            told = capsys.readouterr()
            assert f"runs/a/run.yaml{': config:' if key == 'lr' else ' is incomplete:'} {key} is" in told.err
            assert "unexpected" not in told.err
            assert len(told.err.splitlines()) == 1
