"""Loggers have every record once, whatever happened to the processes that trained; read back from their own stores."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest
from training_runs import config
from training_stops import crashed, stopped

import steppe
from steppe.training import Run, open_run, train
from steppe.training.loggers import LOGGERS, rows

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the other packages
    pytest.mark.filterwarnings("ignore::PendingDeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
OURS = ("MLFLOW_", "WANDB_")
PATH = {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), str(Path(steppe.__file__).parents[1])])}


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # MLflow's own store is in the working folder
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "wandb-data"))  # copies of tables
    for name in [n for n in os.environ if n.startswith(OURS)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


# Stores, read without steppe

Rows = list[tuple[int, dict[str, float]]]
"""Step and numbers of each record, in order."""


def in_mlflow(run: Run, uri: str = "mlflow.db") -> Rows:
    """All values in the store, doubles included: its tables, not its interface, which may hide some."""
    import sqlite3

    with closing(sqlite3.connect(uri)) as store:
        rows = store.execute("select key, step, value from metrics").fetchall()
        assert store.execute("select count(*) from runs").fetchone() == (1,)
    assert len({(key, step) for key, step, _ in rows}) == len(rows)  # no doubles
    steps = sorted({step for _, step, _ in rows})
    return [(step, {key: value for key, at, value in rows if at == step}) for step in steps]


BLOCK, HEADER = 32768, 7


def wandb_records(run: Run) -> list[Any]:
    """The messages in the one .wandb file."""
    from wandb.proto.wandb_internal_pb2 import Record

    end = monotonic() + 60
    while True:  # another process writes the file: the exit is its last message
        [path] = run.path.glob("wandb/offline-run-*/*.wandb")
        found = [Record.FromString(message) for message in messages(path.read_bytes())]
        if found and any(record.HasField("exit") for record in found):
            break
        assert monotonic() < end, "W&B did not finish its file"
        sleep(0.05)
    return found


def in_wandb(run: Run) -> Rows:
    """The history, without tables."""
    rows = []
    for record in wandb_records(run):
        if record.HasField("history"):
            values = {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            step = values.pop("_step")
            rows.append((step, {k: v for k, v in values.items() if not k.startswith(("_", "measures_table"))}))
    return rows


def messages(content: bytes) -> Iterator[bytes]:
    """Complete messages of a file in LevelDB's log format: blocks with messages and parts of messages."""
    at, message = HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + HEADER])
        message += content[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (1, 4) and at <= len(content):  # a whole message, or the last part of one
            yield message
            message = b""


READERS = {"mlflow": in_mlflow, "wandb": in_wandb}


def in_records(run: Run) -> Rows:
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    return [row for line in lines for row in rows(line)]


@pytest.fixture(params=READERS)
def name(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(request.param, reason=f"needs the extra {request.param}")
    return str(request.param)


# Every record once


def test_every_record_is_there_once(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A logger that joins late, a signal, an exception in a step, and one while the last record is logged."""
    without = config(tmp_path, epochs=4, measures=["loss"], measure_every=2)
    settings = replace(without, loggers=[name])
    train(without, until=1)
    stopped(settings, 7)
    assert READERS[name](open_run(tmp_path)) == in_records(open_run(tmp_path)) != []
    crashed(settings, 12)

    log = LOGGERS[name].make.log_metrics

    def failing(self: Any, step: int, metrics: Any) -> None:
        if step == 20:
            raise ConnectionError("no answer")
        log(self, step, metrics)

    with monkeypatch.context() as patch, pytest.raises(ConnectionError):
        patch.setattr(LOGGERS[name].make, "log_metrics", failing)
        train(settings)
    assert [step for step, _ in READERS[name](open_run(tmp_path))] == [5, 10, 15]
    run = train(settings)  # finished: only the logger lacks something
    assert [step for step, _ in READERS[name](run)] == [5, 10, 15, 20]
    assert READERS[name](run) == in_records(run)
    assert "measures/loss/value" in READERS[name](run)[1][1]


KILLED = """
import os, signal, sys
from steppe.training import loop, train
from training_runs import config

commit = loop.Training._commit

def killing(self, finished=False):  # in epoch 3, whose checkpoint has two records that are not logged yet
    if self.position.epoch == 3:
        mlflow = self._loggers[1]
        mlflow.log_metrics = lambda step, metrics: os.kill(os.getpid(), signal.SIGKILL)  # W&B has one by then
    commit(self, finished)

loop.Training._commit = killing
train(config(sys.argv[1], epochs=4, loggers=["mlflow", "wandb"]))
"""


@pytest.mark.slow
def test_a_kill_between_a_checkpoint_and_its_records(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    pytest.importorskip("wandb", reason="needs the extra wandb")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "run")]
    with (tmp_path / "errors").open("w") as errors:  # no pipe, which W&B's own process would hold open
        done = subprocess.run(command, env=os.environ | PATH, stderr=errors, check=False, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, (tmp_path / "errors").read_text()
    run = open_run(tmp_path / "run")
    assert [r["epoch"] for r in run.records] == [1, 2, 3]
    assert [step for step, _ in in_mlflow(run)] in ([5], [5, 10])  # epoch 2 has a checkpoint where ten seconds are over
    run = train(run.config)
    assert [step for step, _ in in_records(run)] == [5, 10, 15, 20]
    assert in_mlflow(run) == in_wandb(run) == in_records(run)


class Kept:
    """A user's logger that knows what it has."""

    def __init__(self, folder: Path):
        self._file = folder / "mine.jsonl"

    @property
    def last_step(self) -> int:
        return rows[-1][0] if (rows := self.rows()) else 0

    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []

    def log_params(self, params: Any) -> None:
        assert params["method"] == "sam"

    def log_metrics(self, step: int, metrics: Any) -> None:
        with self._file.open("a") as file:
            file.write(json.dumps([step, metrics]) + "\n")

    def close(self) -> None:
        pass


def test_a_user_s_logger_that_says_what_it_has_receives_the_rest(tmp_path: Path) -> None:
    settings = config(tmp_path, epochs=4, loggers=[f"{__name__}:Kept"])
    train(replace(settings, loggers=[]), until=2)
    train(settings, until=3)
    (tmp_path / "mine.jsonl").write_text((tmp_path / "mine.jsonl").read_text().splitlines(keepends=True)[0])
    run = train(settings)
    assert [tuple(row) for row in Kept(tmp_path).rows()] == in_records(run)
    assert len(run.records) == 4


# What else a store has


def mlflow_runs(uri: str | None = None) -> Any:
    """Runs of the experiment, as MLflow's own client reads them."""
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    client = mlflow.MlflowClient(uri)
    return client, client.search_runs([client.get_experiment_by_name("steppe").experiment_id], order_by=["start_time"])


def test_mlflow_has_the_configuration_and_how_the_run_ended(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    settings = config(tmp_path / "run", epochs=2, measures=["worst_l2@0.3"], schedule="constant", loggers=["mlflow"])
    train(settings, until=1)
    client, [one] = mlflow_runs()
    assert one.info.status == "KILLED"
    assert {file.path for file in client.list_artifacts(one.info.run_id)} == {"run.yaml", "metrics.jsonl"}
    run = train(replace(settings, epochs=3))  # MLflow's parameters cannot change
    client, [one] = mlflow_runs()
    assert (one.info.status, one.info.run_name) == ("FINISHED", "run")
    assert one.data.params.keys() == vars(settings).keys()
    assert (one.data.params["method"], one.data.params["lr"], one.data.params["epochs"]) == ("sam", "0.1", "2")
    assert one.data.tags["steppe.epochs"] == "3"
    assert one.data.tags["mlflow.user"]
    assert one.data.metrics["measures/worst_l2:0.3/value"] == run.result["measures"]["worst_l2@0.3"]["value"]


def test_mlflow_has_one_store_for_all_runs_with_their_artifacts(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    runs = [train(config(tmp_path / f"run{seed}", seed=seed, loggers=["mlflow"])) for seed in (0, 1)]
    client, found = mlflow_runs()
    assert [one.info.run_name for one in found] == ["run0", "run1"]
    for run, one in zip(runs, found, strict=True):
        assert one.info.artifact_uri.startswith(str(tmp_path / "mlruns"))
        steps = client.get_metric_history(one.info.run_id, "test_accuracy")
        assert [(m.step, m.value) for m in steps] == [(r["step"], r["test_accuracy"]) for r in run.records]
        for name in ("run.yaml", "metrics.jsonl", "checkpoint.safetensors"):
            copy = client.download_artifacts(one.info.run_id, name, str(tmp_path))
            assert Path(copy).read_bytes() == (run.path / name).read_bytes()
            Path(copy).unlink()
    stored = runs[0].path / "checkpoint.safetensors"
    when = next((tmp_path / "mlruns").glob(f"*/{found[0].info.run_id}/artifacts/{stored.name}")).stat().st_mtime_ns
    train(runs[0].config)  # finished: nothing is uploaded again
    assert next((tmp_path / "mlruns").glob(f"*/{found[0].info.run_id}/**/{stored.name}")).stat().st_mtime_ns == when


CONCURRENT = """
import sys
from steppe.training import train
from training_runs import config
train(config(f"run{sys.argv[1]}", seed=int(sys.argv[1]), loggers=["mlflow"]))
"""


@pytest.mark.slow
def test_processes_that_create_the_store_of_mlflow_at_once_all_log(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    env = os.environ | PATH | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CONCURRENT]
    started = [subprocess.Popen([*command, str(seed)], env=env, cwd=tmp_path) for seed in range(2)]
    assert [process.wait(240) for process in started] == [0, 0]
    _, found = mlflow_runs()
    assert {one.info.run_name for one in found} == {"run0", "run1"}
    assert all(one.info.status == "FINISHED" for one in found)


def test_runs_of_one_process_and_second_are_two_runs_of_a_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")

    class Clock:
        now = staticmethod(lambda zone: datetime(2026, 11, 19, tzinfo=zone))

    monkeypatch.setattr("steppe.training.entry.datetime", Clock)
    runs = [train(config(tmp_path / f"run{seed}", seed=seed, loggers=["mlflow"])) for seed in (0, 1)]
    assert runs[0].about["starts"][0]["when"] == runs[1].about["starts"][0]["when"]
    _, found = mlflow_runs()
    assert len(found) == 2


def test_mlflow_nests_runs_in_the_run_of_the_caller(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    mlflow.set_experiment("mine")
    with mlflow.start_run() as parent:
        for seed in (0, 1):
            train(config(tmp_path / f"run{seed}", seed=seed, loggers=["mlflow"]))
        assert mlflow.active_run().info.run_id == parent.info.run_id
    train(config(tmp_path / "run0", seed=0, loggers=["mlflow"]))  # alone again: in the experiment of the store
    children = mlflow.MlflowClient().search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    )
    assert sorted(one.info.run_name for one in children) == ["run0", "run1"]
    assert all(one.info.status == "FINISHED" for one in children)


def test_mlflow_uses_the_server_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'store/all.db'}")
    run = train(config(tmp_path / "run", loggers=["mlflow"]))
    assert not (tmp_path / "mlflow.db").exists()
    assert in_mlflow(run, str(tmp_path / "store/all.db")) == in_records(run)
    assert not (tmp_path / "mlruns").exists()
    [kept] = (tmp_path / "store/mlruns/steppe").glob("*/artifacts/checkpoint.safetensors")  # beside the store
    assert kept.read_bytes() == (run.path / kept.name).read_bytes()


def test_tensorboard_lists_runs_by_their_settings_and_results(tmp_path: Path) -> None:
    """The tab HParams of TensorBoard, by the code behind it, and the scalars of each run."""
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard import context
    from tensorboard.backend.event_processing import data_provider, plugin_event_multiplexer
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins import base_plugin
    from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

    runs = [train(config(tmp_path / f"{lr}", lr=lr, loggers=["tensorboard"])) for lr in (0.1, 0.2)]
    train(config(tmp_path / "begun", lr=0.3, loggers=["tensorboard"]), until=1)
    for run in runs:
        scalars = EventAccumulator(str(run.path / "tensorboard"))
        scalars.Reload()
        seen = [(e.step, e.value) for e in scalars.Scalars("test_accuracy")]
        assert seen == [(r["step"], pytest.approx(r["test_accuracy"])) for r in run.records]
    logs = plugin_event_multiplexer.EventMultiplexer()
    logs.AddRunsFromDirectory(str(tmp_path))
    logs.Reload()
    provider = data_provider.MultiplexerDataProvider(logs, str(tmp_path))
    backend = backend_context.Context(base_plugin.TBContext(data_provider=provider, logdir=str(tmp_path)))
    asked, by_run = context.RequestContext(), backend.hparams_metadata(context.RequestContext(), "")
    tab = backend.experiment_from_metadata(asked, "", True, by_run, [])
    assert {"lr", "method", "epochs"} <= {info.name for info in tab.hparam_infos}
    assert {"test_accuracy", "train_loss"} <= {info.name.tag for info in tab.metric_infos}
    request = api_pb2.ListSessionGroupsRequest(
        start_index=0, slice_size=9, col_params=[api_pb2.ColParams(metric=m.name) for m in tab.metric_infos],
        allowed_statuses=[api_pb2.STATUS_SUCCESS, api_pb2.STATUS_UNKNOWN, api_pb2.STATUS_RUNNING],
    )  # fmt: skip
    handler = list_session_groups.Handler(asked, backend, "", request)
    groups = {group.hparams["lr"].number_value: group for group in handler.run().session_groups}
    assert groups.keys() == {0.1, 0.2, 0.3}
    assert {lr: group.sessions[0].status for lr, group in groups.items()} == {
        0.1: api_pb2.STATUS_SUCCESS, 0.2: api_pb2.STATUS_SUCCESS, 0.3: api_pb2.STATUS_UNKNOWN
    }  # fmt: skip
    for run in runs:
        values = {m.name.tag: m.value for m in groups[run.config.lr].metric_values}
        assert values["test_accuracy"] == pytest.approx(run.result["test_accuracy"])


def test_wandb_has_the_configuration_a_table_of_measures_and_the_model(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    run = train(config(tmp_path / "run", epochs=2, measures=["loss", "worst_l2@0.3"], loggers=["wandb"]))
    records = wandb_records(run)
    [begun] = [r.run for r in records if r.HasField("run")]
    settings = {item.key: json.loads(item.value_json) for item in begun.config.update}
    assert (settings["method"], settings["lr"], settings["epochs"]) == ("sam", 0.1, 2)
    [table] = [json.loads(file.read_text()) for file in run.path.glob("wandb/**/*.table.json")]
    assert table["columns"] == ["measure", "value", "stderr", "n"]
    measured = run.result["measures"]
    assert {row[0]: row[1:] for row in table["data"]} == {
        name: [measured[name][c] for c in ("value", "stderr", "n")] for name in ("loss", "worst_l2@0.3")
    }
    [model] = [r.artifact for r in records if r.HasField("artifact") and r.artifact.type == "model"]
    files = {entry.path: Path(entry.local_path).resolve() for entry in model.manifest.contents}
    assert files == {name: run.path / name for name in ("run.yaml", "metrics.jsonl", "checkpoint.safetensors")}


def test_steps_have_records_on_request(name: str, tmp_path: Path) -> None:
    """Their means are those of the epoch; a stop in an epoch, a late logger and a repeated start change nothing."""
    whole = train(config(tmp_path / "whole", epochs=3, log_every=2, loggers=[]))
    settings = config(tmp_path / "run", epochs=3, log_every=2, loggers=[])
    stopped(settings, 8)
    run = train(replace(settings, loggers=[name, "csv"]))
    assert [r["steps"] for r in run.records] == [r["steps"] for r in whole.records]
    assert READERS[name](run) == in_records(run)
    steps = [step for step, values in in_records(run) if "step/loss" in values]
    assert steps == [2, 4, 6, 8, 10, 12, 14]
    assert len((run.path / "metrics.csv").read_text().splitlines()) == 1 + len(in_records(run))
    without = train(config(tmp_path / "without", epochs=3, loggers=[]))
    assert [r["train_loss"] for r in without.records] == [r["train_loss"] for r in run.records]


def test_records_of_all_steps_have_the_mean_of_their_epoch(tmp_path: Path) -> None:
    run = train(config(tmp_path / "run", epochs=2, log_every=1))
    for record in run.records:
        losses = [one["loss"] for one in record["steps"]]
        assert len(losses) == 5
        assert sum(losses) / 5 == pytest.approx(record["train_loss"], rel=1e-12)
        assert [one["step"] for one in record["steps"]] == list(range(record["step"] - 4, record["step"] + 1))
        assert record["steps"][-1]["lr"] == record["lr"]


OFFLINE = """
from steppe.training import train
from training_runs import config
train(config("run", loggers=["wandb"]))
"""
CONTROL = """
import wandb
run = wandb.init(mode="offline", settings=wandb.Settings(silent=True))
run.log({"a": 1.0})
run.finish()
"""  # sends statistics


@pytest.mark.slow
def test_wandb_sends_nothing(tmp_path: Path) -> None:
    """Every address that W&B could use is a socket that counts; W&B by itself uses it, offline too."""
    pytest.importorskip("wandb", reason="needs the extra wandb")
    counted: list[Any] = []

    def count(listener: socket.socket) -> None:
        with suppress(OSError):  # closed below
            while True:
                connection, address = listener.accept()
                counted.append(address)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=count, args=(listener,), daemon=True)
        thread.start()
        here = f"http://127.0.0.1:{listener.getsockname()[1]}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "WANDB_BASE_URL")
        env = os.environ | PATH | {"NO_PROXY": "", "no_proxy": "", **dict.fromkeys(names, here)}
        found = []
        for code in (OFFLINE, CONTROL):
            subprocess.run([sys.executable, "-c", code], env=env, cwd=tmp_path, check=True, timeout=120)
            found.append(len(counted))
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert found[0] == 0
    assert found[1] > 0, "the socket counts nothing"
    assert len(in_wandb(open_run(tmp_path / "run"))) == 2


# Loggers that cannot be built


def raises(folder: Path) -> Any:
    raise KeyError("token")


def no_logger(folder: Path) -> Any:
    return {"folder": folder}


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ("wanbd", ValueError, "no logger 'wanbd'. Did you mean 'wandb'"),
        (f"{__name__}:raises", RuntimeError, r"the logger \S+:raises raised KeyError when it was built: 'token'"),
        (f"{__name__}:no_logger", ValueError, "returned dict, which has no method log_params"),
        (f"{__name__}:nothing", ValueError, "no factory 'nothing'"),
    ],
)
def test_a_bad_logger_leaves_no_run(bad: str, error: type[Exception], message: str, tmp_path: Path) -> None:
    out, store = tmp_path / "run", tmp_path / "store.db"
    names = ["csv", "tensorboard", *(n for n in READERS if find_spec(n)), bad]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(error, match=message):
        patch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{store}")
        train(config(out, loggers=names))
    assert not out.exists()
    assert not store.exists()


@pytest.mark.parametrize("name", ["mlflow", "wandb", "tensorboard"])
def test_a_missing_package_leaves_no_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(
        ModuleNotFoundError, match=rf"need {name}, which is not installed: pip install 'steppe\[{name}\]'"
    ):
        train(config(tmp_path / "run", loggers=[name]))
    assert not (tmp_path / "run").exists()


def test_a_logger_that_cannot_start_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="needs the extra wandb")

    def no_server(dir: str, **_: Any) -> None:
        (Path(dir) / "wandb").mkdir()
        raise wandb.errors.CommError("no server")

    monkeypatch.setattr(wandb, "init", no_server)
    with pytest.raises(wandb.errors.CommError):
        train(config(tmp_path / "run", loggers=["csv", "wandb"]))
    assert not (tmp_path / "run").exists()


def test_a_bad_logger_does_not_touch_a_run_that_has_begun(tmp_path: Path) -> None:
    settings = config(tmp_path, epochs=2)
    train(settings, until=1)
    with pytest.raises(RuntimeError, match="raised KeyError"):
        train(replace(settings, loggers=[f"{__name__}:raises"]))
    assert len(open_run(tmp_path).records) == 1
    assert train(settings).finished


def test_trackers_do_not_follow_symbolic_links(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    (tmp_path / "outside").mkdir()
    settings = config(tmp_path / "run", loggers=["wandb"])
    train(replace(settings, loggers=[]), until=1)
    (tmp_path / "run" / "wandb").symlink_to(tmp_path / "outside")
    with pytest.raises(OSError, match="symbolic link"):
        train(settings)
    assert list((tmp_path / "outside").iterdir()) == []
