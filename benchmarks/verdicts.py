"""Verdicts of studies, checked by simulation: false verdicts, power and coverage.

    python benchmarks/verdicts.py --studies 2000 --out benchmarks/results/verdicts_cpu_DATE.md

- False verdicts: studies in which no measure is related to a target and no method has an effect, in the shape of the
  built-in digits study (four contenders, ten learning rates, two seeds, three measures, two targets) and in others
  (such as nine contenders, two learning rates, six measures, three targets). Measures share a factor, targets share a
  factor, and the seeds of a configuration share 0, 60 or 90 % of their variance. The bar: at most 5 % of studies show
  any verdict.
- Power: the same studies with one measure related to one target by the smallest detectable tau that such a study
  states. The bar: 80 % of studies say "predicts" (76 to 84 %).
- Coverage: 95 % intervals of tau and of differences between methods. The bar: 93 to 97 %.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from math import pi, sin, sqrt
from pathlib import Path
from time import perf_counter

import numpy as np

from steppe.studies.statistics.comparisons import contest
from steppe.studies.statistics.findings import Findings, findings
from steppe.studies.statistics.predictions import relations
from steppe.studies.table import Measured, Run, Table

ROWS = 597  # test rows of digits: errors are multiples of one row
DRAWS = 2_000  # permutations that tests start with; verdicts do not depend on it


@dataclass(frozen=True)
class Shape:
    """A study in which nothing is related, unless `tau` or `effect` says otherwise.

    `tau` relates the first measure to the first target. `effect` is added to the targets of every method but the plain
    optimizer; `varies` is the spread of that effect over learning rates. `shared` is the part of the variance that the
    seeds of a configuration share, `common` the part that measures, and targets, share among themselves. With
    `by_method`, configurations that differ in their method differ in their targets too, without a method being better
    on average; without it, only learning rates make a difference. `lost` is the share of runs that are missing.
    """

    methods: int = 9
    rates: int = 2
    seeds: int = 2
    measures: int = 6
    targets: int = 3
    shared: float = 0.6
    common: float = 0.64
    tau: float = 0.0
    effect: float = 0.0
    varies: float = 0.0
    lost: float = 0.0
    by_method: bool = True
    grouped: bool = True

    def table(self, rng: np.random.Generator) -> Table:
        """The runs of one simulated study."""
        k, r = self.methods * self.rates, sin(pi * self.tau / 2)
        x, y = (self._parts(rng, k, width) for width in (self.measures, self.targets))
        if not self.by_method:  # all methods share what a learning rate does to the targets
            y = np.tile(y[0][: self.rates], (self.methods, 1)), y[1]
        mixed = [r * a[..., 0] + sqrt(1 - r**2) * b[..., 0] for a, b in zip(x, y, strict=True)]
        for part, first in zip(y, mixed, strict=True):
            part[..., 0] = first
        sides = [sqrt(self.shared) * both[:, None] + sqrt(1 - self.shared) * own for both, own in (x, y)]
        gain = self.effect + self.varies * rng.normal(size=(self.methods, self.rates))
        runs = []
        for c, seed in np.ndindex(k, self.seeds):
            method, rate = divmod(c, self.rates)
            if rng.random() < self.lost:
                continue
            errors = 0.05 + 0.008 * (sides[1][c, seed] + (gain[method, rate] if method else 0.0))
            config = {"method": f"m{method}" if method else "none", "lr": 0.1 * (rate + 1), "seed": seed}
            runs.append(
                Run(
                    f"{c}-{seed}", f"{c}-{seed}", config, {"lr": config["lr"]} if self.grouped else {}, "done",
                    {f"t{i}_error": round(ROWS * float(v)) / ROWS for i, v in enumerate(errors)},
                    {f"m{i}": Measured(float(v)) for i, v in enumerate(sides[0][c, seed])},
                )
            )  # fmt: skip
        return Table(runs)

    def _parts(self, rng: np.random.Generator, k: int, width: int) -> tuple[np.ndarray, np.ndarray]:
        """The part of a configuration and the parts of its runs, each with a common factor."""
        shapes = (k, 1), (k, self.seeds, 1)
        draw = (
            sqrt(self.common) * rng.normal(size=shape) + sqrt(1 - self.common) * rng.normal(size=(*shape[:-1], width))
            for shape in shapes
        )
        first, second = draw
        return first, second


def verdicts(shape: Shape, seed: int) -> Findings:
    """The findings of one simulated study."""
    return findings(shape.table(np.random.default_rng([seed, 11])), draws=DRAWS)


def false_verdicts(shape: Shape, seed: int) -> tuple[bool, bool]:
    """Whether a study shows any verdict on a measure, and any on a method."""
    found = verdicts(shape, seed)
    predicts = any(f.verdict.startswith("predicts") for f in found.findings)
    return predicts, any(c.verdict in ("better", "worse") for c in found.comparisons)


def stated_tau(shape: Shape, studies: int = 60) -> float:
    """The smallest detectable tau of such studies, on average."""
    null = replace(shape, tau=0.0)
    return float(
        np.mean([verdicts(null, seed).of("m0", "t0_error").smallest_detectable_tau for seed in range(studies)])
    )


def detects(shape: Shape, seed: int) -> bool:
    """Whether a study says that its first measure predicts its first target."""
    return verdicts(shape, seed).of("m0", "t0_error").verdict == "predicts"


def covers(shape: Shape, seed: int) -> bool:
    """Whether the interval of tau covers the true one."""
    table = shape.table(np.random.default_rng([seed, 12]))
    found = next(relations(table, ["m0"], ["t0_error"], 0)).findings[0]
    return found.low <= shape.tau <= found.high


def covers_difference(shape: Shape, seed: int) -> bool:
    """Whether the interval of the difference between a method and the plain optimizer covers the true one."""
    table = shape.table(np.random.default_rng([seed, 13]))
    found = contest(table, ["t0_error"]).comparisons[0]
    return found.low <= 0.008 * shape.effect <= found.high


def shares(tasks: ProcessPoolExecutor, test: Callable[[int], object], n: int) -> float:
    """The share of simulated studies for which a test holds."""
    return float(np.mean(list(tasks.map(test, range(n), chunksize=20))))


DIGITS = Shape(methods=4, rates=10, measures=3, targets=2, grouped=False)  # the built-in study
NULLS = {
    "digits study, seeds share 60 %": DIGITS,
    "nine contenders, two learning rates, seeds share 60 %": Shape(),
    "seeds share nothing": Shape(shared=0.0),
    "seeds share 90 %": Shape(shared=0.9),
    "a tenth of the runs is lost": Shape(lost=0.1),
    "learning rates matter, methods do not": Shape(by_method=False),
    "three learning rates, five seeds": Shape(rates=3, seeds=5),
    "one learning rate, five methods, five seeds": Shape(methods=5, rates=1, seeds=5, by_method=False, grouped=False),
}
POWERS = {"18 configurations": Shape(), "40 configurations": DIGITS, "60 configurations": Shape(methods=15, rates=4)}
COVERED = [
    Shape(methods=k // 2, rates=2, tau=tau, seeds=seeds, measures=1, targets=1, grouped=False)
    for k in (8, 18, 60) for seeds in (1, 2) for tau in (0.0, 0.3, 0.6)
]  # fmt: skip
DIFFERENCES = {
    "1 configuration, 5 seeds": Shape(methods=2, rates=1, seeds=5, effect=-1.0, shared=0.0),
    "2 configurations, 5 seeds": Shape(methods=2, rates=2, seeds=5, effect=-1.0, shared=0.0),
    "2 configurations, 5 seeds, the effect varies": Shape(2, 2, seeds=5, effect=-1.0, varies=1.0, shared=0.0),
    "6 configurations, 2 seeds": Shape(methods=2, rates=6, seeds=2, effect=-1.0, shared=0.0),
    "6 configurations, 2 seeds, the effect varies": Shape(methods=2, rates=6, effect=-1.0, varies=1.0, shared=0.0),
    "12 configurations, 1 seed, the effect varies": Shape(methods=2, rates=12, seeds=1, effect=-1.0, varies=1.0),
}


def false_lines(tasks: ProcessPoolExecutor, studies: int) -> Iterator[str]:
    yield "## False verdicts\n"
    yield "| studies without any relation | studies | any verdict | on measures | on methods |\n|---|---|---|---|---|"
    for i, (name, shape) in enumerate(NULLS.items()):
        n = studies if not i else studies // 8
        both = list(tasks.map(partial(false_verdicts, shape), range(n), chunksize=20))
        counts = Counter(word for p, m in both for word, yes in (("p", p), ("m", m), ("any", p or m)) if yes)
        yield f"| {name} | {n} | " + " | ".join(f"{100 * counts[w] / n:.1f} %" for w in ("any", "p", "m")) + " |"


def power_lines(tasks: ProcessPoolExecutor, studies: int) -> Iterator[str]:
    yield "\n## Power at the stated smallest detectable tau\n"
    yield '| study | stated tau | studies | says "predicts" |\n|---|---|---|---|'
    for name, shape in POWERS.items():
        tau, n = stated_tau(shape), studies // 5
        power = shares(tasks, partial(detects, replace(shape, tau=tau)), n)
        yield f"| {name} of two seeds | {tau:.2f} | {n} | {100 * power:.0f} % |"


def coverage_lines(tasks: ProcessPoolExecutor, studies: int) -> Iterator[str]:
    yield "\n## Coverage of 95 % intervals of tau\n"
    yield "| configurations | seeds | tau | pools | covered |\n|---|---|---|---|---|"
    for shape in COVERED:
        share = shares(tasks, partial(covers, shape), studies)
        yield f"| {2 * shape.methods} | {shape.seeds} | {shape.tau:g} | {studies} | {100 * share:.1f} % |"


def difference_lines(tasks: ProcessPoolExecutor, studies: int) -> Iterator[str]:
    yield "\n## Coverage of 95 % intervals of differences\n"
    yield "| difference of two methods | studies | covered |\n|---|---|---|"
    for name, shape in DIFFERENCES.items():
        yield f"| {name} | {studies} | {100 * shares(tasks, partial(covers_difference, shape), studies):.1f} % |"


PARTS = {"false": false_lines, "power": power_lines, "coverage": coverage_lines, "differences": difference_lines}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    start, written = perf_counter(), []
    with ProcessPoolExecutor(options.workers) as tasks:
        for part in options.parts:
            for line in PARTS[part](tasks, options.studies):
                print(line, flush=True)
                written.append(line)
    written.append(f"\n{perf_counter() - start:.0f} s with {options.workers} processes.")
    if options.out:
        head = "# Verdicts of studies by simulation\n\n`benchmarks/verdicts.py`: what is simulated, and the bars.\n"
        options.out.write_text("\n".join([head, *written, ""]))


if __name__ == "__main__":
    main()
