"""Moving the weights away for a pass and bringing them back, bitwise."""

from __future__ import annotations

from torch import Tensor

from ..vector import Space, Vector, add_, copy_


class Excursion:
    """Holds the one exact copy of the weights that a step needs, from the first move on."""

    def __init__(self, space: Space):
        self.space = space
        self._locals = space.locals()
        self._here = space.vector(self._locals)  # its stacked chunks are copies already
        self._origin: Vector | None = None
        self._away = False

    @property
    def weights(self) -> Vector:
        """The unperturbed weights, wherever the parameters are now."""
        return self._origin or self._here

    def go(self, displacement: Vector | None) -> None:
        """Puts the parameters at weights + displacement, whose memory it consumes."""
        if displacement is None:
            self.back()
            return
        if self._origin is None:
            chunks = zip(self.space.chunks, self._here.chunks, strict=True)
            self._origin = Vector(self.space, [x if c.stacked else x.clone() for c, x in chunks])
        alone: list[Tensor] = []
        increments: list[Tensor] = []
        members: list[Tensor] = []
        places: list[Tensor] = []
        away, self._away = self._away, True
        for c, w, d in zip(self.space.chunks, self._origin.chunks, displacement.chunks, strict=True):
            if c.stacked:
                members += [self._locals[i] for i in c.members]
                places += d.add_(w).unbind(0)
            else:
                alone.append(self._locals[c.members[0]])
                increments.append(d)
        if away:
            starts = zip(self.space.chunks, self._origin.chunks, strict=True)
            copy_(alone, [w for c, w in starts if not c.stacked])
        add_(alone, increments)
        copy_(members, places)
        displacement.release()

    def back(self) -> None:
        """Puts every parameter back, those without a gradient too."""
        if self._away and self._origin is not None:
            copy_(self._locals, self._origin.tensors)
        self._away = False
