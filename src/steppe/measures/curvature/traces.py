"""Random probes whose components in a growing Krylov space are known, so that the space can be left out afterwards."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.vector import Vector
from .lanczos import Lanczos, Operator, random_source

BLOCK = 5  # probes per call for products, so that few vectors are in memory at once


class Probes:
    """Vectors z of random signs, and what products with them say about the complement of a Krylov space.

    With P the projection onto the complement of the first k vectors, z'PAPz and ||PAPz||^2 have the means tr(PAP) and
    ||PAP||_F^2. Both follow from z'Az, ||Az||^2 and the components of z, because the Lanczos process knows A on the
    space. So every probe counts for the whole space, also if the space grew after its product, and neither probes nor
    products are kept: a probe is drawn again from its seed.

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

    def traces(self, k: int) -> Tensor:
        """Draws with mean tr(PAP): z'Az - c'Tc - 2 b c_k c_{k+1}, with c the components of z, as AQ = QT + b q e'."""
        forms = torch.tensor(self._forms, dtype=torch.float64)
        if not k:
            return forms
        c, off = self._table(k + 1), self.lanczos.off[k - 1]
        inside = c[:, :k]
        return forms - (inside @ self.lanczos.matrix(k) * inside).sum(1) - 2 * off * inside[:, -1] * c[:, k]

    def squares(self, k: int) -> Tensor:
        """Draws with mean ||PAP||_F^2; needs k + 1 steps of the process, or an invariant space."""
        norms = torch.tensor(self._norms, dtype=torch.float64)
        if not k:
            return norms
        c, off = self._table(k + 2), self.lanczos.off[k - 1]
        image = c[:, :k] @ self.lanczos.matrix(k)  # Q'Az
        image[:, -1] += off * c[:, k]
        last = c[:, k - 1]
        beyond = torch.zeros_like(last)  # q'Az with q the vector after the k-th
        if off:
            beyond = off * last + self.lanczos.diagonal[k] * c[:, k] + self.lanczos.off[k] * c[:, k + 1]
        return norms - image.square().sum(1) - 2 * off * last * beyond + (off * last).square()

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
