"""The design of a study: fresh seeds, settings at random, what their runs share, and what is said before they train."""

from __future__ import annotations

import json
import re
from itertools import combinations
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from studies_cells import BASE, Counting, tiny

from steppe.cli.entry import main
from steppe.comparison import row_floor
from steppe.studies.cell import Cell, cells
from steppe.studies.plan import Study
from steppe.studies.run import look, run
from steppe.studies.selection import planned_cells
from steppe.studies.table import Run, Table

SAM = {"method": "sam", "rho": [0.1, 0.2]}
RADII = {"log_uniform": [0.02, 0.5]}
RATES = {"log_uniform": [0.01, 1]}


def study(**given: Any) -> Study:
    return Study.of(given, "s")


def by(found: list[Cell], *names: str) -> dict[Any, set[int]]:
    """The seeds of cells by these settings."""
    seeds: dict[Any, set[int]] = {}
    for c in found:
        seeds.setdefault(tuple(str(c.value(name)) for name in names), set()).add(c.config["seed"])
    return seeds


# ---------------------------------------------------------------- fresh seeds


def test_fresh_seeds_belong_to_one_setting_and_are_shared_by_the_methods() -> None:
    grid = {
        "method": ["none", SAM, {"method": "sam", "epochs": 7}],
        "lr": [0.05, 0.2],
        "momentum": [0.0, 0.9],
        "seed": 3,
    }
    found = cells(study(grid=grid))
    assert len(found) == 4 * 2 * 2 * 3
    of_settings = by(found, "lr", "momentum")
    assert [len(seeds) for seeds in of_settings.values()] == [3] * 4
    for ours, theirs in combinations(of_settings.values(), 2):
        assert not ours & theirs
    for (_, _, _, lr, momentum), seeds in by(found, "method", "rho", "epochs", "lr", "momentum").items():
        assert seeds == of_settings[lr, momentum]
    assert all(0 <= c.config["seed"] < 2**31 for c in found)


AXES = {
    "lr": [0.01, 0.05, 0.1, 0.2],  # 0.1 is the default
    "batch_size": [32, 128],
    "label_noise": [0.0, 0.2],
    "augment": [[], ["flip"]],
    "model_options": [{}, {"width": 8}],
    "method": ["none", "sam", {"method": "sam", "rho": [0.1, 0.2]}, {"method": "asam", "epochs": 5}],
}
USUAL: dict[str, list[Any]] = {
    "lr": [0.1], "batch_size": [128], "label_noise": [0.0], "augment": [[]], "model_options": [{}], "method": ["sam"],
}  # fmt: skip
LISTS = {name: st.lists(st.sampled_from(values), min_size=1, max_size=2) for name, values in AXES.items()}
SOME = st.sets(st.sampled_from([*AXES]), max_size=2).flatmap(
    lambda names: st.fixed_dictionaries({name: LISTS[name] for name in sorted(names)})
)


@settings(deadline=None, max_examples=25)
@given(axes=SOME, name=st.sampled_from([*AXES]), data=st.data(), seeds=st.integers(1, 2), at=st.integers(0, 5))
def test_a_larger_grid_keeps_the_cells_that_there_are(axes: Any, name: str, data: Any, seeds: int, at: int) -> None:
    """Values added to an axis, methods, seeds, and an axis with the value that the runs had anyway."""
    few = cells(study(base={"seed": at}, grid={**axes, "seed": seeds}))
    larger = {"seed": seeds + 1, **axes, name: axes.get(name, USUAL[name]) + data.draw(LISTS[name])}
    many = cells(study(base={"seed": at}, grid=larger))
    assert {c.key for c in few} <= {c.key for c in many}


def test_the_studys_seed_decides_and_shared_seeds_are_a_list() -> None:
    grid = {"method": ["none", "sam"], "lr": [0.1, 0.2]}
    first, second = (by(cells(study(base={"seed": s}, grid=grid | {"seed": 4})), "lr") for s in (0, 1))
    assert not set.union(*first.values()) & set.union(*second.values())
    shared, listed = (cells(study(grid=grid | {"seed": s})) for s in ({"shared": 3}, [0, 1, 2]))
    assert [c.key for c in shared] == [c.key for c in listed]


def test_data_seeds_are_fresh_too() -> None:
    found = cells(study(grid={"lr": [0.1, 0.2], "data_seed": 2, "seed": 3}))
    assert len(found) == len({c.config["seed"] for c in found}) == 12
    assert len({c.config["data_seed"] for c in found}) == 4


