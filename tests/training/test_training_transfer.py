"""Runs that start from weights, train some parameters slower or not at all, and store convolutions channels-last."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as f
from training_runs import assert_same_end, config, normalised, plain, small
from training_stops import crashed, stopped

from steppe.cli.entry import main
from steppe.core.process_group import Workers
from steppe.data.feed import BatchStream
from steppe.nn.registry import build
from steppe.studies.cell import key_of
from steppe.studies.grid import plain as plain_values
from steppe.training import Config, Run, train
from steppe.training.loop import Training
from steppe.training.model import channels_last, model_of
from steppe.training.problem import data_of, task_of

STILL = {"lr": 0.0, "model": "training_runs:plain", "method": "none", "epochs": 1}
HEAD = ["3.bias", "3.weight"]


def weights(seed: int = 7, outputs: int = 2, make: Any = plain) -> dict[str, Tensor]:
    torch.manual_seed(seed)
    return dict(make((2,), outputs).state_dict())


def saved(state: dict[str, Any], kind: str, folder: Path) -> Path:
    """A checkpoint as other people write them: bare, wrapped by a script and DDP, or as safetensors."""
    path = folder / f"weights.{kind}"
    if kind == "safetensors":
        save_file(state, path)
    else:
        torch.save({"epoch": 3, "state_dict": {f"module.{k}": t for k, t in state.items()}}, path)
    return path


def differing(run: Run, state: dict[str, Tensor]) -> list[str]:
    return sorted(k for k, t in run.weights().items() if k not in state or not torch.equal(t, state[k]))


# -- initial weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_run_starts_from_a_checkpoint(kind: str, tmp_path: Path) -> None:
    state = weights()
    run = train(config(tmp_path / "run", init=str(saved(state, kind, tmp_path)), **STILL))
    assert differing(run, state) == []
    assert run.about["init"]["replaced"] == []


def test_a_run_starts_from_another_run(tmp_path: Path) -> None:
    first = train(config(tmp_path / "first", model="training_runs:plain"))
    second = train(config(tmp_path / "second", init=str(tmp_path / "first"), seed=1, **STILL))
    assert differing(second, first.weights()) == []


def test_a_head_for_other_classes_is_replaced_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, fresh = saved(weights(outputs=5), "pt", tmp_path), train(config(tmp_path / "fresh", **STILL))
    settings = config(tmp_path / "run", init=str(file), **STILL)
    run = train(settings)
    assert differing(run, weights(outputs=5)) == HEAD
    assert differing(run, fresh.weights()) == sorted(set(fresh.weights()) - set(HEAD))
    assert run.about["init"]["replaced"] == HEAD
    flags = ["--data", "spirals", "--model", "training_runs:plain", "--device", "cpu", "--out", str(tmp_path / "c")]
    assert main(["train", "--dry-run", "--init", str(file), *flags]) == 0
    assert "new, with random weights: 3.bias, 3.weight" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (weights(make=normalised), "unexpected"),
        ({k: t for k, t in weights().items() if k != "1.weight"}, "missing: 1.weight"),
        (weights() | {"1.weight": torch.zeros(8, 3)}, r"1.weight \(8, 3\) where the model has \(8, 2\)"),
        (weights(outputs=5) | {"1.weight": torch.zeros(8, 3)}, "of another shape: 1.weight .*, 3.weight"),
    ],
    ids=["another-model", "missing", "shape", "shape-and-head"],
)
def test_other_mismatches_raise_and_leave_nothing(state: dict[str, Tensor], says: str, tmp_path: Path) -> None:
    settings = config(tmp_path / "run", init=str(saved(state, "safetensors", tmp_path)), **STILL)
    with pytest.raises(ValueError, match=says):
        train(settings)
    assert not (tmp_path / "run").exists()


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no checkpoint '.*nowhere.pt'"):
        train(config(tmp_path / "run", init=str(tmp_path / "nowhere.pt")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="a folder without a run's checkpoint"):
        train(config(tmp_path / "run", init=str(tmp_path / "empty")))


EVERYTHING: dict[str, Any] = {
    "freeze": ["2.*", "3.*"], "lr_factors": {"backbone": 0.25, "6.*": 0.5}, "method": "sam", "ema": 0.9, "swa": 0.3
}  # fmt: skip


def test_a_resumed_run_does_not_need_the_file(tmp_path: Path) -> None:
    file = saved(weights(outputs=3, make=small), "pt", tmp_path)
    whole = train(config(tmp_path / "whole", init=str(file), **EVERYTHING))
    settings = config(tmp_path / "parts", init=str(file), **EVERYTHING)
    stopped(settings, 2)
    file.unlink()
    stopped(settings, 7)
    again = train(settings)
    assert_same_end(again, whole)
    assert again.about["init"] == whole.about["init"]


def test_a_file_that_changes_before_the_first_checkpoint_raises(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", init=str(saved(weights(), "pt", tmp_path)), **STILL)
    crashed(settings, 0)
    saved(weights(seed=8), "pt", tmp_path)
    with pytest.raises(ValueError, match="begun from other weights"):
        train(settings)
    saved(weights(), "pt", tmp_path)
    assert train(settings).finished


def test_the_key_of_a_studys_cell_follows_the_content_of_the_file(tmp_path: Path) -> None:
    def key(file: Path, **changes: Any) -> str:
        return key_of(plain_values(Config(init=str(file), **changes)))

    (tmp_path / "b").mkdir()
    one, copy = saved(weights(), "pt", tmp_path), saved(weights(), "pt", tmp_path / "b")
    assert key(one) == key(copy) != key(one, freeze=["backbone"])
    before = key(one)
    saved(weights(seed=8), "pt", tmp_path)
    assert key(one) != before


def test_weights_that_differ_in_one_number_anywhere_have_another_key(tmp_path: Path) -> None:
    """Fine-tuning some layers changes neither the beginning nor the end of a large file."""
    state, keys = {name: torch.zeros(2**19) for name in "abcde"}, set()  # 2 MiB each
    for k in range(5):
        state["abcde"[k]][7 + 100 * k] = 1.0
        save_file(state, file := tmp_path / f"{k}.safetensors")
        keys.add(key_of(plain_values(Config(init=str(file)))))
    assert len(keys) == 5


# -- frozen parameters and layer-wise learning rates -------------------------------------------------------------------


def by_hand(settings: Config, factor: dict[str, float]) -> dict[str, Tensor]:
    """Plain SGD with its own learning rate for each parameter, in a loop of three lines."""
    model = model_of(replace(settings, freeze=[]), (2,), 2)
    for epoch in range(settings.epochs):
        for x, y in BatchStream(data_of(settings).train, settings.batch_size, settings.seed).epoch(epoch):
            grads = torch.autograd.grad(f.cross_entropy(model(x), y), list(model.parameters()))
            with torch.no_grad():
                for (name, p), g in zip(model.named_parameters(), grads, strict=True):
                    p -= settings.lr * factor.get(name, 1.0) * g
    return dict(model.state_dict())


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({"freeze": ["backbone"]}, {"1.weight": 0.0, "1.bias": 0.0}),
        ({"freeze": ["head"]}, {"3.weight": 0.0, "3.bias": 0.0}),
        ({"freeze": ["*.bias"]}, {"1.bias": 0.0, "3.bias": 0.0}),
        ({"lr_factors": {"backbone": 0.1}}, {"1.weight": 0.1, "1.bias": 0.1}),
        ({"lr_factors": {"head": 3}}, {"3.weight": 3.0, "3.bias": 3.0}),
        (
            {"lr_factors": {"backbone": 0.5, "*.bias": 0.1, "3.weight": 2.0}},
            {"1.weight": 0.5, "1.bias": 0.05, "3.bias": 0.1, "3.weight": 2.0},
        ),
        (
            {"lr_factors": {"backbone": 0.1}, "freeze": ["head"]},
            {"1.weight": 0.1, "1.bias": 0.1, "3.weight": 0.0, "3.bias": 0.0},
        ),
    ],
)
def test_each_parameter_has_its_learning_rate(
    changes: dict[str, Any], factor: dict[str, float], tmp_path: Path
) -> None:
    rest = {"model": "training_runs:plain", "method": "none", "momentum": 0.0, "weight_decay": 0.0}
    settings = config(tmp_path, schedule="constant", lr=0.5, **rest, **changes)
    run, expected = train(settings), by_hand(settings, factor)
    start = model_of(settings, (2,), 2).state_dict()
    for name, w in run.weights().items():
        torch.testing.assert_close(w, expected[name], rtol=1e-5, atol=1e-6)
        assert torch.equal(w, start[name]) == (factor.get(name) == 0.0), name


def test_the_recorded_learning_rate_is_the_schedules(tmp_path: Path) -> None:
    run = train(config(tmp_path, lr=0.3, schedule="constant", lr_factors={"backbone": 0.1}))
    assert run.result["lr"] == 0.3


def test_statistics_of_frozen_layers_stay(tmp_path: Path) -> None:
    """A frozen BatchNorm normalises by its running statistics, in training and in the average of weights too."""
    state = weights(make=normalised)
    state |= {"1.running_mean": torch.randn(8), "1.running_var": torch.rand(8) + 0.5}
    settings = config(
        tmp_path / "run", model="training_runs:normalised", init=str(saved(state, "safetensors", tmp_path)),
        freeze=["backbone"], swa=0.0, epochs=2, method="none", momentum=0.0, weight_decay=0.0, schedule="constant",
    )  # fmt: skip
    run = train(settings)
    assert differing(run, state) == HEAD
    average = run.weights("swa")
    assert sorted(k for k in average if not torch.equal(average[k], state[k])) == HEAD

    model = normalised((2,), 2)
    model.load_state_dict(state)
    model.eval()
    for epoch in range(2):
        for x, y in BatchStream(data_of(settings).train, 20, 0).epoch(epoch):
            grads = torch.autograd.grad(f.cross_entropy(model(x), y), [model[3].weight, model[3].bias])
            with torch.no_grad():
                model[3].weight -= 0.1 * grads[0]
                model[3].bias -= 0.1 * grads[1]
    torch.testing.assert_close(run.weights()["3.weight"], model[3].weight.detach(), rtol=1e-5, atol=1e-6)


def test_measures_are_over_the_trained_parameters(tmp_path: Path) -> None:
    run = train(config(tmp_path, model="training_runs:plain", freeze=["backbone"]))
    assert sum(t.numel() for t in run.objective().weights.tensors) == 8 * 2 + 2


def headless(shape: tuple[int, ...]) -> nn.Module:
    return nn.Linear(shape[0], 2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"freeze": ["head"], "model": "test_training_transfer:headless"}, "the model has no head, as no tensor"),
        ({"freeze": ["backbone", "head"]}, "leaves no parameter to train"),
        ({"freeze": ["layer1.*"]}, "freeze: there is no parameter 'layer1.\\*'"),
        ({"lr_factors": {"bakbone": 0.1}}, "lr_factors: .* Did you mean 'backbone'"),
        ({"lr_factors": {"head": 0}}, "has to be a mapping of names to numbers, more than 0"),
        ({"lr_factors": {"head": "2"}}, "has to be a mapping of names to numbers, more than 0"),
        ({"lr_factors": {"head": 2}, "method": "sa-sam"}, "one step size for all parameters"),
        ({"channels_last": True, "fsdp": True}, "leave out channels_last"),
    ],
)
def test_wrong_names_and_values_raise(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=says):
        train(config(tmp_path / "run", **changes))
    assert not (tmp_path / "run").exists()


def test_the_head_of_reference_models_is_one_linear_layer() -> None:
    for name in ("mlp", "resnet18", "resnet20", "vit-small", "densenet121", "vgg19"):
        options = {"width": 4} if name == "resnet18" else {}
        model = model_of(Config(model=name, model_options=options, freeze=["backbone"]), (3, 32, 32), 10)
        trained = [p.shape for p in model.parameters() if p.requires_grad]
        assert [s[0] for s in trained] == [10, 10], name


# -- defaults by method ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["sa-sam", "sa-sgd"])
def test_smoothness_adaptive_methods_have_their_papers_defaults(method: str, tmp_path: Path) -> None:
    default = Config(method=method)
    assert (default.lr, default.momentum) == (1e-3, 0.0)
    assert (Config().lr, Config().momentum) == (0.1, 0.9)
    assert Config(method=method, momentum=0.9, lr=0.1).momentum == 0.9
    settings = config(tmp_path, method=method, momentum=0.5)
    with pytest.warns(UserWarning, match=f"{method} with momentum 0.5 is not the paper's algorithm"):
        train(settings)


def test_keys_of_runs_stay() -> None:
    """Hashes of the version before these settings existed."""

    def key(**changes: Any) -> str:
        return key_of(plain_values(Config(**changes)))

    assert key() == key(momentum=0.9, lr=0.1) == "01e7b720ff566d53"
    assert key(method="none", lr=0.05, seed=3) == "852442e9453e349c"
    assert key(method="sa-sam", momentum=0.9, lr=0.1) == "923b1e01157b230e"
    assert key(method="sa-sam") not in (key(), "923b1e01157b230e", "e1e641a3dda03bb1")  # other numbers now


def test_a_dry_run_says_where_the_defaults_come_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    flags = ["--method", "sa-sam", "--lr", "0.01", "--data", "spirals", "--device", "cpu", "--out", str(tmp_path / "r")]
    assert main(["train", "--dry-run", "--json", *flags]) == 0
    shown = json.loads(capsys.readouterr().out)["config"]
    assert shown["momentum"] == {"value": 0.0, "from": "sa-sam's own default"}
    assert shown["lr"] == {"value": 0.01, "from": "flag"}


# -- channels-last -----------------------------------------------------------------------------------------------------

# at least 8 channels: with fewer, on CPUs with AVX2 alone, torch 2.13 aborts or hangs in the backward pass of a 1 x 1
# convolution with stride 2 in this format
IMAGES: dict[str, Any] = {
    "data": "digits", "fraction": 0.05, "batch_size": 16, "model": "resnet18", "model_options": {"width": 8},
    "method": "sam", "ema": 0.9,
}  # fmt: skip


def in_format(model: nn.Module) -> list[bool]:
    kernels = [p for p in model.parameters() if p.ndim == 4 and min(p.shape[1:]) > 1]
    return [p.is_contiguous(memory_format=torch.channels_last) for p in kernels]


def test_channels_last_gives_the_same_numbers_up_to_rounding(tmp_path: Path) -> None:
    """After one step: later ones amplify rounding, as BatchNorm over few rows does."""
    one, other = (train(config(tmp_path / str(c), channels_last=c, steps=1, **IMAGES)) for c in (True, False))
    for name, w in one.weights().items():
        assert w.is_contiguous(), "files hold contiguous tensors"
        torch.testing.assert_close(w, other.weights()[name], rtol=1e-4, atol=1e-5)
    assert one.result["test_loss"] == pytest.approx(other.result["test_loss"], rel=1e-4)


def test_channels_last_runs_resume_bit_for_bit(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", channels_last=True, **IMAGES))
    settings = config(tmp_path / "parts", channels_last=True, **IMAGES)
    stopped(settings, 1)
    stopped(settings, 4)
    assert_same_end(train(settings), whole)


@pytest.mark.parametrize("chosen", [True, False, None])
def test_the_format_of_the_weights_and_of_their_momentum(chosen: bool | None, tmp_path: Path) -> None:
    settings = config(tmp_path, channels_last=chosen, epochs=1, **IMAGES)
    splits = data_of(settings)
    training = Training(settings, tmp_path, splits, Workers(), torch.device("cpu"))
    assert set(in_format(training.state.module)) == {chosen is True}  # None on a CPU: contiguous
    for rows in training.batches.epoch(0, 0):
        training._passes(rows)
        break
    kept = [s["momentum_buffer"] for s in training.state.opt.state.values()]
    kernels = [t for t in kept if t.ndim == 4 and min(t.shape[1:]) > 1]
    assert {t.is_contiguous(memory_format=torch.channels_last) for t in kernels} == {chosen is True}


@pytest.mark.parametrize(
    ("device", "changes", "expected"),
    [
        ("cuda", {}, True),
        ("cpu", {}, False),
        ("cuda", {"channels_last": False}, False),
        ("cpu", {"channels_last": True}, True),
        ("cuda", {"data": "spirals", "model": "mlp", "model_options": {}}, False),  # no images
        ("cuda", {"model": "training_runs:plain", "model_options": {}}, False),  # the user's own choice
        ("cuda", {"fsdp": True}, False),
    ],
)
def test_when_weights_are_channels_last(device: str, changes: dict[str, Any], expected: bool) -> None:
    settings = Config(**{**IMAGES, **changes})
    assert channels_last(settings, task_of(data_of(settings)).shape, torch.device(device)) is expected


def test_reference_models_compute_the_same_in_both_formats() -> None:
    x = torch.randn(2, 3, 32, 32)
    for name in ("resnet20", "vgg19", "vit-small", "densenet121", "pyramidnet110"):
        model = build(name, (3, 32, 32), 10).eval()
        with torch.no_grad():
            expected = model(x)
            got = model.to(memory_format=torch.channels_last)(x)
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4)
