"""X"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import Literal

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset
from ..data.feed import batches
from ..measures.estimate import Estimate, Kind, NotFinite, summarise
from ..training.evaluate import ROWS
from ..training.problem import Task


def disagreements(logits: Tensor) -> Tensor:
    """The share of rows on which two members predict different classes, for every pair."""
    guesses = logits.argmax(-1)
    return (guesses[:, None] != guesses[None]).double().mean(-1)


def distances(logits: Tensor) -> Tensor:
    """Half the mean squared distance of two members' probabilities, for every pair."""
    p = logits.double().softmax(-1)
    found = [((p - one).square().sum(-1).mean(-1) / 2) for one in p]  # row by row: no matrix of all rows
    return torch.stack(found)


def divergences(logits: Tensor) -> Tensor:
    """KL(f_i || f_j) averaged over rows (Lu et al. 2024, Eq. 11), for every ordered pair."""
    log_p = logits.double().log_softmax(-1)
    found = [(one.exp() * (one - log_p)).sum(-1).mean(-1) for one in log_p]
    return torch.stack(found)


def over_pairs(matrix: Tensor) -> Tensor:
    """The mean over ordered pairs of different members."""
    n = len(matrix)
    if n < 2:
        raise ValueError("diversity is between members, and there is only one")
    return (matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1))


def disagreement(logits: Tensor) -> Tensor:
    """How often two members predict different classes."""
    return over_pairs(disagreements(logits))


def variance(logits: Tensor) -> Tensor:
    """The variance over members of the predicted probabilities, summed over classes, averaged over rows (Eq. 1).

    Unbiased, with members - 1 below, so that it does not grow with their number: the mean of `distances`.
    """
    return over_pairs(distances(logits))


def divergence(logits: Tensor) -> Tensor:
    """The Kullback-Leibler divergence between two members (Eq. 11)."""
    return over_pairs(divergences(logits))


def member_error(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over members of the share of wrong rows."""
    return (logits.argmax(-1) != targets).double().mean()


def error_ratio(logits: Tensor, targets: Tensor) -> Tensor:
    """The disagreement error ratio (Theisen et al. 2023; Lu et al. 2024, Eq. 2): disagreement over mean error.

    Not a number where no member is ever wrong.
    """
    return disagreement(logits) / member_error(logits, targets)


MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "disagreement": disagreements,
    "variance": distances,
    "kl": divergences,
}


By = Literal["logits", "probabilities"]
BINS = 15  # Guo et al. 2017, section 5


@torch.no_grad()
def logits(models: Sequence[nn.Module], dataset: Dataset, task: Task) -> Tensor:
    """Logits of every model on every row: (members, rows, classes), on the CPU; models run in evaluation mode."""
    device = dataset.inputs.device
    outputs = []
    for model in models:
        was_training = model.training
        model.to(device).eval()
        outputs.append(torch.cat([model(x).float().cpu() for x, _ in batches(dataset, ROWS, task.standard)]))
        model.train(was_training)
    return torch.stack(outputs)


def predicted(logits: Tensor, by: By = "logits") -> Tensor:
    """Log-probabilities of the ensemble.

    Of the mean of the members' logits (Lu et al. 2024, section 2), or the logarithm of the mean of their
    probabilities (Lakshminarayanan et al. 2017).
    """
    if by == "logits":
        return logits.mean(0).log_softmax(-1)
    if by != "probabilities":
        raise ValueError(f'members are averaged by "logits" or by "probabilities", not by {by!r}')
    return logits.log_softmax(-1).logsumexp(0) - torch.tensor(len(logits), dtype=logits.dtype).log()


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
    """The ensemble improvement rate: (mean error of members - error of the ensemble) / mean error of members.

    Theisen et al. 2023; Lu et al. 2024, Eq. 4. NaN if no member is ever wrong.
    """
    if len(logits) < 2:
        raise ValueError("an ensemble improves over its members, and there is only one")
    error = member_error(logits, targets)
    return (error - (1 - accuracy(predicted(logits, by), targets))) / error


def over_members(logits: Tensor, statistic: Callable[[Tensor], Tensor], kind: Kind = "plug-in") -> Estimate:
    """A statistic of all members with its jackknife error; NaN where it is undefined."""
    try:
        return summarise(logits, kind, lambda some: statistic(some).double())
    except NotFinite:
        if not bool(logits.isfinite().all()):
            raise
        return Estimate(nan, nan, len(logits), kind, note="no member is ever wrong")


def scored(logits: Tensor, targets: Tensor, by: By = "logits") -> Mapping[str, Estimate]:
    """All scores of an ensemble on some rows, by name."""
    own = logits.log_softmax(-1)

    def of_members(score: Callable[[Tensor, Tensor], Tensor]) -> Estimate:
        return summarise(torch.stack([score(one, targets) for one in own]), "unbiased")

    def of_ensemble(score: Callable[[Tensor, Tensor], Tensor]) -> Estimate:
        return over_members(logits, lambda some: score(predicted(some, by), targets))

    scores = {
        "member_accuracy": of_members(accuracy),
        "accuracy": of_ensemble(accuracy),
        "member_nll": of_members(negative_log_likelihood),
        "nll": of_ensemble(negative_log_likelihood),
        "member_calibration_error": of_members(calibration_error),
        "calibration_error": of_ensemble(calibration_error),
    }
    if len(logits) < 2:
        return scores
    return scores | {
        "eir": over_members(logits, lambda some: improvement_rate(some, targets, by)),
        "der": over_members(logits, lambda some: error_ratio(some, targets)),
        "disagreement": over_members(logits, disagreement, "unbiased"),
        "variance": over_members(logits, variance, "unbiased"),
        "kl": over_members(logits, divergence, "unbiased"),
    }
