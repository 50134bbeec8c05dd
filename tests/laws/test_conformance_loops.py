"""Laws of loops that go on: parameters that are frozen or thawed, plans that nobody applied, states that are loaded."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import registry
import torch
from registry import ENTRIES, STATEFUL, Entry, Run, batch, copied, obeying, same
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe.testing import problem

try:
    import torchmetrics
except ImportError:
    torchmetrics = None

SAM = next(e for e in ENTRIES if e.name == "sam")


# -- frozen parameters --------------------------------------------------------------------------------


def frozen_and_thawed(run: Run, by: str, before_step: Callable[[], object]) -> None:
    """Two steps, three with a layer frozen, two after it is thawed; what is frozen does not move."""
    layer = [*run.model.hidden[0].parameters(), *run.model.norm.parameters()]
    for i in range(7):
        if i in (2, 5):
            for p in layer:
                p.requires_grad_(i == 5)
        kept, head = copied(layer), run.model.head.weight.detach().clone()
        before_step()
        run.step(i, by=by)
        assert not torch.equal(run.model.head.weight, head)
        if 2 <= i < 5:
            same(copied(layer), kept)
            assert [p.grad for p in layer] == [None] * len(layer)
    assert not any(torch.equal(p, w) for p, w in zip(layer, kept, strict=True))


@pytest.mark.parametrize(("base", "by"), [("sgd", "passes"), ("adamw", "closure")])
@obeying()
def test_a_frozen_parameter_stays_as_under_zero_grad(entry: Entry, base: str, by: str) -> None:
    """The gradient from before it was frozen is gone, as in loops that call `zero_grad` before every step."""
    run, cleared = Run(entry, base), Run(entry, base)
    frozen_and_thawed(run, by, lambda: None)
    frozen_and_thawed(cleared, by, cleared.opt.zero_grad)
    same(run.everything(), cleared.everything())


@pytest.mark.parametrize("loop", ["clipped", "scaled", "closure without zero_grad", "capture", "after an exception"])
def test_a_frozen_parameter_stays_in_every_loop(loop: str) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if loop == "scaled" else None
    run = Run(SAM, "adamw", scaler=scaler)
    model, opt, frozen = run.model, run.opt, run.model.hidden[0].weight
    step = steppe.capture(opt, lambda model, x, y: F.cross_entropy(model(x), y), model, batch(0))

    def without_zero_grad() -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for i in range(5):
        if i == 2:
            frozen.requires_grad_(False)
            kept = frozen.detach().clone()
        x, y = batch(i)
        if loop == "capture":
            step(x, y)
        elif loop == "closure without zero_grad":
            opt.step(without_zero_grad)
        else:
            if loop == "after an exception" and i >= 2:
                with pytest.raises(ZeroDivisionError):
                    for _ in opt.passes():
                        raise ZeroDivisionError
            for pass_ in opt.passes():
                pass_.backward(F.cross_entropy(model(x), y))
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            run.finish()
            if scaler is not None:
                scaler.update()
    assert torch.equal(frozen, kept)
    assert frozen.grad is None


@obeying()
def test_accumulating_leaves_a_frozen_parameter_what_backward_leaves_it(entry: Entry) -> None:
    """The gradient of the micro-batches before it was frozen."""
    run = Run(entry)
    frozen = run.model.hidden[0].weight
    run.step(0)
    run.opt.zero_grad()
    for micro in (1, 2):
        run.seen = []
        for pass_ in run.opt.passes(accumulate=True, **run.extras(micro)):
            pass_.backward(run.loss(pass_, micro))
        if micro == 1:
            kept = frozen.grad.clone()
            frozen.requires_grad_(False)
    assert torch.equal(frozen.grad, kept)
    run.opt.step()


# -- what a forward pass changes ----------------------------------------------------------------------


class Changing(nn.Module):
    """A network, and what its forward pass changes: buffers however they are written, a momentum encoder, metrics."""

    def __init__(self, net: Any):
        super().__init__()
        self.net = net
        self.key = copy.deepcopy(net.first).requires_grad_(False)
        self.register_buffer("codes", torch.zeros(registry.FEATURES, dtype=torch.float64))
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(registry.FEATURES, dtype=torch.float64))
        self.register_buffer("late", None)
        self.metric = torchmetrics.MeanMetric() if torchmetrics is not None else None
        self.rows = torchmetrics.CatMetric() if torchmetrics is not None else None

    def forward(self, x: Tensor) -> Tensor:
        self.codes.data.mul_(0.9).add_(x.mean(0))
        self.seen.numpy()[0] += len(x)
        self.mean = 0.9 * self.mean + x.mean(0)
        self.late = x.mean(0) + (0.0 if self.late is None else self.late)
        if "calls" not in self._buffers:
            self.register_buffer("calls", torch.tensor(0))
        self.calls.data.add_(1)
        for k, q in zip(self.key.parameters(), self.net.first.parameters(), strict=True):
            k.data.mul_(0.9).add_(q.data, alpha=0.1)
        out: Tensor = self.net(x)
        if self.metric is not None and self.rows is not None:
            self.metric.update(out.detach())
            self.rows.update(out.detach()[:, 0])
        return out + self.key(x).mean()

    def state(self) -> list[Any]:
        metrics = [m for m in (self.metric, self.rows) if m is not None]
        kept = [(m.metric_state, m.update_count) for m in metrics]
        return copied([dict(self.named_buffers()), list(self.key.parameters()), kept])


@pytest.mark.parametrize("by", ["closure", "passes"])
@obeying()
def test_what_forward_changes_changes_as_in_one_pass(entry: Entry, by: str) -> None:
    """In the first pass, at its weights, and in every step: as that pass alone would change it."""
    run = Run(entry, wrap=Changing)
    states: list[Any] = []

    def note(number: int, loss: Tensor) -> Tensor:
        states.append(run.model.state())
        return loss

    for i in range(3):
        states.clear()
        twin = copy.deepcopy(run.model)
        run.step(i, by=by, meddle=note)
        same(run.model.state(), states[0])
        if registry.STATISTICS not in entry.excused:  # its first pass is at the weights
            torch.default_generator.manual_seed(i)
            twin(run.seen[0].x)
            same(run.model.state(), twin.state())


@obeying()
def test_what_forward_changes_is_as_before_after_an_exception(entry: Entry) -> None:
    run = Run(entry, wrap=Changing)
    for i in range(2):
        run.step(i)
        before = run.model.state()
        for bad in range(run.case.passes(i + 1)):
            with pytest.raises(ZeroDivisionError):
                run.step(i + 1, meddle=lambda number, loss: loss * (1 // (bad - number)))
            same(run.model.state(), before)


class Later(nn.Module):
    """Counts its passes."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(registry.CLASSES, dtype=torch.float64))
        self.register_buffer("passes", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        return x * self.weight


@obeying()
def test_a_layer_that_is_added_later_is_seen(entry: Entry) -> None:
    run = Run(entry)
    run.step(0)
    later = Later()
    run.model.head = nn.Sequential(run.model.head, later)
    run.opt.add_param_group({"params": list(later.parameters())})
    for i in range(1, 4):
        run.step(i, by="passes")
    assert int(later.passes) == 3


@obeying()
def test_a_group_that_is_added_later_learns(entry: Entry) -> None:
    """At the learning rate of the others, which a method may set."""
    run = Run(entry)
    for i in range(2):
        run.step(i)
    later = Later()
    run.model.head = nn.Sequential(run.model.head, later)
    run.opt.add_param_group({"params": list(later.parameters()), "lr": run.opt.param_groups[0]["lr"]})
    for i in range(2, 5):
        run.step(i, by="passes")
    assert (later.weight != 1).all()
    assert later.weight.isfinite().all()
    assert len({float(g["lr"]) for g in run.opt.param_groups}) == 1


@obeying()
def test_passes_that_draw_nothing_rewind_nobody_elses_draws(entry: Entry) -> None:
    """Another thread may draw from the global generator between passes and in later ones: its numbers do not repeat."""
    run = Run(entry, dropout=0.0)
    torch.default_generator.manual_seed(0)
    drawn = []
    for i in range(3):
        run.seen = []
        for number, pass_ in enumerate(run.opt.passes(**run.extras(i))):
            pass_.backward(run.loss(pass_, i))
            if number:
                drawn.append(torch.rand(()))
        run.opt.step()
        drawn.append(torch.rand(()))
    assert len({float(x) for x in drawn}) == len(drawn)


# -- plans that nobody applied ------------------------------------------------------------------------

WAITS = r"passes\(\)(.|\n)*opt\.step\(\)(.|\n)*passes\(accumulate=True\)(.|\n)*opt\.zero_grad\(\)"


def run_passes(run: Run, number: int, **how: Any) -> None:
    torch.default_generator.manual_seed(number)
    run.seen = []
    for pass_ in run.opt.passes(**how, **run.extras(number)):
        pass_.backward(run.loss(pass_, number))


@obeying()
def test_passes_over_a_plan_that_nobody_applied_are_refused(entry: Entry) -> None:
    """A step at every third micro-batch would be a step on the last one alone. The plan can be applied afterwards."""
    run, twin = Run(entry), Run(entry)
    for each in (run, twin):
        each.step(0)
        run_passes(each, 1)
    before = run.everything(), copied([p.grad for p in run.model.parameters()])
    with pytest.raises(RuntimeError, match=WAITS):
        run_passes(run, 2)
    same((run.everything(), copied([p.grad for p in run.model.parameters()])), before)
    run.opt.step()
    twin.opt.step()
    for each in (run, twin):
        each.step(2, by="passes")
    same(run.everything(), twin.everything())


@pytest.mark.parametrize("drop", ["opt", "model"])
@obeying()
def test_passes_that_are_dropped_leave_no_trace(entry: Entry, drop: str) -> None:
    """By `zero_grad` of the optimizer, or of the model, after which no gradient is left to lose."""
    run, twin = Run(entry), Run(entry)
    for each in (run, twin):
        each.step(0)
    run_passes(run, 1)
    (run.opt if drop == "opt" else run.model).zero_grad()
    for each in (run, twin):
        each.step(2, by="passes")
    same(run.everything(), twin.everything())


@obeying()
def test_a_step_of_the_base_over_a_plan_is_refused(entry: Entry) -> None:
    """It would forget the number of the step and what the method remembers. The plan can be applied afterwards."""
    run, twin = Run(entry), Run(entry)
    for each in (run, twin):
        run_passes(each, 0)
    before = run.everything()
    with pytest.raises(RuntimeError, match=r"base optimizer was stepped(.|\n)*opt\.step\(\)"):
        run.base.step()
    same(run.everything(), before)
    for each in (run, twin):
        each.opt.step()
        each.step(1)
    same(run.everything(), twin.everything())
    run.base.step()  # no plan waits: a plain step


@pytest.mark.parametrize("skipped", ["by a scaler", "by the caller"])
def test_passes_after_a_gradient_that_is_not_finite_and_was_skipped(skipped: str) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.zeros(()))
    run, twin = Run(SAM, scaler=scaler if skipped == "by a scaler" else None), Run(SAM)
    for pass_ in run.opt.passes():
        pass_.backward(run.loss(pass_, 0) * torch.inf)
    if skipped == "by a scaler":
        scaler.step(run.opt)
        scaler.update()
        assert scaler.get_scale() == 2.0
    for each in (run, twin):
        for pass_ in each.opt.passes():
            pass_.backward(F.cross_entropy(each.model.eval()(batch(2)[0]), batch(2)[1]))
        each.opt.step()
    same(run.everything(), twin.everything())


