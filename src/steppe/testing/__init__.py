"""Laws for methods of your own, which steppe's own methods obey too."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