def test_final_runs_have_fresh_seeds_that_the_winners_share() -> None:
    sweep = {
        "base": {"validation": 0.5},
        "grid": {"data": ["digits", "moons"], "method": ["none", SAM], "lr": [0.1, 0.2], "seed": 2},
        "select": {"per": ["data", "method"], "runs": {"seed": 3}, "predict": "all"},
    }
    made = study(**sweep)
    swept = cells(made)
    runs = [Run(c.key, c.name, c.config, {}, "done", {"validation_error": i / 100}) for i, c in enumerate(swept)]
    final = [c for c in planned_cells(made, Table(runs)) if c.stage == "final"]
    assert len(final) == 2 * 2 * 3
    seeds = by(final, "data")
    assert [len(of) for of in seeds.values()] == [3, 3]
    assert not set.intersection(*seeds.values())
    assert not set.union(*seeds.values()) & {c.config["seed"] for c in swept}
    assert all(of == seeds[data,] for (data, _), of in by(final, "data", "method").items())
    assert {c.contender for c in final} == {"none", "sam"}  # what is tuned is in no contender's name


# ---------------------------------------------------------------- settings at random


def test_points_are_independent_runs_unless_they_are_shared() -> None:
    grid = {"method": ["none", {"method": "sam", "rho": RADII}]}
    alone = cells(study(grid=grid, random={"points": 6, "lr": RATES}))
    assert len({c.config["lr"] for c in alone}) == len({c.config["seed"] for c in alone}) == len(alone) == 12
    assert len({c.config["rho"] for c in alone}) == 7  # and none
    shared = cells(study(grid=grid, random={"points": 6, "lr": RATES, "shared": True}))
    pairs = by(shared, "lr")
    assert len(pairs) == 6
    assert [len(seeds) for seeds in pairs.values()] == [1] * 6
    assert {c.contender for c in (*alone, *shared)} == {"none", "sam"}  # a drawn radius is in no name


@settings(deadline=None, max_examples=30)
@given(points=st.integers(1, 8), more=st.integers(0, 8), shared=st.booleans())
def test_more_points_and_methods_keep_the_runs_that_there_are(points: int, more: int, shared: bool) -> None:
    law = {"lr": RATES, "weight_decay": RATES, "shared": shared}
    few = cells(study(grid={"method": [{"method": "sam", "rho": RADII}]}, random={"points": points, **law}))
    methods = ["none", {"method": "asam", "rho": RADII}, {"method": "sam", "rho": RADII}]
    many = cells(study(grid={"method": methods}, random={"points": points + more, **law}))
    assert {c.key for c in few} <= {c.key for c in many}


def test_draws_follow_their_laws_and_are_independent() -> None:
    """Kolmogorov and Smirnov at 1 %, and correlations at four standard errors."""
    space = {
        "lr": RATES,
        "rho": {"uniform": [0, 2]},
        "label_noise": {"uniform": [0, 1]},
        "epochs": {"integers": [1, 4]},
    }
    found = cells(study(random={"points": 500, **space}))
    columns = {
        "lr": [-log(c.config["lr"]) / log(100) for c in found],
        "rho": [c.config["rho"] / 2 for c in found],
        "label_noise": [c.config["label_noise"] for c in found],
        "seed": [c.config["seed"] / 2**31 for c in found],
    }
    for column in columns.values():
        assert max(abs(x - (i + 0.5) / 500) for i, x in enumerate(sorted(column))) < 1.63 / 500**0.5
    correlations = np.corrcoef([*columns.values(), np.roll(columns["lr"], 1)])
    assert np.abs(correlations - np.eye(len(correlations))).max() < 4 / 500**0.5
    assert {c.config["epochs"] for c in found} == {1, 2, 3, 4}


def test_the_earlier_form_draws_what_it_drew() -> None:
    """Keys of studies that were begun with it: written down before the new form existed."""
    earlier = {"n": 2, "seed": 3, "space": {"lr": {"log_uniform": [0.01, 0.1]}, "epochs": {"choice": [2, 3]}}}
    found = cells(study(grid={"method": ["none", "sam"]}, random=earlier))
    assert [c.key for c in found] == KEYS_BEFORE


