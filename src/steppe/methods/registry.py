"""Methods by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from .._util.names import unknown
from ..core.arguments import described
from ..core.ball import Ascent, Ball, GradientStep
from ..core.metric import Elementwise, Filterwise, Metric, NormLayersOnly
from ..core.probe import Method
from ..core.triple import TRACE, Triple
from .agnostic import AgnosticSAM
from .combinators import PerPart, PerWorker
from .esam import ESAM
from .gsam import GSAM
from .looksam import LookSAM
from .msam import MomentumSAM
from .options import checked
from .rsam import RSAM
from .sa_sam import SASAM, SASGD
from .sam import SAM, Plain
from .sharpbalance import SharpBalance
from .sparse import DynamicSparseSAM, FisherSparseSAM
from .universal import UniversalSAM, det_sam, frob_sam, trace_sam


def _ascent(rho: float, metric: Metric | None, p: float, normalized: bool) -> Ascent:
    if not normalized and p != 2:
        raise ValueError(f"normalized=False makes a plain gradient step, which has no p-norm: leave out p = {p:g}")
    return Ball(rho, metric, p) if normalized else GradientStep(rho, metric)


def _sam(
    rho: float = 0.05, p: float = 2.0, steps: int = 1, normalized: bool = True, decay_in_ascent: bool = False
) -> Method:
    """SAM in a ball of any p-norm.

    Parameters
    ----------
    rho
        The radius. Default: Foret et al. 2021, section 3.1.
    p
        The norm of the ball, 1 to inf.
    steps
        The number of ascent steps, each of rho / steps (Andriushchenko & Flammarion 2022, appendix).
    normalized
        Whether the ascent has length rho; if not, it is rho times the gradient (Andriushchenko & Flammarion 2022).
    decay_in_ascent
        Whether the ascent includes weight decay in the loss, as the code of Foret et al. does.

    """
    return SAM(_ascent(rho, None, p, normalized), steps, decay_in_ascent)


def _asam(
    rho: float = 0.5,
    eta: float = 0.01,
    p: float = 2.0,
    steps: int = 1,
    normalized: bool = True,
    decay_in_ascent: bool = False,
    everywhere: bool = False,
    filterwise: bool = False,
) -> Method:
    """SAM in a ball that scales with each weight or filter.

    Parameters
    ----------
    rho
        The radius. Default: Kwon et al. 2021, CIFAR-10.
    eta
        Added to the scale of each weight. Default: Kwon et al. 2021, section 5.
    p
        The norm of the ball, 1 to inf.
    steps
        The number of ascent steps, each of rho / steps (Andriushchenko & Flammarion 2022, appendix).
    normalized
        Whether the ascent has length rho; if not, it is rho times the gradient (Andriushchenko & Flammarion 2022).
    decay_in_ascent
        Whether the ascent includes weight decay in the loss, as the code of Foret et al. does.
    everywhere
        Whether to scale biases too, as the universal-SAM paper does.
    filterwise
        Whether to scale with the norm of each filter (Kwon et al. 2021, eq. 5).

    """
    metric = Filterwise(eta, everywhere) if filterwise else Elementwise(eta, everywhere)
    return SAM(_ascent(rho, metric, p, normalized), steps, decay_in_ascent)


def _sam_on(rho: float = 0.5, p: float = 2.0, steps: int = 1) -> Method:
    """SAM that moves normalization layers alone.

    Parameters
    ----------
    rho
        The radius. Default: Mueller et al. 2023, CIFAR ResNets.
    p
        The norm of the ball, 1 to inf.
    steps
        The number of ascent steps, each of rho / steps (Andriushchenko & Flammarion 2022, appendix).

    """
    return SAM(Ball(rho, NormLayersOnly(), p), steps)


def _universal(triple: Triple = TRACE, rho: float = 0.01, n: int = 1, strength: float = 1.0) -> Method:
    """Any functional of the Hessian, by name or from named parts.

    Parameters
    ----------
    triple
        The functional: trace, frobenius, determinant or determinant-released; or a mapping of its parts phi and psi
        (identity, moments, twice-variance, {"times": NUMBER}), mu (sphere, gaussian, rademacher, uphill,
        {"hypercube": HALF}), logs and correction (none, bessel), where `like` names a triple for those left out.
    rho, n
        The radius and the number of draws per step. Defaults: section 4, Trace-SAM.
    strength
        The weight of the functional. Default: Definition 8 has no lambda, which is lambda = 1.

    """
    return UniversalSAM(triple, rho, n, strength)


def _agnostic_simple(rho: float = 0.1, held_out_rho: float | None = None, share: float | None = 0.7) -> Method:
    return AgnosticSAM(rho, held_out_rho, share, simple=True)


def _m_sam(rho: float = 0.05, parts: int = 2, over_workers: bool = False) -> Method:
    """SAM on each part of a batch.

    Parameters
    ----------
    rho
        The radius. Default: Foret et al. 2021, section 3.1.
    parts
        The number of parts, whose sizes differ by at most one row.
    over_workers
        Whether the parts are the batches of the workers.

    """
    return PerWorker(SAM(rho)) if over_workers else PerPart(SAM(rho), parts)


def _sharpbalance(rho: float = 0.2) -> Method:
    """SharpBalance with SAM on the sharp rows.

    Parameters
    ----------
    rho
        The radius. Default: the released scripts.

    """
    return SharpBalance(SAM(rho))


METHODS: dict[str, Callable[..., Method]] = {
    "none": Plain,
    "sam": _sam,
    "asam": _asam,
    "sam-on": _sam_on,
    "sa-sam": SASAM,
    "sa-sgd": SASGD,
    "universal-sam": _universal,
    "trace-sam": trace_sam,
    "frob-sam": frob_sam,
    "det-sam": det_sam,
    "agnostic-sam": AgnosticSAM,
    "agnostic-sam-simple": _agnostic_simple,
    "sharpbalance": _sharpbalance,
    "ssam-f": FisherSparseSAM,
    "ssam-d": DynamicSparseSAM,
    "gsam": GSAM,
    "looksam": LookSAM,
    "rsam": RSAM,
    "esam": ESAM,
    "msam": MomentumSAM,
    "m-sam": _m_sam,
}


def method(name: str, **options: Any) -> Method:
    """The method of that name.

    Parameters
    ----------
    name
        A name from `steppe.METHODS`.
    **options
        Options of the method, checked by type and range.

    Examples
    --------
    >>> steppe.method("gsam", rho=0.1)
    GSAM(rho=0.1, alpha=0.4)

    """
    return make(name, options)


def make(name: str, options: Mapping[str, Any], also: Iterable[str] = ()) -> Method:
    """The method of that name with these options; an error about a wrong option also lists the names in `also`."""
    if not isinstance(name, str):
        raise TypeError(
            f"a method is named by a string such as 'sam', not by {described(name)}: write steppe.build('sam', base), "
            "or SharpnessAware(base, SAM()) with a method that you made"
        )
    if name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    accepted = inspect.signature(METHODS[name]).parameters
    for option in options:
        if option not in accepted:
            raise ValueError(unknown(f"option of {name}", option, [*accepted, *also]))
    return METHODS[name](**checked(METHODS[name], name, options))
