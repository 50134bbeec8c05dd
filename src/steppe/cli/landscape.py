"""`steppe landscape`: the loss around one or more models with one scale, or on the line between two models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from ..core.fields import Ge, Le, Positive, check_fields
from .options import command
from .output import STOPPED, Output, UsageError, to_json, usage_errors, write_text
from .subjects import Found, On, find

if TYPE_CHECKING:
    from ..measures.landscape import Slice
    from ..measures.paths import Path as Way

FORMATS = (".html", ".json", ".npz")


@dataclass(frozen=True)
class Look:
    """What to draw, along which directions, and where to write it."""

    what: list[str] = field(default_factory=list, metadata={"metavar": "RUN|CHECKPOINT", "nargs": "*"})
    """one, for the loss around it; two, for the straight line between them; with --compare, one or more"""
    compare: bool = False
    """draw the loss around each, side by side, with one radius and one scale"""
    out: str = field(default="landscape.html", metadata={"metavar": "FILE"})
    """a page (.html), or the numbers (.json; of one, or between two, .npz)"""
    axes: Annotated[int, Ge(1), Le(2)] = 2
    """around a model: 1 for a line, 2 for a plane"""
    directions: Literal["random", "eigenvectors"] = "random"
    """random directions scaled by filter norms, or the eigenvectors of largest curvature, of length 1"""
    span: Positive | None = None
    """distance along each direction, relative to its length; defaults to where the sharpest model rises by --rise"""
    rise: Positive = 1.0  # as in a study: measures.comparison
    """rise of the loss at the end of an axis, which determines --span"""
    points: Annotated[int, Ge(2)] | None = None
    """points per axis; defaults to 51 on a line, 21 in a plane and between two"""
    view: Literal["contour", "surface"] = "contour"
    """how to draw a plane"""
    log: bool = False
    """draw the rise of the loss on a logarithmic scale"""

    def __post_init__(self) -> None:
        check_fields(self, "")


@command("landscape", takes_file=True)
def landscape(look: Look, on: On) -> Output:
    """Draw the rise of the loss around one or more models, or the line between two and its barrier.

    Examples
    --------
    steppe landscape runs/a --out landscape.html
    steppe landscape runs/a runs/b --compare --directions eigenvectors
    steppe landscape runs/a runs/b --out between.html
    steppe landscape runs/a --axes 1 --directions eigenvectors --out line.json

    """
    if not look.what or (len(look.what) > 2 and not look.compare):
        raise UsageError(
            f"a landscape is of one run or checkpoint, between two, or with --compare of several, not of "
            f"{len(look.what)}"
        )
    suffix = Path(look.out).suffix
    if suffix not in FORMATS:
        raise UsageError(f"--out takes a file that ends in {', '.join(FORMATS)}, not {look.out!r}")
    between = len(look.what) == 2 and not look.compare
    if suffix == ".npz" and len(look.what) > 1 and not between:
        raise UsageError("an .npz file holds one landscape: with --compare, --out takes .html or .json")
    from ..training.config import known_device

    with usage_errors():
        known_device(on.device)
    found = [find(where, on) for where in look.what]  # raises for missing files before anything takes time
    return _between(look, on, found) if between else _around(look, on, found)


def _around(look: Look, on: On, found: Sequence[Found]) -> Output:
    from ..measures.comparison import comparable_slices, directions_of
    from ..measures.plotting import caption

    objectives = [one.subject(on).objective(on) for one in found]
    directions = [directions_of(objective, look.directions, look.axes, on.seed) for objective in objectives]
    points = look.points or (51 if look.axes == 1 else 21)
    slices = comparable_slices(objectives, directions, points, look.rise, radius=look.span)
    names = look.what[: len(slices)]  # fewer if it was stopped
    drawn = slices[0] if len(look.what) == 1 else slices
    _write(drawn, look, names)
    data: dict[str, Any] = {"out": look.out, "runs": look.what, "caption": caption(drawn, names)}
    data |= _data(slices, names) if look.compare else slices[0].to_dict()
    complete = len(slices) == len(look.what) and all(one.complete for one in slices)
    return Output(data, [f"{look.out}: {data['caption']}"], code=0 if complete else STOPPED)


def _between(look: Look, on: On, found: Sequence[Found]) -> Output:
    from ..measures.paths import path
    from ..measures.plotting import caption

    objective, other = found[0].subject(on).objective(on), found[1].subject(on)
    drawn = path(objective, other.model.state_dict(), look.points or 21, name=look.what[1])
    _write(drawn, look, look.what)
    data: dict[str, Any] = {"out": look.out, "runs": look.what, **drawn.along.to_dict()}
    lines = [f"{look.out}: {caption(drawn)}"]
    if drawn.complete and not drawn.along.nonfinite:
        barrier = drawn.barrier()
        data |= {"barrier": barrier.value, "top": drawn.top}
        lines.append(f"Barrier: {barrier}")
    return Output(data, lines, code=0 if drawn.complete else STOPPED)


def _data(slices: Sequence[Slice], names: Sequence[str]) -> dict[str, Any]:
    return {"landscapes": [{"run": name, **one.to_dict()} for name, one in zip(names, slices, strict=True)]}


def _write(drawn: Slice | Way | Sequence[Slice], look: Look, names: Sequence[str]) -> None:
    from ..measures.plotting import write_html

    place = Path(look.out)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix == ".html":
        write_html(drawn, place, look.view, log=look.log, names=names)
    elif isinstance(drawn, Sequence):
        write_text(place, to_json(_data(drawn, names)))
    elif place.suffix == ".npz":
        drawn.save(place)
    else:
        write_text(place, drawn.to_json())
