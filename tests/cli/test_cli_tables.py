"""methods, models, doctor, data: what they list is what there is."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import steppe
from steppe._util.extras import EXTRAS
from steppe.cli import main
from steppe.cli.doctor import NEEDED
from steppe.cli.output import Output, print_output, table, to_json
from steppe.data.catalogue import DATASETS, downloads
from steppe.data.registry import OWN
from steppe.nn import MODELS, build

ROOT = Path(__file__).parents[2]


def answered(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """What a command prints with --json: one value, and nothing else."""
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def printed(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(list(words)) == code
    return capsys.readouterr().out


def test_methods_are_listed_with_their_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in answered(capsys, "methods")}
    assert list(rows) == list(steppe.METHODS)
    for name, row in rows.items():
        given = {p["name"]: p["default"] for p in row["parameters"] if p["name"] != "triple"}
        assert steppe.method(name, **given) == steppe.method(name)
    page = printed(capsys, "methods")
    assert all(name in page for name in steppe.METHODS)
    assert "0x" not in page  # no address of an object


def test_one_method_says_where_its_defaults_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    page = printed(capsys, "methods", "agnostic-sam")
    assert "Nguyen et al. 2024" in page
    assert "section 3.3" in page  # of share
    rho = {name: answered(capsys, "methods", name)["parameters"][0] for name in ("trace-sam", "frob-sam")}
    assert rho["trace-sam"] == {
        "name": "rho",
        "default": 0.01,
        "source": "The radius and the number of draws per step. Defaults: section 4.",
    }
    assert "released script" in rho["frob-sam"]["source"]  # the class has another default and another source
    strength = answered(capsys, "methods", "agnostic-sam-simple")["parameters"][1]
    assert "section 4.1" in strength["source"]  # a default that is the class's has the class's source
    assert main(["methods", "samm"]) == 2
    assert "Did you mean 'sam'" in capsys.readouterr().err


def test_measures_are_listed_as_they_are_registered(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether their kinds and costs are true is a law: tests/measures/test_measures_laws.py."""
    rows = {row["name"]: row for row in answered(capsys, "measures")}
    assert list(rows) == list(steppe.MEASURES)
    for name, row in rows.items():
        one = steppe.MEASURES[name]
        assert (row["kind"], row["cost"], row["paper"]) == (one.kind, one.cost, one.paper)
        assert row["is"], name
        assert row["class"].split(" of ")[0] == type(one()).__name__
    page = printed(capsys, "measures")
    assert all(name in page for name in steppe.MEASURES)
    assert "0x" not in page


def test_one_measure_in_detail(capsys: pytest.CaptureFixture[str]) -> None:
    row = answered(capsys, "measures", "adaptive_worst_linf_normalised@0.01")
    assert row["class"] == "PerBatch of OnNormalisedLogits of WorstCase"
    options = {option["name"]: option["default"] for option in row["options"]}
    assert (options["rho"], options["steps"]) == (0.01, 20)
    assert row["paper"] == "Andriushchenko et al. 2023"
    page = printed(capsys, "measures", "relative_flatness")
    assert "kind of estimate: plug-in" in page
    assert "Petzka et al. 2021" in page
    assert main(["measures", "tracee"]) == 2
    assert "Did you mean 'trace'" in capsys.readouterr().err


def test_models_are_listed_with_their_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["name"]: row for row in answered(capsys, "models")}
    assert list(rows) == list(MODELS)
    assert rows["resnet18"]["parameters"] == 11_173_962  # the width-64 CIFAR ResNet-18 of the literature
    small = build("mlp", (3, 32, 32), 10)
    assert rows["mlp"]["parameters"] == sum(p.numel() for p in small.parameters())
    one = answered(capsys, "models", "mlp")
    assert one == rows["mlp"]
    assert "resnet18" in printed(capsys, "models", "resnet18")
    assert main(["models", "restnet18"]) == 2
    assert "Did you mean 'resnet18'" in capsys.readouterr().err


