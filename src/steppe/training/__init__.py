"""One training loop for all methods; runs resume after any interruption with bit-identical results."""

from .._util.lazy import offered

__getattr__, __dir__ = offered(__name__, __file__)
