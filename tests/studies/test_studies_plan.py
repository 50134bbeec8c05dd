"""A study's file: what it may say, which cells follow from it, and how what is wrong in it is answered."""

from __future__ import annotations

import re
import subprocess
import sys
from itertools import product
from math import log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.studies.cell import cells, key_of
from steppe.studies.grid import plain
from steppe.studies.plan import EngineSettings, Rule, Study
from steppe.training.config import Config


def study(**given: Any) -> Study:
    return Study.of(given, "s")


def test_no_torch_is_needed_to_read_a_study() -> None:
    code = (
        "import sys; from steppe.studies.plan import digits; from steppe.studies.cell import cells; "
        "assert len(cells(digits())) >= 30; import steppe.studies.run, steppe.studies.engines.local; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_embedded_study_is_what_it_says() -> None:
    from steppe.studies.plan import digits

    study, found = digits(), cells(digits())
    assert len({c.name for c in found}) == len(found) == 90
    assert {c.config["data"] for c in found} == {"digits"}
    assert {c.config["label_noise"] for c in found} == {0.4}
    budget = {name: [] for name in ("plain", "SAM", "SAM for twice the passes")}
    for c in found:
        budget[c.contender].append(c.config["epochs"] * (1 + (c.config["method"] == "sam")))
    # tuned alike: as many trials each, lengths included; SAM's steps are two passes
    assert {name: (len(of), max(of)) for name, of in budget.items()} == {
        "plain": (30, 40),
        "SAM": (30, 40),
        "SAM for twice the passes": (30, 80),
    }
    assert len({c.config["seed"] for c in found}) == len({c.config["lr"] for c in found}) == 90
    assert not study.admission  # SAM does not fit the wrong labels, and has to count
    assert study.select is not None
    assert study.select.predict == "sweep"
    assert all(study.show.words())


def test_a_grid_is_every_combination() -> None:
    lrs, seeds, methods = [0.1, 0.2, 0.3], [0, 1], ["none", {"method": "sam", "rho": 0.2}]
    found = cells(study(grid={"method": methods, "lr": lrs, "seed": seeds}))
    said = {(c.config["method"], c.config["rho"], c.config["lr"], c.config["seed"]) for c in found}
    assert said == {(m, r, lr, s) for (m, r), lr, s in product([("none", None), ("sam", 0.2)], lrs, seeds)}
    assert len(found) == 12


def test_names_tell_runs_apart_with_settings_of_an_axis_side_by_side() -> None:
    options = [{"method": "sam", "rho": 0.1}, {"method": "frob-sam", "rho": 0.2, "method_options": {"strength": 0.1}}]
    found = cells(study(grid={"method": ["none", *options], "lr": [0.1, 0.2]}))
    assert [c.name for c in found[::2]] == ["none lr=0.1", "sam rho=0.1 lr=0.1", "frob-sam rho=0.2 lr=0.1"]
    more = {"method": "frob-sam", "rho": 0.2, "method_options": {"strength": 0.3}}
    named = [c.name for c in cells(study(grid={"method": [*options, more]}))]
    assert named[1:] == [f'frob-sam rho=0.2 method_options={{"strength": {s}}}' for s in (0.1, 0.3)]
    drawn = cells(study(random={"n": 2, "space": {"lr": {"uniform": [0.1, 0.2]}}}))
    assert all(c.name == f"lr={c.config['lr']:.4g}" for c in drawn)
    assert cells(study(base={"seed": 3}))[0].name == "seed=3"


def test_settings_that_go_together_and_mappings_as_values() -> None:
    grid = {
        "recipe": [{"lr": 0.1, "epochs": 5}, {"lr": 0.2, "epochs": 9}],
        "model_options": [{"width": 8}, {"width": 16}],
    }
    found = cells(study(grid=grid))
    said = {(c.config["lr"], c.config["epochs"], c.config["model_options"]["width"]) for c in found}
    assert said == {(0.1, 5, 8), (0.1, 5, 16), (0.2, 9, 8), (0.2, 9, 16)}


def test_equal_cells_are_one_and_whole_numbers_are_numbers() -> None:
    assert len(cells(study(grid={"lr": [1, 1.0], "weight_decay": [0, 0.0]}))) == 1


@settings(deadline=None, max_examples=30)
@given(n=st.integers(1, 12), more=st.integers(1, 12), seed=st.integers(0, 5))
def test_more_draws_leave_those_before_as_they_are(n: int, more: int, seed: int) -> None:
    space = {"lr": {"log_uniform": [0.01, 1]}, "rho": {"uniform": [0, 0.5]}, "seed": {"integers": [0, 3]}}
    few = cells(study(random={"n": n, "seed": seed, "space": space}))
    many = cells(study(random={"n": n + more, "seed": seed, "space": space}))
    assert [c.key for c in many[: len(few)]] == [c.key for c in few]
    for c in many:
        assert 0.01 <= c.config["lr"] <= 1
        assert 0 <= c.config["rho"] <= 0.5
        assert c.config["seed"] in range(4)


def test_log_uniform_draws_are_uniform_in_the_logarithm() -> None:
    found = cells(study(random={"n": 400, "space": {"lr": {"log_uniform": [0.0001, 1]}}}))
    logs = sorted(log(c.config["lr"]) / log(0.0001) for c in found)
    steps = max(abs(x - (i + 0.5) / 400) for i, x in enumerate(logs))
    assert steps < 1.63 / 400**0.5  # Kolmogorov and Smirnov at 1 %
    assert len({c.config["lr"] for c in found}) == 400


def test_draws_at_every_point_of_a_grid() -> None:
    found = cells(study(grid={"method": ["none", "sam"]}, random={"n": 3, "space": {"lr": {"uniform": [0.1, 0.2]}}}))
    assert len(found) == 6
    assert len({c.config["lr"] for c in found}) == 3


def test_keys_follow_from_what_numbers_follow_from() -> None:
    config = plain(Config())
    key = key_of(config)
    assert key_of(dict(reversed(config.items()))) == key
    assert key_of(config | {"data_root": "elsewhere", "out": "there", "checkpoint_every": 1.0}) == key
    assert key_of({k: v for k, v in config.items() if k != "swa"}) == key  # a setting that was learnt later
    changes = [{"lr": 0.2}, {"seed": 1}, {"method_options": {"n": 2}}, {"threads": 1}, {"measure_rows": 10}]
    assert len({key_of(config | change) for change in changes} | {key}) == len(changes) + 1


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"grids": {}}, "there is no key of a study 'grids'. Did you mean 'grid'"),
        ({"base": {"learning_rate": 1}}, "base.learning_rate: there is no setting 'learning_rate'"),
        ({"base": {"schedule": "cosin"}}, "Did you mean 'cosine'"),
        ({"base": {"lr": "fast"}}, "base.lr: lr takes a number, not 'fast'"),
        ({"base": {"epochs": 2.5}}, "epochs takes a whole number, not 2.5"),
        ({"base": {"nesterov": 1}}, "nesterov takes true or false, not 1"),
        ({"base": {"augment": "crop"}}, "augment takes a list, not 'crop'"),
        ({"base": {"out": "x"}}, "out cannot be given here: runs lie in the study's own folder"),
        ({"base": {"measures": ["trace"]}}, "say `measures` of the study itself"),
        ({"base": [1]}, "base takes settings of a run"),
        ({"grid": {"lr": 0.1}}, "grid.lr takes a list of values, not 0.1"),
        ({"grid": {"lr": [0.1, "x"]}}, "grid.lr: lr takes a number, not 'x'"),
        ({"grid": {"rh": [1]}}, "there is no setting 'rh'. Did you mean 'rho'"),
        ({"grid": {"method": [{"method": "sam", "roh": 1}]}}, "there is no setting 'roh'. Did you mean 'rho'"),
        ({"random": {"space": {"lr": {"uniform": [0, 1]}}}}, "n is a whole number, 1 or more"),
        ({"random": {"n": 3, "spaces": {}}}, "there is no key of random 'spaces'. Did you mean 'space'"),
        ({"random": {"n": 3, "space": {"lr": {"log_unifrom": [1, 2]}}}}, "Did you mean 'log_uniform'"),
        (
            {"random": {"n": 3, "space": {"lr": {"log_uniform": [0, 2]}}}},
            "random.space.lr: a LogUniform law begins above 0",
        ),
        ({"random": {"n": 3, "space": {"lr": {"uniform": [2, 1]}}}}, "from a number to a larger one, not from 2 to 1"),
        ({"random": {"n": 3, "space": {"epochs": {"uniform": [1.5, 2.5]}}}}, "epochs takes a whole number"),
        ({"targets": ["test_eror"]}, "there is no target 'test_eror'. Did you mean 'test_error'"),
        ({"targets": []}, "targets is empty"),
        ({"targets": ["corrupted_error"]}, "the target corrupted_error needs corruptions in base"),
        ({"groups": ["ausgment"]}, "groups: there is no setting 'ausgment'. Did you mean 'augment'"),
        ({"admission": "train_error < little"}, "admission takes rules such as `train_error <= 0.01`"),
        ({"admission": ["train_error"]}, "not 'train_error'"),
        ({"measures": {"trace": True}}, "measures.trace takes a list of radii"),
        ({"measures": [1]}, "measures takes a list of names"),
        ({"engine": "locl"}, "there is no engine 'locl'. Did you mean 'local'"),
        ({"engine": {"wokers": 2}}, "there is no key of engine 'wokers'. Did you mean 'workers'"),
        ({"engine": {"workers": 0}}, "workers of an engine takes a whole number, 1 or more, or null (None), not 0"),
        ({"pool": "x", "grid": {}}, "not both"),
        ({"errors": "x.csv"}, "there is no `pool`"),
        ({"pool": 3}, "pool takes a text, not 3"),
        ({"pool": ["a", "b"]}, "pool takes a text, not ['a', 'b']: one pattern with * covers several files"),
        ({"title": ["a"]}, "title takes a text, not ['a']: write one text"),
        ({"title": 2024}, "title takes a text, not 2024: quote it, title: '2024'"),
        ({"question": {"Is it so": "or not"}}, "A text with a colon needs quotes, question: '...'"),
        ({"titel": "x"}, "Did you mean 'title'"),
        ({"file": "x"}, "there is no key of a study 'file'"),
        ({"lr": 0.1}, "lr is a setting of a run: write it under `base`, or under `grid` with a list of values"),
        ({"base": {"targets": ["gap"]}}, "base.targets: targets is a key of the study: move it out of `base`"),
        (
            {"base": {"lr": [0.1, 0.2]}},
            "lr takes a number, not [0.1, 0.2]: to vary it over runs, write `lr: [0.1, 0.2]`",
        ),
        ({"base": {"schedule": ["linear"]}}, "not ['linear']: to vary it over runs, write `schedule: [linear]` under"),
        ({"base": {"augment": "crop"}}, "augment takes a list, not 'crop': write `augment: [crop]`"),
        ({"grid": {"lr": 0.1}}, "write `lr: [0.1]`, or move it to `base` if all runs share it"),
        ({"grid": {"lr": [[0.1, 0.2]]}}, "list the values without inner brackets, `lr: [0.1, 0.2]`"),
        ({"grid": {"augment": ["crop"]}}, "each value is a list itself, as in `augment: [[crop]]`"),
        ({"grid": {"lr": {"uniform": [0, 1]}}}, "a law belongs under `random`, as in {points: 20, lr: {uniform: "),
        ({"grid": {"learnin_rate": 0.1}}, "there is no setting 'learnin_rate'"),
        ({"grid": ["lr"]}, "grid takes settings with lists of values, as in {lr: [0.1, 0.2]}"),
        ({"random": {"n": 3, "space": {"lr": [1, 2]}}}, "{choice: [1, 2]} draws from a list"),
        ({"targets": {"gap": 1}}, "targets takes a list of names, as in `targets: [test_error, gap]`"),
    ],
)
def test_wrong_study_files_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        study(**given)


