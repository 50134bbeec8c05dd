"""The recommendation after the verdicts: a decision over all methods and trials, and not a claim.

The three best trials by validation run with two more seeds each, and the lowest mean validation error wins. Its stated
error comes from three fresh seeds on test rows, because the winner's own numbers are too good. Where its method is not
better than the reference, the reference is recommended unless the lead exceeds the smallest difference that matters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from .design import EPOCHS, Design
from .store import Comparison

if TYPE_CHECKING:
    from .result import Recommended

BEST = 3
REPEATS: Mapping[str, int] = {"again": 2, "fresh": 3}
OF_BASE = ("lr", "momentum", "weight_decay")  # settings that the base optimizer takes


@dataclass(frozen=True)
class Chosen:
    """A configuration: the trial that it comes from, and why it was chosen."""

    method: str
    index: int
    why: str


def finalists(current: Comparison) -> list[tuple[str, int]]:
    """Return method and number of the best trials by validation, the reference's best among them."""
    ranked = sorted(
        (current.done["trial", m, i, 0].validation_error, k, m, i)
        for k, m in enumerate(current.design.methods)
        for i in range(len(current.outcomes(m)))
        if not (current.done["trial", m, i, 0].failed or current.done["trial", m, i, 0].stopped)
    )
    best = ranked[:BEST]
    if all(m != current.design.reference for *_, m, _ in best):
        best += [one for one in ranked if one[2] == current.design.reference][:1]
    return [(m, i) for *_, m, i in best]


def choice(current: Comparison) -> Chosen:
    """Return the recommended configuration."""
    scores = {
        (m, i): fmean(
            current.done[key].validation_error
            for key in [("trial", m, i, 0), *(("again", m, i, k) for k in range(REPEATS["again"]))]
            if key in current.done
        )
        for m, i in finalists(current)
    }
    (method, index), score = min(scores.items(), key=lambda item: item[1])
    reference = current.design.reference
    plain = [(s, i) for (m, i), s in scores.items() if m == reference]
    contrast = current.contrasts.get(method)
    if method != reference and contrast is not None and contrast.verdict != "better" and plain:
        lead = min(plain)[0] - score
        if lead <= contrast.worth:
            why = f"{method} is not shown to be better, and its lead on validation is not worth a change"
            return Chosen(reference, min(plain)[1], why)
        return Chosen(method, index, "its lead on validation is worth a change, though it is not shown on test")
    return Chosen(method, index, "the lowest mean validation error over three seeds")


def snippets(design: Design, r: Recommended, where: Mapping[str, Any]) -> tuple[str, str]:
    """Return the recommended configuration as YAML for `steppe train`, and as lines of Python."""
    from ..studies.grid import resolved

    options = {k: v for k, v in r.options.items() if k != "rho"}
    trained = "data" in design.task  # by `steppe train`, and else by a function of the user's
    values: dict[str, Any] = {**design.task, **where} if trained else {}
    values |= {"method": r.method, **r.settings, EPOCHS: r.epochs}
    values |= {"rho": r.options["rho"]} if "rho" in r.options else {}
    values |= {f"method_options.{k}": v for k, v in options.items()}
    values = resolved(values) if trained else values
    values = {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in values.items()}
    known = values.keys() if trained else {"method", *OF_BASE, EPOCHS, "rho"}
    yaml = "".join(f"{'' if k in known else '# '}{k}: {json.dumps(v)}\n" for k, v in values.items())
    if trained:
        words = wrap(", ".join(f"{k}={v!r}" for k, v in values.items()), 84, break_on_hyphens=False)
        lines = ["import steppe", "config = steppe.training.Config(", *(f"    {line}" for line in words), ")"]
        return yaml, "\n".join([*lines, "run = steppe.training.train(config)", ""])
    base = "".join(f", {k}={values[k]!r}" for k in OF_BASE if k in values)
    more = "".join(f", {k}={values.get(k, v)!r}" for k, v in r.options.items())
    return yaml, (
        f"base = torch.optim.SGD(model.parameters(){base})\n"
        f'opt = steppe.build("{r.method}", base, model=model{more})\n'
        f"for epoch in range({r.epochs}):\n"
        "    for x, y in loader:\n"
        "        opt.step(lambda pass_, x=x, y=y: pass_.backward(loss_fn(model(x), y)))\n"
    )
