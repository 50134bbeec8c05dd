"""Agnostic-SAM: ascent on the training rows, descent on held-out rows (Agnostic-SAM paper, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from ..core.ball import Radius, ball
from ..core.fields import Gt, Lt, NonNegative
from ..core.probe import Context, Method, Plan, Probe, always
from ..core.rows import Rows, Split, held_out, whole
from .registry import register

Share = Annotated[float, Gt(0), Lt(1)]  # of a batch, and neither none nor all of it
HALF = 0.5  # of rho: section 4.1, rho_1 = 2 rho_2


def _held_out(held_out: bool, **run: int) -> dict[str, None]:
    """In a run with held-out rows the batch is not split."""
    return {"share": None} if held_out else {}


@register(
    "agnostic-sam",
    does="SAM that climbs on training samples and descends on held-out ones",
    passes="3 if simple else 4",
    paper="Nguyen et al. 2024",
    in_run=_held_out,
)
@dataclass(frozen=True)
class AgnosticSAM(Method):
    """The gradient on B_t at w + rho g_t(w) / |.| - held_out_rho g_v(w_v) / |.|, where w_v is the SAM point of B_v.

    Parameters
    ----------
    rho
        The radius of the ascent on the training samples B_t. Default: section 4.1, CIFAR-10.
    held_out_rho
        The radius of the ascent on the held-out samples B_v. Defaults to half of rho: section 4.1, rho_1 = 2 rho_2 in
        all experiments.
    share
        The fraction of each batch that becomes B_t; the other samples are B_v. Default: section 3.3. With None the
        batch is B_t, and B_v is the caller's held-out data: `opt.step(closure, held_out=...)`, or `pass_.held_out` in a
        loop.
    simple
        Whether to use w_v = w, the "simpler" version of section 5.1.

    References
    ----------
    Nguyen et al. 2024, "Agnostic Sharpness-Aware Minimization".

    Examples
    --------
    >>> steppe.METHODS["agnostic-sam"].passes_at(0), steppe.METHODS["agnostic-sam-simple"].passes_at(0)
    (4, 3)

    """

    rho: Radius = 0.1
    held_out_rho: Radius | None = None
    share: Share | None = 0.7
    simple: bool = False
    pattern = always

    def plan(self, context: Context) -> Plan:
        train: Rows = whole
        rest: Rows = held_out
        if self.share is not None:
            train, rest = (Split(self.share, context.key(0), rest=rest) for rest in (False, True))
        up = ball(self.rho)
        down = up.within(context, HALF) if self.held_out_rho is None else ball(self.held_out_rho)
        # B_t comes first: the first pass updates the running statistics, and B_t is the larger part
        here = yield Probe(rows=train)
        top = up.within(context).steepest_(here.grad, context)
        held = yield Probe(rows=rest)
        if not self.simple:
            held = yield Probe(at=down.steepest_(held.grad, context), rows=rest)
        top.add_(down.steepest_(held.grad, context), -1.0)
        return (yield Probe(at=top, rows=train)).grad


@register(
    "agnostic-sam-simple",
    does="Agnostic-SAM without the ascent on held-out samples",
    passes="3",
    paper="Nguyen et al. 2024",
    in_run=_held_out,
)
def _agnostic_simple(
    rho: NonNegative = 0.1, held_out_rho: NonNegative | None = None, share: Share | None = 0.7
) -> Method:
    return AgnosticSAM(rho, held_out_rho, share, simple=True)
