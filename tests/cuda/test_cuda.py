"""On a GPU: steps wait for it once at most, several devices share one step, and results are those of the CPU."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from host_syncs import host_syncs
from torch import nn

import steppe
from steppe.core.vector import Space

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DRAWN = ["trace-sam", "frob-sam", "det-sam", "rsam", "ssam-d"]  # CUDA's generators are not the CPU's
WHOLE_BATCH = ["none", "sam", "asam", "sam-on", "gsam", "looksam", "msam", *DRAWN]
PARTS = ["agnostic-sam", "agnostic-sam-simple", "sharpbalance", "ssam-f", "esam", "m-sam"]


def problem(device: str, dtype: torch.dtype = torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 4))
    x, y = torch.randn(32, 8), torch.randint(0, 4, (32,))
    return model.to(device, dtype), x.to(device, dtype), y.to(device)


def closure_for(model, x, y):
    def closure(pass_):
        a, b = pass_.rows(x, y)
        losses = nn.functional.cross_entropy(model(a), b, reduction="none")
        pass_.backward(losses)
        return losses.mean().detach()

    return closure


def trained(name: str, device: str, steps: int = 4, dtype: torch.dtype = torch.float64, **options):
    model, x, y = problem(device, dtype)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3)
    opt = steppe.build(name, base, model=model, **({"samples": 4} if name == "ssam-f" else {}), **options)
    for _ in range(steps):
        opt.step(closure_for(model, x, y), mask=torch.arange(32) % 3 == 0)
    return [p.detach().cpu() for p in model.parameters()]


@pytest.mark.parametrize("name", [n for n in [*WHOLE_BATCH, *PARTS, "sa-sam", "sa-sgd"] if n not in DRAWN])
def test_a_gpu_takes_the_step_that_a_cpu_takes(name):
    for a, b in zip(trained(name, "cuda"), trained(name, "cpu"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", DRAWN)
def test_draws_on_a_gpu_repeat(name):
    for a, b in zip(trained(name, "cuda"), trained(name, "cuda"), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("says", ["raise", None])
@pytest.mark.parametrize("name", [*WHOLE_BATCH, "agnostic-sam", "m-sam", "esam"])
def test_a_step_waits_for_the_gpu_once_to_look_and_never_otherwise(name, says, dtype):
    model, x, y = problem("cuda")
    model, x = model.to(dtype), x.to(dtype)
    base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    opt = steppe.build(name, base, model=model, on_nonfinite=says, record=True)
    closure = closure_for(model, x, y)
    for _ in range(2):
        opt.step(closure)
    with host_syncs() as seen:
        for _ in range(3):
            opt.step(closure)
    assert len(seen) == (3 if says else 0), seen
    assert opt.last.read()["grad_norm"] > 0


class TwoDevices(nn.Module):
    """Half on the GPU, half on the CPU."""

    def __init__(self, far: str):
        super().__init__()
        torch.manual_seed(0)
        self.far = far
        self.a = nn.Linear(8, 16).double().to(far)
        self.b = nn.Linear(16, 4).double()

    def forward(self, x):
        return self.b(torch.tanh(self.a(x.to(self.far))).to("cpu"))


@pytest.mark.parametrize("name", ["sam", "asam", "gsam", "looksam", "agnostic-sam", "sa-sam"])
def test_a_model_on_two_devices_takes_one_joint_step(name):
    def run(far: str):
        model = TwoDevices(far)
        torch.manual_seed(1)
        x, y = torch.randn(32, 8, dtype=torch.float64), torch.randint(0, 4, (32,))
        opt = steppe.build(name, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
        for _ in range(4):
            opt.step(closure_for(model, x, y))
        return [p.detach().cpu() for p in model.parameters()]

    for a, b in zip(run("cuda"), run("cpu"), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["sam", "frob-sam", "looksam", "sa-sam"])
def test_float16_autocast_with_a_scaler_trains_and_survives_overflow(name):
    model, x, y = problem("cuda")
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0**20)  # large enough to overflow at first
    opt = steppe.build(name, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model, scaler=scaler)
    losses = []
    for _ in range(60):
        for i, pass_ in enumerate(opt.passes()):
            with torch.autocast("cuda", torch.float16):
                loss = nn.functional.cross_entropy(model(x), y)
            pass_.backward(loss)
            if i == 0:  # later passes of a step that overflows are at weights that are not finite
                losses.append(loss.detach())
        scaler.step(opt)
        scaler.update()
    assert scaler.get_scale() < 2.0**20
    assert losses[-1] < 0.8 * losses[0]
    assert all(p.isfinite().all() for p in model.parameters())


def test_dropout_masks_are_the_same_in_all_passes():
    model = nn.Sequential(nn.Linear(8, 64), nn.Dropout(0.5), nn.Linear(64, 4)).cuda()
    seen = []
    model[1].register_forward_hook(lambda m, i, o: seen.append((o == 0).clone()))
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.0), model=model)
    x, y = torch.randn(32, 8, device="cuda"), torch.randint(0, 4, (32,), device="cuda")
    for _ in range(2):
        opt.step(closure_for(model, x, y))
    assert torch.equal(seen[0] & seen[1], seen[0])
    assert (seen[0] != seen[2]).any()


def test_fused_base_optimizers_work():
    model, x, y = problem("cuda")
    opt = steppe.sam(torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True), model=model)
    first = opt.step(closure_for(model, x, y))
    for _ in range(50):
        last = opt.step(closure_for(model, x, y))
    assert last < first


def convolutional():
    """Weights in channels_last order, statistics, and a buffer that lies in that order too and never moves."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Flatten(), nn.Linear(5 * 36, 4)
    model = nn.Sequential(*layers).to("cuda", memory_format=torch.channels_last)
    model.register_buffer("kernel", torch.arange(48.0, device="cuda").view(2, 3, 2, 4))
    model.kernel = model.kernel.to(memory_format=torch.channels_last)
    x = torch.randn(16, 3, 8, 8, device="cuda").to(memory_format=torch.channels_last)
    return model, x, torch.randint(0, 4, (16,), device="cuda")


def test_norms_neither_overflow_nor_vanish():
    for size in (1e-25, 1.0, 1e20):
        tensors = [torch.full((n,), size, device="cuda") for n in (7, 30000)]
        assert float(Space(tensors).weights().norm()) == pytest.approx(size * math.sqrt(30007), rel=1e-5)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("bad", [0, 1])
def test_a_step_that_fails_or_is_refused_leaves_no_trace(bad, steps):
    model, x, y = convolutional()
    opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model=model)
    for _ in range(steps):
        opt.step(closure_for(model, x, y))
    before = copy.deepcopy(model.state_dict())
    for factor in (math.nan, None):
        with pytest.raises(FloatingPointError if factor else ZeroDivisionError):
            for i, pass_ in enumerate(opt.passes()):
                loss = nn.functional.cross_entropy(model(x), y)
                pass_.backward(loss * (factor if i == bad else 1) if factor else loss * (1 // (bad - i)))
            opt.step()
        assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
