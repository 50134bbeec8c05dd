"""One training loop for all methods; runs resume after any interruption with bit-identical results."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
