"""Studies: pools of runs, what was measured of them, whether sharpness predicted generalisation, and a report."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
