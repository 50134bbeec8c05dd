"""Comparisons that run: killed and resumed, changed after a look, with bad input, and what they say."""

import json
import multiprocessing
import os
import pickle
import re
import signal
import time
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

import steppe
from steppe.comparison.design import Design, Trial, divided
from steppe.comparison.functions import checked, in_process
from steppe.comparison.page import write
from steppe.comparison.recommend import choice, finalists
from steppe.comparison.result import result_of
from steppe.comparison.run import next_trials, run, seconds
from steppe.comparison.store import NAME, Done, Record
from steppe.core.floor import before

SPACE = {"lr": steppe.LogUniform(1e-3, 1e0), "epochs": 12}


def rows(trial, gain=0.0, n=(300, 400)):
    """Which rows are correct in a world where 0.03 is the best learning rate and some rows are hard for all."""
    assert trial.epochs  # which a loop would read
    random = np.random.default_rng([trial.seed, len(trial.method)])
    error = 0.15 + 0.05 * (np.log10(trial["lr"]) + 1.5) ** 2 - gain * (trial.method == "sam")
    hard = np.random.default_rng(0).random(n[1])
    return random.random(n[0]) > error, hard + 0.05 * random.normal(size=n[1]) > error


def better(trial):
    return rows(trial, 0.08)


def slow(trial):
    time.sleep(0.02)
    return rows(trial)


def compared(train, methods=("none", "sam"), **more):
    given = {"space": SPACE, "progress": False, "tuning": 4, **more}
    return steppe.compare(train, methods, **given)


def test_a_better_method_is_found_and_the_sentence_has_the_numbers_of_its_fields():
    result = compared(better)
    (answer,) = result.contrasts
    assert (answer.verdict, result.state) == ("better", "decided")
    assert answer.difference == pytest.approx(-8, abs=2)
    assert answer.low < answer.difference < answer.high < 0
    assert answer.trials < result.trials  # stopped when it was decided
    assert answer.sentence.startswith("sam is better than the plain optimizer at equal passes, by ")
    shown = re.findall(r"\d+\.\d+", answer.sentence)
    assert shown == [f"{abs(x):.1f}" for x in (answer.difference, answer.high, answer.low)]
    assert answer.sentence in str(result)
    assert result.recommended.method == "sam"
    assert "sam is better" in result._repr_html_()
    json.dumps(result.to_dict(), allow_nan=False)


def test_equal_methods_do_not_differ_and_the_plain_optimizer_is_recommended():
    def equal(trial):
        assert trial.method
        return rows(replace(trial, method="none"))

    result = compared(equal)
    assert result.contrasts[0].verdict == "no difference"
    assert "differ by less than" in result.contrasts[0].sentence
    assert result.recommended.method == "none"
    assert result.recommended.seeds == 3


def test_trials_share_points_and_seeds_and_have_their_part_of_the_epochs():
    seen = {}

    def train(trial):
        if trial.kind == "trial":
            seen[trial.method, trial.index] = trial
        return rows(trial)

    compared(train, ("none", "sam", "asam"), trials=8)
    assert len(seen) == 24
    for i in range(8):
        one, two, three = (seen[m, i] for m in ("none", "sam", "asam"))
        assert (one.seed, one.settings) == (two.seed, two.settings) == (three.seed, three.settings)
        assert (one.epochs, two.epochs, three.epochs) == (12, 6, 6)
        assert two.options["rho"] / 0.05 == pytest.approx(three.options["rho"] / 0.5)
    assert len({t.seed for t in seen.values()}) == 8


def test_the_optimizer_of_a_trial_has_its_settings_and_its_passes_are_counted():
    shared, own = divided(["none", "sam"], {**SPACE, "weight_decay": 1e-3})
    design = Design((("none", "sam"),), shared, own)
    trial = design.trial("sam", 3)
    model = nn.Sequential(nn.Linear(3, 2))
    opt = trial.optimizer(model, torch.optim.SGD, momentum=0.5)
    group = opt.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["momentum"]) == (trial["lr"], 1e-3, 0.5)
    assert group["rho"] == trial.options["rho"]
    x, y = torch.randn(8, 3), torch.randint(0, 2, (8,))
    for _ in range(3):
        opt.step(lambda pass_: pass_.backward(nn.functional.cross_entropy(model(x), y)))
    model.eval()(x)
    assert trial.counted == {"steps": 3, "forwards": 6}


