"""Every definition of sharpness, as measures that map an objective to an estimate with its error and its cost."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