def test_other_steps_over_a_plan_that_nobody_applied_are_refused() -> None:
    run = Run(SAM)
    step = steppe.capture(run.opt, lambda model, x, y: F.cross_entropy(model(x), y), run.model, batch(0))
    run_passes(run, 0)
    grads = copied([p.grad for p in run.model.parameters()])
    with pytest.raises(RuntimeError, match=r"step\(closure\) was called while the gradient of passes\(\) waits"):
        run.step(1)
    with pytest.raises(RuntimeError, match=WAITS):
        step(*batch(1))
    same([p.grad for p in run.model.parameters()], grads)
    run.opt.step()
    step(*batch(1))


def test_a_plan_whose_step_raised_does_not_wait() -> None:
    run = Run(SAM)
    run_passes(run, 0)
    step, run.base.step = run.base.step, lambda: 1 // 0  # type: ignore[method-assign]
    with pytest.raises(ZeroDivisionError):
        run.opt.step()
    run.base.step = step  # type: ignore[method-assign]
    run.step(1, by="passes")


def test_accelerates_accumulation_around_passes_is_refused_or_right() -> None:
    accelerate = pytest.importorskip("accelerate")
    ends = []
    for prepared in (True, False):
        run = Run(SAM, dtype=torch.float32)
        accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
        opt = accelerator.prepare(run.opt)
        for i in range(4):
            with accelerator.accumulate(run.model):
                how = {"accumulate": True} if prepared else {}
                if i == 1 and not prepared:
                    with pytest.raises(RuntimeError, match="every micro-batch in every pass"):
                        run_passes(run, i)
                    break
                run_passes(run, i, **how)
                opt.step()
                opt.zero_grad()
        ends.append(run.opt.param_groups[0]["steppe.step"])
    assert ends == [2, 0]


