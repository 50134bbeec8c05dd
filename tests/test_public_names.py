"""The public names of steppe: what `dir` shows, what is imported on access, and docstrings that are complete and run."""

from __future__ import annotations

import subprocess
import sys

import steppe

PACKAGES = {"data", "ensembles", "integrations", "measures", "nn", "studies", "theory", "training"}


def test_dir_shows_names_and_packages_and_no_internals() -> None:
    code = (
        "import sys, steppe\n"
        "assert 'torch' not in sys.modules\n"
        f"for name in {sorted(PACKAGES)}:\n"
        "    getattr(steppe, name)\n"
        "steppe.SAM, steppe.capture\n"
        "print(*dir(steppe))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {*steppe.__all__, *PACKAGES}


def test_a_star_import_takes_no_package() -> None:
    """`nn` is torch's in most scripts."""
    names: dict[str, object] = {"nn": "torch.nn"}
    exec("from steppe import *", names)
    assert names["nn"] == "torch.nn"
    assert set(steppe.__all__) <= set(names)
    assert names["SAM"] is steppe.SAM
