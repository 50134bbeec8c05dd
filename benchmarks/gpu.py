"""The GPU benchmarks: steps, curvature, measures, ensembles, epochs, shared GPUs, formats of weights and kernels.

    PYTHONPATH=src python benchmarks/gpu.py [THEME ...] [--rounds N] [--out DIR] [--data DIR] [--compile] [--full]
                                            [--quick]

Each theme writes <theme>_<device>_<date>.md while it runs; one that fails does not stop the others. The benchmarks need
only torch, numpy and scipy. Without a GPU, `--quick` runs tiny sizes on the CPU as a smoke test.
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
from gpu_timing import Settings

THEMES = {  # the module of each; its function has the name of the theme
    "steps": "gpu_steps",
    "curvature": "gpu_curvature",
    "measures": "gpu_measures",
    "ensembles": "gpu_training",
    "epochs": "gpu_training",
    "sharing": "gpu_sharing",
    "formats": "gpu_sharing",
    "kernels": "gpu_kernels",
}
RESULTS = Path(__file__).parent / "results"


def run(theme: str, settings: Settings) -> bool:
    """Runs a theme; returns whether it succeeded."""
    start = time.perf_counter()
    random.seed(0)
    torch.manual_seed(0)
    before = torch.backends.cudnn.benchmark
    try:
        report = getattr(import_module(THEMES[theme]), theme)
        if settings.gpu:
            gc.freeze()  # the benchmarks collect garbage often, and existing objects need not be scanned
        page = report(settings)
        page.end()
        if page.file is not None:
            print(page.file, file=sys.stderr, flush=True)
    except Exception:
        traceback.print_exc()
        print(f"{theme} failed after {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
        return False
    finally:
        torch.backends.cudnn.benchmark = before
        if settings.gpu:
            torch.backends.cudnn.allow_tf32 = True  # torch's default
        settings.free()
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("themes", nargs="*", metavar="THEME", help=f"of {', '.join(THEMES)}; all by default")
    parser.add_argument("--rounds", type=int, help="the maximum number of rounds, instead of each theme's default")
    parser.add_argument(
        "--out", type=Path, help="folder for result pages; defaults to benchmarks/results, none if quick"
    )
    parser.add_argument(
        "--data", type=Path, help="folder of CIFAR-10 for the networks that are trained; one of its files is enough"
    )
    parser.add_argument("--compile", action="store_true", help="also run steps that are compiled and captured")
    parser.add_argument("--full", action="store_true", help="also run the curvature of four large batches (minutes)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: a smoke test")
    chosen = parser.parse_args(arguments)
    unknown = [theme for theme in chosen.themes if theme not in THEMES]
    if unknown:
        parser.error(f"there is no theme {unknown[0]!r}: choose from {', '.join(THEMES)}")
    if not chosen.quick and not torch.cuda.is_available():
        parser.error("this machine has no GPU: --quick runs tiny sizes on the CPU")
    out = chosen.out or (None if chosen.quick else RESULTS)
    settings = Settings(chosen.rounds, chosen.quick, chosen.compile, chosen.full, chosen.data, out)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tables show which steps are not captured
        succeeded = [run(theme, settings) for theme in chosen.themes or THEMES]
    return 0 if all(succeeded) else 1


if __name__ == "__main__":
    sys.exit(main())
