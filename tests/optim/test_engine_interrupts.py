"""Law: Ctrl-C anywhere in the engine leaves a step undone or complete, and training goes on from there.

A real SIGINT is raised before one line after the other, each in a step of its own.
"""

from __future__ import annotations

import contextlib
import dis
import gc
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from cpu_recorder import CpuRecorder
from registry import ENTRIES, Net, Run, batch, copied, differences, torch_closure
from tiers import slow_unless
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.autograd import grad_mode
from training_runs import config

import steppe
from steppe.core.process_group import Workers
from steppe.cuda.capture import CapturedStep, step_function
from steppe.testing import problem
from steppe.training.loop import Training
from steppe.training.problem import data_of

ENGINE = str(Path(steppe.__file__).parent)
OF_THE_CALLER = {"closure", "loss", "forward"}  # what a user would write, in the registry
WARM = 2  # steps before the one that is interrupted
BY_NAME = {e.name: e for e in ENTRIES}

Place = tuple[str, int]  # a file and a line of it


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where the tests were started with it ignored."""
    earlier = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    found = signal.signal(signal.SIGINT, earlier)
    grad_enabled = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    assert found is signal.default_int_handler
    assert grad_enabled


# From CPython 3.12 on, an exception that a trace function raises where a loop jumps back skips all handlers of the
# traced function; one of a real signal does not.
JUMP_BACK = {dis.opmap[name] for name in ("FOR_ITER", "JUMP_BACKWARD")} if sys.version_info >= (3, 12) else set()


class Lines:
    """Sees the lines of the engine, its context managers and the caller's passes; raises SIGINT before one of them."""

    def __init__(self, at: int | None = None, *, armed: bool = True):
        self.at, self.armed = at, armed
        self.seen: list[Place] = []

    def __enter__(self) -> Lines:
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: Any) -> None:
        sys.settrace(None)

    def interrupt(self, work: Callable[[], object]) -> Place:
        """Does some work that is interrupted, and returns where; the traceback lives as long as this object."""

        def apart() -> Iterator[None]:
            # CPython may forget to end the handling of an exception if the next one is raised at its very first line:
            # that ends with this generator
            with self, pytest.raises(KeyboardInterrupt) as caught:
                work()
            yield
            del caught

        self._apart = apart()
        next(self._apart)
        return self.seen[-1]

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        ours = code.co_filename.startswith(ENGINE) or code.co_filename in (grad_mode.__file__, contextlib.__file__)
        return self._line if ours or (code.co_filename == problem.__file__ and code.co_name in OF_THE_CALLER) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        place = frame.f_code.co_filename, frame.f_lineno
        # a loop in one line counts once: how often it passes may depend on where the memory lies
        again = (self.seen and self.seen[-1] == place) or frame.f_code.co_code[frame.f_lasti] in JUMP_BACK
        if event == "line" and self.armed and not again:
            self.seen.append(place)
            if len(self.seen) - 1 == self.at:
                signal.raise_signal(signal.SIGINT)
        return self._line


def ends(lines: list[Place]) -> list[int]:
    """Where each line is seen for the first and for the last time."""
    first = {place: i for i, place in reversed(list(enumerate(lines)))}
    last = {place: i for i, place in enumerate(lines)}
    return sorted({*first.values(), *last.values()})


