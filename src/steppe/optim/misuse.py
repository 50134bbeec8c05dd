"""Errors for code that looks right and cannot work: what was passed, and what to write instead."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from .._util.names import unknown
from ..core.arguments import described
from ..methods.registry import METHODS
from .finite import enabled

NO_FIRST_STEP = (
    "SharpnessAware has no first_step() and second_step(): a step may have any number of passes. Write\n"
    "    for pass_ in opt.passes():\n        pass_.backward(loss_fn(model(x), y))\n    opt.step()\n"
    "or opt.step(closure)."
)

PLAN_PENDING = (
    "step(closure) was called while the gradient of passes() waits in p.grad: apply it by opt.step(), or drop it by "
    "opt.zero_grad()"
)

PASSES_PENDING = (
    "passes() was called while the gradient of earlier passes() waits in p.grad, and would replace it: apply that by "
    "opt.step(), add micro-batches to it by opt.passes(accumulate=True), or drop it by opt.zero_grad()"
)

SCALED_TWICE = (
    "pass_.backward was given a loss that scaler.scale has scaled, and scales it itself: write pass_.backward(loss)"
)

TAKES_NO_PASS = (
    "the method uses parts of the batch, so its closure takes the pass as argument:\n"
    "    def closure(pass_):\n        a, b = pass_.rows(x, y)\n"
    "        loss = loss_fn(model(a), b)\n        pass_.backward(loss)\n        return loss"
)

NO_HELD_OUT = "the method uses held-out data too: opt.step(closure, held_out=closure_for_it)"

NOT_SCALED = (
    "the closure ran its backward pass without the scaler of SharpnessAware(..., scaler=scaler), whose scale every "
    "gradient is divided by: write scaler.scale(loss).backward(), or pass_.backward(loss) in a closure(pass_)"
)

UNKNOWN_SCALER = (
    "a GradScaler was asked to step a SharpnessAware that has none, so the passes saw scaled losses and gradients: "
    "make it by SharpnessAware(..., scaler=scaler), and write pass_.backward(loss)"
)

COPIED_DISPLACED = (
    "the model was copied or pickled in a loop over passes(), while its weights are displaced: do that after the loop, "
    "or after opt.close_unfinished(), which restores the weights of a loop that was left"
)


def unplanned(method: str, ended: bool) -> RuntimeError:
    """The error for a step without passes, or whose passes were ended."""
    if ended:
        return RuntimeError(
            "the loop over passes() was closed before its last pass, by a step() or a state_dict() of the model or the "
            "optimizer: run those after the loop, and opt.step() when it has ended by itself"
        )
    return RuntimeError(
        f"{method} evaluates the loss several times a step. Either call opt.step(closure), "
        "or run `for pass_ in opt.passes(): pass_.backward(loss)` before opt.step()."
    )


def wrong_plan(method: object, returned: object, gradient: bool) -> TypeError:
    """The error for a `plan` that is no generator, or that returns no gradient."""
    what = f"plan of {type(method).__name__} returned {returned if returned is None else described(returned)}"
    if gradient:
        return TypeError(f"{what}: it has to return the gradient for the base optimizer, as in `return here.grad`")
    return TypeError(f"{what} and yielded no Probe: write `here = yield steppe.Probe()` for a loss and its gradient")


COMPILED = (
    "torch.compile was applied to a whole sharpness-aware step, whose passes it cannot follow: compile the model, "
    "torch.compile(model), or steps on a GPU by steppe.capture(opt, loss_fn, model, batch, compile=True)"
)

INFERENCE_MODE = "a step was run under torch.inference_mode(), which keeps no gradients: use that for evaluation alone"

NO_ACCUMULATION = (
    "Accelerator(gradient_accumulation_steps={0}) skips step() and zero_grad() for all but one of {0} micro-batches, "
    "and a sharpness-aware step runs every micro-batch in every pass: leave it at 1, and for a list of micro-batches "
    "write\n"
    "    for pass_ in steppe.integrations.accelerate.passes(opt, model=model):\n"
    "        for batch in micro_batches(batches, model): pass_.backward(loss(batch) / len(batches))"
)


def check_base(base: Any) -> None:
    """Only a first-order torch optimizer can be the base."""
    example = (
        "steppe.sam(base) or SharpnessAware(base, method), with base = torch.optim.SGD(model.parameters(), lr=0.1)"
    )
    if isinstance(base, LBFGS) or hasattr(base, "passes"):
        raise TypeError(
            f"{type(base).__name__} cannot be the base: it evaluates the closure at points of its own, and a "
            "sharpness-aware step does too. Use a first-order optimizer such as torch.optim.SGD or AdamW."
        )
    if isinstance(base, type):
        raise TypeError(f"base must be an optimizer instance, not the class {base.__name__}: write {example}")
    if not isinstance(base, Optimizer):
        swapped = ", and the method comes second" if hasattr(base, "plan") else ""
        raise TypeError(f"the base is a torch optimizer, not {described(base)}{swapped}: write {example}")
    for name in ("param_groups", "state", "defaults"):
        if not isinstance(getattr(base, name, None), Mapping if name != "param_groups" else Sequence):
            raise TypeError(
                f"{type(base).__name__} is a torch.optim.Optimizer without {name}: call super().__init__(params, "
                "defaults) in its __init__, or give the optimizer that it wraps"
            )


def check_not_a_name(method: Any) -> None:
    """Raise for a name in the place of a method."""
    if isinstance(method, str):
        wrong = f" ({unknown('method', method, METHODS)})" if method not in METHODS else ""
        raise TypeError(
            f"the method is the string {method!r}: write steppe.build({method!r}, base, ...) for a name{wrong}"
        )


def check_options(base: Optimizer, options: Mapping[str, Any]) -> None:
    """Raises for a base that has an option of the method's name: both would read the same number in `param_groups`."""
    if shared := sorted(options.keys() & base.defaults.keys()):
        raise ValueError(
            f"{type(base).__name__} has an option {shared[0]} of its own, and the method has one of the same name: one "
            "would replace the other in param_groups. Take another base"
        )