def test_own_settings_by_name_and_fixed_ones():
    shared, own = divided(["none", "sam", "gsam"], {**SPACE, "rho": {"log_uniform": [0.01, 1]}}, {"sam.rho": 0.1})
    assert list(shared) == ["lr", "epochs"]
    assert own["sam"] == {"rho": steppe.comparison.Choice(0.1)}
    assert own["gsam"]["rho"] == steppe.LogUniform(0.01, 1)
    assert "none" not in own
    with pytest.raises(ValueError, match="which is not compared"):
        divided(["none", "sam"], {"asam.rho": 0.1})
    with pytest.raises(ValueError, match="no option of sam"):
        Design((("none", "sam"),), *divided(["none", "sam"], {"sam.radius": 0.1}))


def killed_comparison(out):
    compared(slow, out=out)


def test_killed_at_any_moment_and_resumed_it_says_the_same(tmp_path):
    whole = compared(slow, out=tmp_path / "whole")
    context = multiprocessing.get_context("fork")
    out = tmp_path / "killed"
    random = np.random.default_rng(0)
    for _ in range(3):
        trials = (out / NAME).read_bytes().count(b'"method"') if (out / NAME).exists() else 0
        process = context.Process(target=killed_comparison, args=[out])
        process.start()
        while not (out / NAME).exists() or (out / NAME).read_bytes().count(b'"method"') < trials + 4:
            time.sleep(0.001)
        time.sleep(0.02 * random.random())
        os.kill(process.pid, signal.SIGKILL)
        process.join()
    done = (out / NAME).read_bytes()
    assert 0 < done.count(b'"method"') < 40
    (out / NAME).write_bytes(done[:-7])  # a kill in the middle of a line
    again = compared(slow, out=out)
    assert again.sentences == whole.sentences
    assert replace(again, seconds=0, rows=(), contrasts=(), folder="") == replace(
        whole, seconds=0, rows=(), contrasts=(), folder=""
    )
    lines = [json.loads(line) for line in (out / NAME).read_text().splitlines()]
    keys = [(x["kind"], x["method"], x["trial"], x["repeat"]) for x in lines if "method" in x]
    assert len(keys) == len(set(keys))  # nothing was trained twice


def test_the_verdicts_are_a_function_of_the_file_whatever_the_order_of_trials(tmp_path):
    compared(better, ("none", "sam", "gsam"), out=tmp_path)
    record = Record(tmp_path / NAME)
    first, *trials = (tmp_path / NAME).read_text().splitlines()
    shuffled = tmp_path / "shuffled.jsonl"
    order = np.random.default_rng(0).permutation(len(trials) - 1)
    shuffled.write_text("\n".join([first, trials[0], *(trials[1 + k] for k in order), ""]))
    assert Record(shuffled).current.history == record.current.history
    assert next_trials(record.current) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"worth": 3.0}, "worth was None and is now 0.03"),
        ({"tuning": 5}, "tuning was 4 and is now 5"),
        ({"trials": 32}, "most was 24 and is now 32"),
        ({"methods": ("none", "asam")}, "families was"),
        ({"fix": {"lr": 0.1}}, "space was"),
    ],
)
def test_a_change_after_a_look_begins_a_new_comparison(tmp_path, change, words):
    first = compared(better, out=tmp_path, trials=24)
    size = (tmp_path / NAME).stat().st_size
    second = compared(better, **{"out": tmp_path, "trials": 24, **change})
    assert any(words in caveat and "a new comparison" in caveat for caveat in second.caveats)
    assert not any("a new comparison" in caveat for caveat in first.caveats)
    record = Record(tmp_path / NAME)
    assert [c.design.number for c in record.comparisons] == [1, 2]
    assert (tmp_path / NAME).stat().st_size > size
    seeds = [{c.design.trial("none", i).seed for i in range(16)} for c in record.comparisons]
    assert not seeds[0] & seeds[1]  # of trials of its own
    assert result_of(record.comparisons[0]).contrasts == first.contrasts


