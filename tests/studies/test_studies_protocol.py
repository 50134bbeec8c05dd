"""The protocol in a study's file: budgets, lists in entries, selection on validation rows, and tables."""

from __future__ import annotations

import re
from dataclasses import replace
from math import exp, isnan, log, nan, sqrt
from typing import Any

import numpy as np
import pytest
from scipy import stats
from studies_cells import BASE, contents, tiny

from steppe.studies.cell import Cell, cells
from steppe.studies.engines import Serial
from steppe.studies.plan import Study
from steppe.studies.report.contents import content
from steppe.studies.result import study_result
from steppe.studies.run import open_tasks, run
from steppe.studies.selection import choices, planned_cells, previewed_cells, selection_words, tuned_settings
from steppe.studies.store import Store
from steppe.studies.summary import Summary, full_name, summaries
from steppe.studies.table import Measured, Run, Table


def study(budget: str | None = None, **given: Any) -> Study:
    return Study.of({"base": BASE, "measures": []} | given, "mine", budget)


# ---------------------------------------------------------------- budgets


def test_a_budget_merges_mappings_replaces_lists_and_removes_nulls() -> None:
    given = {
        "base": BASE | {"lr": 0.3},
        "grid": {"seed": [0, 1, 2], "lr": [0.1, 0.2]},
        "budgets": {
            "small": {"base": {"epochs": 1, "model_options": {"width": 4}}, "grid": {"lr": None, "seed": [7]}},
            "whole": {},
        },
    }
    small, whole, plain = study("small", **given), study("whole", **given), study(**given)
    assert [(c.config["seed"], c.config["lr"], c.config["epochs"]) for c in cells(small)] == [(7, 0.3, 1)]
    assert cells(small)[0].config["model_options"] == {"width": 4, "depth": 1}
    assert len(cells(whole)) == len(cells(plain)) == 6
    assert [str(s.folder) for s in (small, plain)] == ["studies/mine/small", "studies/mine"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"budgets": {"a": {"base": {"epoch": 1}}}}, "budgets.a: base.epoch: there is no setting 'epoch'"),
        ({"budgets": {"a": 3}}, "budgets.a takes keys of a study"),
        ({"select": {"by": "test_error", "per": ["method"]}}, "selected on validation rows, by validation_error or"),
        ({"select": {"by": "gap", "per": ["method"]}}, "selected on validation rows"),
        ({"select": {"per": ["method"]}}, "the target validation_error needs validation in base"),
        ({"select": {"per": "metod"}, "base": {"validation": 0.1}}, "select.per: there is no setting or axis 'metod'"),
        ({"select": {"per": []}}, "select.per names the settings"),
        ({"select": {"per": "method", "on": 1}}, "there is no key of select 'on'"),
        ({"table": {"rows": "metod"}}, "table table: there is no setting or axis 'metod'"),
        ({"table": {"rows": "method", "value": ["a", "b"]}}, "several values need `rows: value`"),
        ({"table": {"rows": "method", "as": "procent"}}, "table.as: there is no scale 'procent'"),
        ({"table": {"rows": "epoch"}}, "epochs are columns"),
        ({"table": {"last": 0}}, "table.last is a number of epochs, 1 or more, not 0"),
        ({"table": {"last": 2, "columns": "epoch"}}, "last is for values of runs"),
        ({"table": {"rows": "method", "value": "tau"}}, "rows and columns of tau are of measure, target, group"),
        ({"table": {"rows": "method", "draw": "scatter"}}, "`draw: scatter` and `x: NAME` go together"),
        ({"table": {"rows": "method", "target": "lr"}}, "target is for `value: tau`; a scatter has `x: lr`"),
        ({"table": {"rows": "measure", "value": "tau", "target": "rate"}}, "no setting or axis"),
        ({"table": {"rows": "method", "runs": "last"}}, "there is no runs 'last'"),
        ({"table": [{"rows": "method"}, {"rows": "lr"}]}, "different names"),
        ({"table": {"row": "method"}}, "there is no key of table 'row'"),
    ],
)
def test_wrong_protocols_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        study(**given)


def test_an_unknown_budget_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match=re.escape("there is no budget of this study 'tiny'")):
        study("tiny", budgets={"small": {}})


# ---------------------------------------------------------------- grid


