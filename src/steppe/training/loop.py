"""One training loop for all methods: it goes on from wherever its folder says that it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic, perf_counter

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ..core.draw import seed_of, seed_torch
from ..core.process_group import Workers
from ..cuda.capture import captured
from ..cuda.captured import Captured
from ..data.dataset import Splits
from ..optim.passes import Pass
from ..optim.site import STEP
from . import records
from .averages import averages_of
from .checkpoint import Kept, Loaded, commit
from .config import Config
from .distributed import agreed, align_, together, wrapped
from .epoch_end import record_of
from .evaluate import autocast
from .known import as_setting
from .loggers import Logger, numbers
from .optimizer import optimizer_of, sets_lr
from .position import Course, Position
from .problem import NOISE, Task, model_of, moved, trained_loss
from .progress import Watcher
from .records import Record
from .schedule import learning_rate
from .stopping import Stopped, Wish
from .supply import Batch, Rows, Supply
from .trainee import Trainee

AGREE = 16  # steps between two questions to the other processes whether to stop or to save: each question waits


class Training:
    """A run under way in this process."""

    def __init__(self, config: Config, path: Path, splits: Splits, task: Task, workers: Workers, device: torch.device):
        self.config, self.path, self.workers, self.device = config, path, workers, device
        self.splits, self.task, self.loss = moved(splits, device), task, trained_loss(config, task)
        self.supply = Supply.of(config, self.splits, task, workers, path)
        per_epoch = len(self.supply.feed)
        self.course = Course(config.steps or config.epochs * per_epoch, per_epoch)
        model = wrapped(model_of(config, task.shape, task.outputs).to(device), workers, device, config.fsdp).train()
        self.trainee = Trainee(model, optimizer_of(config, model, self.course), averages_of(config), workers)
        self.own_lr = sets_lr(self.trainee.opt)
        self.position, self._records, self._refused = Position(), Kept(), 0  # refused: steps, as far as counted
        self.mine: Callable[[], None] = lambda: None  # raises if the folder is another's
        self._captured: Captured | None = None

    def capture(self) -> None:
        """From now on steps are recorded and replayed, where they can be."""
        if self.device.type == "cuda" and self.config.capture and self.workers.count == 1:
            self._captured = captured(self.trainee.opt, self._alone, self.trainee.bare)

    def _alone(self, rows: Sequence[Tensor], held_out: Sequence[Tensor] | None) -> Tensor:
        held = None if held_out is None else (held_out[0], held_out[1])
        self._passes(Batch((rows[0], rows[1]), held, None))
        return self.trainee.sums.totals[0]

    def go_back_to(self, done: Loaded) -> None:
        """Takes up the state of a checkpoint."""
        self.trainee.load(done.weights, done.state)
        self.position, self._records = done.about.position, records.known(self.path, done.about.records)

    def run(self, wish: Wish, watcher: Watcher, loggers: Sequence[Logger] = (), until: int | None = None) -> None:
        """Trains to the end of the run or of an epoch, or until somebody wishes otherwise."""
        self._wish, self._watcher, self._loggers = wish, watcher, loggers
        self._saved = monotonic()
        last = self.course.epochs if until is None else min(until, self.course.epochs)
        try:
            while self.position.epoch < last:
                self._train_epoch()
                self._end_epoch()
        except FloatingPointError as error:
            raise FloatingPointError(
                f"{self.path}, {self.position}: {as_setting(error)} The folder keeps the records and the last "
                "checkpoint before this. The same command would come here again: give other settings and another --out."
            ) from error

    def _train_epoch(self) -> None:
        length = self.course.length(self.position.epoch)
        self._clock = perf_counter()
        for batch in islice(self.supply.epoch(self.position.epoch, self.position.step), length - self.position.step):
            number = self._set_out()
            if self._captured is None or batch.sharp is not None:
                self._passes(batch)
            else:
                self._replay(self._captured, batch)
            self.position = self.position.stepped()
            if self._number != number:
                self._average(self.course.taken(self.position), every_step=True)
            self._watcher.stepped(self.position, self.trainee.sums)
            if self.workers.count == 1 or self.position.step % AGREE == 0 or self.position.step == length:
                self._stop_or_save()
        self._count_time()

    @property
    def _number(self) -> int:
        """How many steps the engine has taken."""
        return int(self.trainee.opt.param_groups[0][STEP])

    def _set_out(self) -> int:
        """Sets out on a step with its noise and its learning rate, and returns its number."""
        config, trainee, opt = self.config, self.trainee, self.trainee.opt
        step = self.course.taken(self.position)
        seed_torch(seed_of(config.seed, NOISE, step, self.workers.rank))  # dropout is a function of the step
        if config.fsdp:
            align_(self.workers, trainee.bare)  # as DDP does by itself
        if step == 0 or not self.own_lr:
            for group in opt.param_groups:
                group["lr"] = learning_rate(config, step, self.course.steps)
        return self._number

    def _passes(self, batch: Batch) -> None:
        """One step of the method: however many passes it asks for, and one of the base optimizer."""
        config, trainee, opt = self.config, self.trainee, self.trainee.opt
        number, before, counted = self._number, trainee.sums.totals.clone(), 0

        def run(turn: Pass) -> None:
            nonlocal counted
            x, y = turn.rows(*self._rows(batch, turn.held_out))
            with autocast(config, self.device):
                output = trainee.model(x)
            losses = self.loss(output, y)
            # every row once, at the weights themselves if the method goes there
            if not turn.held_out and (turn.probe.at is None or not counted) and counted < len(batch.rows[1]):
                trainee.sums.add(losses, output, y, self.loss)
                counted += len(losses)
            turn.backward(losses)
            trainee.passes += 1

        opt.run_passes(run, mask=batch.sharp)
        if config.clip is not None:
            clip_grad_norm_([p for g in opt.param_groups for p in g["params"]], config.clip)
        opt.step()
        if self._number == number:  # the engine refused a step that was not finite
            trainee.sums.totals.copy_(before)
            trainee.skipped += 1
        elif opt.applying is not None:  # it refuses them on the device, unseen
            opt.applying.undo_(trainee.sums.totals, before)

    def _replay(self, captured: Captured, batch: Batch) -> None:
        """The same without the passes of a step that was recorded: Python counts them only when they are recorded."""
        taken = self.trainee.passes + self.trainee.opt.method.cost(self._number)
        captured(*batch.rows, held_out=batch.held_out)
        self.trainee.passes = taken

    def _average(self, taken: int, every_step: bool) -> None:
        """Counts the weights after so many steps in the averages that count them."""
        for average in self.trainee.averages.values():
            if average.every_step == every_step and taken > average.start * self.course.steps:
                average.take(self.trainee.tensors())

    def _rows(self, batch: Batch, held_out: bool) -> Rows:
        if not held_out:
            return batch.rows
        if batch.held_out is None:
            raise ValueError(f"{self.config.method} looks at held-out rows here: set held_out to a fraction above 0")
        return batch.held_out

    def _stop_or_save(self) -> None:
        due = monotonic() - self._saved >= self.config.checkpoint_every
        stop, save = agreed(self.workers, bool(self._wish.why), due)
        if stop or save:
            self._count_time()
            self._commit()
        if stop:
            raise Stopped(self.path, self.position, self._wish.why or "another process")

    def _end_epoch(self) -> None:
        trainee = self.trainee
        self._average(self.course.taken(self.position), every_step=False)
        record = record_of(trainee, self.position, self.course, self.config, self.splits, self.task)
        self._refuse_nonfinite()
        self.position = self.position.recorded()
        trainee.start_epoch()
        together(self.workers, lambda: self._write(record))
        self._commit(finished=self.position.epoch == self.course.epochs)
        for each in self._loggers:
            each.log_metrics(record["step"], numbers(record))
        self._watcher.recorded(record)

    def _write(self, record: Record) -> None:
        if self.workers.rank == 0:
            self.mine()
            self._records = records.write(self.path, record, self._records)

    def _commit(self, finished: bool = False) -> None:
        """Makes this the place that the run goes on from."""
        self._refuse_nonfinite()
        weights, state = self.trainee.weights(), self.trainee.state()  # all workers take part

        def write() -> None:
            if self.workers.rank == 0:
                self.mine()
                commit(self.path, weights, state, self.position, self._records, finished)

        together(self.workers, write)
        self._saved = monotonic()

    def _refuse_nonfinite(self) -> None:
        if any(agreed(self.workers, self.trainee.broken())):
            raise FloatingPointError("a loss or a weight is not finite. Lower the learning rate or rho.")

    def _count_time(self) -> None:
        """Adds the time since the last count to the epoch's, and the steps that were refused unseen meanwhile."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        if self._captured is not None:
            refused = self._captured.skipped
            self.trainee.skipped, self._refused = self.trainee.skipped + refused - self._refused, refused
        now = perf_counter()
        self.trainee.seconds += now - self._clock
        self._clock = now
