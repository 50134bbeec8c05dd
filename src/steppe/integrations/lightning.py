"""Sharpness-aware steps in Lightning's automatic and manual optimization, and a callback that measures."""

from __future__ import annotations

import inspect
from collections.abc import Generator, Mapping
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor

from .._util.extras import explained
from ..core.rows import whole
from ..measures.run import measure
from ..optim.engine import SharpnessAware, run_closure
from ..optim.step import Pass
from .engines import bind, counted_once, engine_of, no_sync

with explained():
    from lightning.fabric import wrappers as fabric_wrappers
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.plugins.precision import MixedPrecision, Precision
    from lightning.pytorch.strategies import DDPStrategy, Strategy
    from lightning.pytorch.trainer.call import _call_strategy_hook

WRAPPED = "_runs_in_passes"  # on a training_step


class SharpnessAwareSteps:
    """Mix in before `LightningModule`; `training_step` stays as it is written for automatic optimization.

    With it `accumulate_grad_batches`, `gradient_clip_val`, GradScalers, hooks around the step, and methods on parts of
    the batch are right: every micro-batch of a step runs in every pass, and the resulting gradient is clipped once.
    `self.log` logs in the first pass only, and metrics of torchmetrics count it alone. The model, with its wrapper, and
    the scaler reach the engine by themselves.
    Micro-batches before the last of a step run together with that one: the loss in their `outputs` is 0.
    """

    _pass: Pass | None = None  # while a pass runs
    _first_pass = True
    _held: tuple[tuple[Any, ...], ...] = ()  # arguments of `training_step` of the earlier micro-batches

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if getattr(cls, "optimizer_step", None) is getattr(LightningModule, "optimizer_step", None):
            raise TypeError(
                f"{cls.__name__} has LightningModule before SharpnessAwareSteps, whose steps it replaces: write class "
                f"{cls.__name__}(SharpnessAwareSteps, LightningModule)"
            )
        training_step: Any = getattr(cls, "training_step", None)  # of this class, or of a parent that is not wrapped
        if training_step is not getattr(LightningModule, "training_step", None) and not hasattr(training_step, WRAPPED):
            _check_no_iterators(cls.__name__, training_step)
            cls.training_step = _inside_passes(training_step)  # type: ignore[attr-defined]

    @property
    def first_pass(self) -> bool:
        """Whether a step is in its first pass: the place to count what no metric of torchmetrics counts."""
        return self._first_pass

    def log(self, *args: Any, **kwargs: Any) -> None:
        """`LightningModule.log`, in the first pass of a step only."""
        if self._first_pass:
            super().log(*args, **kwargs)  # type: ignore[misc]

    def on_train_epoch_start(self) -> None:
        self._held = ()  # of an epoch that was left
        super().on_train_epoch_start()  # type: ignore[misc]

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        """Runs all passes, the hooks around the step once, and the step."""
        trainer: Any = self.trainer  # type: ignore[attr-defined]
        _check_no_own_steps(trainer.strategy)
        if trainer.fit_loop._skip_backward:  # StochasticWeightAveraging computes running statistics, without steps
            optimizer_closure()
            return
        engine = engine_of(optimizer)
        scaler = _bound_scaler(engine, trainer)
        result = None
        try:
            for number, pass_ in enumerate(passes := engine.passes()):
                self._pass, self._first_pass = pass_, number == 0
                with counted_once(number, modules=[self]):
                    run_closure(pass_, lambda pass_: self._all_micro_batches(trainer, optimizer_closure))
                result = result or optimizer_closure._result
        finally:
            passes.close()
            self._pass, self._first_pass, self._held = None, True, ()
        optimizer_closure._result = result  # of the unperturbed weights
        trainer.precision_plugin._after_closure(self, optimizer)
        if scaler is None:
            engine.step()
        else:
            scaler.step(engine)
            scaler.update()

    def _all_micro_batches(self, trainer: Any, last: Any) -> Tensor:
        strategy, logged, losses = trainer.strategy, trainer._results, []
        batch = logged.batch
        try:
            for args in self._held:
                logged.batch, logged.batch_size = args[0], None  # means over an epoch are weighted by rows
                with no_sync(strategy.model):
                    output = _call_strategy_hook(trainer, "training_step", *args)
                    loss = _loss_of(output) / trainer.accumulate_grad_batches
                    strategy.backward(loss, None)
                losses.append(loss.detach())
        finally:
            logged.batch, logged.batch_size = batch, None
        losses.append(_loss_of(last()))
        return torch.stack(losses).sum()


