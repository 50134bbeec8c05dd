"""steppe: train flat, measure flatness, learn whether it mattered."""

from ._util.lazy import offered

__version__ = "0.1.0"
__getattr__, __dir__ = offered(__name__, __file__)
