"""Methods by name, for configurations and for those in a hurry."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch.optim import Optimizer

from .._util.names import unknown
from ..core.ball import Ascent, Ball, Slope
from ..core.metric import Elementwise, Filterwise, Metric, NormLayersOnly
from ..core.probe import Method
from ..core.triple import TRACE, Triple
from ..methods.agnostic import AgnosticSAM
from ..methods.combinators import PerPart, PerWorker
from ..methods.esam import ESAM
from ..methods.gsam import GSAM
from ..methods.looksam import LookSAM
from ..methods.msam import MomentumSAM
from ..methods.options import checked
from ..methods.rsam import RSAM
from ..methods.sa_sam import SASAM, SASGD
from ..methods.sam import SAM, Plain
from ..methods.sharpbalance import SharpBalance
from ..methods.sparse import DynamicSparseSAM, FisherSparseSAM
from ..methods.universal import UniversalSAM, det_sam, frob_sam, trace_sam
from .engine import SharpnessAware


def _ascent(rho: float, metric: Metric | None, p: float, normalized: bool) -> Ascent:
    if not normalized and p != 2:
        raise ValueError(f"an un-normalised step is a plain gradient step: it has no p-norm, and p = {p:g} was asked")
    return Ball(rho, metric, p) if normalized else Slope(rho, metric)


def _sam(
    rho: float = 0.05, p: float = 2.0, steps: int = 1, normalized: bool = True, decay_in_ascent: bool = False
) -> Method:
    return SAM(_ascent(rho, None, p, normalized), steps, decay_in_ascent)


def _asam(
    rho: float = 0.5,  # Kwon et al. 2021, CIFAR-10
    eta: float = 0.01,
    p: float = 2.0,
    steps: int = 1,
    normalized: bool = True,
    decay_in_ascent: bool = False,
    everywhere: bool = False,
    filterwise: bool = False,
) -> Method:
    metric = Filterwise(eta, everywhere) if filterwise else Elementwise(eta, everywhere)
    return SAM(_ascent(rho, metric, p, normalized), steps, decay_in_ascent)


def _sam_on(rho: float = 0.5, p: float = 2.0, steps: int = 1) -> Method:  # rho: Mueller et al. 2023, CIFAR ResNets
    return SAM(Ball(rho, NormLayersOnly(), p), steps)


def _universal(triple: Triple = TRACE, rho: float = 0.01, n: int = 1, strength: float = 1.0) -> Method:
    return UniversalSAM(triple, rho, n, strength)


def _agnostic_simple(rho: float = 0.1, held_out_rho: float = 0.05, share: float | None = 0.7) -> Method:
    return AgnosticSAM(rho, held_out_rho, share, simple=True)


def _m_sam(rho: float = 0.05, parts: int = 2, over_workers: bool = False) -> Method:
    return PerWorker(SAM(rho)) if over_workers else PerPart(SAM(rho), parts)


def _sharpbalance(rho: float = 0.2) -> Method:
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
    """The method of that name with these options."""
    return _method(name, options)


def _method(name: str, options: Mapping[str, Any], also: Iterable[str] = ()) -> Method:
    if name not in METHODS:
        raise ValueError(unknown("method", name, METHODS))
    accepted = inspect.signature(METHODS[name]).parameters
    for option in options:
        if option not in accepted:
            raise ValueError(unknown(f"option of {name}", option, [*accepted, *also]))
    return METHODS[name](**checked(METHODS[name], name, options))


ENGINE_OPTIONS = tuple(
    p.name for p in inspect.signature(SharpnessAware.__init__).parameters.values() if p.kind is p.KEYWORD_ONLY
)


def build(name: str, base: Optimizer, **options: Any) -> SharpnessAware:
    """`SharpnessAware` around `base` with the method of that name; options are the method's or the engine's."""
    engine = {k: options.pop(k) for k in ENGINE_OPTIONS if k in options}
    made = _method(name, options, also=ENGINE_OPTIONS)
    return SharpnessAware(base, made, **checked(SharpnessAware.__init__, "SharpnessAware", engine))


def sam(base: Optimizer, rho: float = 0.05, **options: Any) -> SharpnessAware:
    """SAM around `base`: the short form of `build("sam", base, rho=rho)`."""
    return build("sam", base, rho=rho, **options)
