"""Fair comparisons of methods at equal cost: which one, with which settings, and by how much."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
