"""Whole steps as CUDA graphs: every pass and the base update, launched at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..optim.engine import SharpnessAware
from ..optim.step import Pass
from .capturable import obstacle
from .captured import Captured, Passes, Rows
from .step_graphs import StepGraphs


def capture(
    opt: SharpnessAware,
    loss_fn: Callable[..., Tensor],
    model: nn.Module,
    example_batch: Rows,
    *,
    held_out: Rows | None = None,
    compile: bool | str = False,
) -> Captured:
    """A step of `opt` on the loss `loss_fn(model, *rows)` that a GPU takes in one launch: `loss = step(x, y)`.

    The first calls are ordinary steps; then all passes and the base update are recorded as a CUDA graph and replayed.
    Schedules of lr and rho, dropout, BatchNorm and random draws go on as in ordinary steps. Where a step cannot be
    recorded it is run as it is, and `step.why` says why. `compile=True`, or a mode of torch.compile, compiles it too.
    """
    for t in (*example_batch, *(held_out or ())):
        if not isinstance(t, Tensor):
            raise TypeError(f"a batch to capture is made of tensors, not {type(t).__name__}: give (inputs, targets)")
    if compile in ("reduce-overhead", "max-autotune"):
        raise ValueError(f"compile={compile!r} makes graphs of its own: give True or 'max-autotune-no-cudagraphs'")
    mode = compile if isinstance(compile, str) else None
    seen: Any = torch.compile(model, dynamic=False, mode=mode) if compile else model
    if compile:
        opt._statistics.track_always()
    return captured(opt, passes_of(opt, loss_fn, seen), model)


def captured(opt: SharpnessAware, passes: Passes, model: nn.Module) -> Captured:
    """Steps that are taken by a function, recorded as CUDA graphs where they can be."""
    why = obstacle(opt)
    device = opt.param_groups[0]["params"][0].device
    return Captured(opt, passes, model, StepGraphs(device) if why is None else why, lambda: obstacle(opt))


def passes_of(opt: SharpnessAware, loss_fn: Callable[..., Tensor], model: Any) -> Passes:
    """A whole step on the loss of a model, whose rows the method chooses."""

    def passes(batch: Rows, held: Rows | None) -> Tensor:
        def run(turn: Pass) -> Tensor:
            if turn.held_out and held is None:
                raise RuntimeError("the method looks at held-out data too: step(x, y, held_out=(x2, y2))")
            rows: Any = held if turn.held_out else turn.rows(*batch) if len(batch) > 1 else [turn.rows(*batch)]
            loss = loss_fn(model, *rows)
            turn.backward(loss)
            return loss.detach().mean()

        try:
            losses = opt.run_passes(run)
            opt.step()
        except BaseException:
            opt.zero_grad()  # and with it a plan that will not be applied
            raise
        return losses[0]

    return passes
