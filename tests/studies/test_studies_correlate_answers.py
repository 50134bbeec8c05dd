"""Settings, the granulated coefficient and the worst environment: against sums written out."""

from itertools import combinations, product
from math import isnan, nan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from steppe.studies import Measured, Run, Table
from steppe.studies.correlate import effects, environments, granulated, tau_a
from steppe.studies.statistics.by_setting import contexts_of, effect, neighbours
from steppe.studies.statistics.design import first_seen
from steppe.studies.table import Column

# --- pairs that differ in one setting


def grid(seed=0, seeds=2):
    """A grid of three settings with repeats, a measure and a target with ties."""
    draws = np.random.default_rng(seed)
    cells = list(product([0.1, 0.01, 0.001], ["flip", "none"], [0, 1], range(seeds)))
    columns = {name: [c[i] for c in cells] for i, name in enumerate(("lr", "augment", "mixup"))}
    x, y = draws.integers(0, 8, size=(2, len(cells))).astype(float)
    return x, y, columns


def only_in(columns, axis):
    """All pairs that differ in that setting and in no other, found by looking at every pair."""
    n = len(columns[axis])
    others = [c for c in columns if c != axis]
    return [
        (i, j)
        for i, j in combinations(range(n), 2)
        if columns[axis][i] != columns[axis][j] and all(columns[o][i] == columns[o][j] for o in others)
    ]


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_neighbours_are_all_pairs_that_differ_in_one_setting(axis):
    _, _, columns = grid()
    axes = [first_seen(map(repr, column)) for column in columns.values()]
    first, second = neighbours(contexts_of(axes, axis), axes[axis])
    assert sorted(zip(first.tolist(), second.tolist(), strict=True)) == only_in(columns, list(columns)[axis])


@pytest.mark.parametrize("seed", range(5))
def test_the_granulated_coefficient_is_the_mean_of_means_of_taus(seed):
    x, y, columns = grid(seed, seeds=3)
    rows = np.random.default_rng(seed).permutation(36)[:25]  # so that some comparisons have more pairs than others
    x, y, columns = x[rows], y[rows], {name: [column[i] for i in rows] for name, column in columns.items()}
    found = granulated(x, y, columns)
    for axis in columns:
        by_context = {}
        for i, j in only_in(columns, axis):
            context = tuple(columns[o][i] for o in columns if o != axis)
            by_context.setdefault(context, []).append(np.sign(x[i] - x[j]) * np.sign(y[i] - y[j]))
        assert found.psi[axis] == pytest.approx(np.mean([np.mean(v) for v in by_context.values()]))
        assert found.contexts[axis] == len(by_context)
        assert found.pairs[axis] == len(only_in(columns, axis))
    assert found.value == pytest.approx(np.mean(list(found.psi.values())))


def test_without_repeats_psi_is_the_mean_tau_of_the_settings_own_values():
    x, y, columns = grid(3, seeds=1)
    taus = []
    for augment, mixup in product(["flip", "none"], [0, 1]):
        rows = [i for i in range(12) if columns["augment"][i] == augment and columns["mixup"][i] == mixup]
        taus.append(tau_a(x[rows], y[rows]))
    assert granulated(x, y, columns).psi["lr"] == pytest.approx(np.mean(taus))


def test_a_measure_that_only_follows_one_setting_is_found_out():
    """It has a good tau over the pool because the learning rate matters most, and psi 0 or worse elsewhere."""
    draws = np.random.default_rng(0)
    _, _, columns = grid(seeds=3)
    lr, mixup = np.array(columns["lr"]), np.array(columns["mixup"])
    y = 10 * lr + 0.3 * mixup + 0.01 * draws.normal(size=len(lr))
    x = 10 * lr - 0.3 * mixup + 0.01 * draws.normal(size=len(lr))
    assert tau_a(x, y) > 0.2
    psi = granulated(x, y, columns).psi
    assert psi["lr"] > 0.9
    assert psi["mixup"] == -1
    found = environments(x, y, columns)
    assert found.worst == 1
    assert found.found[0].setting == "mixup"
    assert found.found[0].values == (0, 1)
    assert found.mean < 0.6
    assert "mixup 0 to 1: sign error 1.00 over 54 pairs" in str(found)