def test_lists_in_entries_are_expanded_and_share_a_label() -> None:
    entry = {
        "label": "F",
        "method": "frob-sam",
        "rho": [0.1, 0.2],
        "method_options.n": [2, 4],
        "augment": ["crop", "flip"],
    }
    made = cells(study(grid={"method": [entry, "none"]}))
    options = [(c.config["rho"], c.config["method_options"], c.config["augment"]) for c in made[:-1]]
    assert options == [(rho, {"n": n}, ["crop", "flip"]) for rho in (0.1, 0.2) for n in (2, 4)]
    assert [c.value("method") for c in made] == ["F"] * 4 + ["none"]
    spelled = {"method": "frob-sam", "rho": 0.1, "method_options": {"n": 2}, "augment": ["crop", "flip"]}
    assert cells(study(grid={"method": [spelled]}))[0].key == made[0].key  # a label is no setting


def test_options_one_by_one_join_those_in_base() -> None:
    base = BASE | {"model_options": {"depth": 1}}
    made = cells(study(base=base, grid={"model_options.width": [4, 8], "seed": [0]}))
    assert [c.config["model_options"] for c in made] == [{"depth": 1, "width": 4}, {"depth": 1, "width": 8}]
    assert [c.name for c in made] == ["width=4", "width=8"]


def test_rho_is_the_root_of_each_run_s_learning_rate() -> None:
    made = cells(study(grid={"method": [{"method": "sam", "rho": "sqrt(lr)"}, "none"], "lr": [0.04, 0.25]}))
    assert [c.config["rho"] for c in made] == [0.2, 0.5, None, None]
    same = cells(study(grid={"method": [{"method": "sam", "rho": 0.2}], "lr": [0.04]}))
    assert same[0].key == made[0].key
    default = cells(study(base=BASE | {"rho": "sqrt(lr)"}))
    assert default[0].config["rho"] == sqrt(0.1)
    with pytest.raises(ValueError, match="rho takes"):
        study(base=BASE | {"rho": "sqrt(weight_decay)"})


# ---------------------------------------------------------------- selection

SWEEP: dict[str, Any] = {
    "base": BASE | {"validation": 0.2},
    "grid": {"method": [{"label": "SGD", "method": "none", "lr": [0.1, 0.2]}, "sam"], "seed": [0, 1]},
    "select": {"per": ["method"], "runs": {"seed": [5, 6, 7]}, "base": {"validation": 0.0}},
}


def finished(cell: Cell, **numbers: Any) -> Run:
    targets = {k: v for k, v in numbers.items() if k != "measures"}
    return Run(cell.key, cell.name, cell.config, cell.groups, "done", targets, numbers.get("measures", {}))


def swept(errors: list[float], test: list[float] | None = None) -> tuple[Study, Table]:
    made = study(**SWEEP)
    runs = [finished(c, validation_error=e) for c, e in zip(cells(made), errors, strict=True)]
    if test is not None:
        runs = [replace(r, targets={**r.targets, "test_error": t}) for r, t in zip(runs, test, strict=True)]
    return made, Table(runs)


def test_the_lowest_mean_over_seeds_wins_whatever_the_test_rows_say() -> None:
    made, table = swept([0.1, 0.5, 0.2, 0.3, 0.9, 0.9], test=[0.0, 0.0, 1.0, 1.0, 0.5, 0.5])
    sgd, sam = choices(made, table)  # 0.3 against 0.25: the one run with 0.1 does not decide
    assert sgd.cell is not None
    assert sgd.cell.config["lr"] == 0.2
    assert (sgd.trials, sgd.seeds, sgd.ties, sgd.failed) == (2, 2, 0, 0)
    assert (sgd.score, sgd.error) == pytest.approx((0.25, np.std([0.2, 0.3], ddof=1) / sqrt(2)))
    assert sam.trials == 1
    final = [c for c in planned_cells(made, table) if c.stage == "final"]
    assert [(c.value("method"), c.config["lr"], c.config["seed"], c.config["validation"]) for c in final] == [
        *(("SGD", 0.2, seed, 0.0) for seed in (5, 6, 7)),
        *(("sam", 0.1, seed, 0.0) for seed in (5, 6, 7)),
    ]


