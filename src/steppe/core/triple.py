"""Functionals of the Hessian: the (phi, psi, mu) class of the universal-SAM paper, by value and by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from math import inf, isfinite, log
from numbers import Real
from typing import Annotated, Any

import torch
from torch import Tensor

from .._util.names import unknown
from .draw import Draw
from .fields import check_fields
from .vector import Vector, inverse

Law = Callable[[Draw], Vector]  # a measure mu: returns one random direction

LOG_CAP = 0.5 * log(torch.finfo(torch.float32).max)  # exp of this, times a gradient, is finite


def identity(t: Tensor) -> Tensor:
    return t


def uncorrected(n: int) -> float:
    return 1.0


@dataclass(frozen=True)
class Triple:
    """S = phi(integral of psi(v' H v / 2) d mu(v)), with phi: R^m -> R and psi: R -> R^m as torch functions.

    Parameters
    ----------
    phi, psi
        The functions.
    laws
        The measures mu_1 .. mu_m, or one law whose draws all m components share.
    logs
        Whether psi returns log psi and phi maps the log of the mean to log phi, so that products of many factors do
        not overflow.
    correction
        A function of the number of draws: a small-sample factor that multiplies phi.

    References
    ----------
    Tahmasebi et al. 2024, "A Universal Class of Sharpness-Aware Minimization Algorithms".

    Examples
    --------
    >>> trace = steppe.Triple(phi=lambda t: t, psi=lambda t: t, laws=(steppe.sphere,))
    >>> trace.value(torch.tensor([[0.5], [1.5]]))  # the mean over two draws
    tensor(1.)

    """

    phi: Callable[[Tensor], Tensor]
    psi: Callable[[Tensor], Tensor]
    laws: Sequence[Law]
    logs: bool = False
    correction: Callable[[int], float] = uncorrected

    @property
    def m(self) -> int:
        """The number of components of psi."""
        return self.psi(torch.zeros(())).numel()

    def __post_init__(self) -> None:
        check_fields(self, "a triple")
        if len(self.laws) not in (1, self.m):
            raise ValueError(f"psi has {self.m} components: give one law for all, or one each, not {len(self.laws)}")

    def value(self, u: Tensor) -> Tensor:
        """Phi of the sample mean of psi over the rows of `u`, which has one column per law."""
        each = self.psis(u)
        if not self.logs:
            return self.link(each)
        exponent = self.link(each)
        capped = exponent.detach().clamp(max=LOG_CAP).exp()
        return capped * (1 + exponent - exponent.detach())  # the value of exp, capped, with a slope that matches

    def psis(self, u: Tensor) -> Tensor:
        """Psi of every row of `u`: one column per component."""
        each = torch.stack([self.psi(x).reshape(-1) for x in u.reshape(-1)]).reshape(*u.shape, self.m)
        return each[:, 0] if len(self.laws) == 1 else torch.diagonal(each, dim1=1, dim2=2)

    def link(self, psis: Tensor) -> Tensor:
        """Phi of the mean of psi over the rows, corrected for their number; with `logs`, the logarithm of that."""
        n = len(psis)
        return self._of_mean(torch.logsumexp(psis, 0) - log(n) if self.logs else psis.mean(0), n)

    def links_without_each(self, psis: Tensor) -> Tensor:
        """`link` of all rows but the first, of all but the second and so on, in linear time."""
        n = len(psis) - 1
        if self.logs:
            means = torch.logaddexp(*_before_and_after(psis, torch.logcumsumexp, -inf)) - log(n)
        else:
            means = torch.add(*_before_and_after(psis, torch.cumsum, 0.0)) / n
        return torch.stack([self._of_mean(mean, n) for mean in means])

    def _of_mean(self, mean: Tensor, n: int) -> Tensor:
        linked = self.phi(mean if len(mean) > 1 else mean[0])
        return linked + log(self.correction(n)) if self.logs else self.correction(n) * linked


def _before_and_after(rows: Tensor, accumulate: Callable[..., Tensor], nothing: float) -> tuple[Tensor, Tensor]:
    """The accumulated values before and after every row; unlike differences of sums, exact next to large rows."""
    none = torch.full_like(rows[:1], nothing)
    before = torch.cat([none, accumulate(rows, 0)[:-1]])
    return before, torch.cat([accumulate(rows.flip(0), 0).flip(0)[1:], none])


def sphere(draw: Draw) -> Vector:
    """Uniform on the unit sphere over all parameters jointly.

    Parameters
    ----------
    draw
        The random numbers, and the space of the direction.

    Examples
    --------
    >>> space = steppe.Space([torch.zeros(2)])
    >>> draw = steppe.Draw(space, key=(0, 0, 0), weights=space.weights(), grad=space.zeros())

    >>> f"{float(steppe.sphere(draw).norm()):.4f}"
    '1.0000'

    """
    z = draw.normal()
    return z.mul_(inverse(z.norm()))


def gaussian(draw: Draw) -> Vector:
    """N(0, I).

    Parameters
    ----------
    draw
        The random numbers, and the space of the direction.

    Examples
    --------
    >>> space = steppe.Space([torch.zeros(2)])
    >>> draw = steppe.Draw(space, key=(0, 0, 0), weights=space.weights(), grad=space.zeros())

    >>> steppe.gaussian(draw).tensors[0].shape
    torch.Size([2])

    """
    return draw.normal()


def rademacher(draw: Draw) -> Vector:
    """Uniform on {-1, 1}^d.

    Parameters
    ----------
    draw
        The random numbers, and the space of the direction.

    Examples
    --------
    >>> space = steppe.Space([torch.zeros(2)])
    >>> draw = steppe.Draw(space, key=(0, 0, 0), weights=space.weights(), grad=space.zeros())

    >>> steppe.rademacher(draw).tensors[0].abs()
    tensor([1., 1.])

    """
    return draw.signs()


def uphill(draw: Draw) -> Vector:
    """The point mass at the normalised gradient, with which the identity triple is SAM."""
    return draw.grad * inverse(draw.grad.norm())


@dataclass(frozen=True)
class Hypercube:
    """Uniform on [-half, half]^d.

    Parameters
    ----------
    half
        Half of a side. Default: universal-SAM paper, appendix O, sides of 0.02.

    Examples
    --------
    >>> space = steppe.Space([torch.zeros(2)])
    >>> draw = steppe.Draw(space, key=(0, 0, 0), weights=space.weights(), grad=space.zeros())

    >>> bool(steppe.Hypercube(half=0.5)(draw).norm(float("inf")) <= 0.5)
    True

    """

    half: float = 0.01

    def __call__(self, draw: Draw) -> Vector:
        return draw.uniform(-self.half, self.half)


@dataclass(frozen=True)
class PointMass:
    """All mass at one direction.

    Parameters
    ----------
    at
        The direction, as one tensor per parameter.

    Examples
    --------
    >>> space = steppe.Space([torch.zeros(2)])
    >>> draw = steppe.Draw(space, key=(0, 0, 0), weights=space.weights(), grad=space.zeros())

    >>> steppe.PointMass([torch.tensor([1.0, 2.0])])(draw).tensors
    [tensor([1., 2.])]

    """

    at: Sequence[Tensor]

    def __call__(self, draw: Draw) -> Vector:
        return draw.space.vector([x.detach().to(w) for x, w in zip(self.at, draw.space.locals(), strict=True)]).clone()


def moments(t: Tensor) -> Tensor:
    return torch.stack([t, t * t])


def twice_variance(t: Tensor) -> Tensor:
    return 2 * (t[1] - t[0] ** 2)


def bessel(n: int) -> float:
    """The factor n / (n - 1) that makes a sample variance unbiased."""
    if n < 2:
        raise ValueError(f"a variance needs at least two draws, not n = {n}: Frob-SAM's n starts at 2")
    return n / (n - 1)


@dataclass(frozen=True)
class Times:
    """The function t -> factor t."""

    factor: float

    def __call__(self, t: Tensor) -> Tensor:
        return self.factor * t


TRACE = Triple(identity, identity, (sphere,))
"""tr(H) / 2d: universal-SAM paper, Table 1, first row."""

FROBENIUS = Triple(twice_variance, moments, (gaussian,), correction=bessel)
"""||H||_F^2, by shared draws and the unbiased covariance: Table 1, second row, and Algorithm 3."""

DETERMINANT = Triple(Times(-2.0), Times(-1.0), (Hypercube(),), logs=True)
"""det(H) up to the constant (2 pi)^d: Table 1, third row, on the hypercube of appendix O."""

DETERMINANT_RELEASED = Triple(Times(-2.0), Times(-0.5), (Hypercube(),), logs=True)
"""As in the authors' code: psi(t) = exp(-t / 2)."""

TRIPLES = {
    "trace": TRACE,
    "frobenius": FROBENIUS,
    "determinant": DETERMINANT,
    "determinant-released": DETERMINANT_RELEASED,
}


def exponential(sigma: float) -> Triple:
    """The product of (1 - sigma lambda_i): Table 1, last row; needs sigma lambda_max < 1.

    Parameters
    ----------
    sigma
        The factor of the eigenvalues.

    References
    ----------
    Tahmasebi et al. 2024, "A Universal Class of Sharpness-Aware Minimization Algorithms".

    Examples
    --------
    >>> steppe.exponential(sigma=0.1).psi
    Times(factor=0.1)

    """
    return Triple(Times(-2.0), Times(sigma), (gaussian,), logs=True)


FUNCTIONS: Mapping[str, Any] = {
    "identity": identity,
    "times": Times,
    "moments": moments,
    "twice-variance": twice_variance,
}
"""Parts phi and psi."""

LAWS: Mapping[str, Any] = {
    "sphere": sphere,
    "gaussian": gaussian,
    "rademacher": rademacher,
    "uphill": uphill,
    "hypercube": Hypercube,
}
"""Parts mu."""

CORRECTIONS: Mapping[str, Any] = {"none": uncorrected, "bessel": bessel}
KEYS = ("like", "phi", "psi", "mu", "logs", "correction")


def triple_of(spec: str | Mapping[str, Any]) -> Triple:
    """A triple by name, or from the names of its parts.

    Parameters
    ----------
    spec
        A name in `TRIPLES`, or a mapping with `phi` and `psi` from `FUNCTIONS`, `mu` from `LAWS` (or a list of them),
        and `logs` and `correction` as in `Triple`. A part with a number is a mapping, such as `{"times": -2}` or
        `{"hypercube": 0.05}`, half of a side. Parts that are left out are those of the triple named by `like`.

    """
    if isinstance(spec, str):
        if spec not in TRIPLES:
            raise ValueError(unknown("triple", spec, TRIPLES))
        return TRIPLES[spec]
    for key in spec:
        if key not in KEYS:
            raise ValueError(unknown("part of a triple", str(key), KEYS))
    parts: dict[str, Any] = {name: _part(spec[name], name, FUNCTIONS) for name in ("phi", "psi") if name in spec}
    if "mu" in spec:
        laws = spec["mu"] if isinstance(spec["mu"], list | tuple) else [spec["mu"]]
        parts["laws"] = tuple(_part(law, "mu", LAWS) for law in laws)
    if "logs" in spec:
        parts["logs"] = spec["logs"]
    if "correction" in spec:
        parts["correction"] = _part(spec["correction"], "correction", CORRECTIONS)
    missing = [key for key, name in (("phi", "phi"), ("psi", "psi"), ("mu", "laws")) if name not in parts]
    if missing and "like" not in spec:
        raise ValueError(f"a triple takes phi, psi and mu, and {missing[0]} is missing: name it, or a triple with like")
    made = replace(triple_of(str(spec["like"])), **parts) if "like" in spec else Triple(**parts)
    size = made.phi(torch.zeros(made.m) if made.m > 1 else torch.zeros(())).numel()
    if size != 1:
        raise ValueError(f"phi of a triple takes the {made.m} components of psi to one number, not to {size}")
    return made


def read_triple(value: Any, what: str) -> Triple:
    """A triple that is given as a value, by name or from parts, for a field of that name."""
    if isinstance(value, str | Mapping):
        try:
            return triple_of(value)
        except ValueError as error:
            raise ValueError(f"{what}: {error}") from error
    if not isinstance(value, Triple):
        kinds = f"a triple ({', '.join(TRIPLES)}, a mapping of parts, or a Triple)"
        raise ValueError(f"{what} takes {kinds}, not {value!r}")
    return value


TripleLike = Annotated[Triple, read_triple]
"""The annotation of a field that holds a triple."""


def _part(spec: Any, place: str, parts: Mapping[str, Any]) -> Any:
    """One part: a name, or a mapping of a name to its number."""
    with_number = isinstance(spec, Mapping) and len(spec) == 1
    name, number = next(iter(spec.items())) if with_number else (spec, None)
    if not isinstance(name, str) or name not in parts:
        raise ValueError(unknown(f"{place} of a triple", str(name), parts))
    part = parts[name]
    if not isinstance(part, type):  # a function
        if with_number:
            raise ValueError(f"{place} of a triple takes {name} without a number, not {spec!r}")
        return part
    option = fields(part)[0]
    if not with_number and option.default is not MISSING:
        return part()
    if not isinstance(number, Real) or isinstance(number, bool) or not isfinite(number):
        raise ValueError(f"{place} of a triple takes {name} with its {option.name}, {{{name}: NUMBER}}, not {spec!r}")
    return part(float(number))