@pytest.mark.parametrize("seed", range(3))
def test_sign_errors_by_environment(seed):
    x, y, columns = grid(seed)
    found = environments(x, y, columns, resolution=1.0, fewest=1)
    expected, unresolved = {}, 0
    for axis in columns:
        for i, j in only_in(columns, axis):
            if abs(y[i] - y[j]) <= 1:
                unresolved += 1
                continue
            wrong = (1 - np.sign(x[i] - x[j]) * np.sign(y[i] - y[j])) / 2
            expected.setdefault((axis, frozenset((columns[axis][i], columns[axis][j]))), []).append(wrong)
    assert found.unresolved == unresolved
    got = {(e.setting, frozenset(e.values)): (e.sign_error, e.pairs) for e in found.found}
    assert got == {k: (pytest.approx(np.mean(v)), len(v)) for k, v in expected.items()}
    assert found.worst == max(np.mean(v) for v in expected.values())
    few = environments(x, y, columns, resolution=1.0, fewest=8)
    assert len(few.found) + few.too_few == len(found.found)
    assert few.too_few == sum(len(v) < 8 for v in expected.values())


def test_of_many_repeats_environments_compare_sixteen():
    """Pairs would grow as the square of the repeats; rare settings keep all of theirs."""
    draws = np.random.default_rng(0)
    lr = np.repeat([0.1, 0.2, 0.3], [500, 400, 5])
    x, y = draws.normal(size=(2, 905))
    y += 0.8 * x
    found = environments(x, y, {"lr": lr})
    assert {e.values: e.pairs for e in found.found} == {(0.1, 0.2): 256, (0.1, 0.3): 80, (0.2, 0.3): 80}
    i, j = (np.flatnonzero(lr == v) for v in (0.1, 0.2))
    every = (np.sign(x[i][:, None] - x[j]) != np.sign(y[i][:, None] - y[j])).mean()
    [few] = [e.sign_error for e in found.found if e.values == (0.1, 0.2)]
    assert few == pytest.approx(every, abs=0.12)
    assert str(found) == str(environments(x, y, {"lr": lr}))
    psi = granulated(x, y, {"lr": lr})  # counts all pairs, for it need not list them
    assert psi.pairs["lr"] == 500 * 400 + 900 * 5


def test_values_that_never_come_twice_make_no_environment():
    draws = np.random.default_rng(0)
    x, y, lr, decay = draws.normal(size=(4, 300))
    assert environments(x, y, {"lr": lr, "decay": decay}).found == []
    alone = environments(x, y, {"lr": lr})
    assert alone.found == []
    assert alone.too_few == 300 * 299 // 2  # each change has one pair
    assert granulated(x, y, {"lr": lr}).psi["lr"] == pytest.approx(tau_a(x, y))


def test_environments_leave_out_what_errors_of_the_target_explain():
    y = np.array([0.0, 1.0, 0.0, 3.0])
    columns = {"lr": [1, 2, 1, 2]}
    found = environments(y, y, columns, resolution=np.full(4, 0.5), fewest=1)  # a pair needs 2 * 0.5 * sqrt(2)
    assert found.found[0].pairs == 2
    assert found.unresolved == 2


def test_runs_without_a_neighbour_say_nothing():
    x = np.arange(4.0)
    columns = {"lr": [0.1, 0.2, 0.3, 0.4], "decay": [1, 2, 3, 4]}
    none = granulated(x, x, columns)
    assert isnan(none.value)
    assert none.pairs == {"lr": 0, "decay": 0}
    assert isnan(environments(x, x, columns).worst)
    assert "no environment" in str(environments(x, x, columns))
    lost = granulated(np.r_[x, nan], np.r_[x, 1.0], {"lr": [1, 2, 3, 4, 5]})
    assert (lost.value, lost.missing, lost.pairs["lr"]) == (1, 1, 6)
    with pytest.raises(ValueError, match="4 runs and 1 values"):
        granulated(x, x, {"lr": [1]})


# --- settings


