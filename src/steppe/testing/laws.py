"""Laws that every method of steppe obeys, for methods of your own: `check_method`. steppe's own tests run the same."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .._util.names import nearest
from ..core.probe import Method
from ..methods.registry import METHODS
from .problem import ROWS, Case, Run, batch, holds, same

STEPS = 4

# laws that some methods cannot obey
RADIUS_0 = "radius 0 is the base optimizer"
RADIUS_0_BITWISE = "radius 0 is the base optimizer, bitwise"
STATISTICS = "running statistics move at the unperturbed weights"
MICRO_BATCHES = "micro-batches equal the full batch"


def beside_the_base(case: Case, base: str, dropout: float) -> tuple[Run, Run]:
    """Return a run that moves nothing, and the base optimizer alone on the rows that the run's last pass saw."""
    run, alone = (Run(case, base, options=case.still, dropout=dropout) for _ in range(2))
    for i in range(STEPS):
        run.step(i)
        ours = torch.get_rng_state()
        torch.default_generator.manual_seed(i)
        x, y = (run.seen[-1].x, run.seen[-1].y) if dropout else batch(i)
        alone.base.zero_grad()
        functional.cross_entropy(alone.model(x), y).backward()  # type: ignore[no-untyped-call]
        alone.base.step()
        holds(torch.equal(ours, torch.get_rng_state()), "the global generator moves as in one pass of the base")
    return run, alone


def radius_0_bitwise(case: Case, bases: Sequence[str] = ("sgd", "adamw")) -> None:
    """Weights, running statistics and the global generator, through dropout and normalisation."""
    for base in bases:
        run, alone = beside_the_base(case, base, dropout=0.2)
        same(run.weights(), alone.weights())


def radius_0(case: Case) -> None:
    """Up to rounding, for methods that add up parts; on the whole batch."""
    run, alone = beside_the_base(case, "sgd", dropout=0.0)
    for name, w in alone.weights().items():
        torch.testing.assert_close(run.weights()[name], w, rtol=1e-10, atol=1e-13)


def acts(case: Case) -> None:
    """The options of the case change the training: otherwise the other laws would hold for nothing."""
    plain, run = Run(case, dropout=0.0), Run(case, dropout=0.0)
    for i in range(2):
        run.step(i)
        plain.base.zero_grad()
        x, y = batch(i)
        functional.cross_entropy(plain.model(x), y).backward()  # type: ignore[no-untyped-call]
        plain.base.step()
    pairs = zip(run.model.parameters(), plain.model.parameters(), strict=True)
    moved = max(float((a - b).detach().norm()) for a, b in pairs)
    holds(moved > 1e-4, f"weights differ from those of the base by {moved:.1e}: give options under which it acts")


def takes_declared_passes(case: Case) -> None:
    """The engine runs as many passes as the caller sees, and as the registration declares."""
    run = Run(case)
    for i in range(7):
        run.step(i)
        holds(len(run.seen) == run.opt.passes_run, f"step {i}: {len(run.seen)} passes, counted {run.opt.passes_run}")
        if case.registered is not None:
            declared = case.registered.passes_at(i, **case.options)
            holds(len(run.seen) == declared, f"step {i} takes {len(run.seen)} passes, and {declared} are declared")


def closure_equals_passes(case: Case) -> None:
    """A step by `step(closure)` is bitwise one by `passes()`."""
    by_closure, by_passes = Run(case), Run(case)
    for i in range(STEPS):
        by_closure.step(i)
        by_passes.step(i, by="passes")
    same(by_closure.everything(), by_passes.everything())


def micro_batches_equal_the_batch(case: Case) -> None:
    """Losses and gradients add up over `pass_.backward` calls, without BatchNorm and dropout."""
    whole, pieces = (Run(case, norm="layer", dropout=0.0) for _ in range(2))
    for i in range(STEPS):
        whole.step(i)
        for pass_ in pieces.opt.passes(**pieces.extras(i)):
            x, y = batch(i + 500) if pass_.held_out else batch(i)
            for start in range(0, ROWS, 2):
                piece = slice(start, start + 2)
                pass_.backward(functional.cross_entropy(pieces.model(x[piece]), y[piece]) * 2 / ROWS)
        pieces.opt.step()
    for name, w in whole.weights().items():
        torch.testing.assert_close(pieces.weights()[name], w, rtol=1e-9, atol=1e-11)