class Case:
    """A run after some steps, and what it is before its next step, with that step's plan waiting, and after it."""

    def __init__(self, name: str, by: str, *, warm: int = WARM, scaled: bool = False):
        self.name, self.by, self.warm, self.scaled = name, by, warm, scaled
        self.run = self.made()
        self.states = {"before": self.at_the_start()}
        if by == "passes":
            for pass_ in self.run.opt.passes():
                pass_.backward(self.run.loss(pass_, warm))
            self.states["waiting"] = self.state()
            self.run.opt.zero_grad()
        self.step()
        self.states["after"] = self.state()
        self.step(warm + 1)
        self.later = self.state()

    def made(self) -> Run:
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0) if self.scaled else None
        self.run = run = Run(BY_NAME[self.name], norm="batch", record=True, scaler=scaler)
        run.finish = run.opt.step  # type: ignore[method-assign]
        for i in range(self.warm):
            self.step(i)
        return run

    def reset(self) -> None:
        """Goes back to before the step; what the engine has learned stays, as it would in a long run."""
        if not self.warm:
            self.made()
        self.run.model.load_state_dict(self.states["before"]["model"])
        self.run.base.load_state_dict(copied(self.states["before"]["optimizer"]))

    def at_the_start(self) -> dict[str, Any]:
        self.run.opt.zero_grad()
        if self.scaled and self._stage() is not OptState.READY:
            self.run.opt.scaler.update()
        torch.default_generator.manual_seed(self.warm)
        return self.state()

    def step(self, number: int | None = None) -> None:
        if self.scaled and self._stage() is not OptState.READY:
            self.run.opt.scaler.update()
        self.run.step(self.warm if number is None else number, by=self.by)

    def _stage(self) -> OptState:
        return self.run.opt.scaler._per_optimizer_states[id(self.run.opt)]["stage"]

    def state(self) -> dict[str, Any]:
        """All that a step changes, copied; the model first, lest the optimizer puts it right when it is asked."""
        model = self.run.model
        return {
            "model": self.run.weights(),
            "optimizer": copied(self.run.base.state_dict()),
            "tracking": [m.track_running_stats for m in model.modules() if hasattr(m, "track_running_stats")],
            "grad enabled": torch.is_grad_enabled(),
            "scaler": (self.run.opt.scaler.get_scale(), self._stage()) if self.scaled else None,
            "grad": [copied(p.grad) for p in model.parameters()],
            "noise": torch.get_rng_state(),
        }

    def left(self, where: Any = None) -> str:
        """In which of its states the run is."""
        found, before, after = self.state(), self.states["before"], self.states["after"]
        if torch.equal(found["noise"], after["noise"]):  # all passes were over, and the global generator had moved on
            before = {**before, "noise": after["noise"]}
        states = {**self.states, "before": before}
        name = next((name for name, state in states.items() if same(found, state)), None)
        assert name is not None, (where, [list(differences(found, state)) for state in states.values()])
        return name

    def lines(self) -> list[Place]:
        """The lines of the step, in their order."""
        self.reset()
        self.at_the_start()
        with Lines() as lines:
            self.step()
        return lines.seen

    def interrupt(self, at: Iterable[int]) -> set[str]:
        """Interrupts a step at each of these lines; what it left, and that the run goes on as if never interrupted."""
        outcomes = set()
        for i in at:
            self.reset()
            self.at_the_start()
            lines = Lines(i)
            outcomes.add(self.goes_on(lines.interrupt(self.step), by_step=bool(i % 2)))
        return outcomes

    def goes_on(self, where: Any, by_step: bool = False) -> str:
        state = self.left(where)
        if state == "after":
            self.step(self.warm + 1)
        elif state == "waiting" and by_step:
            self.run.opt.step()
        else:
            if state == "waiting":
                self.run.opt.zero_grad()
                assert same(self.state()["model"], self.states["before"]["model"]), where
            self.step()
        expected = self.later if state == "after" else self.states["after"]
        assert same(self.state(), expected), (where, state)
        return state


def same(a: Any, b: Any) -> bool:
    return next(differences(a, b), None) is None


@pytest.fixture(autouse=True)
def autocast_is_left() -> Iterator[None]:
    """An interrupt inside torch's `autocast.__enter__` leaves it entered: later casts would be kept for good."""
    yield
    for _ in range(torch.autocast_increment_nesting()):
        torch.autocast_decrement_nesting()


OUTCOMES = {"closure": {"before", "after"}, "passes": {"before", "waiting", "after"}}


@pytest.mark.parametrize(
    ("by", "times"),
    slow_unless(("closure", "first").__eq__, [("closure", "first"), ("closure", "ends"), ("passes", "first")]),
)
def test_at_every_line_of_a_step(by: str, times: str) -> None:
    """Where each line is seen first, or first and last."""
    case = Case("sam", by)
    lines = case.lines()
    assert len(set(lines)) > 300
    of_the_caller = [i for i, (file, _) in enumerate(lines) if file == problem.__file__]
    others = ends(lines) if times == "ends" else [lines.index(place) for place in set(lines)]
    assert case.interrupt(sorted({*others, *of_the_caller})) == OUTCOMES[by]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "by", "scaled"),
    [
        ("sam", "closure", True),
        ("sam", "passes", True),
        ("sam-3-steps", "passes", False),
        ("gsam", "closure", True),
        ("sa-sam", "closure", False),  # sets the learning rate, remembers the weights
        ("sa-sam", "passes", True),
        ("looksam", "passes", False),
        ("per-part", "closure", False),
        ("msam", "passes", False),
        ("esam", "closure", False),  # has a pass without a gradient
    ],
)
def test_at_some_lines_of_all_kinds_of_steps(name: str, by: str, scaled: bool) -> None:
    case = Case(name, by, scaled=scaled)
    lines = case.lines()
    engine = [i for i in ends(lines) if lines[i][0].endswith(("engine.py", "interrupts.py", "scaling.py"))]
    case.interrupt(sorted({*range(0, len(lines), 83), *engine[::6]}))


