"""train, measure and landscape from the command line: on small runs, with oracles that share no code with them."""

from __future__ import annotations

import csv
import json
import os
import signal
from collections.abc import Callable, Iterator
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

import steppe.measures.run
import steppe.training
from steppe.cli import main
from steppe.measures import Estimate
from steppe.measures import Path as Way
from steppe.measures.run import DEFAULT
from steppe.training.schedule import Position
from steppe.training.stopping import Stopped

SMALL = ["--data", "digits", "--model", "mlp", "--model-options", '{"width": 12, "depth": 2}', "--epochs", "2"]
SMALL += ["--lr", "0.2", "--batch-size", "50"]
AS_CHECKPOINT = ["--model", "mlp", "--model-options", '{"width": 12, "depth": 2}', "--data", "digits"]
AS_CHECKPOINT += ["--normalise", "digits"]
MLP = ["--model", "mlp", "--data", "digits", "--normalise", "digits"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two small runs, trained by the command; tests are in their folder."""
    place, before = tmp_path_factory.mktemp("runs"), Path.cwd()
    os.chdir(place)
    try:
        for seed, method in enumerate(("sam", "none")):
            assert main(["train", *SMALL, "--method", method, "--seed", str(seed), "--out", f"runs/{method}"]) == 0
        yield place
    finally:
        os.chdir(before)


def answered(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def told(capsys: pytest.CaptureFixture[str], *words: str, code: int) -> str:
    capsys.readouterr()
    assert main(list(words)) == code
    said = capsys.readouterr()
    assert not said.out
    assert "Traceback" not in said.err
    return said.err


def rows(train: bool) -> tuple[Tensor, Tensor]:
    """The digits as the models see them, from scikit-learn, with numpy: grey levels of training rows made standard."""
    data = load_digits()
    levels = np.round(data.images * 255 / 16) / 255
    order = torch.randperm(len(levels), generator=torch.Generator().manual_seed(0)).numpy()
    first = levels[order[:1200]]
    seen = (levels - first.mean()) / first.std()
    part = order[:1200] if train else order[1200:]
    return torch.tensor(seen[part]).flatten(1).float(), torch.tensor(data.target[part])


def loss_of(weights: dict[str, Tensor], train: bool = True) -> float:
    return float(loss_at(weights, train).detach())


def loss_at(weights: dict[str, Tensor], train: bool = True) -> Tensor:
    """The cross-entropy of a perceptron with two hidden layers, spelled out."""
    x, y = rows(train)
    layers = [(weights[k], weights[k.replace("weight", "bias")]) for k in weights if k.endswith("weight")]
    *hidden, last = sorted(layers, key=lambda p: (p[0].shape[1] != 64, p[0].shape[0] == 10))
    for w, b in hidden:
        x = relu(linear(x, w, b))
    return cross_entropy(linear(x, *last), y)


def weights(run: str) -> dict[str, Tensor]:
    return load_file(f"runs/{run}/checkpoint.safetensors")


def test_a_run_is_trained_and_its_folder_tells_of_it(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = yaml.safe_load((runs / "runs/sam/run.yaml").read_text())
    assert said["config"]["method"] == "sam"
    assert said["config"]["model_options"] == {"width": 12, "depth": 2}
    again = answered(capsys, "train", *SMALL, "--method", "sam", "--seed", "0", "--out", "runs/sam")
    records = [json.loads(line) for line in (runs / "runs/sam/metrics.jsonl").read_text().splitlines()]
    assert again == {"out": "runs/sam", "finished": True, "epochs": 2, "last": records[-1]}
    assert again["last"]["test_loss"] == pytest.approx(loss_of(weights("sam"), train=False), rel=1e-5)


def test_the_result_is_printed_in_one_line(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["train", "--config", "runs/sam/run.yaml"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("runs/sam: 2 epochs, train loss ")
    assert said.out.count("\n") == 1
    assert not said.err


def test_lines_are_printed_on_request(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["train", *SMALL, "--progress", "--out", "runs.lines/a"]) == 0
    assert capsys.readouterr().err.count("epoch") == 2


def test_a_dry_run_tells_everything_and_writes_nothing(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("some.yaml").write_text("method: looksam\nlr: 0.3\nepochs: 7\n")
    before = sorted(Path().rglob("*"))
    words = ["train", "--config", "some.yaml", *SMALL[:6], "--epochs", "3", "--batch-size", "100", "--dry-run"]
    plan = answered(capsys, *words)
    assert sorted(Path().rglob("*")) == before
    config = plan["config"]
    assert config["lr"] == {"value": 0.3, "from": "some.yaml"}
    assert config["epochs"] == {"value": 3, "from": "flag"}
    assert config["momentum"] == {"value": 0.9, "from": "default"}
    assert config["rho"] == {"value": 0.05, "from": "looksam's own default"}
    assert plan["parameters"] == 64 * 12 + 12 + 12 * 12 + 12 + 12 * 10 + 10
    assert plan["rows"] == {"train": 1200, "test": 597}
    assert (plan["steps"], plan["steps_per_epoch"]) == (36, 12)
    assert plan["passes_per_step"] == "1; every 5 steps 2"
    assert all(name.startswith("runs/digits-mlp-looksam-0/") for name in plan["would_write"])
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "nothing was trained or written" in shown
    assert "some.yaml" in shown


def test_a_dry_run_writes_down_what_a_run_writes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = answered(capsys, "train", "--config", "runs/sam/run.yaml", "--dry-run")
    assert plan["resumes_from"] == "its end"
    written = {p for pattern in plan["would_write"] for p in Path().glob(pattern)}
    assert written == {p for p in Path("runs/sam").iterdir() if p.name != "run.lock"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--method", "samm"], "no method 'samm'. Did you mean 'sam'"),
        (["--method-options.nn", "2"], "no option of sam 'nn'"),
        (["--method", "none", "--rho", "0.1"], "--rho is 0.1, and method none, the base optimizer alone, has no rho"),
        (["--data", "digist"], "Did you mean 'digits'"),
        (["--data", "digits_good.npz"], "no data set 'digits_good.npz': for your own, write npz:digits_good.npz"),
        (["--data", "."], "no data set '.': for your own, write folder:."),
        (["--model", "mymodels.py:tiny"], "train: a model of your own is written package.module:factory, and "),
        (["--model", "mymodels.py:tiny"], "'mymodels.py:tiny' is not of that form: write mymodels:tiny\n"),
        (["--model", "models/mine.py:tiny"], "write models.mine:tiny\n"),
        (["--momentun", "0.9"], "Did you mean '--momentum', '--augment' or '--model'? There are 62.\n"),
        (["--model", "mpl"], "Did you mean 'mlp'"),
        (["--model-options.widht", "2"], "Did you mean 'width'"),
        (["--augment", "crpo"], "Did you mean 'crop'"),
        (["--corruptions", "fgo"], "Did you mean 'fog'"),
        (["--measures", "tarce"], "Did you mean 'trace'"),
        (["--loggers", "tensorbord"], "Did you mean 'tensorboard'"),
        (["--device", "cup"], "Did you mean 'cpu'"),
        (["--device", "cuda:99"], "no device 'cuda:99'"),
    ],
)
def test_unknown_names_are_refused_before_anything_is_written(
    runs: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in told(capsys, "train", *words, "--out", "runs.none", code=2)
    assert not Path("runs.none").exists()


def test_failures_are_printed_in_one_sentence(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "CIFAR-10 is not under" in told(capsys, "train", "--data", "cifar10", "--out", "runs.bad/a", code=1)
    changed = told(capsys, "train", "--config", "runs/sam/run.yaml", "--lr", "0.7", code=1)
    assert "lr was 0.2 and is now 0.7" in changed
    diverged = told(capsys, "train", *SMALL, "--lr", "1e30", "--out", "runs.bad/b", code=1)
    assert "finite" in diverged
    assert "needs images" in told(capsys, "train", *SMALL[:2], "--model", "vgg19", "--out", "runs.bad/c", code=1)


def test_tracebacks_are_shown_on_request(runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    words = ["train", "--data", "npz:none.npz", "--out", "runs.bad/d"]
    assert main([*words, "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err
    assert main(words) == 1
    assert "Traceback" not in capsys.readouterr().err
    monkeypatch.setenv("STEPPE_DEBUG", "1")
    assert main(words) == 1
    assert "Traceback" in capsys.readouterr().err
    assert main(["measure", "none.pt", "--debug"]) == 1  # also where the command goes on after an error
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"), [(KeyboardInterrupt(), 130), (ZeroDivisionError("x"), 1), (KeyError("k"), 1)]
)
def test_whatever_happens_is_an_exit_code(
    runs: Path, error: BaseException, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def broken(*_: Any) -> None:
        raise error

    monkeypatch.setattr(steppe.training.entry, "train_checked", broken)
    told(capsys, "train", "--out", "runs.bad/e", code=code)


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)])
def test_a_stopped_run_prints_how_to_resume(
    runs: Path, sent: signal.Signals, code: int, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    def stopped(*_: Any) -> None:
        raise Stopped(Path("runs/x"), Position(3, 4), sent.name)

    monkeypatch.setattr(steppe.training.entry, "train_checked", stopped)
    assert "rerun the command to resume in runs/x" in told(capsys, "train", "--out", "runs/x", code=code)
    assert answered(capsys, "train", "--out", "runs/x", code=code) == {"out": "runs/x", "finished": False}


def test_runs_are_measured(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "measure", "runs/sam", "runs/none", "--measures", "loss,grad_norm", "--rows", "5000")
    assert not found["failures"]
    rows_ = {(r["run"], r["measure"]): r for r in found["results"]}
    assert set(rows_) == {(f"runs/{r}", m) for r in ("sam", "none") for m in ("loss", "grad_norm")}
    for run in ("sam", "none"):
        own = {k: t.requires_grad_() for k, t in weights(run).items()}
        loss = loss_at(own)
        grads = torch.autograd.grad(loss, list(own.values()))
        norm = float(torch.cat([g.flatten() for g in grads]).norm())
        assert rows_[f"runs/{run}", "loss"]["value"] == pytest.approx(loss.item(), rel=1e-5)
        assert rows_[f"runs/{run}", "grad_norm"]["value"] == pytest.approx(norm, rel=1e-4)
        assert rows_[f"runs/{run}", "loss"]["kind"] == "exact"
    assert rows_["runs/sam", "grad_norm"]["cost"]["gradients"] == 1


def test_a_checkpoint_is_measured_as_its_run_is(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"state_dict": {f"module.{k}": v for k, v in weights("sam").items()}}, "weights.pth")
    words = ["--measures", "loss,lambda_max,worst_linf@0.002", "--rows", "200", "--batch", "50", "--split", "test"]
    files = ["runs/sam/checkpoint.safetensors", "weights.pth", "runs/sam"]
    found = answered(capsys, "measure", *files, *words, *AS_CHECKPOINT)["results"]
    values = [[r["value"] for r in found if r["run"] == file] for file in files]
    assert values[0] == values[1] == values[2]
    assert [r["n"] for r in found if r["measure"] == "worst_linf@0.002"] == [4, 4, 4]  # batches of 50 rows
    whole = answered(capsys, "measure", "weights.pth", *AS_CHECKPOINT, "--measures", "loss", "--split", "test")
    assert whole["results"][0]["value"] == pytest.approx(loss_of(weights("sam"), train=False), rel=1e-5)


def test_an_average_of_the_weights_is_measured_on_request(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "--ema", "0.9", "--out", "runs.ema"]) == 0
    average = steppe.training.open_run("runs.ema").weights("ema")
    words = ["measure", "runs.ema", "--measures", "loss", "--rows", "5000"]
    found = [answered(capsys, *words, *more)["results"][0]["value"] for more in ([], ["--weights", "ema"])]
    last = load_file("runs.ema/checkpoint.safetensors")
    assert found == [pytest.approx(loss_of(w), rel=1e-5) for w in (last, average)]
    assert abs(found[0] - found[1]) > 1e-3


def test_numbers_are_shown_and_written(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["measure", "runs/sam", "--measures", "loss,avg_l2@0.1", "--rows", "100", "--batch", "25", "--out"]
    capsys.readouterr()
    assert main([*words, "kept/results.json"]) == 0
    shown = capsys.readouterr().out
    assert all(head in shown for head in ("value", "error", "kind", "cost", "time"))
    kept = json.loads(Path("kept/results.json").read_text())["results"]
    assert f"{kept[1]['value']:.5g}" in shown
    assert f"{kept[1]['stderr']:.2g}" in shown
    assert main([*words, "kept/results.csv"]) == 0
    table = list(csv.DictReader(Path("kept/results.csv").read_text().splitlines()))
    assert [float(row["value"]) for row in table] == [row["value"] for row in kept]
    assert table[0]["run"] == "runs/sam"
    assert "--out takes a file" in told(capsys, *words, "results.txt", code=2)


def test_numbers_of_others_are_kept_where_one_fails(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("broken.pt").write_bytes(b"hello")
    what = ["runs/sam", "broken.pt", "nowhere", "runs/none"]
    capsys.readouterr()
    assert main(["measure", *what, *AS_CHECKPOINT, "--measures", "loss", "--rows", "50", "--out", "kept.json"]) == 1
    said = capsys.readouterr()
    assert "runs/sam" in said.out
    assert "runs/none" in said.out
    assert "broken.pt is no checkpoint" in said.err
    assert "no run or checkpoint 'nowhere'" in said.err
    kept = json.loads(Path("kept.json").read_text())
    assert [r["run"] for r in kept["results"]] == ["runs/sam", "runs/none"]
    assert {f["run"] for f in kept["failures"]} == {"broken.pt", "nowhere"}


def test_a_failed_measure_is_printed_with_the_others(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "measure", "runs/sam", "--measures", "log_determinant,loss", "--rows", "50", code=1)
    assert [r["measure"] for r in found["results"]] == ["loss"]
    assert found["failures"][0]["measure"] == "log_determinant"


@pytest.mark.parametrize("where", ["between", "within", "midway"])
def test_ctrl_c_keeps_what_is_there(
    runs: Path, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    real: Callable[..., Any] = steppe.measures.run.measure_objective
    calls: list[Any] = []

    def measured(objective: Any, plan: Any, seed: int, on: Any = None) -> Any:
        calls.append(plan)
        if len(calls) == 2 and where == "between":
            raise KeyboardInterrupt
        if len(calls) == 2:
            plan = {**plan, "stops": Stopping()}
        return real(objective, plan, seed)

    class Stopping:
        def running(self, objective: Any, seed: int = 0) -> Any:
            if where == "midway":
                yield Estimate(1.0, 0.5, 3, "unbiased")
            raise KeyboardInterrupt

    monkeypatch.setattr(steppe.measures.run, "measure_objective", measured)
    what = ["runs/sam", "runs/none", "runs/sam/checkpoint.safetensors"]
    found = answered(capsys, "measure", *what, *AS_CHECKPOINT, "--measures", "loss", "--rows", "50", code=130)
    assert len(calls) == 2  # the third was not begun
    measured_ = [(r["run"], r["measure"], r["complete"]) for r in found["results"]]
    second = [] if where == "between" else [("runs/none", "loss", True)]
    part = [("runs/none", "stops", False)] if where == "midway" else []
    assert measured_ == [("runs/sam", "loss", True), *second, *part]


def test_what_is_measured_by_default_is_what_the_library_does(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = answered(capsys, "measure", "runs/sam", "--dry-run")
    assert tuple(plan["measures"]) == DEFAULT
    assert plan["runs"] == [{"run": "runs/sam", "data": "digits", "model": "mlp", "method": "sam"}]
    partly = answered(capsys, "measure", "runs/sam", "nowhere", "--dry-run", code=1)
    assert [f["run"] for f in partly["failures"]] == ["nowhere"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["runs/sam/checkpoint.safetensors"], 2, "give --model and --data and --normalise"),
        (["runs/sam/checkpoint.safetensors", "--model", "mlp"], 2, "give --data and --normalise"),
        (["runs/sam/checkpoint.safetensors", *MLP, "--model", "mpl"], 2, "Did you mean 'mlp'"),
        (["runs/sam", "--measures", "tarce"], 2, "Did you mean 'trace'"),
        (["runs/sam", "--measures", "worst_linf@x"], 2, "has to be a number"),
        (["runs/sam", "--device", "cuda:99"], 2, "no device"),
        (["runs/sam", "--split", "tset"], 2, "Did you mean 'test'"),
        (["runs/sam", "--weights", "ema"], 1, "no kind of weights 'ema'"),
        (["runs"], 1, "is no run's folder"),
        (["runs/sam/checkpoint.safetensors", *MLP], 1, "does not fit the model"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    runs: Path, words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in told(capsys, "measure", *words, code=code)


def test_the_line_between_two_runs_ends_at_their_losses(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["runs/sam", "runs/none", "--rows", "5000", "--points", "5"]
    found = answered(capsys, "landscape", *words, "--out", "made/between.json")
    kept = json.loads(Path("made/between.json").read_text())
    assert found["losses"] == kept["losses"]
    a, b = weights("sam"), weights("none")
    for t, loss in zip((0, 0.25, 0.5, 0.75, 1), found["losses"], strict=True):
        assert loss == pytest.approx(loss_of({k: (1 - t) * a[k] + t * b[k] for k in a}), rel=1e-5)
    line = np.linspace(found["losses"][0], found["losses"][-1], 5)
    assert found["barrier"] == pytest.approx(max(np.array(found["losses"]) - line))
    capsys.readouterr()
    assert main(["landscape", *words, "--out", "between.npz"]) == 0
    assert "Barrier: " in capsys.readouterr().out
    assert Way.load("between.npz").losses.tolist() == found["losses"]


def test_the_loss_around_a_run_is_drawn(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plane = answered(capsys, "landscape", "runs/sam", "--rows", "5000", "--points", "3", "--out", "plane.html")
    assert np.shape(plane["losses"]) == (3, 3)
    assert plane["losses"][1][1] == pytest.approx(loss_of(weights("sam")), rel=1e-5)
    page = Path("plane.html").read_text()
    assert "<title>Loss in a plane around runs/sam</title>" in page
    radius, middle = plane["notes"]["radius"], plane["losses"][1][1]
    assert plane["axes"][0] == [-radius, 0.0, radius]
    ends = [plane["losses"][i][j] for i, j in ((0, 1), (2, 1), (1, 0), (1, 2))]
    assert max(ends) - middle == pytest.approx(1.0, rel=2e-3)
    assert f"radius {radius:.3g}: the loss rises by 1 at the end of an axis" in plane["caption"]
    assert "src=" not in page.split("<body>")[0]  # nothing is fetched
    words = ["runs/sam", "--axes", "1", "--points", "3", "--span", "0.5", "--seed", "4", "--out", "line.json"]
    line = answered(capsys, "landscape", *words)
    assert line["axes"] == [[-0.5, 0.0, 0.5]]
    assert line["seeds"] == [4]
    steep = answered(capsys, "landscape", *words, "--directions", "eigenvectors", "--rows", "100")
    assert "eigenvector 1" in steep["names"][0]


def test_landscapes_of_two_runs_have_one_radius(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["landscape", "runs/sam", "runs/none", "--compare", "--rows", "100", "--rise", "0.5", "--points", "3"]
    found = answered(capsys, *words, "--directions", "eigenvectors", "--out", "both.json")
    kept = json.loads(Path("both.json").read_text())["landscapes"]
    assert [one["run"] for one in kept] == ["runs/sam", "runs/none"]
    assert [one["losses"] for one in kept] == [one["losses"] for one in found["landscapes"]]
    assert kept[0]["axes"] == kept[1]["axes"]
    rises = []
    for one in kept:
        losses = np.array(one["losses"]) - one["losses"][1][1]
        rises.append(max(losses[0, 1], losses[2, 1], losses[1, 0], losses[1, 2]))
    assert max(rises) == pytest.approx(0.5, rel=2e-3)
    assert main([*words, "--out", "both.html"]) == 0
    assert "<title>Loss in a plane around runs/sam and runs/none</title>" in Path("both.html").read_text()


def test_a_landscape_that_is_stopped_is_written(
    runs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    from steppe.measures import Objective

    real, calls = Objective.loss, []

    def loss(self: Objective, at: Any = None) -> float:
        calls.append(at)
        if len(calls) > 4:
            raise KeyboardInterrupt
        return real(self, at)

    monkeypatch.setattr(Objective, "loss", loss)
    words = ["landscape", "runs/sam", "--axes", "1", "--span", "1", "--points", "9", "--out", "part.json"]
    found = answered(capsys, *words, code=130)
    assert not found["complete"]
    assert sum(x is not None for x in json.loads(Path("part.json").read_text())["losses"]) == 4


def test_checkpoints_of_other_models_have_no_line_between(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from steppe.nn import build

    torch.save(build("mlp", (1, 8, 8), 10, width=9, depth=2).state_dict(), "other.pt")
    assert "where the model has" in told(capsys, "landscape", "runs/sam", "other.pt", *AS_CHECKPOINT, code=1)
    assert "no run or checkpoint" in told(capsys, "landscape", "runs/sam", "nowhere", code=1)


def test_models_of_ones_own_are_found_in_the_working_folder(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("my_models.py").write_text(
        "from torch import nn\n\ndef net(outputs, width=4):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, outputs))\n"
    )
    words = ["--model", "my_models:net", "--model-options.width", "3", "--epochs", "1", "--out", "runs.own"]
    assert answered(capsys, "train", *words)["finished"]
    assert answered(capsys, "measure", "runs.own", "--model", "my_models:net", "--measures", "loss")["results"]
