"""Diversity of the members of an ensemble.

`logits` have the shape (members, rows, classes). A diversity is the mean over pairs of different members of a matrix
(members, members), whose diagonal is zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def disagreements(logits: Tensor) -> Tensor:
    """Return the fraction of rows on which two members predict different classes, for every pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[9.0, 0.0], [0.0, 9.0]], [[9.0, 0.0], [9.0, 0.0]]])  # they differ on the second row
    >>> steppe.ensembles.disagreements(logits)
    tensor([[0.0000, 0.5000],
            [0.5000, 0.0000]], dtype=torch.float64)

    """
    guesses = logits.argmax(-1)
    return (guesses[:, None] != guesses[None]).double().mean(-1)


def distances(logits: Tensor) -> Tensor:
    """Return half the mean squared distance of two members' probabilities, for every pair.

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
    """Return half the mean squared distance of two members' logits, for every pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    Examples
    --------
    >>> logits = torch.tensor([[[2.0, 0.0]], [[0.0, 1.0]]])  # two members, one row: (2^2 + 1^2) / 2
    >>> steppe.ensembles.logit_distances(logits)
    tensor([[0.0000, 2.5000],
            [2.5000, 0.0000]], dtype=torch.float64)

    """
    x = logits.double()
    return torch.stack([(x - one).square().sum(-1).mean(-1) / 2 for one in x])  # one member at a time, to save memory


def divergences(logits: Tensor) -> Tensor:
    """Return KL(f_i || f_j), averaged over rows (Lu et al. 2024, Eq. 11), for every ordered pair.

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


def over_pairs(matrix: Tensor) -> Tensor:
    """Return the mean over ordered pairs of different members.

    Parameters
    ----------
    matrix
        One number per ordered pair of members.

    """
    n = len(matrix)
    if n < 2:
        raise ValueError("diversity needs two members, and there is one")
    return (matrix.sum() - matrix.diagonal().sum()) / (n * (n - 1))


def disagreement(logits: Tensor) -> Tensor:
    """Return the mean fraction of rows on which two members predict different classes.

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
    return over_pairs(disagreements(logits))


def variance(logits: Tensor) -> Tensor:
    """Return the variance over members of the probabilities, summed over classes, averaged over rows.

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
    return over_pairs(distances(logits))


def logit_variance(logits: Tensor) -> Tensor:
    """Return the same variance of the logits, as in SharpBalance's released code (Lu et al. 2024).

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
    return over_pairs(logit_distances(logits))


def divergence(logits: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence between two members (Lu et al. 2024, Eq. 11).

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
    return over_pairs(divergences(logits))


MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "disagreement": disagreements,
    "variance": distances,
    "logit_variance": logit_distances,
    "kl": divergences,
}
