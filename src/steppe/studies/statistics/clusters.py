"""Configurations as clusters: runs that differ in their seed alone, their permutations, and the jackknife over them.

The seeds of one configuration are not independent observations of a relation between runs, so a configuration is what
is exchanged and what is left out. Under the hypothesis of no relation, the targets of a configuration, all its seeds as
one block, are independent of its measures; blocks of equal size are exchangeable. A permutation therefore moves whole
blocks, seed by seed in order, among configurations with the same number of seeds (and, for pairs within groups, in the
same group). Configurations that are alone with their number of seeds stay where they are, which costs power, not
validity.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations, product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from ..table import Table
from .kendall import Floats, Ints, ranks

SEEDS = ("seed", "seeds")  # the settings in which runs, or ensembles, of one configuration differ
ALL_SEEDS = (*SEEDS, "data_seed")  # the same where rows set aside and wrong labels may differ too
MAX_EXACT = 50_000  # permutations up to which all are enumerated: 8 configurations have 40 320
BATCH = 2_000  # random permutations at a time
KEPT = 5  # batches that are kept for other tests of the same runs: those that every test draws
MAX_KEPT = 1_000_000  # numbers in a batch that is kept: 8 MB

Blocks = list[Ints]  # per class of exchangeable configurations, their rows: one line per configuration


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
    only, and are exchangeable: each of its runs is then a cluster.

    Parameters
    ----------
    configuration, group : array of int
        Of each run; a comparison of all runs has one group.

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
    """The permutations of exchangeable blocks of rows.

    Parameters
    ----------
    blocks : list of array
        Classes of exchangeable configurations: one line of rows per configuration.
    n : int
        Rows.
    seed : int
        Seed of random permutations.

    """

    def __init__(self, blocks: Blocks, n: int, seed: int) -> None:
        self.blocks, self.n, self.seed = blocks, n, seed
        self.count = prod(factorial(len(block)) for block in blocks)
        self._first: dict[int, Ints] = {}

    def all(self) -> Ints:
        """All permutations, one per line."""
        orders = product(*(permutations(range(len(block))) for block in self.blocks))
        return self._rows([np.array(part) for part in zip(*orders, strict=True)])

    def batch(self, number: int) -> Ints:
        """`BATCH` random permutations, one per line: a function of the blocks, the seed and the number of the batch.

        Philox is counter-based, and the order of its raw integers is the permutation: the same on every machine.
        """
        if number in self._first:
            return self._first[number]
        streams = (np.random.Philox(key=self.seed, counter=[0, 0, i, number]) for i in range(len(self.blocks)))
        raw = (s.random_raw((BATCH, len(b))) for s, b in zip(streams, self.blocks, strict=True))
        rows = self._rows([np.argsort(r, kind="stable") for r in raw])
        if number < KEPT and rows.size < MAX_KEPT:
            self._first[number] = rows
        return rows

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
