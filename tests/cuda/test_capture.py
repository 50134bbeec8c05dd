"""Captured steps are the eager ones: same weights, statistics, state and diagnostics.

On a GPU by CUDA graphs; without one by a recorder that replays the same operations in the same memory.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass

import pytest
import torch
from cpu_recorder import CpuRecorder
from host_syncs import host_syncs
from torch import nn

import steppe
from steppe import capture
from steppe.cuda.capturable import has_step_hooks
from steppe.cuda.capture import CapturedStep, step_function
from steppe.optim.base import STEP
from steppe.optim.finite import DeviceGuard

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
on_a_gpu = pytest.mark.skipif(not CUDA, reason="needs a CUDA device")

CAPTURED = [
    "none", "sam", "asam", "sam-on", "gsam", "msam", "m-sam", "trace-sam", "frob-sam", "det-sam", "rsam",
    "agnostic-sam", "agnostic-sam-simple", "sa-sam", "sa-sgd", "ssam-d",
]  # fmt: skip
READS_A_NUMBER = "adds a multiple that it reads, which waits for nothing on the CPU and cannot be captured there"
looksam = pytest.param("looksam", marks=pytest.mark.skipif(not CUDA, reason=READS_A_NUMBER))
DRAWN_RHO = {"trace-sam", "frob-sam", "det-sam", "sa-sam", "sa-sgd"}  # rho or lr are float64 in the eager arithmetic


class Net(nn.Module):
    def __init__(self, dropout: float = 0.3):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.drop, self.out = nn.Dropout(dropout), nn.Linear(8, 4)

    def forward(self, x):
        return self.out(self.drop(torch.relu(self.norm(self.conv(x))).mean((2, 3))))


def loss_fn(model, x, y):
    return nn.functional.cross_entropy(model(x), y)


def batches(n: int, rows: int = 32, seed: int = 1):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n):
        x = torch.randn(rows, 3, 8, 8, generator=generator).to(DEVICE)
        yield x, torch.randint(0, 4, (rows,), generator=generator).to(DEVICE)


def made(name: str, base=torch.optim.SGD, net=None, options=None, **engine):
    torch.manual_seed(0)
    model = (net or Net()).to(DEVICE)
    settings = {"momentum": 0.9, "weight_decay": 1e-3} if base is torch.optim.SGD else {}
    options = options if options is not None else ({"every": 4, "steps": 20} if name == "ssam-d" else {})
    inner = base(model.parameters(), lr=0.05, fused=True, **settings)
    return model, steppe.build(name, inner, model=model, **options, **engine)


def captured_by(opt, model, loss=None):
    if CUDA:
        return capture(opt, loss or loss_fn, model, next(batches(1)))

    def prepare(opt):
        for group in opt.param_groups:
            group["fused"] = True

    return CapturedStep(opt, step_function(opt, loss or loss_fn, model), model, CpuRecorder(), prepare)


def eager(model, opt, x, y):
    def closure(pass_):
        a, b = pass_.rows(x, y)
        loss = loss_fn(model, a, b)
        pass_.backward(loss)
        return loss.detach()

    return opt.step(closure)


def both(name: str, steps: int = 12, schedule=None, base=torch.optim.SGD, net=None, **engine):
    """The same steps eagerly and captured: everything that they leave."""
    ends = []
    for captured in (False, True):
        model, opt = made(name, base, copy.deepcopy(net), **engine)
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        losses = []
        for i, (x, y) in enumerate(batches(steps)):
            if schedule is not None:
                schedule(i, opt.param_groups)
            losses.append(take(x, y) if take else eager(model, opt, x, y))
        if take:
            assert take.why is None
            assert take.graphs
        state = [t for s in opt.state_dict()["state"].values() for t in s.values() if torch.is_tensor(t)]
        ends.append((torch.stack(losses), [*model.state_dict().values()], state, opt))
    return ends


def alike(ends, exactly: bool):
    (a, b) = ends
    for one, two in zip([a[0], *a[1], *a[2]], [b[0], *b[1], *b[2]], strict=True):
        if exactly:
            assert torch.equal(one, two.to(one.device))
        else:
            torch.testing.assert_close(one, two.to(one), rtol=2e-5, atol=1e-6)
    assert a[3].param_groups[0][STEP] == b[3].param_groups[0][STEP]


@pytest.fixture(autouse=True)
def deterministic():
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = False


@pytest.mark.parametrize("name", [*CAPTURED, looksam])
def test_captured_steps_are_the_eager_steps(name):
    alike(both(name), exactly=name not in DRAWN_RHO)


@pytest.mark.parametrize("base", [torch.optim.Adam, torch.optim.AdamW])
def test_adam_too(base):
    alike(both("sam", base=base), exactly=False)


@pytest.mark.parametrize("name", ["sam", looksam, "trace-sam"])
def test_schedules_of_lr_and_rho_need_no_new_graph(name):
    def schedule(i, groups):
        for g in groups:
            g["lr"], g["rho"] = 0.05 / (1 + i), 0.02 + 0.01 * i

    ends = both(name, schedule=schedule)
    alike(ends, exactly=name not in DRAWN_RHO)


def test_torchs_own_schedulers_work():
    ends = []
    for captured in (False, True):
        model, opt = made("sam")
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 10)
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        for x, y in batches(8):
            take(x, y) if take else eager(model, opt, x, y)
            scheduler.step()
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_groups_with_radii_of_their_own():
    def split(captured: bool):
        torch.manual_seed(0)
        model = Net().to(DEVICE)
        groups = [{"params": model.conv.parameters()}, {"params": [*model.norm.parameters(), *model.out.parameters()]}]
        opt = steppe.sam(torch.optim.SGD(groups, lr=0.05, momentum=0.9, fused=True), model=model)
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        for i, (x, y) in enumerate(batches(12)):
            if i == 6:  # they were one number, and are two now
                opt.param_groups[1]["rho"] = 0.2
            take(x, y) if take else eager(model, opt, x, y)
        return [p.detach().clone() for p in model.parameters()]

    for a, b in zip(split(False), split(True), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_groups_that_are_added_later():
    ends = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = Net().to(DEVICE)
        base = torch.optim.SGD([*model.conv.parameters(), *model.norm.parameters()], lr=0.05, momentum=0.9, fused=True)
        model.out.requires_grad_(False)
        opt = steppe.sam(base, model=model)
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        for i, (x, y) in enumerate(batches(14)):
            if i == 6:
                opt.add_param_group({"params": model.out.requires_grad_().parameters()})
            take(x, y) if take else eager(model, opt, x, y)
        ends.append([p.detach().clone() for p in model.parameters()])
    assert take.graphs
    for a, b in zip(*ends, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("same_noise", [True, False])
def test_dropout_is_that_of_eager_steps(same_noise):
    alike(both("sam", net=Net(0.5), same_noise=same_noise), exactly=True)


@on_a_gpu
def test_nothing_waits_for_the_gpu():
    model, opt = made("sam", record=True)
    take = captured_by(opt, model)
    given = list(batches(12))
    for x, y in given[:6]:
        take(x, y)
    with host_syncs() as seen:
        for x, y in given[6:]:
            take(x, y)
    assert not seen


def test_diagnostics_are_those_of_eager_steps():
    ends = both("asam", record=True)
    assert ends[0][3].last.read() == pytest.approx(ends[1][3].last.read(), rel=1e-6)


def test_gradients_are_left_where_people_look():
    ends = both("sam", steps=10)
    for a, b in zip(ends[0][3].param_groups[0]["params"], ends[1][3].param_groups[0]["params"], strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.parametrize(("name", "at"), [("sam", 1), ("sam", 2), ("sam", 7), ("sa-sam", 2), ("sa-sam", 7)])
def test_a_step_that_is_not_finite_leaves_no_trace(name, at):
    model, opt = made(name)
    take = captured_by(opt, model)
    given, before = list(batches(12)), None
    with pytest.raises(FloatingPointError, match=f"step {at} is not finite"):
        for i, (x, y) in enumerate(given):
            if i == at:
                before = copy.deepcopy((model.state_dict(), opt.state_dict()))
            take(x * float("nan") if i == at else x, y)
        take.settle()
    weights, state = before
    for name, t in model.state_dict().items():
        assert torch.equal(t, weights[name]), name
    after = opt.state_dict()
    for i, slots in after["state"].items():
        for slot, t in slots.items():
            assert torch.equal(t, state["state"][i][slot]), slot
    assert after["param_groups"] == state["param_groups"]
    assert opt.param_groups[0][STEP] == at
    take(*given[0])  # and it goes on
    take.settle()
    assert opt.param_groups[0][STEP] == at + 1


def test_such_steps_are_skipped_on_request():
    model, opt = made("sam", on_nonfinite="skip")
    take = captured_by(opt, model)
    for i, (x, y) in enumerate(batches(12)):
        if i == 8:
            before = [t.clone() for t in model.state_dict().values()]
        take(x * float("inf") if i == 8 else x, y)
        if i == 8:
            assert all(torch.equal(a, b) for a, b in zip(before, model.state_dict().values(), strict=True))
    assert take.skipped == 1
    assert all(p.isfinite().all() for p in model.parameters())


def test_other_shapes_get_graphs_of_their_own():
    def run(captured: bool):
        model, opt = made("sam")
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        for epoch in range(4):
            for x, y in [*batches(3, seed=epoch), *batches(1, rows=20, seed=epoch)]:
                take(x, y) if take else eager(model, opt, x, y)
        return [p.detach().clone() for p in model.parameters()], take

    a, b = run(False), run(True)
    assert all(torch.equal(p, q) for p, q in zip(a[0], b[0], strict=True))
    assert b[1].graphs == 2


def test_a_loaded_state_is_what_goes_on():
    noise = torch.cuda if CUDA else torch
    model, opt = made("sam")
    take = captured_by(opt, model)
    given = list(batches(10))
    torch.manual_seed(7)
    for x, y in given[:5]:
        take(x, y)
    saved = copy.deepcopy((model.state_dict(), opt.state_dict(), noise.get_rng_state()))
    for x, y in given[5:]:
        take(x, y)
    wanted = [p.detach().clone() for p in model.parameters()]
    model.load_state_dict(saved[0])
    opt.load_state_dict(saved[1])
    noise.set_rng_state(saved[2])
    for x, y in given[5:]:
        take(x, y)
    assert all(torch.equal(a, b) for a, b in zip(wanted, model.parameters(), strict=True))


def test_sa_sams_step_size_is_kept_as_a_number():
    model, opt = made("sa-sam")
    take = captured_by(opt, model)
    for x, y in batches(6):
        take(x, y)
    kept = opt.state_dict()["param_groups"][0]
    assert isinstance(kept["lr"], float)
    assert isinstance(kept["theta"], float)
    assert kept["lr"] != 0.05
    for x, y in batches(3):
        take(x, y)
    assert float(opt.param_groups[0]["lr"]) != kept["lr"]


def test_held_out_rows():
    ends = []
    for captured in (False, True):
        model, opt = made("agnostic-sam", options={"share": None})
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        for (x, y), (u, v) in zip(batches(8), batches(8, seed=5), strict=True):
            if take:
                take(x, y, held_out=(u, v))
                continue
            for pass_ in opt.passes():
                pass_.backward(loss_fn(model, *((u, v) if pass_.held_out else pass_.rows(x, y))))
            opt.step()
        ends.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def curious(model, x, y):
    """A loss that cannot be captured, because it reads a number."""
    loss = loss_fn(model, x, y)
    assert loss.item() >= 0
    return loss


def test_options_that_steps_set_are_numbers_after_a_failed_capture():
    model, opt = made("sa-sam")
    take = captured_by(opt, model, curious)
    with pytest.warns(UserWarning, match="not captured and run as they are"):
        for x, y in batches(4):
            take(x, y)
    kept = opt.state_dict()["param_groups"][0]
    assert isinstance(kept["lr"], float)
    assert isinstance(kept["theta"], float)


def test_what_cannot_be_captured_is_run_as_it_is_and_says_why():
    model, opt = made("sam")
    take = captured_by(opt, model, curious)
    torch.manual_seed(7)
    with pytest.warns(UserWarning, match="not captured and run as they are"):
        for x, y in batches(6):
            take(x, y)
    assert "synchronizing" in take.why
    other, its = made("sam")
    torch.manual_seed(7)
    for x, y in batches(6):
        eager(other, its, x, y)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), other.buffers(), strict=True))


@on_a_gpu
def test_methods_that_decide_on_the_host_say_so():
    model, opt = made("esam", options={"gamma": 1.0})
    with pytest.warns(UserWarning, match="ESAM decides something on the host"):
        take = capture(opt, loss_fn, model, next(batches(1)))
    for x, y in batches(4):
        take(x, y)


@pytest.mark.skipif(CUDA, reason="is about machines without one")
def test_without_a_gpu_steps_are_eager_and_say_why():
    model, opt = made("sam")
    take = capture(opt, loss_fn, model, next(batches(1)))
    assert "a CUDA graph needs all of them on one GPU" in take.why
    other, its = made("sam")
    for start in (lambda x, y: take(x, y), lambda x, y: eager(other, its, x, y)):
        torch.manual_seed(7)
        for x, y in batches(3):
            start(x, y)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_every_other_step_has_a_graph_of_its_own():
    sides = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = Net().to(DEVICE)
        base = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
        opt = steppe.SharpnessAware(base, steppe.Every(3, steppe.SAM(0.1)), model=model, record=True)
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        seen = []
        for x, y in batches(14):
            take(x, y) if take else eager(model, opt, x, y)
            seen += [p.detach().clone() for p in model.parameters()] + [p.grad.clone() for p in model.parameters()]
            seen.append(torch.tensor([*opt.last.read().values()]))
        sides.append(seen)
    for a, b in zip(*sides, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0)
    assert take.graphs == 2


def test_weights_and_statistics_in_other_memory_get_a_new_graph():
    ends = []
    for captured in (False, True):
        model, opt = made("sam")
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        for i, (x, y) in enumerate(batches(16)):
            if i == 5:
                model.norm.running_mean = model.norm.running_mean.clone()
            if i == 10:
                frozen = model.conv.requires_grad_(False).weight.clone()
            take(x, y) if take else eager(model, opt, x, y)
        assert torch.equal(model.conv.weight, frozen)
        ends.append([*model.state_dict().values()])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_what_is_heard_late_has_done_no_harm(monkeypatch):
    model, opt = made("sam")
    take = captured_by(opt, model)
    given = list(batches(12))
    for x, y in given[:6]:
        take(x, y)
    before = copy.deepcopy(model.state_dict())
    monkeypatch.setattr(DeviceGuard, "seen", 0)
    take(given[6][0] * float("nan"), given[6][1])
    for x, y in given[7:]:
        take(x, y)
    with pytest.raises(FloatingPointError, match="step 6 is not finite"):
        take.settle()
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())


def test_batches_are_tensors_and_modes_do_not_clash():
    model, opt = made("sam")
    with pytest.raises(TypeError, match="made of tensors, not str"):
        capture(opt, loss_fn, model, ("x", "y"))
    with pytest.raises(ValueError, match="makes graphs of its own"):
        capture(opt, loss_fn, model, next(batches(1)), compile="reduce-overhead")


@on_a_gpu
@pytest.mark.filterwarnings("ignore")  # of torch.compile's own parts
def test_compiled_models():
    net, ends = Net(0.0), []
    for compiled in (False, True):
        model, opt = made("sam", net=copy.deepcopy(net))
        take = capture(opt, loss_fn, model, next(batches(1)), compile=compiled)
        losses = [take(x, y) for x, y in batches(8)]
        assert take.why is None
        ends.append((torch.stack(losses), [t.float() for t in model.state_dict().values()]))
    for a, b in zip([ends[0][0], *ends[0][1]], [ends[1][0], *ends[1][1]], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@on_a_gpu
def test_batches_from_the_cpu():
    model, opt = made("sam")
    take = captured_by(opt, model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        losses = torch.stack([take(x.cpu(), y.cpu()) for x, y in batches(8)])
    assert losses.isfinite().all()


@pytest.mark.parametrize("taken", [2, 6])  # the skipped step is the warm-up, or a replay
def test_nothing_moves_after_a_refused_step_in_whatever_shape_the_next_batch_comes(taken, monkeypatch):
    """Even if nobody has heard of the refusal yet."""
    model, opt = made("sam")
    take = captured_by(opt, model)
    good = list(batches(8))
    for x, y in good[:taken]:
        take(x, y)
    before, step = copy.deepcopy(model.state_dict()), opt.param_groups[0][STEP]
    with monkeypatch.context() as patch:
        patch.setattr(DeviceGuard, "seen", 0)
        take(good[6][0] * torch.inf, good[6][1])
        with pytest.raises(FloatingPointError, match=f"step {step} is not finite"):
            take(good[7][0][:20], good[7][1][:20])
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert opt.param_groups[0][STEP] == step


@pytest.mark.parametrize("base", [torch.optim.SGD, torch.optim.AdamW])
def test_a_state_saved_without_capture_goes_on_with_it(base):
    model, opt = made("sam", base)
    for group in opt.param_groups:
        group["fused"] = None
    data = list(batches(10))
    for x, y in data[:3]:
        eager(model, opt, x, y)
    saved = copy.deepcopy((model.state_dict(), opt.state_dict()))
    other, its = made("sam", base)
    take = captured_by(its, other)
    for x, y in data[:4]:
        take(x, y)
    other.load_state_dict(saved[0])
    its.load_state_dict(saved[1])
    torch.manual_seed(7)
    for x, y in data[3:]:
        take(x, y)
    assert take.why is None
    assert take.graphs
    torch.manual_seed(7)
    for x, y in data[3:]:
        eager(model, opt, x, y)
    for (name, a), b in zip(model.named_parameters(), other.parameters(), strict=True):
        if name != "conv.bias":  # whose gradient is nothing but rounding, before a norm layer
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_layers_own_mode_is_obeyed():
    ends = []
    for captured in (False, True):
        model, opt = made("sam")
        take = captured_by(opt, model) if captured else None
        torch.manual_seed(7)
        for i, (x, y) in enumerate(batches(10)):
            model.norm.train(i != 7)
            take(x, y) if take else eager(model, opt, x, y)
        ends.append(model)
    assert all(torch.equal(a, b) for a, b in zip(ends[0].buffers(), ends[1].buffers(), strict=True))


def test_gradients_that_were_put_away_are_there_again():
    model, opt = made("sam")
    take = captured_by(opt, model)
    for x, y in batches(6):
        opt.zero_grad()
        take(x, y)
        assert all(p.grad is not None for p in model.parameters())
    assert take.graphs


@dataclass(frozen=True)
class TwoSided(steppe.Method):
    """A method that writes nothing but its plan."""

    rho: float = 0.05

    def pattern(self, step):
        return True

    def plan(self, context):
        here = yield steppe.Probe()
        up = steppe.Ball(self.rho).within(context).steepest(here.grad, context)
        top = yield steppe.Probe(at=up.clone())
        across = yield steppe.Probe(at=-up)
        return (top.grad + across.grad) / 2


@dataclass(frozen=True)
class Alternating(steppe.Method):
    """A method whose plan reads the number of the step and says nothing of patterns."""

    rho: float = 0.05

    def plan(self, context):
        here = yield steppe.Probe()
        if context.step % 2:
            return here.grad
        return (yield steppe.Probe(at=steppe.Ball(self.rho).within(context).steepest(here.grad, context))).grad


@pytest.mark.parametrize(
    ("method", "captured"),
    [(TwoSided(), True), (steppe.PerPart(steppe.AgnosticSAM(), 2), True), (Alternating(), False)],
    ids=["a plan and a pattern", "random rows of parts", "a plan that reads the step"],
)
def test_methods_of_your_own_are_captured_where_their_steps_are_alike(method, captured):
    ends = []
    for by_capture in (False, True):
        torch.manual_seed(0)
        model = Net(0.0).to(DEVICE)
        opt = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.05, fused=True), method, model=model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            take = captured_by(opt, model) if by_capture else None
            for x, y in batches(8):
                take(x, y) if take else eager(model, opt, x, y)
        ends.append(list(model.parameters()))
    assert bool(take.graphs) == captured
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


class Undescribed:
    """A method of somebody's own that says nothing of patterns."""

    slots = ()

    def options(self):
        return {}

    def plan(self, context):
        return (yield steppe.Probe()).grad


@pytest.mark.parametrize("wrap", [lambda m: m, lambda m: steppe.PerPart(m, 2), lambda m: steppe.Every(2, m)])
def test_methods_that_say_nothing_of_patterns_run_as_they_are(wrap):
    ends = []
    for captured in (False, True):
        torch.manual_seed(0)
        model = Net(0.0).to(DEVICE)
        base = torch.optim.SGD(model.parameters(), lr=0.05, fused=True)
        opt = steppe.SharpnessAware(base, wrap(Undescribed()), model=model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            take = captured_by(opt, model) if captured else None
            for x, y in batches(8):
                take(x, y) if take else eager(model, opt, x, y)
        ends.append(list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_the_hook_of_the_optimizer_on_its_base_is_no_obstacle() -> None:
    """It refuses steps of the base by others; hooks of the user's would be left out of a replay."""
    opt = steppe.sam(torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1))
    assert opt.base._optimizer_step_pre_hooks
    assert not has_step_hooks(opt, opt.base)
    handle = opt.base.register_step_post_hook(lambda *_: None)
    assert has_step_hooks(opt, opt.base)
    handle.remove()
    assert not has_step_hooks(opt, opt.base)