def wrapped_error(engine: Any) -> TypeError:
    """The error for a wrapper of Lightning, which inherits the engine's methods and has other attributes."""
    return TypeError(
        f"passes() was called on {type(engine).__name__}, a wrapper around the SharpnessAware: write `for pass_ in "
        "steppe.integrations.lightning.passes(opt)`"
    )


def check_closure(engine: Any, closure: Any, waiting: bool) -> None:
    """Raises for a closure that would lose a gradient, or that another library runs in its own way.

    An engine without a model takes that of a closure of Lightning: its running statistics change once per step.
    """
    lightning = isinstance(closure, partial) and getattr(closure.func, "__name__", "") == "_wrap_closure"
    if lightning and closure.args[0].automatic_optimization and closure.args[0].trainer.gradient_clip_val:
        raise RuntimeError(
            "gradient_clip_val clips in every call of the closure, and a sharpness-aware step calls it once per pass: "
            "write class Net(steppe.integrations.lightning.SharpnessAwareSteps, LightningModule), which clips once"
        )
    if lightning and waiting:
        raise RuntimeError(
            "opt.step() of Lightning passes a closure that does nothing, and the gradient of passes() waits in p.grad: "
            "apply it by steppe.integrations.lightning.step(opt)"
        )
    if waiting:
        raise RuntimeError(PLAN_PENDING)
    check_accelerate(engine)
    if lightning and engine.model is None:
        engine.__setstate__({**engine.__getstate__(), "model": closure.args[0].trainer.strategy.model})


def check_accelerate(engine: Any) -> None:
    """Raises if Accelerate's optimizer passes a closure that would not see all micro-batches, or scales its losses."""
    if "accelerate.optimizer" not in sys.modules:
        return
    frame: FrameType | None = sys._getframe()  # the engine has no reference to its wrapper
    while frame is not None and not (
        frame.f_globals.get("__name__") == "accelerate.optimizer" and frame.f_code.co_name == "step"
    ):
        frame = frame.f_back
    if frame is None:
        return
    wrapper = frame.f_locals["self"]
    if (steps := wrapper.gradient_state.num_steps) > 1:
        raise RuntimeError(NO_ACCUMULATION.format(steps))
    if enabled(wrapper.scaler) is not enabled(engine.scaler):
        raise RuntimeError(
            "Accelerate and the optimizer do not have the same scaler: pass scaler=accelerator.scaler to the "
            "optimizer, or loop over steppe.integrations.accelerate.passes(opt) and call pass_.backward(loss)"
        )


ACCUMULATED = (
    "p.grad holds gradients that the last step did not leave there, and step(closure) would lose them: a "
    "sharpness-aware step runs every micro-batch in every pass. To accumulate, write\n"
    "    for pass_ in opt.passes():\n        for x, y in micro_batches:\n"
    "            pass_.backward(loss_fn(model(x), y) / len(micro_batches))\n    opt.step()\n"
    "or call opt.zero_grad() first, if they are not wanted."
)


def check_no_skipped_step() -> None:
    """Raises if Accelerate has skipped the step that a plan waits for; `zero_grad` of its wrapper is skipped too."""
    state = sys.modules.get("accelerate.state")
    if state is not None and (steps := state.GradientState().num_steps) > 1:
        raise RuntimeError(NO_ACCUMULATION.format(steps))


def warn_of_unreachable_statistics(loss: Tensor, model: nn.Module | None) -> bool:
    """Warns, and returns whether, a loss went through batch normalisation in training mode outside of the model."""
    parts = list(model.modules()) if model is not None else []
    own = {id(p) for m in parts for p in m.parameters(recurse=False)}
    untrained = any(
        "running_mean" in m._buffers and m.training and not getattr(getattr(m, "weight", None), "requires_grad", False)
        for m in parts
    )
    pending, seen = [loss.grad_fn], set()
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        inputs = [n for n, _ in node.next_functions]
        if "BatchNorm" in node.name() and getattr(node, "_saved_training", True):
            weight = inputs[1] if len(inputs) > 1 else None  # saved tensors are gone after the backward pass
            known = untrained if weight is None else id(getattr(weight, "variable", model)) in {*own, id(model)}
            if model is None or not known:
                where = (
                    "the model has batch normalisation"
                    if model is None
                    else "the loss goes through batch normalisation outside of model="
                )
                remedy = (
                    "pass the model, SharpnessAware(..., model=model)"
                    if model is None
                    else "pass a model that "
                    "holds it too, such as nn.ModuleList([generator, discriminator]), or put it in eval mode"
                )
                warnings.warn(
                    f"{where}, and its running statistics will move at perturbed weights too: {remedy}, and they move "
                    "once a step, at the weights.",
                    stacklevel=4,
                )
                return True
        pending += inputs
    return False