# -- states and devices -------------------------------------------------------------------------------


@pytest.mark.parametrize("base", STATEFUL)
@obeying()
def test_a_plain_checkpoint_may_be_loaded_into_the_base(entry: Entry, base: str) -> None:
    """As through the optimizer: the groups get the method's options again, and steps are counted from 0."""
    plain = Run(SAM, base).base.__class__(
        [nn.Parameter(torch.zeros_like(p)) for p in Run(SAM).model.parameters()], lr=0.05
    )
    runs = Run(entry, base), Run(entry, base)
    for run in runs:
        run.step(0)
        (run.base if run is runs[0] else run.opt).load_state_dict(copied(plain.state_dict()))
        if entry.name == "msam":
            run.base.param_groups[0].update({"momentum": 0.9} if base == "sgd" else {})
        for i in range(1, 4):
            run.step(i, by="passes")
    same(runs[0].everything(), runs[1].everything())
    assert runs[0].base.param_groups[0]["steppe.step"] == 3


@obeying()
def test_a_default_device_changes_nothing(entry: Entry, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step allocates is on the devices of the parameters, or on the CPU."""
    batches = {i + more: batch(i + more) for i in range(2) for more in (0, 500)}
    monkeypatch.setattr(problem, "batch", lambda number, dtype=torch.float64: batches[number])
    ends = []
    for device in ("cpu", "meta"):
        run = Run(entry)
        masks = [run.extras(i) for i in range(2)]
        monkeypatch.setattr(run, "extras", masks.__getitem__)
        with torch.device(device):
            for i, by in enumerate(("passes", "closure")):
                run.step(i, by=by)
        ends.append(run.everything())
    same(*ends)
