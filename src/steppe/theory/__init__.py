"""Closed forms behind sharpness-aware training, each with its statement, and simulations that check them."""

from .._util.lazy import lazy_exports

__getattr__, __dir__ = lazy_exports(__name__, __file__)
