"""Error rates of `steppe compare` by simulation: false winners, coverage and power of its own decision function.

    python benchmarks/compare.py --replicates 1500 --out benchmarks/results/compare_cpu_DATE.md

The world: a method's error is 10 % + 25 (lr - its best)^2 + 5 (rho - its best)^2 points on a unit square, so half a
decade of learning rate costs a point; a run diverges above the best learning rate + 0.4, with an error of 90 %. The
standard deviations of seeds, validation and test are 0.3, 0.5 and 0.2 points. One plain optimizer, three contenders
(six in one row), 0.5 points are worth a change.

- False: a winner or loser that is named wrongly for any contender. The bar: 5 %, and two Monte Carlo errors.
- Wrong "no difference": at a difference of 0.5 points. The bar: 5 %, and two Monte Carlo errors.
- Coverage of the 95 % interval of one look: 93 to 97 %. Repeated intervals cover at least 95 %.
- Power: the share detected, within 5 points of what the difference's own standard error says before the look.

Rows that leave a part of the protocol out, and what is common, show what the parts are for, and have no bars.

Beside it, what is common: the same number of runs, and a winner by its own test error, by bars of one standard
deviation over seeds, or by a t-test of the selected configurations.
"""

from __future__ import annotations

import argparse
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from math import sqrt
from pathlib import Path
from time import perf_counter
from zlib import crc32

import numpy as np
from scipy.stats import nct, ttest_ind
from scipy.stats import t as student

from steppe.comparison.border import at_border
from steppe.comparison.halving import Halved, limit
from steppe.comparison.sequential import LOOKS, Contrast, Rules, decide
from steppe.comparison.statistics import Outcomes
from steppe.core.laws import LogUniform

POINT = 0.01  # errors are shares of rows
DIVERGED = 0.9
TUNING = 8  # of worlds with halving
WORTH = 0.5 * POINT
LR = LogUniform(1e-3, 1e-3 * 10**2.5)


@dataclass(frozen=True)
class World:
    """The methods' differences from the first, in points, and the noise of their runs."""

    shifts: tuple[float, ...] = (0.0, 0.0, 0.0, 0.0)
    best: tuple[tuple[float, float], ...] = ((0.5, 0.5),)  # lr and rho; one for all, or one per method
    seed_sd: tuple[float, ...] = (0.3,)
    validation_sd: float = 0.5
    test_sd: float = 0.2
    row_sd: float = 0.0  # of a method's error on these test rows, in points
    rows: int = 0  # with rows: each is right or wrong, and each method has hard rows of its own
    hard: float = 0.3  # the part of a row's variance that is the method's
    halving: bool = False  # with an error at the rung that is half as high again, of more noise, later for contenders

    def means(self, m: int, points: np.ndarray) -> np.ndarray:
        """The error of a method at each point, in points, without noise."""
        lr, rho = self.best[m % len(self.best)]
        smooth = 10 + self.shifts[m] + 25 * (points[:, 0] - lr) ** 2 + 5 * (points[:, 1] - rho) ** 2
        return np.where(points[:, 0] > lr + 0.4, 100 * DIVERGED, smooth)

    def sd(self, m: int) -> float:
        return self.seed_sd[m % len(self.seed_sd)]

    def trials(self, random: np.random.Generator, n: int) -> tuple[np.ndarray, dict[str, Outcomes]]:
        """The points, which methods share, and the outcomes of each method's trials."""
        points, found = random.random((n, 2)), {}
        for m in range(len(self.shifts)):
            mean = POINT * (self.means(m, points) + self.sd(m) * random.normal(size=n))
            validation = mean + self.validation_sd * POINT * random.normal(size=n)
            halved = None
            if self.halving:
                rung = 1.5 * mean + (m > 0) * 2 * POINT + POINT * random.normal(size=n)
                first = LOOKS[0] * TUNING
                stopped = rung > limit(rung[:first])
                stopped[:first] = False
                halved = Halved(np.where(stopped, rung, validation), rung, first)
                mean, validation = np.where(stopped, 1.5 * mean, mean), halved.ranked()
            if self.rows:
                own = random.beta(0.1 * (1 / self.hard - 1), 0.9 * (1 / self.hard - 1), self.rows)
                wrong = random.random((n, self.rows)) < np.clip(own * mean[:, None] / 0.1, 0, 1)
                found[str(m)] = Outcomes.of(validation, wrong)
            else:
                noise = self.test_sd * random.normal(size=n) + self.row_sd * random.normal()
                found[str(m)] = Outcomes(validation, mean + POINT * noise, halved=halved)
        return points, found

    @property
    def row_variance(self) -> float | None:
        return None if self.rows else 2 * (self.row_sd * POINT) ** 2


