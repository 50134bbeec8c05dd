"""One training loop for all methods, and runs that survive anything."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