def test_a_change_before_the_first_look_keeps_what_it_can(tmp_path):
    with pytest.raises(KeyError):
        compared(failing_after(6), out=tmp_path)
    assert len(Record(tmp_path / NAME).current.done) == 6
    record = Record(tmp_path / NAME)
    design = replace(record.current.design, worth=0.02)
    assert "before its first look" in record.begin(design)
    assert len(record.current.done) == 6
    record.begin(replace(design, space={**design.space, "lr": steppe.LogUniform(1e-2, 1)}))
    assert len(record.current.done) == 0


def failing_after(n):
    seen = []

    def train(trial):
        seen.append(trial)
        if len(seen) > n:
            raise KeyError("a bug of the user's")
        return rows(trial)

    train.__qualname__ = "train"
    return train


def test_a_method_that_is_added_is_a_family_of_its_own(tmp_path):
    first = compared(better, out=tmp_path)
    second = compared(better, ("none", "sam", "gsam"), out=tmp_path)
    record = Record(tmp_path / NAME)
    assert record.current.design.families == (("none", "sam"), ("gsam",))
    assert second.contrasts[0].difference == first.contrasts[0].difference
    assert record.current.contrasts["gsam"].level > 0  # all contenders before were decided: the level was passed on
    third = compared(better, ("none", "sam", "gsam", "asam"), out=tmp_path)
    last = third.contrasts[-1]
    assert (last.method, last.level) == ("asam", 0)  # gsam used the level
    assert third.contrasts[:2] == second.contrasts[:2] or [c.verdict for c in third.contrasts[:2]] == [
        c.verdict for c in second.contrasts
    ]
    assert last.verdict == "undecided"
    assert last.sentence.startswith("Described only")


def test_failures_are_trials(tmp_path):
    def train(trial):
        if trial["lr"] > 0.3:
            raise FloatingPointError("loss is nan")
        return rows(trial)

    result = compared(train, out=tmp_path)
    failed = {row.method: row.failed for row in result.rows}
    assert failed["none"] == failed["sam"] > 0
    assert any("trials failed, and count as wrong on every row" in caveat for caveat in result.caveats)
    assert "loss is nan" in (tmp_path / NAME).read_text()


@pytest.mark.parametrize("who", [("sam",), ("none",), ("none", "sam")])
def test_a_method_that_fails_in_all_trials_has_a_sentence(who):
    def train(trial):
        if trial.method in who:
            raise FloatingPointError("loss is nan")
        return rows(trial)

    result = compared(train)
    assert result.contrasts[0].verdict == "cannot tell"
    assert result.contrasts[0].sentence.startswith(f"Cannot tell: {' and '.join(who)} failed in all 8 trials.")
    assert (result.recommended is None) == (len(who) == 2)


def test_the_edge_of_the_space_is_named():
    def train(trial):
        assert trial.method
        assert trial.epochs
        random = np.random.default_rng(trial.seed)
        error = 0.2 - 0.05 * np.log10(trial["lr"])
        return random.random(3000) > error, random.random(300) > error

    result = compared(train, tuning=8, seed=1)
    assert result.contrasts[0].verdict == "cannot tell"
    assert "lr (high)" in result.contrasts[0].sentence


@pytest.mark.parametrize(
    ("returned", "error", "words"),
    [
        (None, TypeError, "it returned NoneType: end it with `return validation_correct, test_correct`"),
        ((0.9, 0.8), TypeError, "its validation is the number 0.9: return predicted == labels"),
        (([True], [True], [True]), TypeError, "it returned 3 values"),
        (([], [True]), ValueError, "there are no validation rows: validation selects"),
        (([True, False], []), ValueError, "there are no test rows"),
        (([True, False], [0.3, 0.4]), TypeError, "type float64: return one true or false per row"),
        (([True, False], [[True], [False]]), TypeError, r"shape \(2, 1\)"),
    ],
)
def test_what_train_returns_is_checked(returned, error, words):
    with pytest.raises(error, match=words) as raised:
        compared(lambda trial: returned)
    assert len(str(raised.value)) < 300


def test_flags_may_be_tensors_lists_and_numbers():
    for flags in (torch.tensor([True, False]), [1, 0], np.array([1.0, 0.0]), torch.tensor([True, False]).float()):
        assert [x.tolist() for x in checked((flags, flags))] == [[True, False]] * 2