def _inside_passes(training_step: Any) -> Any:
    """Keeps the batch until its step, and runs `training_step` on the rows of the pass."""

    @wraps(training_step)
    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        if getattr(self, "_nested", False) or not self.automatic_optimization or self.trainer.fit_loop._skip_backward:
            return training_step(self, *args, **kwargs)
        if self._pass is None:
            if not self.trainer.fit_loop._should_accumulate():  # the last micro-batch, which `optimizer_step` runs
                raise RuntimeError(
                    f"{type(self).__name__}.optimizer_step runs the closure itself, and SharpnessAwareSteps runs it "
                    "once per pass: in its place call super().optimizer_step(epoch, batch_idx, optimizer, "
                    "optimizer_closure)"
                )
            self._held = (*self._held, args)
            return torch.zeros((), device=self.device, requires_grad=True)
        self._nested = True  # training_step of a parent class is wrapped too
        try:
            return training_step(self, *_rows(self._pass, args), **kwargs)
        finally:
            self._nested = False

    setattr(step, WRAPPED, True)
    return step


def _rows(pass_: Pass, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of `training_step` with the rows of the pass."""
    if pass_.held_out or not pass_.probe.grad:
        raise RuntimeError(
            "the method uses held-out data or losses without gradients, which automatic optimization does not have: "
            "set automatic_optimization = False and write a loop over steppe.integrations.lightning.passes(opt)"
        )
    if pass_.probe.rows is whole:
        return args
    batch, *others = args
    if isinstance(batch, Tensor):
        return pass_.rows(batch), *others
    if isinstance(batch, tuple | list) and all(isinstance(x, Tensor) for x in batch):
        picked = pass_.rows(*batch)
        return type(batch)(picked if len(batch) > 1 else [picked]), *others
    if isinstance(batch, Mapping) and all(isinstance(x, Tensor) for x in batch.values()):
        picked = pass_.rows(*batch.values())
        return dict(zip(batch, picked if len(batch) > 1 else [picked], strict=True)), *others
    raise TypeError(
        f"the method uses parts of the batch, and this batch is a {type(batch).__name__}: use a tensor, or a tuple or "
        "dictionary of tensors with one row per example"
    )


def _loss_of(output: Any) -> Tensor:
    loss = output.get("loss") if isinstance(output, Mapping) else output
    if loss is None:
        raise RuntimeError(
            "training_step returned no loss, and every pass of a sharpness-aware step needs one: filter such batches "
            "in the data loader"
        )
    return loss  # type: ignore[no-any-return]


def _check_no_iterators(name: str, training_step: Any) -> None:
    if "dataloader_iter" in inspect.signature(training_step).parameters:
        raise TypeError(
            f"{name}.training_step takes the iterator of the data loader, and a sharpness-aware step runs it "
            "several times on one batch: take the batch, training_step(self, batch, batch_idx)"
        )


def _check_no_own_steps(strategy: Any) -> None:
    """Raises for strategies and precisions that do more than call `optimizer.step`, which would be left out."""
    parts = (strategy, (Strategy, DDPStrategy)), (strategy.precision_plugin, (Precision, MixedPrecision))
    for part, known in parts:
        own = type(part).optimizer_step not in [kind.optimizer_step for kind in known]
        if own or getattr(part, "handles_gradient_accumulation", False) or getattr(part, "_model_averager", None):
            raise RuntimeError(
                f"{type(part).__name__} accumulates, steps or averages weights by itself, which is one pass per step: "
                "use a strategy such as ddp, without averaging of models, and a precision such as bf16-mixed"
            )


def _bound_scaler(engine: SharpnessAware, trainer: Any) -> Any:
    """The GradScaler of the trainer; the engine receives it and the model with its wrapper."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    bind(engine, trainer.strategy.model, scaler)
    return scaler


def _module_of(optimizer: Any) -> Any:
    """The LightningModule of a LightningOptimizer; None for other optimizers, Fabric's too."""
    return getattr(getattr(optimizer, "_strategy", None), "lightning_module", None)


def passes(
    optimizer: Any, *, model: Any = None, accumulate: bool = False, mask: Tensor | None = None
) -> Generator[Pass]:
    """`SharpnessAware.passes` for the optimizer of `self.optimizers()`, or of `Fabric.setup`.

    `pass_.backward(loss)` is the backward pass of the library, which synchronizes workers and scales losses. In manual
    optimization apply the gradient by `step(opt)` of this module: it counts in `global_step`.

    Parameters
    ----------
    optimizer
        A `LightningOptimizer`, an optimizer of Fabric, or a `SharpnessAware`.
    model
        With Fabric the model of `Fabric.setup`: its running statistics change once per step, and methods reach its DDP
        wrapper. Not needed with a `LightningOptimizer`.
    accumulate, mask
        As in `SharpnessAware.passes`.

    """
    engine, module, strategy = engine_of(optimizer), _module_of(optimizer), getattr(optimizer, "_strategy", None)
    run_backward: Any = None
    if module is not None:
        _check_no_own_steps(module.trainer.strategy)
        _bound_scaler(engine, module.trainer)
        run_backward = module.manual_backward
    elif strategy is not None:
        bind(engine, getattr(model, "_forward_module", model), getattr(strategy.precision, "scaler", None))
        run_backward = partial(_fabric_backward, strategy)
    elif model is not None:
        bind(engine, model, engine.scaler)
    passes = engine.passes(accumulate=accumulate, mask=mask)
    return _with_backward(passes, run_backward, model if module is None else module)


def _with_backward(passes: Generator[Pass], run_backward: Any, model: Any) -> Generator[Pass]:
    try:
        for number, pass_ in enumerate(passes):
            pass_.run_backward = run_backward
            with counted_once(number, modules=[model]):
                yield pass_
    finally:
        passes.close()


def _fabric_backward(strategy: Any, loss: Tensor) -> None:
    """`Fabric.backward` without the Fabric, which its optimizers do not know."""
    fabric_wrappers._in_fabric_backward = True
    try:
        strategy.backward(loss, None)
    finally:
        fabric_wrappers._in_fabric_backward = False


def step(optimizer: Any) -> Any:
    """Applies the gradient of `passes(opt)` in manual optimization, and returns the loss of the first pass.

    Clip the gradient before by `self.clip_gradients`.

    Parameters
    ----------
    optimizer
        The optimizer of `self.optimizers()`.

    """
    engine, module = engine_of(optimizer), _module_of(optimizer)
    if module is None:
        raise TypeError(
            f"step takes an optimizer of self.optimizers(), not {type(optimizer).__name__}: call opt.step()"
        )
    precision = module.trainer.precision_plugin
    if getattr(precision, "scaler", None) is not None:
        return optimizer.step()  # steps the scaler, without a closure
    # LightningOptimizer.step passes a closure that does nothing, and the gradient is there already
    optimizer._on_before_step()
    precision._after_closure(module, engine)
    loss = engine.step()
    optimizer._on_after_step()
    return loss


class SharpnessMonitor(Callback):  # type: ignore[misc]
    """Measures the model at the end of every k-th epoch and logs each value and its standard error.

    Parameters
    ----------
    data, loss_fn, measures, **options
        As in `steppe.measure`.
    every
        The number of epochs between measurements.

    """

    def __init__(self, data: Any, loss_fn: Any = None, measures: Any = "lambda_max", *, every: int = 1, **options: Any):
        if every < 1:
            raise ValueError(f"every is a number of epochs from 1 on, not {every}")
        self.data, self.loss_fn, self.measures, self.every, self.options = data, loss_fn, measures, every, options

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if (trainer.current_epoch + 1) % self.every:
            return
        modes = {module: module.training for module in pl_module.modules()}
        pl_module.eval()
        try:
            results = measure(pl_module, self.loss_fn, self.data, self.measures, progress=False, **self.options)
        finally:
            for module, mode in modes.items():
                module.training = mode
        if results.failures:
            raise RuntimeError("; ".join(f"{name}: {why}" for name, why in results.failures.items()))
        for name in results:
            pl_module.log(name, results[name].value)
            pl_module.log(f"{name}_stderr", results[name].stderr)
