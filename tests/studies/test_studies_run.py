"""Running studies: what is computed and what is not, what is kept, and what is said of it."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from math import prod, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from filelock import FileLock
from own_measures import registered
from safetensors.torch import save_file
from scipy.stats import kendalltau
from studies_cells import BASE, Counting, contents, tiny
from torch import nn
from torch.nn.functional import cross_entropy

from steppe._util.digests import packed_bits
from steppe._util.formats import json_safe
from steppe.studies.cell import cells
from steppe.studies.check import InvalidStudy
from steppe.studies.engines import Serial
from steppe.studies.export import export_table
from steppe.studies.plan import Rule, Study
from steppe.studies.pool import Pool
from steppe.studies.records import import_records, read_records, write_records
from steppe.studies.report.contents import content
from steppe.studies.result import study_result
from steppe.studies.run import look, renote, run
from steppe.studies.store import Store
from steppe.training import open_run


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Study:
    study = tiny(tmp_path_factory.mktemp("studies") / "done")
    assert run(study, Serial()).done == 4
    return study


def test_numbers_are_those_of_the_runs(done: Study) -> None:
    """Errors from the weights on disk and arithmetic; measures from the measures themselves."""
    from steppe import measure

    for found in look(done)[1].runs:
        trained = open_run(done.folder / "runs" / found.key)
        assert trained.finished
        model, splits, standard = trained.model(), trained.data(), trained.task.standard
        wrong, loss = {}, {}
        for part in ("train", "test"):
            rows = getattr(splits, part)
            with torch.no_grad():
                output = model(standard(rows.inputs))
            wrong[part] = float((output.argmax(1) != rows.targets).double().mean())
            if part == "test":
                assert found.rows is not None
                assert found.rows.tolist() == (output.argmax(1) == rows.targets).tolist()
            loss[part] = float(cross_entropy(output, rows.targets))
        said = found.targets
        assert said["train_error"] == pytest.approx(wrong["train"])
        assert said["test_error"] == pytest.approx(wrong["test"])
        assert said["gap"] == pytest.approx(wrong["test"] - wrong["train"])
        assert said["loss_gap"] == pytest.approx(loss["test"] - loss["train"], abs=1e-6)
        expected = sqrt(wrong["test"] * (1 - wrong["test"]) / len(splits.test))
        assert found.target_errors["test_error"] == pytest.approx(expected)
        rows = trained.objective().batches
        alone = measure(model, cross_entropy, rows, "lambda_max", seed=trained.config.seed, progress=False)
        assert found.measures["lambda_max"].value == pytest.approx(alone["lambda_max"].value, rel=1e-3)
        assert [r["epoch"] for r in _curves(done, found.key)] == [1, 2]
        assert found.meta["passes"] == sum(r["passes"] for r in trained.records)


def _curves(study: Study, key: str) -> list[dict[str, Any]]:
    with Store.reading(study.store) as store:
        return store.curves(key)


def test_the_same_call_again_computes_nothing(done: Study) -> None:
    engine = Counting()
    before = contents(done)
    assert run(done, engine).done == 4
    assert engine.tasks == []
    assert contents(done) == before


def test_new_cells_are_computed_alone_and_old_ones_are_left_out(tmp_path: Path) -> None:
    study = tiny(tmp_path / "grows", grid={"seed": [0, 1]})
    run(study, Serial())
    grown, engine = tiny(tmp_path / "grows", grid={"seed": [1, 2]}), Counting()
    found = run(grown, engine)
    assert [t.cell.config["seed"] for t in engine.tasks] == [2]
    assert (found.planned, found.done) == (2, 2)
    planned, table = look(grown)
    assert len(table.runs) == 3
    assert [r.config["seed"] for r in Pool.of(grown, planned, table).planned.runs] == [1, 2]
    moved, engine = tiny(tmp_path / "grows", base={**BASE, "data_root": "elsewhere"}, grid={"seed": [1]}), Counting()
    assert run(moved, engine).done == 1
    assert engine.tasks == []


def test_a_setting_that_steppe_learns_later_leaves_cells_as_they_are(tmp_path: Path) -> None:
    study, engine = tiny(tmp_path / "older", grid={"seed": [0]}, measures=["loss"]), Counting()
    [cell] = cells(study)
    with Store.open(study.store) as store:
        store.add([replace(cell, config={k: v for k, v in cell.config.items() if k != "swa"})])
        store.record(cell.key, targets={"test_error": 0.1, "gap": 0.1}, measures={"loss": {"value": 1.0}})
    assert run(study, engine).done == 1
    assert not engine.tasks


def test_an_added_measure_is_measured_alone_and_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = tiny(tmp_path / "more", grid={"seed": [0]}, measures=["loss"])
    run(study, Serial())
    engine = Counting()
    with monkeypatch.context() as patch:  # nothing is trained
        patch.setattr("steppe.training.loop.Training._passes", None)
        run(study, engine, also=["grad_norm"])
    assert [list(t.measures) for t in engine.tasks] == [["grad_norm"]]
    grown, engine = tiny(tmp_path / "more", grid={"seed": [0, 1]}, measures=["loss"]), Counting()
    run(grown, engine)
    assert [list(t.measures) for t in engine.tasks] == [["loss", "grad_norm"]]
    with Store.reading(study.store) as store:
        assert store.notes()["study"]["measures"] == ["loss", "grad_norm"]


def test_a_cell_that_fails_is_told_and_tried_again_on_request(tmp_path: Path) -> None:
    study = tiny(tmp_path / "fails", grid={"lr": [0.1, 1e30]})
    found = run(study, Serial())
    assert found.done == 1
    [(name, error)] = found.failures.items()
    assert name == "lr=1e+30"
    assert error.startswith("FloatingPointError: ")
    engine = Counting()
    assert run(study, engine).failures == found.failures
    assert not engine.tasks
    run(study, engine, again=True)
    assert [t.cell.name for t in engine.tasks] == ["lr=1e+30"]


def test_a_measure_that_fails_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def running(self, objective: Any, seed: int = 0) -> Iterator[Any]:
            raise ArithmeticError("no number")
            yield

    registered(monkeypatch, "broken", Broken())
    study, engine = tiny(tmp_path / "partly", grid={}, measures=["broken", "loss"]), Counting()
    assert run(study, engine).done == 1
    [found] = look(study)[1].runs
    assert list(found.measures) == ["loss"]
    assert found.failures == {"broken": "no number"}
    run(study, engine)
    assert len(engine.tasks) == 1  # not again, unless asked
    run(study, engine, again=True)
    assert list(engine.tasks[1].measures) == ["broken"]


def test_two_drivers_do_not_meet(done: Study) -> None:
    with FileLock(done.folder / "study.lock"), pytest.raises(RuntimeError, match="is being run by"):
        run(done, Serial())


def test_runs_count_by_the_rule_and_tau_is_scipys(tmp_path: Path) -> None:
    """The words and numbers of a finding, from records made up here."""
    study = tiny(tmp_path / "made", grid={"seed": list(range(12))}, targets=["test_error"])
    study = replace(study, admission=(Rule.of("train_error <= 0.1"),))
    planned, draws = cells(study), np.random.default_rng(2)
    sharp, wrong = draws.permutation(12.0 + np.arange(12)), draws.permutation(np.arange(12) / 50)
    with Store.open(study.store) as store:
        store.add(planned)
        for i, cell in enumerate(planned):
            targets = {"test_error": wrong[i], "train_error": 0.2 if i < 2 else 0.05}
            store.record(cell.key, targets=targets, measures={"trace": {"value": sharp[i], "stderr": 0.0}})
    found = study_result(study, *look(study))
    assert (found.planned, found.done, found.admitted) == (12, 12, 10)
    assert len(Pool.of(study, *look(study)).counted) == 10
    one = found.findings.of("trace", "test_error")
    expected = kendalltau(sharp[2:], wrong[2:])
    assert one.tau == pytest.approx(expected.statistic)
    assert one.p == pytest.approx(expected.pvalue, abs=0.02)
    assert "10 of 12 planned runs are included: those that are finished and have train_error <= 0.1." in found.words[0]
    assert expected.pvalue > 0.1
    assert one.verdict == "cannot tell"
    assert "10 runs of 1 configuration cannot tell whether sharpness predicts test_error" in found.words[1]
    renote(study, look(study)[0])
    with Store.reading(study.store) as store:
        page = content(store)
    assert page["findings"] == json_safe(found.findings.to_dict(), str)
    assert page["findings"]["sentence"] == found.findings.sentence


@pytest.mark.parametrize(("sign", "says"), [(1, "predicts"), (-1, "predicts the opposite")])
def test_what_predicts_is_said_to(tmp_path: Path, sign: int, says: str) -> None:
    study = tiny(tmp_path / "clear", grid={"seed": list(range(20))}, targets=["test_error"])
    planned = cells(study)
    with Store.open(study.store) as store:
        store.add(planned)
        for i, cell in enumerate(planned):
            value = sign * (i + 2 * (i % 2))
            store.record(cell.key, targets={"test_error": i / 100}, measures={"trace": {"value": value}})
    found = study_result(study, *look(study))
    assert found.findings.of("trace", "test_error").verdict == says
    assert f"trace {says} {'for ' if sign < 0 else ''}test_error" in found.words[1]
    json.dumps(found.to_dict(), default=str)


def test_a_pool_of_checkpoints(tmp_path: Path, done: Study) -> None:
    """Weights of trained runs as files with a table of errors: the same measures, and the errors that were given."""
    runs = look(done)[1].runs
    with (tmp_path / "errors.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["checkpoint", "test_error", "family"])
        for i, one in enumerate(runs):
            trained = open_run(done.folder / "runs" / one.key)
            save_file(trained.weights(), tmp_path / f"{i}.safetensors")
            rows.writerow([f"{i}.safetensors", one.targets["test_error"] + 0.001 * i, "ab"[i % 2]])
    given = {
        "base": {**BASE, "seed": 0}, "pool": f"{tmp_path}/*.safetensors", "errors": str(tmp_path / "errors.csv"),
        "measures": ["worst_l2@0.1"], "targets": ["test_error", "train_error"], "groups": ["family"],
        "standardise": "none", "out": str(tmp_path / "pool"),
    }  # fmt: skip
    study = Study.of(given, "pool")
    assert run(study, Serial()).done == 4
    found = look(study)[1].runs
    given_errors = [r.targets["test_error"] + 0.001 * i for i, r in enumerate(runs)]
    assert [r.targets["test_error"] for r in found] == given_errors
    assert [r.targets["train_error"] for r in found] == pytest.approx([r.targets["train_error"] for r in runs])
    assert all("test_error" not in r.target_errors for r in found)
    assert [r.groups["family"] for r in found] == ["a", "b", "a", "b"]
    for one, other in zip(found, runs, strict=True):
        if other.config["seed"] == 0:
            value = other.measures["worst_l2@0.1"].value
            assert one.measures["worst_l2@0.1"].value == pytest.approx(value, rel=1e-6)
    engine = Counting()
    run(study, engine)
    assert not engine.tasks


def linear(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs))


def three_outputs(shape: tuple[int, ...]) -> nn.Module:
    return linear(shape, 3)


@pytest.mark.parametrize(
    ("base", "normalise", "said"),
    [
        (
            {"model": "test_studies_run:three_outputs"},
            "none",
            "has 3 outputs, and spirals has 2 classes",
        ),
        ({"model": "test_studies_run:linear"}, "none", "0.safetensors: the state dict does not fit the model"),
        (
            {"model": "test_studies_run:three_outputs", "data": "digits"},
            "0.1,0.2/1,1",
            "there are means of 2 channels",
        ),
    ],
)
def test_what_fits_no_file_of_a_pool_is_one_error(
    base: dict[str, Any], normalise: str, said: str, tmp_path: Path
) -> None:
    for i in range(3):
        save_file(three_outputs((64,) if "data" in base else (2,)).state_dict(), tmp_path / f"{i}.safetensors")
    given = {"base": BASE | {"model_options": {}} | base, "pool": f"{tmp_path}/*.safetensors", "normalise": normalise}
    study = Study.of(given | {"measures": [], "out": str(tmp_path / "pool")}, "pool")
    with pytest.raises(InvalidStudy, match=said):
        run(study, Serial())
    assert not study.folder.exists()


def test_a_pool_of_runs_knows_its_errors(tmp_path: Path, done: Study) -> None:
    given = {"pool": f"{done.folder}/runs/*", "measures": ["worst_l2@0.1"], "out": str(tmp_path / "pool")}
    study = Study.of(given, "pool")
    assert run(study, Serial()).done == 4
    mine = {r.config["method"] + str(r.config["seed"]): r for r in look(study)[1].runs}
    for other in look(done)[1].runs:
        found = mine[other.config["method"] + str(other.config["seed"])]
        assert found.targets == pytest.approx(other.targets)
        assert found.rows is not None
        assert other.rows is not None
        assert found.rows.tolist() == other.rows.tolist()
        assert found.measures["worst_l2@0.1"].value == pytest.approx(other.measures["worst_l2@0.1"].value)


def test_rows_are_small_digested_and_in_records(done: Study, tmp_path: Path) -> None:
    """A record that is written and read back has the same rows; one bit that changes is an error."""
    text = write_records(done).read_text()
    copy = replace(done, out=str(tmp_path / "copy"))
    assert import_records(copy, read_records([str(done.folder)])) == (4, 0)
    for ours, theirs in zip(look(done)[1].runs, look(copy)[1].runs, strict=True):
        assert ours.rows is not None
        assert theirs.rows is not None
        assert ours.rows.tolist() == theirs.rows.tolist()
        packed = packed_bits(ours.rows)
        assert len(packed) < len(ours.rows) / 4 + 50
        assert packed in text
        assert packed in export_table(look(done)[1], tmp_path / "runs.csv").read_text()
        assert "test_correct" not in theirs.numbers
    other = packed_bits(~ours.rows).split(":")[1]
    (tmp_path / "records.csv").write_text(text.replace(packed.split(":")[1], other))
    with pytest.raises(ValueError, match="digest does not match"):
        import_records(replace(done, out=str(tmp_path / "again")), read_records([str(tmp_path)]))
