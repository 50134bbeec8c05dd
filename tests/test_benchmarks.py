"""The benchmark of measures runs, and what it compares with computes what it says."""

import subprocess
import sys
from copy import deepcopy
from importlib.util import find_spec
from math import inf
from pathlib import Path

import pytest
import torch
from oracles.curvature import hessian, mean_loss, trace
from oracles.sharpness import published_procedure
from problems import flat_weights
from torch import nn
from torch.nn.functional import cross_entropy

FOLDER = Path(__file__).parent.parent / "benchmarks"
PEERS = ("pyhessian", "curvlinops", "sklearn")


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import measures_peers

    return measures_peers


@pytest.fixture
def classifier():
    """A float64 network of ReLUs and BatchNorm in eval mode, and a batch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model = model.double().eval()
    return model, torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 3, (20,))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize(("p", "rho"), [(2.0, 0.4), (inf, 0.05)])
def test_published_ascent_is_the_published_procedure(peers, classifier, p, rho, adaptive):
    model, x, y = classifier
    before = deepcopy(model.state_dict())
    w = flat_weights(model)
    peak = published_procedure(mean_loss(model, cross_entropy, [(x, y)]), w, rho, p, w.abs() if adaptive else None)
    found = peers.published_ascent(model, x, y, rho, p, adaptive, gap=1e-12)["rise"]
    assert found == pytest.approx(peak.rise, rel=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), before.values(), strict=True))


def test_published_ascent_projects_by_its_bisection_almost_as_well(peers, classifier):
    model, x, y = classifier
    fine, coarse = (peers.published_ascent(model, x, y, 0.4, 2.0, True, gap=gap)["rise"] for gap in (1e-12, 1e-5))
    assert coarse == pytest.approx(fine, rel=1e-3)


def test_exact_trace_is_that_of_the_dense_hessian(peers, classifier):
    model, x, y = classifier
    dense = hessian(mean_loss(model, cross_entropy, [(x, y)]), flat_weights(model))
    assert peers.exact_trace(model, x) == pytest.approx(trace(dense), rel=1e-10)


@pytest.mark.skipif(not all(map(find_spec, PEERS)), reason="the peers are not installed")
def test_benchmark_of_measures_runs(tmp_path):
    out = tmp_path / "table.md"
    command = [sys.executable, str(FOLDER / "measures.py"), "--quick", "--net", "mlp", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert text.count("\n| steppe |") == 8  # three of curvature, four balls, one of rows
    assert all(peer in text for peer in ("PyHessian as shipped", "curvlinops, eigsh", "published procedure", "vmap"))
    bars = [line for line in text.split("### Bars")[1].splitlines() if "largest error of steppe" in line]
    assert len(bars) == 4
    assert all(line.endswith("| met |") for line in bars), bars