def test_final_runs_are_compared_whatever_was_tuned(tmp_path: Any) -> None:
    made = replace(study(**SWEEP), out=str(tmp_path))
    sweep = [finished(c, validation_error=e) for c, e in zip(cells(made), [0.5, 0.5, 0.2, 0.3, 0.9, 0.9], strict=True)]
    final = [c for c in planned_cells(made, Table(sweep)) if c.stage == "final"]
    runs = sweep + [finished(c, test_error=0.3 + 0.1 * (c.value("method") == "sam")) for c in final]
    assert {c.config["lr"] for c in final} == {0.1, 0.2}
    assert tuned_settings(made) == ["lr"]
    result = study_result(made, [*cells(made), *final], Table(runs), tuned_settings(made))
    (sam,) = (c for c in result.findings.comparisons if c.target == "test_error")
    assert (sam.pairs, round(sam.difference, 9)) == (3, 0.1)


def test_a_configuration_with_a_failed_run_cannot_win() -> None:
    made, table = swept([0.1, 0.1, 0.2, 0.3, 0.9, 0.9])
    table.runs[1] = replace(table.runs[1], state="failed", targets={})
    sgd = choices(made, table)[0]
    assert sgd.cell is not None
    assert (sgd.cell.config["lr"], sgd.failed) == (0.2, 1)


def test_nothing_is_chosen_before_all_runs_have_ended() -> None:
    made, table = swept([0.1, 0.1, 0.2, 0.3, 0.9, 0.9])
    short = Table(table.runs[:-1])
    assert [c.cell is None for c in choices(made, short)] == [False, True]
    assert {c.value("method") for c in planned_cells(made, short) if c.stage == "final"} == {"SGD"}
    assert len(previewed_cells(made)) == 6 + 6
    seen = [c for c in previewed_cells(made, short) if c.stage == "final"]  # some setting in the place of SAM's
    assert [(c.value("method"), c.config["lr"]) for c in seen] == [("SGD", 0.1)] * 3 + [("sam", 0.1)] * 3


def test_trials_are_not_among_the_runs_that_could_be_included(tmp_path: Any) -> None:
    made, table = swept([0.5, 0.5, 0.2, 0.3, 0.9, 0.9], test=[0.3] * 6)
    before = study_result(replace(made, out=str(tmp_path)), planned_cells(made, table), table, ["lr"])
    assert before.findings.sentence  # no final run has ended: there is no number to correlate
    final = [c for c in planned_cells(made, table) if c.stage == "final"]
    after = Table([*table.runs, *(finished(c, test_error=0.3) for c in final)])
    result = study_result(replace(made, out=str(tmp_path)), planned_cells(made, after), after, ["lr"])
    assert result.words[0] == "All 6 runs are included."


def test_ties_and_unequal_trials_are_stated() -> None:
    made, table = swept([0.2, 0.2, 0.2, 0.2, 0.9, 0.9])
    chosen = choices(made, table)
    assert chosen[0].cell is not None
    assert (chosen[0].cell.config["lr"], chosen[0].ties) == (0.1, 1)  # the first in the file
    words = " ".join(selection_words(made, chosen))
    assert "SGD 2, sam 1" in words
    assert "different tuning budgets" in words
    assert "1 more tie" in words


def test_both_stages_run_resume_and_measure_the_final_runs_only(tmp_path: Any) -> None:
    made = tiny(tmp_path / "study", **SWEEP, measures=["grad_norm"], table={"rows": "method"})
    result = run(made, Serial(), progress=False)
    assert (result.planned, result.done, result.admitted) == (12, 12, 6)
    with Store.reading(made.store) as store:
        runs = {r.key: r for r in store.table().runs}
        assert {bool(runs[c.key].measures) for c in planned_cells(made, store.table()) if c.stage == "final"} == {True}
        assert not any(runs[c.key].measures for c in cells(made))
        page = content(store)
        assert page["runs"]["admitted"].count(True) == 6  # a page that computes its own findings counts the same runs
        assert page["findings"] == content(store, result.findings)["findings"]
    (table,) = result.tables
    assert [(e.row, e.n) for e in table.entries] == [("SGD", 3), ("sam", 3)]
    before = contents(made)
    assert run(made, Serial(), progress=False).tables == result.tables
    assert contents(made) == before


# ---------------------------------------------------------------- tables


