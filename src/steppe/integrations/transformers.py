"""A Trainer of Transformers whose optimizer steps are sharpness-aware."""

from __future__ import annotations

from copy import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._util.extras import explained
from ..core.probe import Method
from ..optim.build import build
from ..optim.engine import SharpnessAware, run_closure
from ..optim.step import Pass
from .engines import bind, check_no_static_graph, check_whole_batch, counted_once, engine_of, find_engine

with explained():
    from transformers import Trainer

OWN_BACKWARD = ("lomo", "layerwise")  # in the names of optimizers that step during the backward pass
GENERATES = ("_buffered_inputs", "generation_config")  # attributes of TRL's trainers that generate in training_step


class SharpnessAwareTrainer(Trainer):  # type: ignore[misc]
    """`Trainer` with sharpness-aware steps: every micro-batch of a step runs in every pass.

    Clipping, schedulers, callbacks, checkpoints and resuming are those of `Trainer`. The logged loss is that at the
    unperturbed weights, and so are counts and metrics that a subclass of `Trainer` keeps in its attributes: numbers,
    lists and dictionaries. A trainer of TRL becomes sharpness-aware by a class with both as parents, this one first.

    Parameters
    ----------
    *args, **kwargs
        As for `Trainer`.
    method
        A method such as `steppe.SAM(rho=0.05)`, or its name, around the optimizer that `Trainer` creates. None if
        `optimizers` or `optimizer_cls_and_kwargs` give a `SharpnessAware`.
    options
        Keyword arguments of `SharpnessAware`, such as `{"seed": 1}`, and of a method that is given by its name.

    """

    optimizer: Any

    def __init__(
        self, *args: Any, method: Method | str | None = None, options: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        self.method, self.options = method, options or {}
        if options and method is None:
            raise ValueError(f"options={options} are arguments of the SharpnessAware of method=, which is missing")
        self._batches: list[Any] = []  # the micro-batches of the step
        self._seen = 0  # how many of them `Trainer` has passed to `training_step`
        super().__init__(*args, **kwargs)
        if method is not None and isinstance(self.optimizer, SharpnessAware):
            raise ValueError("method= makes a SharpnessAware, and optimizers= has one already: give one of the two")

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """The optimizer of `Trainer`, inside a `SharpnessAware`."""
        name = str(getattr(self.args.optim, "value", self.args.optim))
        if self.optimizer is None and any(word in name for word in OWN_BACKWARD):
            raise ValueError(
                f"optim={name!r} steps during the backward pass, and a sharpness-aware step has several: use another "
                "optim, such as adamw_torch"
            )
        method = self.method if find_engine(self.optimizer) is None else None  # an earlier call of `train` made it
        base = super().create_optimizer(*args, **kwargs)
        if isinstance(method, str):
            self.optimizer = build(method, base, **self.options)
        elif method is not None:
            self.optimizer = SharpnessAware(base, method, **self.options)
        engine_of(self.optimizer)  # raises if there is none
        return self.optimizer  # type: ignore[no-any-return]

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> Any:
        self._batches, items = super().get_batch_samples(*args, **kwargs)
        self._seen = 0
        return self._batches, items

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Runs all passes at the last micro-batch of a step, and returns the loss of the first pass."""
        self._seen += 1
        if self._seen < len(self._batches):
            return torch.zeros((), device=self.args.device)  # its loss is part of that of the last one
        if self.is_deepspeed_enabled:
            raise RuntimeError("DeepSpeed runs backward passes and steps by itself: train with DDP or FSDP2 instead")
        if any(hasattr(self, name) for name in GENERATES):
            raise RuntimeError(
                f"{type(self).__name__} generates its batch in training_step, so every pass would see another one, and "
                "generate it at perturbed weights: use a trainer on given data, such as TRL's SFTTrainer or DPOTrainer"
            )
        engine = engine_of(self.optimizer)
        bind(engine, model, self.accelerator.scaler)
        engine.train()
        losses: list[Tensor] = []

        def run(pass_: Pass) -> None:
            check_whole_batch(pass_.probe, engine.method, "Trainer")
            with counted_once(len(losses), self, self.state, modules=vars(self).values()):
                losses.append(run_closure(pass_, lambda: self._all_micro_batches(model, num_items_in_batch)))

        self._batches = self._batches or [inputs]
        engine.run_passes(run)
        return losses[0]

    def _all_micro_batches(self, model: nn.Module, num_items_in_batch: Any) -> Tensor:
        *first, last = self._batches
        losses: list[Tensor] = []
        for batch in first:
            check_no_static_graph(model)
            with self.accelerator.no_sync(model):
                losses.append(super().training_step(model, copy(batch), num_items_in_batch))
        losses.append(super().training_step(model, copy(last), num_items_in_batch))
        return torch.stack(losses).sum()
