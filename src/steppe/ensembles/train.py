"""Training of an ensemble: all members train from one exchange of scores to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from ..training.config import Config
from ..training.entry import train
from ..training.problem import data_of
from .members import Trained, exchange, exchanges, folder, keep, members_of, open_ensemble, write_scores
from .processes import in_processes
from .strategies import Ensemble, How

Reach = Callable[[Sequence[Config], int | None], None]
"""Trains all members to the end of an epoch and has them write scores, or to the end of their runs."""
Way = Callable[[Ensemble, bool | None], AbstractContextManager[Reach]]


def train_ensemble(config: Config, ensemble: Ensemble | None = None, progress: bool | None = None) -> Trained:
    """Trains all members, each in its own folder under the ensemble's.

    Call it again to resume: the result is bit-identical.

    Parameters
    ----------
    config
        The configuration from which those of the members are made.
    ensemble
        The settings of the ensemble.
    progress
        Whether to show progress; by default only on a terminal.

    """
    ensemble = ensemble or Ensemble()
    configs = members_of(config, ensemble)
    if not data_of(config).train.classes:
        raise ValueError(f"{config.data} is a regression problem: ensembles are of classifiers")
    keep(config, ensemble)
    with WAYS[ensemble.how](ensemble, progress) as reach:
        for epoch in exchanges(configs[0]):
            reach(configs, epoch)
            exchange(configs, ensemble, epoch)
        reach(configs, None)
    return open_ensemble(folder(config, ensemble), config.model)


@contextmanager
def in_sequence(ensemble: Ensemble, progress: bool | None) -> Iterator[Reach]:
    """One member after the other."""

    def reach(configs: Sequence[Config], until: int | None) -> None:
        for config in configs:
            train(config, progress, until)
            if until is not None:
                write_scores(config, until)

    yield reach


WAYS: Mapping[How, Way] = {"sequence": in_sequence, "processes": in_processes}
