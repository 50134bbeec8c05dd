"""Ensembles as cells of a study: numbers against weights on disk, keys, and that interruptions change nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from studies_cells import BASE, Counting, contents, tiny
from torch.nn.functional import cross_entropy

from steppe import measure
from steppe._util.digests import unpacked_bits
from steppe.core.draw import permutation
from steppe.data.corruptions import corrupted
from steppe.ensembles import members_of
from steppe.ensembles.scores import SCORES, scored
from steppe.studies.cell import Task, cells
from steppe.studies.check import InvalidStudy
from steppe.studies.engines import Local, Serial
from steppe.studies.grid import split
from steppe.studies.plan import Study
from steppe.studies.run import look, run
from steppe.studies.selection import choices, planned_cells
from steppe.studies.statistics.design import design_of
from steppe.studies.store import Store
from steppe.studies.summary import summaries
from steppe.studies.work import work
from steppe.training import Config, open_run, train

DIGITS: dict[str, Any] = BASE | {
    "data": "digits", "lr": 0.2, "validation": 0.2, "corruptions": ["fog", "contrast"], "severities": [2, 4],
    "strategy": "sharpbalance", "members": 3, "rho": 0.1, "share": 0.3,
}  # fmt: skip
KEYS = ["2ff813ca7f7fa80f", "2a87c07432507ce9", "dead5ad94e819d68", "7810d2536613f069"]
MEASURES = ["lambda_max", "der", "der[rows=corrupted]", "member_accuracy[rows=validation]", "logit_variance", "kl"]
TARGETS = ["test_error", "corrupted_error", "validation_error", "gap", "test_loss"]


def study(out: Path, **changes: Any) -> Study:
    return tiny(out, **({"base": DIGITS, "grid": {"seed": [0]}, "measures": MEASURES, "targets": TARGETS} | changes))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Study:
    made = study(tmp_path_factory.mktemp("ensembles") / "done")
    assert run(made, Serial()).done == 1
    return made


def test_numbers_are_those_of_the_members(done: Study) -> None:
    """Mean logits of the weights on disk, and loops over rows and pairs."""
    (found,) = look(done)[1].runs
    runs = [open_run(done.folder / "runs" / found.key / f"member-{i}") for i in range(3)]
    assert [r.config.seed for r in runs] == [0, 1, 2]
    assert all(r.finished and r.config.sharp_rows == "exchanged@1" and r.config.rho == 0.1 for r in runs)
    splits, standard = runs[0].data(), runs[0].task.standard

    def outputs(*parts: Any) -> tuple[np.ndarray, np.ndarray]:
        with torch.no_grad():
            logits = torch.cat([torch.stack([r.model()(standard(p.inputs)) for r in runs]) for p in parts], 1)
        return logits.double().numpy(), torch.cat([p.targets for p in parts]).numpy()

    def error(logits: np.ndarray, y: np.ndarray) -> float:
        return float((logits.mean(0).argmax(-1) != y).mean())

    test, validation, training = (outputs(p) for p in (splits.test, splits.validation, splits.train))
    damaged = outputs(*(corrupted(splits.test, name, s) for name in ("fog", "contrast") for s in (2, 4)))
    assert found.targets["test_error"] == pytest.approx(error(*test))
    assert found.targets["validation_error"] == pytest.approx(error(*validation))
    assert found.targets["corrupted_error"] == pytest.approx(error(*damaged))
    assert found.targets["gap"] == pytest.approx(error(*test) - error(*training))
    nll = cross_entropy(torch.tensor(test[0].mean(0)), torch.tensor(test[1]))
    assert found.targets["test_loss"] == pytest.approx(float(nll), rel=1e-5)
    wrong = error(*test)
    assert found.target_errors["test_error"] == pytest.approx((wrong * (1 - wrong) / len(test[1])) ** 0.5)

    def ratio(logits: np.ndarray, y: np.ndarray) -> float:
        guesses = logits.argmax(-1)
        apart = fmean(float((guesses[i] != guesses[j]).mean()) for i, j in permutations(range(3), 2))
        return apart / float((guesses != y).mean())

    value = {name: m.value for name, m in found.measures.items()}
    assert value["der"] == pytest.approx(ratio(*test))
    assert value["der[rows=corrupted]"] == pytest.approx(ratio(*damaged))
    assert value["der"] != pytest.approx(value["der[rows=corrupted]"])
    assert value["logit_variance"] == pytest.approx(test[0].var(0, ddof=1).sum(-1).mean(), rel=1e-5)
    right = [float((one.argmax(-1) == validation[1]).mean()) for one in validation[0]]
    assert value["member_accuracy[rows=validation]"] == pytest.approx(fmean(right))
    alone = [
        measure(r.model(), cross_entropy, r.objective().batches, "lambda_max", seed=r.config.seed, progress=False)
        for r in runs
    ]
    eigenvalues = [a["lambda_max"].value for a in alone]
    assert value["lambda_max"] == pytest.approx(fmean(eigenvalues), rel=1e-3)
    assert found.measures["lambda_max"].stderr == pytest.approx(np.std(eigenvalues, ddof=1) / 3**0.5, rel=1e-2)
    assert found.measures["lambda_max"].n == 3
    assert found.meta["passes"] == sum(r["passes"] for one in runs for r in one.records)
    with Store.reading(done.store) as store:
        curves = store.curves(found.key)
    assert [r["epoch"] for r in curves] == [1, 2]
    assert curves[1]["train_loss"] == pytest.approx(fmean(r.records[1]["train_loss"] for r in runs))


def test_engines_interruptions_and_later_measures_give_the_same(done: Study, tmp_path: Path) -> None:
    engine = Counting()
    assert run(done, engine).done == 1
    assert not engine.tasks
    again = study(tmp_path / "again", measures=MEASURES[:2])
    (cell,) = cells(again)
    config, ensemble = split(cell.config)
    assert ensemble is not None
    first = members_of(replace(config, out=again.run_folder(cell.key)), ensemble)[0]
    train(first, until=1)  # a worker that was lost after the first epoch of the first member
    assert run(again, Local(workers=1)).done == 1
    assert run(study(tmp_path / "again"), Serial()).done == 1  # more measures, and nothing is trained
    assert contents(again) == contents(done)


def test_keys_of_runs_are_as_they_were_before_there_were_ensembles(tmp_path: Path) -> None:
    assert [c.key for c in cells(tiny(tmp_path))] == KEYS


def test_settings_that_a_strategy_does_not_read_make_no_cells(tmp_path: Path) -> None:
    grid = {"strategy": ["deep", "deep+sam", "sharpbalance", "sam+"], "rho": [0.1, 0.2], "share": [0.3, 0.5]}
    base = {k: v for k, v in DIGITS.items() if k not in ("strategy", "rho", "share")}
    planned = cells(study(tmp_path, base=base, grid=grid, groups=["strategy", "share"]))
    assert [c.name for c in planned] == [
        "deep", "deep+sam rho=0.1", "deep+sam rho=0.2", "sharpbalance rho=0.1 share=0.3",
        "sharpbalance rho=0.1 share=0.5", "sharpbalance rho=0.2 share=0.3", "sharpbalance rho=0.2 share=0.5", "sam+",
    ]  # fmt: skip
    assert planned[0].groups == {"strategy": "deep", "share": None}
    assert [c.config["method"] for c in planned[:2]] == ["none", "sam"]


def test_ensembles_are_repeated_with_seeds_of_their_members(tmp_path: Path) -> None:
    base = {k: v for k, v in DIGITS.items() if k != "corruptions"} | {"strategy": "deep", "members": 2}
    made = study(tmp_path, base=base, grid={"seeds": [[13, 17], [43, 59]]}, measures=["der"], targets=["test_error"])
    assert run(made, Serial()).done == 2
    for found, seeds in zip(look(made)[1].runs, ([13, 17], [43, 59]), strict=True):
        folder = made.folder / "runs" / found.key
        assert [open_run(folder / f"member-{i}").config.seed for i in range(2)] == seeds
        assert [open_run(folder / f"member-{i}").config.data_seed for i in range(2)] == [0, 0]


def test_ensembles_with_other_seeds_are_one_configuration(tmp_path: Path) -> None:
    """Selected by their mean over seeds, paired by them in tables, and one cluster in verdicts."""
    base = {k: v for k, v in DIGITS.items() if k != "corruptions"} | {"strategy": "deep+sam", "members": 2}
    made = study(
        tmp_path,
        base=base,
        grid={"rho": [0.05, 0.1], "seeds": [[1, 2], [3, 4]]},
        select={"per": ["strategy"], "runs": {"seeds": [[13, 17], [43, 59]]}, "base": {"validation": 0.0}},
        measures=["der"],
        targets=["test_error"],
        table={"rows": "rho", "value": "test_error", "reference": "0.05", "runs": "sweep"},
    )
    assert run(made, Serial()).done == 6
    table = look(made)[1]
    (chosen,) = choices(made, table)
    assert (chosen.trials, chosen.seeds, chosen.varied) == (2, 2, ["rho"])
    errors = {(r.config["rho"], r.config["seeds"][0]): r.targets for r in table.runs if r.config["validation"] > 0}
    means = {rho: fmean(errors[rho, s]["validation_error"] for s in (1, 3)) for rho in (0.05, 0.1)}
    assert chosen.score == min(means.values())
    (summary,) = summaries(made, planned_cells(made, table), table, lambda key: [])
    entry = summary.entry("0.1", "test_error")
    assert entry is not None
    assert entry.pairs == 2
    differences = [errors[0.1, s]["test_error"] - errors[0.05, s]["test_error"] for s in (1, 3)]
    assert entry.difference == pytest.approx(fmean(differences))
    assert not [note for note in summary.notes if "also differ" in note]
    swept = table.where(lambda r: r.config["validation"] > 0)
    assert sorted(design_of(swept).configuration.tolist()) == [0, 0, 1, 1]


def test_members_are_measured_along_their_runs(tmp_path: Path) -> None:
    made = study(tmp_path, measures=["loss", "loss[rows=corrupted]", "der"], measure_every=1)
    assert run(made, Serial()).done == 1
    (found,) = look(made)[1].runs
    runs = [open_run(made.folder / "runs" / found.key / f"member-{i}") for i in range(3)]
    with Store.reading(made.store) as store:
        curves = store.curves(found.key)
    for record, *members in zip(curves, *(r.records for r in runs), strict=True):
        assert record["loss"] == pytest.approx(fmean(r["measures"]["loss"]["value"] for r in members))
        assert "loss[rows=corrupted]" not in record  # corrupted rows are read once, for the trained ensemble
    assert curves[0]["loss"] != curves[1]["loss"] == pytest.approx(found.measures["loss"].value)
    test, standard = runs[0].data().test, runs[0].task.standard
    damaged = [corrupted(test, name, s) for name in ("fog", "contrast") for s in (2, 4)]
    x, y = (torch.cat([getattr(d, part) for d in damaged]) for part in ("inputs", "targets"))
    chosen = permutation(len(y), 0)[: BASE["measure_rows"]].sort().values
    with torch.no_grad():
        losses = [float(cross_entropy(r.model()(standard(x[chosen])), y[chosen])) for r in runs]
    assert found.measures["loss[rows=corrupted]"].value == pytest.approx(fmean(losses), rel=1e-5)
    assert found.meta["exchange_seconds"] > 0
    trained = sum(r["seconds"] for one in runs for r in one.records)
    assert found.meta["training_seconds"] == pytest.approx(trained + found.meta["exchange_seconds"])
    begun = study(tmp_path, measures=["loss", "grad_norm", "der"], measure_every=2)  # it keeps the records that it has
    assert run(begun, Serial()).done == 1
    assert "grad_norm" in look(begun)[1].runs[0].measures


def test_a_run_among_ensembles_has_no_diversity(tmp_path: Path) -> None:
    base = {k: v for k, v in BASE.items() if k != "rho"}
    grid = {"kind": [{"method": "none"}, {"strategy": "deep", "members": 1}, {"strategy": "deep", "members": 2}]}
    assert run(tiny(tmp_path, base=base, grid=grid, measures=["loss", "der"]), Serial()).done == 3
    one, lonely, two = look(tiny(tmp_path, base=base, grid=grid, measures=["loss", "der"]))[1].runs
    assert "this is one model" in one.failures["der"]
    assert "two members" in lonely.failures["der"]
    assert two.measures["der"].value >= 0
    assert lonely.measures["loss"].value == pytest.approx(one.measures["loss"].value)  # seed 0, without a method


def test_scores_have_these_names() -> None:
    logits = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(0))
    assert tuple(scored(logits, torch.arange(20) % 4)) == SCORES


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"base": BASE | {"members": 3}, "targets": ["gap"]}, "members is a setting of an ensemble, and this is none"),
        ({"base": DIGITS | {"strategy": "sharpbalence"}}, "Did you mean 'sharpbalance'"),
        ({"base": DIGITS | {"strategy": "sam+", "members": 2}}, "2 members and 3 member_radii"),
        ({"base": DIGITS | {"how": "processes"}}, "how cannot be given here"),
        ({"base": DIGITS | {"seeds": [1, 1, 2]}}, "3 different numbers"),
        ({"base": DIGITS | {"exchange_at": 2}}, "the run has 2"),
        ({"base": DIGITS | {"share": 2.0}}, "share is 2.0"),
        ({"base": BASE, "targets": ["test_error"]}, "der is a score of ensembles"),
        ({"measures": ["der[rows=some]"]}, "takes rows only: train, validation, test, corrupted"),
    ],
)  # fmt: skip
def test_refused_before_training(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises((InvalidStudy, ValueError), match=words.replace("[", r"\[")):
        run(study(tmp_path / "none", **changes), Serial())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("ensemble", [True, False])
def test_an_outcome_has_a_bit_for_every_row(ensemble: bool, tmp_path: Path) -> None:
    base = DIGITS if ensemble else {k: v for k, v in DIGITS.items() if k in Config.__match_args__}
    (cell,) = cells(study(tmp_path, base=base, measures=[]))
    outcome = work(Task(cell, str(tmp_path / "run"), [], ["test_error"]))
    assert outcome.correct.keys() == {"test", "validation"}
    for part, bits in outcome.correct.items():
        assert 1 - unpacked_bits(bits).mean() == pytest.approx(outcome.targets[f"{part}_error"])
