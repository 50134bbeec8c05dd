"""A study of thousands of cells by the command line: seconds to plan, train, rerun and report it, and its files.

Cells are runs of one step on the digits with one cheap measure, so that what is timed is the study, not training.
`dry run` lists all cells; `run` trains them on all cores; `no-op rerun` is the same command again; `report` writes the
page. CPU seconds are those of the command with its workers; wall seconds beside them count the other work of the
machine.

    PYTHONPATH=src python benchmarks/study.py [--cells 2000] [--repeats 3] [--out FILE]

With `--before FOLDER`, a checkout of an earlier version, the commands that compute nothing are timed with both in turns
on one study, and their medians compared.

    PYTHONPATH=src python benchmarks/study.py --before ../earlier
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

STUDY = """
base: {{data: digits, model: mlp, model_options: {{depth: 1, width: 8}}, steps: 1, batch_size: 32}}
grid:
  method: [none, {{method: sam, rho: [0.05, 0.1]}}, {{method: asam, rho: 0.5}}]
  lr: [0.01, 0.02, 0.05, 0.1, 0.2]
  weight_decay: [0, 0.0001, 0.0005, 0.001, 0.005]
  seed: {seeds}
measures: [grad_norm]
targets: [test_error]
"""
COMBINATIONS = 100


def took(folder: Path, *words: str) -> tuple[float, float]:
    """CPU and wall seconds of a command and its processes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", "steppe", *words], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall


def best(folder: Path, repeats: int, *words: str) -> tuple[float, float]:
    """The repetition with the fewest CPU seconds."""
    return min(took(folder, *words) for _ in range(repeats))


def in_turns(cells: int, repeats: int, before: Path) -> list[str]:
    """CPU seconds of two versions on one study, command by command, as lines of a table."""
    lines = ["| CPU s | before | after | ratio of medians |", "|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as place:
        folder, words = Path(place), ("study", "run", "study.yaml")
        (folder / "study.yaml").write_text(STUDY.format(seeds=cells // COMBINATIONS))

        def compared(name: str, *command: str) -> None:
            seconds: dict[str, list[float]] = {"before": [], "after": []}
            for _ in range(repeats):
                for version, root in (("before", before), ("after", Path())):
                    os.environ["PYTHONPATH"] = str((root / "src").absolute())
                    seconds[version].append(took(folder, *command)[0])
            each = [", ".join(f"{s:.3g}" for s in of_one) for of_one in seconds.values()]
            ratio = median(seconds["after"]) / median(seconds["before"])
            lines.append(f"| {name} | {' | '.join(each)} | {ratio:.2f} |")

        compared("dry run, nothing has run", *words, "--dry-run")
        took(folder, *words)
        compared("dry run, nothing is missing", *words, "--dry-run")
        compared("no-op rerun", *words)
        compared("report", "study", "report", "study.yaml")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cells", type=int, nargs="+", default=[2000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="also write the table there")
    parser.add_argument("--before", type=Path, help="a checkout to compare with")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.path.abspath("src"), os.environ.get("PYTHONPATH")]))
    if options.before is not None:
        print("\n".join(in_turns(options.cells[0], options.repeats, options.before)))
        return
    columns = ("dry run", "run, ms per cell", "no-op rerun", "report")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    lines = [
        f"{datetime.date.today()}, {cores} CPU cores, {platform.machine()}, {platform.system()}, "
        f"Python {platform.python_version()}; CPU s (wall s), the best of {options.repeats}, runs once",
        "",
        f"| cells | {' | '.join(columns)} | files per cell | store, MB | page, MB |",
        "|---" * (len(columns) + 4) + "|",
    ]
    for cells in options.cells:
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / "study.yaml").write_text(STUDY.format(seeds=cells // COMBINATIONS))
            planned = best(folder, options.repeats, "study", "run", "study.yaml", "--dry-run")
            ran = tuple(1000 * s / cells for s in took(folder, "study", "run", "study.yaml"))
            again = best(folder, options.repeats, "study", "run", "study.yaml")
            report = best(folder, options.repeats, "study", "report", "study.yaml")
            runs = folder / "studies" / "study" / "runs"
            files = sum(len(names) for _, _, names in os.walk(runs)) / cells
            store, page = (
                (folder / "studies" / "study" / name).stat().st_size / 1e6 for name in ("study.sqlite", "report.html")
            )
        times = [f"{cpu:.3g} ({wall:.3g})" for cpu, wall in (planned, ran, again, report)]
        lines.append(f"| {cells} | {' | '.join(times)} | {files:.1f} | {store:.1f} | {page:.1f} |")
    lines += ["", f"A load of {os.getloadavg()[0]:.1f} from all work of the machine at the end."]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
