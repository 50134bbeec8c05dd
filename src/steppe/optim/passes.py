"""One forward and backward pass of a step, run by the caller's own code."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import nullcontext
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

from ..core.probe import Probe
from ..core.rows import Rows, held_out, select, whole


class Pass:
    """What `passes()` yields: compute the loss on `rows(...)` of the batch, then call `backward` on it."""

    def __init__(self, probe: Probe, scaler: Any = None, look: bool = False):
        self.probe, self._scaler, self._look = probe, scaler, look
        self.graph: Tensor | None = None  # a loss with its graph, for a look at what it went through
        self.loss: Tensor | None = None
        self.losses: Tensor | None = None
        self.batch: int | None = None  # rows of the whole batch, where `rows` was asked
        self.ran = False
        self.went_back = False  # by `backward`; a plain closure may have gone back too, unseen

    @property
    def held_out(self) -> bool:
        """Whether this pass is on the held-out data instead of the batch."""
        return self.probe.rows is held_out

    def rows(self, *tensors: Any) -> Any:
        """The rows of the batch that this pass is on: `x, y = turn.rows(x, y)`."""
        picked, batch = select(self.probe.rows, tensors)
        if not self.held_out:
            self.batch = batch if self.batch is None else self.batch + batch
        return picked

    def backward(self, loss: Tensor) -> None:
        """Adds the gradient of a loss; of its mean, if it holds one number a row."""
        each, loss = (loss.detach().flatten(), loss.mean()) if loss.ndim else (None, loss)
        self._note(loss, each)
        if self.probe.grad:
            (loss if self._scaler is None else self._scaler.scale(loss)).backward()
            self.went_back = True

    def run(self, closure: Callable[..., Any], held: Callable[..., Any] | None) -> Any:
        """Answers the probe by a closure: a plain torch one, or one that takes this pass."""
        if self.held_out:
            if held is None:
                raise RuntimeError("the method looks at held-out data too: opt.step(closure, held_out=closure_for_it)")
            closure = held
        takes_turn = _takes_the_pass(closure)
        if not takes_turn and (self._partial or not self.probe.grad):
            raise TypeError(
                "the method looks at parts of the batch, so its closure takes the pass as argument:\n"
                "    def closure(turn):\n        a, b = turn.rows(x, y)\n"
                "        loss = loss_fn(model(a), b)\n        turn.backward(loss)\n        return loss"
            )
        with torch.enable_grad() if self.probe.grad else nullcontext():
            loss = closure(self) if takes_turn else closure()
        if not self.ran and loss is not None:
            loss_of_all = torch.as_tensor(loss)
            self._note(loss_of_all.mean() if loss_of_all.ndim else loss_of_all, None)
        self.ran = True
        # without its graph, which would otherwise live through the next pass
        return loss.detach() if isinstance(loss, Tensor) else loss

    def finish(self) -> None:
        """Refuses a pass that was not run as the method asked."""
        if not self.ran:
            raise RuntimeError(
                "a pass ended without a loss: call turn.backward(loss) in every `for turn in opt.passes()`"
            )
        if self._partial and self.batch is None:
            raise RuntimeError("this pass is on some rows of the batch only: take them with x, y = turn.rows(x, y)")

    @property
    def _partial(self) -> bool:
        rows: Rows = self.probe.rows
        return rows is not whole and rows is not held_out

    def _note(self, loss: Tensor, each: Tensor | None) -> None:
        self.graph, loss = loss if self._look else None, loss.detach()
        self.loss = loss if self.loss is None else self.loss + loss
        if each is not None:
            self.losses = each if self.losses is None else torch.cat([self.losses, each])
        self.ran = True


def _takes_the_pass(f: Callable[..., Any]) -> bool:
    """Whether a closure wants the pass: its first parameter has no default, or is called turn."""
    if isinstance(f, FunctionType) and not vars(f):  # nearly always; asking for a signature takes ten times as long
        code, optional = f.__code__, len(f.__defaults__ or ())
        return code.co_argcount > optional or code.co_varnames[: code.co_argcount][:1] == ("turn",)
    try:
        parameters = list(inspect.signature(f).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return bool(positional) and (positional[0].default is inspect.Parameter.empty or positional[0].name == "turn")
