"""steppe: train flat, measure flatness, learn whether it mattered."""

from ._util.lazy import lazy_exports

__version__ = "0.1.0"
__getattr__, __dir__ = lazy_exports(__name__, __file__)
