"""A run on two processes is the run of one, and its folder has one writer."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import sys
import warnings
from contextlib import closing
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiers import slow_unless
from torch import Tensor
from torch.nn.functional import cross_entropy

from steppe.training import Config, Stopped, evaluate, loop, open_run, train
from steppe.training.loggers import rows

from .pair import WORLD, Pair

sys.path.insert(0, str(Path(__file__).parent.parent))
from training_runs import assert_same_end, config, timeless


def settings(out: Path | str, **changes: Any) -> Config:
    """Without dropout, whose masks are each process's own, and without BatchNorm, which sees each process's rows."""
    return config(out, **({"model": "training_runs:plain", "momentum": 0.9} | changes))


def in_pair(rank: int, asked: dict[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    run = train(Config(**asked))
    return run.weights(), run.records


def in_small_batches(rank: int, asked: dict[str, Any]) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Both processes have test rows: a thousand of them are a single batch otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evaluate, "ROWS", 96)
        return in_pair(rank, asked)


def until_signal(rank: int, asked: dict[str, Any], step: int) -> str:
    """One of the two processes hears a signal in that step; both stop."""
    taken = loop.Training._begin_step

    def with_signal(self: loop.Training) -> int:
        if rank == 1 and self.timeline.taken(self.position) == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return taken(self)

    loop.Training._begin_step = with_signal  # type: ignore[method-assign]
    try:
        train(Config(**asked))
    except Stopped as told:
        return str(told.position)
    finally:
        loop.Training._begin_step = taken  # type: ignore[method-assign]
    return "finished"


CHANGES: dict[str, dict[str, Any]] = {
    "sam": {"ema": 0.9, "swa": 0.0, "clip": 0.5},
    "looksam": {"optimizer": "adamw", "lr": 0.01, "validation": 0.2, "batch_size": 16},
    "none": {"data": "teacher-student", "lr": 0.01},
    "gsam": {"freeze": ["1.*"], "lr_factors": {"head": 2.0}},
}
WRAPPED = [(method, wrapper) for method in CHANGES for wrapper in ("ddp", "fsdp")]


@pytest.mark.parametrize(
    ("method", "wrapper"), slow_unless(lambda case: (case[0] in ("sam", "none")) == (case[1] == "fsdp"), WRAPPED)
)
def test_two_processes_train_as_one(pair: Pair, tmp_path: Path, method: str, wrapper: str) -> None:
    changes = CHANGES[method] | {"method": method}
    alone = train(settings(tmp_path / "alone", **changes))
    asked = settings(tmp_path / "pair", fsdp=wrapper == "fsdp", **changes)
    found = pair.run(in_pair, asdict(asked))
    for weights, records in found:
        assert records == found[0][1]
        for name, w in alone.weights().items():
            torch.testing.assert_close(weights[name], w, rtol=1e-4, atol=1e-6)
        for one, two in zip(timeless(alone.records), timeless(records), strict=True):
            bits = [{k: record.pop(k) for k in list(record) if k.endswith("_correct")} for record in (one, two)]
            assert bits[0] == bits[1]
            assert one == pytest.approx(two, rel=1e-4)
    run = open_run(tmp_path / "pair")
    assert run.about["starts"][0]["processes"] == WORLD
    for which in [k for k in ("ema", "swa") if k in changes]:
        for name, w in alone.weights(which).items():  # type: ignore[arg-type]
            torch.testing.assert_close(run.weights(which)[name], w, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
def test_a_pair_that_was_stopped_goes_on_bit_for_bit(pair: Pair, tmp_path: Path, fsdp: bool) -> None:
    """With BatchNorm and dropout too, and the sums of the epoch under way."""
    changes: dict[str, Any] = {
        "model": "training_runs:small",
        "method": "looksam",
        "fsdp": fsdp,
        "ema": 0.9,
        "swa": 0.0,
    }
    changes |= {"fraction": 1.0, "method_options": {"k": 3}, "log_every": 7}  # 50 steps an epoch
    pair.run(in_pair, asdict(config(tmp_path / "whole", **changes)))
    asked = asdict(config(tmp_path / "parts", **changes))
    stops = [pair.run(until_signal, asked, step) for step in (20, 70)]
    assert stops == [["epoch 1, step 32"] * 2, ["epoch 2, step 32"] * 2]  # they ask each other every 16 steps
    pair.run(in_pair, asked)
    assert_same_end(open_run(tmp_path / "parts"), open_run(tmp_path / "whole"))


@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
def test_measures_of_a_shared_model(pair: Pair, tmp_path: Path, fsdp: bool) -> None:
    asked = settings(tmp_path / "pair", measures=["loss", "lambda_max"], measure_rows=64, fraction=1.0, fsdp=fsdp)
    (_, records), _ = pair.run(in_pair, asdict(asked))
    run = open_run(tmp_path / "pair", asked.model)
    assert records[-1]["measures"]["loss"]["value"] == pytest.approx(run.objective().loss(), rel=1e-5)


def tracked(rank: int, asked: dict[str, Any], folder: str) -> list[dict[str, Any]]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        for kind in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):  # of the other packages
            warnings.simplefilter("ignore", kind)
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder}/all.db")
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        patch.setenv("WANDB_DATA_DIR", f"{folder}/wandb-data")
        return in_pair(rank, asked)[1]


@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
def test_records_of_steps_are_those_of_all_rows_and_one_process_logs_them(
    pair: Pair, tmp_path: Path, fsdp: bool
) -> None:
    """Values are those of one process alone on all rows; each store has one run, and every value once."""
    loggers = ["csv", *(name for name in ("tensorboard", "mlflow", "wandb") if find_spec(name))]
    alone = train(settings(tmp_path / "alone", epochs=2, log_every=2))
    asked = settings(tmp_path / "pair", epochs=2, log_every=2, loggers=loggers, fsdp=fsdp)
    first, second = pair.run(tracked, asdict(asked), str(tmp_path))
    assert first == second
    assert [one["step"] for record in first for one in record["steps"]] == [2, 4, 6, 8, 10]
    for record, of_one in zip(first, alone.records, strict=True):
        for found, wanted in zip(record["steps"], of_one["steps"], strict=True):
            assert found == pytest.approx(wanted, rel=1e-5)
    logged = [row for record in open_run(tmp_path / "pair").records for row in rows(record)]
    _, *lines = (tmp_path / "pair/metrics.csv").read_text().splitlines()
    assert len(lines) == len(logged) == 6  # steps 2, 4, 5, 6, 8, 10: two epochs of five
    if "tensorboard" in loggers:
        assert len(list((tmp_path / "pair/tensorboard").iterdir())) == 1
    if "wandb" in loggers:
        assert len(list((tmp_path / "pair/wandb").glob("offline-run-*"))) == 1
    if "mlflow" in loggers:
        with closing(sqlite3.connect(tmp_path / "all.db")) as store:
            assert store.execute("select count(*) from runs").fetchone() == (1,)
            values = store.execute("select step, value from metrics where key = 'step/loss' order by step").fetchall()
        assert values == [(step, row["step/loss"]) for step, row in logged if "step/loss" in row]


def refused(rank: int, asked: dict[str, Any]) -> str:
    try:
        train(Config(**asked))
    except (ValueError, RuntimeError, OSError) as error:
        return f"{type(error).__name__}: {error}"
    return "trained"


def test_what_one_process_refuses_both_refuse(pair: Pair, tmp_path: Path) -> None:
    """A process that waits for one that is gone would wait for ever."""
    train(settings(tmp_path / "run", epochs=1))
    for asked in (settings(tmp_path / "run", epochs=2), settings(tmp_path / "odd", batch_size=15)):
        answers = pair.run(refused, asdict(asked))
        assert all(a.startswith("ValueError") for a in answers), answers
    (tmp_path / "thesis").write_text("years of work")
    answers = pair.run(refused, asdict(settings(tmp_path)))
    assert all(a.startswith("FileExistsError") for a in answers), answers


@pytest.mark.parametrize("fsdp", [False, True], ids=["ddp", "fsdp"])
def test_what_is_recorded_is_what_the_kept_model_does(pair: Pair, tmp_path: Path, fsdp: bool) -> None:
    """Each process has BatchNorm statistics of its own rows; all evaluate with those that are kept."""
    (_, records), _ = pair.run(in_small_batches, asdict(config(tmp_path, model="training_runs:normalised", fsdp=fsdp)))
    run = open_run(tmp_path, "training_runs:normalised")
    with torch.no_grad():
        loss = cross_entropy(run.model()(run.data().test.inputs), run.data().test.targets)
    assert records[-1]["test_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_processes_that_torchrun_started_join_and_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as there can be in this process: one."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = train(settings(tmp_path / "alone"))
    for name, value in {
        "RANK": 0,
        "LOCAL_RANK": 0,
        "WORLD_SIZE": 1,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    shared = train(settings(tmp_path / "shared", fsdp=True))
    assert not dist.is_initialized()
    torch.testing.assert_close(shared.weights(), alone.weights())
    assert train(settings(tmp_path / "again")).finished  # one process without fsdp needs no group


def test_shards_need_processes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="torchrun"):
        train(settings(tmp_path, fsdp=True))