def test_other_rows_in_a_later_trial_are_refused():
    with pytest.raises(ValueError, match="trial 1 of none has 201 test rows, and earlier ones have 200: all trials"):
        compared(lambda trial: rows(trial, n=(100, 200 + trial.index)))
    with pytest.raises(ValueError, match="trial 1 of none has 101 validation rows, and earlier ones have 100: all"):
        compared(lambda trial: rows(trial, n=(100 + trial.index, 200)))


def test_a_function_that_ignores_what_makes_a_trial_is_refused():
    """It would compare the plain optimizer with itself, or a space that is not there."""

    def train(trial, *, method=True, **settings):
        model = torch.nn.Linear(2, 2)
        if method:
            trial.optimizer(model)
        for name in settings:
            trial[name]
        return np.ones(3) > 0, np.ones(3) > 0

    space = SPACE | {"dropout": steppe.comparison.Choice([0.1, 0.2])}
    for given, words in (
        ({"method": False, "epochs": 1}, "train ignores the trial's method: build the optimizer by"),
        ({"dropout": 1}, "train ignores epochs, a setting of the space: train for trial.epochs epochs"),
        ({"epochs": 1}, r"train ignores dropout, a setting of the space: read trial\['dropout'\], or leave it out"),
        ({"method": False, "lr": 1, "epochs": 1, "dropout": 1}, "the trial's method"),
    ):
        with pytest.raises(ValueError, match=words):
            compared(partial(train, **given), space=space)
    compared(partial(train, epochs=1, dropout=1), space=space)
    with pytest.raises(AttributeError, match=r"a trial has no 'lr': its settings are trial\['lr'\] and so on, here"):
        compared(lambda trial: trial.lr)
    trial = pickle.loads(pickle.dumps(Trial("sam", 0, 1, {"lr": 0.1})))
    assert (trial["lr"], trial.asked) == (0.1, {"lr"})


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"methods": ["sam"]}, "two methods or more"),
        ({"methods": ["none", "none"]}, "name each once"),
        ({"methods": ["none", "smas"]}, "there is no method 'smas'"),
        ({"budget": "soon"}, "a budget is a time such as 10m"),
        ({"budget": 0.001, "tuning": 100}, "the first look needs 200"),
        ({"worth": -1.0}, "worth is a difference of errors"),
        ({"trials": 7}, "fewer than two tunings of 4"),
        ({"trials": 0}, "trials is the most trials per method, 1 or more, not 0"),
    ],
)
def test_bad_settings_have_one_sentence(more, words):
    with pytest.raises(ValueError, match=words):
        compared(slow, **more)
    with pytest.raises(ValueError, match="the space has no epochs"):
        steppe.compare(slow, space={"lr": 0.1})


def test_a_budget_plans_the_trials_and_stops_the_comparison(tmp_path):
    result = compared(slow, out=tmp_path, budget=4.0)
    assert result.trials in range(8, 49, 2)  # in steps of half a tuning, by the time that the trials took
    record = Record(tmp_path / NAME)
    record_most = record.current.most
    stopped = compared(slow, out=tmp_path, budget="1s")  # N_max stays
    assert stopped.trials == record_most
    other = compared(slow, out=tmp_path / "other", trials=48, budget=0.3, worth=0.01)
    assert other.state == "stopped"
    assert "resume continues" in str(other)


@pytest.mark.parametrize(("text", "value"), [("90", 90), (90, 90), ("1.5h", 5400), ("1h30m", 5400), ("2 d", 172800)])
def test_budgets(text, value):
    assert seconds(text) == value


def test_damage_is_named_by_its_line(tmp_path):
    compared(better, out=tmp_path)
    lines = (tmp_path / NAME).read_text().splitlines()
    lines[5] = lines[5].replace('"test":"400:', '"test":"400:A')
    (tmp_path / NAME).write_text("\n".join([*lines, ""]))
    with pytest.raises(ValueError, match="line 6, is damaged"):
        Record(tmp_path / NAME)


def test_two_comparisons_in_one_folder_are_refused(tmp_path):
    def train(trial):
        compared(slow, out=tmp_path)

    with pytest.raises(RuntimeError, match="is being compared in by"):
        compared(train, out=tmp_path)


