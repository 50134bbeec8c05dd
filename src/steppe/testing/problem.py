"""The problem that laws try methods on: a small classifier in float64 with dropout and normalisation, and its runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..methods.registry import Registered
from ..optim.engine import SharpnessAware

ROWS, FEATURES, WIDTH, NARROW, CLASSES = 10, 6, 8, 5, 3  # of the problem


@dataclass(frozen=True)
class Case:
    """A method to try: how to make it, and how to drive it.

    Parameters
    ----------
    name
        What errors call it.
    make
        Makes the method from options.
    options
        Options with which it acts on a small problem.
    still
        Options under which it moves nothing.
    norm
        The normalisation of the model: "batch", or "layer" for methods that take single rows.
    unreduced
        Whether it wants one loss per row.
    masked
        Whether it wants a mask over the batch.
    excused
        Laws that it cannot obey, and why.
    registered
        Its registration, if it has one.

    """

    name: str
    make: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    still: Mapping[str, Any] = field(default_factory=lambda: {"rho": 0.0})
    norm: str = "batch"
    unreduced: bool = False
    masked: bool = False
    excused: Mapping[str, str] = field(default_factory=dict)
    registered: Registered | None = None
    _counted: dict[int, int] = field(default_factory=dict, compare=False, repr=False)

    def method(self, **options: Any) -> Any:
        """Make the method."""
        return self.make(**{**self.options, **options})

    def passes(self, step: int) -> int:
        """The number of passes of a step, counted."""
        if step not in self._counted:
            run = Run(self)
            for i in range(step + 1):
                run.step(i)
            self._counted[step] = run.opt.passes_run
        return self._counted[step]


class Net(nn.Module):
    """A small classifier: layers of one shape and of others, dropout, normalisation; on request, parts to leave out."""

    def __init__(self, norm: str = "batch", dropout: float = 0.2, spare: bool = False):
        super().__init__()
        self.first = nn.Linear(FEATURES, WIDTH)
        normalisation = nn.BatchNorm1d if norm == "batch" else nn.LayerNorm
        self.norm = normalisation(WIDTH)
        self.hidden = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.dropout = nn.Dropout(dropout)
        self.narrow = nn.Linear(WIDTH, NARROW)
        self.narrow_norm = normalisation(NARROW)
        self.head = nn.Linear(NARROW, CLASSES)
        if spare:
            self.branch = nn.Linear(NARROW, CLASSES)
            self.unused = nn.Parameter(torch.ones(3))
        self.branching = False

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.norm(self.first(x)))
        for layer in self.hidden:
            x = self.dropout(torch.tanh(layer(x)))
        x = torch.tanh(self.narrow_norm(self.narrow(x)))
        out: Tensor = self.head(x) + self.branch(x) if self.branching else self.head(x)
        return out


BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params, lr=0.1: torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=0.01),
    "adamw": lambda params, lr=0.01: torch.optim.AdamW(params, lr=lr, weight_decay=0.1),
    "bare": lambda params, lr=0.1: torch.optim.SGD(params, lr=lr),  # keeps no state of its own
}


def batch(number: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Return the same batch for the same number, without touching the global generator."""
    g = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(ROWS, FEATURES, generator=g, dtype=torch.float64).to(dtype)
    return x, torch.randint(CLASSES, (ROWS,), generator=g)


@dataclass
class Seen:
    """What one pass was: its place in the step, and the rows that it ran on."""

    number: int
    x: Tensor
    y: Tensor


class Run:
    """A training run of a case, a step at a time, by a closure or by `passes()`."""

    def __init__(
        self,
        case: Case,
        base: str = "sgd",
        *,
        dtype: torch.dtype = torch.float64,
        norm: str | None = None,
        dropout: float = 0.2,
        spare: bool = False,
        options: Mapping[str, Any] | None = None,
        wrap: Callable[[nn.Module], nn.Module] = lambda model: model,
        **engine: Any,
    ):
        self.case, self.dtype = case, dtype
        torch.default_generator.manual_seed(0)
        self.model: Any = wrap(Net(norm or case.norm, dropout, spare).to(dtype))
        self.base = BASES[base](self.model.parameters())
        self.method = case.method(**(options or {}))
        self.opt = SharpnessAware(self.base, self.method, model=self.model, **engine)
        self.seen: list[Seen] = []

    def extras(self, number: int) -> dict[str, Any]:
        """Return what `step` and `passes` take for this case besides the closure."""
        return {"mask": torch.arange(ROWS) % 3 == number % 3} if self.case.masked else {}

    def loss(self, pass_: Any, number: int) -> Tensor:
        """Run the forward pass that `pass_` asks for, on batch `number` or on its held-out companion."""
        x, y = batch(number + 500, self.dtype) if pass_.held_out else pass_.rows(*batch(number, self.dtype))
        self.seen.append(Seen(len(self.seen), x, y))
        return functional.cross_entropy(self.model(x), y, reduction="none" if self.case.unreduced else "mean")

    def step(self, number: int, *, by: str = "closure", meddle: Callable[[int, Tensor], Tensor] | None = None) -> None:
        """Take a step on batch `number` from the noise of that number; `meddle` sees each loss before its backward."""
        torch.default_generator.manual_seed(number)
        self.seen = []

        def closure(pass_: Any) -> Tensor:
            loss = self.loss(pass_, number)
            loss = loss if meddle is None else meddle(self.seen[-1].number, loss)
            pass_.backward(loss)
            return loss.detach().mean()

        extras = self.extras(number)
        if by == "closure":
            self.opt.step(closure, held_out=closure, **extras)
        else:
            for pass_ in self.opt.passes(**extras):
                closure(pass_)
            self.finish()

    def finish(self) -> None:
        """Apply the planned gradient as a loop of the caller's own would."""
        if self.opt.scaler is None:
            self.opt.step()
        else:
            self.opt.scaler.step(self.opt)

    def weights(self) -> dict[str, Tensor]:
        """Return parameters and buffers, copied."""
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def everything(self) -> dict[str, Any]:
        """Return weights, buffers, optimizer state and group options, copied."""
        return {"model": self.weights(), "optimizer": copied(self.opt.state_dict())}


def copied(x: Any) -> Any:
    """Return a deep copy of nested containers of tensors."""
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, Mapping):
        return {k: copied(v) for k, v in x.items()}
    return [copied(v) for v in x] if isinstance(x, list | tuple) else x


def differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Yield where two nested containers differ by as much as one bit."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if a.dtype != b.dtype or not torch.equal(a, b):
            yield path
    elif isinstance(a, Mapping) and isinstance(b, Mapping):
        for k in a.keys() | b.keys():
            if k in a and k in b:
                yield from differences(a[k], b[k], f"{path}/{k}")
            else:
                yield f"{path}/{k} (only in one)"
    elif isinstance(a, list | tuple) and isinstance(b, list | tuple) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, f"{path}/{i}")
    elif type(a) is not type(b) or a != b:
        yield f"{path}: {a!r} != {b!r}"


def same(a: Any, b: Any) -> None:
    """Raise AssertionError with the places where two nested containers of tensors are not bitwise equal."""
    found = list(differences(a, b))
    holds(not found, f"not bitwise equal: {', '.join(found[:5])}")


def holds(condition: object, why: str) -> None:
    """Raise AssertionError unless a condition is true: `assert` is left out by `python -O`."""
    if not condition:
        raise AssertionError(why)
