"""An ensemble's members: runs in folders of their own, which tell one another scores of the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .._util import arrays, files
from .._util.names import unknown
from ..measures.fisher import fisher_traces
from ..training.config import Config
from ..training.distributed import device_of
from ..training.evaluate import objective_of
from ..training.exchange import Exchange, rows_file, scores_file
from ..training.folder import FREE, Changed, described, description, folder_of, plain
from ..training.problem import data_of
from ..training.runs import Run, open_run
from ..training.schedule import Position
from .named import Weights, strategy
from .selection import sharp_sets
from .settings import Ensemble

ABOUT = "ensemble.yaml"
APART = 1000  # between the seeds of two ensembles, so that they share no member
HOW = ("how", "processes")  # may change from one start to the next


@dataclass(frozen=True)
class Trained:
    """An ensemble as found on disk: its settings and its members' runs, finished or not."""

    path: Path
    config: Config
    ensemble: Ensemble
    runs: list[Run]

    @property
    def weights(self) -> Weights:
        """Which of the members' weights predict."""
        return strategy(self.ensemble.strategy).weights(self.runs[0].config)


def folder(config: Config, ensemble: Ensemble) -> Path:
    """The folder of an ensemble: `out`, or a name that tells what is trained."""
    return folder_of(replace(config, method=ensemble.strategy))


def members_of(config: Config, ensemble: Ensemble) -> list[Config]:
    """The configurations of all members. Their data are the same, whatever their seeds."""
    chosen, epochs = strategy(ensemble.strategy), _epochs(config)
    data_seed = config.seed if config.data_seed is None else config.data_seed
    return [
        replace(
            config,
            seed=APART * config.seed + i,
            data_seed=data_seed,
            corruptions=[],  # the ensemble is tested under them, and its members with it
            out=str(folder(config, ensemble) / f"member-{i}"),
            **chosen.changes(config, ensemble, i, epochs),
        )
        for i in range(ensemble.members)
    ]


def _epochs(config: Config) -> int:
    if config.steps is None:
        return config.epochs
    return -(-config.steps // (len(data_of(config).train) // config.batch_size))


def keep(config: Config, ensemble: Ensemble) -> None:
    """Writes ensemble.yaml, or refuses to go on with other settings than the folder's."""
    path = folder(config, ensemble)
    now = {"ensemble": asdict(ensemble), "config": plain(config)}
    if (path / ABOUT).exists():
        then = _about(path)
        free = {"ensemble": HOW, "config": FREE}
        differ = [
            f"{k} was {then[part].get(k)!r} and is now {v!r}"
            for part in now
            for k, v in now[part].items()
            if k not in free[part] and then[part].get(k) != v
        ]
        if differ:
            raise ValueError(
                f"{path} holds an ensemble with other settings: {'; '.join(differ)}. Go on with the old values, or "
                "give another out."
            )
    path.mkdir(parents=True, exist_ok=True)
    files.replace(path / ABOUT, described(now))


def open_ensemble(path: Path | str, model: str | None = None, trust: bool = False) -> Trained:
    """Open the ensemble in a folder, finished or not; `model` and `trust` as in `steppe.training.open_run`."""
    path = Path(path)
    if not (path / ABOUT).exists():
        raise FileNotFoundError(f"{path} is no ensemble's folder: it has no {ABOUT}. `steppe ensemble` makes one")
    said = _about(path)
    ensemble = Ensemble(**said["ensemble"])
    runs = [open_run(path / f"member-{i}", model, trust) for i in range(ensemble.members)]
    return Trained(path, Config(**said["config"]), ensemble, runs)


def _about(path: Path) -> dict[str, Any]:
    try:
        said = description(path / ABOUT)
        if said["ensemble"].get("how") == "stacked":  # removed since; like every way, it may change between two starts
            said["ensemble"]["how"] = "sequence"
        for part, known in (("ensemble", asdict(Ensemble())), ("config", asdict(Config()))):
            strange = [k for k in said[part] if k not in known]
            if strange:
                raise KeyError(unknown("setting", strange[0], known))
    except Changed:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path / ABOUT} does not describe an ensemble: {error!r}. Bring it back, or start anew"
        ) from error
    return said


def tell_scores(config: Config, epoch: int) -> None:
    """Writes how sharp every training row is for a member after so many epochs: its Fisher trace.

    In evaluation mode, on rows without augmentation and with the labels trained on (Lu et al. 2024, section 4.3).
    """
    path = folder_of(config)
    file = scores_file(path, epoch)
    if file.exists():
        return
    run = open_run(path, config.model)
    if run.position != Position(epoch):
        raise FileNotFoundError(
            f"{file} is not there, and the run is at {run.position}: what it would hold is of the weights after epoch "
            f"{epoch}. Bring the file back, or start the ensemble in another folder"
        )
    device = device_of(config.device)
    objective = objective_of(run.model().to(device), run.task, run.data().train.to(device), None)
    arrays.save(file, fisher_traces(objective).numpy())


def exchange(configs: Sequence[Config], ensemble: Ensemble, epoch: int) -> None:
    """Writes every member's sharp rows from the scores of all of them."""
    paths = [folder_of(c) for c in configs]
    if all(rows_file(p, epoch).exists() for p in paths):
        return
    scores = np.stack([arrays.read(scores_file(p, epoch)) for p in paths])
    for path, flags in zip(paths, sharp_sets(scores, ensemble.share, ensemble.named, ensemble.rest), strict=True):
        arrays.save(rows_file(path, epoch), np.flatnonzero(flags))


def exchanges(config: Config) -> list[int]:
    """After which epochs a member waits for the others."""
    schedule = Exchange.of(config.sharp_rows)
    return schedule.epochs(_epochs(config)) if schedule is not None else []
