"""Permutation tests of measures against a target, by permutations that respect the design.

Under the hypothesis of no relation the target is independent of the measures, and exchangeable as the study made it:
the levels of a factor (methods, learning rates, shared seeds) may change places as a whole, and configurations within
a combination of levels one by one. A permutation moves the targets of all runs in this way at once: those of a method
to another method, and so on. A relation that lives only between four methods then has the p-value of 4! orders, though
one within methods keeps all of theirs. Exchanging configurations freely would count 40 of them as independent where
methods explain most: 42 % false verdicts (`benchmarks/verdicts.py`).

For pairs within groups, factors that the groups fix stay where they are. A run whose permuted partner is missing
leaves its pairs out, and the score is scaled to all pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod, sqrt

import numpy as np
from numpy.typing import NDArray

from .design import Design, determines, places_in
from .kendall import MISSING, Floats, Ints, ranks, scores

MAX_EXACT = 50_000  # permutations up to which all are enumerated: 8 configurations have 40 320
BATCH = 2_000  # random permutations at a time
KEPT = 2 * BATCH  # permutations that are kept for other hypotheses and targets

FIRST = 10_000  # permutations that every test draws: p is then known to about 0.01
FEWER = 2_000  # the same for the largest pools, which draw up to FIRST where p is close to the level that decides
MAX_DRAWS = 500_000  # permutations of a test whose p-value lies close to the level that decides
MAX_WORK = 2e9  # pairs times permutations of a test: seconds
# From so many levels on, tau under permutation is normal, and its spread needs few permutations. At p = 0.0005
# the normal p-value is 10 % too large for 50 configurations without ties, so the verdict is on the safe side.
NORMAL = 50
LARGE = 500  # runs: larger pools draw fewer permutations at a time
SEEN = 10  # how often a sample has to show the largest score for its share to be an estimate
CERTAIN = 3.29  # normal quantile of 99.9 %: how certain a bound on a p-value is
FILLED = 0.75  # the share of combinations of levels that must have runs: factors that leave more empty are not moved

Scores = Callable[[Ints], Floats]  # of permuted rows (one permutation per line): one line of scores per measure


class Permutations:
    """The permutations of n rows that move levels of factors, and configurations among equal levels.

    Rows keep their group. Random ones are a function of the seed.
    """

    def __init__(self, design: Design, group: Ints, seed: int) -> None:
        self.n, self.seed = len(group), seed
        self.size = BATCH if self.n <= LARGE else max(100, int(BATCH * (LARGE / self.n) ** 2))  # of a batch
        self.drawn: dict[int, Ints] = {}
        of_run = units_in(design.configuration, group)
        first = np.unique(of_run, return_index=True)[1]
        stratum = ranks(group[first])
        movable = {name: codes[first] for name, codes in design.factors.items()}
        movable = {name: ranks(codes) for name, codes in movable.items() if not determines(stratum, codes)}
        self.complete = not movable or _filled([*movable.values(), stratum]) >= FILLED
        while movable and _filled([*movable.values(), stratum]) < FILLED:
            del movable[max(movable, key=lambda name: int(movable[name].max()))]
        self.axes = [*movable.values(), stratum]  # groups last: they stay where they are
        self.sizes = [int(axis.max(initial=0)) + 1 for axis in self.axes]
        cells, cell = np.unique(np.stack(self.axes), axis=1, return_inverse=True)
        self.cells, self.cell = cells, cell.reshape(-1)
        self.members = [np.flatnonzero(self.cell == i) for i in range(cells.shape[1])]
        self.place = np.zeros(len(first), dtype=np.int64)
        self.member = np.full((len(self.members), max(map(len, self.members), default=0)), MISSING)
        for i, ones in enumerate(self.members):
            self.place[ones], self.member[i, : len(ones)] = np.arange(len(ones)), ones
        self.crossed = design.crossed and self.sizes[-1] == 1
        self.of_run, self.of_seed = of_run, design.seed if self.crossed else places_in(of_run)
        self.row = np.full((len(first), int(self.of_seed.max(initial=0)) + 1), MISSING)
        self.row[of_run, self.of_seed] = np.arange(self.n)
        # what changes places: levels of factors, crossed seeds, and configurations with equal levels
        self.moved = [*self.sizes[:-1], self.row.shape[1] if self.crossed else 1, *map(len, self.members)]
        self.count = prod(map(factorial, self.moved))
        whole = (self.row >= 0).all() and (self.member >= 0).all() and len(self.members) == prod(self.sizes)
        self.holes = not whole
        self.fewest = min((k for k in self.moved if k > 1), default=1)

    def all(self) -> Ints:
        """All permutations, one per line."""
        orders = zip(*product(*(permutations(range(k)) for k in self.moved)), strict=True)
        return self._rows([np.array(one) for one in orders])

    def batch(self, number: int) -> Ints:
        """`size` random permutations, one per line: a function of the design, the seed and the number of the batch.

        Philox is counter-based, and the order of its raw integers is the permutation: the same on every machine.
        """
        if number in self.drawn:
            return self.drawn[number]
        streams = (np.random.Philox(key=self.seed, counter=[0, 0, i, number]) for i in range(len(self.moved)))
        raw = (s.random_raw((self.size, k)) for s, k in zip(streams, self.moved, strict=True))
        rows = self._rows([np.argsort(r, kind="stable") for r in raw])
        if number * self.size < KEPT:
            self.drawn[number] = rows
        return rows

    def _rows(self, orders: Sequence[Ints]) -> Ints:
        """The row whose target each row receives, or `MISSING`."""
        factors, seeds, inside = orders[: len(self.axes) - 1], orders[len(self.axes) - 1], orders[len(self.axes) :]
        lines = np.arange(len(seeds))[:, None]
        moved = [order[:, codes] for order, codes in zip(factors, self.cells, strict=False)]
        stay = np.broadcast_to(self.cells[-1], (len(seeds), len(self.members)))
        there, target = (np.ravel_multi_index(tuple(axes), self.sizes) for axes in (self.cells, [*moved, stay]))
        at = np.searchsorted(there, target).clip(max=len(there) - 1)  # cells are in their order
        donor = np.where(there[at] == target, at, MISSING)[:, self.cell]
        member = np.broadcast_to(self.member, (len(seeds), *self.member.shape)).copy()
        for i, (ones, order) in enumerate(zip(self.members, inside, strict=True)):
            member[:, i, : len(ones)] = ones[order]
        unit = np.where(donor < 0, MISSING, member[lines, donor, self.place])[:, self.of_run]
        seed = seeds[:, self.of_seed] if self.crossed else self.of_seed
        rows: Ints = np.where(unit < 0, MISSING, self.row[unit, seed])
        return rows


def units_in(configuration: Ints, group: Ints) -> Ints:
    """Configurations; the seeds of one that is alone in its group are compared with one another only."""
    code = np.stack([configuration, group, np.zeros_like(group)])
    for one in np.unique(group):
        rows = np.flatnonzero(group == one)
        if len(np.unique(configuration[rows])) == 1:
            code[2, rows] = np.arange(len(rows))
    return np.unique(code, axis=1, return_inverse=True)[1].reshape(-1)


def _filled(axes: Sequence[Ints]) -> float:
    """The share of combinations of levels that occur."""
    return float(np.unique(np.stack(axes), axis=1).shape[1] / prod(int(axis.max()) + 1 for axis in axes))


def tau_scores(x: Floats, y: Floats, group: Ints, holes: bool) -> Scores:
    """Scores (concordant minus discordant pairs) of measures, one per line, against permutations of y, within groups.

    With `holes`, permuted rows may be missing.
    """
    ranked = ranks(y)
    member = (group == np.unique(group)[:, None]).astype(np.float64)
    pairs = int((member.sum(1) * (member.sum(1) - 1)).sum())

    def of(rows: Ints) -> Floats:
        permuted = np.where(rows >= 0, ranked[rows], MISSING) if holes else ranked[rows]
        found = scores(x, permuted, group).astype(np.float64)
        if not holes:
            return found
        there = member @ (rows.T >= 0)  # twice the pairs of which neither run is missing
        left = (there * (there - 1)).sum(0)
        scaled: Floats = found * np.divide(pairs, left, out=np.zeros(len(rows)), where=left > 0)
        return scaled

    return of


def share_scores(inside: NDArray[np.bool_], order: Floats) -> Scores:
    """Sums of permutations of `order` (runs with a higher target minus lower ones) over runs inside, per measure."""

    def scores(rows: Ints) -> Floats:
        there = (rows >= 0).astype(np.float64)
        flat, of_flat = inside.astype(np.float64) @ (there * order[rows]).T, inside.astype(np.float64) @ there.T
        middle = (there * order[rows]).sum(1) / np.maximum(there.sum(1), 1)  # zero where no row is missing
        mean: Floats = np.divide(flat, of_flat, out=np.zeros_like(flat), where=of_flat > 0) - middle
        found: Floats = inside.sum(1)[:, None] * mean
        return found

    return scores


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
        most = self._most if self.draws else self._first
        before, times = self.draws, min(times // 4 if self.normal else times, most)
        while self.draws < times:
            self._count(self.scores(self.permutations.batch(self.batches)))
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
    def _first(self) -> int:
        """Permutations that are drawn at most the first time."""
        return max(FEWER, self._affordable) if self._affordable < FIRST else self._most

    @property
    def _most(self) -> int:
        """Permutations that are drawn where p is close to the level."""
        return 20 * self.permutations.size if self.normal else min(MAX_DRAWS, max(self._affordable, FIRST))

    @property
    def _affordable(self) -> int:
        return int(2 * MAX_WORK / self.permutations.n**2)

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