def tabled(numbers: list[float], **spec: Any) -> Summary:
    """A table over two methods, two learning rates and three seeds."""
    given = {"rows": "method", "columns": "lr"} | spec
    made = study(grid={"method": ["none", "sam"], "lr": [0.1, 0.2], "seed": [0, 1, 2]}, table=given)
    planned = cells(made)
    runs = [
        finished(c, test_error=x, measures={"trace": Measured(10 * x)}) for c, x in zip(planned, numbers, strict=True)
    ]
    return summaries(made, planned, Table(runs), lambda key: [])[0]


NUMBERS = list(np.random.default_rng(0).uniform(0.1, 0.6, 12))


def test_a_cell_is_a_mean_with_student_s_interval() -> None:
    table = tabled(NUMBERS, **{"as": "accuracy percent"})
    assert (list(table.rows), list(table.columns)) == (["none", "sam"], ["0.1", "0.2"])
    entry = table.entry("sam", "0.2")
    ours = 100 - 100 * np.array(NUMBERS[9:])
    assert entry is not None
    assert (entry.value, entry.error, entry.n) == pytest.approx((ours.mean(), stats.sem(ours), 3))
    assert (entry.low, entry.high) == pytest.approx(stats.t.interval(0.95, 2, ours.mean(), stats.sem(ours)))


def test_differences_are_paired_by_seed() -> None:
    table = tabled(NUMBERS, reference="none")
    entry = table.entry("sam", "0.1")
    assert entry is not None
    expected = stats.ttest_rel(NUMBERS[6:9], NUMBERS[:3]).confidence_interval(0.95)
    assert (entry.difference_low, entry.difference_high) == pytest.approx((expected.low, expected.high))
    assert entry.pairs == 3
    reference = table.entry("none", "0.1")
    assert reference is not None
    assert reference.pairs == 0


def test_tables_of_the_same_numbers_are_equal() -> None:
    """Also where an error is nan, because a cell has one run, whichever nan it is."""
    (entry,) = tabled(NUMBERS, where={"method": "sam", "lr": 0.1, "seed": 0}).entries
    assert isnan(entry.error)
    again = replace(entry, error=float("inf") - float("inf"))
    assert entry == again
    assert hash(entry) == hash(again)
    assert entry != replace(entry, value=entry.value + 1)
    assert entry != replace(entry, error=0.0)


def test_scales_ratios_values_labels_and_conditions() -> None:
    ratio = tabled(NUMBERS, value="trace", reference="none", **{"as": "ratio"}).entry("sam", "0.1")
    assert ratio is not None
    assert ratio.value == pytest.approx(np.mean(NUMBERS[6:9]) / np.mean(NUMBERS[:3]))
    logs = tabled(NUMBERS, value="trace", **{"as": "log"}).entry("none", "0.1")
    assert logs is not None
    assert logs.value == pytest.approx(np.mean([log(10 * x) for x in NUMBERS[:3]]))
    several = tabled(
        NUMBERS, rows=["method", "lr"], columns="value", value=["test_error", "trace"], labels={"trace": "tr"}
    )
    assert list(several.rows) == ["none 0.1", "none 0.2", "sam 0.1", "sam 0.2"]
    assert list(several.columns) == ["test_error", "tr"]
    few = tabled(NUMBERS, where={"method": "sam", "lr": [0.1]})
    assert [(e.row, e.column) for e in few.entries] == [("sam", "0.1")]
    mixed = tabled(NUMBERS, columns=None)
    assert "Means are over runs that also differ in lr." in mixed.notes
    assert [e.n for e in mixed.entries] == [6, 6]
    assert list(mixed.columns) == ["test_error"]


def test_a_scatter_has_slopes() -> None:
    table = tabled(NUMBERS, draw="scatter", x="trace", **{"as": {"trace": "log"}})
    (said,) = [note for note in table.notes if note.startswith("Slopes")]
    for name, ys in (("none", NUMBERS[:6]), ("sam", NUMBERS[6:])):
        fitted = stats.linregress([log(10 * y) for y in ys], ys)
        width = stats.t.ppf(0.975, 4) * fitted.stderr
        slope, low, high = (f"{v:.2f}" for v in (fitted.slope, fitted.slope - width, fitted.slope + width))
        assert f"{name} {slope} ({low} to {high}), n = 6" in said
    minutes = tabled(NUMBERS, value="trace", **{"as": "minutes"}).entry("none", "0.1")
    assert minutes is not None
    assert minutes.value == pytest.approx(np.mean(NUMBERS[:3]) / 6)


