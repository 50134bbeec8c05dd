"""The verdicts of the built-in study stay the same with other seeds, threads and arithmetic.

    PYTHONPATH=src python benchmarks/demo_verdicts.py --folder FOLDER \
        --result docs/demo.json --out benchmarks/results/demo_verdicts_cpu_DATE.md

Runs the study of `make demo` as it is (repetition 0), and five more times with other seeds of everything: the settings
drawn, the seeds of training and the label noise of repetition r follow from the seed r. Its permutations are drawn with
seed r and three others. Repetition 7 trains with two threads. Repetition 8 uses torch's and MKL's kernels for CPUs
without AVX, which round differently. Pictures are not computed. `--out` is a page with every verdict by repetition.
`--result` is what repetition 0 found, as `steppe study run --json` prints it: README and docs quote it, and the tests
compare them. Studies are kept in FOLDER: rerun the command to resume.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from steppe._util.formats import json_safe
from steppe.studies.plan import Study, digits
from steppe.studies.pool import Pool
from steppe.studies.protocol import Show
from steppe.studies.result import findings_of, study_result
from steppe.studies.run import look, run
from steppe.studies.selection import tuned_settings
from steppe.studies.statistics.comparisons import Comparison
from steppe.studies.statistics.findings import Findings
from steppe.studies.statistics.predictions import LEVEL, Finding

WITHOUT_AVX = {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"}
MORE_SEEDS = (1000, 2000, 3000)  # of permutations, beside the repetition's own

QUOTED = {
    "strong": "all runs",
    "within groups": "runs of the same method",
    "weak": "the flattest tenth against the rest",
}

Row = tuple[str, str, str]  # target, measure or contender, and hypothesis or "method"


@dataclass(frozen=True)
class Repetition:
    """One way to repeat the study: the study's seed, threads per run, and variables of the workers.

    All settings that are drawn and all seeds of runs follow from the study's seed.
    """

    number: int
    threads: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)

    def of(self, study: Study, folder: Path, workers: int | None = None) -> Study:
        """The study with this seed and these threads, in a folder of its own."""
        return replace(
            study,
            base={**study.base, "seed": self.number, "threads": self.threads},
            show=Show(),
            engine=replace(study.engine, workers=workers),
            out=str(folder / str(self.number)),
        )

    @property
    def words(self) -> str:
        """What differs from the study as it is."""
        parts = [f"seed {self.number}"] if self.number else ["as it is"]
        parts += [f"{self.threads} threads"] if self.threads > 1 else []
        parts += [f"{k}={v}" for k, v in self.environment.items()]
        return ", ".join(parts)


# 1 to 6 and 9 are those on which drafts of the study were compared
REPETITIONS = (
    Repetition(0),
    Repetition(10),
    Repetition(11),
    Repetition(12),
    Repetition(8, environment=WITHOUT_AVX),
    Repetition(7, threads=2),
)


@contextmanager
def environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables that processes inherit which are started meanwhile."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def found_by(study: Study, seeds: Sequence[int]) -> list[Findings]:
    """The findings of a study that has run, by each seed of the permutations."""
    pool, tuned = Pool.of(study, *look(study)), tuned_settings(study)
    return [findings_of(pool, study, study.targets, tuned=tuned, seed=seed) for seed in seeds]


def rows_of(found: Findings) -> dict[Row, Finding | Comparison]:
    """Every finding and comparison of a study."""
    rows: dict[Row, Finding | Comparison] = {(f.target, f.measure, f.hypothesis): f for f in found.findings}
    return rows | {(c.target, c.contender, "method"): c for c in found.comparisons}


def number(row: Finding | Comparison) -> str:
    """Tau, or a difference between methods as a percentage of the reference's mean."""
    if isinstance(row, Finding):
        return f"{row.tau:+.2f}"
    return f"{100 * row.difference / row.reference_mean:+.0f} %"


def distance(rows: Sequence[Finding | Comparison]) -> str:
    """How far from another verdict: the corrected p and the end of an interval that are closest to one."""
    p = [row.p_corrected for row in rows]
    ends = [(row.low / scale, row.high / scale) for row, scale in zip(rows, map(scale_of, rows), strict=True)]
    if max(p) <= LEVEL:
        return f"p at most {max(p):.2g}, interval {min(max(low, -high) for low, high in ends):.2f} from 0"
    equal = [row.p_weaker_corrected if isinstance(row, Finding) else row.p_within_corrected for row in rows]
    if max(equal) <= LEVEL:
        return f"p of a relevant one at most {max(equal):.2g}"
    return f"p at least {min(p):.2g}, and {min(equal):.2g} of a relevant one"


def scale_of(row: Finding | Comparison) -> float:
    """What intervals are divided by: the reference's mean, for differences between methods."""
    return 1.0 if isinstance(row, Finding) else row.reference_mean


