"""The GPU benchmarks run, and what they compute beside times is what they say."""

import importlib
import random
from itertools import islice
from math import comb
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.curvature import hessian, mean_loss, trace
from problems import flat_weights
from tiers import slow_unless
from torch import nn
from torch.nn.functional import cross_entropy

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def part(monkeypatch):
    """Imports a module of the benchmarks, and leaves random numbers as they were."""
    monkeypatch.syspath_prepend(str(FOLDER))
    before = random.getstate()
    with torch.random.fork_rng():
        yield importlib.import_module
    random.setstate(before)


@pytest.fixture
def classifier():
    """A float64 network of ReLUs and BatchNorm in eval mode, and two batches of one size."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    model = model.double().eval()
    return model, [(torch.randn(20, 4, dtype=torch.float64), torch.randint(0, 3, (20,))) for _ in range(2)]


SHOWN = {
    "steps": (
        "per-parameter loop (reimplemented)",
        "| steppe sam, captured (eager: the weights are on cpu",
        "Roofline",
        "agnostic-sam | 4 | 7 + 3 + 3 + 7",
    ),
    "curvature": (
        "graph not kept",
        "| steppe, 2 directions |",
        "Products were recorded before they were timed",
        "the largest eigenvalues are",
        "| steppe, bf16 |",
        "The trace at 2 %",
        "| PyHessian's procedure (reimplemented) |",
    ),
    "kernels": ("| width | ms | kernels |",),
    "measures": ("vmap(grad)", "| steppe, Auto-PGD of 3 steps |", "published search"),
    "ensembles": ("one after the other, captured", "one after the other, eager"),
    "epochs": (
        "training loop, captured (eager:",
        "per-parameter loop (reimplemented)",
        "SGD, eager loop",
        "200 epochs",
    ),
    "sharing": (
        "width 2, method sam",
        "| processes |",
        "| threads of one process |",
        "1 at a time | 2 at a time",
        "| 2 | sam | processes | 2 of 2 |",
        "| 2 | sam | threads of one process | 2 of 2 |",
    ),
}


def passes_are_those_that_methods_take(text):
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    sizes = {cells[0]: cells[2] for cells in lines if len(cells) == 6}
    assert sizes["none"] == "10"
    assert sizes["sam"] == sizes["asam"] == sizes["gsam"] == "10 + 10"
    assert sizes["frob-sam"] == "10 + 10 + 10"
    assert sizes["agnostic-sam"] == "7 + 3 + 3 + 7"
    flops = {cells[1]: float(cells[2]) for cells in lines if cells[0] == "2, 10"}
    single = flops["SGD, eager"]
    assert flops["steppe sam, captured"] == flops["SAM, per-parameter loop (reimplemented)"]
    assert flops["steppe sam, captured"] == pytest.approx(2 * single, rel=1e-3)
    assert flops["steppe frob-sam, captured"] == pytest.approx(3 * single, rel=1e-3)
    assert [cells[0] for cells in lines if cells[0].startswith("captured agnostic-sam /")] == [
        "captured agnostic-sam / 4 captured passes on the whole batch, width 2, batch 10",
        "captured agnostic-sam / its passes, each captured at its own size, width 2, batch 10",
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="what is shown is what a CPU gives")
@pytest.mark.parametrize("theme", slow_unless("steps".__eq__, SHOWN))
def test_every_theme_runs_and_writes_its_page(part, theme, tmp_path, capsys):
    assert part("gpu").main([theme, "--quick", "--out", str(tmp_path)]) == 0
    (page,) = tmp_path.iterdir()
    text = page.read_text()
    assert page.name.startswith(f"{theme}_cpu_20")
    assert text.startswith(f"# {theme.capitalize()} on a GPU\n")
    assert torch.__version__ in text
    assert [shown for shown in SHOWN[theme] if shown not in text] == []
    assert text in capsys.readouterr().out
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 4
    columns = [line.count("|") for line in rows]  # every table's own number, below its head
    heads = [i for i, line in enumerate(rows) if line.startswith("|---")]
    for start, end in zip(heads, [*(h - 1 for h in heads[1:]), len(rows)], strict=True):
        assert set(columns[start - 1 : end]) == {columns[start]}
    if theme == "steps":
        passes_are_those_that_methods_take(text)


def test_a_theme_that_fails_does_not_stop_the_others(part, tmp_path, capsys, monkeypatch):
    def fail(settings):
        raise OSError("planted")

    monkeypatch.setattr(part("gpu_training"), "epochs", fail)
    monkeypatch.setattr(part("gpu_training"), "QUICK", {"mlp": ("mlp", {"depth": 1, "width": 4})})
    assert part("gpu").main(["epochs", "ensembles", "--quick", "--out", str(tmp_path)]) == 1
    assert [file.name.split("_")[0] for file in tmp_path.iterdir()] == ["ensembles"]
    assert "OSError: planted" in capsys.readouterr().err


def test_a_run_without_a_gpu_is_refused_unless_it_is_quick(part, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for arguments, said in (([], "--quick"), (["step", "--quick"], "no theme 'step'")):
        with pytest.raises(SystemExit):
            part("gpu").main(arguments)
        assert said in capsys.readouterr().err


def test_what_was_said_is_in_the_file_before_the_theme_ends(part, tmp_path, capsys):
    timing = part("gpu_timing")
    page = timing.Page("steps", "About.", timing.Settings(quick=True, device="cpu", out=tmp_path / "pages"))
    page.table("One", ("a",), [(1,)])
    page.bar("speed", "at least 2", "3", True)
    page.table("Two", ("a",), [(2,)])
    text = page.file.read_text()
    assert text.index("### One") < text.index("### Two") < text.index("| speed | at least 2 | 3 | met |")
    assert "was interrupted" in text
    page.end()
    text = page.file.read_text()
    assert text.count("### Bars") == 1
    assert "was interrupted" not in text
    assert text in capsys.readouterr().out
    assert [*(tmp_path / "pages").iterdir()] == [page.file]


def test_steps_are_compared_with_the_mean_of_their_neighbours(part):
    told = []
    clock = iter([10.0, 15.0, 20.0, 15.0, 40.0, 4.0, 3.0, 2.0, 6.0, 10.0])
    timing = part("gpu_timing")
    one, two = timing.Paired(), timing.Paired()

    def time(work):
        told.append(work())
        return next(clock)

    for _ in range(2):
        timing.between([(one, lambda: "one"), (two, lambda: "two")], lambda: "ideal", time)
    assert told == ["ideal", "one", "ideal", "two", "ideal"] * 2
    assert (one.own, one.ideal) == ([15.0, 3.0], [15.0, 3.0])
    assert (two.own, two.ideal) == ([15.0, 6.0], [30.0, 6.0])
    assert two.ratios == [0.5, 1.0]


def test_ratios_are_of_the_same_round_or_else_of_the_steadier_ones_median(part):
    ratios = part("gpu_timing").ratios
    assert ratios([2.0, 9.0], [1.0, 3.0]) == [2.0, 3.0]
    assert ratios([2.0, 8.0, 6.0], [1.0, 3.0]) == [1.0, 4.0, 3.0]
    assert ratios([1.0, 3.0], [2.0, 8.0, 4.0]) == [1.0, 0.25, 0.5]


@given(st.integers(1, 60))
def test_the_interval_of_a_median_is_the_narrowest_that_is_sure(n):
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        low, high = importlib.import_module("gpu_timing").interval([float(i) for i in range(n, 0, -1)])
    assert low + high == n + 1  # as far from either end

    def sure(k):  # the chance that the median lies between the k-th smallest and the k-th largest
        return 1 - 2 * sum(comb(n, i) for i in range(k)) / 2**n

    assert low == 1 or sure(int(low)) >= 0.95
    assert low >= (n + 1) // 2 or sure(int(low) + 1) < 0.95


def test_an_interval_from_few_values_is_all_of_them(part):
    assert part("gpu_timing").interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_floors_of_a_roof(part):
    timing = part("gpu_timing")
    # 2 TFLOP at 1000 TFLOP/s are 2 ms; 12 GB at 4000 GB/s are 3 ms
    assert timing.Load(2e12, 12e9).floors(timing.Ceiling(1000.0, 4000.0)) == pytest.approx((2.0, 3.0))


def test_bytes_of_a_step(part):
    steps = part("gpu_steps")
    # SGD: weights read twice, gradient written; saved tensors written and read; five times the weights by momentum
    assert steps.least_bytes(100, 1000, passes=1, shares=1) == 300 + 2000 + 500
    assert steps.least_bytes(100, 1000, passes=4, shares=2.0) == 1200 + 4000 + 500


def test_what_cannot_be_compiled_is_said_and_left_out(part, monkeypatch, capsys):
    steps, timing = part("gpu_steps"), part("gpu_timing")
    settings = timing.Settings(quick=True, compiled=True, device="cpu")
    page = timing.Page("steps", "", settings)

    def built(settings, make, count=True):
        if not count:
            raise RuntimeError("backend raised:\nno compiler")
        return steps.Variant(lambda: None, (7, 3, 3, 7), 0, 0, 0)

    monkeypatch.setattr(steps, "build_variant", built)
    found = steps.build_variants(page, settings, 2, 10)
    assert steps.single_pass(7) in found
    assert not [name for name in found if "compiled" in name]
    assert "none could not be compiled: RuntimeError: backend raised: no compiler" in capsys.readouterr().out


def test_saved_bytes_are_counted_once_and_without_weights(part, monkeypatch):
    steps, settings = part("gpu_steps"), part("gpu_timing").Settings(quick=True, device="cpu")
    model = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 4, bias=False))
    monkeypatch.setattr(steps, "fresh", lambda settings, width: (model, None))
    monkeypatch.setattr(steps, "images", lambda settings, rows: (torch.randn(rows, 6), None))
    monkeypatch.setattr(steps, "loss_fn", lambda model, x, y: model(x).square().sum())
    weights, saved = steps.saved_bytes(settings, 0, 3)
    # the input; tanh's output, which its own backward and the next layer's both want; the output, for the square
    assert (weights, saved) == (4 * (30 + 20), 4 * (3 * 6 + 3 * 5 + 3 * 4))


def test_sam_as_copied_is_sam(part):
    import steppe

    torch.manual_seed(0)
    models = [nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    x, y = torch.randn(5, 3), torch.randint(0, 2, (5,))
    bases = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in models]
    copied, ours = part("gpu_peers").Loop(models[0].parameters(), bases[0]), steppe.build("sam", bases[1], rho=0.05)

    def closure():
        bases[1].zero_grad()
        loss = cross_entropy(models[1](x), y)
        loss.backward()
        return loss

    for _ in range(3):
        copied.step(lambda: cross_entropy(models[0](x), y))
        ours.step(closure)
    torch.testing.assert_close(models[0].weight, models[1].weight)


@pytest.mark.parametrize("count", [1, 2])
def test_peers_products_and_estimates_are_those_of_the_hessian(part, classifier, count):
    peers, (model, batches) = part("gpu_peers"), classifier
    batches = batches[:count]
    dense = hessian(mean_loss(model, cross_entropy, batches), flat_weights(model))
    v = [torch.randn_like(p) for p in model.parameters()]
    wanted = dense @ torch.cat([t.flatten() for t in v])
    for make in (peers.kept_graphs, peers.rebuilt_graphs, peers.pyhessian):
        found = torch.cat([t.flatten() for t in make(model, batches)(v)])
        torch.testing.assert_close(found, wanted)
    product = peers.pyhessian(model, batches)
    values = torch.linalg.eigvalsh(dense)
    largest = values[values.abs().argmax()]
    *_, last = islice(peers.power_iteration(model, product), 80)
    assert last == pytest.approx(float(largest), rel=1e-2)
    draws = np.array([*islice(peers.hutchinson(model, product), 64)])
    assert abs(draws.mean() - float(dense.trace())) < 4 * draws.std() / 8


def test_the_trace_without_probes_is_that_of_the_dense_hessian(part, classifier):
    model, batches = classifier
    net = part("gpu_networks").Trained(model, batches[0], "")
    dense = hessian(mean_loss(model, cross_entropy, batches), flat_weights(model))
    assert part("gpu_curvature").exact_trace(net, batches) == pytest.approx(trace(dense), rel=1e-8)


def test_power_iteration_stops_where_its_rule_says(part):
    stopped = part("gpu_peers").stopped
    assert stopped([1.0, 2.0, 2.1, 2.1001], 0.1) == 3
    assert stopped([1.0, 2.0, 2.1, 2.1001], 1e-3) == 4
    assert stopped([1.0, 2.0], 1e-3) is None
    assert stopped([1.0], 1.0) is None


def test_the_loosest_tolerance_that_every_run_is_right_with(part):
    loosest = part("gpu_curvature").loosest
    early = [5.0, 5.004, 9.0, 9.99, 9.9995, 9.9996]  # rests for a moment, far from the truth
    good = [9.0, 9.99, 9.995, 9.9999, 10.0, 10.0]
    assert loosest([good], 10.0, 1e-3) == (1e-3, 3)
    assert loosest([good, early, good], 10.0, 1e-3) == (3e-4, 5)
    assert loosest([[1.0, 2.0, 3.0]], 10.0, 1e-3) == (None, 3)


def test_iterations_run_until_one_tolerance_is_enough_for_all(part):
    curvature = part("gpu_curvature")
    quick = [9.0, 9.99, 9.995, 9.9999, 10.0, 10.0, 10.0]
    slow = [5.0, 5.004, 9.0, 9.99, 9.9995, 9.9996, 10.0]
    found = curvature.until_near([iter(quick), iter(slow)], 10.0, 1e-3, 7)
    assert found == [quick[:6], slow[:6]]  # the slow one rests at 9.9996, the sixth
    assert curvature.loosest(found, 10.0, 1e-3) == curvature.loosest([quick, slow], 10.0, 1e-3)
    assert curvature.until_near([iter(quick)], 20.0, 1e-3, 5) == [quick[:5]]


@pytest.mark.parametrize("layout", ["binary", "python"])
def test_some_files_of_cifar10_are_enough_and_pixels_are_standard(part, tmp_path, monkeypatch, layout):
    from data_files import publish, write_cifar_binary, write_cifar_python

    write = write_cifar_binary if layout == "binary" else write_cifar_python
    held = write(tmp_path / "all", "cifar10", rows=9)
    publish(monkeypatch, "cifar10", tmp_path)
    end = ".bin" if layout == "binary" else ""
    folder = tmp_path / ("cifar-10-batches-bin" if layout == "binary" else "cifar-10-batches-py")
    folder.mkdir()
    for name in ("data_batch_2", "data_batch_4"):
        (tmp_path / "all" / f"{name}{end}").rename(folder / f"{name}{end}")
    networks = part("gpu_networks")
    for root in (tmp_path, folder):
        data = networks.cifar10(root)
        pixels = np.concatenate([held["data_batch_2"][0], held["data_batch_4"][0]])
        assert np.array_equal(data.inputs.reshape(18, -1).numpy(), pixels)
        assert data.targets.tolist() == [*held["data_batch_2"][1], *held["data_batch_4"][1]]
    with pytest.raises(FileNotFoundError, match=r"data_batch_1\.bin"):
        networks.cifar10(tmp_path / "nowhere")
    net = networks.trained(2, part("gpu_timing").Settings(quick=True, device="cpu", data=tmp_path))
    assert "on 18 images of CIFAR-10, cropped and flipped, standardised" in net.about
    inputs = net.rows[0].double()
    torch.testing.assert_close(inputs.mean((0, 2, 3)), torch.zeros(3).double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(inputs.std((0, 2, 3), correction=0), torch.ones(3).double(), atol=1e-5, rtol=0)


def test_missing_products_are_counted_and_the_graph_is_not_multiplied(part):
    assert part("gpu_curvature").extrapolated(built=2.0, probing=3.0, ran=6, most=60) == 32.0
