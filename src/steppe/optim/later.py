"""Steps that are refused on the device where they are not finite, of which the host hears when it comes by again."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from . import fused
from .guard import Guarded
from .planned import Planned


class HeardLater:
    """Finds out which steps need not be waited for, and keeps the flag that they raise."""

    def __init__(self, base: Optimizer):
        self._base = base
        self._guard: Guarded | None = None
        self._unheard = False  # whether a step was applied since the last look
        self._state: Any = None  # the base's, when it was applied
        self.open = False  # whether the flag may have been put up by a step that was never applied
        self._things: tuple[Any, ...] = (None, None, None)  # with which a look at all parameters found nothing amiss
        self._kinds: list[Any] = []

    def flag(self, device: torch.device) -> Tensor | None:
        """The flag that a step puts up where it meets trouble, if the last one could be refused on the device."""
        if self._guard is None:
            return None
        if self._guard.flag.device != device:
            self.listen(wait=True)
            self._guard, self.open = None, False
            return None
        if self.open or self._elsewhere:
            self._unheard = False
            self._guard.forget()
        self.open = True
        return self._guard.flag

    @property
    def _elsewhere(self) -> bool:
        """Whether another state was loaded since, which knows nothing of the last step."""
        return self._unheard and self._base.state is not self._state

    def listen(self, wait: bool) -> None:
        """Raises if an earlier step is known to have been refused, with everything as it was before that step."""
        if self._guard is None or not self._unheard:
            return
        if self._elsewhere:
            self._unheard = False
            self._guard.recount()  # the flag may be that of a step which is under way
            return
        self._unheard = not wait
        try:
            self._guard.tell(self._base.param_groups, wait)
        except FloatingPointError:
            self._unheard = self.open = False
            raise

    def serving(self, planned: Planned) -> Guarded | None:
        """What applies a step that can be refused on its device, where looking would have to wait."""
        base, site, statistics = self._base, planned.site, planned.statistics.at
        if planned.trouble is None or site.settings or site.space.sharded or not (site.begun and statistics.stay):
            return None
        things = (site.space, statistics, base.state)
        first = [name for name, value in base.state.get(site.space.params[0], {}).items() if value is not None]
        kinds = [len(base.state), first, *((g.get("fused"), bool(g.get("momentum"))) for g in base.param_groups)]
        if not all(map(is_, things, self._things)) or kinds != self._kinds:
            devices = {*site.space.devices, *statistics.devices}
            if len(devices) > 1 or site.space.device.type not in fused.DEVICES or not fused.obeys(base):
                return None
            self._things, self._kinds = things, kinds
        self._guard = self._guard or Guarded(site.space.device, stop=True)
        return self._guard

    def applied(self, served: bool) -> None:
        """Hears that a step was applied or has failed; one that was not served may have left the flag up."""
        self.open, self._unheard, self._state = False, served, self._base.state
        if not served:
            self._guard = None
