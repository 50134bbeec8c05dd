"""Scores of an ensemble and of its members, and their diversity: every number with its error over members.

Errors are jackknife errors: leave out each member in turn; the squared error is (m - 1) / m times the sum of squared
deviations of the results. It estimates how much another draw of as many members would change a number on the same
rows. For a mean over members it is the standard error of the mean.

A diversity is the mean over pairs of different members of a matrix (members, members), whose diagonal is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import nan
from typing import Literal

import torch
from torch import Tensor

from ..measures.estimate import Estimate, Kind, NotFinite, summarise

By = Literal["logits", "probabilities"]
BINS = 15  # Guo et al. 2017, section 5


def disagreements(logits: Tensor) -> Tensor:
    """The fraction of samples on which two members predict different classes, for every pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0]], [[9.0, 0.0], [9.0, 0.0]]])  # they differ on the second row
    >>> steppe.ensembles.disagreements(logits).tolist()
    [[0.0, 0.5], [0.5, 0.0]]

    """
    guesses = logits.argmax(-1)
    return (guesses[:, None] != guesses[None]).double().mean(-1)


def distances(logits: Tensor) -> Tensor:
    """Half the mean squared distance of two members' probabilities, for every pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[0.5, 0.5]], [[0.9, 0.1]]]).log()  # two members, one row: (0.4^2 + 0.4^2) / 2
    >>> steppe.ensembles.distances(logits)
    tensor([[0.0000, 0.1600],
            [0.1600, 0.0000]], dtype=torch.float64)

    """
    return logit_distances(logits.double().softmax(-1))


def logit_distances(logits: Tensor) -> Tensor:
    """Half the mean squared distance of two members' logits, for every pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])  # two members, one row: (2^2 + 1^2) / 2
    >>> steppe.ensembles.logit_distances(logits).tolist()
    [[0.0, 2.5], [2.5, 0.0]]

    """
    x = logits.double()
    return torch.stack([(x - one).square().sum(-1).mean(-1) / 2 for one in x])  # one member at a time, to save memory


def divergences(logits: Tensor) -> Tensor:
    """KL(f_i || f_j), averaged over rows (Lu et al. 2024, Eq. 11), for every ordered pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[0.5, 0.5]], [[0.25, 0.75]]]).log()  # two members, one row
    >>> steppe.ensembles.divergences(logits)  # above the diagonal: log(4 / 3) / 2
    tensor([[0.0000, 0.1438],
            [0.1308, 0.0000]], dtype=torch.float64)

    """
    log_p = logits.double().log_softmax(-1)
    return torch.stack([(one.exp() * (one - log_p)).sum(-1).mean(-1) for one in log_p])


def _over_pairs(matrix: Tensor) -> Tensor:
    """Return the mean over ordered pairs of different members."""
    n = len(matrix)
    if n < 2:
        raise ValueError("diversity needs two members, and there is one")
    return (matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1))


def disagreement(logits: Tensor) -> Tensor:
    """The mean fraction of samples on which two members predict different classes.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0]], [[9.0, 0.0], [9.0, 0.0]]])  # they differ on the second row
    >>> float(steppe.ensembles.disagreement(logits))
    0.5

    """
    return _over_pairs(disagreements(logits))


def variance(logits: Tensor) -> Tensor:
    """The variance over members of the probabilities, summed over classes, averaged over rows.

    Lu et al. 2024, Eq. 1. Unbiased, with members - 1 in the denominator: the mean of `distances`.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[0.5, 0.5]], [[0.9, 0.1]]]).log()  # two members, one row: 2 classes of variance 0.08
    >>> round(float(steppe.ensembles.variance(logits)), 4)
    0.16

    """
    return _over_pairs(distances(logits))


def logit_variance(logits: Tensor) -> Tensor:
    """The same variance of the logits, as in SharpBalance's released code (Lu et al. 2024).

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])  # two members, one row: variances 2 and 0.5
    >>> float(steppe.ensembles.logit_variance(logits))
    2.5

    """
    return _over_pairs(logit_distances(logits))


def divergence(logits: Tensor) -> Tensor:
    """The Kullback-Leibler divergence between two members (Lu et al. 2024, Eq. 11).

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[0.5, 0.5]], [[0.25, 0.75]]]).log()  # two members, one row
    >>> round(float(steppe.ensembles.divergence(logits)), 4)  # log(3) / 8
    0.1373

    """
    return _over_pairs(divergences(logits))


MATRICES = {"disagreement": disagreements, "variance": distances, "logit_variance": logit_distances, "kl": divergences}
OVER_PAIRS = {"disagreement": disagreement, "variance": variance, "logit_variance": logit_variance, "kl": divergence}
"""Of all pairs of members, and their means, by name."""


def _member_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the error of a member, averaged over members."""
    return (logits.argmax(-1) != targets).double().mean()


