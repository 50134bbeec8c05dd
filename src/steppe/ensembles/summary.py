"""Evaluation of a trained ensemble: accuracy, diversity and measures of its members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import reduce
from math import isfinite, nan
from operator import add
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..data.dataset import Dataset, Splits
from ..data.feed import batches
from ..measures.estimate import Estimate, summarise
from ..measures.run import Results
from ..training.distributed import device_of
from ..training.evaluate import ROWS, corrupted_test, evaluating, measured, objective_of, on_data
from ..training.problem import Task, data_of, moved
from .members import Trained
from .scores import MATRICES, OF_PREDICTOR, By, scored


def logits(models: Sequence[nn.Module], dataset: Dataset, task: Task) -> Tensor:
    """The logits of every model on every row, on the CPU; models run in evaluation mode.

    Parameters
    ----------
    models
        The members.
    dataset
        The rows.
    task
        The standardisation of the inputs.

    Examples
    --------
    >>> from steppe.training.problem import task_of
    >>> splits = steppe.data.load("spirals")
    >>> members = [steppe.nn.build("mlp", (2,), 2, width=4, depth=2) for _ in range(3)]
    >>> steppe.ensembles.logits(members, splits.test, task_of(splits)).shape
    torch.Size([3, 1000, 2])

    """
    device = dataset.inputs.device
    outputs = []
    for model in models:
        with evaluating(model.to(device)):
            parts = [task.call(model, x).float().cpu() for x, _ in batches(dataset, ROWS, task.standard)]
        outputs.append(torch.cat(parts))
    return torch.stack(outputs)


@dataclass(frozen=True)
class Predictors:
    """The members of a trained ensemble with its rows, on its device.

    Parameters
    ----------
    trained
        The ensemble.
    models
        The models of its members, with the weights that predict.
    splits
        Its rows.

    Examples
    --------
    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = steppe.training.Config(**small, out=folder)
    ...     trained = steppe.ensembles.train_ensemble(config, steppe.ensembles.Ensemble(2, strategy="deep"))
    ...     predictors = steppe.ensembles.Predictors.of(trained)
    >>> logits, targets = predictors.predictions([predictors.splits.test])
    >>> logits.shape, targets.shape
    (torch.Size([2, 1000, 2]), torch.Size([1000]))

    """

    trained: Trained
    models: Sequence[nn.Module]
    splits: Splits

    @classmethod
    def of(cls, trained: Trained) -> Predictors:
        """Load the members; raise ValueError unless all are trained to their end."""
        unfinished = [str(run.path) for run in trained.runs if not run.finished]
        if unfinished:
            raise ValueError(f"{', '.join(unfinished)} is not trained to its end: rerun the command that trains it")
        device = device_of(trained.config.device)
        models = [run.model(trained.weights).to(device) for run in trained.runs]
        config = replace(trained.runs[0].config, data_root=trained.config.data_root)  # its folder may be a copy
        return cls(trained, models, moved(data_of(config), device))

    def predictions(self, rows: Iterable[Dataset]) -> tuple[Tensor, Tensor]:
        """The members' logits on all sets of rows together, and the targets."""
        task = self.trained.runs[0].task
        return together((logits(self.models, part, task), part.targets.cpu()) for part in rows)

    @property
    def corrupted_source(self) -> str | None:
        """Where corrupted rows come from; None without corruptions."""
        corrupted = corrupted_test(self.trained.config, self.splits.test)
        return None if corrupted is None else corrupted.source

    def under_corruptions(self) -> dict[int, tuple[Tensor, Tensor]]:
        """Predictions by severity, over the test rows under all corruptions of the configuration."""
        corrupted = corrupted_test(self.trained.config, self.splits.test)
        if corrupted is None:
            return {}
        return {
            severity: self.predictions(corrupted.rows(name, severity) for name in corrupted.names)
            for severity in self.trained.config.severities
        }

    def measured(self, names: Sequence[str]) -> list[Results]:
        """Measures of every member, all on the same training rows; Ctrl-C raises KeyboardInterrupt."""
        results = []
        for run, model in zip(self.trained.runs, self.models, strict=True):
            objective = objective_of(model, run.task, self.splits.train, run.config.measure_rows)
            # members have no corruptions of their own
            on = on_data(model, run.task, self.splits, self.trained.config)
            results.append(measured(objective, names, run.config.seed, on))
        return results


