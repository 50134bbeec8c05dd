"""Reference models in plain torch, each by its name and checked against its published number of parameters."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
