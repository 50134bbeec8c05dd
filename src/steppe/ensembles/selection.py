"""Which rows are sharpness-aware for which member: a function of the members' scores, and of nothing else."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from .._util.names import unknown
from .settings import End, Rest

Flags = NDArray[np.bool_]


def sharp_sets(scores: NDArray[Any], share: float = 0.5, named: End = "sharpest", rest: Rest = "normal") -> Flags:
    """One row of flags a member, from one row of scores a member.

    Every member names the k = int(share * rows) rows at one end of its scores; of equal scores the first rows come
    first. Member i's set is the union of what the *other* members name (Lu et al. 2024, section 4.3). Rows that
    nobody names are normal, as in the paper. In the released code they are dealt out in turn, the j-th of them to
    member j mod M: there a member's set also has its own share (CIFAR-100, TinyImageNet) or all shares but its own
    (CIFAR-10), and the rows named are the flattest.
    """
    for word, known in ((named, End), (rest, Rest)):
        if word not in get_args(known):
            raise ValueError(unknown("choice", word, get_args(known)))
    members, rows = _checked(scores)
    k = int(round(share * rows, 6))  # rounded, so that 0.29 of 100 are 29
    if not 0 < share <= 1 or k < 1:
        raise ValueError(f"a share of {share:g} of {rows} rows is {k} rows: take one that is 1 row at least, 1 at most")
    keys = -scores if named == "sharpest" else scores
    listed = np.zeros((members, rows), dtype=np.bool_)
    np.put_along_axis(listed, np.argsort(keys, axis=1, kind="stable")[:, :k], True, axis=1)
    times = listed.sum(0)
    sharp: Flags = times - listed > 0  # named by another
    if rest != "normal":
        nobodys = np.flatnonzero(times == 0)
        owner = np.arange(len(nobodys)) % members
        own = owner == np.arange(members)[:, None]
        sharp[:, nobodys] = own if rest == "own-share" else ~own
    return sharp


def _checked(scores: NDArray[Any]) -> tuple[int, int]:
    if scores.ndim != 2 or len(scores) < 2:
        raise ValueError(
            f"scores have a row a member and a column a training row, and at least two members, not {scores.shape}"
        )
    bad = np.argwhere(~np.isfinite(scores))
    if len(bad):
        raise ValueError(
            f"{len(bad)} scores are infinite or not a number, the first of member {bad[0][0]} at training row "
            f"{bad[0][1]}: there is no order of them. Lower the learning rate or rho"
        )
    return scores.shape[0], scores.shape[1]
