"""The core needs four packages; every other one is named with its extra by the error of what needs it."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import steppe
from steppe._util.extras import EXTRAS, INCLUDED, explained
from steppe.cli import main
from steppe.cli.entry import NO_EXTRA

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def name_of(requirement: str) -> str:
    return requirement.split(">")[0].split("[")[0]


def test_every_extra_is_one_of_pyproject_s() -> None:
    declared = {
        name_of(one): extra
        for extra, needed in PROJECT["optional-dependencies"].items()
        for one in needed
        if extra not in ("all", "dev", "docs", "bench") and not one.startswith("steppe")
    }
    assert {name: one.extra for name, one in EXTRAS.items()} == declared
    assert sorted(map(name_of, PROJECT["dependencies"])) == ["numpy", "rich", "scipy", "torch"]


def test_an_unknown_module_is_not_explained() -> None:
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'"), explained():
        import nowhere  # type: ignore[import-not-found]  # noqa: F401


def without(modules: list[str], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process that cannot import the modules."""
    blocked = f"import sys; sys.modules.update(dict.fromkeys({modules!r}))\n"
    return subprocess.run([sys.executable, "-c", blocked + code], capture_output=True, text=True, check=False)


def test_the_core_works_without_any_extra() -> None:
    code = """
import torch, steppe
model = torch.nn.Linear(3, 2)
opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1))
x, y = torch.randn(8, 3), torch.randint(2, (8,))
def closure():
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    return loss
opt.step(closure)
print(steppe.measure(model, torch.nn.functional.cross_entropy, (x, y), ["lambda_max", "trace"])["trace"].n)
try:
    steppe.training.train
except ModuleNotFoundError as error:
    print(error)
from steppe.cli import main
from steppe.cli.entry import NO_EXTRA
main(["train"])
"""
    modules = [one.module for one in EXTRAS.values() if one.module not in ("filelock", "jinja2")]  # torch needs those
    done = without(modules, code)
    assert done.returncode == 0, done.stderr
    n, training = done.stdout.splitlines()
    assert int(n) > 0
    assert "pip install 'steppe[train]'" in training
    assert "pip install 'steppe[train]'" in done.stderr


def test_a_command_names_the_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "filelock", None)
    assert main(["data", "list"]) == 1
    assert capsys.readouterr().err == (
        "steppe data list: runs, downloads and studies need filelock, which is not installed: "
        "pip install 'steppe[train]'\n"
    )


@pytest.mark.parametrize(
    ("words", "extra"), [("study run", "study"), ("landscape runs/a", "study"), ("data list", "train")]
)
def test_a_command_names_one_extra_that_is_enough(
    words: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)  # of `train`, which `study` includes
    assert main(words.split()) == 1
    assert capsys.readouterr().err.endswith(f"which is not installed: pip install 'steppe[{extra}]'\n")
    assert INCLUDED["study"] == ("train",)
    assert "steppe[train]" in PROJECT["optional-dependencies"]["study"]


def test_the_doctor_runs_without_any_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "CIFAR-10-C").mkdir()
    words = ["doctor", "--data_root", str(tmp_path), "--json"]
    assert main(words) == 0
    expected = json.loads(capsys.readouterr().out)
    for one in EXTRAS.values():
        if one.extra == "train":
            monkeypatch.setitem(sys.modules, one.module, None)
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert [found["name"] for found in expected["data"]] == ["cifar10-c"]
    assert main(["doctor", "--help"]) == 0
    assert "--data-root TEXT" in capsys.readouterr().out
    for wrong, said in {"--date-root": "Did you mean '--data-root'", "here": "takes options only"}.items():
        assert main(["doctor", wrong]) == 2
        assert said in capsys.readouterr().err
    for listing in NO_EXTRA:
        assert main([listing]) == 0


def test_parts_of_the_package_are_attributes() -> None:
    for name in ("data", "ensembles", "measures", "nn", "studies", "training"):
        assert name in dir(steppe)
        assert getattr(steppe, name).__name__ == f"steppe.{name}"
    assert not {"Context", "GradientStep", "CustomScales", "uphill"} & set(dir(steppe))
