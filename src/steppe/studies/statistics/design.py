"""The design of a study, read from its runs: what is crossed, what is nested, and what was drawn.

Errors and p-values follow from what is independent. Runs that differ in their seed alone are one *configuration*. A
setting whose values occur in several configurations is a *factor*: what one of its values does, all of these share, and
40 configurations of 4 methods are not 40 independent ones. A seed that occurs in several configurations is
crossed with them, and shared in the same way; a seed of its own is nested. Settings that hardly repeat, such as drawn
learning rates, make no factor: there the configuration is what is independent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...ensembles.strategies import OF_STRATEGIES
from ..table import Run, Table, word
from .kendall import Ints, ranks

SEEDS = ("seed", "seeds")  # the settings in which runs, or ensembles, of one configuration differ
ALL_SEEDS = (*SEEDS, "data_seed")  # the same where rows set aside and wrong labels may differ too
METHOD = "method"  # the factor of contenders: methods with their options
OWN = (METHOD, "rho", "method_options", "strategy", *OF_STRATEGIES)  # settings that make a contender
PLURALS = {"method": "methods", "lr": "learning rates", "seed": "seeds", "": "configurations"}


@dataclass(frozen=True)
class Design:
    """What the runs of a table share.

    Attributes
    ----------
    configuration : array of int
        Each run's configuration.
    seed : array of int
        Each run's seed: its code where seeds are crossed, else its place in the configuration.
    factors : mapping of str to array of int
        The level of each run, by factor.
    crossed : bool
        Whether configurations share seeds.
    columns : mapping of str to array of int
        What makes a configuration, by name: the value of each run.

    """

    configuration: Ints
    seed: Ints
    factors: Mapping[str, Ints]
    crossed: bool
    columns: Mapping[str, Ints] = field(default_factory=dict)

    def of(self, rows: Ints) -> Design:
        """The design of some of the runs."""
        factors = {name: ranks(codes[rows]) for name, codes in self.factors.items()}
        return Design(ranks(self.configuration[rows]), ranks(self.seed[rows]), factors, self.crossed)

    @property
    def samples(self) -> dict[str, Ints]:
        """What may be few: the levels of all factors, and crossed seeds."""
        return {**self.factors, **({"seed": self.seed} if self.crossed else {})}

    @property
    def weakest(self) -> tuple[int, str]:
        """The smallest number of levels, and what they are."""
        counted = [(len(np.unique(codes)), name) for name, codes in self.factors.items()]
        return min([*counted, (len(np.unique(self.configuration)), "")])


def plural(factor: str) -> str:
    """The levels of a factor in words; without a name, configurations."""
    return PLURALS.get(factor, f"values of {factor}")


def design_of(table: Table) -> Design:
    """Read the design of a table from the settings of its runs."""
    codes = _columns(table)
    keys = list(zip(*codes.values(), strict=True)) if codes else [()] * len(table)
    seeds = [seed_of(run) for run in table.runs]
    twice = {key for key, n in Counter(zip(keys, seeds, strict=True)).items() if n > 1}
    # runs that nothing tells apart, such as checkpoints without a configuration, are each their own
    repeated = {key for key, _ in twice}
    configuration = first_seen([(key, i if key in repeated else -1) for i, key in enumerate(keys)])
    many, n = len(np.unique(configuration)), len(table)
    factors: dict[str, Ints] = {}
    for name in sorted(codes, key=lambda name: (name != METHOD, -codes[name].max(initial=0))):
        levels = int(codes[name].max(initial=0)) + 1
        inside = [METHOD] if METHOD in codes and name != METHOD else []
        if 1 < levels <= many / 2 and not any(determines(codes[f], codes[name]) for f in {*inside, *factors}):
            factors[name] = codes[name]
    seed = first_seen(seeds)
    own = determines(seed, configuration) or any(determines(seed, f) for k, f in factors.items() if k != METHOD)
    crossed = bool(1 < int(seed.max(initial=0)) + 1 <= n / 2 and not own and not repeated)
    if not crossed:
        seed = places_in(configuration)
    return Design(configuration, seed, factors, crossed, codes)


def _columns(table: Table) -> dict[str, Ints]:
    """What makes a configuration: its contender, the other settings that differ, and columns of a pool's CSV file."""
    paths = [p for p in table.settings() if p.partition(".")[0] not in (*OWN, *SEEDS)]
    codes = {METHOD: first_seen(contenders(table))}
    own = {name for name in table.settings() if name.partition(".")[0] in OWN and name != METHOD}
    for name in sorted(own):  # drawn options are no part of a contender's name
        code = first_seen(map(repr, table.setting(name)))
        if not determines(codes[METHOD], code):
            codes[name] = code
    codes |= {path: first_seen(map(repr, table.setting(path))) for path in paths}
    for name in dict.fromkeys(name for run in table.runs for name in run.groups):
        if all(run.setting(name) is None for run in table.runs):
            codes[name] = first_seen(repr(run.groups.get(name)) for run in table.runs)
    return {name: code for name, code in codes.items() if code.max(initial=0)}


def contenders(table: Table, without: str = "") -> list[str]:
    """Each run's method, or strategy of an ensemble, with the options that differ between runs of the same one.

    Options that hardly repeat, such as drawn radii, are not in the name, nor is one that is compared.
    """
    methods = [method_of(run) for run in table.runs]
    options = [{k: v for k, v in _own(run).items() if k != without} for run in table.runs]
    values: dict[tuple[str, str], list[str]] = {}
    keys: dict[str, dict[str, None]] = {}
    for method, own in zip(methods, options, strict=True):
        keys.setdefault(method, {}).update(dict.fromkeys(own))
    for method, own in zip(methods, options, strict=True):
        for key in keys[method]:
            values.setdefault((method, key), []).append(repr(own.get(key)))
    named = {key for key, column in values.items() if 1 < len(set(column)) <= max(len(column) / 2, 1)}
    return [
        (not without and run.contender) or " ".join([m, *(f"{k}={word(v)}" for k, v in own.items() if (m, k) in named)])
        for run, m, own in zip(table.runs, methods, options, strict=True)
    ]


def method_of(run: Run) -> str:
    """The name of a run's method, or of an ensemble's strategy."""
    return str(run.setting("strategy") or run.setting(METHOD))


def seed_of(run: Run) -> str:
    """A run's seed as text."""
    return repr([run.setting(name) for name in SEEDS])


def first_seen(values: Any) -> Ints:
    """Values as integers from 0, in order of first occurrence."""
    code: dict[Any, int] = {}
    return np.array([code.setdefault(v, len(code)) for v in values], dtype=np.int64)


def _own(run: Run) -> dict[str, Any]:
    """The options of a run's method or strategy."""
    more = run.setting("method_options")
    own = {"rho": run.setting("rho"), **(more if isinstance(more, Mapping) else {})}
    own |= {name: run.setting(name) for name in OF_STRATEGIES}
    return {name: value for name, value in own.items() if value is not None}


def determines(fine: Ints, coarse: Ints) -> bool:
    """Whether every value of `fine` has one value of `coarse` only."""
    return bool(np.unique(np.stack([fine, coarse]), axis=1).shape[1] == len(np.unique(fine)))


def places_in(unit: Ints) -> Ints:
    """The place of each run in its unit."""
    count = Counter[int]()
    places = np.empty(len(unit), dtype=np.int64)
    for i, one in enumerate(unit.tolist()):
        places[i] = count[one]
        count[one] += 1
    return places