def page(repeated: Mapping[str, Sequence[Findings]]) -> Iterator[str]:
    """The lines of the page: one row per verdict, one column per repetition.

    Parameters
    ----------
    repeated : mapping of str to sequence of Findings
        Findings by repetition, one per seed of the permutations.

    """
    yield "| target | measure or method | hypothesis | " + " | ".join(repeated) + " | distance | same |"
    yield "|---" * (5 + len(repeated)) + "|"
    tables = {name: [rows_of(found) for found in each] for name, each in repeated.items()}
    first, same = next(iter(tables.values()))[0], 0
    for key in first:
        rows = [[table[key] for table in each] for each in tables.values()]
        words = [list(dict.fromkeys(row.verdict for row in each)) for each in rows]
        cells = (f"{' or '.join(w)} ({number(each[0])})" for w, each in zip(words, rows, strict=True))
        agree = len(set(chain.from_iterable(words))) == 1
        same += agree
        end = (distance(list(chain.from_iterable(rows))), "yes") if agree else ("none", "no")
        yield f"| {' | '.join((*key, *cells, *end))} |"
    yield f"\n{same} of {len(first)} verdicts are the same in all {len(repeated)} repetitions."


def prediction_row(f: Mapping[str, Any]) -> str:
    """A finding over all runs as README and docs quote it; `f` is a finding of a stored result."""
    return f"| `{f['measure']}` | {f['tau']:+.2f} | {f['low']:+.2f} to {f['high']:+.2f} | {f['verdict']} |"


def comparison_row(c: Mapping[str, Any]) -> str:
    """A comparison as README and docs quote it, in points of the error."""
    low, high = (f"{100 * c[end]:+.1f}" for end in ("low", "high"))
    return f"| `{c['contender']}` | {100 * c['difference']:+.1f} | {low} to {high} | {c['verdict']} |"


def quoted(result: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the tables in docs/digits.md: measures by each hypothesis, and methods, per target."""
    found = result["findings"]
    for target in dict.fromkeys(f["target"] for f in found["findings"]):
        for hypothesis, runs in QUOTED.items():
            rows = [f for f in found["findings"] if (f["target"], f["hypothesis"]) == (target, hypothesis)]
            if rows:
                yield from ("", f"| {target}, {runs} | tau | 95 % interval | verdict |", "|---|---|---|---|")
                yield from map(prediction_row, rows)
        head = f"| {target}, compared with `{found['reference']}` | points | 95 % interval | verdict |"
        yield from ("", head, "|---|---|---|---|")
        yield from (comparison_row(c) for c in found["comparisons"] if c["target"] == target)


def machine() -> str:
    """The CPU, the number of cores and torch's version."""
    import torch

    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{name}, {os.cpu_count()} cores, torch {torch.__version__}, Python {platform.python_version()}"


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="of the studies")
    parser.add_argument("--workers", type=int, help="processes; defaults to the number of cores")
    parser.add_argument("--repetitions", type=int, default=len(REPETITIONS), help="the first so many")
    parser.add_argument("--result", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(words)
    repetitions = REPETITIONS[: options.repetitions]
    studies = [repetition.of(digits(), options.folder, options.workers) for repetition in repetitions]
    for repetition, study in zip(repetitions, studies, strict=True):
        with environment(repetition.environment):
            outcome = run(study, progress=True)
        if outcome.stopped or outcome.failures:
            raise SystemExit(f"repetition {repetition.number}: {outcome.stopped or dict(outcome.failures)}")
    about = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}, {machine()}"
    if options.result:
        found = study_result(studies[0], *look(studies[0]), tuned_settings(studies[0]))
        result = replace(found, folder=digits().folder)
        stored = json_safe({"made": about, **result.to_dict()}, str)
        options.result.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
        print("\n".join(quoted(stored)))
    numbered = zip(repetitions, studies, strict=True)
    repeated = {str(r.number): found_by(study, (r.number, *MORE_SEEDS)) for r, study in numbered}
    how = [f"- {r.number}: {r.words}" for r in repetitions]
    head = "# Verdicts of the built-in study, repeated\n\n`benchmarks/demo_verdicts.py`: what is repeated, and how."
    note = (
        "In parentheses: tau, or the difference to the plain optimizer in percent of its error. Distance: the "
        "corrected p and the end of an interval that are closest to another verdict, of all repetitions. 0.05 decides "
        "for p. Verdicts of a relation or a difference need intervals that exclude 0, and nulls intervals within 0.5 "
        "(tau) or 0.1 (differences, as a share of the plain optimizer's error)."
    )
    lines = [f"{head} {about}.\n", *how, f"\n{note}\n", *page(repeated), ""]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
