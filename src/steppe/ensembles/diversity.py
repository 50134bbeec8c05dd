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

    """
    guesses = logits.argmax(-1)
    return (guesses[:, None] != guesses[None]).double().mean(-1)


def distances(logits: Tensor) -> Tensor:
    """Return half the mean squared distance of two members' probabilities, for every pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    """
    return logit_distances(logits.double().softmax(-1))


def logit_distances(logits: Tensor) -> Tensor:
    """Return half the mean squared distance of two members' logits, for every pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    """
    x = logits.double()
    return torch.stack([(x - one).square().sum(-1).mean(-1) / 2 for one in x])  # one member at a time, to save memory


def divergences(logits: Tensor) -> Tensor:
    """Return KL(f_i || f_j), averaged over rows (Lu et al. 2024, Eq. 11), for every ordered pair.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

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

    """
    return over_pairs(disagreements(logits))


def variance(logits: Tensor) -> Tensor:
    """Return the variance over members of the predicted probabilities, summed over classes, averaged over rows (Eq. 1).

    Unbiased, with members - 1 in the denominator: the mean of `distances`.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    """
    return over_pairs(distances(logits))


def logit_variance(logits: Tensor) -> Tensor:
    """Return the same variance of the logits, as in SharpBalance's released code.

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    """
    return over_pairs(logit_distances(logits))


def divergence(logits: Tensor) -> Tensor:
    """Return the Kullback-Leibler divergence between two members (Eq. 11).

    Parameters
    ----------
    logits
        The members' logits, (members, rows, classes).

    """
    return over_pairs(divergences(logits))


MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "disagreement": disagreements,
    "variance": distances,
    "logit_variance": logit_distances,
    "kl": divergences,
}
