"""Benchmarks that are no timings compute what they say: peers of measures, the same numbers, the profile of a step."""

import json
import subprocess
import sys
from copy import deepcopy
from importlib import import_module
from importlib.util import find_spec
from math import inf, nan
from pathlib import Path

import pytest
import torch
from oracles.curvature import hessian, mean_loss, trace
from oracles.sharpness import published_procedure
from problems import flat_weights
from torch import nn
from torch.nn.functional import cross_entropy

import steppe

FOLDER = Path(__file__).parents[2] / "benchmarks"
PEERS = ("pyhessian", "curvlinops", "sklearn")


@pytest.fixture
def peers(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import measures_peers

    return measures_peers


@pytest.fixture
def same(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("same_numbers")


@pytest.fixture
def profile(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("step_profile")


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


@pytest.fixture
def traces(monkeypatch):
    pytest.importorskip("sklearn")
    pytest.importorskip("curvlinops")
    monkeypatch.syspath_prepend(str(FOLDER))
    return import_module("traces")


def test_the_variance_of_signs_is_that_over_all_of_them(traces):
    generator = torch.Generator().manual_seed(0)
    h, q = (torch.randn(10, n, generator=generator, dtype=torch.float64) for n in (10, 3))
    h, q = h + h.T, torch.linalg.qr(q).Q
    z = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 10)
    for space in (None, q):
        rest = torch.eye(10, dtype=torch.float64) - (0 if space is None else space @ space.T)
        draws = ((z @ rest @ h @ rest) * z).sum(1)
        assert traces.variance_of_signs(h, space) == pytest.approx(float(draws.var(correction=0)))
    mean = (rest @ h @ rest).trace() / 7
    assert mean.abs() > 0.01
    centred = ((z @ (rest @ h @ rest - mean * rest)) * z).sum(1)
    assert traces.variance_of_signs(h, q, centred=True) == pytest.approx(float(centred.var(correction=0)))


def test_xtrace_gets_more_seeds_while_its_error_is_near_the_bar(traces, monkeypatch):
    errors = iter(torch.randn(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    drawn = []
    monkeypatch.setattr(traces, "xtrace", lambda *_: drawn.append(1) or float(next(errors)))
    for bar, seeds in ((100.0, 50), (1.0, 400), (1.3, 200), (0.001, 50)):
        drawn.clear()
        error, doubt = traces.xtrace_error(torch.zeros(2), 30, torch.Generator(), 400, bar)
        assert abs(error - 1) < 4 * doubt
        assert len(drawn) == seeds


def test_xtrace_leaves_every_vector_out_once(traces):
    """Against the definition: a space from the images of the others, and the vector's own part on its complement."""
    random = torch.Generator().manual_seed(1)
    h = torch.randn(30, 30, generator=random, dtype=torch.float64)
    h, n = h + h.T, 4
    w = torch.randn(30, n, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    values = []
    for i in range(n):
        q = torch.linalg.qr((h @ w)[:, [j for j in range(n) if j != i]]).Q
        z = w[:, i] - q @ (q.T @ w[:, i])
        z = z * ((30 - n + 1) ** 0.5 / z.norm())
        values.append(float((q.T @ h @ q).trace() + z @ h @ z))
    found = traces.xtrace(h, 2 * n, torch.Generator().manual_seed(2))
    assert found == pytest.approx(sum(values) / n)


def test_evaluations_are_timed_in_every_way(monkeypatch, tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("curvlinops")
    monkeypatch.syspath_prepend(str(FOLDER))
    evaluations = import_module("evaluations")
    evaluations.main(["--rounds", "2", "--calls", "2", "--out", str(tmp_path / "page.md")])
    page = (tmp_path / "page.md").read_text()
    assert page.count("| MLP") == len(evaluations.NETS) + len(evaluations.BARS)


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, PEERS)), reason="the peers are not installed")
def test_benchmark_of_measures_runs(tmp_path):
    out = tmp_path / "table.md"
    command = [sys.executable, str(FOLDER / "measures.py"), "--quick", "--net", "mlp", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    text = out.read_text()
    assert text.count("\n| steppe |") == 8  # three of curvature, four balls, one of rows
    assert all(peer in text for peer in ("PyHessian with its defaults", "curvlinops, eigsh", "published", "vmap"))
    bars = [line for line in text.split("### Bars")[1].splitlines() if "largest error of steppe" in line]
    assert len(bars) == 4
    assert all(line.endswith("| met |") for line in bars), bars


@pytest.mark.parametrize(
    ("group", "other", "fine"),
    [
        ("a, float64", {"x": [1.0, 2.0, nan], "y": "sam"}, True),
        ("a, float64", {"x": [1.0, 2.0 + 1e-12, nan], "y": "sam"}, True),
        ("a, float64", {"x": [1.0, 2.0 + 1e-11, nan], "y": "sam"}, False),
        ("a, float32", {"x": [1.0, 2.0 + 1e-11, nan], "y": "sam"}, True),
        ("a, float32", {"x": [1.0, 2.001, nan], "y": "sam"}, False),
        ("a, float32", {"x": [1.0, nan, nan], "y": "sam"}, False),
        ("a, float32", {"x": [1.0, inf, nan], "y": "sam"}, False),
        ("a, float32", {"x": [1.0, 2.0], "y": "sam"}, False),
        ("a, float32", {"x": [1.0, 2.0, nan], "y": "asam"}, False),
        ("a, float32", {"x": [1.0, 2.0, nan]}, False),
        ("a, float32", {"x": [1.0, 2.0, nan], "y": "sam", "z": [0.0]}, False),
    ],
)
def test_numbers_are_the_same_within_a_tolerance_and_none_is_missing(
    same, tmp_path, monkeypatch, capsys, group, other, fine
):
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    for file, numbers in zip(files, ({"x": [1.0, 2.0, nan], "y": "sam"}, other), strict=True):
        file.write_text(json.dumps({"about": {}, "numbers": {group: numbers}}))
    monkeypatch.setattr(sys, "argv", ["same_numbers.py", "compare", *map(str, files)])
    assert same.main() == (0 if fine else 1)
    assert group in capsys.readouterr().out


def test_a_negative_zero_and_a_group_of_one_file_alone_are_differences(same):
    assert same.difference([0.0], [0.0]) == 0
    assert 0 < same.difference([0.0], [-0.0]) < 1e-300
    assert not same.compare({"a, float64": {"x": [1.0]}}, {})[1]


def test_numbers_of_all_methods_repeat_and_tell_a_small_change(same):
    assert {name for _, name, _ in same.cases()} == set(steppe.METHODS)
    runs = [dict(same.trained("sam", {"rho": rho}, torch.float64, "closure", 1.0)) for rho in (0.5, 0.5, 0.5 + 1e-9)]
    once, again, other = ({"sam, float64": run} for run in runs)
    assert any("gradient" in name for name in runs[0])
    assert once == again
    assert same.compare(once, again)[1]
    assert not same.compare(once, other)[1]


def test_numbers_of_measures_are_those_of_the_dense_hessian(same):
    o = same.objectives(torch.float64)["conv"]
    found = dict(same.spectrum(o)) | dict(same.rest(o))
    dense = hessian(mean_loss(o.model.eval(), cross_entropy, o.batches), flat_weights(o.model))
    product = dense @ torch.tensor(found["gradient"], dtype=torch.float64)
    assert found["product"] == pytest.approx(product.tolist(), abs=1e-12)
    assert len(found["Fisher traces of rows, way None"]) == 27


def test_findings_keep_numbers_and_verdicts_and_leave_prose(same):
    found = {"tau": 0.5, "words": "tau is 0.5", "strong": {"verdict": "supported", "numbers": {"n": 16}}}
    kept = {"m, tau": [0.5], "m, strong, verdict": "supported", "m, strong, numbers, n": [16.0]}
    assert dict(same.numbers_in(found, "m")) == kept


@pytest.fixture
def package(tmp_path):
    """Four modules: a chain of three imports beside a shorter one, and private names of torch, of os and of its own."""
    texts = {
        "__init__.py": "",
        "top.py": "from .part import middle\nfrom . import low\ndef late():\n    from . import lazy\n",
        "part/__init__.py": "",
        "part/middle.py": "from ..low import A\nimport torch\nfrom torch.utils._pytree import tree_map\n"
        "torch._foreach_add, torch.nn.Linear, torch._C._functorch, torch._C\n",
        "low.py": "import os\nos._exit\nclass A:\n    def __init__(self):\n        self._own = 1\n"
        "def f(a, module):\n    return a._own, a._left_here, module._buffers, getattr(module, '_forward_hooks')\n",
        "lazy.py": "",
    }
    for name, text in texts.items():
        (tmp_path / "parcel" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "parcel" / name).write_text(text)
    return tmp_path / "parcel"


def test_profile_reads_import_chains_and_private_torch_names(profile, package):
    files = profile.sources(package)
    assert len(files) == 6
    assert profile.longest_chain("parcel.top", files) == ["parcel.top", "parcel.part.middle", "parcel.low"]
    assert profile.private_torch_names(files) == [
        "torch._C._functorch",
        "torch._foreach_add",
        "torch.utils._pytree.tree_map",
        "_buffers",
        "_forward_hooks",
    ]


def test_profile_of_a_step_follows_its_calls(profile):
    root = Path(steppe.__file__).parent
    files = profile.step_calls(root)
    assert (root / files[0]).samefile(sys.modules[steppe.SharpnessAware.__module__].__file__)
    assert all((root / file).is_file() for file in files)
    assert len(set(files)) <= profile.changes(files) <= len(files)
    assert profile.changes(["a", "a", "b", "a"]) == 3