def test_the_recommendation_takes_more_seeds_and_the_reference_unless_it_is_worth_it(tmp_path):
    compared(better, out=tmp_path)
    current = Record(tmp_path / NAME).current
    best = finalists(current)
    errors = sorted(
        (current.done["trial", m, i, 0].validation_error, m == "sam", i) for m in ("none", "sam")
        for i in range(len(current.outcomes(m)))
    )  # fmt: skip
    assert [(m == "sam", i) for m, i in best[:3]] == [e[1:] for e in errors[:3]]
    assert "none" in [m for m, _ in best]
    chosen = choice(current)
    fresh = [current.done["fresh", chosen.method, chosen.index, k].rows.mean() for k in range(3)]
    result = result_of(current)
    assert result.recommended.error == pytest.approx(100 * (1 - np.mean(fresh)))
    seeds = {current.design.trial("sam", 0, kind, k).seed for kind in ("again", "fresh") for k in range(3)}
    assert len(seeds) == 6


def test_what_the_rows_can_show_is_said_before():
    low, high, text = before(0.1, 1000, 0.5)
    assert (low, high) == (pytest.approx(1.53, abs=0.01), pytest.approx(3.42, abs=0.01))
    assert '"no difference" within 0.5 points is out of reach' in text
    assert "out of reach" not in before(0.1, 1000, 2.0)[2]


def test_an_executor_that_is_stopped_is_closed_and_what_it_did_is_kept(tmp_path):
    closed = []

    def execute(works):
        try:
            yield from in_process(slow)(works)
        finally:
            closed.append(len(works))

    design = Design((("none", "sam"),), *divided(["none", "sam"], SPACE), tuning=4, most=8)
    result = run(design, execute, tmp_path, 0.1, progress=False)
    assert result.state == "stopped"
    assert closed == [16]
    assert 0 < len(Record(tmp_path / NAME).current.done) < 16


def test_epochs_that_the_passes_do_not_divide_are_named():
    space = {"lr": steppe.LogUniform(1e-3, 1e0), "epochs": 5}
    result = steppe.compare(rows, ["none", "sam"], space, tuning=4, trials=8, progress=False)
    assert "sam has 0.80 times the passes: choose epochs that 2 divides." in result.caveats


def test_outcomes_read_back_are_those_written(tmp_path):
    compared(better, out=tmp_path)
    current = Record(tmp_path / NAME).current
    validation, test = better(current.design.trial("sam", 2))
    assert current.done["trial", "sam", 2, 0].rows.tolist() == test.tolist()
    assert current.outcomes("sam").validation[2] == pytest.approx(1 - validation.mean())
    assert Done.of(validation, test).rows.tolist() == test.tolist()


def test_when_the_target_is_reached_is_that_of_all_tunings():
    """Shares and medians over all sets of trials, against the weighted ones."""

    def train(trial):
        random = np.random.default_rng([trial.seed, len(trial.method)])
        model = nn.Linear(1, 1)
        opt = trial.optimizer(model)
        for epoch in range(trial.epochs):
            opt.step(lambda pass_: pass_.backward(model(torch.ones(1)).square().sum()))
            trial.report(0.3 - 0.02 * epoch + 0.1 * random.random())
        return random.random(60) > 0.25, random.random(50) > 0.3

    result = steppe.compare(train, space={"lr": 0.1, "epochs": 6}, tuning=3, trials=6, worth=90, progress=False)
    design = Design((("none", "sam"),), *divided(["none", "sam"], {"lr": 0.1, "epochs": 6}), tuning=3, most=6)
    done = {}
    for trial, one in in_process(train)([design.trial(m, i) for m in ("none", "sam") for i in range(6)]):
        done[trial.method, trial.index] = one
    target = np.mean([min(done["none", i].validation_error for i in c) for c in combinations(range(6), 3)])
    assert result.target == pytest.approx(100 * target)
    for row in result.rows:
        first = []
        for i in range(6):
            times = [p["passes"] for p in done[row.method, i].curve if p["validation_error"] <= target]
            first.append(min(times, default=np.inf))
        chosen = []
        for c in combinations(range(6), 3):
            errors = [done[row.method, i].validation_error for i in c]
            best = [i for i, e in zip(c, errors, strict=True) if e == min(errors)]
            chosen += [(first[i], 1 / len(best)) for i in best]
        total = sum(w for _, w in chosen)
        assert row.reached.share == pytest.approx(sum(w for t, w in chosen if t < np.inf) / total)
        below = [t for t, _ in chosen if sum(w for u, w in chosen if u <= t) / total >= 0.5]
        assert row.reached.passes == pytest.approx(min(below, default=np.inf))
        assert row.reached.passes_low <= row.reached.passes <= row.reached.passes_high
        assert row.reached.share_low <= row.reached.share <= row.reached.share_high
        assert row.learning[-1]["passes"] == pytest.approx(6)
    assert len(result.figure().data) >= 8


