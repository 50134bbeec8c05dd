"""Law: a run that is made longer ends bit for bit as a run of that length, or is refused and left as it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training_runs import assert_same_end, config
from training_stops import stopped

from steppe.training import train


def contents(path: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in path.iterdir() if p.name != "run.lock"}


SAME: list[dict[str, Any]] = [
    {"schedule": "constant"},
    {"schedule": "constant", "ema": 0.9, "swa": 0.0, "swa_every": "step", "evaluate_every": 3},
    {"schedule": "constant", "measures": ["loss"], "swa": 0.0, "optimizer": "adamw", "lr": 0.01},
    {"schedule": "constant", "checkpoint_every": 0.0, "method": "looksam", "method_options": {"k": 3}},
    {"schedule": "constant", "method": "ssam-d", "method_options": {"steps": 15, "every": 3}},
    {"schedule": "cosine", "method": "sa-sam"},  # finds its learning rate by itself
    {"schedule": "multistep", "milestones": [0.0, 0.9]},  # 13.5 and 22.5 steps: both after the 10 that are taken
]


@pytest.mark.parametrize("changes", SAME, ids=lambda c: "-".join(map(str, c.values())))
def test_a_longer_run_is_one_that_was_always_so_long(changes: dict[str, Any], tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", epochs=5, **changes))
    settings = config(tmp_path / "longer", epochs=3, **changes)
    assert train(settings).finished
    run = train(replace(settings, epochs=5))
    assert len(run.records) == 5
    assert run.config.epochs == 5
    assert_same_end(run, whole)
    assert_same_end(train(replace(settings, epochs=5)), whole)  # and stays so


def test_a_number_of_steps_can_grow_within_an_epoch(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", schedule="constant", steps=14))
    settings = config(tmp_path / "longer", schedule="constant", steps=8)
    assert [r["step"] for r in train(settings).records] == [5, 8]
    assert_same_end(train(replace(settings, steps=14)), whole)


def test_a_run_under_way_can_be_made_longer_where_its_past_is_the_same(tmp_path: Path) -> None:
    changes = {"schedule": "multistep", "milestones": [0.5]}
    whole = train(config(tmp_path / "whole", epochs=6, **changes))
    settings = config(tmp_path / "longer", epochs=4, **changes)
    stopped(settings, 7)  # the rate falls at step 10 of 20, and at step 15 of 30
    assert_same_end(train(replace(settings, epochs=6)), whole)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"schedule": "cosine"}, r"schedule cosine .*number of steps: in step \d+ it was \S+, and would be \S+"),
        ({"schedule": "linear"}, "schedule linear"),
        ({"schedule": "multistep", "milestones": [0.5]}, "schedule multistep"),
        ({"schedule": "constant", "warmup": 0.2}, "warmup"),
        ({"schedule": "constant", "swa": 0.5}, "swa"),
        ({"schedule": "constant", "method": "ssam-d"}, "ssam-d"),
    ],
    ids=lambda c: c if isinstance(c, str) else "-".join(map(str, c.values())),
)
def test_a_run_whose_past_would_have_been_another_is_left_as_it_is(
    changes: dict[str, Any], why: str, tmp_path: Path
) -> None:
    settings = config(tmp_path, epochs=3, **changes)
    train(settings)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=rf"epochs was 3 and is now 5.*{why}"):
        train(replace(settings, epochs=5))
    assert contents(tmp_path) == before


def test_a_shorter_run_and_other_changes_are_refused(tmp_path: Path) -> None:
    settings = config(tmp_path, epochs=3, schedule="constant")
    train(settings)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"cannot be made shorter: epochs was 3 and is now 2"):
        train(replace(settings, epochs=2))
    with pytest.raises(ValueError, match=r"another configuration: lr was 0.1 and is now 0.2"):
        train(replace(settings, epochs=5, lr=0.2))
    assert contents(tmp_path) == before


def test_a_run_without_an_earlier_checkpoint_says_so(tmp_path: Path) -> None:
    settings = config(tmp_path, epochs=1, schedule="constant")
    train(settings)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"previous.safetensors is not there"):
        train(replace(settings, epochs=2))
    assert contents(tmp_path) == before


def test_a_longer_run_that_is_stopped_goes_on(tmp_path: Path) -> None:
    whole = train(config(tmp_path / "whole", epochs=5, schedule="constant", measures=["loss"]))
    settings = config(tmp_path / "longer", epochs=3, schedule="constant", measures=["loss"])
    train(settings)
    for step in (10, 13, 21):  # in the epoch that is trained again, and after it
        stopped(replace(settings, epochs=5), step)
    assert_same_end(train(replace(settings, epochs=5)), whole)


def test_a_run_of_weights_alone_is_not_made_longer_and_says_so(tmp_path: Path) -> None:
    settings = config(tmp_path / "run", epochs=3, schedule="constant")
    before = train(settings, lean=True)
    held = contents(tmp_path / "run")
    assert set(held) == {"checkpoint.safetensors", "metrics.jsonl", "run.yaml"}
    with pytest.raises(ValueError, match=r"cannot be made longer.*previous\.safetensors is not there"):
        train(replace(settings, epochs=5))
    with pytest.raises(ValueError, match=r"no kind of weights 'ema'.*last"):
        before.weights("ema")
    assert_same_end(train(settings), before)
    assert contents(tmp_path / "run") == held


def test_averages_of_a_run_are_kept(tmp_path: Path) -> None:
    runs = [train(config(tmp_path / name, epochs=2, ema=0.9), lean=lean) for name, lean in (("a", False), ("b", True))]
    assert_same_end(*runs)
    assert not (tmp_path / "b" / "run.lock").exists()
