"""What is told of an ensemble, against loops over rows and members and against closed forms."""

from __future__ import annotations

from itertools import permutations
from math import exp, isnan, log
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import softmax
from scipy.stats import entropy, linregress
from sklearn.metrics import accuracy_score, log_loss
from torch import Tensor

from steppe.ensembles import (
    accuracy,
    calibration_error,
    disagreement,
    disagreements,
    distances,
    divergence,
    divergences,
    error_ratio,
    improvement_rate,
    logit_variance,
    negative_log_likelihood,
    over_members,
    predicted,
    scored,
    slope,
    variance,
)

quickly = settings(max_examples=25, deadline=None)


@st.composite
def said(draw: Any, least: int = 2) -> tuple[Tensor, Tensor]:
    """What some members say on some rows, and the right classes."""
    members, rows, classes = draw(st.integers(least, 5)), draw(st.integers(1, 12)), draw(st.integers(2, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    scale = draw(st.sampled_from([0.1, 1.0, 4.0]))
    logits = scale * torch.randn(members, rows, classes, generator=generator)
    return logits, torch.randint(0, classes, (rows,), generator=generator)


def probabilities(logits: Tensor) -> np.ndarray:
    return softmax(logits.double().numpy(), axis=-1)


@quickly
@given(said())
def test_diversities_are_means_over_pairs_and_rows(case: tuple[Tensor, Tensor]) -> None:
    logits, targets = case
    p = probabilities(logits)
    guesses = logits.argmax(-1).tolist()
    members, rows = len(p), len(targets)
    pairs = list(permutations(range(members), 2))
    differ = [fmean(guesses[i][n] != guesses[j][n] for n in range(rows)) for i, j in pairs]
    assert float(disagreement(logits)) == pytest.approx(fmean(differ))
    kl = [entropy(p[i], p[j], axis=-1).mean() for i, j in pairs]
    assert float(divergence(logits)) == pytest.approx(fmean(kl), abs=1e-12)
    spread = fmean(sum(np.var(p[:, n], axis=0, ddof=1)) for n in range(rows))
    assert float(variance(logits)) == pytest.approx(spread, abs=1e-12)
    raw = fmean(sum(np.var(logits.double().numpy()[:, n], axis=0, ddof=1)) for n in range(rows))
    assert float(logit_variance(logits)) == pytest.approx(raw, abs=1e-12)
    wrong = fmean(g != t for row in guesses for g, t in zip(row, targets.tolist(), strict=True))
    ratio = float(error_ratio(logits, targets))
    assert ratio == pytest.approx(fmean(differ) / wrong) if wrong else isnan(ratio)
    for matrix, numbers in ((disagreements, differ), (divergences, kl)):
        found = matrix(logits)
        assert [float(found[i, j]) for i, j in pairs] == pytest.approx(numbers, abs=1e-12)
        assert found.diagonal().tolist() == [0.0] * members


@quickly
@given(said())
def test_matrices_of_symmetric_diversities_are_symmetric(case: tuple[Tensor, Tensor]) -> None:
    for matrix in (disagreements(case[0]), distances(case[0])):
        assert torch.equal(matrix, matrix.T)
    assert bool((divergences(case[0]) >= -1e-15).all())


@quickly
@given(said())
def test_ensembles_are_judged_as_scikit_learn_does(case: tuple[Tensor, Tensor]) -> None:
    logits, targets = case
    p, classes = probabilities(logits), range(logits.shape[-1])
    means = {"probabilities": p.mean(0), "logits": softmax(logits.double().numpy().mean(0), axis=-1)}
    for by, mean in means.items():
        found = predicted(logits.double(), by)  # type: ignore[arg-type]
        assert found.exp().numpy() == pytest.approx(mean)
        assert float(negative_log_likelihood(found, targets)) == pytest.approx(
            log_loss(targets.numpy(), mean, labels=list(classes))
        )
        right = accuracy_score(targets.numpy(), mean.argmax(-1))
        assert float(accuracy(found, targets)) == pytest.approx(right)
        errors = [1 - accuracy_score(targets.numpy(), one.argmax(-1)) for one in p]
        rate = float(improvement_rate(logits.double(), targets, by))  # type: ignore[arg-type]
        assert rate == pytest.approx((fmean(errors) - (1 - right)) / fmean(errors)) if any(errors) else isnan(rate)


@quickly
@given(said(least=1), st.integers(1, 20))
def test_calibration_error_bin_by_bin(case: tuple[Tensor, Tensor], bins: int) -> None:
    logits, targets = case
    p = probabilities(logits)[0]
    total = 0.0
    for k in range(bins):
        inside = [n for n in range(len(p)) if k / bins < p[n].max() <= (k + 1) / bins]
        if inside:
            right = fmean(int(p[n].argmax()) == int(targets[n]) for n in inside)
            total += len(inside) / len(p) * abs(right - fmean(p[n].max() for n in inside))
    assert float(calibration_error(torch.tensor(p).log(), targets, bins)) == pytest.approx(total, abs=1e-9)


def test_calibration_errors_that_are_known() -> None:
    sure = torch.tensor([[0.0, -1e9], [0.0, -1e9]])
    assert float(calibration_error(sure, torch.tensor([0, 1]))) == 0.5
    assert float(calibration_error(sure, torch.tensor([0, 0]))) == 0.0
    edge = torch.tensor([[0.5, 0.5], [0.75, 0.25]]).log()  # of two bins the first ends at 0.5 and has it
    assert float(calibration_error(edge, torch.tensor([0, 1]), 2)) == pytest.approx((0.5 + 0.75) / 2)
    even = torch.full((4, 4), 0.25).log()
    assert float(calibration_error(even, torch.arange(4))) == pytest.approx(0.0, abs=1e-7)  # right in one of four


@quickly
@given(said(), st.integers(2, 5))
def test_identical_members_are_no_ensemble(case: tuple[Tensor, Tensor], copies: int) -> None:
    logits, targets = case[0][:1].expand(copies, -1, -1), case[1]
    for diversity in (disagreement, variance, divergence):
        assert float(diversity(logits)) == pytest.approx(0, abs=1e-12)
    if not bool((logits.argmax(-1) == targets).all()):
        assert float(improvement_rate(logits, targets)) == pytest.approx(0, abs=1e-12)
        assert float(error_ratio(logits, targets)) == 0
    assert predicted(logits, "logits") == pytest.approx(predicted(logits, "probabilities"), abs=1e-5)


def test_three_members_of_which_each_errs_alone() -> None:
    """On row i member i is wrong, by little: the ensemble never is, and all errors are mended."""
    logits = torch.zeros(3, 3, 2)
    logits[..., 0] = 1.0
    for i in range(3):
        logits[i, i] = torch.tensor([0.0, 1.0])
    targets = torch.zeros(3, dtype=torch.int64)
    assert float(improvement_rate(logits, targets)) == 1.0
    assert float(disagreement(logits)) == pytest.approx(2 / 3)
    assert float(error_ratio(logits, targets)) == pytest.approx(2.0)
    p = 1 / (1 + exp(-1))
    assert float(variance(logits)) == pytest.approx(2 * (2 * p - 1) ** 2 / 3)  # each class: of (a, a, b)
    assert float(divergence(logits)) == pytest.approx(2 / 3 * (2 * p - 1) * log(p / (1 - p)))


@quickly
@given(said(least=3))
def test_errors_are_the_jackknife_over_members(case: tuple[Tensor, Tensor]) -> None:
    logits = case[0].double()
    n = len(logits)
    found = over_members(logits, variance)
    left = [float(variance(logits[[j for j in range(n) if j != i]])) for i in range(n)]
    middle = fmean(left)
    assert found.stderr == pytest.approx(((n - 1) / n * sum((x - middle) ** 2 for x in left)) ** 0.5, abs=1e-12)
    assert found.n == n
    means = scored(logits, case[1])["member_nll"]
    own = [float(negative_log_likelihood(one.log_softmax(-1), case[1])) for one in logits]
    assert means.value == pytest.approx(fmean(own))
    assert means.stderr == pytest.approx(stdev(own) / n**0.5)


def test_two_members_cannot_tell_an_error_of_what_is_between_them() -> None:
    logits = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(0))
    targets = torch.zeros(50, dtype=torch.int64)
    found = scored(logits, targets)
    assert all(isnan(found[name].stderr) for name in ("eir", "der", "disagreement", "variance", "kl"))
    assert not any(isnan(e.value) for e in found.values())


def test_one_member_has_no_diversity() -> None:
    logits = torch.randn(1, 5, 3)
    assert set(scored(logits, torch.zeros(5, dtype=torch.int64))) == {
        f"{whose}{what}" for whose in ("", "member_") for what in ("accuracy", "nll", "calibration_error")
    }
    with pytest.raises(ValueError, match="there is one"):
        variance(logits)
    with pytest.raises(ValueError, match="there is one"):
        improvement_rate(logits, torch.zeros(5, dtype=torch.int64))


def test_members_that_never_err_have_no_rates() -> None:
    logits = torch.eye(3).repeat(3, 1, 1) * torch.tensor([1.0, 2.0, 3.0])[:, None, None]
    found = scored(logits, torch.arange(3))
    assert isnan(found["eir"].value)
    assert isnan(found["der"].value)
    assert "makes an error" in found["der"].note
    assert found["variance"].value > 0


def test_outputs_that_are_not_finite_are_refused() -> None:
    logits = torch.zeros(3, 2, 2)
    logits[1, 1, 0] = float("nan")
    with pytest.raises(ArithmeticError, match="not a number"):
        scored(logits, torch.zeros(2, dtype=torch.int64))


def test_an_unknown_average() -> None:
    with pytest.raises(ValueError, match="\"probabilities\", not by 'votes'"):
        predicted(torch.zeros(2, 1, 2), "votes")  # type: ignore[arg-type]


@quickly
@given(st.lists(st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)), min_size=3, max_size=9))
def test_slopes_are_those_of_scipy(points: list[tuple[float, float]]) -> None:
    x, y = zip(*points, strict=True)
    if max(x) < 1.01 * min(x) or max(y) < 1.01 * min(y):  # scipy has no error of a level line
        return
    found, known = slope(x, y), linregress(np.log(x), np.log(y))
    assert found.value == pytest.approx(known.slope, rel=1e-6, abs=1e-9)
    assert found.stderr == pytest.approx(known.stderr, rel=1e-5, abs=1e-6)


def test_slopes_that_are_known_or_not() -> None:
    assert slope([1, 2, 4], [3, 12, 48]).value == pytest.approx(2)
    assert slope([1, 2, 4, 8], [3, 12, 48, 0.0]).n == 3
    assert "1 of 4 points" in slope([1, 2, 4, 8], [3, 12, 48, 0.0]).note
    assert isnan(slope([1, 1], [2, 3]).value)
    assert isnan(slope([1, 2], [2, 3]).stderr)
    assert isnan(slope([float("nan"), 2], [2, 3]).value)
