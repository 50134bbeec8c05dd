"""How a measure is written, `NAME[@RADIUS][KEY=VALUE,...]`: text only, without torch.

`measures/registry.py` gives names, radii and options their meaning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

FORM = re.compile(r"(?P<base>[^@\[\]]*)(@(?P<radius>[^@\[\]]*))?(\[(?P<options>[^\[\]]*)\])?")
EXAMPLE = "adaptive_worst_linf@0.002[m=64,steps=20]"
DEFAULT = ("loss", "grad_norm", "lambda_max", "trace", "frobenius_squared", "adaptive_worst_linf")


@dataclass(frozen=True)
class MeasureName:
    """The parts of a measure's name as they are written; `radius` is None without an @."""

    base: str
    radius: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> MeasureName:
        """Parse a name; raise ValueError if brackets, commas or equals signs do not match the form."""
        match = FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"a measure is written NAME[@RADIUS][KEY=VALUE,...], as in {EXAMPLE}, not {text!r}")
        options: dict[str, str] = {}
        for part in (match["options"] or "").split(",") if match["options"] is not None else []:
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not key or not equals or not value:
                raise ValueError(f"{text!r}: options are written [KEY=VALUE,...], as in {EXAMPLE}, not {part!r}")
            if key in options:
                raise ValueError(f"{text!r} has two values of {key}: give one")
            options[key] = value
        radius = match["radius"]
        return cls(match["base"].strip(), None if radius is None else radius.strip(), options)

    @property
    def is_plain(self) -> bool:
        """Whether this is a name, or a name at a radius in its canonical spelling."""
        return not self.options and (self.radius is None or canonical_number(self.radius) == self.radius)

    def __str__(self) -> str:
        radius = "" if self.radius is None else f"@{self.radius}"
        options = ",".join(f"{key}={self.options[key]}" for key in sorted(self.options))
        return f"{self.base}{radius}{f'[{options}]' if options else ''}"


def canonical_number(text: str | float) -> str | None:
    """Write a number with the fewest digits that keep it; None for anything else."""
    try:
        value = float(text)
    except ValueError:
        return None
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def split_at_commas(text: str) -> list[str]:
    """Split a list at its commas outside square brackets; empty entries are left out."""
    return [part.strip() for part in re.split(r",(?![^\[\]]*\])", text) if part.strip()]
