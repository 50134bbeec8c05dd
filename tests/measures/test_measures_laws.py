"""Laws of all registered measures, and of those that other packages register."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from own_measures import registered

import steppe
from steppe.measures import FisherTrace, GradientNorm
from steppe.testing import check_measure

PLUGIN = """
from dataclasses import dataclass
import steppe

@steppe.measures.register(
    "weight_norm", does="the norm of the weights", label="size of the weights", kind="exact", cost="nothing"
)
@dataclass(frozen=True)
class WeightNorm(steppe.Measure):
    p: float = 2.0

    def running(self, objective, seed=0):
        yield steppe.Estimate(float(objective.weights.norm(self.p)), 0.0, 1, "exact")
"""
STUDY = """
base: {data: spirals, fraction: 0.1, model: mlp, model_options: {width: 8, depth: 1}, epochs: 1, batch_size: 50,
       device: cpu}
grid: {lr: [0.1, 0.2], seed: [0, 1]}
measures: [weight_norm, "weight_norm[p=1]"]
"""


@pytest.mark.parametrize("name", steppe.MEASURES)
def test_of_every_registered_measure(name: str) -> None:
    check_measure(name)


@dataclass(frozen=True)
class Wrong(steppe.Measure):
    """The norm of the weights, with a fault."""

    fault: str

    def running(self, objective: Any, seed: int = 0) -> Iterator[steppe.Estimate]:
        value = float(objective.weights.norm())
        if self.fault == "changes the model":
            next(objective.model.parameters()).data.mul_(1.5)
        if self.fault == "and then":
            value += time_like()
        if self.fault == "raise NotFinite":
            value = float("nan")
        error = 0.1 if self.fault == "has the error" else 0.0
        yield steppe.Estimate(value, error, 0 if self.fault == "draws" else 1, "exact")


STARTS = iter(range(10**6))


def time_like() -> int:
    return next(STARTS)


@pytest.mark.parametrize("fault", ["changes the model", "and then", "raise NotFinite", "has the error", "n = 0 draws"])
def test_what_breaks_a_law_is_named(fault: str) -> None:
    with pytest.raises(AssertionError, match=fault):
        check_measure(Wrong("draws" if "draws" in fault else fault))
    check_measure(Wrong("none"))


def test_another_kind_or_cost_than_stated_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    registered(monkeypatch, "slow", GradientNorm())
    with pytest.raises(AssertionError, match="registered with nothing, and took 1 gradients"):
        check_measure("slow")
    registered(monkeypatch, "random", FisherTrace())
    with pytest.raises(AssertionError, match="registered as exact, and gave unbiased"):
        check_measure("random")


def run(code: list[str], folder: Path) -> str:
    env = os.environ | {"STEPPE_PLUGINS": "their_measures", "PYTHONPATH": str(folder / "installed")}
    done = subprocess.run([sys.executable, *code], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_measure_of_another_package_is_listed_measured_and_shown(tmp_path: Path) -> None:
    """In Python, in the commands, and in a study with its page, all through the door `steppe.measures`."""
    (tmp_path / "installed").mkdir()
    (tmp_path / "installed" / "their_measures.py").write_text(PLUGIN)
    (tmp_path / "study.yaml").write_text(STUDY)
    run(["-c", "from steppe.testing import check_measure; check_measure('weight_norm[p=1]')"], tmp_path)
    listed = run(["-m", "steppe", "measures", "weight_norm"], tmp_path)
    assert "the norm of the weights" in listed
    assert "kind of estimate: exact" in listed
    run(["-m", "steppe", "study", "run", "study.yaml", "--engine", "serial"], tmp_path)
    [page] = tmp_path.rglob("*.html")
    assert "size of the weights" in page.read_text()
    assert "the norm of the weights, p 1" in page.read_text()
