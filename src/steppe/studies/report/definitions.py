"""Measures and targets in words: a short label for axes, and one sentence."""

from __future__ import annotations

from collections.abc import Mapping

from ..._util.measure_names import MeasureName
from ..._util.registry import declared, plugins
from ..plan import TARGETS

FORMS = {
    "{}_normalised": "of normalised logits",
    "gauss_newton_{}": "of the Gauss-Newton matrix",
    "adaptive_{}": "in the scale of each weight",
}
"""What changes a measure, in words."""

OPTIONS = {
    "rows": "on {} rows",
    "count": "on {} rows in all",
    "m": "in batches of {}",
    "precision": "in {}",
    "start": "start {}",
    "climb": "by {}",
}
"""Options of a measure in words; others are written as they are, such as `steps 50`."""


def definition(name: str) -> str:
    """One sentence about a measure; empty for an unknown one."""
    facts, marks = _parts(name)
    if not facts:
        return ""
    does = facts["does"]
    if (other := FORMS["gauss_newton_{}"]) in marks:
        does = does.replace("of the Hessian", other)
    return ", ".join([does, *(mark for mark in marks if mark not in does)])


def label(name: str) -> str:
    """A few words for a measure with its radius and options, or a target; empty for an unknown one."""
    facts, marks = _parts(name)
    if not facts:
        return TARGETS[name].label if name in TARGETS else ""
    words = facts["label"] or MeasureName.of(name).base
    words = words.replace("Hessian", "Gauss-Newton matrix") if "gauss_newton_" in name else words
    adaptive = "adaptive " if name.startswith("adaptive_") and not words.startswith("adaptive ") else ""
    logits = ", normalised logits" if "_normalised" in name else ""
    changed = [mark for mark in marks if mark not in FORMS.values()]  # which the words before have
    return ", ".join([f"{adaptive}{words}{logits}", *changed])


def _parts(name: str) -> tuple[Mapping[str, str], list[str]]:
    """The registration of a measure, or of that which its prefixes and suffix change, which come as words; or nothing.

    Registrations of steppe are read from its code: importing them takes torch.
    """
    try:
        written = MeasureName.of(name)
    except ValueError:  # a user's own name
        return {}, []
    known = declared("steppe.measures") | declared("steppe.measures.curvature")
    base, marks = written.base, list[str]()
    if base not in known and plugins("steppe.measures"):
        from ...measures.registration import MEASURES

        known |= {n: {"does": one.does, "label": one.label} for n, one in MEASURES.items() if n == base}
    if base not in known:
        for form, words in FORMS.items():
            start, end = form.split("{}")
            if base.startswith(start) and base.endswith(end):
                base = base.removeprefix(start).removesuffix(end)
                marks.append(words)
    if base not in known:
        return {}, []
    marks += [f"radius {written.radius}"] if written.radius else []
    marks += [OPTIONS.get(key, f"{key} {{}}").format(value) for key, value in sorted(written.options.items())]
    return {"label": "", **known[base]}, marks
