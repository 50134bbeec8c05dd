"""Several measures of one model in one call, sharing what can be shared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

from .curvature.operator import Curvature
from .curvature.questions import Eigenvalue, Question, Spectrum, priced
from .elsewhere import undisturbed
from .estimate import Cost, Estimate, Measure, stopped
from .named import plan_of
from .objective import Objective
from .progress import Watch, watching
from .results import Results

DEFAULT = ("loss", "grad_norm", "lambda_max", "trace", "frobenius_squared", "adaptive_worst_linf")


def measure(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    data: Any,
    measures: Iterable[str] | Mapping[str, Measure] | str = DEFAULT,
    *,
    seed: int = 0,
    progress: bool | None = None,
    **options: Any,
) -> Results:
    """Measures a model: names, or measures by names of your own; options are those of `Objective`.

    Questions to one spectrum share their products with the Hessian. Ctrl-C returns what is there by then. A
    measure that fails is reported beside the others' numbers. `progress` is shown on a terminal unless False.
    """
    plan = plan_of(measures)
    objective = Objective(model, loss_fn, data, **options)
    return measured(objective, plan, seed, progress)


def measured(objective: Objective, plan: Mapping[str, Measure], seed: int = 0, progress: bool | None = None) -> Results:
    """`measure` of an objective that exists already."""
    objective.check()
    before = objective.spent()
    found: dict[str, Estimate] = {}
    failures: dict[str, str] = {}
    spectra: dict[Any, Spectrum] = {}
    # eigenvalues first: the vectors that they leave make traces cheaper
    order = sorted(plan, key=lambda name: not isinstance(plan[name], Eigenvalue))
    with undisturbed(objective.model, objective.statistics), watching(len(plan), progress) as watch:
        for name in order:
            try:
                _follow(name, _running(plan[name], objective, seed, spectra), found, watch)
            except KeyboardInterrupt:
                if objective.group is not None:  # the other workers wait for this one
                    raise
                if name in found:
                    found[name] = stopped(found[name])
                failures |= {other: "not measured: stopped" for other in order if other not in found | failures}
                break
            except Exception as error:
                if objective.group is not None:  # the other workers may not have failed, and wait
                    raise
                found.pop(name, None)
                failures[name] = str(error)
    kept = {name: found[name] for name in plan if name in found}
    return Results(kept, failures, _total(objective, before))


def _follow(name: str, estimates: Iterator[Estimate], found: dict[str, Estimate], watch: Watch) -> None:
    watch(name, None)
    for estimate in estimates:
        found[name] = estimate
        watch(name, estimate)
    if name not in found:
        raise RuntimeError("it ended without an estimate")


def _running(one: Measure, objective: Objective, seed: int, spectra: dict[Any, Spectrum]) -> Iterator[Estimate]:
    if not isinstance(one, Question):
        return one.running(objective, seed)
    key = (one.form, one.metric, one.by)
    if key not in spectra:
        spectra[key] = one.by(Curvature(objective, one.form, one.metric), seed)
    return priced(one.ask(spectra[key]), objective)


def _total(objective: Objective, before: Cost) -> Cost:
    return objective.spent() - before