def test_draws_of_all_laws_are_what_they_were() -> None:
    """Keys written down before comparisons and studies shared their laws: the last bit of a draw is in them."""
    laws = {
        "lr": {"log_uniform": [1e-3, 1]},
        "momentum": {"uniform": [0, 0.9]},
        "epochs": {"integers": [2, 30]},
        "augment": {"choice": [[], ["crop"], ["flip"]]},
    }
    grid = {"method": ["none", {"method": "sam", "rho": {"uniform": [0, 1]}}]}
    found = cells(study(base={"data": "digits"}, grid=grid, random={"points": 7, **laws, "shared": True}))
    assert [c.key for c in found[:4]] == [
        "99ae1e834eea55f4",
        "8c1dd9f3021bf49d",
        "db87f9deb21f7a7d",
        "ee8363bc75e38de1",
    ]


KEYS_BEFORE = ["4d6a971673f7254e", "8255899cc81c8e37", "6800dea48aa3b520", "84afd625941509c5"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"grid": {"seed": 0}}, "grid.seed takes a number of fresh seeds at every combination (5)"),
        ({"grid": {"seed": {"shared": "x"}}}, "a number of seeds that all share ({shared: 5})"),
        ({"grid": {"seed": True}}, "or a list of seeds, not True"),
        ({"grid": {"lr": 5}}, "write `lr: [5]`"),
        ({"grid": {"method": [{"method": "sam", "rho": RADII}]}}, "with `random: {points: 20}` beside it"),
        ({"grid": {"method": [{"method": "sam", "rho": {"log_uniform": [0, 1]}}]}, "random": {"points": 2}}, "above 0"),
        ({"random": {"points": 0, "lr": RATES}}, "points is a whole number, 1 or more"),
        ({"random": {"points": 2, "shared": "yes", "lr": RATES}}, "shared is true or false"),
        ({"random": {"points": 2, "seed": 3, "lr": RATES}}, "every point draws its own seed"),
        ({"random": {"points": 2, "lrs": RATES}}, "Did you mean 'lr'"),
        ({"random": {"points": 2, "lr": 0.1}}, "random.lr takes one of uniform, log_uniform"),
        (
            {"base": {"validation": 0.5}, "select": {"per": ["method"], "predict": "both"}},
            "select.predict: there is no",
        ),
    ],
)
def test_errors_say_what_to_write(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        study(**given)


# ---------------------------------------------------------------- stages


def test_a_sweep_that_predicts_is_measured_and_winners_are_compared(tmp_path: Path) -> None:
    made = tiny(
        tmp_path,
        base=BASE | {"validation": 0.3},
        grid={"method": ["none", {"method": "sam", "rho": RADII}]},
        random={"points": 3, "lr": RATES},
        select={"per": ["method"], "predict": "sweep", "runs": {"seed": 4}},
        measures=["loss"],
        targets=["test_error"],
    )
    engine = Counting()
    result = run(made, engine)
    planned, table = look(made)
    stages = {c.key: c.stage for c in planned}
    assert {stages[r.key] for r in table.runs if r.measures} == {"sweep"}
    assert (result.planned, result.admitted) == (6 + 8, 6 + 8)
    assert {f.n for f in result.findings.findings} == {6}
    (comparison,) = result.findings.comparisons
    assert (comparison.contender, comparison.reference, comparison.pairs) == ("sam", "none", 4)
    engine.tasks.clear()
    run(made, engine)
    assert not engine.tasks
    from steppe.studies.run import study_in

    by_folder = {c.key: (c.stage, c.predicts, c.contender) for c in study_in(tmp_path)[1]}
    assert by_folder == {c.key: (c.stage, c.predicts, c.contender) for c in planned}


# ---------------------------------------------------------------- before the first run


def dry(tmp_path: Path, capsys: Any, **given: Any) -> list[str]:
    """The sentences of `--dry-run` on the design."""
    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({"base": BASE, "measures": ["loss"], "out": str(tmp_path / "s")} | given))
    assert main(["study", "run", str(file), "--dry-run", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["design"]
    assert main(["study", "run", str(file), "--dry-run"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(text in shown for text in said)
    return said


def test_a_dry_run_says_what_the_test_rows_can_show(tmp_path: Path, capsys: Any) -> None:
    from steppe.data.registry import load

    (said,) = dry(tmp_path, capsys, grid={"lr": [0.1, 0.2]})
    rows = len(load("spirals", "data").test)
    low, high = (100 * row_floor(0.1, rows, share) for share in (0.1, 0.5))
    assert said == f"These {rows} test rows can show {low:.1f} to {high:.1f} points at best, at an error of 10 %."


def test_a_dry_run_says_how_few_levels_are_crossed(tmp_path: Path, capsys: Any) -> None:
    _, said = dry(tmp_path, capsys, grid={"method": ["none", SAM], "lr": [0.05, 0.1, 0.2, 0.3], "seed": 2})
    assert "there are only 3 methods" in said
    assert len(dry(tmp_path, capsys, random={"points": 8, "lr": RATES, "rho": RADII})) == 1  # nothing is shared
    drawn = {"grid": {"method": ["none", {"method": "sam", "rho": RADII}]}, "random": {"points": 4, "lr": RATES}}
    assert "without pairs" in dry(tmp_path, capsys, **drawn)[-1]
    drawn["random"]["shared"] = True
    assert "without pairs" not in " ".join(dry(tmp_path, capsys, **drawn))


def test_a_dry_run_says_that_nothing_can_be_paired(tmp_path: Path, capsys: Any) -> None:
    grid = {"budget": [{"method": "none"}, {"method": "sam"}], "seed": 3}
    assert "without pairs" not in " ".join(dry(tmp_path, capsys, grid=grid))
    apart = {"random": {"points": 2, "lr": RATES}, "grid": {"method": ["none", "sam"]}}
    assert "They are compared as independent samples" in dry(tmp_path, capsys, **apart)[-1]


def test_a_run_says_so_before_its_first_cell_trains(tmp_path: Path) -> None:
    engine, said = Counting(), []
    apart = {"random": {"points": 1, "lr": RATES}, "grid": {"method": ["none", "sam"]}}
    made = tiny(tmp_path, **apart, measures=["loss"])
    run(made, engine, announce=lambda text: said.append((text, len(engine.tasks))))
    ((text, trained),) = said
    assert text.startswith("No run of sam has the settings and the seed of a run of none (no other settings")
    assert "lr" in text
    assert trained == 0
    said.clear()
    run(made, engine, announce=said.append)  # nothing is missing
    assert not said


# ---------------------------------------------------------------- another factor


def test_any_setting_can_be_compared_in_pairs(tmp_path: Path) -> None:
    decays = {"weight_decay": [1e-4, 1e-3, 1e-2]}
    grid = {**decays, "method": ["none", "sam"], "lr": [0.05, 0.2], "seed": 2}
    given: dict[str, Any] = {"compare": "weight_decay", "reference": 1e-3, "grid": grid}
    found = cells(study(**given))
    seeds = by(found, "method", "lr")
    assert [len(of) for of in seeds.values()] == [2] * 4
    assert len(set.union(*seeds.values())) == 8  # fresh at every method and rate
    assert {frozenset(of) for of in by(found, "weight_decay").values()} == {frozenset(set.union(*seeds.values()))}
    made = tiny(tmp_path, **given, measures=[], targets=["test_error"])
    result = run(made, Counting())
    compared = result.findings.comparisons
    assert {c.reference for c in compared} == {"weight_decay=0.001"}
    assert [(c.contender, c.pairs) for c in compared] == [("weight_decay=0.0001", 8), ("weight_decay=0.01", 8)]
    from steppe.studies.run import study_in

    by_folder = study_in(tmp_path)[0]
    assert (by_folder.compare, by_folder.reference) == ("weight_decay", 1e-3)


def test_a_setting_or_a_reference_that_is_not_there_is_an_error(tmp_path: Path, capsys: Any) -> None:
    with pytest.raises(ValueError, match="compare: there is no setting or axis 'weight_decy'"):
        study(compare="weight_decy")
    file = tmp_path / "s.yaml"
    content = {"base": BASE, "grid": {"lr": [0.1, 0.2]}, "compare": "lr", "reference": 0.3, "measures": ["loss"]}
    file.write_text(yaml.safe_dump(content | {"out": str(tmp_path / "s")}))
    for more in (["--dry-run"], []):
        assert main(["study", "run", str(file), *more]) == 2
        assert (
            "there is no contender 'lr=0.3'. Did you mean 'lr=0.2' or 'lr=0.1'? There are: lr=0.1, lr=0.2"
            in capsys.readouterr().err
        )
