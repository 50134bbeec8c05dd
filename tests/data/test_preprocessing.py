"""Bare checkpoints: how their inputs were normalised is declared or refused, and tables of errors have to agree."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import cross_entropy, linear, relu

from steppe.cli import main
from steppe.studies.cell import cells
from steppe.studies.engines import Serial
from steppe.studies.plan import Study
from steppe.studies.run import look, run

FILE, MODEL = "runs/a/checkpoint.safetensors", ["--model", "mlp", "--model-options", '{"width": 12, "depth": 1}']
LOSS = ["--measures", "loss", "--split", "test", "--rows", "5000", "--device", "cpu"]
BASE = {"data": "npz:plain.npz", "model": "mlp", "model_options": {"width": 12, "depth": 1}, "device": "cpu"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run on digits as bytes, and the same digits with 120 more in every pixel."""
    found, before = tmp_path_factory.mktemp("preprocessing"), Path.cwd()
    os.chdir(found)
    data = load_digits()
    x, y = np.round(data.images * 8).astype(np.uint8), data.target
    for name, images in (("plain", x), ("shifted", x + 120)):
        np.savez(f"{name}.npz", x_train=images[:1200], y_train=y[:1200], x_test=images[1200:], y_test=y[1200:])
    words = ["train", "--data", "npz:plain.npz", *MODEL, "--epochs", "4", "--lr", "0.1", "--batch-size", "50"]
    assert main([*words, "--device", "cpu", "--out", "runs/a"]) == 0
    yield found
    os.chdir(before)


def normalised(file: str, mean: float, std: float) -> tuple[Tensor, Tensor]:
    with np.load(file) as arrays:
        seen = (arrays["x_test"].astype(np.float64) / 255 - mean) / std
        return torch.tensor(seen).flatten(1).float(), torch.tensor(arrays["y_test"]).long()


def of_training(file: str) -> tuple[float, float]:
    with np.load(file) as arrays:
        return float((arrays["x_train"] / 255).mean()), float((arrays["x_train"] / 255).std())


def logits(x: Tensor) -> Tensor:
    """A perceptron with one hidden layer, spelled out."""
    w = load_file(FILE)
    names = sorted((k for k in w if k.endswith("weight")), key=lambda k: w[k].shape[0] == 10)
    (a, b), (c, d) = ((w[k], w[k.replace("weight", "bias")]) for k in names)
    return linear(relu(linear(x, a, b)), c, d)


def expected(file: str, mean: float, std: float) -> float:
    x, y = normalised(file, mean, std)
    return float(cross_entropy(logits(x), y))


def test_error() -> float:
    x, y = normalised("plain.npz", *of_training("plain.npz"))
    return float((logits(x).argmax(1) != y).double().mean())


test_error.__test__ = False  # type: ignore[attr-defined]


def measured(capsys: pytest.CaptureFixture[str], *words: str) -> float:
    capsys.readouterr()
    assert main(["measure", *words, *LOSS, "--json"]) == 0
    return float(json.loads(capsys.readouterr().out)["results"][0]["value"])


def refused(capsys: pytest.CaptureFixture[str], *words: str, code: int = 2) -> str:
    capsys.readouterr()
    assert main(list(words)) == code
    said = capsys.readouterr()
    assert not said.out
    return said.err


