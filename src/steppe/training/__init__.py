"""One training loop for all methods, and runs that survive anything."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