def error_ratio(logits: Tensor, targets: Tensor) -> Tensor:
    """Disagreement over mean error (Theisen et al. 2023; Lu et al. 2024, Eq. 2), NaN if there is no error.

    Parameters
    ----------
    logits, targets
        The members' logits, (members, rows, classes), and the classes of the rows.

    Examples
    --------
    >>> wrong = torch.eye(3)  # each of three members is wrong on one of three rows
    >>> logits, targets = torch.stack([1 - wrong, wrong], -1), torch.zeros(3, dtype=torch.long)
    >>> round(float(steppe.ensembles.error_ratio(logits, targets)), 4)  # two members differ on 2/3, and err on 1/3
    2.0

    """
    return disagreement(logits) / _member_error(logits, targets)


def predicted(logits: Tensor, by: By = "logits") -> Tensor:
    """The log-probabilities of the ensemble, (rows, classes).

    Parameters
    ----------
    logits
        The members' logits.
    by
        What to average over members: "logits" (Lu et al. 2024, section 2), or "probabilities" (Lakshminarayanan et al.
        2017).

    Examples
    --------
    >>> logits = torch.tensor([[[0.5, 0.5]], [[0.8, 0.2]]]).log()  # two members, one row
    >>> steppe.ensembles.predicted(logits).exp()  # in proportion to sqrt(0.5 * 0.8) and sqrt(0.5 * 0.2)
    tensor([[0.6667, 0.3333]])
    >>> steppe.ensembles.predicted(logits, by="probabilities").exp()
    tensor([[0.6500, 0.3500]])

    """
    if by == "logits":
        return logits.mean(0).log_softmax(-1)
    if by != "probabilities":
        raise ValueError(f'members are averaged by "logits" or by "probabilities", not by {by!r}')
    return logits.log_softmax(-1).logsumexp(0) - torch.tensor(len(logits), dtype=logits.dtype).log()