def test_settings_out_of_range_are_refused_with_the_run() -> None:
    with pytest.raises(ValueError, match=r"the run with .*'lr': -1.*lr is -1.0, and has to be a number, 0 or more"):
        cells(study(grid={"lr": [-1]}))


def test_measures_with_radii() -> None:
    found = study(measures={"trace": None, "worst_linf": [0.001, 0.002], "avg_l2": 0.1}).measures
    assert found == ("trace", "worst_linf@0.001", "worst_linf@0.002", "avg_l2@0.1")


@given(
    value=st.floats(-2, 2), bound=st.floats(-2, 2), comparison=st.sampled_from(["<=", "<", ">=", ">"]),
    space=st.sampled_from(["", " "]),
)  # fmt: skip
def test_a_rule_holds_as_python_says(value: float, bound: float, comparison: str, space: str) -> None:
    rule = Rule.of(f"train_error{space}{comparison}{space}{bound!r}")
    assert rule.holds({"train_error": value}) == eval(f"{value!r} {comparison} {bound!r}")
    assert not rule.holds({"test_error": value})
    assert not rule.holds({"train_error": float("nan")})


def test_an_engine_by_name_or_in_detail() -> None:
    assert study(engine="ray").engine == EngineSettings("ray")
    assert study(engine={"name": "serial", "retries": 0}).engine == EngineSettings("serial", retries=0)


