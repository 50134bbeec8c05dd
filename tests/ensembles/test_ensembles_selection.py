"""Which rows are sharpness-aware, against sets written out in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steppe.ensembles import sharp_sets
from steppe.training.schedule import Exchange

NAMED = ("sharpest", "flattest")
RESTS = ("normal", "own-share", "other-shares")


quickly = settings(max_examples=50, deadline=None)


@st.composite
def scores(draw: Any) -> np.ndarray:
    """Scores with many ties."""
    members, rows = draw(st.integers(2, 5)), draw(st.integers(1, 25))
    listed = draw(st.lists(st.integers(0, 6), min_size=members * rows, max_size=members * rows))
    return np.array(listed, dtype=np.float64).reshape(members, rows)


def by_sets(scores: np.ndarray, k: int, named: str, rest: str) -> list[set[int]]:
    """The released procedure, a list and a set at a time."""
    members, rows = scores.shape
    picked = []
    for own in scores.tolist():
        order = sorted(range(rows), key=lambda j: (-own[j] if named == "sharpest" else own[j], j))
        picked.append(set(order[:k]))
    nobody = sorted(set(range(rows)) - set().union(*picked))
    found = []
    for i in range(members):
        mine = set().union(*(p for j, p in enumerate(picked) if j != i))
        share = set(nobody[i::members])
        mine |= {"normal": set(), "own-share": share, "other-shares": set(nobody) - share}[rest]
        found.append(mine)
    return found


@quickly
@given(scores(), st.integers(1, 100), st.sampled_from(NAMED), st.sampled_from(RESTS))
def test_sets_are_those_of_the_procedure(scores: np.ndarray, percent: int, named: Any, rest: Any) -> None:
    k = percent * scores.shape[1] // 100
    if not k:
        with pytest.raises(ValueError, match="at least 1 row"):
            sharp_sets(scores, percent / 100, named, rest)
        return
    found = sharp_sets(scores, percent / 100, named, rest)
    assert [set(np.flatnonzero(row)) for row in found] == by_sets(scores, k, named, rest)


@quickly
@given(scores(), st.sampled_from(RESTS))
def test_order_is_all_that_counts(scores: np.ndarray, rest: Any) -> None:
    """Any growing function of the scores gives the same sets, and turning them round exchanges the two ends."""
    half = sharp_sets(scores, 1.0 if scores.shape[1] < 2 else 0.5, "sharpest", rest)
    share = 1.0 if scores.shape[1] < 2 else 0.5
    assert (sharp_sets(np.exp(scores), share, "sharpest", rest) == half).all()
    assert (sharp_sets(-scores, share, "flattest", rest) == half).all()


@quickly
@given(scores(), st.sampled_from(NAMED))
def test_rows_that_nobody_named_are_dealt_to_one_or_to_all_but_one(scores: np.ndarray, named: Any) -> None:
    share = max(0.2, 1 / scores.shape[1])
    plain, own, others = (sharp_sets(scores, share, named, rest) for rest in RESTS)
    nobodys = own.sum(0) - plain.sum(0) > 0
    assert (own[:, nobodys].sum(0) == 1).all()
    assert (others[:, nobodys].sum(0) == len(scores) - 1).all()
    dealt = own[:, nobodys].sum(1)
    assert dealt.max() - dealt.min() <= 1
    assert (own[:, ~nobodys] == plain[:, ~nobodys]).all()
    assert (others[:, ~nobodys] == plain[:, ~nobodys]).all()


def test_a_member_does_not_choose_its_own_rows() -> None:
    """Two members exchange: each gets what is sharp for the other."""
    scores = np.array([[9, 8, 1, 2, 3, 0.0], [0, 1, 2, 3, 9, 8.0]])
    assert sharp_sets(scores, 1 / 3).tolist() == [[0, 0, 0, 0, 1, 1], [1, 1, 0, 0, 0, 0]]
    assert sharp_sets(scores, 1 / 3, "flattest").tolist() == [[1, 1, 0, 0, 0, 0], [0, 0, 1, 0, 0, 1]]


def test_shares_are_counted_as_people_count() -> None:
    """0.29 * 100 is 28.999999999999996."""
    assert sharp_sets(np.random.default_rng(0).random((2, 100)), 0.29).sum(1).tolist() == [29, 29]


def test_random_scores_and_three_members_make_three_quarters_of_the_rows_sharp() -> None:
    """1 - (1 - 1/2)^2, within five standard errors."""
    found = sharp_sets(np.random.default_rng(0).random((3, 10_000))).mean(1)
    assert np.abs(found - 0.75).max() < 5 * np.sqrt(0.75 * 0.25 / 10_000)


@pytest.mark.parametrize(
    ("scores", "options", "said"),
    [
        (np.ones((1, 4)), {}, "at least two"),
        (np.ones(4), {}, "at least two"),
        (np.array([[1, np.nan], [1, 2.0]]), {}, "1 scores .* member 0 at training row 1"),
        (np.array([[1, 2], [np.inf, 2.0]]), {}, "member 1 at training row 0"),
        (np.ones((2, 4)), {"share": 0.2}, "0 rows"),
        (np.ones((2, 4)), {"share": 1.5}, "at most all"),
        (np.ones((2, 4)), {"named": "sharp"}, "Did you mean 'sharpest'"),
        (np.ones((2, 4)), {"rest": "own"}, "Did you mean 'own-share'"),
    ],
)
def test_what_is_refused(scores: Any, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        sharp_sets(scores, **options)


@quickly
@given(st.integers(1, 30), st.none() | st.integers(1, 12), st.integers(1, 60))
def test_a_schedule_says_which_exchange_an_epoch_follows(first: int, every: int | None, epochs: int) -> None:
    schedule = Exchange(first, every)
    assert Exchange.of(str(schedule)) == schedule
    moments = [e for e in range(epochs) if e == first or (every and e > first and (e - first) % every == 0)]
    assert schedule.epochs(epochs) == moments
    for epoch in range(epochs):
        assert schedule.last_before(epoch) == max((m for m in moments if m <= epoch), default=None)


@pytest.mark.parametrize("text", [None, "rows.npy", "exchanged", "exchanged@", "exchanged@3+", "exchanged@3.npy"])
def test_other_texts_are_no_schedule(text: str | None) -> None:
    assert Exchange.of(text) is None


@pytest.mark.parametrize("text", ["exchanged@0", "exchanged@3+0"])
def test_schedules_that_cannot_be(text: str) -> None:
    with pytest.raises(ValueError, match="1 or more"):
        Exchange.of(text)
