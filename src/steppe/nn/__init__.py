"""Reference models in plain torch, each by its name and checked against its published number of parameters."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
