"""`passes()` for an optimizer that `Accelerator.prepare` has wrapped."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, TypeVar

from torch import Tensor, nn

from .._util.extras import explained
from ..optim.misuse import NO_ACCUMULATION
from ..optim.step import Pass
from .engines import bind, engine_of, no_sync

with explained():
    from accelerate.optimizer import AcceleratedOptimizer

B = TypeVar("B")


def passes(
    prepared: Any, *, model: nn.Module | None = None, accumulate: bool = False, mask: Tensor | None = None
) -> Generator[Pass]:
    """`SharpnessAware.passes` for a prepared optimizer, with the scaler of the accelerator.

    Call `pass_.backward(loss)` in every pass, then `accelerator.clip_grad_norm_` if gradients are clipped, then
    `prepared.step()`.

    Parameters
    ----------
    prepared
        What `accelerator.prepare` returned for a `SharpnessAware`.
    model
        The prepared model: its running statistics change once per step, and methods reach its DDP wrapper. None: the
        model of the optimizer.
    accumulate, mask
        As in `SharpnessAware.passes`.

    """
    if type(prepared) is not AcceleratedOptimizer:
        raise TypeError(
            f"passes takes the optimizer that accelerator.prepare returns, not {type(prepared).__name__}; DeepSpeed "
            "and Megatron-LM run backward passes and steps by themselves, and are not supported"
        )
    if (steps := prepared.gradient_state.num_steps) > 1:
        raise RuntimeError(NO_ACCUMULATION.format(steps))
    engine = engine_of(prepared)
    bind(engine, model, prepared.scaler)
    return engine.passes(accumulate=accumulate, mask=mask)


def micro_batches(batches: Iterable[B], model: nn.Module) -> Generator[B]:
    """Yields the micro-batches of a step; with DDP only the last one synchronizes gradients.

    Parameters
    ----------
    batches
        The micro-batches.
    model
        The prepared model.

    """
    *first, last = batches
    for batch in first:
        with no_sync(model):
            yield batch
    yield last
