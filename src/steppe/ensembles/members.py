"""Members of an ensemble: runs in their own folders that exchange scores of the training rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from .._util.digests import read_array, read_yaml, save_array, save_yaml
from .._util.names import unknown
from ..measures.fisher import fisher_traces
from ..training.batches import rows_file
from ..training.config import FREE, Config, Weights
from ..training.distributed import device_of
from ..training.evaluate import objective_of
from ..training.folder import Run, changes, folder_of, open_run, plain
from ..training.problem import data_of
from ..training.schedule import Exchange, Position
from .strategies import End, Ensemble, Rest, strategy

ABOUT = "ensemble.yaml"
APART = 1000  # between the seeds of two ensembles: they share no member
HOW = ("how", "processes")  # settings that may change between starts
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Trained:
    """An ensemble on disk: its settings and its members' runs, finished or not.

    Attributes
    ----------
    path
        The folder.
    config
        The configuration that the members have in common.
    ensemble
        The settings of the ensemble.
    runs
        The runs of the members.

    Examples
    --------
    `train_ensemble` and `open_ensemble` return one:

    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = steppe.training.Config(**small, out=folder)
    ...     trained = steppe.ensembles.train_ensemble(config, steppe.ensembles.Ensemble(2, strategy="deep"))
    >>> trained.ensemble.strategy, trained.weights, [run.config.seed for run in trained.runs]
    ('deep', 'last', [0, 1])

    """

    path: Path
    config: Config
    ensemble: Ensemble
    runs: list[Run]

    @property
    def weights(self) -> Weights:
        """Which of the members' weights predict."""
        return strategy(self.ensemble.strategy).weights(self.runs[0].config)


def members_of(config: Config, ensemble: Ensemble) -> list[Config]:
    """The configurations of all members. All have the same data, and seeds of their own.

    Parameters
    ----------
    config
        The configuration that the members have in common.
    ensemble
        The settings of the ensemble.

    Examples
    --------
    >>> config = steppe.training.Config(method="sam", seed=3)
    >>> members = steppe.ensembles.members_of(config, steppe.ensembles.Ensemble(2, strategy="deep+sam"))
    >>> [(member.seed, member.data_seed, member.rho) for member in members]
    [(3000, 3, 0.2), (3001, 3, 0.2)]

    """
    chosen, epochs = strategy(ensemble.strategy), _epochs(config)
    data_seed = config.seed if config.data_seed is None else config.data_seed
    seeds = ensemble.seeds or [APART * config.seed + i for i in range(ensemble.members)]
    if len(seeds) != ensemble.members or len({*seeds}) != len(seeds):
        raise ValueError(f"seeds is {seeds}, and has to be {ensemble.members} different numbers: one per member")
    return [
        replace(
            config,
            seed=seeds[i],
            data_seed=data_seed,
            corruptions=[],  # evaluated once for the whole ensemble
            out=str(folder_of(config, ensemble.strategy) / f"member-{i}"),
            **chosen.changes(config, ensemble, i, epochs),
        )
        for i in range(ensemble.members)
    ]


