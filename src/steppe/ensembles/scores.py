"""How good members and their ensemble are, from what members say: every number with its error over members.

Errors are the jackknife's: each member is left out in turn, and the spread of what the others give, (m - 1) / m times
the sum of squares, is the squared error. It says how much another draw of members, as many of the same kind, would
move a number on the same rows. For the mean of members' own numbers it is the textbook error of a mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan

import torch
from torch import Tensor

from ..measures.estimate import Estimate, Kind, NotFinite, summarise
from . import diversity
from .prediction import By, predicted

BINS = 15  # Guo et al. 2017, section 5


def accuracy(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """The share of rows whose most likely class is right."""
    return (log_probabilities.argmax(-1) == targets).double().mean(-1)


def negative_log_likelihood(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """The mean over rows of -log p(target)."""
    index = targets.expand(log_probabilities.shape[:-1]).unsqueeze(-1)
    return -log_probabilities.double().gather(-1, index).squeeze(-1).mean(-1)


def calibration_error(log_probabilities: Tensor, targets: Tensor, bins: int = BINS) -> Tensor:
    """The expected calibration error of one predictor: sum over bins of rows / n |accuracy - confidence|.

    Bins are of equal width in the largest probability, open below and closed above (Guo et al. 2017, Eq. 3).
    """
    confidence, guess = log_probabilities.double().exp().max(-1)
    place = ((confidence * bins).ceil() - 1).clamp(0, bins - 1).long()
    gap = (guess == targets).double() - confidence
    return torch.zeros(bins, dtype=torch.float64).index_add_(0, place, gap).abs().sum() / len(targets)


def improvement_rate(logits: Tensor, targets: Tensor, by: By = "logits") -> Tensor:
    """The ensemble improvement rate (Theisen et al. 2023; Lu et al. 2024, Eq. 4): by how much of the members' mean
    error the ensemble's error is smaller; not a number where no member is ever wrong.
    """
    if len(logits) < 2:
        raise ValueError("an ensemble improves over its members, and there is one only")
    error = diversity.error(logits, targets)
    return (error - (1 - accuracy(predicted(logits, by), targets))) / error


def over_members(logits: Tensor, statistic: Callable[[Tensor], Tensor], kind: Kind = "plug-in") -> Estimate:
    """A statistic of all members with its jackknife error; not a number where it is undefined."""
    try:
        return summarise(logits, kind, lambda some: statistic(some).double())
    except NotFinite:
        if not bool(logits.isfinite().all()):
            raise
        return Estimate(nan, nan, len(logits), kind, note="no member is ever wrong")


def scored(logits: Tensor, targets: Tensor, by: By = "logits") -> Mapping[str, Estimate]:
    """Everything that is told of an ensemble on some rows, by name."""
    own = logits.log_softmax(-1)

    def of_members(score: Callable[[Tensor, Tensor], Tensor]) -> Estimate:
        return summarise(torch.stack([score(one, targets) for one in own]), "unbiased")

    def of_ensemble(score: Callable[[Tensor, Tensor], Tensor]) -> Estimate:
        return over_members(logits, lambda some: score(predicted(some, by), targets))

    found = {
        "member_accuracy": of_members(accuracy),
        "accuracy": of_ensemble(accuracy),
        "member_nll": of_members(negative_log_likelihood),
        "nll": of_ensemble(negative_log_likelihood),
        "member_calibration_error": of_members(calibration_error),
        "calibration_error": of_ensemble(calibration_error),
    }
    if len(logits) < 2:
        return found
    return found | {
        "eir": over_members(logits, lambda some: improvement_rate(some, targets, by)),
        "der": over_members(logits, lambda some: diversity.error_ratio(some, targets)),
        "disagreement": over_members(logits, diversity.disagreement, "unbiased"),
        "variance": over_members(logits, diversity.variance, "unbiased"),
        "kl": over_members(logits, diversity.divergence, "unbiased"),
    }