POOL = "checkpoint,test_error,augment,lr\na,0.1,flip,0.1\nb.safetensors,0.2,none,0.2\n"


def pool(folder: Path, text: str = POOL, **changes: Any) -> Study:
    for name in "ab":
        (folder / f"{name}.safetensors").write_bytes(name.encode() * 10)
    (folder / "errors.csv").write_text(text)
    given = {"pool": f"{folder}/*.safetensors", "errors": str(folder / "errors.csv"), "groups": ["augment"]}
    given |= {"standardise": "digits"}
    return study(**(given | {"base": {"data": "digits", "model": "mlp"}, "targets": ["test_error"]} | changes))


def test_a_pool_and_the_table_of_its_errors(tmp_path: Path) -> None:
    a, b = cells(pool(tmp_path))
    assert (a.name, a.known, a.groups) == ("a", {"test_error": 0.1}, {"augment": "flip"})
    assert (b.name, b.known, b.groups) == ("b", {"test_error": 0.2}, {"augment": "none"})
    assert Path(str(b.checkpoint)).name == "b.safetensors"
    assert [c.key for c in cells(pool(tmp_path))] == [a.key, b.key]
    (tmp_path / "b.safetensors").write_bytes(b"c" * 10)  # other weights under the same name
    one, other = cells(
        study(pool=f"{tmp_path}/*.safetensors", base={"data": "digits", "model": "mlp"}, standardise="digits")
    )
    assert one.key == a.key
    assert other.key != b.key


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("file,test_error\na,1\n", "there is no column 'checkpoint'"),
        ("checkpoint,test_error\na,0.1\nc,0.2\n", "line 3: there is no checkpoint in the pool 'c'"),
        ("checkpoint,test_error\na,0.1\n", "has no row for"),
        ("checkpoint,test_error\na,0.1\na,0.2\nb,1\n", "line 3: a is there twice"),
        ("checkpoint,test_error\na,0.1\nb,low\n", "test_error of b.safetensors is 'low', and has to be a number"),
        ("checkpoint,test_error\na,0.1,3\nb,0.1\n", "line 2: it has another number of cells"),
    ],
)
def test_a_table_that_does_not_fit_its_pool(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        cells(pool(tmp_path, text))


def test_a_pool_that_is_not_there_or_does_not_say_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no run's folder"):
        cells(study(pool=str(tmp_path / "*.safetensors")))
    with pytest.raises(ValueError, match="give data and model in base"):
        cells(pool(tmp_path, base={"data": "digits"}))
