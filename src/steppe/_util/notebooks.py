"""Values in notebooks: what has a picture shows it."""

from __future__ import annotations

from typing import Any


def picture(self: Any, include: Any = None, exclude: Any = None) -> dict[str, Any]:
    """The `_repr_mimebundle_` of a value with `plot`: its plotly figure; its text where plotly is missing."""
    try:
        return dict(self.plot()._repr_mimebundle_(include, exclude)) or {"text/plain": repr(self)}
    except ImportError:
        return {"text/plain": repr(self)}