def truth(world: World, tuning: int, draws: int = 400_000) -> np.ndarray:
    """The difference of each contender from the first method, by drawing tunings."""
    clean = replace(world, row_sd=0.0, rows=0, halving=False)
    _, found = clean.trials(np.random.default_rng(99), draws)
    thetas = []
    for outcomes in found.values():
        groups = outcomes.validation.reshape(-1, tuning).argmin(1) + tuning * np.arange(draws // tuning)
        thetas.append(outcomes.test[groups].mean())
    return np.array(thetas[1:]) - thetas[0]


@dataclass(frozen=True)
class Row:
    """One row of the table: a world, a protocol, and whether to use parts of it."""

    world: World
    rules: Rules
    row_variance: bool = True
    futility: bool = False
    border: bool = False


def one(row: Row, seed: int) -> list[tuple[str, float, float, float, float]]:
    """Verdict, trials, interval and standard error of each contender in one simulated comparison.

    The interval is the 95 % one where there is one look, and else the repeated one.
    """
    points, found = row.world.trials(np.random.default_rng([seed, crc32(repr(row).encode())]), row.rules.most)
    variance = row.world.row_variance
    if not row.row_variance:
        variance = 0.0
        found = {m: Outcomes(o.validation, o.test) for m, o in found.items()}

    def edges(method: str, n: int) -> Sequence[str]:
        return at_border(found[method].validation[:n], points[:n, :1], {"lr": LR}, row.rules.tuning)

    history = decide(found, row.rules, edges if row.border else lambda method, n: (), variance, row.futility)
    last: dict[str, Contrast] = history[-1]
    level = {c.method: 0.05 if row.rules.once else c.level for c in last.values()}
    return [
        (
            c.verdict,
            c.difference.trials,
            c.difference.value - c.difference.half_width(level[c.method]),
            c.difference.value + c.difference.half_width(level[c.method]),
            c.difference.stderr,
        )
        for c in last.values()
    ]


@dataclass(frozen=True)
class Rates:
    """Shares of simulated comparisons; `first` is the first contender's."""

    n: int
    false: float
    better: float
    worse: float
    equivalent: float
    undecided: float
    trials: float
    first_trials: float
    covered: float
    all_covered: float
    expected: float

    def error(self, share: float) -> float:
        return sqrt(max(share * (1 - share), 1e-9) / self.n)


def rates(row: Row, replicates: int, each: Callable[..., object] = map) -> Rates:
    """Simulate a row; `each` is a map, such as that of a pool of processes."""
    results = list(each(partial(one, row), range(replicates)))  # type: ignore[call-overload]
    verdicts = np.array([[c[0] for c in r] for r in results])
    numbers = np.array([[c[1:] for c in r] for r in results], dtype=float)
    shifts, true = np.array(row.world.shifts[1:]), truth(row.world, row.rules.tuning)
    signs = np.where(abs(true) < 0.1 * POINT, 0, np.sign(true))  # Monte Carlo error: 0.005 points
    wrong = ((verdicts == "better") & (signs >= 0)) | ((verdicts == "worse") & (signs <= 0))
    covered = (numbers[:, :, 1] <= true) & (true <= numbers[:, :, 2])
    trials = numbers[:, :, 0]
    # what the standard error of one look says: Student's test with a shifted mean, at the level of Holm's first step
    df = 2 * row.rules.most / row.rules.tuning
    at = student.ppf(1 - row.rules.alpha / 2 / len(shifts), df)
    se = float(np.median(numbers[:, 0, 3]))
    expected = float(nct.sf(at, df, -shifts[0] * POINT / se)) if row.rules.once and se > 0 else np.nan
    return Rates(
        replicates,
        wrong.any(1).mean(),
        *((verdicts[:, 0] == v).mean() for v in ("better", "worse", "no difference")),
        np.isin(verdicts[:, 0], ["undecided", "cannot tell"]).mean(),
        np.hstack([trials.max(1)[:, None], trials]).mean(),
        trials[:, 0].mean(),
        covered.mean(),
        covered.all(1).mean(),
        expected,
    )


COMMON = {  # with 48 runs per method: fresh seeds of the selected configuration among them
    "naive: best validation, its own test error, lowest wins": 0,
    "common: bars of one standard deviation over 3 seeds apart": 3,
    "selected configurations: t-test of 5 fresh seeds, Holm": 5,
}


def common(world: World, repeats: int, seed: int) -> tuple[bool, bool]:
    """Whether a common protocol names a wrong winner or loser, and whether it finds the first contender better."""
    random = np.random.default_rng([seed, 6])
    points, found = world.trials(random, 48 - repeats)
    named = np.zeros(len(world.shifts) - 1)
    chosen = [int(o.validation.argmin()) for o in found.values()]
    if not repeats:
        tests = np.array([o.test[c] for o, c in zip(found.values(), chosen, strict=True)])
        named = np.sign(tests[1:] - tests[0])
    else:
        again = [
            world.means(m, points[[c]]) + np.hypot(world.sd(m), world.test_sd) * random.normal(size=repeats)
            for m, c in enumerate(chosen)
        ]
        p = np.array([ttest_ind(x, again[0]).pvalue for x in again[1:]])
        order = p.argsort()
        apart = np.zeros(len(p), dtype=bool)
        apart[order] = np.logical_and.accumulate(p[order] <= 0.05 / np.arange(len(p), 0, -1))  # Holm
        if repeats == 3:
            bars = [abs(x.mean() - again[0].mean()) - x.std(ddof=1) - again[0].std(ddof=1) for x in again[1:]]
            apart = np.array(bars) > 0
        named = apart * np.sign([x.mean() - again[0].mean() for x in again[1:]])
    shifts = np.array(world.shifts[1:])
    return bool((((named < 0) & (shifts >= 0)) | ((named > 0) & (shifts <= 0))).any()), bool(named[0] < 0)


NULL = World()
HALF, FULL, TWO, LOSS = (World((0.0, -x, 0.0, 0.0)) for x in (0.5, 1.0, 2.0, -1.0))
PRIVATE = World(best=((0.5, 0.5), (0.4, 0.6), (0.45, 0.4), (0.55, 0.55)))
ONCE, TO_48, TO_96 = Rules(most=48, worth=WORTH, once=True), Rules(worth=WORTH), Rules(most=96, worth=WORTH)
ROWS = World(rows=1000)
TABLE: dict[str, Row] = {
    "null, one look at 48": Row(NULL, ONCE),
    "private optima, one look at 48": Row(PRIVATE, ONCE),
    "0.5 better, one look at 48": Row(HALF, ONCE),
    "1.0 better, one look at 48": Row(FULL, ONCE),
    "three times the seed sd, one look at 48": Row(World(seed_sd=(0.3, 0.9, 0.3, 0.3)), ONCE),
    "null, looks to 20, as a short budget allows": Row(NULL, Rules(most=20, worth=WORTH)),
    "null, looks to 48": Row(NULL, TO_48),
    "private optima, looks to 48": Row(PRIVATE, TO_48),
    "0.5 better, looks to 48": Row(HALF, TO_48),
    "1.0 better, looks to 48": Row(FULL, TO_48),
    "null, looks to 96": Row(NULL, TO_96),
    "private optima, looks to 96": Row(PRIVATE, TO_96),
    "0.5 better (at the margin), looks to 96": Row(HALF, TO_96),
    "1.0 better, looks to 96": Row(FULL, TO_96),
    "2.0 better, looks to 96": Row(TWO, TO_96),
    "1.0 worse, looks to 96": Row(LOSS, TO_96),
    "null, seed sd 0.8, looks to 96": Row(replace(NULL, seed_sd=(0.8,)), TO_96),
    "1.0 better, seed sd 0.8, looks to 96": Row(replace(FULL, seed_sd=(0.8,)), TO_96),
    "null, row noise 0.3, without its variance": Row(replace(NULL, row_sd=0.3), TO_96, row_variance=False),
    "null, row noise 0.3": Row(replace(NULL, row_sd=0.3), TO_96),
    "1.0 better, row noise 0.3": Row(replace(FULL, row_sd=0.3), TO_96),
    "seven methods, null": Row(World((0.0,) * 7), TO_96),
    "null, with the rule of futility": Row(NULL, TO_96, futility=True),
    "0.5 better, with the rule of futility": Row(HALF, TO_96, futility=True),
    "null, row noise 0.3, with the rule of futility": Row(replace(NULL, row_sd=0.3), TO_96, futility=True),
    "null, with the rule of borders": Row(NULL, TO_96, border=True),
    "null, best learning rate at the border": Row(World(best=((0.95, 0.5),)), TO_96, border=True),
    "null, 1000 rows, one look at 48": Row(ROWS, ONCE),
    "null, 1000 rows, one look at 48, without the rows' variance": Row(ROWS, ONCE, row_variance=False),
    "null, 1000 rows, looks to 48": Row(ROWS, TO_48, futility=True),
    "null, halving, looks to 96": Row(replace(NULL, halving=True), TO_96),
    "0.5 better, halving, looks to 96": Row(replace(HALF, halving=True), TO_96),
    "1.0 better, halving, one look at 48": Row(replace(FULL, halving=True), ONCE),
    "null, tuning of 4, looks to 48": Row(NULL, Rules(tuning=4, most=48, worth=WORTH)),
}


def bars(name: str, row: Row, r: Rates) -> list[str]:
    """The bars that a row misses."""
    found, limit = [], 0.05 + 2 * r.error(0.05)
    if not row.row_variance and (row.world.rows or row.world.row_sd):
        return []
    if r.false > limit:
        found.append(f"{name}: false {100 * r.false:.1f} %")
    at_margin = abs(abs(row.world.shifts[1]) * POINT - WORTH) < 1e-9
    if at_margin and r.equivalent > limit:
        found.append(f'{name}: wrong "no difference" {100 * r.equivalent:.1f} %')
    error = 2 * r.error(0.95)
    most = 1.0 if row.world.rows else 0.97 + error  # with rows, intervals are conservative
    if row.rules.once and not 0.93 - error <= r.covered <= most:
        found.append(f"{name}: coverage {100 * r.covered:.1f} %")
    if row.world.shifts[1] < 0 and abs(r.better - r.expected) > 0.05 + 2 * r.error(r.expected):  # false for NaN
        found.append(f"{name}: power {100 * r.better:.0f} %, and {100 * r.expected:.0f} % was stated")
    return found


def cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, numpy {np.__version__}, {date.today()}"


def lines(tasks: ProcessPoolExecutor, replicates: int, rows: str = "") -> Iterator[str]:
    each, missed = partial(tasks.map, chunksize=10), list[str]()
    yield (
        "| world and looks | n | false % | better % | worse % | no difference % | undecided % | trials (contender 1) "
        "| interval covers % | all cover % | power by its error % |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )
    for name, row in TABLE.items():
        if rows not in name:
            continue
        r = rates(row, replicates // 3 if row.world.rows or row.world.halving else replicates, each)
        cells = [f"{100 * x:.1f} ± {100 * r.error(x):.1f}" for x in (r.false, r.better, r.worse, r.equivalent)]
        power = "-" if np.isnan(r.expected) else f"{100 * r.expected:.0f}"
        yield (
            f"| {name} | {r.n} | {' | '.join(cells)} | {100 * r.undecided:.1f} | {r.trials:.0f} ({r.first_trials:.0f}) "
            f"| {100 * r.covered:.1f} | {100 * r.all_covered:.1f} | {power} |"
        )
        missed += bars(name, row, r)
    yield "\nBars: " + ("; ".join(missed) if missed else "all are met") + "."
    if rows:
        return
    yield "\n| what is common, 48 runs per method | n | null: false % | 1.0 better: detected % (false %) |"
    yield "|---|---|---|---|"
    for name, repeats in COMMON.items():
        null, full = (np.array(list(each(partial(common, w, repeats), range(replicates)))) for w in (NULL, FULL))
        false = null[:, 0].mean()
        yield (
            f"| {name} | {replicates} | {100 * false:.1f} ± {100 * sqrt(false * (1 - false) / replicates):.1f} "
            f"| {100 * full[:, 1].mean():.1f} ({100 * full[:, 0].mean():.1f}) |"
        )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicates", type=int, default=1500)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rows", default="", help="only the rows whose names have this text")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    start, written = perf_counter(), []
    with ProcessPoolExecutor(options.workers) as tasks:
        for line in lines(tasks, options.replicates, options.rows):
            print(line, flush=True)
            written.append(line)
    processes = f"{options.workers} process{'es' * (options.workers > 1)}"
    written.append(f"\n{perf_counter() - start:.0f} s with {processes}, which had other work beside them: {cpu()}.")
    if options.out:
        command = f"    python benchmarks/compare.py --replicates {options.replicates} --workers {options.workers}"
        command += f" --rows {options.rows}" if options.rows else ""
        head = "# Error rates of `steppe compare` by simulation\n\nThe world, the bars and the columns: "
        head += f"`benchmarks/compare.py`, by\n\n{command} --out {options.out}\n"
        options.out.write_text("\n".join([head, *written, ""]))


if __name__ == "__main__":
    main()
