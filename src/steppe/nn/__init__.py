"""Reference models in plain torch, by name; the tests check them against published numbers of parameters."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
