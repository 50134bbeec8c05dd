"""The GPU benchmark suite: steps, curvature, measures, ensembles and epochs, each beside its peers in the same run.

    PYTHONPATH=src python benchmarks/gpu.py [THEME ...] [--rounds N] [--out DIR] [--data DIR] [--compile] [--full]
                                            [--quick]

Each theme writes <theme>_<device>_<date>.md as it goes; one that fails does not stop the others. Nothing but
torch, numpy and scipy is needed. Without a GPU, `--quick` runs tiny sizes on the CPU and says only that it runs.
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import traceback
import warnings
from importlib import import_module
from pathlib import Path

import torch
from gpu_timing import Asked

THEMES = ("steps", "curvature", "measures", "ensembles", "epochs")
RESULTS = Path(__file__).parent / "results"


def run(theme: str, asked: Asked) -> bool:
    """Whether the theme came to its end."""
    start = time.perf_counter()
    random.seed(0)
    torch.manual_seed(0)
    before = torch.backends.cudnn.benchmark
    try:
        module = import_module(f"gpu_{theme}")
        if asked.gpu:
            gc.freeze()  # memory is collected often: what exists by now is not looked through again and again
        page = module.report(asked)
        page.end()
        if page.file is not None:
            print(page.file, file=sys.stderr, flush=True)
    except Exception:
        traceback.print_exc()
        print(f"{theme} failed after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        return False
    finally:
        torch.backends.cudnn.benchmark = before
        if asked.gpu:
            torch.backends.cudnn.allow_tf32 = True  # as torch has it by itself
        asked.free()
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("themes", nargs="*", metavar="THEME", help=f"of {', '.join(THEMES)}; all by default")
    parser.add_argument("--rounds", type=int, help="at most, instead of each theme's own number; at least three count")
    parser.add_argument("--out", type=Path, help="where pages go: benchmarks/results, with --quick nowhere")
    parser.add_argument(
        "--data", type=Path, help="where CIFAR-10 lies, for networks that are trained; one of its files does"
    )
    parser.add_argument("--compile", action="store_true", help="also steps that are compiled and captured")
    parser.add_argument("--full", action="store_true", help="also what takes minutes: curvature of four large batches")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a smoke run")
    chosen = parser.parse_args(arguments)
    unknown = [theme for theme in chosen.themes if theme not in THEMES]
    if unknown:
        parser.error(f"there is no theme {unknown[0]!r}: take some of {', '.join(THEMES)}")
    if not chosen.quick and not torch.cuda.is_available():
        parser.error("there is no GPU here: --quick runs tiny sizes on the CPU")
    out = chosen.out or (None if chosen.quick else RESULTS)
    asked = Asked(chosen.rounds, chosen.quick, chosen.compile, chosen.full, chosen.data, out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a step is not captured is in the table
        good = [run(theme, asked) for theme in chosen.themes or THEMES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
