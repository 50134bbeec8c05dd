"""How different members are, from what they say on the same rows: (members, rows, classes).

Every diversity is the mean of a matrix over pairs of different members, whose diagonal is zero.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


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


def error(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean over members of the share of wrong rows."""
    return (logits.argmax(-1) != targets).double().mean()


def error_ratio(logits: Tensor, targets: Tensor) -> Tensor:
    """The disagreement error ratio (Theisen et al. 2023; Lu et al. 2024, Eq. 2): disagreement over mean error.

    Not a number where no member is ever wrong.
    """
    return disagreement(logits) / error(logits, targets)


MATRICES: dict[str, Callable[[Tensor], Tensor]] = {
    "disagreement": disagreements,
    "variance": distances,
    "kl": divergences,
}
