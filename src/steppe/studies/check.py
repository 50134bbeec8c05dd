"""Checks of a study before its first cell trains: each data set, model, method and measure once, not once per cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

from .._util import user_code
from ..training.config import Config
from .cell import Cell
from .grid import STRATEGY
from .plan import TARGETS, Study, split_measures

if TYPE_CHECKING:
    from ..data.dataset import Splits
    from ..measures.estimate import Measure

OF_CLASSES = tuple(name for name in TARGETS if not name.endswith("loss") and name != "loss_gap")


class InvalidStudy(ValueError):
    """The study's file asks for something that no run can do."""


@contextmanager
def invalid_values() -> Iterator[None]:
    """Raise errors about names and values in this block as `InvalidStudy`."""
    try:
        yield
    except InvalidStudy:
        raise
    except (ValueError, TypeError, LookupError) as error:
        raise InvalidStudy(str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)) from error


def check_study(
    study: Study,
    planned: Sequence[Cell],
    missing: Sequence[Cell],
    also: Sequence[str] = (),
    *,
    trust: bool = False,
    remote: bool = False,
) -> dict[str, int]:
    """Raise unless every cell can be computed, as far as is visible without training; return numbers of test rows.

    Names are checked in all cells of the plan, data and models in those that are missing; `also` are more measures.
    With `remote`, nodes read their own data: only trust is checked, without importing torch. Raises `InvalidStudy` for
    names, options and models that do not exist or do not fit, and FileNotFoundError for data that is not there.
    """
    with invalid_values():
        check_trust(study, planned, trust)
    if remote or not (missing or also):  # what is measured had right names
        return {}
    check_names(study, planned, also)
    return _check_data_and_models(study, missing)


def check_trust(study: Study, planned: Sequence[Cell], trust: bool) -> None:
    """Raise if a run folder of the pool names a model outside steppe that the study's file does not name."""
    for cell in planned:
        if cell.checkpoint is not None:
            file = Path(cell.checkpoint) / "run.yaml"
            user_code.check_trusted(file, cell.config["model"], study.base.get("model"), trust)


def _is_trained(cell: Cell) -> bool:
    return cell.checkpoint is not None and Path(cell.checkpoint).is_dir()


def check_names(study: Study, planned: Sequence[Cell], also: Sequence[str] = ()) -> None:
    """Raise `InvalidStudy` for a measure, a name or an option that does not exist, in any cell that is to train."""
    from ..measures.registry import resolve_measures
    from ..training.config import check_config

    with invalid_values():
        of_models, scores = split_measures([*study.measures, *also])
        if scores and all(STRATEGY not in cell.config for cell in planned):
            raise ValueError(f"measures: {scores[0]} is a score of ensembles: give a {STRATEGY} in base or grid")
        _check_rows(resolve_measures(of_models), [cell.parts[0] for cell in planned])
        checked = set()
        for cell in planned:
            if _is_trained(cell):
                continue
            for c in _configs(cell):
                names = repr((c.method, c.rho, c.method_options, c.optimizer, c.momentum, c.model, c.model_options))
                names += repr((c.data, c.augment, c.corruptions, c.labels, c.label_noise, c.device))
                if names not in checked:
                    _check_rho(study, c)
                    check_config(c)
                    checked.add(names)


def _configs(cell: Cell) -> Sequence[Config]:
    """The configuration of a run, or those of the members of an ensemble."""
    config, ensemble = cell.parts
    if ensemble is None:
        return [config]
    from ..ensembles.members import members_of  # imports more than a study without ensembles needs

    return members_of(config, ensemble)


def _check_rows(plan: Mapping[str, Measure], configs: Sequence[Config]) -> None:
    """Raise for measures on rows that no run of the study has."""
    needs = {"corrupted": "corruptions", "augmented": "augment", "validation": "validation"}
    for name, one in plan.items():
        rows = getattr(one, "rows", None)
        if rows not in needs or any(getattr(c, needs[rows]) for c in configs):
            continue
        if rows != "validation" or not any(":" in c.data for c in configs):  # npz: and folder: may have a part for it
            raise ValueError(f"measures: {name} needs {rows} rows, and no run has any: set {needs[rows]} in base")