def returns_the_first_loss(case: Case) -> None:
    """The loss at the unperturbed weights, unless even the method's first pass is elsewhere."""
    run = Run(case, norm="layer", dropout=0.0)
    run.step(0)
    first: list[float] = []

    def closure(pass_: Any) -> Tensor:
        loss = run.loss(pass_, 1)
        first.append(float(loss.detach().mean()))
        pass_.backward(loss)
        return loss.mean()

    before = copy.deepcopy(run.model)
    returned = run.opt.step(closure, held_out=closure, **run.extras(1))
    holds(float(returned.detach()) == first[0], f"step() returned {float(returned)}, and the first loss is {first[0]}")
    if STATISTICS not in case.excused:
        rows = run.seen[-len(first)]
        here = float(functional.cross_entropy(before(rows.x), rows.y).detach())
        holds(math.isclose(first[0], here, rel_tol=1e-12), f"the first loss is {first[0]}, at the weights {here}")


class Interruption(Exception):
    """Raised in the middle of a pass."""


def survives_exceptions(case: Case) -> None:
    """An exception in any pass leaves everything bitwise as it was, and the next steps work."""
    run, twin = Run(case, "adamw"), Run(case, "adamw")
    for one in (run, twin):
        one.step(0)
        one.step(1)
    before = run.everything()
    for number in range(case.passes(2)):

        def interrupt(at: int, loss: Tensor, number: int = number) -> Tensor:
            if at == number:
                if loss.requires_grad and number % 2:  # gradients are half written
                    loss.mean().backward()  # type: ignore[no-untyped-call]
                raise Interruption
            return loss

        try:
            run.step(2, meddle=interrupt)
        except Interruption:
            same(run.everything(), before)
    for i in (2, 3):
        run.step(i)
        twin.step(i)
    same(run.everything(), twin.everything())


