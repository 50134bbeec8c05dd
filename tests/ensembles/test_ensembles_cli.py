"""`steppe ensemble`: what it trains, prints and draws, against numbers from elsewhere."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import linregress
from scipy.stats import t as t_distribution
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, linear, relu

import steppe.ensembles.train
from steppe.cli import main
from steppe.cli.entry import load_command
from steppe.cli.options import parse
from steppe.data.corruptions import corrupted
from steppe.data.registry import load
from steppe.ensembles.strategies import SHARPNESS
from steppe.measures import Objective, fisher_traces
from steppe.training import open_run
from steppe.training.schedule import Position
from steppe.training.stopping import Stopped

SMALL = ["--model-options", '{"width": 12, "depth": 1}', "--epochs", "2", "--batch-size", "40", "--lr", "0.2"]
SMALL += ["--fraction", "0.2"]
SMALL += ["--sharpness", "fisher_trace", "--measure-rows", "5000", "--method", "sam"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to be in."""
    found, before = tmp_path_factory.mktemp("ensembles"), Path.cwd()
    os.chdir(found)
    yield found
    os.chdir(before)


def answered(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main(["ensemble", *SMALL, *words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def members(out: str) -> list[Any]:
    """Two-layer networks, spelled out."""
    found = []
    for i in range(3):
        w = load_file(f"{out}/member-{i}/checkpoint.safetensors")
        names = sorted((k for k in w if k.endswith("weight")), key=lambda k: w[k].shape[0] == 10)
        layers = [(w[k], w[k.replace("weight", "bias")]) for k in names]
        found.append(lambda x, layers=layers: linear(relu(linear(x.flatten(1), *layers[0])), *layers[1]))
    return found


def seen(inputs: torch.Tensor) -> torch.Tensor:
    train = load("digits", "data").train.inputs[:240].double() / 255
    return ((inputs.double() / 255 - train.mean()) / train.std(correction=0)).float()


def test_an_ensemble_is_trained_and_reported(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--strategy", "deep,sharpbalance", "--out", "runs/two", "--rho", "0.1"]
    words += ["--corruptions", "fog,contrast", "--severities", "2,4"]
    found = answered(capsys, *words)
    assert found["finished"]
    assert [e["strategy"] for e in found["ensembles"]] == ["deep", "sharpbalance"]
    splits = load("digits", "data")
    for each in found["ensembles"]:
        models = members(each["path"])
        scores, y = each["scores"], splits.test.targets
        said = torch.stack([m(seen(splits.test.inputs)) for m in models])
        wrong = (said.argmax(-1) != y).double().mean(1)
        assert [m["accuracy"] for m in each["members"]] == pytest.approx((1 - wrong).tolist())
        assert scores["member_accuracy"]["value"] == pytest.approx(1 - float(wrong.mean()))
        assert scores["accuracy"]["value"] == pytest.approx(float((said.mean(0).argmax(-1) == y).double().mean()))
        assert scores["nll"]["value"] == pytest.approx(float(cross_entropy(said.mean(0), y)), rel=1e-5)
        assert set(each["severities"]) == {"2", "4"}
        damaged = [corrupted(splits.test, name, 4) for name in ("fog", "contrast")]
        right = [(m(seen(d.inputs)).argmax(-1) == y).double().mean() for m in models for d in damaged]
        assert each["severities"]["4"]["member_accuracy"]["value"] == pytest.approx(float(torch.stack(right).mean()))
        mean = np.mean([each["severities"][s]["accuracy"]["value"] for s in ("2", "4")])
        assert each["corrupted"]["accuracy"]["value"] == pytest.approx(mean)
        assert each["corrupted_source"] == "remade"
    assert json.loads(Path("runs/two/ensembles.json").read_text()) == found
    said = found["ensembles"][1]["matrices"]["disagreement"]
    assert np.array(said).shape == (3, 3)
    again = answered(capsys, *words, "--strategy", "deep", "--how", "processes", "--processes", "1")
    assert again["ensembles"] == found["ensembles"][:1]  # finished: nothing was trained, and everything told again


def test_sharpness_is_a_measure_of_every_member(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(capsys, "--strategy", "deep", "--out", "runs/sharp")["ensembles"][0]
    train = load("digits", "data").train.rows(slice(240))
    means = []
    for m in found["members"]:
        model = open_run(m["run"]).model()
        traces = fisher_traces(Objective(model, cross_entropy, (seen(train.inputs), train.targets)), "rows")
        means.append(float(traces.mean()))
        assert m["sharpness"]["value"] == pytest.approx(means[-1], rel=1e-3)
    assert found["sharpness"]["value"] == pytest.approx(np.mean(means), rel=1e-3)
    assert found["sharpness"]["stderr"] == pytest.approx(np.std(means, ddof=1) / 3**0.5, rel=1e-2)


def adaptive_rise(model: nn.Module, x: torch.Tensor, y: torch.Tensor, radius: float) -> float:
    """Plain projected ascent of the loss at w + |w| g over the ball ||g|| <= radius."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    g = {name: torch.zeros_like(w) for name, w in weights.items()}
    losses = []
    for step in range(150):
        moved = {name: (w + w.abs() * g[name]).requires_grad_() for name, w in weights.items()}
        loss = cross_entropy(functional_call(model, moved, (x,)), y)
        losses.append(loss.item())
        grads = dict(zip(moved, torch.autograd.grad(loss, [*moved.values()]), strict=True))
        slope = {name: weights[name].abs() * grads[name] for name in g}
        length = sum(float(s.square().sum()) for s in slope.values()) ** 0.5
        g = {name: g[name] + radius * 0.97**step * slope[name] / length for name in g}
        size = sum(float(v.square().sum()) for v in g.values()) ** 0.5
        g = {name: v * min(1.0, radius / size) for name, v in g.items()}
    return max(losses) - losses[0]


@pytest.mark.slow
def test_the_default_sharpness_is_the_mean_over_batches_of_five_rows(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Batches of rows in their stored order, each with its own worst case."""
    words = ["--strategy", "deep", "--members", "2", "--fraction", "0.02", "--batch-size", "8"]
    assert main(["ensemble", *SMALL, *words, "--out", "runs/five", "--sharpness", SHARPNESS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["ensembles"][0]
    for m in found["members"]:
        run = open_run(m["run"])
        train, model = run.data().train, run.model()
        assert len(train) == 24
        x = run.task.standard(train.inputs)
        parts = [(x[i : i + 5], train.targets[i : i + 5]) for i in range(0, 24, 5)]
        rises = [adaptive_rise(model, *part, radius=0.5) for part in parts]
        assert m["sharpness"]["value"] == pytest.approx(np.average(rises, weights=[5, 5, 5, 5, 4]), rel=0.02)
        assert m["sharpness"]["n"] == 5


def test_tables_are_printed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["ensemble", *SMALL, "--strategy", "deep", "--out", "runs/sharp"]) == 0
    shown = capsys.readouterr()
    assert not shown.err
    head, *_ = shown.out.splitlines()
    assert head.split()[:7] == ["ensemble", "members", "%", "ensemble", "%", "EIR", "DER"]
    assert "runs/sharp/deep/member-2" in shown.out
    values = re.findall(r"([\d.]+) ± ([\d.]+)(?![\de])", shown.out)
    assert values
    assert all(len(x.partition(".")[2]) == len(error.partition(".")[2]) for x, error in values)  # the same decimals


@pytest.mark.slow
def test_radii_make_a_plot_with_a_slope(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--strategy", "deep+sam", "--radii", "0.01,0.1,0.5", "--out", "runs/radii"]
    words += ["--corruptions", "contrast", "--severities", "4"]
    found = answered(capsys, *words)
    assert [e["rho"] for e in found["ensembles"]] == [0.01, 0.1, 0.5]
    x = [e["sharpness"]["value"] for e in found["ensembles"]]
    for scores, slopes in (("scores", "slopes"), ("corrupted", "corrupted_slopes")):
        y = [e[scores]["der"]["value"] for e in found["ensembles"]]
        known, fitted = linregress(np.log(x), np.log(y)), found[slopes]["deep+sam"]
        assert fitted["value"] == pytest.approx(known.slope)
        assert fitted["stderr"] == pytest.approx(known.stderr)
        width = (fitted["high"] - fitted["low"]) / 2
        assert width == pytest.approx(t_distribution.ppf(0.975, 1) * known.stderr)  # three points
    assert found["slopes"] != found["corrupted_slopes"]
    assert main(["ensemble", *SMALL, *words]) == 0
    shown = capsys.readouterr().out
    assert "deep+sam: log der on test rows over log sharpness has slope" in shown
    assert "deep+sam: log der on corrupted test rows over log sharpness has slope" in shown
    page = Path(found["plot"]).read_text()
    assert "<title>Sharpness and diversity of the ensembles in runs/radii</title>" in page
    assert not re.search(r'<(script|link)[^>]+(src|href)="http', page)  # opens without a network
    assert "slope" in page


@pytest.mark.slow
def test_repeated_ensembles_are_averaged(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Means and standard errors over ensembles, against numpy over the ensembles one by one."""
    words = ["--strategy", "deep,deep+sam", "--members", "2", "--validation", "0.2", "--corruptions", "fog,contrast"]
    words += ["--severities", "2,4", "--out", "runs/repeated"]
    found = answered(capsys, *words, "--repeats", "3", "--seeds", "13,17,27,113,117,127")
    assert [[m["seed"] for m in e["members"]] for e in found["ensembles"]] == [[13, 17], [27, 113], [117, 127]] * 2
    for number, mean in enumerate(found["means"]):
        own = found["ensembles"][3 * number : 3 * number + 3]
        assert (mean["strategy"], mean["rho"]) == [("deep", None), ("deep+sam", 0.2)][number]
        for part in ("scores", "validation", "corrupted"):
            for name, score in mean[part].items():
                values = [e[part][name]["value"] for e in own]
                assert score["value"] == pytest.approx(np.mean(values)), (part, name)
                assert score["stderr"] == pytest.approx(np.std(values, ddof=1) / 3**0.5, abs=1e-12), (part, name)
        assert mean["sharpness"]["value"] == pytest.approx(np.mean([e["sharpness"]["value"] for e in own]))
        assert mean["severities"]["4"]["der"]["value"] == pytest.approx(
            np.mean([e["severities"]["4"]["der"]["value"] for e in own])
        )
    run = open_run("runs/repeated/deep,repeat=2/member-1")
    assert run.config.seed == 113
    splits, models = run.data(), [open_run(f"runs/repeated/deep,repeat=2/member-{i}").model() for i in range(2)]
    assert splits.validation is not None
    with torch.no_grad():
        logits = torch.stack([m(run.task.standard(splits.validation.inputs)) for m in models]).mean(0)
        damaged = [corrupted(splits.test, name, s) for name in ("fog", "contrast") for s in (2, 4)]
        guesses = torch.stack([torch.cat([m(run.task.standard(d.inputs)).argmax(-1) for d in damaged]) for m in models])
    right = float((logits.argmax(-1) == splits.validation.targets).double().mean())
    assert found["ensembles"][1]["validation"]["accuracy"]["value"] == pytest.approx(right)
    wrong = (guesses != splits.test.targets.repeat(4)).double().mean()
    ratio = float((guesses[0] != guesses[1]).double().mean() / wrong)
    assert found["ensembles"][1]["corrupted"]["der"]["value"] == pytest.approx(ratio)
    capsys.readouterr()
    assert main(["ensemble", *SMALL, *words, "--repeats", "3", "--seeds", "13,17,27,113,117,127"]) == 0
    shown = capsys.readouterr().out
    assert "over 3 ensembles each" in shown
    assert len(re.findall(r"^deep\+sam +validation ", shown, re.M)) == 1
    assert len(re.findall(r"^deep\+sam +all severities ", shown, re.M)) == 1


def test_repeats_without_seeds_have_seeds_of_their_own(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--strategy", "deep", "--members", "2", "--repeats", "2", "--seed", "5", "--dry-run", "--out", "runs/dry"]
    rows = answered(capsys, *words)["members"]
    assert [r["seed"] for r in rows] == [5000, 5001, 6000, 6001]
    assert [r["out"] for r in rows[1:3]] == ["runs/dry/deep/member-1", "runs/dry/deep,repeat=2/member-0"]


def test_a_dry_run_writes_nothing(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(place.rglob("*"))
    found = answered(capsys, "--strategy", "sam+,sharpbalance", "--dry-run", "--epochs", "6", "--exchange-every", "2")
    assert sorted(place.rglob("*")) == before
    rows = found["members"]
    assert [r["rho"] for r in rows] == [0.05, 0.1, 0.2, 0.2, 0.2, 0.2]  # appendix F.4, and Table 1
    assert rows[3]["exchanges_after"] == [3, 5]
    assert rows[5]["out"] == "runs/digits-mlp-ensemble-0/sharpbalance/member-2"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--strategy", "sharpbalence"], "Did you mean 'sharpbalance'"),
        (["--sharpness", "lamda_max"], "Did you mean 'lambda_max'"),
        (["--members", "1"], "2 members or more"),
        (["--method", "samm"], "Did you mean 'sam'"),
        (["--strategy", "sam+", "--members", "2"], "2 members and 3 member_radii"),
        (["--exchange-at", "2"], "after epoch 2, and the run has 2"),
        (["--share", "2"], "share is 2"),
        (["--rest", "own"], "own-share"),
        (["--members", "three"], "--members"),
        (["--seeds", "1,2"], "--seeds has 2 numbers, and 1 x 3 members need 3"),
        (["--seeds", "1,2,2"], "3 different numbers"),
        (["--repeats", "0"], "repeats is 0"),
    ],
)
def test_wrong_options_are_refused_before_training(
    place: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["ensemble", *SMALL, "--out", "runs/none", *words]) == 2
    shown = capsys.readouterr()
    assert said in shown.err
    assert not shown.out
    assert not Path("runs/none").exists()


def test_a_stop_is_reported(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        raise Stopped(Path("runs/x/member-1"), Position(3, 4), "SIGTERM")

    monkeypatch.setattr(steppe.ensembles.train, "train_ensemble", stopped)
    assert not answered(capsys, "--out", "runs/x", code=75)["finished"]


def test_help_needs_no_torch_and_says_where_defaults_come_from() -> None:
    page = parse(load_command("ensemble"), ["--help"])
    assert isinstance(page, str)
    assert "--exchange-at" in page
    assert SHARPNESS in page.replace("\n", "").replace(" ", "")


def test_processes_of_torchrun_are_refused(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They would write the same files."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["ensemble", *SMALL]) == 2
    err = capsys.readouterr().err
    assert "torchrun started 2 processes of `steppe ensemble`" in err
    assert "without torchrun, with --how processes --processes 2" in err