def _check_rho(study: Study, config: Config) -> None:
    """Raise for a radius of a method without one, with where it is given."""
    from ..methods.registry import METHODS

    method = config.method
    if config.rho is None or method not in METHODS or "rho" in signature(METHODS[method]).parameters:
        return
    problem = f"rho does not apply to the method {method}"
    if study.random is not None and "rho" in study.random.space:
        raise InvalidStudy(
            f"random.space.rho: {problem}, and a radius is drawn for every method of the grid: run {method} in a study "
            "of its own"
        )
    if any(method == value.get("method") and "rho" in value for value in study.grid.axes.get("method", ())):
        raise InvalidStudy(f"grid.method: {problem}: leave rho out of its entry")
    place = "grid" if "rho" in study.grid.axes else "base"
    raise InvalidStudy(
        f"{place}.rho: {problem}, and {place} gives it to every method. Remove it there, and write each radius beside "
        f"its method: `method: [{method}, {{method: sam, rho: [0.1, 0.2]}}]` in grid"
    )


def _check_data_and_models(study: Study, missing: Sequence[Cell]) -> dict[str, int]:
    """Read each data set once and build each model once; return the numbers of test rows."""
    from ..data import shifted
    from ..data.registry import declared, load

    roots = {(c.config["data"], c.config["data_root"]) for c in missing}
    if study.normalise is not None and declared(study.normalise) is None:
        roots |= {(study.normalise, root) for _, root in roots}
    splits = {place: load(*place) for place in sorted(roots)}
    configs = [cell.parts[0] for cell in missing if not _is_trained(cell)]
    models = {repr((c.data, c.data_root, c.model, c.model_options)): c for c in configs}
    with invalid_values():
        for config in models.values():
            rows = splits[config.data, config.data_root]
            _check_targets(study, config.data, rows)
            _check_model(config, rows)
            for name in study.ood.values():
                shifted.read(name, rows.train)
        files = {c.config["data"]: c for c in reversed(missing) if c.checkpoint is not None and not _is_trained(c)}
        for cell in files.values():
            _check_checkpoint(cell, splits[cell.config["data"], cell.config["data_root"]])
    return {data: len(splits[data, root].test) for data, root in sorted(roots) if splits[data, root].test.classes}


def _check_checkpoint(cell: Cell, splits: Splits) -> None:
    """Load the first file of a pool and pass a row through it: where that fails, it would fail for all of them."""
    import torch

    from .._util.checkpoints import load_into, read_checkpoint
    from ..training.distributed import threads
    from ..training.model import model_of
    from ..training.problem import standard_of, task_of

    path, config = Path(str(cell.checkpoint)), cell.parts[0]
    task = task_of(splits, standard_of(str(cell.normalise), config, splits))
    model = model_of(config, task.shape, task.outputs).eval()
    load_into(model, read_checkpoint(path), path)
    with torch.no_grad(), threads(1):
        outputs = task.call(model, task.standard(splits.train.inputs[:1])).flatten(1).shape[1]
    if outputs != task.outputs:
        kind = "classes" if splits.train.classes else "targets per row"
        raise ValueError(
            f"{path}: {config.model} with options {config.model_options} has {outputs} outputs, and {config.data} has "
            f"{task.outputs} {kind}: outputs are numbered as classes are, so data of other classes give wrong errors"
        )


def _check_targets(study: Study, data: str, splits: Splits) -> None:
    wrong = [name for name in study.targets if name in OF_CLASSES]
    if wrong and not splits.train.classes and not study.errors:
        raise ValueError(
            f"targets: {', '.join(wrong)} needs classes, and {data} has numbers as targets: write "
            "`targets: [test_loss, loss_gap]`"
        )


def _check_model(config: Config, splits: Splits) -> None:
    """Build the model, and pass a row through a reference model, with zeros as weights."""
    import torch

    from ..nn.registry import build
    from ..training.distributed import threads
    from ..training.model import model_of
    from ..training.problem import task_of

    task = task_of(splits)
    try:
        if user_code.is_factory(config.model):
            model_of(config, task.shape, task.outputs)
            return
        with torch.device("meta"):
            model = build(config.model, task.shape, task.outputs, **config.model_options).eval()
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        # not on the meta device, whose first operation imports dynamo: half a second
        with torch.no_grad(), threads(1):
            zeros = {name: torch.zeros(one.shape, dtype=one.dtype) for name, one in state.items()}
            torch.func.functional_call(model, zeros, torch.zeros(1, *task.shape))
    except (OSError, MemoryError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        # a full disk or memory may recover: cells retry
    except Exception as error:
        raise ValueError(
            f"the model {config.model} with options {config.model_options} cannot be built for the rows of "
            f"{config.data}, which have the shape {task.shape}: {type(error).__name__}: {error}"
        ) from error