def resumes(case: Case, base: str = "adamw") -> None:
    """A run that is saved, read back without running code, rebuilt and continued is bitwise the run without a break."""
    whole, run = Run(case, base), Run(case, base)
    for i in range(5):
        whole.step(i)
        if i < 3:
            run.step(i)
    file = io.BytesIO()
    torch.save({"model": run.model.state_dict(), "optimizer": run.opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = Run(case, base)
    again.model.load_state_dict(saved["model"])
    again.opt.load_state_dict(saved["optimizer"])
    for i in range(3, 5):
        again.step(i)
    same(again.everything(), whole.everything())


def zero_gradients_move_nothing(case: Case) -> None:
    """Not even to NaN: with no decay and no momentum yet, the weights stay bitwise."""
    run = Run(case)
    for group in run.opt.param_groups:
        group["weight_decay"] = 0.0
    before = {k: v.detach().clone() for k, v in run.model.named_parameters()}
    for i in range(STEPS):
        run.step(i, meddle=lambda number, loss: loss * 0)
    same(dict(run.model.named_parameters()), before)
    holds(all(math.isfinite(g["lr"]) and g["lr"] > 0 for g in run.opt.param_groups), "the learning rate is lost")


def frozen_parameters_stay(case: Case) -> None:
    """They do not move, and learn once they are thawed."""
    run = Run(case, "adamw", spare=True)
    frozen = run.model.hidden[0].weight
    run.step(0)
    frozen.requires_grad_(False)
    before = frozen.detach().clone()
    for i in range(1, 3):
        run.step(i)
    holds(torch.equal(frozen, before), "a frozen parameter moved")
    holds(frozen.grad is None, "a frozen parameter has a gradient")
    frozen.requires_grad_(True)
    for i in range(3, 5):
        run.step(i)
    holds(not torch.equal(frozen, before), "a thawed parameter does not move")
    holds(frozen.isfinite().all(), "a thawed parameter is not finite")


def one_pass_for_the_generator(case: Case) -> None:
    """The global generator moves as in one forward pass."""
    run = Run(case)
    for i in range(3):
        model = copy.deepcopy(run.model)
        run.step(i)
        ours = torch.get_rng_state()
        torch.default_generator.manual_seed(i)
        model(run.seen[0].x)
        holds(torch.equal(ours, torch.get_rng_state()), f"step {i} moves the generator otherwise")


def one_pass_for_statistics(case: Case) -> None:
    """Running statistics move as one forward pass over the rows of the first pass moves them."""
    run = Run(case)
    for i in range(3):
        model = copy.deepcopy(run.model)
        run.step(i)
        torch.default_generator.manual_seed(i)
        model(run.seen[0].x)
        same(dict(run.model.named_buffers()), dict(model.named_buffers()))
    holds(case.norm != "batch" or int(run.model.norm.num_batches_tracked) == 3, "not one update per step")


LAWS: Mapping[str, Callable[[Case], None]] = {
    "its options act": acts,
    RADIUS_0_BITWISE: radius_0_bitwise,
    RADIUS_0: radius_0,
    "a step takes its declared passes": takes_declared_passes,
    "a step by closure is a step by passes()": closure_equals_passes,
    MICRO_BATCHES: micro_batches_equal_the_batch,
    "a step returns its first loss": returns_the_first_loss,
    "an exception in a pass leaves no trace": survives_exceptions,
    "a resumed run is the run without a break": resumes,
    "zero gradients move nothing": zero_gradients_move_nothing,
    "frozen parameters stay": frozen_parameters_stay,
    "the global generator moves as in one pass": one_pass_for_the_generator,
    STATISTICS: one_pass_for_statistics,
}
"""By what they say."""


def check_method(
    method: str | Callable[..., Method],
    options: Mapping[str, Any] | None = None,
    *,
    still: Mapping[str, Any] | None = None,
    norm: str = "batch",
    unreduced: bool = False,
    masked: bool = False,
    excused: Mapping[str, str] | None = None,
) -> list[str]:
    """Check a method against the laws that every method of steppe obeys, and return those laws.

    Parameters
    ----------
    method
        A name in `steppe.METHODS`, or a class or function that makes the method from options.
    options
        Options with which it acts on a small problem: a radius of 0.05 is often too small to be seen.
    still
        Options under which it moves nothing; by default a radius `rho` of 0, if it has one.
    norm
        The normalisation of the model: "batch", or "layer" for methods that take single rows.
    unreduced, masked
        Whether it wants one loss per row, or a mask over the batch.
    excused
        Laws that it cannot obey, by the keys of `steppe.testing.LAWS`, and why.

    Raises
    ------
    AssertionError
        If the method breaks laws; the message says which, and how.

    Examples
    --------
    >>> from steppe.testing import check_method
    >>> obeyed = check_method("gsam", {"rho": 0.5}, excused={"radius 0 is the base optimizer, bitwise": "it rounds"})
    >>> "frozen parameters stay" in obeyed
    True

    """
    excused = dict(excused or {})
    if unknown := excused.keys() - LAWS.keys():
        name = min(unknown)
        raise ValueError(f"there is no law {name!r}.{nearest(name, LAWS)} steppe.testing.LAWS has all")
    registered = METHODS[method] if isinstance(method, str) else None
    make: Callable[..., Any] = method if callable(method) else METHODS[method]
    name = method if isinstance(method, str) else getattr(method, "__name__", repr(method))
    if still is None:
        still = {"rho": 0.0} if "rho" in make(**(options or {})).options() else None
    if still is None:
        excused |= dict.fromkeys((RADIUS_0, RADIUS_0_BITWISE), "it has no radius")
    case = Case(name, make, options or {}, still or {}, norm, unreduced, masked, excused, registered)
    generator = torch.get_rng_state()
    broken, checked = [], [law for law in LAWS if law not in excused]
    try:
        for law in checked:
            try:
                LAWS[law](case)
            except Exception as error:
                broken.append(f"{law}: {type(error).__name__}: {error}")
    finally:
        torch.set_rng_state(generator)
    holds(not broken, f"{name} breaks {len(broken)} of {len(checked)} laws:\n" + "\n".join(broken))
    return checked