def test_a_shifted_data_set_keeps_its_shift(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on = [*MODEL, "--data", "npz:shifted.npz"]
    true = expected("shifted.npz", *of_training("plain.npz"))
    erased = expected("shifted.npz", *of_training("shifted.npz"))
    assert true > 2 * erased  # the shift harms
    assert measured(capsys, "runs/a", "--data", "npz:shifted.npz") == pytest.approx(true, rel=1e-4)
    assert measured(capsys, FILE, *on, "--normalise", "npz:plain.npz") == pytest.approx(true, rel=1e-4)
    mean, std = of_training("plain.npz")
    assert measured(capsys, FILE, *on, "--normalise", f"{mean}/{std}") == pytest.approx(true, rel=1e-4)
    assert measured(capsys, FILE, *on, "--normalise", "npz:shifted.npz") == pytest.approx(erased, rel=1e-4)
    assert measured(capsys, FILE, *on, "--normalise", "none") == pytest.approx(
        expected("shifted.npz", 0, 1 / 255), rel=1e-4
    )


def test_a_checkpoint_without_declaration_is_refused_with_the_choices(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [FILE, *MODEL, "--data", "npz:plain.npz"]
    for words in (["measure", *given], ["measure", *given, "--dry-run"], ["landscape", *given, "--out", "a.json"]):
        said = refused(capsys, *words)
        assert "--normalise" in said
        assert all(choice in said for choice in ("a data set", "MEANS/STDS", "none"))
    assert measured(capsys, "runs/a") > 0  # a run knows its own


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("nnone", 2, "no data set 'nnone'"),
        ("0.5,0.5/0.2", 2, "2 means and 1 standard deviations"),
        ("0.5/0", 2, "above 0"),
        ("0.5/nan", 2, "above 0"),
        ("0.5", 2, "'0.5'"),
        ("1,2,3/1,2,3", 1, "images have 1"),
        ("spirals", 1, "numbers"),
    ],
)
def test_impossible_declarations_are_refused(
    place: Path, words: str, code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["measure", FILE, *MODEL, "--data", "npz:plain.npz", *LOSS]
    assert said in refused(capsys, *given, "--normalise", words, code=code)


def test_numbers_are_not_normalised(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spirals = [*MODEL, "--data", "spirals"]
    assert main(["train", *spirals, "--epochs", "1", "--device", "cpu", "--out", "runs/spirals"]) == 0
    file = "runs/spirals/checkpoint.safetensors"
    own = measured(capsys, "runs/spirals")
    assert measured(capsys, file, *spirals, "--normalise", "none") == own
    assert measured(capsys, file, *spirals, "--normalise", "spirals") == own
    said = refused(capsys, "measure", file, *spirals, *LOSS, "--normalise", "0.5/0.5", code=1)
    assert "numbers" in said
    assert "none" in said


def test_a_run_that_is_declared_to_be_otherwise_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = measured(capsys, "runs/a")
    assert measured(capsys, "runs/a", "--normalise", "npz:plain.npz") == own
    assert "--normalise" in refused(capsys, "measure", "runs/a", *LOSS, "--normalise", "none", code=1)


def pool(out: str, error: float | None = None, **changes: Any) -> Study:
    given = {"base": BASE, "pool": FILE, "normalise": "npz:plain.npz", "measures": ["loss"], "out": out}
    if error is not None:
        Path(f"{out}.csv").write_text(f"checkpoint,test_error\n{FILE},{error}\n")
        given["errors"] = f"{out}.csv"
    given["targets"] = ["test_error"]
    return Study.of({k: v for k, v in (given | changes).items() if v is not None}, out)


def test_a_pool_of_files_declares_its_preprocessing(place: Path) -> None:
    with pytest.raises(ValueError, match=r"normalise.*a data set.*MEANS/STDS.*none"):
        cells(pool("undeclared", normalise=None))
    run(pool("declared"), Serial())
    [found] = look(pool("declared"))[1].runs
    assert found.targets["test_error"] == pytest.approx(test_error())
    mean, std = of_training("plain.npz")
    same = run(pool("numbers", normalise=f"{mean}/{std}"), Serial())
    assert same.done == 1
    [one], [other] = cells(pool("declared")), cells(pool("declared", normalise="none"))
    assert one.key != other.key  # numbers follow from it
    assert run(Study.of({"pool": "runs/a", "measures": ["loss"], "out": "folders"}, "folders"), Serial()).done == 1


def test_a_study_without_a_pool_declares_none() -> None:
    with pytest.raises(ValueError, match="normalise"):
        Study.of({"base": BASE, "normalise": "none"}, "grid")
    with pytest.raises(ValueError, match="tolerance"):
        pool("x", tolerance="little")
    with pytest.raises(ValueError, match="2 means and 1 standard deviations"):
        pool("x", normalise="1,2/1")


def test_errors_that_agree_are_kept_as_the_table_has_them(place: Path) -> None:
    said = round(test_error(), 2)
    assert said != test_error()
    assert run(pool("agree", said), Serial()).done == 1
    [found] = look(pool("agree"))[1].runs
    assert found.targets["test_error"] == said


def test_a_study_stops_where_the_table_disagrees(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = test_error() + 0.02
    with pytest.raises(
        ValueError, match=r"test_error of .* here and .* in the table of errors, with a tolerance of 0\.005"
    ):
        run(pool("disagree", said), Serial())
    [found] = look(pool("disagree", said))[1].runs
    assert (found.state, found.measures, found.targets) == ("open", {}, {})
    Path("disagree.yaml").write_text(
        yaml.safe_dump(
            {"base": BASE, "pool": FILE, "normalise": "npz:plain.npz", "errors": "disagree.csv", "measures": ["loss"]}
        )
    )
    for engine in ("local", "serial"):  # and again: nothing was kept that would hide it
        assert "in the table of errors" in refused(capsys, "study", "run", "disagree.yaml", "--engine", engine, code=1)
    assert run(pool("disagree", said, tolerance=0.03), Serial()).done == 1


def test_the_wrong_preprocessing_is_found_by_the_table(place: Path) -> None:
    with pytest.raises(ValueError, match="in the table of errors"):
        run(pool("wrong", round(test_error(), 3), normalise="none"), Serial())


def test_a_table_that_comes_later_has_to_agree_too(place: Path) -> None:
    assert run(pool("later"), Serial()).done == 1
    assert run(pool("later", round(test_error(), 3)), Serial()).done == 1
    with pytest.raises(ValueError, match="in the table of errors"):
        run(pool("later", test_error() + 0.02), Serial())
    added = pool("more", round(test_error(), 3))  # a column that comes when the cell is done
    assert run(added, Serial()).done == 1
    Path("more.csv").write_text(f"checkpoint,test_error,train_loss\n{FILE},{round(test_error(), 3)},9.0\n")
    with pytest.raises(ValueError, match=r"train_loss.* in the table of errors"):
        run(added, Serial())
