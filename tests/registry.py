"""Every method once, with options that make it act on small problems, and why it is excused from which law."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import steppe
from steppe.testing.laws import MICRO_BATCHES, RADIUS_0, RADIUS_0_BITWISE, STATISTICS
from steppe.testing.problem import BASES as BASES
from steppe.testing.problem import CLASSES as CLASSES
from steppe.testing.problem import FEATURES as FEATURES
from steppe.testing.problem import ROWS as ROWS
from steppe.testing.problem import Case as Entry
from steppe.testing.problem import Net as Net
from steppe.testing.problem import Run as Run
from steppe.testing.problem import Seen as Seen
from steppe.testing.problem import batch as batch
from steppe.testing.problem import copied as copied
from steppe.testing.problem import differences as differences
from steppe.testing.problem import same as same

torch.set_num_threads(1)  # on tensors this small, threads only wait for one another

NEGATIVE_RADIUS = "a negative radius is refused"  # the other laws that some method is excused from are of the library
ON_PARTS = "its passes are on parts of the batch by definition"
NO_RADIUS = "it has no radius to set to 0"
STATEFUL = ("sgd", "adamw")


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
PRECONDITIONS = "its precision divides the step, whatever the radius of the ascent"
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
    _named("bsam", rho=0.5, num_data=1000, prior=0.0,
           excused={**FIRST_PASS_IS_AWAY, RADIUS_0: PRECONDITIONS, RADIUS_0_BITWISE: PRECONDITIONS}),
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


def torch_closure(model: nn.Module, opt: torch.optim.Optimizer, number: int = 0) -> Any:
    """A plain torch closure on a batch."""
    x, y = batch(number)

    def closure() -> Tensor:
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return closure