def in_epochs(trial, obedient=True):
    """A world whose errors fall from epoch to epoch, to those of `rows`."""
    validation, test = rows(trial)
    for epoch in range(1, trial.epochs + 1):
        trial.report(1 - validation.mean() + 0.3 * (1 - epoch / trial.epochs), epoch)
        if obedient and trial.should_prune():
            flip = np.arange(len(test)) % 2 == 0  # of a model that is not finished
            return validation & flip[: len(validation)], test & flip
    return validation, test


def test_halving_of_ones_own_function(tmp_path):
    more = {"halving": True, "trials": 24, "worth": 0.01, "once": True}
    whole = compared(in_epochs, out=tmp_path / "whole", **more)
    current = Record(tmp_path / "whole" / NAME).current
    for row in whole.rows:
        done = [current.done["trial", row.method, i, 0] for i in range(24)]
        assert [one.stopped for one in done] == [i >= 8 and one.rung > current.limit(row.method)
                                                 for i, one in enumerate(done)]  # fmt: skip
        assert row.stopped == sum(one.stopped for one in done) > 4
        ranks = current.outcomes(row.method).validation
        assert all((rank > 1) >= one.stopped for rank, one in zip(ranks, done, strict=True))
    # a trial that goes on although it should stop ranks behind the others all the same
    disobedient = compared(lambda trial: in_epochs(trial, obedient=False), out=tmp_path / "other", **more)
    assert [row.stopped for row in disobedient.rows] == [0, 0]
    other = Record(tmp_path / "other" / NAME).current
    for method in ("none", "sam"):
        assert other.outcomes(method).validation.tolist() == current.outcomes(method).validation.tolist()
    lines = (tmp_path / "whole" / NAME).read_text().splitlines()
    (tmp_path / "part").mkdir()
    (tmp_path / "part" / NAME).write_text("\n".join([*lines[:30], ""]))  # killed among the later trials
    again = compared(in_epochs, out=tmp_path / "part", **more)
    assert again.sentences == whole.sentences
    with pytest.raises(ValueError, match=r"trial 0 of none reported nothing from epoch 4 on: call trial\.report"):
        compared(rows, **more)


def test_points_from_elsewhere_are_described():
    seen = []

    def train(trial):
        seen.append((trial.method, trial["lr"], trial.options.get("rho")))
        return rows(trial)

    points = [{"lr": 0.01 * (1 + i), "sam.rho": 0.1} for i in range(8)]
    result = compared(train, points=points)
    assert [s for s in seen if s[0] == "sam"][:8] == [("sam", p["lr"], 0.1) for p in points]
    assert result.contrasts[0].level == 0
    assert result.contrasts[0].sentence.startswith("Described only")
    with pytest.raises(ValueError, match="there is no setting of the space 'rate'"):
        compared(train, points=[{"rate": 0.1}] * 8)


def test_the_page_of_a_comparison_that_runs_reloads_and_is_drawn_before_the_first_look(tmp_path):
    with pytest.raises(KeyError):
        compared(failing_after(12), out=tmp_path)
    result = result_of(Record(tmp_path / NAME).current)
    assert result.sentences[0] == "No verdict yet: the first look is still ahead."
    page = write(result, tmp_path / "live.html", reload=10).read_text()
    assert '<meta http-equiv="refresh" content="10">' in page
    assert "No verdict yet" in page
    assert 'http-equiv="refresh"' not in write(result, tmp_path / "end.html").read_text()


def test_rows_of_a_cluster_without_validation_rows_are_one_clear_error() -> None:
    """Of a cluster's data nothing is known before a trial ends."""
    from steppe.comparison.runs import TrialFailed, _done
    from steppe.studies.cell import Outcome

    with pytest.raises(TrialFailed, match=r"no validation rows.* --base validation=0\.1"):
        _done(Outcome("key", "done", correct={"test": ""}), None)