class Counting(Net):
    """Counts its passes in buffers of several kinds, one of which is not named as running statistics are."""

    def __init__(self, *args: Any):
        super().__init__(*args)
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        self.register_buffer("running_count", torch.zeros((), dtype=torch.uint8))

    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.running_count += 1
        return super().forward(x)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("by", ["closure", "passes"])
def test_in_the_very_first_step(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine learns which buffers move: the steps that follow show whether it has learned them all."""
    monkeypatch.setattr(problem, "Net", Counting)
    case = Case("sam", by, warm=0)
    lines = case.lines()
    learning = [i for i in ends(lines) if lines[i][0].endswith(("forward_state.py", "interrupts.py"))]
    case.interrupt(sorted({*learning, *range(0, len(lines), 101)}))


@pytest.mark.parametrize("warm", [0, WARM])
def test_what_an_interrupt_leaves_open_is_collected_without_a_trace(warm: int) -> None:
    """A traceback keeps the blocks that Ctrl-C has left open; their end must not reach code that runs much later."""
    case = Case("sam", "closure", warm=warm)
    lines = case.lines()
    blocks = [i for i in ends(lines) if lines[i][0] in (grad_mode.__file__, contextlib.__file__)]
    assert blocks
    gc.collect()
    gc.freeze()
    try:
        for i in blocks:
            case.reset()
            case.at_the_start()
            held = [Lines(i)]
            held[0].interrupt(case.step)
            with torch.no_grad():
                held.clear()
                while gc.collect():
                    pass
                assert not torch.is_grad_enabled(), lines[i]
            assert torch.is_grad_enabled(), lines[i]
    finally:
        gc.unfreeze()


def test_in_the_first_step_after_the_model_has_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small tensors that lay in one stack are scattered, and the engine must notice also at the second try."""
    monkeypatch.setattr(problem, "Net", lambda *args: steppe.contiguous_(Net(*args).double()))
    case = Case("sam", "closure", warm=1)

    def moved() -> None:
        case.made()
        for p in case.run.model.parameters():
            p.data = p.data.clone()

    case.reset = moved  # type: ignore[method-assign]
    lines = case.lines()
    case.interrupt(i for i in ends(lines) if lines[i][0].endswith(("weights.py",)))


class Armed:
    """A method whose plan raises SIGINT when it is given its second reading."""

    def __init__(self, method: Any, interrupt: Callable[[], None]):
        self.method, self.interrupt = method, interrupt

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def plan(self, context: Any) -> Any:
        plan = self.method.plan(context)
        reading = yield next(plan)
        reading = yield plan.send(reading)
        self.interrupt()


@pytest.mark.slow
@pytest.mark.parametrize("by", ["closure", "passes"])
@pytest.mark.parametrize("first", ["forward", "backward", "plan"])
def test_twice_in_a_row(first: str, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """First in the caller's second pass or in the method's plan, then at any line of what puts things back."""
    lost: list[Any] = []  # what is raised while Python finalizes a generator is reported and goes no further
    monkeypatch.setattr(sys, "unraisablehook", lambda report: lost.append(report.exc_type))
    case = Case("sam", by)

    def twice(at: int | None) -> Lines:
        case.reset()
        case.at_the_start()
        lines, method = Lines(at, armed=False), case.run.opt.method

        def interrupt() -> None:
            lines.armed = True
            signal.raise_signal(signal.SIGINT)

        def meddle(number: int, loss: Tensor) -> Tensor:
            if number == 1:
                if first == "backward":
                    loss.backward()
                interrupt()
            return loss

        if first == "plan":
            case.run.opt.method = Armed(method, interrupt)
        lines.interrupt(lambda: case.run.step(WARM, by=by, meddle=None if first == "plan" else meddle))
        case.run.opt.method = method
        return lines

    cleanup = twice(None).seen
    assert {Path(file).name for file, _ in cleanup} >= {"step.py", "weights.py", "forward_state.py"}
    for i in ends(cleanup)[:: 1 if (first, by) == ("forward", "closure") else 3]:
        lines = twice(i)
        assert case.goes_on(lines.seen[i]) == "before"
    assert set(lost) <= {KeyboardInterrupt}


def held(case: Case) -> Callable[[], None]:
    """A loop that keeps its iterator in a variable, which the traceback keeps with its frame."""

    def loop() -> None:
        passes = case.run.opt.passes()
        for pass_ in passes:
            pass_.backward(case.run.loss(pass_, WARM))
            if pass_.probe.at is not None:
                signal.raise_signal(signal.SIGINT)

    return loop


def planless(opt: Any) -> None:
    with pytest.raises(RuntimeError, match="closed before its last pass"):
        opt.step()


CALLS = {
    "step(closure)": lambda case: case.step(),
    "step()": lambda case: planless(case.run.opt),
    "passes()": lambda case: case.run.opt.passes(),
    "state_dict()": lambda case: case.run.opt.state_dict(),
}


@pytest.mark.parametrize("call", CALLS)
def test_an_iterator_that_a_traceback_keeps_is_closed_by_the_next_call(call: str) -> None:
    case = Case("sam", "closure")
    case.reset()
    case.at_the_start()
    with pytest.raises(KeyboardInterrupt) as caught:
        held(case)()
    torch.default_generator.manual_seed(77)
    noise = torch.get_rng_state()
    CALLS[call](case)
    assert caught.tb  # it still keeps the frame
    if call == "step(closure)":
        assert case.left() == "after"
    else:
        assert torch.equal(torch.get_rng_state(), noise)  # the abandoned step is long gone
        torch.default_generator.manual_seed(WARM)
        assert case.left() == "before"


@pytest.mark.slow
def test_an_iterator_that_lives_to_the_end_of_python_is_closed_before() -> None:
    """What a script is left with that is interrupted outside of functions: torch would abort the process."""
    script = """if True:
        import steppe, torch
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
        opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
        passes = opt.passes()
        for pass_ in passes:
            loss = model(torch.ones(3, 2)).sum()
            pass_.backward(loss)
            if pass_.probe.at is not None:
                raise KeyboardInterrupt
    """
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith("KeyboardInterrupt")
    assert done.returncode in (1, 130, -signal.SIGINT)


@pytest.mark.parametrize("how", ["run_passes", "capture"])
def test_the_engines_own_loops_close_what_a_traceback_keeps(how: str) -> None:
    case = Case("sam", "closure")
    case.reset()
    case.at_the_start()
    model, opt = case.run.model, case.run.opt
    passes = 0

    def loss_fn(model: Net, x: Tensor, y: Tensor) -> Tensor:
        nonlocal passes
        passes += 1
        if passes == 2:
            signal.raise_signal(signal.SIGINT)
        return torch.nn.functional.cross_entropy(model(x), y)

    with pytest.raises(KeyboardInterrupt) as caught:
        if how == "capture":
            step_function(opt, loss_fn, model)(batch(WARM), None)
        else:
            opt.run_passes(lambda pass_: pass_.backward(loss_fn(model, *batch(WARM))))
    assert caught.tb
    assert case.left() == "before"


def test_a_plan_that_waits_is_dropped_wholly_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(problem, "Net", Counting)
    case = Case("sam", "passes")

    def dropping(at: int | None) -> Lines:
        case.reset()
        case.at_the_start()
        for pass_ in case.run.opt.passes():
            pass_.backward(case.run.loss(pass_, WARM))
        lines = Lines(at)
        if at is not None:
            lines.interrupt(case.run.opt.zero_grad)
        else:
            with lines:
                case.run.opt.zero_grad()
        return lines

    for i in ends(dropping(None).seen):
        dropping(i)
        case.run.opt.zero_grad()
        torch.default_generator.manual_seed(WARM)
        assert case.left() == "before"


def test_accumulation_that_is_interrupted_leaves_what_waited() -> None:
    """The first micro-batch's plan waits on, and dropping it takes back its statistics."""
    case = Case("sam", "passes")
    case.reset()
    case.at_the_start()
    run = case.run

    def accumulate(interrupted: bool) -> None:
        for pass_ in run.opt.passes(accumulate=True):
            pass_.backward(run.loss(pass_, WARM))
            if interrupted:
                signal.raise_signal(signal.SIGINT)

    accumulate(False)
    with pytest.raises(KeyboardInterrupt):
        accumulate(True)
    assert case.left() == "waiting"
    run.opt.zero_grad()
    assert case.left() == "before"


class ThroughData(torch.optim.SGD):
    """Writes through `p.data`, which torch does not count as writing to `p`; Ctrl-C comes before or after that."""

    late = False

    def step(self, closure: Any = None) -> None:
        for end in (False, True):
            if self.late is end:
                signal.raise_signal(signal.SIGINT)
            for p in self.param_groups[0]["params"]:
                p.data -= 0.05 * p.grad


@pytest.mark.parametrize("late", [False, True])
def test_in_the_base_optimizer_it_waits_for_the_end_of_the_step(late: bool) -> None:
    torch.manual_seed(0)
    model = Net().double()
    base = ThroughData(model.parameters(), lr=0.1)
    base.late = late
    opt = steppe.SharpnessAware(base, steppe.SAM(0.5), model=model)
    before = copied(model.state_dict())
    with pytest.raises(KeyboardInterrupt):
        opt.step(torch_closure(model, opt))
    assert not torch.equal(model.first.weight, before["first.weight"])
    assert int(model.norm.num_batches_tracked) == 1
    assert opt.param_groups[0]["steppe.step"] == 1


@pytest.mark.parametrize("handler", ["none", "own"])
def test_other_handlers_of_sigint_stay(handler: str) -> None:
    """Where it is ignored it stays ignored; a handler of the user's own is called once, when the step is complete."""
    run, calls = Run(BY_NAME["sam"]), []

    def own(*_: Any) -> None:
        calls.append(run.opt.param_groups[0]["steppe.step"])

    chosen = signal.SIG_IGN if handler == "none" else own
    signal.signal(signal.SIGINT, chosen)
    run.base.register_step_pre_hook(lambda *_: signal.raise_signal(signal.SIGINT))
    run.step(0)
    found = signal.signal(signal.SIGINT, signal.default_int_handler)
    assert found is chosen
    assert calls == ([] if handler == "none" else [1])
    assert run.opt.param_groups[0]["steppe.step"] == 1


def test_steps_in_another_thread() -> None:
    run, twin = Run(BY_NAME["sam"]), Run(BY_NAME["sam"])
    thread = threading.Thread(target=run.step, args=(0,))
    thread.start()
    thread.join()
    twin.step(0)
    assert same(run.everything(), twin.everything())


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 5), ids=["eager", "warm-up", "capture", "replay"])
def test_captured_steps(number: int) -> None:
    """An interrupted warm-up, capture or replay is complete or did not happen, and later steps work."""

    def loss_fn(model: Net, x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(model(x), y)

    def state() -> Any:
        return copied((model.state_dict(), opt.state_dict()))

    def until(n: int) -> CapturedStep:
        nonlocal model, opt
        torch.manual_seed(0)
        model = Net(dropout=0.0)
        opt = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), 0.1, fused=True), steppe.SAM(0.5), model=model)
        take = CapturedStep(opt, step_function(opt, loss_fn, model), model, CpuRecorder(), lambda opt: None)
        states[:] = [state()]
        for rows in batches[:n]:
            take(*rows)
            states.append(state())
        return take

    model: Any
    opt: Any
    model, opt, states = None, None, list[Any]()
    batches = [batch(i, torch.float32) for i in range(6)]
    assert until(len(batches)).graphs
    expected, take = list(states), until(number)
    with Lines() as lines:
        take(*batches[number])
    places = [i for i in ends(lines.seen) if lines.seen[i][0].endswith(("engine.py", "capture.py", "graphs.py"))]
    for i in places[:: 1 if number == 4 else 13]:
        take = until(number)
        where = Lines(i).interrupt(lambda: take(*batches[number]))
        taken = opt.param_groups[0]["steppe.step"]
        assert same(state(), expected[taken]), where
        for rows in batches[taken:]:
            take(*rows)
        assert same(state(), expected[-1]), where
        assert take.why is None


def test_twice_in_the_training_loop(tmp_path: Path) -> None:
    """The loop of `steppe.training` holds its iterator in a frame that the traceback keeps."""
    settings = config(tmp_path, method="sam")
    splits = data_of(settings)
    training = Training(settings, tmp_path, splits, Workers(), torch.device("cpu"))
    rows = next(iter(training.batches.epoch(0, 0)))
    before = copied(training.state.model.state_dict())

    def twice(at: int | None) -> Lines:
        lines, passes = Lines(at, armed=False), 0

        def interrupt(*_: Any) -> None:
            nonlocal passes
            passes += 1
            if passes == 2:
                lines.armed = True
                signal.raise_signal(signal.SIGINT)

        hook = training.state.model.register_forward_hook(interrupt)
        lines.interrupt(lambda: training._passes(rows))
        hook.remove()
        return lines

    for i in ends(twice(None).seen):
        lines = twice(i)
        assert same(copied(training.state.model.state_dict()), before), lines.seen[-1]
