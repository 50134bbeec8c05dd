"""The training loop of all methods; it resumes from any step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ..core.draw import seed_of, seed_torch
from ..core.process_group import Workers
from ..cuda.capture import CapturedStep
from ..data.dataset import Splits
from ..methods.facts import sets_lr
from ..optim.base import STEP
from ..optim.step import Pass
from .batches import Batch, BatchSource
from .checkpoint import Checkpoint, Header, Record, RecordsPrefix, append_record, commit
from .config import NOISE, Config
from .distributed import agreed, align_, wrapped
from .evaluate import autocast, record_of
from .loggers import Logger, rows
from .model import Init, channels_last, load_init_, model_of, prune_
from .problem import FACTOR, moved, optimizer_of, task_of, trained_loss
from .progress import Bars, Lines
from .schedule import Position, Timeline, learning_rate, prune_step
from .state import TrainState, averages_of
from .stopping import Stopped, StopRequest

AGREE = 16  # steps between exchanges with other processes about stopping and saving: each one synchronises
PAUSE = 10.0
"""Seconds between checkpoints at the ends of short epochs: what a killed process repeats at most, beside one epoch. A
checkpoint can take as long as a short epoch: 0.35 s for a ResNet-18 of width 32 (2.8 million weights, momentum)."""


class Training:
    """A run that is being trained in this process."""

    def __init__(
        self,
        config: Config,
        path: Path,
        splits: Splits,
        workers: Workers,
        device: torch.device,
        resumed: bool = False,
    ):
        self.config, self.path, self.workers, self.device = config, path, workers, device
        self._alone, self._rank = workers.group is None, workers.rank
        self.task = task = task_of(splits)
        self.splits, self.loss = moved(splits, device), trained_loss(config, task)
        self.batches = BatchSource.of(config, self.splits, task, workers, path)
        per_epoch = len(self.batches.feed)
        self.timeline = Timeline(config.steps or config.epochs * per_epoch, per_epoch)
        model = model_of(config, task.shape, task.outputs)
        self.init: Init | None = None
        if config.init is not None and not resumed:  # a checkpoint of the run replaces these weights
            self.init = load_init_(model, config.init, config, task.shape, task.outputs)
        if channels_last(config, task.shape, device):
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing in torch's stubs
        model = wrapped(model.to(device), workers, device, config.fsdp)
        self.state = TrainState(model, optimizer_of(config, model, self.timeline, task), averages_of(config), workers)
        if config.compile and workers.count > 1:
            raise ValueError("compile works in one process, and there are several: leave it out")
        # in steps only: evaluation has other shapes
        self._called: Any = torch.compile(model, dynamic=False) if config.compile else model
        self._groups = self.state.opt.param_groups
        self._autocast, self._sets_lr = autocast(config, device), sets_lr(config.method)
        self.position, self.records = Position(), list[Record]()
        self._prefix = RecordsPrefix()
        self._saved_header: Header | None = None  # of the last checkpoint
        self._unlogged: list[Record] = []  # of epochs after the last checkpoint
        self._refused = 0  # steps that the device skipped, as of the last count
        self.check_folder: Callable[[], None] = lambda: None  # raises if another folder has replaced the run's
        self.lean = False  # a finished run keeps its weights and records alone
        self._captured: CapturedStep | None = None

    def capture(self) -> None:
        """Capture steps as CUDA graphs from now on, where they can be."""
        if self.device.type == "cuda" and self.config.capture and self.workers.count == 1:
            self._captured = CapturedStep(self.state.opt, self._without_mask, self.state.module)

    def _without_mask(self, rows: Sequence[Tensor], held_out: Sequence[Tensor] | None) -> Tensor:
        held = None if held_out is None else (held_out[0], held_out[1])
        self._passes(Batch((rows[0], rows[1]), held, None))
        return self.state.sums.totals[0]

    def load(self, done: Checkpoint) -> None:
        """Restore the state of a checkpoint."""
        self.state.load(done.weights, done.state)
        self._groups = self.state.opt.param_groups
        self.position, self.records, self._prefix = done.about.position, list(done.records), done.about.records
        self._saved_header = done.about

    def run(
        self, stop_request: StopRequest, display: Lines | Bars, loggers: Sequence[Logger] = (), until: int | None = None
    ) -> None:
        """Train to the end of the run or of epoch `until`; raise `Stopped` after a signal."""
        self._stop_request, self._display, self._loggers = stop_request, display, loggers
        self._saved = monotonic()
        self._last = self.timeline.epochs if until is None else min(until, self.timeline.epochs)
        try:
            while self.position.epoch < self._last:
                self._train_epoch()
                self._end_epoch()
        except FloatingPointError as error:
            # name the run's setting instead of the engine's option
            why = str(error).replace(
                "SharpnessAware(..., on_nonfinite='skip')", "on_nonfinite skip (--on-nonfinite skip)"
            )
            raise FloatingPointError(
                f"{self.path}, {self.position}: {why} The folder keeps the last checkpoint before this. "
                "The same command would fail again: give other settings and another --out."
            ) from error

    def _train_epoch(self) -> None:
        length = self.timeline.length(self.position.epoch)
        self._clock = perf_counter()
        for batch in islice(self.batches.epoch(self.position.epoch, self.position.step), length - self.position.step):
            number = self._begin_step()
            if self._captured is None or batch.sharp is not None:
                self._passes(batch)
            else:  # Python code, which counts passes, runs only during the capture
                passes = self.state.passes
                self._captured(*batch.rows, held_out=batch.held_out)
                self.state.passes = passes + self.state.opt.passes_run
            self.position = Position(self.position.epoch, self.position.step + 1)
            if self.state.averages and self._number != number:
                self._average(every_step=True)
            every = self.config.log_every
            if every and (taken := self.timeline.taken(self.position)) % every == 0:
                self.state.mark(taken)
            self._display.stepped(self.position, self.state.sums)
            if self._alone or self.position.step % AGREE == 0 or self.position.step == length:
                self._stop_or_save()
        self._count_time()

    @property
    def _number(self) -> int:
        """The number of steps that the engine has applied."""
        return int(self._groups[0][STEP])

    def _begin_step(self) -> int:
        """Prune if it is due, set the random seed and the learning rate; return the number of steps applied so far."""
        config, state, steps = self.config, self.state, self.timeline.steps
        step = self.position.epoch * self.timeline.per_epoch + self.position.step
        seed_torch(seed_of(config.seed, NOISE, step, self._rank))  # dropout depends on the step alone
        if config.prune and step == prune_step(config, steps):
            prune_(state.module, config.prune, state.opt.state)
        if config.fsdp:
            align_(self.workers, state.module)  # DDP does this itself
        if step == 0 or not self._sets_lr:
            rate = learning_rate(config, step, steps)
            for group in self._groups:
                group["lr"] = rate * group.get(FACTOR, 1.0)
        return self._number

    def _passes(self, batch: Batch) -> None:
        """Run one step: the passes of the method and one step of the base optimizer."""
        config, state, opt = self.config, self.state, self.state.opt
        number, before, counted = self._number, state.sums.totals.clone(), 0

        def run(pass_: Pass) -> None:
            nonlocal counted
            rows = batch.held_out if pass_.held_out else batch.rows
            if rows is None:
                raise ValueError(f"{config.method} needs held-out rows: set held_out to a fraction above 0")
            x, y = pass_.rows(*rows)
            with self._autocast:
                output = self.task.call(self._called, x)
            losses = self.loss(output, y)
            # count every row once: at the unperturbed weights if the method evaluates there
            if not pass_.held_out and (pass_.probe.at is None or not counted) and counted < len(batch.rows[1]):
                state.sums.add(losses, self.loss.correct(output, y))
                counted += len(losses)
            pass_.backward(losses)
            state.passes += 1

        opt.run_passes(run, mask=batch.sharp)
        if config.clip is not None:
            clip_grad_norm_([p for g in self._groups for p in g["params"]], config.clip)
        opt.step()
        if self._number == number:  # the engine skipped a non-finite step
            state.sums.totals.copy_(before)
            state.skipped += 1
        elif opt.device_guard is not None:  # a captured step, which the device may skip
            opt.device_guard.undo_(state.sums.totals, before)

    def _average(self, every_step: bool) -> None:
        """Update the averages that are due at this position."""
        steps = self.timeline.taken(self.position)
        for average in self.state.averages.values():
            if average.every_step == every_step and steps > average.start * self.timeline.steps:
                average.update(self.state.tensors())

    def _stop_or_save(self) -> None:
        stop, save = bool(self._stop_request.why), monotonic() - self._saved >= self.config.checkpoint_every
        if not self._alone:
            stop, save = agreed(self.workers, stop, save)
        if stop or save:
            self._count_time()
            self._commit()
        if stop:
            raise Stopped(self.path, self.position, self._stop_request.why or "another process")

    def _end_epoch(self) -> None:
        state = self.state
        self._average(every_step=False)
        record = record_of(state, self.position, self.timeline, self.config, self.splits, self.task)
        self._check_finite()
        self.position = Position(self.position.epoch + 1)
        state.start_epoch()

        def write() -> None:
            if self._rank == 0:
                self.check_folder()
                as_read, self._prefix = append_record(self.path, record, self._prefix)
                self.records.append(as_read)

        self.workers.together(write)
        self._unlogged.append(record)
        # the first epoch, so that a folder with several records has a checkpoint; the last but one, from which a
        # longer run resumes
        needed = self.position.epoch in (1, self._last - 1, self._last)
        due = monotonic() - self._saved >= min(PAUSE, self.config.checkpoint_every)
        if any(agreed(self.workers, needed or due)):
            self._commit(finished=self.position.epoch == self.timeline.epochs)
        self._display.recorded(record)

    def _commit(self, finished: bool = False) -> None:
        """Write a checkpoint, and log the records that it contains."""
        self._check_finite()
        weights, rest = self.state.snapshot()  # all workers take part

        def write() -> None:
            if self._rank == 0:
                self.check_folder()
                lean = self.lean and finished and not self.state.averages
                header = Header.of(self.position, self._prefix, finished, lean=lean)
                commit(self.path, weights, rest, header, self._saved_header)
                self._saved_header = header

        self.workers.together(write)
        self._saved = monotonic()
        for record in self._unlogged:
            for step, values in rows(record):
                for each in self._loggers:
                    each.log_metrics(step, values)
        self._unlogged = []

    def _check_finite(self) -> None:
        if any(agreed(self.workers, self.state.has_nonfinite())):
            raise FloatingPointError("a loss or a weight is not finite. Lower the learning rate or rho.")

    def _count_time(self) -> None:
        """Add the time since the last count to the epoch's, and the steps that the device skipped meanwhile."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self._captured is not None:
            refused = self._captured.skipped
            self.state.skipped, self._refused = self.state.skipped + refused - self._refused, refused
        now = perf_counter()
        self.state.seconds += now - self._clock
        self._clock = now
