"""Every method once, with options that make it act on small problems, and why it is excused from which law."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steppe

torch.set_num_threads(1)  # on tensors this small, threads only wait for one another

ROWS, FEATURES, WIDTH, NARROW, CLASSES = 10, 6, 8, 5, 3

# laws that some method is excused from
RADIUS_0 = "radius 0 is the base optimizer"
RADIUS_0_BITWISE = "radius 0 is the base optimizer, bitwise"
STATISTICS = "running statistics move at the unperturbed weights"
MICRO_BATCHES = "micro-batches equal the full batch"
NEGATIVE_RADIUS = "a negative radius is refused"

ON_PARTS = "its passes are on parts of the batch by definition"
NO_RADIUS = "it has no radius to set to 0"


@dataclass(frozen=True)
class Entry:
    """A method of the registry: how to make it, and how to drive it."""

    name: str
    make: Callable[..., Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    still: Mapping[str, Any] = field(default_factory=lambda: {"rho": 0.0})  # options under which it moves nothing
    norm: str = "batch"  # normalisation of the model it is tried on
    unreduced: bool = False  # wants one loss a row
    masked: bool = False  # wants a mask over the batch
    excused: Mapping[str, str] = field(default_factory=dict)  # law -> why it cannot obey it
    registered: Any = None  # in steppe.METHODS

    def method(self, **options: Any) -> Any:
        return self.make(**{**self.options, **options})

    def passes(self, step: int) -> int:
        """The number of passes of a step, counted."""
        if (self.name, step) not in _COUNTED:
            run = Run(self)
            for i in range(step + 1):
                run.step(i)
            _COUNTED[self.name, step] = run.opt.passes_run
        return _COUNTED[self.name, step]


_COUNTED: dict[tuple[str, int], int] = {}


def _named(name: str, norm: str = "batch", still: Mapping[str, Any] | None = None, **rest: Any) -> Entry:
    excused, flags = rest.pop("excused", {}), {k: rest.pop(k) for k in ("unreduced", "masked", "label") if k in rest}
    label = flags.pop("label", name)
    still = {"rho": 0.0} if still is None else still
    named = steppe.METHODS[name]
    return Entry(label, named, rest, still, norm, excused=excused, registered=named, **flags)


def _every(rho: float = 0.5) -> steppe.Every:
    return steppe.Every(2, steppe.SAM(rho))


def _per_part(rho: float = 0.5) -> steppe.PerPart:
    return steppe.PerPart(steppe.GSAM(rho), parts=2)


def _per_worker(rho: float = 0.5) -> steppe.PerWorker:
    return steppe.PerWorker(steppe.SAM(rho))


SUMS_PARTS = {RADIUS_0_BITWISE: "a sum over parts rounds differently from the whole", MICRO_BATCHES: ON_PARTS}
SETS_LR = {RADIUS_0: NO_RADIUS, RADIUS_0_BITWISE: NO_RADIUS, NEGATIVE_RADIUS: NO_RADIUS}
FIRST_PASS_IS_AWAY = {STATISTICS: "even its first pass is at displaced weights"}

ENTRIES = [
    _named("none", still={}, excused={NEGATIVE_RADIUS: NO_RADIUS}),
    _named("sam", rho=0.5),
    _named("sam", label="sam-l1", rho=0.5, p=1.0),
    _named("sam", label="sam-l3", rho=0.5, p=3.0),
    _named("sam", label="sam-linf", rho=0.05, p=float("inf")),
    _named("sam", label="sam-3-steps", rho=0.5, steps=3, decay_in_ascent=True),
    _named("sam", label="sam-unnormalised", rho=0.5, normalized=False),
    _named("asam", rho=1.0),
    _named("asam", label="asam-filterwise", rho=1.0, filterwise=True, everywhere=True),
    _named("sam-on", rho=0.5),
    _named("sa-sam", excused=SETS_LR),
    _named("sa-sgd", excused=SETS_LR),
    _named("universal-sam", triple="determinant", rho=1.0, n=3, strength=0.1),
    _named("trace-sam", rho=0.1, n=2),
    _named("frob-sam", rho=0.1, n=2, strength=0.1),
    _named("det-sam", strength=0.1),
    _named("agnostic-sam", rho=0.5, held_out_rho=0.2, still={"rho": 0.0, "held_out_rho": 0.0},
           excused={MICRO_BATCHES: ON_PARTS}),
    _named("agnostic-sam", label="agnostic-sam-held-out", rho=0.5, held_out_rho=0.2, share=None,
           still={"rho": 0.0, "held_out_rho": 0.0}),
    _named("agnostic-sam-simple", rho=0.5, held_out_rho=0.2, still={"rho": 0.0, "held_out_rho": 0.0},
           excused={MICRO_BATCHES: ON_PARTS}),
    _named("sharpbalance", rho=0.5, norm="layer", masked=True, excused=SUMS_PARTS),
    _named("ssam-f", rho=0.5, samples=3, every=2, norm="layer", excused={MICRO_BATCHES: ON_PARTS}),
    _named("ssam-d", rho=0.5, every=2, steps=10),
    _named("gsam", rho=0.5, excused={RADIUS_0_BITWISE: "its projection rounds"}),
    _named("looksam", rho=0.5, k=3),
    _named("rsam", rho=0.5, still={"rho": 0.0, "sigma": 0.0}, excused=FIRST_PASS_IS_AWAY),
    _named("esam", rho=0.5, unreduced=True, still={"rho": 0.0, "gamma": 1.0}, excused={MICRO_BATCHES: ON_PARTS}),
    _named("esam", label="esam-all-rows", rho=0.5, gamma=1.0),
    _named("msam", rho=0.5, excused=FIRST_PASS_IS_AWAY),
    _named("m-sam", rho=0.5, parts=3, norm="layer", excused=SUMS_PARTS),
    _named("wsam", rho=0.5, gamma=0.6),
    _named("wsam", label="wsam-coupled", rho=0.5, gamma=0.6, decouple=False),
    _named("sampa", rho=0.5, still={"rho": 0.0, "ahead": 0.0}, excused=FIRST_PASS_IS_AWAY),
    Entry("every", _every),
    Entry("per-part", _per_part, norm="layer", excused=SUMS_PARTS),
    Entry("per-worker", _per_worker),
]  # fmt: skip

_listed = {e.registered.name for e in ENTRIES if e.registered is not None}
ENTRIES += [_named(name, rho=0.5) for name in steppe.METHODS if name not in _listed]  # that need no excuse

# The passes and the memory of another entry, with other numbers: nothing that a loop or an optimizer could tell apart
LIKE_ANOTHER = {
    "sam-l1", "sam-l3", "sam-linf", "sam-unnormalised", "sam-on", "asam-filterwise", "sa-sgd", "universal-sam",
    "trace-sam", "det-sam", "agnostic-sam-simple", "esam-all-rows", "per-worker", "wsam-coupled", "vasso",
}  # fmt: skip


def obeying(law: str = "", only: Callable[[Entry], bool] = lambda e: True) -> pytest.MarkDecorator:
    """Parametrizes a test over all methods, or `only` some, but those that are excused from this law.

    Methods like another are slow cases.
    """
    entries = [e for e in ENTRIES if law not in e.excused and only(e)]
    marks = {e.name: pytest.mark.slow if e.name in LIKE_ANOTHER else () for e in entries}
    return pytest.mark.parametrize("entry", [pytest.param(e, id=e.name, marks=marks[e.name]) for e in entries])


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
        return self.head(x) + self.branch(x) if self.branching else self.head(x)


BASES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda params, lr=0.1: torch.optim.SGD(params, lr=lr, momentum=0.9, weight_decay=0.01),
    "adamw": lambda params, lr=0.01: torch.optim.AdamW(params, lr=lr, weight_decay=0.1),
    "bare": lambda params, lr=0.1: torch.optim.SGD(params, lr=lr),  # keeps no state of its own
}
STATEFUL = ("sgd", "adamw")


def batch(number: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """The same batch for the same number, without touching the global generator."""
    g = torch.Generator().manual_seed(1000 + number)
    x = torch.randn(ROWS, FEATURES, generator=g, dtype=torch.float64).to(dtype)
    return x, torch.randint(CLASSES, (ROWS,), generator=g)


def torch_closure(model: nn.Module, opt: torch.optim.Optimizer, number: int = 0) -> Any:
    """A plain torch closure on a batch."""
    x, y = batch(number)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure


@dataclass
class Seen:
    """What one pass was: its place in the step, the rows it ran on and the model's output there."""

    number: int
    x: Tensor
    y: Tensor


