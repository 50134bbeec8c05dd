"""How many trials a budget allows: from times that are simulated, and from times alone."""

import heapq
from dataclasses import replace

import numpy as np
import pytest

import steppe
from steppe.comparison import run as running
from steppe.comparison.design import Design, divided
from steppe.comparison.progress import affordable, needed, pace, wall
from steppe.comparison.result import result_of
from steppe.comparison.run import run
from steppe.comparison.store import NAME, Comparison, Done, Record

METHODS = ("none", "sam", "agnostic-sam")
SPACE = {"lr": steppe.LogUniform(1e-3, 1), "epochs": steppe.comparison.Choice(4, 8, 16)}
WORKERS, BEGIN, RATE, START = 8, 2.0, 5.0, 6.0  # seconds of a run, of a pass, and more of a worker's first run


def design(seed: int = 0, **more: object) -> Design:
    return Design((METHODS,), *divided(METHODS, SPACE), worth=1e-6, seed=seed, **more)


class Machine:
    """Eight workers that compute trials in simulated time, and give back rows that are right by chance."""

    def __init__(self, design: Design, error: float = 0.1, failing: str = "") -> None:
        self.design, self.error, self.failing, self.now = design, error, failing, 0.0
        self.random = np.random.default_rng(design.seed)
        self.alone = 0.0  # seconds of all runs

    def __call__(self, works):
        free = [self.now + START] * WORKERS
        ends = []
        for k, trial in enumerate(works):
            passes = trial.epochs * self.design.passes(trial.method, trial.options)
            took = (BEGIN + RATE * passes) * float(np.exp(0.03 * self.random.normal()))
            self.alone += took
            ends.append((heapq.heappop(free) + took, k, took))
            heapq.heappush(free, ends[-1][0])
        for end, k, took in sorted(ends):
            self.now = max(self.now, end)
            keys = [[works[k].seed, METHODS.index(works[k].method), n] for n in (0, 1)]
            right = [np.random.default_rng(key).random(100) > self.error for key in keys]
            yield works[k], Done.of(*right, seconds=took)


def compared(machine: Machine, budget: float, monkeypatch: pytest.MonkeyPatch, out=None):
    monkeypatch.setattr(running, "monotonic", lambda: machine.now)
    return run(machine.design, machine, out, budget, False, WORKERS)


@pytest.mark.parametrize("budget", [900.0, 1800.0])
def test_a_budget_is_used_and_not_passed(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last look, in six simulated comparisons: from 85 % of the budget to a run more than it."""
    monkeypatch.setattr("steppe.comparison.sequential._futile", lambda *_: False)
    monkeypatch.setattr("steppe.comparison.sequential.levels", lambda *_: 1e-12)  # nothing is decided early
    used = []
    for seed in range(6):
        machine = Machine(design(seed))
        result = compared(machine, budget, monkeypatch)
        assert result.state == "decided"
        assert result.contrasts[0].trials == result.trials
        used.append(machine.now)
    assert budget * 0.85 < np.mean(used) < budget
    assert max(used) < budget + BEGIN + RATE * 16


def test_the_number_of_trials_follows_from_times_and_not_from_results(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = {compared(Machine(design(), error), 900, monkeypatch).trials for error in (0.02, 0.1, 0.5)}
    assert len(plans) == 1


def test_it_is_fixed_before_the_first_look_and_stays(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(design())
    result = compared(machine, 900, monkeypatch, tmp_path)
    lines = (tmp_path / NAME).read_text().splitlines()
    (plan,) = [k for k, line in enumerate(lines) if line.startswith('{"most"')]
    trials = [line for line in lines[:plan] if '"kind":"trial"' in line]
    assert len(trials) == machine.design.first * len(METHODS)  # the whole first look, and nothing after it
    # killed just before it, it is planned again from the same times; killed after it, it stays
    for cut, budget in ((plan, 900), (plan + 1, 1e6)):
        (tmp_path / NAME).write_text("\n".join([*lines[:cut], ""]))
        again = Machine(design())
        again.now = 0.0
        assert compared(again, budget, monkeypatch, tmp_path).trials >= result.trials
        assert (Record(tmp_path / NAME).current.most == result.trials) == (cut > plan)


def test_a_budget_that_reaches_no_look_is_said_after_the_first_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(design())
    with pytest.raises(ValueError, match=r"a budget of 2\.5 min is enough for .* trials of each method, and the first"):
        compared(machine, 150, monkeypatch)
    first = Machine(design())
    whole = compared(first, 1e5, monkeypatch).seconds
    assert machine.now < 0.2 * whole


def timed(seconds: dict[tuple[str, int], float], **more: object) -> Comparison:
    done = {("trial", m, i, 0): Done.of([True] * 9, [True] * 9, seconds=s, **more) for (m, i), s in seconds.items()}
    return Comparison(design(), 0, done)


def test_the_time_of_a_trial_is_so_much_per_run_and_per_pass() -> None:
    one = design()
    passes = {(m, i): t.epochs * one.passes(m, t.options) for m in METHODS for i in range(6) if (t := one.trial(m, i))}
    assert len(set(passes.values())) > 1
    current = timed({key: BEGIN + RATE * n for key, n in passes.items()})
    for (m, i), n in passes.items():
        assert pace(current)(one.trial(m, i)) == pytest.approx(BEGIN + RATE * n)
    # failures end early, and tell nothing
    broken = {("trial", "sam", 9, 0): Done(failed="nan", seconds=0.01), **current.done}
    assert pace(replace(current, done=broken))(one.trial("none", 0)) == pytest.approx(BEGIN + RATE * passes["none", 0])
    # of one length there is a rate only
    same = {key: n for key, n in passes.items() if n == passes["none", 0]}
    trial = next(t for i in range(20) if (t := one.trial("none", i)).epochs * 1.0 != passes["none", 0])
    assert pace(timed({key: RATE * n for key, n in same.items()}))(trial) == pytest.approx(RATE * trial.epochs)


def test_runs_that_lie_side_by_side_end_when_the_last_does() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        times, workers = list(random.random(12)), int(random.integers(1, 5))
        ends = np.zeros(workers)
        for time in times:
            ends[ends.argmin()] += time
        assert wall(times, workers) == pytest.approx(ends.max())
    assert wall([], 3) == 0


def test_more_time_allows_more_trials_and_what_is_done_costs_nothing() -> None:
    one, usual = design(), lambda trial: BEGIN + RATE * trial.epochs
    allowed = [affordable(one, left, usual, WORKERS) for left in (10, 300, 600, 1200, 2400, 1e6)]
    assert allowed == sorted(allowed)
    assert (allowed[0], allowed[-1]) == (0, 96)
    done = {("trial", m, i, 0) for m in METHODS for i in range(16)}
    looks = wall([usual(one.trial(m, i)) for i in range(16) for m in METHODS], WORKERS)
    assert needed(one, 24, usual, WORKERS) - needed(one, 24, usual, WORKERS, done) == pytest.approx(looks)
    assert result_of(Comparison(one)).trials == 0
