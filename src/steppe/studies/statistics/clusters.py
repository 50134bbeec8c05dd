"""Configurations as clusters: runs that differ in their seed alone, their permutations, and the jackknife over them.

The seeds of one configuration are not independent observations of a relation between runs, so a configuration is what is
exchanged and what is left out. Under the hypothesis of no relation, the targets of a configuration, all its seeds as one
block, are independent of its measures; blocks of equal size are exchangeable. A permutation therefore moves whole blocks,
seed by seed in order, among configurations with the same number of seeds (and, for pairs within groups, in the same
group). Configurations that are alone with their number of seeds stay where they are, which costs power, not validity.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from math import factorial, prod

import numpy as np
from numpy.typing import NDArray

from ..table import Table
from .kendall import Floats, Ints, ranks

SEED = "seed"  # the setting in which runs of one configuration differ
MAX_EXACT = 50_000  # permutations up to which all are enumerated: 8 configurations have 40 320
BATCH = 2_000  # random permutations at a time

Blocks = list[Ints]  # per class of exchangeable configurations, their rows: one line per configuration


def configurations(table: Table) -> Ints:
    """Each run's configuration, as integers from 0: runs that differ in their seed alone have the same one.

    Runs that do not differ in their seed either, such as checkpoints without a configuration, are each their own.
    """
    paths = [path for path in table.settings() if path != SEED]
    keys = [repr([run.setting(p) for p in paths] + sorted(map(repr, run.groups.items()))) for run in table.runs]
    seeds: dict[str, list[str]] = {}
    for key, run in zip(keys, table.runs, strict=True):
        seeds.setdefault(key, []).append(repr(run.setting(SEED)))
    repeated = {key for key, values in seeds.items() if len(set(values)) < len(values)}
    code: dict[tuple[str, int], int] = {}
    names = ((key, i if key in repeated else -1) for i, key in enumerate(keys))
    return np.array([code.setdefault(name, len(code)) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class Clusters:
    """The runs of a comparison: the configuration of each, and its group.

    Parameters
    ----------
    code : array of int
        The configuration of each run.
    group : array of int
        The group of each run. A configuration whose runs are in several groups moves by itself.

    """

    code: Ints
    group: Ints

    @property
    def count(self) -> int:
        """The number of configurations."""
        return len(np.unique(self.code))

    def blocks(self, within_groups: bool = False) -> Blocks:
        """Classes of exchangeable configurations, with rows in the order of the table."""
        classes: dict[tuple[int, ...], list[Ints]] = {}
        for code in np.unique(self.code).tolist():
            rows = np.flatnonzero(self.code == code)
            kind = (len(rows), *(self.group[rows].tolist() if within_groups else ()))
            classes.setdefault(kind, []).append(rows)
        return [np.stack(rows) for rows in classes.values()]

    def left_out(self) -> NDArray[np.bool_]:
        """One line per configuration: the rows without it."""
        codes = ranks(self.code)
        lines: NDArray[np.bool_] = np.arange(self.count)[:, None] != codes
        return lines


def count_permutations(blocks: Blocks) -> int:
    """The number of permutations of blocks."""
    return prod(factorial(len(block)) for block in blocks)


def all_permutations(blocks: Blocks, n: int) -> Ints:
    """All permutations of n rows, one per line."""
    orders = [list(permutations(range(len(block)))) for block in blocks]
    return _as_rows(blocks, [np.array(part) for part in zip(*product(*orders), strict=True)], n)


def random_permutations(blocks: Blocks, n: int, seed: int, batch: int) -> Ints:
    """`BATCH` random permutations of n rows, a function of the blocks, the seed and the number of the batch.

    Philox is counter-based, and the order of its raw integers is the permutation: the same on every machine.
    """
    streams = (np.random.Philox(key=seed, counter=[0, 0, part, batch]) for part in range(len(blocks)))
    drawn = zip(streams, blocks, strict=True)
    return _as_rows(blocks, [np.argsort(s.random_raw((BATCH, len(b))), kind="stable") for s, b in drawn], n)


def _as_rows(blocks: Blocks, orders: Sequence[Ints], n: int) -> Ints:
    rows = np.broadcast_to(np.arange(n), (len(orders[0]), n)).copy()
    for block, order in zip(blocks, orders, strict=True):
        rows[:, block.reshape(-1)] = block[order].reshape(len(order), -1)
    return rows


def batches(blocks: Blocks, n: int, seed: int) -> Iterator[Ints]:
    """Random permutations without end."""
    batch = 0
    while True:
        yield random_permutations(blocks, n, seed, batch)
        batch += 1


def jackknife_error(without: Floats) -> float:
    """The jackknife's standard error from the statistics without one configuration each (Tukey 1958).

    It is at least 1 / k for k configurations: as if one configuration had a quarter of its pairs the other way round. A
    perfect order of few runs would otherwise have no error at all.
    """
    k = len(without)
    return max(float(np.sqrt((k - 1) / k * ((without - without.mean()) ** 2).sum())), 1 / k)
