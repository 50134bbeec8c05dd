"""Scores of an ensemble and of its members, and their diversity: every number with its error over members.

Errors are jackknife errors: leave out each member in turn; the squared error is (m - 1) / m times the sum of squared
deviations of the results. It estimates how much another draw of as many members would change a number on the same
rows. For a mean over members it is the standard error of the mean.

`logits` have the shape (members, rows, classes), `targets` the shape (rows,).
"""

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
from .diversity import disagreement, divergence, logit_variance, variance


def member_error(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the error of a member, averaged over members.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).
    targets
        The classes of the rows.

    """
    return (logits.argmax(-1) != targets).double().mean()


def error_ratio(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the disagreement error ratio (Theisen et al. 2023; Lu et al. 2024, Eq. 2): disagreement over mean error.

    NaN if no member makes an error.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).
    targets
        The classes of the rows.

    Examples
    --------
    >>> wrong = torch.eye(3)  # each of three members is wrong on one of three rows
    >>> logits, targets = torch.stack([1 - wrong, wrong], -1), torch.zeros(3, dtype=torch.long)
    >>> round(float(steppe.ensembles.error_ratio(logits, targets)), 4)  # two members differ on 2/3, and err on 1/3
    2.0

    """
    return disagreement(logits) / member_error(logits, targets)


By = Literal["logits", "probabilities"]
BINS = 15  # Guo et al. 2017, section 5


@torch.no_grad()
def logits(models: Sequence[nn.Module], dataset: Dataset, task: Task) -> Tensor:
    """Return the logits of every model on every row, on the CPU; models run in evaluation mode.

    Parameters
    ----------
    models
        The members.
    dataset
        The rows.
    task
        The standardisation of the inputs.

    Examples
    --------
    >>> from steppe.training.problem import task_of
    >>> splits = steppe.data.load("spirals")
    >>> members = [steppe.nn.build("mlp", (2,), 2, width=4, depth=2) for _ in range(3)]
    >>> steppe.ensembles.logits(members, splits.test, task_of(splits)).shape
    torch.Size([3, 1000, 2])

    """
    device = dataset.inputs.device
    outputs = []
    for model in models:
        was_training = model.training
        model.to(device).eval()
        outputs.append(torch.cat([task.call(model, x).float().cpu() for x, _ in batches(dataset, ROWS, task.standard)]))
        model.train(was_training)
    return torch.stack(outputs)


def predicted(logits: Tensor, by: By = "logits") -> Tensor:
    """Return the log-probabilities of the ensemble, (rows, classes).

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
    """Return the fraction of rows whose most likely class is correct.

    Parameters
    ----------
    log_probabilities
        Of a predictor, (rows, classes); more dimensions before them are kept.
    targets
        The classes of the rows.

    Examples
    --------
    >>> log_probabilities = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log()
    >>> float(steppe.ensembles.accuracy(log_probabilities, torch.tensor([0, 1])))
    0.5

    """
    return (log_probabilities.argmax(-1) == targets).double().mean(-1)


def negative_log_likelihood(log_probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over rows of -log p(target).

    Parameters
    ----------
    log_probabilities
        Of a predictor, (rows, classes); more dimensions before them are kept.
    targets
        The classes of the rows.

    Examples
    --------
    >>> log_probabilities = torch.tensor([[0.8, 0.2], [0.6, 0.4]]).log()
    >>> targets = torch.tensor([0, 1])
    >>> round(float(steppe.ensembles.negative_log_likelihood(log_probabilities, targets)), 4)  # -log(0.8 * 0.4) / 2
    0.5697

    """
    index = targets.expand(log_probabilities.shape[:-1]).unsqueeze(-1)
    return -log_probabilities.double().gather(-1, index).squeeze(-1).mean(-1)


def calibration_error(log_probabilities: Tensor, targets: Tensor, bins: int = BINS) -> Tensor:
    """Return the expected calibration error of one predictor: sum over bins of rows / n |accuracy - confidence|.

    Bins are of equal width in the largest probability, open below and closed above (Guo et al. 2017, Eq. 3).

    Parameters
    ----------
    log_probabilities
        Of one predictor, (rows, classes).
    targets
        The classes of the rows.
    bins
        The number of bins.

    Examples
    --------
    >>> log_probabilities = torch.tensor([[0.8, 0.2], [0.8, 0.2]]).log()
    >>> targets = torch.tensor([0, 1])  # a confidence of 0.8, and an accuracy of 0.5
    >>> round(float(steppe.ensembles.calibration_error(log_probabilities, targets)), 4)
    0.3

    """
    confidence, guess = log_probabilities.double().exp().max(-1)
    place = ((confidence * bins).ceil() - 1).clamp(0, bins - 1).long()
    gap = (guess == targets).double() - confidence
    return torch.zeros(bins, dtype=torch.float64).index_add_(0, place, gap).abs().sum() / len(targets)


def improvement_rate(logits: Tensor, targets: Tensor, by: By = "logits") -> Tensor:
    """Return the ensemble improvement rate: (mean error of members - error of the ensemble) / mean error of members.

    Theisen et al. 2023; Lu et al. 2024, Eq. 4. NaN if no member makes an error.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).
    targets
        The classes of the rows.
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
    error = member_error(logits, targets)
    return (error - (1 - accuracy(predicted(logits, by), targets))) / error


def over_members(logits: Tensor, statistic: Callable[[Tensor], Tensor], kind: Kind = "plug-in") -> Estimate:
    """Return a statistic of all members with its jackknife error; NaN where it is undefined.

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


SCORES = (
    "member_accuracy", "accuracy", "member_nll", "nll", "member_calibration_error", "calibration_error", "eir", "der",
    "disagreement", "variance", "logit_variance", "kl",
)  # fmt: skip
"""Names of all scores; the last six need two members."""


def scored(logits: Tensor, targets: Tensor, by: By = "logits") -> Mapping[str, Estimate]:
    """Return all scores of an ensemble by name, as in the table of docs/ensembles.md.

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
        "logit_variance": over_members(logits, logit_variance, "unbiased"),
        "kl": over_members(logits, divergence, "unbiased"),
    }