def runs(n=24):
    draws = np.random.default_rng(0)
    made = []
    for i in range(n):
        lr, augment = 10.0 ** -(i % 3), "flip" if i % 2 else "none"
        config = {
            "lr": lr,
            "epochs": 3,
            "method_options": {"n": i % 4},
            "augment": [augment],
            "rho": None if i < 4 else 0.1 * i,
        }
        measure = -np.log(lr) + 8 * (i % 2) + 0.1 * draws.normal()
        made.append(Run(str(i), "", config, {"augment": augment}, "done", {"e": 0.1}, {"m": Measured(measure, 0.0)}))
    return Table(made)


def test_a_measure_that_tracks_the_learning_rate_is_seen_most_of_all_within_groups():
    found = {e.setting: e for e in effects(runs())}
    assert list(found) == ["lr", "method_options.n", "augment", "rho"]  # epochs are the same everywhere
    lr = found["lr"]
    assert lr.values == 3
    assert lr.within < lr.tau < 0
    assert isnan(found["augment"].tau)  # words have no order
    assert found["augment"].share > 0.7
    assert found["rho"].n == 20


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from("abc")), min_size=6, max_size=30))
@settings(max_examples=30)
def test_the_share_between_values_is_the_statistic_of_kruskal_and_wallis(rows):
    x = np.array([float(v) for v, _ in rows])
    column = np.array([c for _, c in rows], dtype=object)
    found = effect(Column("m", x, np.zeros(len(x))), "s", column)
    parts = [x[column == c] for c in sorted(set(column))]
    if len(parts) < 2 or not np.ptp(x):
        assert isnan(found.share)
        return
    assert found.share == pytest.approx(stats.kruskal(*parts).statistic / (len(x) - 1))
    assert found.share <= found.ceiling + 1e-12


@pytest.mark.parametrize("sizes", [(18, 18), (3, 5, 9), (1, 1, 10)])
def test_a_perfect_separation_reaches_the_ceiling(sizes):
    """Of two times 18 runs: a share of 0.7506 and a tau of 0.514, which would read as moderate."""
    x = np.arange(float(sum(sizes)))
    column = np.array([v for v, size in enumerate(sizes) for _ in range(size)], dtype=object)
    found = effect(Column("m", x, np.zeros(len(x))), "lr", column)
    assert found.share == pytest.approx(found.ceiling)
    assert found.tau == pytest.approx(found.tau_ceiling)
    if sizes == (18, 18):
        assert (round(found.ceiling, 4), round(found.tau_ceiling, 3)) == (0.7506, 0.514)


def test_settings_that_differ_are_told_by_their_entries():
    configs = [
        {"method": "none", "method_options": {}, "lr": 0.1, "mix": None, "same": [1, 2], "schedule": "flat"},
        {
            "method": "sam",
            "method_options": {"n": 3, "mask": {"share": 0.5}},
            "lr": 0.1,
            "same": [1, 2],
            "schedule": {"at": 2},
        },
        {
            "method": "sam",
            "method_options": {"n": 4, "mask": {"share": 0.5}},
            "lr": 0.1,
            "same": [1, 2],
            "schedule": {"at": 2},
        },
    ]
    table = Table([Run(str(i), "", config, {}, "done") for i, config in enumerate(configs)])
    # not method_options itself, nor mix, which no run has; a schedule is a word in one run and a mapping in others
    inside = ["method_options.n", "method_options.mask.share"]
    assert table.settings() == ["method", "schedule", *inside, "schedule.at"]
    assert table.setting("method_options.n").tolist() == [None, 3, 4]
    assert Table(table.runs[1:]).settings() == ["method_options.n"]
    assert Table([]).settings() == []
    numbers = [Run(str(i), "", {"x": v}, {}, "done") for i, v in enumerate([1, 1, True])]
    assert Table(numbers).settings() == ["x"]
    assert Table(numbers[:2]).settings() == []


def test_columns_of_a_table():
    table = runs()
    assert table.measures == ["m"]
    assert table.targets == ["e"]
    assert table.setting("method_options.n").tolist() == [i % 4 for i in range(24)]
    assert table.setting("method_options.absent").tolist() == [None] * 24
    assert set(table.labels()) == {"augment=flip", "augment=none"}
    assert len(table.where(lambda run: run.config["lr"] == 1)) == 8
    with pytest.raises(ValueError, match="no target 'f'"):
        table.target("f")
