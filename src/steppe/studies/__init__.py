"""Studies: pools of runs, what was measured of them, whether sharpness predicted generalisation, and a report."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
