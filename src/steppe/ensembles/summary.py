"""Report of a trained ensemble: accuracy, diversity and sharpness of its members."""

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
from ..measures.registry import measure_by_name
from ..measures.run import measure_objective
from ..training.distributed import device_of
from .members import Trained
from .scores import MATRICES, By, accuracy, calibration_error, logits, negative_log_likelihood, scored

SHARPNESS = "adaptive_worst_l2@0.5"  # SharpBalance paper, section 4.1 and appendix D.2


@dataclass(frozen=True)
class Report:
    """Scores of an ensemble on the test rows, and its sharpness on training rows.

    Parameters
    ----------
    path
        The folder of the ensemble.
    strategy
        The name of its strategy.
    rho
        The radius, if one was set.
    members
        Accuracy, nll, calibration error and sharpness of every member.
    scores
        The scores by name.
    sharpness
        The mean over members, with its error over members.
    matrices
        The diversity of every pair of members, by name.
    severities
        The scores under corruptions, by severity.

    """

    path: Path
    strategy: str
    rho: float | None
    members: Sequence[Mapping[str, Any]]
    scores: Mapping[str, Estimate]
    sharpness: Estimate
    matrices: Mapping[str, list[list[float]]]
    severities: Mapping[int, Mapping[str, Estimate]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return all values as JSON types, except that numbers may be NaN or infinite."""
        return {
            "path": str(self.path),
            "strategy": self.strategy,
            "rho": self.rho,
            "members": [{**m, "sharpness": without_cost(m["sharpness"])} for m in self.members],
            "scores": {name: without_cost(e) for name, e in self.scores.items()},
            "sharpness": without_cost(self.sharpness),
            "matrices": self.matrices,
            "severities": {
                str(severity): {name: without_cost(e) for name, e in scores.items()}
                for severity, scores in self.severities.items()
            },
        }


def without_cost(e: Estimate) -> dict[str, Any]:
    """Return an estimate without its cost."""
    return {k: v for k, v in asdict(e).items() if k not in ("cost", "complete")}


def report(trained: Trained, by: By = "logits", sharpness: str = SHARPNESS) -> Report:
    """Evaluate a trained ensemble on its test rows, and measure the sharpness of its members.

    Parameters
    ----------
    trained
        The ensemble. Its configuration has the corruptions to evaluate under.
    by
        As in `predicted`.
    sharpness
        The measure, by name.

    """
    unfinished = [str(run.path) for run in trained.runs if not run.finished]
    if unfinished:
        raise ValueError(f"{', '.join(unfinished)} is not trained to its end: rerun the command that trains it")
    config, device = trained.config, device_of(trained.config.device)
    models = [run.model(trained.weights).to(device) for run in trained.runs]
    test = trained.runs[0].data().test.to(device)
    outputs, targets = _predictions(trained, models, test)
    own = outputs.log_softmax(-1)
    sharpnesses = [_sharpness(trained, i, models[i], sharpness) for i in range(len(models))]
    members = [
        {
            "run": str(run.path),
            "seed": run.config.seed,
            "accuracy": float(accuracy(one, targets)),
            "nll": float(negative_log_likelihood(one, targets)),
            "calibration_error": float(calibration_error(one, targets)),
            "sharpness": sharp,
        }
        for run, one, sharp in zip(trained.runs, own, sharpnesses, strict=True)
    ]
    return Report(
        trained.path,
        trained.ensemble.strategy,
        config.rho,
        members,
        scored(outputs, targets, by),
        _mean(sharpnesses),
        {name: matrix(outputs).tolist() for name, matrix in MATRICES.items()},
        _under_corruptions(trained, models, test, by),
    )


def _predictions(trained: Trained, models: Sequence[nn.Module], rows: Dataset) -> tuple[Tensor, Tensor]:
    return logits(models, rows, trained.runs[0].task), rows.targets.cpu()


def _sharpness(trained: Trained, i: int, model: nn.Module, name: str) -> Estimate:
    """Return the sharpness of a member; all members are measured on the same rows."""
    run = trained.runs[i]
    objective = run.objective(trained.weights, model=model)
    results = measure_objective(objective, {name: measure_by_name(name)}, run.config.seed, progress=False)
    if name in results.failures:
        return Estimate(nan, nan, 1, "plug-in", note=results.failures[name])
    return results.estimates[name]


def _mean(estimates: Sequence[Estimate]) -> Estimate:
    values = torch.tensor([e.value for e in estimates], dtype=torch.float64)
    if not bool(values.isfinite().all()):
        return Estimate(nan, nan, len(estimates), "plug-in", note=next(e.note for e in estimates if e.value != e.value))
    return summarise(values, estimates[0].kind)


def _under_corruptions(
    trained: Trained, models: Sequence[nn.Module], test: Dataset, by: By
) -> Mapping[int, Mapping[str, Estimate]]:
    """Return the same scores by severity, over the rows of all corruptions together."""
    from ..data import corruptions

    config = trained.config
    if not config.corruptions:
        return {}
    names = corruptions.NAMES if "all" in config.corruptions else config.corruptions
    cache, host = Path(config.data_root) / "corrupted", test.to("cpu")
    scores = {}
    for severity in config.severities:
        damaged = (corruptions.corrupted(host, name, severity, cache=cache).to(test.inputs.device) for name in names)
        outputs, targets = zip(*(_predictions(trained, models, rows) for rows in damaged), strict=True)
        scores[severity] = scored(torch.cat(outputs, 1), torch.cat(targets), by)
    return scores
