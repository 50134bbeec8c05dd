"""`steppe landscape`: the loss on a line or plane through a model's weights, or on the line between two models."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .errors import STOPPED, UsageError, usage_errors
from .options import Command, File
from .output import Output
from .subjects import On, config_of, subject

if TYPE_CHECKING:
    from ..measures.landscape import Slice
    from ..measures.objective import Objective
    from ..measures.paths import Path as Way

FORMATS = (".html", ".json", ".npz")


@dataclass(frozen=True)
class Look:
    """What to draw, along which directions, and where to write it."""

    what: list[str] = field(default_factory=list, metadata={"metavar": "RUN|CHECKPOINT", "nargs": "*"})
    """one, for the loss around it; two, for the straight line between them"""
    out: str = field(default="landscape.html", metadata={"metavar": "FILE"})
    """a page (.html), or the numbers (.json, .npz)"""
    axes: int = 2
    """around one: 1 for a line, 2 for a plane"""
    directions: Literal["random", "eigenvectors"] = "random"
    """random directions scaled by filter norms, or the eigenvectors of largest curvature"""
    span: float = 1.0  # Li et al. 2018
    """distance along each direction; a random one is as long as the weights"""
    points: int | None = None
    """points per axis; defaults to 51 on a line, 21 in a plane and between two"""
    view: Literal["contour", "surface"] = "contour"
    """how to draw a plane"""

    def __post_init__(self) -> None:
        if self.axes not in (1, 2):
            raise ValueError(f"axes is {self.axes}, and has to be 1 for a line or 2 for a plane")
        if not 0 < self.span < inf:
            raise ValueError(f"span is {self.span}, and has to be more than 0, and finite")
        if self.points is not None and self.points < 2:
            raise ValueError(f"points is {self.points}, and has to be 2 or more")


def run(look: Look, on: On, file: File) -> Output:
    """Evaluate the loss point by point; write the points so far if it is stopped."""
    if len(look.what) not in (1, 2):
        raise UsageError(f"a landscape is of one run or checkpoint, or between two, not of {len(look.what)}")
    if Path(look.out).suffix not in FORMATS:
        raise UsageError(f"--out takes a file that ends in {', '.join(FORMATS)}, not {look.out!r}")
    from ..training.config import known_device

    with usage_errors():
        known_device(on.device)
    for where in look.what:
        config_of(where, on)  # raises for missing files before anything takes time
    objective = subject(look.what[0], on).objective(on)
    drawn = _between(objective, look, on) if len(look.what) == 2 else _around(objective, look, on)
    _write(drawn, look)
    return _output(drawn, look)


def _around(objective: Objective, look: Look, on: On) -> Slice:
    from ..measures.directions import eigenvectors, random_plane
    from ..measures.landscape import slice_1d, slice_2d

    a, b = (random_plane if look.directions == "random" else eigenvectors)(objective, seed=on.seed)
    if look.axes == 1:
        return slice_1d(objective, a, look.span, look.points or 51)
    return slice_2d(objective, a, b, look.span, look.points or 21)


def _between(objective: Objective, look: Look, on: On) -> Way:
    from ..measures.paths import path

    other = subject(look.what[1], on)
    return path(objective, other.model.state_dict(), look.points or 21, name=look.what[1])


def _write(drawn: Slice | Way, look: Look) -> None:
    from .._util.files import atomic_write
    from ..measures.plotting import write_html

    place = Path(look.out)
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.suffix == ".html":
        write_html(drawn, place, look.view)
    elif place.suffix == ".npz":
        drawn.save(place)
    else:
        with atomic_write(place) as file:
            file.write(drawn.to_json().encode())


def _output(drawn: Slice | Way, look: Look) -> Output:
    from ..measures.paths import Path as Way
    from ..measures.plotting import caption

    along = drawn.along if isinstance(drawn, Way) else drawn
    data: dict[str, Any] = {"out": look.out, "runs": look.what, **along.to_dict()}
    lines = [f"{look.out}: {caption(drawn)}"]
    if isinstance(drawn, Way) and drawn.complete and not along.nonfinite:
        barrier = drawn.barrier()
        data |= {"barrier": barrier.value, "top": drawn.top}
        lines.append(f"barrier {barrier}")
    return Output(data, lines, code=0 if drawn.complete else STOPPED)


COMMANDS = {
    "landscape": Command(
        "landscape",
        "Draw the loss around one model, or on the straight line between two and its barrier.",
        (Look, On, File),
        run,
        [
            "steppe landscape runs/a --out landscape.html",
            "steppe landscape runs/a runs/b --out between.html",
            "steppe landscape runs/a --axes 1 --directions eigenvectors --out line.json",
        ],
    )
}
