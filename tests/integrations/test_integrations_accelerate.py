"""passes() and step(closure) of a prepared optimizer, against a loop written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import steppe

accelerate = pytest.importorskip("accelerate")

from steppe.integrations.accelerate import micro_batches, passes  # noqa: E402

RHO, LR, MOMENTUM, GAMMA, STEPS = 0.2, 0.3, 0.9, 0.8, 4
Batch = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    """Accelerate keeps its state per process."""
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def data(micro: int) -> list[list[Batch]]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(STEPS, micro, 8, 5, generator=g, dtype=torch.float64)
    y = torch.randint(3, (STEPS, micro, 8), generator=g)
    return [list(zip(a, b, strict=True)) for a, b in zip(x, y, strict=True)]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 3)).double()


def sam_gradient(net: nn.Module, batches: list[Batch], micro: int) -> None:
    """Leaves the gradient of SAM, as in Foret et al. 2021, in `p.grad`."""
    params = list(net.parameters())

    def gradient() -> list[Tensor]:
        loss = torch.stack([cross_entropy(net(x), y) / micro for x, y in batches]).sum()
        return list(torch.autograd.grad(loss, params))

    first = gradient()
    norm = torch.cat([g.flatten() for g in first]).norm()
    before, buffers = [p.detach().clone() for p in params], [b.clone() for b in net.buffers()]
    with torch.no_grad():
        for p, g in zip(params, first, strict=True):
            p += RHO * g / norm
    second = gradient()
    with torch.no_grad():
        for kept, moved in zip([*before, *buffers], [*params, *net.buffers()], strict=True):
            moved.copy_(kept)
    for p, g in zip(params, second, strict=True):
        p.grad = g


def by_hand(net: nn.Module, micro: int, clip: float) -> None:
    base = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    for number, batches in enumerate(data(micro)):
        base.param_groups[0]["lr"] = LR * GAMMA**number
        sam_gradient(net, batches, micro)
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), clip)
        base.step()


def distance(a: nn.Module, b: nn.Module) -> float:
    tensors = zip(a.state_dict().values(), b.state_dict().values(), strict=True)
    return max(float((p.double() - q.double()).abs().max()) for p, q in tensors)


def prepared(scaler: Any = None, own_scaler: bool = False, **options: Any) -> tuple[Any, Any, Any, Any]:
    accelerator = accelerate.Accelerator(cpu=True, **options)
    accelerator.scaler = scaler
    net = network()
    base = torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM)
    opt = steppe.sam(base, rho=RHO, scaler=scaler if own_scaler else None, model=net)
    schedule = torch.optim.lr_scheduler.ExponentialLR(opt, GAMMA)
    return accelerator, *accelerator.prepare(net, opt, schedule)


def scaler() -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=2.0**8)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize(("micro", "clip"), [(1, 0.0), (3, 0.1)])
def test_passes_equal_a_loop_written_by_hand(micro: int, clip: float, scaled: bool) -> None:
    expected = network()
    by_hand(expected, micro, clip)
    accelerator, model, opt, schedule = prepared(scaler() if scaled else None)
    for batches in data(micro):
        for pass_ in passes(opt, model=model):
            for x, y in micro_batches(batches, model):
                pass_.backward(cross_entropy(model(x), y) / micro)
        if clip:
            accelerator.clip_grad_norm_(model.parameters(), clip)
        opt.step()
        schedule.step()
        opt.zero_grad()
    assert distance(expected, network()) > 0.01
    assert distance(expected, accelerator.unwrap_model(model)) < 1e-12


@pytest.mark.parametrize("scaled", [False, True])
def test_step_with_a_closure_equals_a_loop_written_by_hand(scaled: bool) -> None:
    """With a scaler that the optimizer has too."""
    expected = network()
    by_hand(expected, 1, 0.0)
    accelerator, model, opt, schedule = prepared(scaler() if scaled else None, own_scaler=True)
    for [(x, y)] in data(1):

        def closure() -> Tensor:
            opt.zero_grad()
            loss = cross_entropy(model(x), y)
            accelerator.backward(loss)
            return loss

        opt.step(closure)
        schedule.step()
    assert distance(expected, accelerator.unwrap_model(model)) < 1e-12


def test_a_saved_state_resumes_bitwise(tmp_path: Path) -> None:
    def train(opt: Any, model: Any, schedule: Any, steps: slice) -> None:
        for [(x, y)] in data(1)[steps]:
            for pass_ in passes(opt, model=model):
                pass_.backward(cross_entropy(model(x), y))
            opt.step()
            schedule.step()

    accelerator, model, opt, schedule = prepared()
    train(opt, model, schedule, slice(2))
    accelerator.save_state(str(tmp_path), safe_serialization=False)
    train(opt, model, schedule, slice(2, None))
    again, resumed, opt, schedule = prepared()
    again.load_state(str(tmp_path))
    train(opt, resumed, schedule, slice(2, None))
    assert distance(model, network()) > 0.01
    assert distance(model, resumed) == 0


def test_groups_state_and_defaults_can_be_set() -> None:
    _, model, opt, _ = prepared()
    base = opt.optimizer.base
    opt.param_groups = [{**base.param_groups[0], "lr": 0.5}]
    opt.defaults = {**base.defaults, "lr": 0.5}
    opt.state = base.state
    assert base.param_groups[0]["lr"] == base.defaults["lr"] == 0.5
    opt.param_groups = [{"params": list(model.parameters()), **base.defaults}]  # without the method's options
    [(x, y)] = data(1)[0]
    before = [p.detach().clone() for p in model.parameters()]
    for pass_ in passes(opt):
        pass_.backward(cross_entropy(model(x), y))
    opt.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_modes_reach_a_base_that_has_them() -> None:
    class Modes(torch.optim.SGD):
        mode = "train"

        def train(self) -> None:
            self.mode = "train"

        def eval(self) -> None:
            self.mode = "eval"

    base = Modes(network().parameters(), lr=0.1)
    opt = accelerate.Accelerator(cpu=True).prepare(steppe.sam(base))
    opt.eval()
    assert base.mode == "eval"
    opt.train()
    assert base.mode == "train"
    plain = steppe.sam(torch.optim.SGD(network().parameters(), lr=0.1))
    plain.eval()  # a base without modes
    plain.train()


@pytest.mark.parametrize("name", ["ScheduleFreeSGD", "ScheduleFreeWrapper"])
def test_schedule_free_bases_equal_a_loop_written_by_hand(name: str) -> None:
    """Training weights interpolate, `eval()` shows the average, and `train()` goes back."""
    library = pytest.importorskip("pytorch_optimizer")

    def base(net: nn.Module) -> Any:
        if name == "ScheduleFreeSGD":
            return library.ScheduleFreeSGD(net.parameters(), lr=LR)
        return library.ScheduleFreeWrapper(torch.optim.SGD(net.parameters(), lr=LR), momentum=MOMENTUM)

    expected, net = network(), network()
    plain = base(expected)
    accelerator = accelerate.Accelerator(cpu=True)
    model, opt = accelerator.prepare(net, steppe.sam(base(net), rho=RHO))
    for [(x, y)] in data(1):
        plain.train()
        opt.train()
        sam_gradient(expected, [(x, y)], 1)
        plain.step()
        for pass_ in passes(opt, model=model):
            pass_.backward(cross_entropy(model(x), y))
        opt.step()
        plain.eval()
        opt.eval()
        assert distance(expected, net) < 1e-12
    assert distance(expected, network()) > 0.01


def test_what_does_not_fit_is_one_error() -> None:
    accelerator, model, opt, _ = prepared(gradient_accumulation_steps=2)
    start = network()
    [(x, y)] = data(1)[0]

    def closure() -> Tensor:
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        return loss

    with pytest.raises(RuntimeError, match=r"gradient_accumulation_steps=2\) skips step\(\) and zero_grad\(\)"):
        passes(opt)
    with pytest.raises(RuntimeError, match=r"gradient_accumulation_steps=2\) skips step\(\) and zero_grad\(\)"):
        opt.step(closure)
    assert distance(start, model) == 0
    opt.optimizer.step(closure)  # not by Accelerate: a plain step
    assert distance(start, model) > 0
    with pytest.raises(TypeError, match=r"passes takes the optimizer that accelerator.prepare returns, not SGD"):
        passes(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="the optimizer is AcceleratedOptimizer, not a SharpnessAware"):
        accelerate.state.GradientState._reset_state()
        passes(accelerate.Accelerator(cpu=True).prepare(torch.optim.SGD(model.parameters(), lr=0.1)))


def test_the_documented_loop_accumulates() -> None:
    """Four micro-batches of a prepared loader, two per step, and one that remains."""
    rows = [pair for batches in data(1) for pair in batches] + data(2)[0][:1]
    expected, net = network(), network()
    base = torch.optim.SGD(expected.parameters(), lr=LR, momentum=MOMENTUM)
    for i in range(0, len(rows), 2):
        sam_gradient(expected, rows[i : i + 2], len(rows[i : i + 2]))
        base.step()
    accelerator = accelerate.Accelerator(cpu=True)
    opt = steppe.sam(torch.optim.SGD(net.parameters(), lr=LR, momentum=MOMENTUM), rho=RHO)
    model, opt, loader = accelerator.prepare(net, opt, torch.utils.data.DataLoader(rows, batch_size=None))
    stream = iter(loader)
    while batches := list(islice(stream, 2)):
        for pass_ in passes(opt, model=model):
            for x, y in micro_batches(batches, model):
                pass_.backward(cross_entropy(model(x), y) / len(batches))
        opt.step()
        opt.zero_grad()
    assert distance(expected, network()) > 0.01
    assert distance(expected, net) < 1e-12


def test_passes_over_a_step_that_accelerate_skipped_are_an_error() -> None:
    """`accumulate` skips step() and zero_grad(): the first micro-batch would be lost without a word."""
    accelerator, model, opt, _ = prepared(gradient_accumulation_steps=2)
    [first, second], start = data(2)[0], network()

    def run(batch: Batch, **options: Any) -> None:
        with accelerator.accumulate(model):
            for pass_ in opt.optimizer.passes(**options):
                pass_.backward(cross_entropy(model(batch[0]), batch[1]) / 2)
            opt.step()
            opt.zero_grad()

    run(first)
    with pytest.raises(RuntimeError, match=r"gradient_accumulation_steps=2\) skips step\(\) and zero_grad\(\)"):
        run(second)
    opt.optimizer.zero_grad()
    assert distance(start, model) == 0
    grads = []
    for batch in (first, second):
        sam_gradient(start, [batch], 2)
        grads.append([p.grad for p in start.parameters()])
    accelerator.gradient_state._set_sync_gradients(False)
    accelerator.step = 0
    for batch in (first, second):  # SAM on each micro-batch, added up
        run(batch, accumulate=True)
    for p, before, g, h in zip(model.parameters(), network().parameters(), *grads, strict=True):
        assert torch.allclose(p, before - LR * (g + h), atol=1e-12)


def test_a_scaler_that_the_optimizer_does_not_have_is_an_error() -> None:
    """With zeros in p.grad the scaler steps without looking at the passes."""
    accelerator, model, opt, _ = prepared(scaler())
    before = [p.detach().clone() for p in model.parameters()]
    [(x, y)] = data(1)[0]

    def closure() -> Tensor:
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        return loss

    closure()
    opt.zero_grad(set_to_none=False)
    with pytest.raises(RuntimeError, match="do not have the same scaler"):
        opt.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_scaler_that_the_accelerator_does_not_have_is_an_error() -> None:
    """The losses are not scaled, and the optimizer would unscale their gradients."""
    accelerator = accelerate.Accelerator(cpu=True)
    net = network()
    engine = steppe.sam(torch.optim.SGD(net.parameters(), lr=LR), scaler=scaler(), model=net)
    model, opt = accelerator.prepare(net, engine)
    [(x, y)] = data(1)[0]

    def closure() -> Tensor:
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        return loss

    with pytest.raises(RuntimeError, match="do not have the same scaler"):
        opt.step(closure)
    with pytest.raises(ValueError, match="has a scaler of its own"):
        passes(opt)
    other = accelerator.prepare(steppe.sam(torch.optim.SGD(net.parameters(), lr=LR)))
    with pytest.raises(RuntimeError, match="a pass ended without a loss"):
        for _ in passes(other, model=model):
            accelerator.backward(cross_entropy(model(x), y))  # which the pass does not see
    assert distance(network(), model) == 0


def test_bf16_autocast_sees_the_perturbed_weights() -> None:
    class Cast(nn.Module):
        """Autocast around the forward pass, with outputs in float32, as Accelerate has it."""

        def __init__(self, net: nn.Module) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return self.net(x.float()).float()  # type: ignore[no-any-return]

    expected, plain, net = (network().float() for _ in range(3))
    accelerator = accelerate.Accelerator(cpu=True, mixed_precision="bf16")
    base, other = (torch.optim.SGD(n.parameters(), lr=LR) for n in (expected, plain))
    model, opt = accelerator.prepare(net, steppe.sam(torch.optim.SGD(net.parameters(), lr=LR), rho=RHO))
    for [(x, y)] in data(1):
        sam_gradient(Cast(expected), [(x, y)], 1)
        base.step()
        sam_gradient(plain, [(x.float(), y)], 1)
        other.step()
        for pass_ in passes(opt, model=model):
            pass_.backward(cross_entropy(model(x.float()), y))
        opt.step()
    assert distance(expected, plain) > 1e-4
    assert distance(expected, net) < 1e-6


def test_an_overflow_in_the_second_pass_skips_the_step() -> None:
    expected = network()
    base = torch.optim.SGD(expected.parameters(), lr=LR, momentum=MOMENTUM)
    accelerator, model, opt, _ = prepared(scaler())
    for number, batches in enumerate(data(1)):
        [(x, y)] = batches
        if number != 1:
            sam_gradient(expected, batches, 1)
            base.step()
        for i, pass_ in enumerate(passes(opt, model=model)):
            pass_.backward(cross_entropy(model(x), y) * (float("inf") if (number, i) == (1, 1) else 1.0))
        opt.step()
        assert opt.step_was_skipped == (number == 1)
    assert distance(expected, accelerator.unwrap_model(model)) < 1e-12
    assert opt.scaler.get_scale() == 2.0**7
