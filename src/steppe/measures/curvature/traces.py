"""Random probes whose components in a growing Krylov space are known, so that the space can be left out afterwards."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import torch
from torch import Tensor

from ...core.vector import Vector
from ..estimate import Estimate, summarise
from .lanczos import Lanczos, Operator, random_source

BLOCK = 5  # probes per call for products, so that few vectors are in memory at once
SHARE = 0.25  # of the formula in a trace's variance: Student's intervals of 10 to 33 probes cover 93 to 97 % then
MOST = 4.0  # times the sample variance that the formula may be, because rounding limits a difference of squares


class Probes:
    """Vectors z of random signs, and what products with them say about the complement of a Krylov space.

    With P the projection onto the complement of the first k vectors, z'PAPz and ||PAz||^2 - ||PA(z - Pz)||^2 have the
    means tr(PAP) and ||PAP||_F^2. Both follow from z'Az, ||Az||^2 and the components of z, because the Lanczos process
    knows A on the space. So every probe counts for the whole space, also if the space grew after its product, and
    neither probes nor products are kept: a probe is drawn again from its seed.

    Parameters
    ----------
    operator
        A symmetric operator A.
    lanczos
        Its Krylov space.
    seed
        Of the signs.

    """

    def __init__(self, operator: Operator, lanczos: Lanczos, seed: int):
        self.operator, self.lanczos, self.seed = operator, lanczos, seed
        self._forms: list[float] = []  # z'Az
        self._norms: list[float] = []  # ||Az||^2
        self._components: list[Tensor] = []  # of z along the vectors of the space and the next one

    def __len__(self) -> int:
        return len(self._forms)

    def add(self, n: int) -> None:
        """Draw n more probes, for one product each; an interrupt loses at most one block."""
        end = len(self) + n
        while len(self) < end:
            probes = [self._probe(i) for i in range(len(self), min(len(self) + BLOCK, end))]
            images = self.operator.products(probes)
            forms = [float(z.dot(image)) for z, image in zip(probes, images, strict=True)]
            norms = [float(image.norm()) ** 2 for image in images]
            components = [self.lanczos.components(z) for z in probes]
            self._components += components
            self._norms += norms
            self._forms += forms

    def trace(self, k: int) -> Estimate:
        """The estimate of tr(PAP).

        Ten draws say little about their variance, and samples that happen to agree would end a search too early. So
        the variance is in part 2 (||PAP||_F^2 - tr(PAP)^2 / rank P), which it does not exceed and nearly equals.
        """
        estimate = summarise(self.traces(k), "unbiased")
        sample = estimate.n * estimate.stderr**2
        formula = 2 * (float(self.squares(k).mean()) - estimate.value**2 / (self.operator.dimension - k))
        variance = (1 - SHARE) * sample + SHARE * min(max(formula, 0.0), MOST * sample)
        return replace(estimate, stderr=sqrt(variance / estimate.n))

    def traces(self, k: int) -> Tensor:
        """Draws with mean tr(PAP): z'PAPz - m (||Pz||^2 - rank P), with m the mean eigenvalue that other probes give.

        z'PAPz = z'Az - c'Tc - 2 b c_k c_{k+1}, with c the components of z, as AQ = QT + b q e'. The second term has
        mean zero, and makes the draws of a multiple of the identity exact.
        """
        forms = torch.tensor(self._forms, dtype=torch.float64)
        if not k:
            return forms
        c, off = self._table(k + 1), self.lanczos.off[k - 1]
        inside = c[:, :k]
        forms = forms - (inside @ self.lanczos.matrix(k) * inside).sum(1) - 2 * off * inside[:, -1] * c[:, k]
        lengths = self.operator.dimension - inside.square().sum(1)  # ||Pz||^2
        means = (forms.sum() - forms) / (lengths.sum() - lengths).clamp(min=1e-6)
        return forms - means * (lengths - (self.operator.dimension - k))

    def squares(self, k: int) -> Tensor:
        """Draws with mean ||PAP||_F^2: ||PAz||^2 - ||PA(z - Pz)||^2; ||PAPz||^2 itself takes one more product."""
        norms = torch.tensor(self._norms, dtype=torch.float64)
        if not k:
            return norms
        c, off = self._table(k + 1), self.lanczos.off[k - 1]
        image = c[:, :k] @ self.lanczos.matrix(k)  # Q'Az
        image[:, -1] += off * c[:, k]
        return norms - image.square().sum(1) - (off * c[:, k - 1]).square()

    def _table(self, width: int) -> Tensor:
        """The first components of all probes, one row each; those along vectors that do not exist are 0."""
        for i, known in enumerate(self._components):
            if len(known) < self.lanczos.known:
                new = self.lanczos.components(self._probe(i), len(known))
                self._components[i] = torch.cat([known, new])
        rows = [known[:width] for known in self._components]
        return torch.stack([torch.cat([row, row.new_zeros(width - len(row))]) for row in rows])

    def _probe(self, i: int) -> Vector:
        return random_source(self.operator, self.seed, 1, i).signs()