def test_runs_without_the_number_are_stated() -> None:
    table = tabled(NUMBERS, value="lambda_max")
    assert not table.entries
    assert "Runs without lambda_max do not enter it." in table.notes


def test_curves_are_columns_by_epoch() -> None:
    made = study(
        grid={"method": ["none", "sam"], "seed": [0, 1]}, table={"rows": "method", "columns": "epoch", "value": "trace"}
    )
    planned = cells(made)
    table = Table([finished(c, test_error=0.1) for c in planned])

    def curves(key: str) -> list[dict[str, Any]]:
        at = [c.key for c in planned].index(key)
        return [{"epoch": e, "measures": {"trace": {"value": 10.0 * e + at}}} for e in (9, 10)] + [{"epoch": 11}]

    made_table = summaries(made, planned, table, curves)[0]
    assert list(made_table.columns) == ["9", "10"]
    assert [(e.row, e.column, e.value) for e in made_table.entries] == [
        ("none", "9", 90.5), ("none", "10", 100.5), ("sam", "9", 92.5), ("sam", "10", 102.5)
    ]  # fmt: skip


def test_the_mean_over_the_last_epochs_of_each_run() -> None:
    given = {"rows": "method", "value": "trace", "as": "log", "last": 2, "reference": "none"}
    made = study(grid={"method": ["none", "sam"], "seed": [0, 1]}, table=given)
    planned = cells(made)
    table = Table([finished(c, test_error=0.1) for c in planned])
    not_measured = {"epoch": 10, "train_loss": 1.0}

    def curves(key: str) -> list[dict[str, Any]]:
        at = 1 + [c.key for c in planned].index(key)
        return [{"epoch": e, "measures": {"trace": {"value": exp(e * at)}}} for e in (1, 5, 9)] + [not_measured]

    entries = summaries(made, planned, table, curves)[0].entries
    assert [(e.row, e.value, e.n) for e in entries] == [
        ("none", pytest.approx(7 * 1.5), 2),
        ("sam", pytest.approx(7 * 3.5), 2),
    ]
    assert entries[1].difference == pytest.approx(14)

    # one epoch that has it; a number that is none
    diverged = {"epoch": 11, "measures": {"trace": {"value": nan}}}
    for broken in (
        lambda key: curves(key)[2:],
        lambda key: [*curves(key), diverged],
    ):
        shown = summaries(made, planned, table, broken)[0]
        assert not shown.entries
        assert "Runs without trace do not enter it." in shown.notes


def test_correlations_are_the_findings() -> None:
    grid = {"lr": [0.01 * k for k in range(1, 9)], "method": ["none", "sam"]}
    spec = {"rows": "measure", "columns": "target", "value": "tau", "labels": {"trace": "tr(H)"}}
    given = {"grid": grid, "measures": ["trace", "loss"], "targets": ["test_error", "gap"], "groups": "method"}
    by_group = {"name": "groups", "rows": "measure", "columns": "group", "value": "tau"}
    made = study(**given, table=[spec, by_group])
    rng, planned = np.random.default_rng(1), cells(study(**given))
    rows = rng.normal(size=(len(planned), 4))
    runs = [
        finished(c, test_error=r[0], gap=r[1], measures={"trace": Measured(r[0] + r[2]), "loss": Measured(r[3])})
        for c, r in zip(planned, rows, strict=True)
    ]
    table, groups = summaries(made, planned, Table(runs), lambda key: [])
    entry = table.entry("tr(H)", "test_error")
    assert entry is not None
    assert entry.value == pytest.approx(stats.kendalltau(rows[:, 0] + rows[:, 2], rows[:, 0]).statistic)
    assert entry.low < entry.value < entry.high
    assert len(table.entries) == 4
    assert [(e.row, e.column, e.n) for e in groups.entries] == [
        (m, f"method={g}", 8) for m in ("trace", "loss") for g in ("none", "sam")
    ]


