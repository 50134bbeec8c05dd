"""Moving the weights away for a pass and bringing them back, bitwise."""

from __future__ import annotations

import torch

from ..vector import Space, Vector, add_, copy_


class Stage:
    """Where the places of stacked parameters are put together: buffers, kept with their views from step to step."""

    def __init__(self, space: Space):
        chunks = space.weights().chunks
        self.stacked = [k for k, c in enumerate(space.chunks) if c.stacked]
        self.alone = [k for k, c in enumerate(space.chunks) if not c.stacked]
        self.buffers = [torch.empty_like(chunks[k]) for k in self.stacked]
        self.members = [i for k in self.stacked for i in space.chunks[k].members]
        self.views = [view for buffer in self.buffers for view in buffer.unbind(0)]
        self.owners = [space.chunks[k].members[0] for k in self.alone]


class Excursion:
    """Holds the one exact copy of the weights that a step needs, from the first move on."""

    def __init__(self, space: Space, stage: Stage):
        parameters = space.locals()
        self._stage = stage
        self._here = space.vector(parameters)
        self._origin: Vector | None = None
        self._away = False
        self._stacked = [parameters[i] for i in stage.members]
        self._alone = [parameters[i] for i in stage.owners]

    @property
    def weights(self) -> Vector:
        """The unperturbed weights, wherever the parameters are now."""
        return self._origin or self._here

    def go(self, displacement: Vector | None) -> None:
        """Puts the parameters at weights + displacement, whose memory it consumes."""
        if displacement is None:
            self.back()
            return
        stage, moves = self._stage, displacement.chunks
        if self._origin is None:
            self._origin = self._here.unaliased()
        home = self._origin.chunks
        if self._away:
            copy_(self._alone, [home[k] for k in stage.alone])
        self._away = True
        for buffer, k in zip(stage.buffers, stage.stacked, strict=True):
            torch.add(home[k], moves[k], out=buffer)
        add_(self._alone, [moves[k] for k in stage.alone])
        copy_(self._stacked, stage.views)
        displacement.release()

    def back(self) -> None:
        """Puts every parameter back, those without a gradient too."""
        if not self._away or self._origin is None:
            return
        home, stage = self._origin.chunks, self._stage
        copy_(stage.buffers, [home[k] for k in stage.stacked])
        copy_(self._stacked + self._alone, stage.views + [home[k] for k in stage.alone])
        self._away = False