def test_the_doctor_sees_what_is_here(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    import torch

    (tmp_path / "CIFAR-10-C").mkdir()
    found = answered(capsys, "doctor", "--data-root", str(tmp_path))
    assert found["versions"]["torch"].startswith(torch.__version__.split("+")[0])
    assert found["versions"]["steppe"] == steppe.__version__
    assert set(found["versions"]) == {"python", "steppe", *NEEDED, *EXTRAS}
    assert found["devices"][0]["name"] == "cpu"
    assert [d["name"] for d in found["devices"][1:]] == [f"cuda:{k}" for k in range(torch.cuda.device_count())]
    assert found["threads"] == torch.get_num_threads()
    assert found["data"] == [{"name": "cifar10-c", "found": str(tmp_path / "CIFAR-10-C")}]
    assert str(tmp_path) in printed(capsys, "doctor", "--data-root", str(tmp_path))


def test_the_doctor_names_what_is_missing(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib import metadata

    real = metadata.version

    def version(name: str) -> str:
        if name in ("ray", "scipy"):
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "version", version)
    page = printed(capsys, "doctor", code=1)  # something that steppe needs is missing
    assert re.search(r"ray +missing +`steppe study run --engine ray`: pip install 'steppe\[ray\]'", page)
    assert re.search(r"scipy +missing +steppe needs it: pip install scipy", page)
    missing = answered(capsys, "doctor", code=1)["missing"]
    assert missing.keys() - EXTRAS.keys() == {"scipy"}
    assert "ray" in missing


def test_the_doctor_checks_every_dependency() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert [re.split(r"[\[>=]", line)[0] for line in project["dependencies"]] == list(NEEDED)


def test_data_sets_are_those_that_can_be_loaded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for name in [*(f"data_batch_{k}.bin" for k in range(1, 6)), "test_batch.bin"]:
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(b"")
    rows = {row["name"]: row for row in answered(capsys, "data", "list", "--data-root", str(tmp_path))}
    assert list(rows) == list(dict.fromkeys([*DATASETS, *downloads(), *OWN]))
    assert rows["cifar10"]["found"] == str(tmp_path / "cifar-10-batches-bin")
    assert rows["mnist"]["found"] is None
    assert "170 MB" in printed(capsys, "data", "list")


def test_data_is_checked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    good, bad = tmp_path / "good.npz", tmp_path / "bad.npz"
    x, y = np.zeros((6, 3), np.float32), np.arange(6) % 2
    np.savez(good, x_train=x, y_train=y, x_test=x, y_test=y)
    bad.write_bytes(good.read_bytes()[:-40])
    report = answered(capsys, "data", "check", str(good))[0]
    assert report["ok"]
    assert report["found"][0]["parts"][0]["rows"] == 6
    both = answered(capsys, "data", "check", str(good), str(bad), code=1)
    assert [r["ok"] for r in both] == [True, False]
    assert "PROBLEM" in printed(capsys, "data", "check", str(bad), str(tmp_path / "none"), code=1)


def test_data_is_fetched_from_a_mirror_and_a_wrong_file_is_not_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    mirror, root = tmp_path / "mirror", tmp_path / "data"
    mirror.mkdir()
    for file in DATASETS["mnist"].files:
        (mirror / file.name).write_bytes(b"something else")
    assert main(["data", "get", "mnist", "--data-root", str(root), "--mirror", str(mirror)]) == 1
    told = capsys.readouterr()
    assert told.err.startswith("steppe data get: ")
    assert not told.out
    assert not [p for p in root.rglob("*ubyte*") if p.suffix != ".part"]


def test_json_has_no_numbers_that_json_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    print_output(
        Output({"a": float("nan"), "b": (1, float("inf")), "c": Path("x"), "d": None, "e": True}), as_json=True
    )
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1, None], "c": "x", "d": None, "e": True}
    assert json.loads(to_json({1: {2.5}})) == {"1": [2.5]}


def test_tables_are_not_cut_in_a_pipe_and_names_are_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    shown = table(("run", "value"), [("[bold]" + "x" * 100, 1.5)], right=("value",))
    print_output(Output(None, [shown, "[red]text"]), as_json=False)
    out = capsys.readouterr().out
    assert "[bold]" + "x" * 100 in out
    assert "[red]text" in out


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m steppe data list | true; echo ${{PIPESTATUS[0]}}"  # a command without torch
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
    assert not done.stderr


def test_of_several_processes_the_first_one_speaks(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert printed(capsys, "data", "list") == ""
    monkeypatch.setenv("RANK", "0")
    assert "digits" in printed(capsys, "data", "list")