def test_correlations_with_a_setting() -> None:
    """Tau of sharpness with the learning rate, over all runs and in groups; a scatter shows the same numbers."""
    grid = {"lr": [0.01 * k for k in range(1, 9)], "method": ["none", "sam"]}
    tau = {"rows": "measure", "columns": "target", "value": "tau", "target": "lr"}
    tables = [
        tau | {"name": "all"},
        tau | {"name": "groups", "columns": "group"},
        {"name": "points", "rows": "method", "value": "trace", "draw": "scatter", "x": "lr"},
    ]
    measures = ["trace", "worst_l2@0.1[m=8]", "worst_l2@0.1[m=4]", "worst_l2@0.2[m=8]"]
    given = {"grid": grid, "measures": measures, "targets": ["test_error"], "groups": "method"}
    made = study(**given, table=tables)
    values = np.random.default_rng(2).normal(size=(16, 4))
    planned = cells(study(**given))
    runs = [
        finished(c, test_error=0.5, measures={m: Measured(x) for m, x in zip(measures, v, strict=True)})
        for c, v in zip(planned, values, strict=True)
    ]
    over_all, groups, points = summaries(made, planned, Table(runs), lambda key: [])
    rates = [c.config["lr"] for c in planned]
    assert [e.row for e in over_all.entries] == [  # options are in a name where another measure differs in them alone
        "trace", "worst_l2@0.1[m=8]", "worst_l2@0.1[m=4]", "worst_l2@0.2"
    ]  # fmt: skip
    agree = np.sign(np.subtract.outer(rates, rates)) * np.sign(np.subtract.outer(values[:, 0], values[:, 0]))
    assert over_all.entries[0].value == pytest.approx(agree.sum() / (16 * 15))  # tau-a: equal rates count zero
    plain = [k for k, c in enumerate(planned) if c.config["method"] == "none"]
    within = groups.entry("worst_l2@0.2", "method=none")
    assert within is not None
    assert within.value == pytest.approx(stats.kendalltau(np.array(rates)[plain], values[plain, 3]).statistic)
    assert sorted(points.points["none"]) == sorted((rates[k], values[k, 0]) for k in plain)


def test_a_measure_may_be_named_with_a_part_of_its_options() -> None:
    measures = ["trace", "worst_l2@0.1[m=8,steps=1]", "worst_l2@0.1[m=4,steps=1]", "worst_l2@0.2[m=8]"]
    assert full_name("trace", measures) == "trace"
    assert full_name("worst_l2@0.2", measures) == "worst_l2@0.2[m=8]"
    assert full_name("worst_l2@0.1[m=4]", measures) == "worst_l2@0.1[m=4,steps=1]"
    for other in ("worst_l2@0.1", "worst_l2", "worst_l2@0.1[m=2]", "test_error"):  # two fit, or none
        assert full_name(other, measures) == other


def test_errors_by_severity_are_those_of_runs_with_one_severity(tmp_path: Any) -> None:
    base = BASE | {"data": "digits", "corruptions": ["contrast", "gaussian_noise"], "data_root": str(tmp_path)}
    made = tiny(
        tmp_path / "study", base=base, grid={"severities": [[1, 5], [5]]}, measures=[], targets=["corrupted_error"]
    )
    run(made, Serial(), progress=False)
    with Store.reading(made.store) as store:
        both, one = (r.targets for r in store.table().runs)
    assert both["corrupted_error@5"] == pytest.approx(one["corrupted_error"])
    assert both["corrupted_error@1"] + both["corrupted_error@5"] == pytest.approx(2 * both["corrupted_error"])


def test_a_sweep_is_not_measured_along_its_epochs() -> None:
    """Selection needs validation rows only; final runs are measured."""
    select = {"per": ["method"], "runs": {"seed": [5]}, "base": {"validation": 0.0}}
    given = {"base": BASE | {"validation": 0.2}, "grid": {"seed": [0, 1]}, "measures": ["loss"], "measure_every": 1}
    both = study(**given, select=select)
    tasks = {t.cell.stage: t for t in open_tasks(both, previewed_cells(both), Table([]), both.measures)}
    assert (tasks["sweep"].measures, tasks["sweep"].along, tasks["sweep"].measure_every) == ([], (), None)
    assert (tasks["final"].measures, tasks["final"].along, tasks["final"].measure_every) == (["loss"], ("loss",), 1)