def accuracy(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """The fraction of samples whose most likely class is correct.

    Parameters
    ----------
    log_probabilities, targets
        Of a predictor, (rows, classes), with further dimensions before them; and the classes of the rows.

    Examples
    --------
    >>> log_probabilities = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log()
    >>> float(steppe.ensembles.accuracy(log_probabilities, torch.tensor([0, 1])))
    0.5

    """
    return (log_probabilities.argmax(-1) == targets).double().mean(-1)


def negative_log_likelihood(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """The mean over rows of -log p(target).

    Parameters
    ----------
    log_probabilities, targets
        Of a predictor, (rows, classes), with further dimensions before them; and the classes of the rows.

    Examples
    --------
    >>> log_probabilities, targets = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log(), torch.tensor([0, 1])
    >>> round(float(steppe.ensembles.negative_log_likelihood(log_probabilities, targets)), 4)  # -log(0.8 * 0.4) / 2
    0.5697

    """
    index = targets.expand(log_probabilities.shape[:-1]).unsqueeze(-1)
    return -log_probabilities.double().gather(-1, index).squeeze(-1).mean(-1)


def calibration_error(log_probabilities: Tensor, targets: Tensor, bins: int = BINS) -> Tensor:
    """The expected calibration error of one predictor: sum over bins of rows / n |accuracy - confidence|.

    Bins are of equal width in the largest probability, open below and closed above (Guo et al. 2017, Eq. 3).

    Parameters
    ----------
    log_probabilities, targets
        Of one predictor, (rows, classes), and the classes of the rows.
    bins
        The number of bins.

    Examples
    --------
    >>> log_probabilities, targets = torch.tensor([[0.8, 0.2], [0.8, 0.2]]).log(), torch.tensor([0, 1])
    >>> round(float(steppe.ensembles.calibration_error(log_probabilities, targets)), 4)  # 0.8 - 0.5
    0.3

    """
    confidence, guess = log_probabilities.double().exp().max(-1)
    place = ((confidence * bins).ceil() - 1).clamp(0, bins - 1).long()
    gap = (guess == targets).double() - confidence
    return torch.zeros(bins, dtype=torch.float64).index_add_(0, place, gap).abs().sum() / len(targets)


def improvement_rate(logits: Tensor, targets: Tensor, by: By = "logits") -> Tensor:
    """The ensemble improvement rate: (mean error of members - error of the ensemble) / mean error of members.

    Theisen et al. 2023; Lu et al. 2024, Eq. 4. NaN if no member makes an error.

    Parameters
    ----------
    logits, targets
        The members' logits, (members, rows, classes), and the classes of the rows.
    by
        As in `predicted`.

    Examples
    --------
    >>> wrong = torch.eye(3)  # each of three members is wrong on one of three rows
    >>> logits, targets = torch.stack([1 - wrong, wrong], -1), torch.zeros(3, dtype=torch.long)
    >>> float(steppe.ensembles.improvement_rate(logits, targets))  # the ensemble makes no error
    1.0

    """
    if len(logits) < 2:
        raise ValueError("the improvement rate needs two members, and there is one")
    error = _member_error(logits, targets)
    return (error - (1 - accuracy(predicted(logits, by), targets))) / error


def over_members(logits: Tensor, statistic: Callable[[Tensor], Tensor], kind: Kind = "plug-in") -> Estimate:
    """A statistic of all members with its jackknife error; NaN where it is undefined.

    Parameters
    ----------
    logits
        The members' logits.
    statistic
        A function of the logits of some of the members.
    kind
        The kind of the estimate.

    Examples
    --------
    >>> logits = torch.tensor([[[1.0, 0.0]], [[2.0, 0.0]], [[3.0, 0.0]]])  # three members, one row
    >>> mean = steppe.ensembles.over_members(logits, lambda some: some[..., 0].mean(), "unbiased")
    >>> mean.value, round(mean.stderr, 4)  # 1 / sqrt(3)
    (2.0, 0.5774)

    """
    try:
        return summarise(logits, kind, lambda some: statistic(some).double())
    except NotFinite:
        if not bool(logits.isfinite().all()):
            raise
        return Estimate(nan, nan, len(logits), kind, note="no member makes an error")


OF_PREDICTOR: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "accuracy": accuracy,
    "nll": negative_log_likelihood,
    "calibration_error": calibration_error,
}
SCORES = (*(f"{prefix}{name}" for name in OF_PREDICTOR for prefix in ("member_", "")), "eir", "der", *OVER_PAIRS)
"""Names of all scores; the last six need two members."""


def scored(logits: Tensor, targets: Tensor, by: By = "logits") -> Mapping[str, Estimate]:
    """All scores of an ensemble by name, as in the table of docs/ensembles.md.

    Parameters
    ----------
    logits, targets
        The members' logits and the classes of the same rows.
    by
        As in `predicted`.

    Examples
    --------
    >>> wrong = torch.eye(3)  # each of three members is wrong on one of three rows
    >>> logits, targets = torch.stack([1 - wrong, wrong], -1), torch.zeros(3, dtype=torch.long)
    >>> scores = steppe.ensembles.scored(logits, targets)
    >>> {name: round(scores[name].value, 3) for name in ("member_accuracy", "accuracy", "eir", "der")}
    {'member_accuracy': 0.667, 'accuracy': 1.0, 'eir': 1.0, 'der': 2.0}

    """

    def of_ensemble(score: Callable[[Tensor, Tensor], Tensor]) -> Estimate:
        return over_members(logits, lambda some: score(predicted(some, by), targets))

    own, scores = logits.log_softmax(-1), {}
    for name, score in OF_PREDICTOR.items():
        scores[f"member_{name}"] = summarise(torch.stack([score(one, targets) for one in own]), "unbiased")
        scores[name] = of_ensemble(score)
    if len(logits) > 1:
        scores["eir"] = over_members(logits, lambda some: improvement_rate(some, targets, by))
        scores["der"] = over_members(logits, lambda some: error_ratio(some, targets))
        scores |= {name: over_members(logits, mean, "unbiased") for name, mean in OVER_PAIRS.items()}
    return scores