def together(parts: Iterable[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return predictions on several sets of rows as those on one set."""
    outputs, targets = zip(*parts, strict=True)
    return torch.cat(outputs, 1), torch.cat(targets)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of a number over members or over ensembles, with its standard error over them.

    NaN, with the reason, if one of them is not finite. The cost is the sum.
    """
    values = torch.tensor([e.value for e in estimates], dtype=torch.float64)
    cost = reduce(add, (e.cost for e in estimates))
    if not bool(values.isfinite().all()):
        note = next(e.note for e in estimates if not isfinite(e.value))
        return Estimate(nan, nan, len(estimates), "plug-in", cost, note=note)
    return replace(summarise(values, estimates[0].kind), cost=cost)


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
        The radius of all members, if it is set and they share it.
    members
        Accuracy, nll, calibration error and sharpness of every member.
    scores
        The scores by name.
    sharpness
        The mean over members, with its error over members; None if it was not measured.
    matrices
        The diversity of every pair of members, by name.
    severities
        The scores under corruptions, by severity.
    corrupted
        The same over all severities together.
    corrupted_source
        Where the corrupted rows come from: the name of an official set, or "remade".
    validation
        The scores on validation rows, if there are any: to choose settings by.

    Examples
    --------
    `report` returns one. By hand, with one score:

    >>> number = steppe.Estimate(0.75, 0.01, 3, "plug-in")
    >>> made = steppe.ensembles.Report("runs/a", "deep", None, [], {"accuracy": number}, number, {})
    >>> made.to_dict()["scores"]["accuracy"]["value"]
    0.75

    """

    path: Path
    strategy: str
    rho: float | None
    members: Sequence[Mapping[str, Any]]
    scores: Mapping[str, Estimate]
    sharpness: Estimate | None
    matrices: Mapping[str, list[list[float]]]
    severities: Mapping[int, Mapping[str, Estimate]] = field(default_factory=dict)
    corrupted: Mapping[str, Estimate] = field(default_factory=dict)
    corrupted_source: str | None = None
    validation: Mapping[str, Estimate] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """All values as JSON types, except that numbers may be NaN or infinite."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(x: Any) -> Any:
    """Return nested estimates, without their costs, as JSON types."""
    if isinstance(x, Estimate):
        return {k: v for k, v in asdict(x).items() if k not in ("cost", "complete")}
    if isinstance(x, Mapping):
        return {str(k): _plain(v) for k, v in x.items()}
    return [_plain(v) for v in x] if isinstance(x, list) else str(x) if isinstance(x, Path) else x


def report(trained: Trained, by: By = "logits", sharpness: str | None = None) -> Report:
    """Evaluate a trained ensemble on its test rows and, on request, measure the sharpness of its members.

    Parameters
    ----------
    trained
        The ensemble. Its configuration has the corruptions to evaluate under.
    by
        As in `predicted`.
    sharpness
        The measure, by name; none by default.

    Examples
    --------
    >>> import tempfile
    >>> small = {"data": "spirals", "model_options": {"width": 4, "depth": 2}, "steps": 1}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     config = steppe.training.Config(**small, out=folder)
    ...     trained = steppe.ensembles.train_ensemble(config, steppe.ensembles.Ensemble(2, strategy="deep"))
    ...     made = steppe.ensembles.report(trained, sharpness="grad_norm")
    >>> 0 <= made.scores["accuracy"].value <= 1, made.sharpness.n  # of two members
    (True, 2)

    """
    predictors = Predictors.of(trained)
    outputs, targets = predictors.predictions([predictors.splits.test])
    own = outputs.log_softmax(-1)
    members: list[dict[str, Any]] = [
        {
            "run": str(run.path),
            "seed": run.config.seed,
            **{name: float(score(one, targets)) for name, score in OF_PREDICTOR.items()},
        }
        for run, one in zip(trained.runs, own, strict=True)
    ]
    measured = predictors.measured([sharpness]) if sharpness is not None else []
    for member, results in zip(members, measured, strict=False):
        failed = [Estimate(nan, nan, 1, "plug-in", note=why) for why in results.failures.values()]
        [member["sharpness"]] = [*results.values(), *failed]
    validation, damaged = predictors.splits.validation, predictors.under_corruptions()
    radii = {run.config.rho for run in trained.runs}
    return Report(
        trained.path,
        trained.ensemble.strategy,
        radii.pop() if len(radii) == 1 else None,
        members,
        scored(outputs, targets, by),
        mean_of([member["sharpness"] for member in members]) if measured else None,
        {name: matrix(outputs).tolist() for name, matrix in MATRICES.items()},
        {severity: scored(*part, by) for severity, part in damaged.items()},
        scored(*together(damaged.values()), by) if damaged else {},
        predictors.corrupted_source,
        scored(*predictors.predictions([validation]), by) if validation is not None else {},
    )


def averaged(reports: Sequence[Report]) -> Report:
    """The means over ensembles that differ by their seeds only, with standard errors over ensembles.

    Parameters
    ----------
    reports
        One per ensemble.

    Examples
    --------
    >>> reports = [
    ...     steppe.ensembles.Report(
    ...         path, "deep", None, [], {"accuracy": steppe.Estimate(value, 0.01, 3, "plug-in")},
    ...         sharpness=steppe.Estimate(1.0, 0.1, 3, "plug-in"), matrices={},
    ...     )
    ...     for path, value in [("seed-0", 0.75), ("seed-1", 0.25)]
    ... ]
    >>> steppe.ensembles.averaged(reports).scores["accuracy"].value
    0.5

    """
    first = reports[0]

    def means(scores: Sequence[Mapping[str, Estimate]]) -> dict[str, Estimate]:
        return {name: mean_of([each[name] for each in scores]) for name in scores[0]}

    return replace(
        first,
        members=[member for r in reports for member in r.members],
        scores=means([r.scores for r in reports]),
        sharpness=mean_of([r.sharpness for r in reports if r.sharpness is not None]) if first.sharpness else None,
        matrices={},
        severities={level: means([r.severities[level] for r in reports]) for level in first.severities},
        corrupted=means([r.corrupted for r in reports]),
        validation=means([r.validation for r in reports]),
    )
