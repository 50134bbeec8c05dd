"""All small models at once on one device: weights stacked, every pass of all of them one forward and backward.

Runs keep optimizers, methods, learning rates and seeds of their own; what they share is the model's work. They can
share it where the model, its loss and its data are alike. Numbers differ from those of runs trained alone by rounding.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ...training.config import Config
from ...training.stopping import Wish
from ..cell import Outcome, Task
from .engine import Begun
from .serial import Serial

ALIKE = ("data", "data_root", "model", "model_options", "label_smoothing", "precision", "device", "threads")


@dataclass(frozen=True)
class Stacked:
    """As many runs at once as there are, or as are asked for, in the process that asks."""

    limit: int | None = None
    retries: int = 2

    @property
    def workers(self) -> int:
        return self.limit or 1

    def outcomes(self, tasks: Sequence[Task], wish: Wish, begun: Begun = lambda task: None) -> Iterator[Outcome]:
        stacks: dict[str, list[Task]] = {}
        for task in tasks:
            alike = "" if task.cell.checkpoint else json.dumps([task.cell.config[name] for name in ALIKE])
            stacks.setdefault(alike, []).append(task)
        for alike, those in stacks.items():
            size = self.limit or len(those)
            for first in range(0, len(those), size):
                if wish.why:
                    return
                part = those[first : first + size]
                for task in part:
                    begun(task)
                stopped = _trained_together(part) if alike and len(part) > 1 else None
                if stopped is not None:
                    yield stopped
                    return
                yield from Serial(self.retries).outcomes(part, wish)  # what is trained is measured


def _trained_together(tasks: Sequence[Task]) -> Outcome | None:
    """Trains runs in step; one that fails is left for a second look, by itself. An outcome if all were stopped."""
    from ...ensembles.settings import Ensemble
    from ...ensembles.stacked import stacked
    from ...training.stopping import Stopped

    configs = [replace(Config(**task.cell.config), out=task.folder) for task in tasks]
    try:
        with stacked(Ensemble(), False) as reach:
            reach(configs, None)
    except Stopped as stop:
        return Outcome(tasks[0].cell.key, "stopped", error=str(stop))
    except Exception as error:
        warnings.warn(f"runs could not all be trained at once, the rest follow one by one: {error}", stacklevel=2)
    return None
