"""What is told of a trained ensemble: how good, how different and how sharp its members are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset
from ..measures.estimate import Estimate, summarise
from ..measures.registry import resolve_measures
from ..measures.run import measure_objective
from ..training.distributed import device_of
from . import diversity
from .members import Trained
from .scores import By, accuracy, calibration_error, logits, negative_log_likelihood, scored

SHARPNESS = "adaptive_worst_l2@0.5"  # SharpBalance paper, section 4.1 and appendix D.2


@dataclass(frozen=True)
class Report:
    """Numbers of an ensemble on the test rows, and of its sharpness on training rows."""

    path: Path
    strategy: str
    rho: float | None
    members: Sequence[Mapping[str, Any]]  # each with its own accuracy, nll, calibration error and sharpness
    scores: Mapping[str, Estimate]
    sharpness: Estimate  # the mean over members, with its error over members
    matrices: Mapping[str, list[list[float]]]  # of pairs of members
    severities: Mapping[int, Mapping[str, Estimate]] = field(default_factory=dict)  # scores under corruptions

    def to_dict(self) -> dict[str, Any]:
        """Everything in types that JSON has, but for numbers that are not finite."""
        return {
            "path": str(self.path),
            "strategy": self.strategy,
            "rho": self.rho,
            "members": [{**m, "sharpness": told(m["sharpness"])} for m in self.members],
            "scores": {name: told(e) for name, e in self.scores.items()},
            "sharpness": told(self.sharpness),
            "matrices": self.matrices,
            "severities": {
                str(severity): {name: told(e) for name, e in found.items()}
                for severity, found in self.severities.items()
            },
        }


def told(e: Estimate) -> dict[str, Any]:
    """An estimate without what it cost."""
    return {k: v for k, v in asdict(e).items() if k not in ("cost", "complete")}


def report(trained: Trained, by: By = "logits", sharpness: str = SHARPNESS) -> Report:
    """Tests an ensemble whose members are all trained, as its configuration says, and measures how sharp they are."""
    behind = [str(run.path) for run in trained.runs if not run.finished]
    if behind:
        raise ValueError(f"{', '.join(behind)} is not trained to its end: give the command that trains it again")
    config, device = trained.config, device_of(trained.config.device)
    models = [run.model(trained.weights).to(device) for run in trained.runs]
    test = trained.runs[0].data().test.to(device)
    said, targets = _said(trained, models, test)
    own = said.log_softmax(-1)
    how_sharp = [_sharpness(trained, i, models[i], sharpness) for i in range(len(models))]
    members = [
        {
            "run": str(run.path),
            "seed": run.config.seed,
            "accuracy": float(accuracy(one, targets)),
            "nll": float(negative_log_likelihood(one, targets)),
            "calibration_error": float(calibration_error(one, targets)),
            "sharpness": sharp,
        }
        for run, one, sharp in zip(trained.runs, own, how_sharp, strict=True)
    ]
    return Report(
        trained.path,
        trained.ensemble.strategy,
        config.rho,
        members,
        scored(said, targets, by),
        _mean(how_sharp),
        {name: matrix(said).tolist() for name, matrix in diversity.MATRICES.items()},
        _under_corruptions(trained, models, test, by),
    )


def _said(trained: Trained, models: Sequence[nn.Module], rows: Dataset) -> tuple[Tensor, Tensor]:
    return logits(models, rows, trained.runs[0].task), rows.targets.cpu()


def _sharpness(trained: Trained, i: int, model: nn.Module, name: str) -> Estimate:
    """A member's sharpness on the rows that all members are measured on."""
    run = trained.runs[i]
    objective = run.objective(trained.weights, model=model)
    found = measure_objective(objective, resolve_measures([name]), run.config.seed, progress=False)
    if name in found.failures:
        return Estimate(nan, nan, 1, "plug-in", note=found.failures[name])
    return found.estimates[name]


def _mean(found: Sequence[Estimate]) -> Estimate:
    values = torch.tensor([e.value for e in found], dtype=torch.float64)
    if not bool(values.isfinite().all()):
        return Estimate(nan, nan, len(found), "plug-in", note=next(e.note for e in found if e.value != e.value))
    return summarise(values, found[0].kind)


def _under_corruptions(
    trained: Trained, models: Sequence[nn.Module], test: Dataset, by: By
) -> Mapping[int, Mapping[str, Estimate]]:
    """The same scores by severity, over the rows of all corruptions together."""
    from ..data import corruptions

    config = trained.config
    if not config.corruptions:
        return {}
    names = corruptions.NAMES if "all" in config.corruptions else config.corruptions
    cache, host = Path(config.data_root) / "corrupted", test.to("cpu")
    found = {}
    for severity in config.severities:
        damaged = (corruptions.corrupted(host, name, severity, cache=cache).to(test.inputs.device) for name in names)
        said, targets = zip(*(_said(trained, models, rows) for rows in damaged), strict=True)
        found[severity] = scored(torch.cat(said, 1), torch.cat(targets), by)
    return found
