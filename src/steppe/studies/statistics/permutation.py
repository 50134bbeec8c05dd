"""Permutation tests of measures against a target, and the jackknife; both over configurations, not over runs.

The seeds of one configuration are not independent observations of a relation between runs, so a configuration is what
is exchanged and what is left out. Under the hypothesis of no relation, the targets of a configuration, all its seeds as
one block, are independent of its measures; blocks of equal size are exchangeable. A permutation therefore moves whole
blocks, seed by seed in order, among configurations with the same number of seeds (and, for pairs within groups, in the
same group). Configurations that are alone with their number of seeds stay where they are, which costs power, not
validity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from ..table import Table
from .kendall import Floats, Ints, ranks

SEEDS = ("seed", "seeds")  # the settings in which runs, or ensembles, of one configuration differ
ALL_SEEDS = (*SEEDS, "data_seed")  # the same where rows set aside and wrong labels may differ too
MAX_EXACT = 50_000  # permutations up to which all are enumerated: 8 configurations have 40 320
BATCH = 2_000  # random permutations at a time

FIRST = 10_000  # permutations that every test draws: p is then known to about 0.01
MAX_DRAWS = 500_000  # permutations of a test whose p-value lies close to the level that decides
MAX_WORK = 2e9  # pairs times permutations of a test: seconds
# From so many configurations on, tau under permutation is normal, and its spread needs few permutations. At p = 0.0005
# the normal p-value is 10 % too large for 50 configurations without ties, so the verdict is on the safe side.
NORMAL = 50
LARGE = 500  # runs: larger pools draw fewer permutations at a time
SEEN = 10  # how often a sample has to show the largest score for its share to be an estimate
CERTAIN = 3.29  # normal quantile of 99.9 %: how certain a bound on a p-value is

Blocks = list[Ints]  # per class of exchangeable configurations, their rows: one line per configuration
Scores = Callable[[Ints], Floats]  # of permuted rows (one permutation per line): one line of scores per measure


def configurations(table: Table) -> Ints:
    """Each run's configuration, as integers from 0: runs that differ in their seed alone have the same one.

    Runs that do not differ in their seed either, such as checkpoints without a configuration, are each their own.
    """
    paths = [path for path in table.settings() if path not in SEEDS]
    keys = [repr([run.setting(p) for p in paths] + sorted(map(repr, run.groups.items()))) for run in table.runs]
    seeds: dict[str, list[str]] = {}
    for key, run in zip(keys, table.runs, strict=True):
        seeds.setdefault(key, []).append(repr([run.setting(name) for name in SEEDS]))
    repeated = {key for key, values in seeds.items() if len(set(values)) < len(values)}
    code: dict[tuple[str, int], int] = {}
    names = ((key, i if key in repeated else -1) for i, key in enumerate(keys))
    return np.array([code.setdefault(name, len(code)) for name in names], dtype=np.int64)


class Clusters:
    """What is exchanged and left out in a comparison of runs within groups.

    These are configurations. The seeds of a configuration that is alone in its group are compared with one another
    only, and are exchangeable: each of its runs is then a cluster. A comparison of all runs has one group.
    """

    def __init__(self, configuration: Ints, group: Ints) -> None:
        self.group, self.strata = group, len(np.unique(group))
        code = configuration.copy()
        for one in np.unique(group):
            rows = np.flatnonzero(group == one)
            if len(np.unique(configuration[rows])) == 1:
                code[rows] = -1 - rows
        self.code = ranks(code)
        self.count = len(np.unique(self.code))

    def blocks(self) -> Blocks:
        """Classes of exchangeable clusters, with rows in the order of the table."""
        classes: dict[tuple[int, ...], list[Ints]] = {}
        for code in range(self.count):
            rows = np.flatnonzero(self.code == code)
            classes.setdefault(tuple(self.group[rows].tolist()), []).append(rows)  # as many runs in the same groups
        return [np.stack(rows) for rows in classes.values()]

    def left_out(self) -> NDArray[np.bool_]:
        """One line per cluster: the rows without it."""
        lines: NDArray[np.bool_] = np.arange(self.count)[:, None] != self.code
        return lines


class Permutations:
    """The permutations of n rows that move exchangeable blocks of rows; random ones are a function of the seed."""

    def __init__(self, blocks: Blocks, n: int, seed: int) -> None:
        self.blocks, self.n, self.seed = blocks, n, seed
        self.count = prod(factorial(len(block)) for block in blocks)

    def all(self) -> Ints:
        """All permutations, one per line."""
        orders = product(*(permutations(range(len(block))) for block in self.blocks))
        return self._rows([np.array(part) for part in zip(*orders, strict=True)])

    def batch(self, number: int) -> Ints:
        """`BATCH` random permutations, one per line: a function of the blocks, the seed and the number of the batch.

        Philox is counter-based, and the order of its raw integers is the permutation: the same on every machine.
        """
        streams = (np.random.Philox(key=self.seed, counter=[0, 0, i, number]) for i in range(len(self.blocks)))
        raw = (s.random_raw((BATCH, len(b))) for s, b in zip(streams, self.blocks, strict=True))
        return self._rows([np.argsort(r, kind="stable") for r in raw])

    def _rows(self, orders: Sequence[Ints]) -> Ints:
        rows = np.broadcast_to(np.arange(self.n), (len(orders[0]), self.n)).copy()
        for block, order in zip(self.blocks, orders, strict=True):
            rows[:, block.reshape(-1)] = block[order].reshape(len(order), -1)
        return rows


def jackknife_error(without: Floats) -> float:
    """The jackknife's standard error from the statistics without one configuration each (Tukey 1958).

    It is at least 1 / 2k for k configurations: as if one configuration had an eighth of its pairs the other way round.
    A perfect order would otherwise have no error at all.
    """
    k = len(without)
    return max(float(np.sqrt((k - 1) / k * ((without - without.mean()) ** 2).sum())), 1 / (2 * k))


def tau_scores(sign_x: NDArray[np.float32], y: Floats) -> Scores:
    """Scores (concordant minus discordant pairs) of sign matrices of measures against permutations of y."""
    ranked, n = ranks(y).astype(np.float32), len(y)

    def scores(rows: Ints) -> Floats:
        permuted = np.ascontiguousarray(ranked[rows].T)
        total = np.zeros((len(sign_x), len(rows)), dtype=np.float32)  # exact: fewer than 2^24 pairs
        for i in range(n - 1):
            difference = permuted[i + 1 :] - permuted[i]
            total += sign_x[:, i + 1 :, i] @ np.clip(difference, -1, 1, out=difference)
        return total.astype(np.float64)

    return scores


def share_scores(inside: NDArray[np.bool_], order: Floats) -> Scores:
    """Sums of permutations of `order` (runs with a higher target minus lower ones) over runs inside, per measure."""
    return lambda rows: inside.astype(np.float64) @ order[rows].T


@dataclass
class PermutationTest:
    """The two-sided test of the scores of several measures against one target."""

    observed: Floats  # the score of each measure
    scores: Scores
    permutations: Permutations
    normal: bool  # scores are normal under permutation: only their spread is estimated

    def __post_init__(self) -> None:
        m = len(self.observed)
        self.draws = self.batches = 0
        self.reached, self.squares, self.fourths, self.largest, self.at_largest = (np.zeros(m) for _ in range(5))
        self.exact = self.permutations.count <= MAX_EXACT
        self.normal = self.normal and not self.exact
        self.null: Floats | None = None  # all scores, where all permutations are enumerated

    def draw(self, times: int) -> bool:
        """Draw permutations up to a number of them; returns whether any were drawn."""
        if self.exact:
            if self.draws:
                return False
            self.null = self.scores(self.permutations.all())
            self._count(self.null)
            return True
        before, times = self.draws, min(times // 4 if self.normal else times, self._most)
        while self.draws < times:
            self._count(self.scores(self.permutations.batch(self.batches)[: self._size]))
            self.batches += 1
        return self.draws > before

    def _count(self, scores: Floats) -> None:
        size = np.abs(scores)
        self.draws += scores.shape[1]
        self.reached += (size >= np.abs(self.observed)[:, None] - 1e-9).sum(1)
        squares = scores**2
        self.squares += squares.sum(1)
        self.fourths += (squares**2).sum(1)
        largest = np.maximum(self.largest, size.max(1))
        here = (size >= largest[:, None]).sum(1)
        self.at_largest = np.where(largest > self.largest, here, self.at_largest + here)
        self.largest = largest

    @property
    def spread(self) -> Floats:
        """The standard deviation of the scores under permutation, around zero."""
        return np.sqrt(self.squares / self.draws)

    @property
    def smallest_p(self) -> Floats:
        """The smallest p-value that any order of these targets could have had."""
        seen = self.exact | (self.at_largest >= SEEN)  # rarer than that: smaller than a sample can show
        return np.where(seen, self.at_largest / self.draws, 0.0)

    @property
    def _size(self) -> int:
        """Permutations per batch."""
        n = self.permutations.n
        return BATCH if n <= LARGE else max(100, int(BATCH * (LARGE / n) ** 2))

    @property
    def _most(self) -> int:
        """Permutations that are drawn where p is close to the level."""
        work = max(2 * MAX_WORK / self.permutations.n**2, FIRST)
        return 20 * self._size if self.normal else int(min(MAX_DRAWS, work))

    def critical(self, measure: int, level: float) -> float:
        """The smallest score that a measure needs for a p-value of at most `level`."""
        from scipy.special import ndtri

        if self.null is not None:
            size = np.sort(np.abs(self.null[measure]))[::-1]
            reach = np.searchsorted(-size, -size, side="right") / len(size)  # the p-value of each score
            return float(size[reach <= level].min())
        z, spread = float(-ndtri(level / 2)), float(self.spread[measure])
        if self.normal:
            return z * spread * _uncertainty(self._most)
        # scores have shorter tails than a normal variable: the expansion of Cornish and Fisher (1938)
        excess = float(self.fourths[measure]) / self.draws / spread**4 - 3 if spread else 0.0
        return spread * (z + (z**3 - 3 * z) * excess / 24)

    def p(self) -> tuple[Floats, Floats, Floats]:
        """p-values, and bounds that hold them but for one draw of permutations in a thousand (lower, p, upper)."""
        if self.normal:
            from scipy.special import erfc

            z = np.abs(self.observed) / np.maximum(self.spread, 1e-300) / sqrt(2)
            wide = _uncertainty(self.draws)
            return erfc(z * wide), erfc(z), erfc(z / wide)
        share = self.reached / self.draws
        if self.exact:
            return share, share, share
        z2 = CERTAIN**2 / self.draws  # the interval of Wilson 1927
        middle = (share + z2 / 2) / (1 + z2)
        half = np.sqrt(share * (1 - share) * z2 + z2**2 / 4) / (1 + z2)
        # the observed order is one of the permutations (Phipson and Smyth 2010), so p is never 0
        return middle - half, (1 + self.reached) / (1 + self.draws), middle + half


def _uncertainty(draws: int) -> float:
    """The factor between a standard deviation and the bound on its estimate from so many draws."""
    return 1 + CERTAIN / sqrt(2 * draws)