class Run:
    """One training run of a registry entry, a step at a time, by a closure or by `passes()`."""

    def __init__(
        self,
        entry: Entry,
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
        self.entry, self.dtype = entry, dtype
        torch.default_generator.manual_seed(0)
        self.model = wrap(Net(norm or entry.norm, dropout, spare).to(dtype))
        self.base = BASES[base](self.model.parameters())
        self.method = entry.method(**(options or {}))
        self.opt = steppe.SharpnessAware(self.base, self.method, model=self.model, **engine)
        self.seen: list[Seen] = []

    def extras(self, number: int) -> dict[str, Any]:
        """What this entry's `step` and `passes` take besides the closure."""
        return {"mask": torch.arange(ROWS) % 3 == number % 3} if self.entry.masked else {}

    def loss(self, pass_: Any, number: int) -> Tensor:
        """The forward pass that `pass_` asks for, on batch `number` or on its held-out companion."""
        x, y = batch(number + 500, self.dtype) if pass_.held_out else pass_.rows(*batch(number, self.dtype))
        self.seen.append(Seen(len(self.seen), x, y))
        return F.cross_entropy(self.model(x), y, reduction="none" if self.entry.unreduced else "mean")

    def step(self, number: int, *, by: str = "closure", meddle: Callable[[int, Tensor], Tensor] | None = None) -> None:
        """One step on batch `number` from the noise of that number; `meddle` sees every pass's loss before backward."""
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
        """Applies the planned gradient as a loop of the caller's own would."""
        if self.opt.scaler is None:
            self.opt.step()
        else:
            self.opt.scaler.step(self.opt)

    def weights(self) -> dict[str, Tensor]:
        return {k: v.detach().clone() for k, v in self.model.state_dict().items()}

    def everything(self) -> dict[str, Any]:
        """Weights, buffers, optimizer state and group options, copied."""
        return {"model": self.weights(), "optimizer": copied(self.opt.state_dict())}


def copied(x: Any) -> Any:
    """A deep copy of nested containers of tensors."""
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, Mapping):
        return {k: copied(v) for k, v in x.items()}
    return [copied(v) for v in x] if isinstance(x, list | tuple) else x


def differences(a: Any, b: Any, path: str = "") -> Iterator[str]:
    """Where two nested containers differ by as much as one bit."""
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
    """Asserts that two nested containers of tensors are bitwise equal, naming the places where they are not."""
    found = list(differences(a, b))
    assert not found, found
