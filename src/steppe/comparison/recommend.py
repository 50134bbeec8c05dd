"""The recommendation after the verdicts: a decision over all methods and trials, and not a claim.

The three best trials by validation run with two more seeds each, and the lowest mean validation error wins. Its stated
error comes from three fresh seeds on test rows, because the winner's own numbers are too good. Where its method is not
better than the reference, the reference is recommended unless the lead exceeds the smallest difference that matters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from .store import Comparison

BEST = 3
REPEATS: Mapping[str, int] = {"again": 2, "fresh": 3}


@dataclass(frozen=True)
class Chosen:
    """A configuration: the trial that it comes from, its mean validation error over seeds, and why it was chosen."""

    method: str
    index: int
    validation: float
    why: str


def finalists(current: Comparison) -> list[tuple[str, int]]:
    """Return method and number of the best trials by validation, the reference's best among them."""
    ranked = sorted(
        (current.done["trial", m, i, 0].validation_error, k, m, i)
        for k, m in enumerate(current.design.methods)
        for i in range(len(current.outcomes(m)))
        if not current.done["trial", m, i, 0].failed
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
            return Chosen(reference, min(plain)[1], min(plain)[0], why)
        return Chosen(method, index, score, "its lead on validation is worth a change, though it is not shown on test")
    return Chosen(method, index, score, "the lowest mean validation error over three seeds")