def _epochs(config: Config) -> int:
    if config.steps is None:
        return config.epochs
    return -(-config.steps // (len(data_of(config).train) // config.batch_size))


def save_settings(config: Config, ensemble: Ensemble) -> None:
    """Write ensemble.yaml; raise ValueError if the folder holds an ensemble with other settings."""
    path = folder_of(config, ensemble.strategy)
    now = {"ensemble": asdict(ensemble), "config": plain(config)}
    if (path / ABOUT).exists():
        then = _about(path)
        different = [changes(then[part], now[part], (*HOW, *FREE)) for part in now]
        if any(different):
            raise ValueError(
                f"{path} holds an ensemble with other settings: {'; '.join(filter(None, different))}. Use the old "
                "values, or another out."
            )
    path.mkdir(parents=True, exist_ok=True)
    save_yaml(path / ABOUT, now)


def open_ensemble(path: Path | str, model: str | None = None, trust: bool = False) -> Trained:
    """Open the ensemble in a folder, finished or not.

    Parameters
    ----------
    path
        The folder.
    model, trust
        As in `steppe.training.open_run`.

    Examples
    --------
    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = steppe.training.Config(**small, out=folder)
    ...     trained = steppe.ensembles.train_ensemble(config, steppe.ensembles.Ensemble(2, strategy="deep"))
    ...     again = steppe.ensembles.open_ensemble(folder)
    >>> [run.finished for run in again.runs]
    [True, True]

    """
    path = Path(path)
    if not (path / ABOUT).exists():
        raise FileNotFoundError(f"{path} is no ensemble's folder: it has no {ABOUT}. `steppe ensemble` makes one")
    about = _about(path)
    ensemble = Ensemble(**about["ensemble"])
    runs = [open_run(path / f"member-{i}", model, trust) for i in range(ensemble.members)]
    return Trained(path, Config(**about["config"]), ensemble, runs)


def begun(path: Path) -> Config | None:
    """Return the configuration of the ensemble that a folder holds, trained or not; None if it holds none."""
    return Config(**_about(path)["config"]) if (path / ABOUT).exists() else None


def _about(path: Path) -> dict[str, Any]:
    return read_yaml(path / ABOUT, "an ensemble", _check_settings)


def _check_settings(about: dict[str, Any]) -> None:
    for part, settings in (("ensemble", asdict(Ensemble())), ("config", asdict(Config()))):
        unexpected = [k for k in about[part] if k not in settings]
        if unexpected:
            raise KeyError(unknown("setting", unexpected[0], settings))
        about[part] = settings | about[part]  # those that a later version has added


def write_scores(run: Run, epoch: int) -> None:
    """Write the sharpness score of every training row for a member after an epoch: its Fisher trace.

    In evaluation mode, on rows without augmentation and with the labels trained on (Lu et al. 2024, section 4.3).
    """
    file = _scores_file(run.path, epoch)
    if file.exists():
        return
    start = perf_counter()
    if run.position != Position(epoch):
        raise FileNotFoundError(
            f"{file} is missing, and the run is at {run.position}: the scores come from the weights after epoch "
            f"{epoch}. Restore the file, or start the ensemble in another folder"
        )
    device = device_of(run.config.device)
    objective = objective_of(run.model().to(device), run.task, run.data().train.to(device), None)
    traces = fisher_traces(objective).numpy()
    save_yaml(file.with_suffix(".yaml"), {"seconds": perf_counter() - start})
    save_array(file, traces)


def exchange_seconds(trained: Trained) -> float | None:
    """Return the seconds that the scores of all members took; None without exchanges, and before them."""
    files = [
        _scores_file(run.path, epoch).with_suffix(".yaml") for run in trained.runs for epoch in exchanges(run.config)
    ]
    if not files or not all(file.exists() for file in files):
        return None
    return sum(float(read_yaml(file, "a time", lambda content: float(content["seconds"]))["seconds"]) for file in files)


def _scores_file(folder: Path, epoch: int) -> Path:
    """Return the file with a member's score for every training row after an epoch; .yaml: with the time it took."""
    return folder / f"scores-{epoch}.npy"


def exchange(configs: Sequence[Config], ensemble: Ensemble, epoch: int) -> None:
    """Write every member's sharp rows from the scores of all of them."""
    paths = [folder_of(c) for c in configs]
    if all(rows_file(p, epoch).exists() for p in paths):
        return
    scores = np.stack([read_array(_scores_file(p, epoch)) for p in paths])
    for path, flags in zip(paths, sharp_sets(scores, ensemble.share, ensemble.named, ensemble.rest), strict=True):
        save_array(rows_file(path, epoch), np.flatnonzero(flags))


def exchanges(config: Config) -> list[int]:
    """Return the epochs after which a member waits for the others."""
    schedule = Exchange.of(config.sharp_rows)
    return schedule.epochs(_epochs(config)) if schedule is not None else []


def sharp_sets(scores: NDArray[Any], share: float = 0.5, named: End = "sharpest", rest: Rest = "normal") -> Flags:
    """The sharpness-aware samples of every member as flags (members, samples).

    Each member selects k = int(share * rows) rows at one end of its scores; of equal scores the first rows come first.
    Member i's set is the union of the selections of the *other* members (Lu et al. 2024, section 4.3).

    Parameters
    ----------
    scores
        The score of every training row for every member, (members, rows).
    share
        The fraction of the rows that a member selects.
    named
        Which end of its scores: "sharpest" as in the paper, "flattest" as in the released code.
    rest
        What happens to rows that no member selected. "normal": plain steps, as in the paper. Otherwise the j-th of
        them belongs to member j mod members, as in the released code; a member's set also has its own share
        ("own-share": CIFAR-100, TinyImageNet) or all shares but its own ("other-shares": CIFAR-10).

    Examples
    --------
    Each of two members selects one row of four, which becomes a sharpness-aware row of the other:

    >>> scores = torch.tensor([[3.0, 2.0, 1.0, 0.0], [0.0, 1.0, 2.0, 3.0]]).numpy()
    >>> steppe.ensembles.sharp_sets(scores, share=0.25).tolist()
    [[False, False, False, True], [True, False, False, False]]

    """
    for choice, allowed in ((named, get_args(End)), (rest, get_args(Rest))):
        if choice not in allowed:
            raise ValueError(unknown("choice", choice, allowed))
    members, rows = _checked(scores)
    k = int(round(share * rows, 6))  # rounded, so that 0.29 of 100 are 29
    if not 0 < share <= 1 or k < 1:
        raise ValueError(f"a share of {share:g} of {rows} rows is {k} rows: use at least 1 row and at most all")
    keys = -scores if named == "sharpest" else scores
    listed = np.zeros((members, rows), dtype=np.bool_)
    np.put_along_axis(listed, np.argsort(keys, axis=1, kind="stable")[:, :k], True, axis=1)
    times = listed.sum(0)
    sharp: Flags = times - listed > 0  # selected by another member
    if rest != "normal":
        unselected = np.flatnonzero(times == 0)
        owner = np.arange(len(unselected)) % members
        own = owner == np.arange(members)[:, None]
        sharp[:, unselected] = own if rest == "own-share" else ~own
    return sharp


def _checked(scores: NDArray[Any]) -> tuple[int, int]:
    if scores.ndim != 2 or len(scores) < 2:
        raise ValueError(
            f"scores have one row per member, at least two, and one column per training row, not {scores.shape}"
        )
    bad = np.argwhere(~np.isfinite(scores))
    if len(bad):
        raise ValueError(
            f"{len(bad)} scores are infinite or not a number, the first of member {bad[0][0]} at training row "
            f"{bad[0][1]}: they cannot be ordered. Lower the learning rate or rho"
        )
    return scores.shape[0], scores.shape[1]
