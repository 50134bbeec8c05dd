"""SharpBalance: SAM on sharpness-aware rows, plain gradients on normal rows (SharpBalance paper, section 4.3)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

from ..core.fields import NonNegative
from ..core.probe import Context, InnerMethod, Method, Plan, Probe
from ..core.rows import RowIndex, positions
from .combinators import Wrapper, check_no_slots, on_own
from .registry import register
from .sam import SAM


@dataclass(frozen=True)
class SharpBalance(Wrapper):
    """(|normal| g_normal(w) + |sharp| g_SAM on the sharp samples) / |B|, from a mask: `opt.step(closure, mask=sharp)`.

    Parameters
    ----------
    method
        The method on the sharp samples. Default: SAM with rho = 0.2, as in the released scripts.

    References
    ----------
    Lu et al. 2024, "Sharpness-diversity tradeoff: improving flat ensembles with SharpBalance".

    Examples
    --------
    >>> x, y = torch.ones(4, 2), torch.zeros(4, 1)
    >>> model = nn.Linear(2, 1)
    >>> opt = steppe.SharpnessAware(torch.optim.SGD(model.parameters(), lr=0.1), steppe.SharpBalance(steppe.SAM(0.2)))
    >>> def closure(pass_):
    ...     rows, targets = pass_.rows(x, y)
    ...     loss = nn.functional.mse_loss(model(rows), targets)
    ...     pass_.backward(loss)
    ...     return loss
    >>> loss = opt.step(closure, mask=torch.tensor([True, True, False, False]))

    """

    method: InnerMethod = field(default_factory=lambda: SAM(0.2))

    def pattern(self, step: int) -> Hashable:
        return None  # the number of sharp rows differs from batch to batch

    def plan(self, context: Context) -> Plan:
        if context.mask is None or not len(context.mask):
            raise ValueError(
                "SharpBalance needs to know which rows of the batch are sharpness-aware: "
                "opt.step(closure, mask=sharp) or opt.passes(mask=sharp), sharp a bool tensor over the rows."
            )
        check_no_slots(self.method, context)
        n, sharp, normal = len(context.mask), positions(context.mask, True), positions(context.mask, False)
        everything = RowIndex(slice(None), n)  # without a copy of the rows
        # workers have different shares of sharp rows: each sums over its own batch, then they average
        if not len(sharp):
            return context.average_((yield Probe(rows=everything, sync=False)).grad)
        if not len(normal):
            return context.average_((yield from on_own(self.method, context, everything)))
        plain = (yield Probe(rows=RowIndex(normal, n), sync=False)).grad
        steep = yield from on_own(self.method, context, RowIndex(sharp, n))
        return context.average_(steep.add_(plain, len(normal) / len(sharp)).mul_(len(sharp) / n))


@dataclass(frozen=True)
class OnSomeRows(Wrapper):
    """`method` on the whole batch without a mask, and SharpBalance's step with one.

    An ensemble has no mask until its members have exchanged their losses.
    """

    method: InnerMethod

    def plan(self, context: Context) -> Plan:
        return self.method.plan(context) if context.mask is None else SharpBalance(self.method).plan(context)


@register(
    "sharpbalance", does="SAM on the samples of a mask, plain steps on the others", passes="3", paper="Lu et al. 2024"
)
def _sharpbalance(rho: NonNegative = 0.2) -> Method:
    """SharpBalance with SAM on the sharp rows.

    Parameters
    ----------
    rho
        The radius. Default: the released scripts.

    """
    return SharpBalance(SAM(rho))
