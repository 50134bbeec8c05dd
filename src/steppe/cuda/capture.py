"""Captured steps: all passes of a step and the base update as one CUDA graph, replayed by one launch."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from ..core.probe import pattern_of
from ..optim.base import STEP, interrupts_deferred, mark_left
from ..optim.engine import SharpnessAware
from ..optim.finite import DeviceGuard
from ..optim.forward_state import SameNoise
from ..optim.report import Report
from ..optim.step import Pass
from ..optim.weights import ParamLayout
from .capturable import DeviceOptions, fixed_options, prepare
from .graphs import CudaRecorder, Graph, GraphCache, Recorder, layout_key

EAGER = 1  # steps per key before the warm-up: optimizer state exists before the device may skip a step
MAX_MOVES = 8  # of weights or statistics to other memory since the last capture
SCHEDULED = ("lr", "rho", "theta")  # options that schedules and methods change

Rows = Sequence[Tensor]
StepFunction = Callable[[Rows, Rows | None], Tensor]
"""Runs a step on a batch and held-out rows, and returns its first loss."""


def capture(
    opt: SharpnessAware,
    loss_fn: Callable[..., Tensor],
    model: nn.Module,
    example_batch: Rows,
    *,
    held_out: Rows | None = None,
    compile: bool | str = False,
) -> CapturedStep:
    """A step of `opt` on the loss `loss_fn(model, *rows)`, replayed as one CUDA graph: `loss = step(x, y)`.

    The first calls run eagerly; then all passes and the base update are captured and replayed. Schedules of lr and
    rho, dropout, BatchNorm and random draws work as in eager steps. A step that cannot be captured runs eagerly, and
    `step.why` says why.

    Parameters
    ----------
    opt
        The optimizer. Its base is switched to fused or capturable kernels.
    loss_fn
        Returns the loss of the model on some samples; Python code in it runs only until the capture.
    model
        The model.
    example_batch
        The tensors of a batch.
    held_out
        The tensors of a held-out batch, for methods that use one.
    compile
        Compiles the model as well: True, or a mode of torch.compile that makes no CUDA graphs of its own.

    Examples
    --------
    >>> model, batch = nn.Linear(2, 1), (torch.ones(4, 2), torch.zeros(4, 1))
    >>> opt = steppe.sam(torch.optim.SGD(model.parameters(), lr=0.1), model=model)
    >>> step = steppe.capture(opt, lambda model, x, y: nn.functional.mse_loss(model(x), y), model, batch)
    >>> loss = step(*batch)  # on a CPU it runs eagerly

    """
    for t in (*example_batch, *(held_out or ())):
        if not isinstance(t, Tensor):
            raise TypeError(f"a batch to capture is made of tensors, not {type(t).__name__}: give (inputs, targets)")
    if compile in ("reduce-overhead", "max-autotune"):
        raise ValueError(f"compile={compile!r} makes graphs of its own: give True or 'max-autotune-no-cudagraphs'")
    mode = compile if isinstance(compile, str) else None
    called = torch.compile(model, dynamic=False, mode=mode) if compile else model
    return CapturedStep(opt, step_function(opt, loss_fn, called), model)


def step_function(opt: SharpnessAware, loss_fn: Callable[..., Tensor], model: Any) -> StepFunction:
    """A step of `opt` on the loss of a model; the method selects the rows of each pass."""

    def run_step(batch: Rows, held_out: Rows | None) -> Tensor:
        def run_pass(pass_: Pass) -> Tensor:
            if pass_.held_out and held_out is None:
                raise RuntimeError("the method needs held-out data too: step(x, y, held_out=(x2, y2))")
            rows: Any = held_out if pass_.held_out else pass_.rows(*batch) if len(batch) > 1 else [pass_.rows(*batch)]
            loss = loss_fn(model, *rows)
            pass_.backward(loss)
            return loss.detach().mean()

        try:
            losses = opt.run_passes(run_pass)
            opt.step()
        except BaseException:
            opt.zero_grad()  # discards the planned gradient too
            raise
        return losses[0]

    return run_step


@dataclass(frozen=True)
class _Memory:
    """The memory of steps: a graph contains the addresses of weights, running statistics and optimizer state."""

    layout: ParamLayout
    state: object
    addresses: list[int]

    @classmethod
    def of(cls, opt: SharpnessAware) -> _Memory:
        layout = opt.param_layout()
        tensors = [*layout.space.params, *opt.forward_state.held(layout.space).tensors]
        return cls(layout, opt.base.state, list(map(Tensor.data_ptr, tensors)))

    def same(self, other: _Memory) -> bool:
        return self.layout is other.layout and self.state is other.state and self.addresses == other.addresses


@dataclass(frozen=True)
class _StepOutputs:
    """The results of a captured step, which every replay overwrites."""

    loss: Tensor
    report: Report | None
    passes: int
    grads: list[tuple[Tensor, Tensor | None]]  # parameters and their gradients
    memory: object  # kept alive, because replays write there

    @classmethod
    def of(cls, opt: SharpnessAware, loss: Tensor) -> _StepOutputs:
        layout = opt.param_layout()
        return cls(loss, opt.report, opt.passes_run, _gradients(opt), (layout, opt.forward_state.held(layout.space)))


@final
class CapturedStep:
    """A step that is called on a batch: eager at first, then captured as a CUDA graph and replayed.

    Parameters
    ----------
    opt
        The optimizer.
    run_step
        Runs a step eagerly.
    model
        The model, whose layers' training modes are part of the graph key.
    recorder
        Captures the graphs; None captures CUDA graphs.
    prepare
        Prepares the optimizer for capture, or returns why it cannot be captured.

    Attributes
    ----------
    why
        Why steps run eagerly; None if they are captured.

    """

    def __init__(
        self,
        opt: SharpnessAware,
        run_step: StepFunction,
        model: nn.Module | None,
        recorder: Recorder | None = None,
        prepare: Callable[[SharpnessAware], str | None] = prepare,
    ):
        self.opt, self._run_step, self._prepare = opt, run_step, prepare
        self._layers = list(model.modules()) if model is not None else []
        self.device = opt.param_groups[0]["params"][0].device
        self._grads_of: Graph | None = None  # the graph whose gradients are in `p.grad`
        self._options: DeviceOptions | None = None
        self._memory: _Memory | None = None  # of all graphs
        self._moves = 0  # changes of the memory since the last capture
        self._guard = DeviceGuard(self.device, stop=opt.on_nonfinite == "raise")
        self.why = prepare(opt)
        if self.why is None and recorder is None:
            recorder = CudaRecorder(self.device)
        self._cache = GraphCache(recorder, eager=EAGER)
        self._warm_passes: dict[Hashable, int] = {}  # of warmed-up keys
        if self.why is None:
            self_ref = weakref.ref(self)  # an optimizer that outlives this step must not keep its graphs
            opt.register_state_dict_pre_hook(lambda _: None if (step := self_ref()) is None else step.settle())
        elif self.device.type == "cuda":
            self._warn()

    def __call__(self, *batch: Tensor, held_out: Rows | None = None) -> Tensor:
        """Runs a step on these rows and returns its first loss, on the device."""
        self.opt.check_no_pending_plan()
        if self.why is not None:
            return self._run_eagerly(batch, held_out)
        self._raise_nonfinite(wait=False)
        rows, n = (*batch, *(held_out or ())), len(batch)
        key = self._graph_key(rows, n)
        graph = self._cache.graph(key)
        if graph is None:
            self._raise_nonfinite(wait=True)  # an eager step moves the weights, whatever the device has skipped
        stage = self._cache.stage(key)
        if stage == "eager":
            return self._run_eagerly(batch, held_out)
        with interrupts_deferred():  # a step that is launched is counted, and no capture is left unfinished
            if stage == "warm-up":
                return self._warm_up(key, rows, n)
            if stage == "capture":
                graph = self._capture(key, rows, n)
            return self._replay(graph, rows) if graph is not None else self._run_eagerly(batch, held_out)

    def settle(self) -> None:
        """Waits for the device, raises if a captured step was not finite, and reads options that steps have set."""
        if self.why is None and self._options is not None:
            self._raise_nonfinite(wait=True)
            self._options.download()

    @property
    def skipped(self) -> int:
        """The number of captured steps that were skipped because a number was not finite; waits for the device."""
        return self._guard.counted()

    @property
    def graphs(self) -> int:
        """The number of graphs that are captured."""
        return self._cache.count

    def _graph_key(self, rows: Rows, n: int) -> Hashable:
        """What steps that one graph can replay have in common; None if this step cannot be captured."""
        opt = self.opt
        step = opt.param_groups[0].get(STEP, 0)  # none in a state that was loaded into the base
        pattern = pattern_of(opt.method, step) if step else None  # the first step creates optimizer state
        if pattern is None:
            return None
        self._follow_memory()
        if self.why is not None:
            return None
        layouts = tuple(map(layout_key, rows))
        modes = tuple(m.training for m in self._layers)
        return (pattern, n, layouts, modes, fixed_options(opt.param_groups, SCHEDULED), opt.record, opt.same_noise)

    def _follow_memory(self) -> None:
        """Drops all graphs if weights, statistics, state or groups are in other memory than at the capture."""
        groups, memory = self.opt.param_groups, _Memory.of(self.opt)
        if self._options is not None and self._options.matches(groups) and self._memory and self._memory.same(memory):
            return
        self._drop_graphs()
        why = self._prepare(self.opt)  # a loaded state may select other kernels
        self._options, self._memory = DeviceOptions(groups, SCHEDULED, self.device), memory
        self._moves += 1
        if self._moves > MAX_MOVES:
            why = "the model puts other tensors in the place of its weights or statistics at every step"
        if why is not None:
            self._give_up(why)

    def _run_eagerly(self, batch: Rows, held_out: Rows | None) -> Tensor:
        self._grads_of = None
        held_out = None if held_out is None else self._on_device(held_out)
        return self._run_step(self._on_device(batch), held_out).clone()

    def _warm_up(self, key: Hashable, rows: Rows, n: int) -> Tensor:
        """Runs the step as it is captured next."""
        assert self._options is not None
        rows = [t.to(self.device) for t in rows]
        self._options.upload()
        self._grads_of = None
        with self._cache.warm_up(key):
            loss = self._run_on_device(rows, n, None)
        self._warm_passes[key] = self.opt.passes_run
        self._options.leave_on_device(self._guard.sets)
        return loss.clone()

    def _capture(self, key: Hashable, rows: Rows, n: int) -> Graph | None:
        opt, step, grads = self.opt, self.opt.param_groups[0][STEP], _gradients(self.opt)
        passes = self._warm_passes.pop(key) if opt.same_noise else 0

        def work(noise: SameNoise | None, *buffers: Tensor) -> _StepOutputs:
            return _StepOutputs.of(opt, self._run_on_device(buffers, n, noise))

        try:
            graph = self._cache.capture(key, work, [t.to(self.device) for t in rows], passes)
        except RuntimeError as error:
            for p, grad in grads:
                p.grad = grad
            self._give_up(f"capture failed: {error}")
            return None
        finally:
            for group in opt.param_groups:  # a capture runs nothing
                group[STEP] = step
        self._moves = 0
        return graph

    def _replay(self, graph: Graph, rows: Rows) -> Tensor:
        assert self._options is not None
        opt, step = self.opt, self.opt.param_groups[0][STEP]
        self._options.upload()
        graph.replay(rows, step)
        outputs: _StepOutputs = graph.outputs
        loss = outputs.loss.clone()
        for group in opt.param_groups:
            group[STEP] = step + 1
        p, grad = outputs.grads[0]
        if graph is not self._grads_of or p.grad is not grad:  # another step ran, or zero_grad removed them
            self._grads_of = graph
            for p, grad in outputs.grads:
                p.grad = grad
            mark_left([p for p, _ in outputs.grads])
        opt.report, opt.passes_run = outputs.report, outputs.passes
        self._options.leave_on_device(self._guard.sets)
        return loss

    def _run_on_device(self, rows: Rows, n: int, noise: SameNoise | None) -> Tensor:
        """Runs a step that reads its options on the device and is skipped there if it is not finite."""
        assert self._options is not None
        opt = self.opt
        opt.device_guard, opt.pass_noise = self._guard, noise
        try:
            with self._options.installed():
                return self._run_step(rows[:n], rows[n:] or None)
        finally:
            opt.device_guard = opt.pass_noise = None

    def _on_device(self, rows: Rows) -> Rows:
        return [t.to(self.device, non_blocking=True) for t in rows]

    def _raise_nonfinite(self, wait: bool) -> None:
        """Raises if a captured step was not finite; all state is as before that step."""
        if self.opt.on_nonfinite == "raise":
            self._guard.check(self.opt.param_groups, wait)

    def _drop_graphs(self) -> None:
        self._cache.clear()
        if self._options is not None:
            self._options.download()  # or scalars that steps left in the groups stay there
        self._grads_of = self._options = self._memory = None

    def _give_up(self, why: str) -> None:
        self.why = why
        self._drop_graphs()
        self._warn()

    def _warn(self) -> None:
        warnings.warn(f"steps are not captured and run as they are: {self.why}", stacklevel=3)


def _gradients(opt: SharpnessAware) -> list[tuple[Tensor, Tensor | None]]:
    return [(p, p.grad) for g in opt.param_groups for p in g["params"]]
